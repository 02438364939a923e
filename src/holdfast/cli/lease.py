# SPDX-License-Identifier: Apache-2.0
"""holdfast lease create | list | show | set | delete | replace-host | ack, holdfast availability"""

import argparse
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from holdfast import cli
from holdfast.cli import (
    ActOnEach,
    Base,
    DeleteEach,
    Lines,
    ListCommand,
    ListObjects,
    Moment,
    ShowCommand,
    ShowObject,
    Table,
    arg,
    either,
    named,
    one,
    rows,
    typed,
    values,
)
from holdfast.client import dates, syntax
from holdfast.client.client import Leases, Object, Objects, given
from holdfast.model import state_machines

# A lease as text: a short line for each reservation and event


LONGEST_WHERE = 60


def hosts_of(lease: Object) -> str:
    """Return the requested number of hosts: "2", "1-4", "" for other resources."""
    return " + ".join(filter(None, map(_count_of, lease.get("reservations", ()))))


class Reservations(Lines):
    """Reservations, a line each.

    physical:host, active, 1-4 hosts, where [">=", "$vcpus", "8"], on cmp-1, cmp-2
    """

    def line(self, value: Any) -> str:
        return ", ".join(word for word in _words(value) if word)


class Events(Lines):
    """An event: start_lease 2027-01-31 18:00:00 DONE"""

    def line(self, value: Any) -> str:
        time = Moment(value.get("time")).human_readable()
        return f"{value.get('event_type', '')} {time} {value.get('status', '')}"


def _words(value: Object) -> Iterator[str]:
    yield value.get("resource_type") or ""
    yield value.get("status") or ""
    if count := _count_of(value):
        yield f"{count} host" + "s" * (count != "1")
    yield _amount(value)
    for key in ("hypervisor_properties", "resource_properties"):
        if properties := value.get(key):
            yield "where " + _cut(str(properties))
    yield _got(value)
    for key in ("missing_resources", "resources_changed"):
        if value.get(key):
            yield key.replace("_", " ")


def _amount(value: Object) -> str:
    """Format the amount: 3 of 2 vCPU 4096 MB 20 GB; 2 addresses; "" without an amount."""
    amount = value.get("amount")
    if amount is None:
        return ""
    if "network_id" in value:
        return f"{amount} address{'es' if amount != 1 else ''}"
    sizes = {"vcpus": "vCPU", "memory_mb": "MB", "disk_gb": "GB"}
    size = " ".join(
        f"{value[key]} {unit}" for key, unit in sizes.items() if value.get(key) is not None
    )
    return f"{amount} of {size}" if size else f"{amount}"


def _got(value: Object) -> str:
    """Format the hosts: on cmp-1, cmp-2 (3 slots) and 5 more"""
    hosts = value.get("hosts") or []
    names = [
        f"{host.get('name') or host.get('id')}"
        + (f" ({host['slots']} slot{'s' * (host['slots'] != 1)})" if "slots" in host else "")
        for host in hosts
    ]
    return f"on {named(names)}" if names else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WHERE else text[: LONGEST_WHERE - 1] + "…"


def _count_of(reservation: Object) -> str:
    low, high = reservation.get("min"), reservation.get("max")
    if low is None:
        return ""
    return f"{low}" if low == high else f"{low}-{high}"


FORMATS = {"reservations": Reservations, "events": Events}
LEASE = arg("ref", metavar="lease", help="name or id")
LEASES = arg("refs", nargs="+", metavar="lease", help="name or id")
POLL_S = 0.5
PATIENCE = 20  # failed polls in a row before waiting gives up

_change = typed(partial(syntax.parse, head="id"))


