# SPDX-License-Identifier: Apache-2.0
"""holdfast audit list | export, holdfast operation list, holdfast observation list"""

import argparse
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from holdfast import cli
from holdfast.cli import Base, ListCommand, Moment, Table, rows
from holdfast.cli.repair import Wrapped
from holdfast.client import dates
from holdfast.client.client import UUID
from holdfast.model.observation import STATES, Observed
from holdfast.model.state_machines import OPERATION
from holdfast.model.votes import HOST_HEALTH
from holdfast.runtime.text import HEAD, csv_row

COLUMNS = ("id", "at", "subject", "actor", "sentence")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--subject", help="a lease's id, incident:ID, host:ID, …; 'incident:' alone: all of them")
    add("--actor", metavar="USER", help="who did it: a user's id, or holdfast")
    add("--project", metavar="ID", help="administrators: about things of this project only")
    add("--text", help="somewhere in the sentence")
    add("--since", type=cli.date, metavar="DATE", help="decided then or later")
    add("--until", type=cli.date, metavar="DATE", help="decided before")
    add("--marker", type=cli.count, metavar="ID", help="those before the line of this id")


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    now = dates.now()
    return {
        "subject": args.subject,
        "actor": args.actor,
        "project_id": args.project,
        "text": args.text,
        "since": args.since and args.since.at(now).isoformat(),
        "until": args.until and args.until.at(now).isoformat(),
        "marker": args.marker,
    }


class List(ListCommand):
    """List decisions, newest first, with a sentence, the subject and the actor of each.

    You see decisions about the leases and guests of your project; administrators see all.
    """

    example = """  holdfast audit list --text fenced --since '2027-01-31 18:00'
  holdfast audit list --subject incident:4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast audit list --actor ann --limit 20 -f json"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + cli.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_filters(parser)
        parser.add_argument("--limit", type=cli.count, metavar="N", help="at most N; default: 100")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self.client.audit.list(**_wanted(parsed_args), limit=parsed_args.limit)
        return rows(COLUMNS, map(_row, found))


def _row(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "at": Moment(line["at"]), "sentence": Wrapped(line["sentence"])}


class Export(Base):
    """Write all matching decisions, newest first, as JSON or CSV.

    In CSV a value that a spreadsheet would read as a formula starts with an apostrophe.
    """

    example = """  holdfast audit export --since '2027-01-01' --as csv > audit.csv
  holdfast audit export --text fenced | jq -r '.audit[].sentence'"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + cli.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_filters(parser)
        parser.add_argument(
            "--as", dest="form", choices=["json", "csv"], default="json", help="default: json"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        lines = self.client.audit.all(**_wanted(parsed_args))
        parts = _csv(lines) if parsed_args.form == "csv" else _json(lines)
        for part in parts:
            self.app.stdout.write(part)


def _json(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield '{"audit": ['
    for number, line in enumerate(lines):
        yield f"{',' if number else ''}\n{json.dumps(line)}"
    yield "\n]}\n"


def _csv(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield HEAD
    yield from map(csv_row, lines)


# holdfast operation list


class OperationList(ListCommand):
    """List durable operations: due, running, waiting for a retry, or done.

    `failures` counts the failed attempts.
    """

    example = """  holdfast operation list --sort-column due_at
  holdfast operation list --lease nightly-tests --status retrying
  holdfast operation list -f json -c kind -c status -c sentence"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--lease", metavar="REF", help="only of this lease: its name, or its id even if deleted"
        )
        parser.add_argument(
            "--status",
            metavar="STATUS",
            choices=sorted(OPERATION),
            help=f"only in this state: {', '.join(sorted(OPERATION))}",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        subject = parsed_args.lease
        if subject and not UUID.fullmatch(subject):
            subject = self.client.leases.find(subject)["id"]
        found = self.client.operations.list(subject=subject, status=parsed_args.status)
        columns = ("id", "kind", "subject", "status", "due_at", "failures", "sentence")
        return rows(columns, ({**each, "failures": each.get("attempts")} for each in found))


# holdfast observation list


OBSERVATION_COLUMNS = (
    "observed_at",
    "observer",
    "subject",
    "state",
    "what",
    "since",
    "incident_id",
)
WORDS = ("failed", "noted", "well", "alert", "raised", "again", "no_data", "cleared")


class ObservationList(ListCommand):
    """List the reports of host monitors and agents, newest first.

    Reports are about failed and recovered guests and services, notes about guests, votes about
    hosts, and alarms. `incident_id` is the incident that a report led to; a report without an
    incident led to no action.
    """

    example = """  holdfast observation list --state noted
  holdfast observation list --host cmp-07 --since '2027-01-31 18:00'
  holdfast observation list --subject server:3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast observation list --subject process:cmp-07:libvirtd -f json"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + cli.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--subject", help="server:UUID, process:HOST:NAME or host:NAME")
        add("--host", help="about this host, and what was seen on it")
        add("--kind", choices=(*STATES, HOST_HEALTH), help="only of this kind")
        add("--state", choices=WORDS, help="only in this state")
        add("--since", type=cli.date, metavar="DATE", help="observed then or later")
        add("--limit", type=cli.count, metavar="N", help="at most N; default: 100")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        wanted = {name: getattr(args, name) for name in ("subject", "host", "kind", "state")}
        since = args.since and args.since.at(dates.now()).isoformat()
        found = self.client.observations.list(**wanted, since=since, limit=args.limit)
        return rows(OBSERVATION_COLUMNS, map(_observation_row, found))


def _observation_row(one: dict[str, Any]) -> dict[str, Any]:
    """Return the table row of an observation, with a readable description."""
    names = ("id", "observer", "subject", "kind", "state", "evidence")
    since = datetime.fromisoformat(one["since"])
    what = Observed(**{name: one[name] for name in names}, since=since).what
    times = {name: Moment(one[name]) for name in ("since", "observed_at")}
    return {**one, **times, "what": what, "incident_id": one["incident_id"] or ""}
