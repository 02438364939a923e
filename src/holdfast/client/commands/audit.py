# SPDX-License-Identifier: Apache-2.0
"""holdfast audit list | export"""

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.client import clock
from holdfast.client.commands import Base, ListCommand, Moment, Table, asking, rows
from holdfast.client.commands.repair import Wrapped
from holdfast.model.audit import HEAD, csv_row

COLUMNS = ("id", "at", "subject", "actor", "sentence")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--subject", help="a lease's id, incident:ID, host:ID, …; 'incident:' alone: all of them")
    add("--actor", metavar="USER", help="who did it: a user's id, or holdfast")
    add("--project", metavar="ID", help="administrators: about things of this project only")
    add("--text", help="somewhere in the sentence")
    add("--since", type=asking.date, metavar="DATE", help="decided then or later")
    add("--until", type=asking.date, metavar="DATE", help="decided before")
    add("--marker", type=asking.count, metavar="ID", help="those before the line of this id")


def _wanted(args: argparse.Namespace) -> dict[str, Any]:
    now = clock.now()
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
    """List decisions, each a sentence: what was done, about what, in whose name; the newest first.

    You see those about the leases and guests of your project, administrators all.
    """

    example = """  holdfast audit list --text fenced --since '2027-01-31 18:00'
  holdfast audit list --subject incident:4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast audit list --actor ann --limit 20 -f json"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + asking.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_filters(parser)
        parser.add_argument(
            "--limit", type=asking.count, metavar="N", help="at most N; default: 100"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self.client.audit.list(**_wanted(parsed_args), limit=parsed_args.limit)
        return rows(COLUMNS, map(_row, found))


def _row(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "at": Moment(line["at"]), "sentence": Wrapped(line["sentence"])}


class Export(Base):
    """Write all decisions that are wanted, the newest first, as JSON or CSV.

    In CSV what a spreadsheet would take for a formula has an apostrophe before it.
    """

    example = """  holdfast audit export --since '2027-01-01' --as csv > audit.csv
  holdfast audit export --text fenced | jq -r '.audit[].sentence'"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + asking.DATES

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
