# SPDX-License-Identifier: Apache-2.0
"""holdfast lease create | list | show | set | delete"""

import argparse
from datetime import datetime
from typing import Any

from holdfast.client import clock, dates, where
from holdfast.client.commands import (
    Base,
    Lines,
    ListCommand,
    Moment,
    ShowCommand,
    Table,
    one,
    rows,
    typed,
)
from holdfast.client.errors import NotReachable, Unavailable

POLL_S = 0.5
PATIENCE = 20  # polls in a row that may fail before waiting gives up
DATES = """
dates: now, +45s, +30m, +2h, +1d, 2027-01-31 18:00[:30] (UTC), 2027-01-31T18:00+01:00"""
LONGEST_WHERE = 60

_date = typed(dates.parse)
_span = typed(dates.span)
_condition = typed(where.check)


@typed
def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of hosts: write 1 or more")
    return int(text)


class Create(ShowCommand):
    """Reserve hosts for a time.

    From the start of the lease to its end the hosts are yours alone. Ask for a number of
    hosts, or for at least --min and at most --max, and say with --where which ones will do.
    """

    example = """  holdfast lease create training --hosts 2 --end +8h --where 'vcpus>=8' --wait
  holdfast lease create night --start '2027-01-31 18:00' --end +12h --min 1 --max 4 \\
      --where 'rack in rack-b,rack-c' --where gpu=True --before-end snapshot"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("name", help="what to call the lease")
        add("--start", type=_date, metavar="DATE", default=dates.NOW, help="default: now")
        add(
            "--end",
            type=_date,
            metavar="DATE",
            default=dates.parse("+24h"),
            help="+2h counts from --start, so from now if that is not given; default: +24h",
        )
        add("--hosts", type=_count, metavar="N", help="exactly N hosts; default: 1")
        add("--min", type=_count, metavar="N", help="at least N hosts; without --max exactly N")
        add("--max", type=_count, metavar="N", help="at most N hosts; without --min at least 1")
        add(
            "--where",
            action="append",
            default=[],
            type=_condition,
            metavar="CONDITION",
            help="which hosts will do: 'vcpus>=8', gpu=True, 'rack!=rack-a', "
            "'rack in rack-a,rack-b', "
            "or a property expression in JSON; repeat it to demand more",
        )
        add(
            "--hypervisor-properties",
            action="append",
            default=[],
            type=_condition,
            metavar="CONDITION",
            help="the same, sent as hypervisor_properties",
        )
        add(
            "--before-end-date",
            type=_date,
            metavar="DATE",
            help="when the end is announced; +2h counts from --start, or from now",
        )
        add(
            "--before-end",
            choices=["", "default", "snapshot"],
            help="what happens to the servers then",
        )
        add("--wait", action="store_true", help="wait until it is active, or failed")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        now = clock.now().replace(microsecond=0)
        announced = args.before_end_date
        reservation = self._reservation(args)
        try:
            start = args.start.at(now)
            when = {
                "start_date": args.start.on_wire(now),
                "end_date": args.end.on_wire(start),
                "before_end_date": announced.on_wire(start) if announced else None,
            }
        except ValueError as error:
            self.parser.error(str(error))
        lease = self.client.leases.create(args.name, reservations=[reservation], **when)
        if args.wait:
            lease = self._wait(lease)
        return _shown(lease)

    def _reservation(self, args: argparse.Namespace) -> dict[str, Any]:
        if args.hosts and (args.min or args.max):
            self.parser.error("--hosts N already says --min N --max N: drop one of them")
        low = args.hosts or args.min or 1
        high = args.hosts or args.max or low
        if low > high:
            self.parser.error(f"--min {low} is more than --max {high}")
        reservation = {
            "resource_type": "physical:host",
            "min": low,
            "max": high,
            "hypervisor_properties": where.expression(args.hypervisor_properties),
            "resource_properties": where.expression(args.where),
        }
        if args.before_end is not None:
            reservation["before_end"] = args.before_end
        return reservation

    def _wait(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Follow the lease until it is active, failed or over."""
        said, failures = "", 0
        while True:
            sentence = f"lease {lease['name']} ({lease['id']}): {lease['status']}"
            if lease["status"] == "PENDING":
                sentence += f", starts {lease['start_date'].split('.')[0]}Z"
            if sentence != said:
                self.say(sentence)
            said = sentence
            if lease["status"] in ("ACTIVE", "ERROR", "TERMINATED"):
                self.exit_code = 1 if lease["status"] == "ERROR" else 0
                return lease
            clock.sleep(POLL_S)
            try:
                lease, failures = self.client.leases.show(lease["id"]), 0
            except (NotReachable, Unavailable):
                failures += 1
                if failures >= PATIENCE:
                    raise


