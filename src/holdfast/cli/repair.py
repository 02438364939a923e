# SPDX-License-Identifier: Apache-2.0
"""holdfast repair plan | run, holdfast what-if"""

import argparse
import textwrap
from collections.abc import Iterable
from typing import Any

from cliff.columns import FormattableColumn

from holdfast.cli import ListCommand, ShowCommand, Table, one, rows, typed
from holdfast.cli.lease import MOST_NAMED

COLUMNS = ("lease", "reservation", "state", "from", "to", "missing")
WIDEST = 50
LONG = ("lease_id", "project_id", "resource_type", "start_date", "end_date")


class Wrapped(FormattableColumn[str]):
    """A sentence that would make a table too wide."""

    def human_readable(self) -> str:
        return textwrap.fill(self._value, WIDEST)


class _Report(ListCommand):
    """A sentence, a table of the reservations that are hit, and the capacity that is left."""

    left = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--long", action="store_true", help="with ids, project, type and dates")
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        code = super().run(parsed_args)
        if self.left:
            self.tell(parsed_args, self.left)
        return code

    def show(self, args: argparse.Namespace, report: dict[str, Any], fail: str) -> Table:
        self.tell(args, sentence(report, fail))
        counts = report["counts"]
        self.left = (
            f"capacity left: {_many(counts['usable'], 'host')} usable, {counts['free']} of them"
            " free now"
        )
        return rows(COLUMNS + LONG * args.long, map(_row, report["moves"]))


class _Plan(_Report):
    """A report of what would happen."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--fail-on-short",
            action="store_true",
            help="end with 1 if a reservation would miss something",
        )
        return parser

    def show(self, args: argparse.Namespace, report: dict[str, Any], fail: str) -> Table:
        if args.fail_on_short and report["counts"]["short"]:
            self.exit_code = 1
        return super().show(args, report, fail)


class Plan(_Plan):
    """Show what a repair would do now: which reservations move where, which miss something.

    Nothing is changed. `from` are hosts that failed and are given up, `to` what comes instead;
    `missing` says what could not be had, and why.
    """

    example = """  holdfast repair plan
  holdfast repair plan --long -f json
  holdfast repair plan --fail-on-short --quiet || mail -s 'reservations at risk' ops"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        report = self.client.repair.plan()
        table = self.show(parsed_args, report, "failed")
        if report["held"]:
            self.tell(parsed_args, _held(report))
        return table


class Run(_Report):
    """Repair now what failed hosts hit, without waiting for the next look.

    Repair happens by itself; this is for the impatient, and for a hold: when too much failed at
    once, nothing there is moved before somebody who has looked says that it is so. The approval
    counts for an hour, and its reason is kept. The table is what a manager now begins to do. While
    something is held the command ends with 1.
    """

    example = """  holdfast repair run
  holdfast repair run --approve --domain rack-b --reason 'rack-b is without power until noon'"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--approve", action="store_true", help="lift the hold")
        parser.add_argument("--reason", metavar="TEXT", help="why; needed with --approve")
        parser.add_argument(
            "--domain", metavar="RACK|ZONE", help="only there; default: wherever something is held"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        approve, reason = parsed_args.approve, (parsed_args.reason or "").strip()
        if approve and not reason:
            self.parser.error("--approve needs --reason TEXT: others will ask why it was lifted")
        if reason and not approve:
            self.parser.error("--reason goes with --approve")
        domain = (parsed_args.domain or "").strip()
        if domain and not approve:
            self.parser.error("--domain goes with --approve")
        report = self.client.repair.run(approve=approve, reason=reason, domain=domain)
        table = self.show(parsed_args, report, "failed")
        if report["held"]:
            self.exit_code = 1
            self.app.LOG.error(_held(report))
        return table


class WhatIf(_Plan):
    """Show what would become of reservations if hosts failed, beside those that have.

    Which would move where, which would miss something, what capacity would be left. Nothing is
    changed, and nothing is reserved for the case.
    """

    example = """  holdfast what-if --fail cmp-03 cmp-07
  holdfast what-if --fail-rack rack-a --fail cmp-21 --long
  holdfast what-if --fail-rack rack-a --fail-on-short -f json -c lease -c missing"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        for option, metavar, what in (
            ("--fail", "HOST", "these hosts, by name or id; repeat it for more"),
            ("--fail-rack", "RACK", "all enrolled hosts of these racks; repeat it for more"),
        ):
            parser.add_argument(
                option, action="extend", nargs="+", default=[], metavar=metavar, help=what
            )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        hosts, racks = parsed_args.fail, parsed_args.fail_rack
        if not hosts and not racks:
            self.parser.error("say what fails: --fail HOST or --fail-rack RACK")
        report = self.client.repair.plan(hosts=hosts, racks=racks)
        table = self.show(parsed_args, report, "fail")
        if report["held"]:
            self.tell(parsed_args, f"it would be held until approved: {report['held']}")
        return table