class Create(ShowCommand):
    """Reserve hosts, slots for servers, addresses or a server for a time.

    From the start of the lease to its end the hosts are yours alone. Ask for a number of hosts,
    or for at least --min and at most --max, and restrict them with --where. Use --reservation
    for other resources. With --dry-run you see what you would get.
    """

    example = """  holdfast lease create training --hosts 2 --end +8h --where 'vcpus>=8' --wait
  holdfast lease create night --start '2027-01-31 18:00' --end +12h --min 1 --max 4 \\
      --where 'rack in rack-b,rack-c' --where gpu=True --before-end snapshot
  holdfast lease create web --end +7d --dry-run \\
      --reservation virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3"""
    notes = (cli.RESERVATIONS, cli.DATES)
    #: Fields that the API gets as they are.
    fields = (arg("name", help="what to call the lease"),)
    arguments = (
        *fields,
        arg("--start", type=cli.date, metavar="DATE", default=dates.NOW, help="default: now"),
        arg(
            "--end",
            type=cli.date,
            metavar="DATE",
            default=dates.parse("+24h"),
            help="+2h counts from --start, so from now if that is not given; default: +24h",
        ),
        *cli.RESOURCES,
        arg(
            "--before-end-date",
            type=cli.date,
            metavar="DATE",
            help="when the end is announced; +2h counts from --start, or from now",
        ),
        arg(
            "--before-end",
            choices=["", "default", "snapshot"],
            help="action on the servers at that time",
        ),
        either(
            arg("--wait", action="store_true", help="wait until it is active, or failed"),
            arg("--dry-run", action="store_true", help="show what it would be; nothing is booked"),
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        now = dates.now().replace(microsecond=0)
        announced = args.before_end_date
        wanted = cli.asked(self.parser, args)
        try:
            start = args.start.at(now)
            when = {
                "start_date": args.start.on_wire(now),
                "end_date": args.end.on_wire(start),
                "before_end_date": announced.on_wire(start) if announced else None,
            }
        except ValueError as error:
            self.parser.error(str(error))
        lease = self.client.leases.create(
            reservations=wanted, dry_run=args.dry_run, **when, **values(self.fields, args)
        )
        if args.wait:
            lease = self._wait(lease)
        return one(lease, **FORMATS)

    def _wait(self, lease: Object) -> Object:
        """Poll the lease until it is active, failed or over."""
        last = ""
        while True:
            sentence = f"lease {lease['name']} ({lease['id']}): {lease['status']}"
            if lease["status"] == "PENDING":
                sentence += f", starts {lease['start_date'].split('.')[0]}Z"
            if sentence != last:
                self.say(sentence)
            last = sentence
            if lease["status"] in ("ACTIVE", "ERROR", "TERMINATED"):
                self.exit_code = 1 if lease["status"] == "ERROR" else 0
                return lease
            lease = self.poll(partial(self.client.leases.show, lease["id"]), POLL_S, PATIENCE)


STATUSES = sorted(state_machines.LEASE)
WINDOW = tuple(
    arg(f"--{edge}-{side}", type=cli.date, metavar="DATE", help=f"{edge} {when}")
    for edge in ("start", "end")
    for side, when in (("after", "then or later"), ("before", "before then"))
)


class List(ListObjects):
    """List the leases you may see.

    `hosts` is the requested number of hosts, least and most.
    """

    example = """  holdfast lease list --status ACTIVE --sort end_date
  holdfast lease list --resource-type physical:host --end-before +1d
  holdfast lease list --limit 50 --marker 4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b -f json"""
    notes = (cli.DATES,)
    columns = ("id", "name", "status", "degraded", "start_date", "end_date", "hosts")
    more_columns = ("before_end_date", "project_id", "user_id", "created_at", "updated_at")
    arguments = WINDOW
    filters = (
        arg("--status", choices=STATUSES, metavar="STATUS", help=f"one of {', '.join(STATUSES)}"),
        arg("--name", help="only leases of this name"),
        arg(
            "--project",
            dest="project_id",
            metavar="ID",
            help="only of this project; for administrators",
        ),
        arg("--resource-type", metavar="TYPE", help="only with such a reservation"),
        arg(
            "--sort",
            metavar="KEY[:desc]",
            help="by name, start_date, end_date, created_at or status; default: created_at",
        ),
        arg("--limit", type=cli.count, metavar="N", help="at most N, up to 1000; default: all"),
        arg("--marker", metavar="ID", help="begin after this lease: the last of the page before"),
    )

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        now = dates.now().replace(microsecond=0)
        window = given({argument.dest: vars(args)[argument.dest] for argument in WINDOW})
        try:
            wanted |= {name: dates.on_wire(date.at(now)) for name, date in window.items()}
        except ValueError as error:
            self.parser.error(str(error))
        return self.client.leases.list(**wanted)

    def row(self, lease: Object) -> Object:
        return {**lease, "hosts": hosts_of(lease)}


class Show(ShowObject):
    """Show a lease with its reservations, their resources, and its events."""

    example = "  holdfast lease show nightly-tests"
    arguments = (LEASE,)
    formats = FORMATS

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        lease = self.client.leases.find(ref)
        if lease["status"] != "ERROR":
            return lease
        lines = self.client.audit.list(subject=lease["id"], text=" failed: ", limit=1)
        return {**lease, "why": "; ".join(line["sentence"] for line in lines)}


class Set(ShowObject):
    """Rename, move, extend or shorten a lease, or change its reservations.

    The API applies all changes or none. With --dry-run you see the result without the change.
    """

    example = """  holdfast lease set nightly-tests --extend 2h
  holdfast lease set nightly-tests --end now
  holdfast lease set nightly-tests --reservation max=6 --dry-run"""
    notes = (cli.DATES,)
    formats = FORMATS
    #: Fields that the API gets as they are.
    fields = (arg("--name", help="a new name"),)
    arguments = (
        LEASE,
        *fields,
        arg("--start", type=cli.date, metavar="DATE", help="a new start"),
        either(
            arg(
                "--end",
                type=cli.date,
                metavar="DATE",
                help="a new end; +2h counts from --start, or from now",
            ),
            arg("--extend", type=cli.span, metavar="2h", help="end that much later"),
            arg("--shorten", type=cli.span, metavar="30m", help="end that much earlier"),
        ),
        arg("--before-end-date", type=cli.date, metavar="DATE", help="when the end is announced"),
        arg(
            "--reservation",
            action="append",
            default=[],
            type=_change,
            metavar="ID,KEY=VALUE,…",
            help="what to change about a reservation; of a lease that has only one, without its id",
        ),
        arg("--dry-run", action="store_true", help="show what it would be; nothing is changed"),
    )

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        fields = given(values(self.fields, args))
        moves = (args.start, args.end, args.extend, args.shorten, args.before_end_date)
        if not fields and not any((*moves, args.reservation)):
            self.parser.error("nothing to change: give --name, --end, --extend, …")
        lease = self.client.leases.find(ref)
        try:
            changes = _changes(args, lease, dates.now().replace(microsecond=0))
        except ValueError as error:
            self.parser.error(str(error))
        return self.client.leases.update(lease["id"], **fields, **changes)


class Delete(DeleteEach):
    """Delete leases; an active lease ends, and its servers with it."""

    example = "  holdfast lease delete training-run quarter-close"
    arguments = (LEASES,)
    noun, named = "lease", "name"

    def resource(self) -> Leases:
        return self.client.leases


class ReplaceHost(Base):
    """Replace a host of a lease before the lease starts.

    For administrators, before they take a host away for repair. If no other host fits, nothing
    changes and the error says why.
    """

    example = "  holdfast lease replace-host training-run cmp-03"
    arguments = (
        arg("lease", help="name or id"),
        arg("host", help="the host to give up: name, short or full, or id"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        host = self.client.hosts.find(parsed_args.host)
        lease = self.client.leases.find(parsed_args.lease)
        holding = [
            reservation["id"]
            for reservation in lease["reservations"]
            if any(str(held["id"]) == str(host["id"]) for held in reservation.get("hosts", ()))
        ]
        if not holding:
            self.parser.error(f"lease {lease['name']} does not hold {parsed_args.host}")
        for reservation_id in holding:
            self.client.leases.replace_host(lease["id"], reservation_id, host["id"])
        self.say(f"lease {lease['name']} no longer holds {parsed_args.host}")


class Acknowledge(ActOnEach):
    """Acknowledge the replacement of resources of an active lease.

    This clears `resources_changed`, and `degraded` unless something is still missing. The
    lease's history keeps the replacement.
    """

    example = "  holdfast lease ack nightly-tests"
    arguments = (LEASES,)

    def act(self, ref: str, args: argparse.Namespace) -> str:
        lease = self.client.leases.find(ref)
        self.client.leases.acknowledge(lease["id"])
        short = any(each.get("missing_resources") for each in lease.get("reservations", ()))
        still = ", but it still misses something" if short else ""
        return f"lease {lease['name']} ({lease['id']}) acknowledged{still}"


def _changes(args: argparse.Namespace, lease: Object, now: datetime) -> Object:
    """Return the body of the update from the options."""
    origin = args.start.at(now) if args.start else now
    changes: Object = {}
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
    if args.reservation:
        changes["reservations"] = [_changed(each, lease) for each in args.reservation]
    if args.dry_run:
        changes["dry_run"] = True
    return changes


def _changed(change: Object, lease: Object) -> Object:
    """Return the change of a reservation, with the reservation's id."""
    ids = [str(each["id"]) for each in lease.get("reservations", ())]
    if "id" not in change and len(ids) == 1:
        return {"id": ids[0], **change}
    if "id" not in change:
        raise ValueError(
            f"--reservation: say which one is meant: {', '.join(ids) or 'it has none'}"
        )
    return change


# holdfast availability


class Availability(ListCommand):
    """Show available windows for a reservation. Nothing is booked.

    Give a duration (--for) to see the first windows that fit, or a window (--start, --end) to
    see whether it fits. `amount` is the number of hosts, slots or addresses available then. If
    nothing fits, one line says why, and the command ends with 1.
    """

    example = """  holdfast availability --hosts 4 --for 8h --where gpu=True
  holdfast availability --hosts 2 --start '2027-01-31 18:00' --end +12h
  holdfast availability --for 1d --from +7d --until +14d \\
      --reservation virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3"""
    notes = (cli.RESERVATIONS, cli.DATES)
    arguments = (
        arg("--for", type=cli.span, dest="length", metavar="8h", help="for how long"),
        arg("--from", type=cli.date, dest="first", metavar="DATE", help="starts from here on"),
        arg("--until", type=cli.date, metavar="DATE", help="and up to here; default: 30 days on"),
        arg("--limit", type=cli.count, metavar="N", help="at most N windows; default: 5"),
        arg("--start", type=cli.date, metavar="DATE", help="from here; default: now …"),
        arg("--end", type=cli.date, metavar="DATE", help="… to here; +2h counts from --start"),
        *cli.RESOURCES,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        availability = self._ask(parsed_args)
        if not availability["fits"]:
            self.exit_code = 1
            why = (availability.get("why_not") or {}).get("message") or "nothing fits"
            self.app.LOG.error(why)
        return rows(("start_date", "end_date", "amount"), availability["windows"])

    def _ask(self, args: argparse.Namespace) -> Object:
        wanted = cli.asked(self.parser, args)
        if len(wanted) > 1:
            self.parser.error("one kind of thing at a time: drop --reservation or the others")
        now = dates.now().replace(microsecond=0)
        try:
            if args.length is None:
                return self._then(args, wanted[0], now)
            return self._first(args, wanted[0], now)
        except ValueError as error:
            self.parser.error(str(error))

    def _then(self, args: argparse.Namespace, wanted: Object, now: Any) -> Object:
        if args.end is None:
            self.parser.error("say for how long with --for 8h, or until when with --end")
        if args.first or args.until or args.limit:
            self.parser.error("--from, --until and --limit go with --for")
        start = args.start or dates.NOW
        return self.client.availability.then(
            wanted, start_date=start.on_wire(now), end_date=args.end.on_wire(start.at(now))
        )

    def _first(self, args: argparse.Namespace, wanted: Object, now: Any) -> Object:
        if args.start or args.end:
            self.parser.error("--for 8h looks for windows: use --from and --until with it")
        return self.client.availability.first(
            wanted,
            duration_s=int(args.length.total_seconds()),
            start=args.first.on_wire(now) if args.first else None,
            until=args.until.on_wire(now) if args.until else None,
            limit=args.limit,
        )