class List(ListCommand):
    """List the leases you may see.

    `hosts` is the number asked for, least and most.
    """

    example = """  holdfast lease list --sort-column start_date
  holdfast lease list -f json"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        leases = self.client.leases.list()
        for lease in leases:
            lease["hosts"] = _hosts(lease)
        columns = ("id", "name", "status", "degraded", "start_date", "end_date", "hosts")
        return rows(columns, leases)


class Show(ShowCommand):
    """Show one lease, with its reservations and events."""

    example = "  holdfast lease show nightly-tests"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("lease", help="name or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return _shown(self.client.leases.find(parsed_args.lease))


class Set(ShowCommand):
    """Rename a lease, move it, make it longer or shorter."""

    example = """  holdfast lease set nightly-tests --extend 2h
  holdfast lease set nightly-tests --end now"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("lease", help="name or id")
        parser.add_argument("--name", help="a new name")
        parser.add_argument("--start", type=_date, metavar="DATE", help="a new start")
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--end",
            type=_date,
            metavar="DATE",
            help="a new end; +2h counts from --start, or from now",
        )
        ends.add_argument("--extend", type=_span, metavar="2h", help="end that much later")
        ends.add_argument("--shorten", type=_span, metavar="30m", help="end that much earlier")
        parser.add_argument(
            "--before-end-date", type=_date, metavar="DATE", help="when the end is announced"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        asked = (args.start, args.end, args.extend, args.shorten, args.before_end_date)
        if args.name is None and not any(asked):
            self.parser.error("nothing to change: give --name, --end, --extend, …")
        lease = self.client.leases.find(args.lease)
        try:
            changes = _changes(args, lease, clock.now().replace(microsecond=0))
        except ValueError as error:
            self.parser.error(str(error))
        return _shown(self.client.leases.update(lease["id"], **changes))


class Delete(Base):
    """Delete leases; one that has started ends, and its servers with it."""

    example = "  holdfast lease delete training-run quarter-close"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("leases", nargs="+", metavar="lease", help="name or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.each(parsed_args.leases, self._delete)

    def _delete(self, ref: str) -> None:
        lease = self.client.leases.find(ref)
        self.client.leases.delete(lease["id"])
        what = f"lease {lease['name']} ({lease['id']})"
        self.say_deleted(what, lambda: self.client.leases.show(lease["id"]))


def _changes(args: argparse.Namespace, lease: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The body of the update that the options ask for."""
    origin = args.start.at(now) if args.start else now
    changes: dict[str, Any] = {}
    if args.name is not None:
        changes["name"] = args.name
    if args.start:
        changes["start_date"] = args.start.on_wire(now)
    if args.end:
        changes["end_date"] = args.end.on_wire(origin)
    if args.extend:
        end = dates.from_wire(lease["end_date"])
        changes["end_date"] = dates.on_wire(dates.later(end, args.extend))
    if args.shorten:
        end = dates.from_wire(lease["end_date"])
        changes["end_date"] = dates.on_wire(dates.later(end, -args.shorten))
    if args.before_end_date:
        changes["before_end_date"] = args.before_end_date.on_wire(origin)
    return changes


class Reservations(Lines):
    """physical:host, active, 1-4 hosts, where [">=", "$vcpus", "8"]"""

    def line(self, value: Any) -> str:
        words = [value.get("resource_type"), value.get("status")]
        if count := _count_of(value):
            words.append(f"{count} host" + "s" * (count != "1"))
        for key in ("hypervisor_properties", "resource_properties"):
            if asked := value.get(key):
                words.append("where " + _cut(str(asked)))
        words += [
            key.replace("_", " ")
            for key in ("missing_resources", "resources_changed")
            if value.get(key)
        ]
        return ", ".join(word for word in words if word)


class Events(Lines):
    """start_lease 2027-01-31 18:00:00 DONE"""

    def line(self, value: Any) -> str:
        time = Moment(value.get("time")).human_readable()
        return f"{value.get('event_type', '')} {time} {value.get('status', '')}"


def _shown(lease: dict[str, Any]) -> Table:
    return one(lease, reservations=Reservations, events=Events)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WHERE else text[: LONGEST_WHERE - 1] + "…"


def _hosts(lease: dict[str, Any]) -> str:
    """How many hosts were asked for: "2", "1-4", "" for other resources."""
    return " + ".join(filter(None, map(_count_of, lease.get("reservations", ()))))


def _count_of(reservation: dict[str, Any]) -> str:
    low, high = reservation.get("min"), reservation.get("max")
    if low is None:
        return ""
    return f"{low}" if low == high else f"{low}-{high}"