def sentence(report: dict[str, Any], fail: str) -> str:
    """3 hosts failed (cmp-1, cmp-2, cmp-3); 12 reservations hit: 10 move, 2 miss something"""
    failed, counts = report["failed"], report["counts"]
    if not failed and not counts["reservations"]:
        return "no host has failed, there is nothing to repair"
    verb = "fails" if fail == "fail" and len(failed) == 1 else fail
    first = f"{_many(len(failed), 'host')} {verb}{_named(failed)}"
    if not counts["reservations"]:
        return f"{first}; no reservation is hit"
    moved, short = counts["moved"], counts["short"]
    parts = [
        f"{moved} move{'s' * (moved == 1)}" * bool(moved),
        f"{short} miss{'es' * (short == 1)} something" * bool(short),
    ]
    hit = _many(counts["reservations"], "reservation")
    return f"{first}; {hit} hit: {', '.join(part for part in parts if part)}"


def _held(report: dict[str, Any]) -> str:
    return f"held: {report['held']}; if it is so: `holdfast repair run --approve --reason TEXT`"


def _row(move: dict[str, Any]) -> dict[str, Any]:
    return {
        **move,
        "lease": move["lease_name"],
        "reservation": move["reservation_id"],
        "state": "active" if move["active"] else "pending",
        "from": move["leaves"],
        "to": move["joins"],
        "missing": Wrapped(move["short"] or ""),
    }


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _named(names: Iterable[str]) -> str:
    """(cmp-1, cmp-2 and 5 more), or nothing"""
    known = list(names)
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return f" ({', '.join(known[:MOST_NAMED])}{more})" if known else ""


# holdfast failover, holdfast failover set


FAILOVER_COLUMNS = (
    "segment",
    "kept",
    "members",
    "enrolled",
    "usable",
    "free",
    "least_free",
    "least_free_at",
    "short",
    "why",
)


@typed
def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number: write 0 or more")
    return int(text)


class FailoverList(ListCommand):
    """Show what each segment keeps free for the case that hosts fail, and whether it has it.

    `usable` hosts are enrolled, not failed and not on maintenance; `free` of them nobody holds now,
    `least_free` at the worst moment of the next 30 days. With --fail-on-short the command ends with
    1 if a segment has, or will have, fewer than it keeps.
    """

    example = """  holdfast failover
  holdfast failover --fail-on-short --quiet || mail -s 'spare hosts are short' ops"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--fail-on-short", action="store_true", help="end with 1 if any segment is short"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self.client.failover.list()
        if parsed_args.fail_on_short and any(each["short"] for each in found):
            self.exit_code = 1
        return rows(
            FAILOVER_COLUMNS, ({**each, "why": Wrapped(each["why"] or "")} for each in found)
        )


class FailoverSet(ShowCommand):
    """Say how many hosts of a segment may fail: so many are kept free at every booking.

    What is booked already stays. Repair and recovery may use what is kept; 0 keeps nothing.
    """

    example = "  holdfast failover set north 2"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("segment", help="name or id")
        parser.add_argument("hosts", type=_number, help="how many are kept free")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        known = self.client.failover.find(parsed_args.segment)
        return one(self.client.failover.keep(known["segment_id"], parsed_args.hosts))
