# SPDX-License-Identifier: Apache-2.0
"""holdfast audit list | export, holdfast operation list | show, holdfast observation list"""

import argparse
import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from holdfast import cli
from holdfast.cli import Base, ListObjects, Moment, ShowObject, arg, values
from holdfast.cli.repair import Wrapped
from holdfast.client.client import UUID, Object, Objects
from holdfast.model.observation import STATES, Observed
from holdfast.model.state_machines import OPERATION
from holdfast.model.votes import HOST_HEALTH
from holdfast.runtime.text import HEAD, csv_row

DECISIONS = (
    arg("--subject", help="a lease's id, incident:ID, host:ID, …; 'incident:' alone: all of them"),
    arg("--actor", metavar="USER", help="actor: the id of a user, or holdfast"),
    arg(
        "--project",
        dest="project_id",
        metavar="ID",
        help="administrators: about things of this project only",
    ),
    arg("--text", help="somewhere in the sentence"),
    arg("--since", type=cli.date, metavar="DATE", help="decided then or later"),
    arg("--until", type=cli.date, metavar="DATE", help="decided before"),
    arg("--marker", type=cli.count, metavar="ID", help="those before the line of this id"),
)
#: Objects that the API lists by default.
MOST_LISTED = 100
LIMIT = arg("--limit", type=cli.count, metavar="N", help="at most N; default: 100")


class List(ListObjects):
    """List decisions, newest first, with a sentence, the subject and the actor of each.

    You see decisions about the leases and guests of your project; administrators see all.
    """

    example = """  holdfast audit list --text fenced --since '2027-01-31 18:00'
  holdfast audit list --subject incident:4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast audit list --actor ann --limit 20 -f json"""
    notes = (cli.DATES,)
    columns = ("id", "at", "subject", "actor", "sentence")
    filters = (*DECISIONS, LIMIT)
    most = MOST_LISTED

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.audit.list(**wanted)

    def row(self, line: Object) -> Object:
        return {**line, "at": Moment(line["at"]), "sentence": Wrapped(line["sentence"])}


class Export(Base):
    """Write all matching decisions, newest first, as JSON or CSV.

    In CSV a value that a spreadsheet would read as a formula starts with an apostrophe.
    """

    example = """  holdfast audit export --since '2027-01-01' --as csv > audit.csv
  holdfast audit export --text fenced | jq -r '.audit[].sentence'"""
    notes = (cli.DATES,)
    filters = DECISIONS
    arguments = (
        arg("--as", dest="form", choices=["json", "csv"], default="json", help="default: json"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        lines = self.client.audit.all(**values(self.filters, parsed_args))
        parts = _csv(lines) if parsed_args.form == "csv" else _json(lines)
        for part in parts:
            self.app.stdout.write(part)


def _json(lines: Iterable[Object]) -> Iterator[str]:
    yield '{"audit": ['
    for number, line in enumerate(lines):
        yield f"{',' if number else ''}\n{json.dumps(line)}"
    yield "\n]}\n"


def _csv(lines: Iterable[Object]) -> Iterator[str]:
    yield HEAD
    yield from map(csv_row, lines)


class OperationList(ListObjects):
    """List durable operations: due, running, waiting for a retry, or done.

    `failures` counts the failed attempts.
    """

    example = """  holdfast operation list --sort-column due_at
  holdfast operation list --lease nightly-tests --status retrying
  holdfast operation list -f json -c kind -c status -c sentence"""
    columns = ("id", "kind", "subject", "status", "due_at", "failures", "sentence")
    arguments = (
        arg(
            "--lease", metavar="REF", help="only of this lease: its name, or its id even if deleted"
        ),
    )
    filters = (
        arg(
            "--status",
            metavar="STATUS",
            choices=sorted(OPERATION),
            help=f"only in this state: {', '.join(sorted(OPERATION))}",
        ),
        LIMIT,
    )
    most = MOST_LISTED

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        subject = args.lease
        if subject and not UUID.fullmatch(subject):
            subject = self.client.leases.find(subject)["id"]
        return self.client.operations.list(subject=subject, **wanted)

    def row(self, operation: Object) -> Object:
        return {**operation, "failures": operation.get("attempts")}


class OperationShow(ShowObject):
    """Show a durable operation: when it is due, how often it failed, and why."""

    example = "  holdfast operation show 4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
    arguments = (arg("ref", metavar="operation", help="its id, as `operation list` shows it"),)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.operations.show(ref)


REPORTED = ("failed", "noted", "well", "alert", "raised", "again", "no_data", "cleared")


class ObservationList(ListObjects):
    """List the reports of host monitors and agents, newest first.

    Reports are about failed and recovered guests and services, notes about guests, votes about
    hosts, and alarms. `incident_id` is the incident that a report led to; a report without an
    incident led to no action.
    """

    example = """  holdfast observation list --state noted
  holdfast observation list --host cmp-07 --since '2027-01-31 18:00'
  holdfast observation list --subject server:3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast observation list --subject process:cmp-07:libvirtd -f json"""
    notes = (cli.DATES,)
    columns = ("observed_at", "observer", "subject", "state", "what", "since", "incident_id")
    filters = (
        arg("--subject", help="server:UUID, process:HOST:NAME or host:NAME"),
        arg("--host", help="about this host, and about its guests and services"),
        arg("--kind", choices=(*STATES, HOST_HEALTH), help="only of this kind"),
        arg("--state", choices=REPORTED, help="only in this state"),
        arg("--since", type=cli.date, metavar="DATE", help="observed then or later"),
        LIMIT,
    )
    most = MOST_LISTED

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.observations.list(**wanted)

    def row(self, observation: Object) -> Object:
        names = ("id", "observer", "subject", "kind", "state", "evidence")
        since = datetime.fromisoformat(observation["since"])
        what = Observed(**{name: observation[name] for name in names}, since=since).what
        times = {name: Moment(observation[name]) for name in ("since", "observed_at")}
        return {
            **observation,
            **times,
            "what": what,
            "incident_id": observation["incident_id"] or "",
        }
