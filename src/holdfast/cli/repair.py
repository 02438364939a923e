# SPDX-License-Identifier: Apache-2.0
"""holdfast repair plan | run, holdfast what-if, holdfast failover, holdfast failover set"""

import argparse
import textwrap
from collections.abc import Iterable
from typing import ClassVar

from cliff.columns import FormattableColumn

from holdfast.cli import (
    Arguments,
    ListCommand,
    ListObjects,
    ShowObject,
    Table,
    arg,
    named,
    rows,
    typed,
)
from holdfast.client.client import Object, Objects
from holdfast.runtime.text import printable

COLUMNS = ("lease", "reservation", "state", "from", "to", "missing")
WIDEST = 50
#: The most hosts whose servers `what-if` lists.
MOST_SHOWN = 30
LONG = ("lease_id", "project_id", "resource_type", "start_date", "end_date")


class Wrapped(FormattableColumn[str]):
    """A long sentence, wrapped to keep the table narrow."""

    def human_readable(self) -> str:
        return textwrap.fill(printable(self._value), WIDEST)


class _Report(ListCommand):
    """A command that prints a summary, a table of affected reservations, and the capacity left."""

    left = ""
    arguments: ClassVar[Arguments] = (
        arg("--long", action="store_true", help="with ids, project, type and dates"),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        code = super().run(parsed_args)
        if self.left:
            self.note(parsed_args, self.left)
        return code

    def show(self, args: argparse.Namespace, report: Object, fail: str) -> Table:
        self.note(args, sentence(report, fail))
        counts = report["counts"]
        self.left = (
            f"capacity left: {_many(counts['usable'], 'host')} usable, {counts['free']} of them"
            " free now"
        )
        return rows(COLUMNS + LONG * args.long, map(_row, report["moves"]))


class _Plan(_Report):
    """A report of a plan."""

    arguments: ClassVar[Arguments] = (
        *_Report.arguments,
        arg(
            "--fail-on-short",
            action="store_true",
            help="end with 1 if a reservation would miss something",
        ),
    )

    def show(self, args: argparse.Namespace, report: Object, fail: str) -> Table:
        if args.fail_on_short and report["counts"]["short"]:
            self.exit_code = 1
        return super().show(args, report, fail)


class Plan(_Plan):
    """Show the repair plan: which reservations would move where, and which would miss resources.

    Nothing is changed. `from` are failed hosts to give up, `to` their replacements; `missing`
    says what is not available, and why.
    """

    example = """  holdfast repair plan
  holdfast repair plan --long -f json
  holdfast repair plan --fail-on-short --quiet || mail -s 'reservations at risk' ops"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        report = self.client.repair.plan()
        table = self.show(parsed_args, report, "failed")
        if report["held"]:
            self.note(parsed_args, _held(report))
        return table


class Run(_Report):
    """Repair reservations on failed hosts now, without waiting for the next periodic repair.

    Repair runs by itself; use this command to save time, or to lift a hold. After a mass
    failure Holdfast moves nothing there before an operator has checked and approved. The
    approval lasts an hour, and its reason is kept. The table shows what a manager now starts.
    While something is held the command ends with 1.
    """

    example = """  holdfast repair run
  holdfast repair run --approve --domain rack-b --reason 'rack-b is without power until noon'"""
    arguments = (
        *_Report.arguments,
        arg("--approve", action="store_true", help="lift the hold"),
        arg("--reason", metavar="TEXT", help="why; needed with --approve"),
        arg(
            "--domain", metavar="RACK|ZONE", help="only there; default: wherever something is held"
        ),
    )

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
    """Show the effects on reservations and servers if more hosts failed.

    The command shows which reservations would move where, which would miss resources, which
    servers recovery would start elsewhere, which would stay down and why, and the capacity left
    in each rack. Hosts that have failed already count too. Nothing is changed, and nothing is
    reserved.
    """

    example = """  holdfast what-if --fail cmp-03 cmp-07
  holdfast what-if --fail-rack rack-a --fail cmp-21 --long
  holdfast what-if --fail-rack rack-a --fail-on-short -f json -c lease -c missing"""
    arguments = (
        *_Plan.arguments,
        arg(
            "--fail",
            action="extend",
            nargs="+",
            default=[],
            metavar="HOST",
            help="these hosts, by name or id; repeat it for more",
        ),
        arg(
            "--fail-rack",
            action="extend",
            nargs="+",
            default=[],
            metavar="RACK",
            help="all enrolled hosts of these racks; repeat it for more",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        hosts, racks = parsed_args.fail, parsed_args.fail_rack
        if not hosts and not racks:
            self.parser.error("name the failed hosts: --fail HOST or --fail-rack RACK")
        effects = self.client.repair.what_if(hosts=hosts, racks=racks)
        report = effects["repair"]
        others = [name for name in effects["hosts"] if name not in report["failed"]]
        report = {**report, "failed": [*report["failed"], *others]}
        table = self.show(parsed_args, report, "fail")
        if report["held"]:
            self.note(parsed_args, f"it would be held until approved: {report['held']}")
        self.left = "\n".join((*_servers(effects["recovery"]), self.left, *_capacity(effects)))
        return table


def _servers(recovery: Object) -> Iterable[str]:
    """Yield the recovery preview: the sum of servers, and a sentence per host."""
    if not recovery["hosts"]:
        yield "no server runs on these hosts"
        return
    least = "" if recovery["evacuate_all"] else " at most"
    yield f"servers: {recovery['move']} would move{least}, {recovery['stay']} would stay down"
    for each in recovery["hosts"][:MOST_SHOWN]:
        yield f"  {each['host']}: {each['sentence']}"
    if len(recovery["hosts"]) > MOST_SHOWN:
        yield f"  and those of {len(recovery['hosts']) - MOST_SHOWN} more hosts"


def _capacity(effects: Object) -> Iterable[str]:
    """Yield the capacity left in each rack, and the segments that keep too few hosts free."""
    for each in effects["racks"]:
        yield (
            f"  {each['name'] or 'no rack'}: hosts up {_change(each, 'up')}, to reserve"
            f" {_change(each, 'usable')}, free {_change(each, 'free')}"
        )
    for each in effects["segments"]:
        if each["is_short"]:
            spares = _many(each["kept"], "host")
            yield f"  segment {each['name']} keeps {spares} free; {each['still_free']} would be"


def _change(left: Object, name: str) -> str:
    before, after = left[name], left[f"still_{name}"]
    return f"{before} -> {after}" if after != before else str(before)


def sentence(report: Object, fail: str) -> str:
    """Summarise a report.

    3 hosts failed (cmp-1, cmp-2, cmp-3); 12 reservations hit: 10 move, 2 miss something
    """
    failed, counts = report["failed"], report["counts"]
    if not failed and not counts["reservations"]:
        return "no host has failed, there is nothing to repair"
    verb = "fails" if fail == "fail" and len(failed) == 1 else fail
    first = f"{_many(len(failed), 'host')} {verb}" + (f" ({named(failed)})" if failed else "")
    if not counts["reservations"]:
        return f"{first}; no reservation is hit"
    moved, short = counts["moved"], counts["short"]
    parts = [
        f"{moved} move{'s' * (moved == 1)}" * bool(moved),
        f"{short} miss{'es' * (short == 1)} something" * bool(short),
    ]
    hit = _many(counts["reservations"], "reservation")
    return f"{first}; {hit} hit: {', '.join(part for part in parts if part)}"


def _held(report: Object) -> str:
    return f"held: {report['held']}; if it is so: `holdfast repair run --approve --reason TEXT`"


def _row(move: Object) -> Object:
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


# holdfast failover, holdfast failover set


@typed
def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number: write 0 or more")
    return int(text)


class FailoverList(ListObjects):
    """Show the hosts each segment keeps free for failures, and whether there are enough.

    `usable` hosts are enrolled, not failed and not on maintenance; `free` counts usable hosts
    without a holder now, `least_free` at the worst moment of the next 30 days. With
    --fail-on-short the command ends with 1 if a segment has, or will have, fewer than it keeps.
    """

    example = """  holdfast failover
  holdfast failover --fail-on-short --quiet || mail -s 'spare hosts are short' ops"""

    columns = (
        *("segment", "kept", "members", "enrolled", "usable", "free", "least_free"),
        *("least_free_at", "short", "why"),
    )
    arguments = (
        arg("--fail-on-short", action="store_true", help="end with 1 if any segment is short"),
    )

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        segments = self.client.failover.list()
        self.exit_code = int(args.fail_on_short and any(each["short"] for each in segments))
        return segments

    def row(self, segment: Object) -> Object:
        return {**segment, "why": Wrapped(segment["why"] or "")}


class FailoverSet(ShowObject):
    """Set how many hosts of a segment every booking must leave free for failures.

    Existing bookings stay. Repair and recovery may use the hosts kept free; 0 keeps none.
    """

    example = "  holdfast failover set north 2"
    arguments = (
        arg("ref", metavar="segment", help="name or id"),
        arg("hosts", type=_number, help="how many are kept free"),
    )

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.failover.keep(self.client.failover.find(ref)["segment_id"], args.hosts)
