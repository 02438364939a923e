# SPDX-License-Identifier: Apache-2.0
"""holdfast host create | list | show | set | unset | delete | status | health, host allocation
list, host property list | set"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cliff.columns import FormattableColumn

from holdfast.cli import (
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
    pair,
    rows,
)
from holdfast.client.client import Hosts as EnrolledHosts
from holdfast.client.client import Object, Objects
from holdfast.hostmonitor.matrix import ALERT, DOWN, NONE, UNDECIDED, UNKNOWN, UP, after

COLUMNS = (
    *("id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb", "availability_zone"),
    "reservable",
)
HOST = arg("ref", metavar="host", help="name, short or full, or id")
EXTRA = arg(
    "--extra",
    action="append",
    default=[],
    type=pair,
    metavar="KEY=VALUE",
    help="a capability leases can ask for; repeat it for more",
)


class Create(ListCommand):
    """Enrol hosts, so leases can reserve them."""

    example = """  holdfast host create cmp-19 cmp-20 --extra gpu=True --extra room=a"""
    arguments = (arg("names", nargs="+", metavar="name", help="as the hypervisor is called"), EXTRA)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        extra = dict(parsed_args.extra)
        hosts = self.client.hosts
        made = self.each(parsed_args.names, lambda name: hosts.create(name, extra))
        return rows(COLUMNS, made)


class List(ListObjects):
    """List the hosts available for leases."""

    example = "  holdfast host list --sort-column hypervisor_hostname"
    columns = COLUMNS

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.hosts.list()


class Show(ShowObject):
    """Show a host with its capabilities."""

    example = "  holdfast host show cmp-01"
    arguments = (HOST,)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.hosts.find(ref)


class Status(ListObjects):
    """Show the status of hosts, since when, and the source; also of hosts not enrolled.

    A host that is `down` takes no reservations. A `returning` host takes none either: it looks
    healthy and waits until it has been healthy for long enough.
    """

    example = """  holdfast host status
  holdfast host status --state down"""
    columns = ("name", "state", "since", "why", "enrolled", "reservable", "segment")
    filters = (
        arg(
            "--state",
            choices=("up", "suspect", "down", "returning"),
            help="only hosts with this status",
        ),
    )

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.hosts.statuses(**wanted)

    def row(self, found: Object) -> Object:
        return {**found, "since": Moment(found["since"])}


class Set(ShowObject):
    """Set or remove capabilities of a host.

    The API refuses if a reservation depends on the capability.
    """

    example = "  holdfast host set cmp-01 --extra gpu=True --unset burn_in"
    arguments = (
        HOST,
        EXTRA,
        arg(
            "--unset",
            action="append",
            default=[],
            metavar="KEY",
            help="a capability to take away; repeat it for more",
        ),
    )

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        extra: dict[str, str | None] = dict(args.extra)
        if twice := sorted(set(extra) & set(args.unset)):
            self.parser.error(f"both --extra and --unset name {', '.join(twice)}")
        extra |= dict.fromkeys(args.unset)
        if not extra:
            self.parser.error("nothing to change: give --extra or --unset")
        return self.client.hosts.update(self.client.hosts.find(ref)["id"], extra)


class Unset(ShowObject):
    """Remove capabilities from a host.

    The API refuses if a reservation depends on a capability.
    """

    example = "  holdfast host unset cmp-01 burn_in room"
    arguments = (HOST, arg("keys", nargs="+", metavar="key", help="a capability to take away"))

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        host = self.client.hosts.find(ref)
        return self.client.hosts.update(host["id"], dict.fromkeys(args.keys))


class Delete(DeleteEach):
    """Remove hosts from reservation; fails for a host with reservations or servers."""

    example = "  holdfast host delete cmp-19 cmp-20"
    arguments = (arg("refs", nargs="+", metavar="host", help="name, short or full, or id"),)
    noun, named = "host", "hypervisor_hostname"

    def resource(self) -> EnrolledHosts:
        return self.client.hosts


class AllocationList(ListObjects):
    """List which reservation holds which host, and when."""

    example = """  holdfast host allocation list --sort-column start_date
  holdfast host allocation list --lease nightly-tests"""
    columns = ("host", "reservation_id", "lease_id", "start_date", "end_date")
    arguments = (arg("--lease", help="only of this lease, name or id"),)
    filters = (arg("--reservation-id", help="only of this reservation"),)

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Iterator[Object]:
        lease_id = self.client.leases.find(args.lease)["id"] if args.lease else None
        found = self.client.hosts.allocations(lease_id=lease_id, **wanted)
        names = {str(host["id"]): host["hypervisor_hostname"] for host in self.client.hosts.list()}
        for each in found:
            host = names.get(str(each["resource_id"])) or str(each["resource_id"])
            for reservation in each["reservations"]:
                yield {**reservation, "host": host, "reservation_id": reservation["id"]}


class PropertyList(ListCommand):
    """List the capabilities available to leases."""

    example = """  holdfast host property list --detail
  holdfast host property list --all"""
    arguments = (
        arg("--detail", action="store_true", help="with the values hosts have"),
        arg("--all", action="store_true", help="private ones too; for administrators"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        columns = ("property", "private", "values") if args.detail else ("property",)
        return rows(columns, self.client.hosts.properties(detail=args.detail, private=args.all))


class PropertySet(ShowCommand):
    """Hide a capability from ordinary users, or make the capability visible."""

    example = "  holdfast host property set purchase_order --private"
    arguments = (
        arg("name", help="the capability"),
        either(
            arg("--private", action="store_true", help="only administrators see it"),
            arg("--public", action="store_true", help="everybody sees it"),
            required=True,
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        return one(self.client.hosts.set_property(args.name, private=args.private))


# The health of hosts as text: a dot for each network, and words.
#
#     >>> dots({"manage": "up", "tenant": "unknown", "storage": "down"})
#     '●◌○'
#     >>> words({"manage": "up", "tenant": "unknown", "storage": "down"})
#     'tenant unknown, storage down'


DOTS = {UP: "●", DOWN: "○", UNKNOWN: "◌"}
#: For terminals without these characters.
PLAIN = {UP: "+", DOWN: "-", UNKNOWN: "?"}
LEGEND = "● up, ○ down, ◌ unknown"

NetworkStates = Mapping[str, str]


def dots(health: NetworkStates, signs: Mapping[str, str] = DOTS) -> str:
    return "".join(signs[state] for state in health.values())


def words(health: NetworkStates) -> str:
    """List the networks that are not up; "up" if all are."""
    bad = [f"{name} {state}" for name, state in health.items() if state != UP]
    return ", ".join(bad) or "up"


def signs() -> Mapping[str, str]:
    """Return the dots, or plain characters if the output cannot encode the dots."""
    try:
        "".join(DOTS.values()).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return PLAIN
    return DOTS


class Dots(FormattableColumn[Any]):
    """The health of a host: ●●○ storage down"""

    def human_readable(self) -> str:
        return f"{dots(self._value, signs())} {words(self._value)}"


class State(FormattableColumn[str]):
    """The state of a network: ○ down"""

    def human_readable(self) -> str:
        return f"{signs()[self._value]} {self._value}"


class Sights(FormattableColumn[Any]):
    """The networks of a monitor: ●○● tenant blind since 2027-01-31 12:00:03: no leader"""

    def human_readable(self) -> str:
        sees = {name: UP if one["sighted"] else DOWN for name, one in self._value.items()}
        blind = [
            f"{name} blind since {Moment(one['since']).human_readable()}: {one['why']}"
            for name, one in self._value.items()
            if not one["sighted"]
        ]
        return f"{dots(sees, signs())} " + ("\n".join(blind) or "sees all")


class Hosts(FormattableColumn[Any]):
    """A list of host names: 12: cmp-1, cmp-2, cmp-3, cmp-4 and 8 more"""

    def human_readable(self) -> str:
        return f"{len(self._value)}: {named(self._value)}" if self._value else "0"


class Lasts(FormattableColumn[Any]):
    """The waiting time of an action: after 3 s; empty without an action"""

    def human_readable(self) -> str:
        return "" if self._value is None else after(self._value)


def explained(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the explanation of a host's health, line by line."""
    health = {name: seen["state"] for name, seen in found["networks"].items()}
    yield f"host {found['host']}: {dots(health, signs())} {words(health)}"
    width = max(map(len, health), default=0)
    for name, seen in found["networks"].items():
        yield f"  {name:<{width}}  {signs()[seen['state']]} {network_line(seen)}"
    yield f"row: [{', '.join(health.values())}]: {found['sentence']}"
    yield f"votes: {votes_line(found['votes'])}"
    if found["status"]:
        yield f"status: {status_line(found['status'])}"
    yield f"so: {consequence(found)}"


def network_line(seen: Mapping[str, Any]) -> str:
    """Format a network: down since 2027-01-31 12:00:03 UTC, say ctl-1 and ctl-2; up, says ctl-3"""
    since = f" since {Moment(seen['since']).human_readable()} UTC" if seen["since"] else ""
    who: dict[str, list[str]] = {seen["state"]: []}
    for vote in seen["seen_by"]:
        who.setdefault(vote["state"], []).append(vote["observer"])
    said = []
    for state, observers in who.items():
        words = state + since * (state == seen["state"])
        said.append(words + (f", {_say(observers)}" if observers else ", no monitor says more"))
    return "; ".join(said)


def votes_line(votes: Mapping[str, Any]) -> str:
    """Format the votes about a host.

    2 that it failed (ctl-1, ctl-2), 1 against (ctl-3); it takes 1, and more than are against
    """
    sides = (("for", "that it failed"), ("against", "against"), ("abstain", "without an opinion"))
    said = [
        f"{len(votes[side])} {word} ({', '.join(votes[side])})"
        for side, word in sides
        if votes[side]
    ]
    return (
        f"{', '.join(said) or 'no monitor'}; it takes {votes['needed']}, and more than are against"
    )


def status_line(status: Mapping[str, Any]) -> str:
    since = f" since {Moment(status['since']).human_readable()} UTC" if status["since"] else ""
    why = f": {status['why']}" if status["why"] else ""
    return f"{status['state']}{since}{why}"


def consequence(found: Mapping[str, Any]) -> str:
    """Return what Holdfast does about the host, or would do, and why."""
    action, votes = found["action"], found["votes"]
    yes, no, needed = len(votes["for"]), len(votes["against"]), votes["needed"]
    if found["incident_id"]:
        ref = found["incident_id"]
        return f"it is being recovered; `holdfast incident explain {ref}` tells how"
    if action == UNDECIDED:
        return "nothing is done while what is unknown decides; unknown is neither up nor down"
    if action == NONE:
        return "nothing is done"
    if action == ALERT:
        return f"people are told {after(found['for_s'])}; nothing is moved"
    if yes >= needed and yes > no:
        return "enough monitors say that it failed: an incident is opened, once for each failure"
    if not yes:
        return f"it is recovered if this lasts: {after(found['for_s'])} monitors vote for it"
    if yes < needed:
        return f"nothing is done yet: {yes} of the {needed} votes that it takes"
    return f"nothing is done: {no} against {yes}; those who are against look at the same host"


def _say(observers: Sequence[str]) -> str:
    if len(observers) == 1:
        return f"says {observers[0]}"
    return f"say {', '.join(observers[:-1])} and {observers[-1]}"


# holdfast host health


HEALTH_COLUMNS = ("host", "health", "action", "since", "monitors")
OF_ONE = ("network", "state", "since", "seen_by")


class SeenBy(Lines):
    """The view of a monitor: ctl-1: down"""

    def line(self, value: Any) -> str:
        return f"{value['observer']}: {value['state']}"


class Health(ListCommand):
    """Show the health of hosts on each network as dots: ● up ○ down ◌ unknown.

    With a host, the command shows the view of each monitor. `action` is the action of the HA
    matrix. If monitors disagree, the majority counts; `holdfast matrix explain HOST` explains
    the consequences.
    """

    example = """  holdfast host health
  holdfast host health --bad
  holdfast host health cmp-07"""
    arguments = (
        arg("host", nargs="?", help="only this one: name, short or full"),
        arg("--bad", action="store_true", help="those that are not up everywhere"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.host is None:
            found = self.client.monitors.hosts(bad=parsed_args.bad)
            return rows(HEALTH_COLUMNS, map(_row, found))
        if parsed_args.bad:
            self.parser.error("--bad picks hosts: leave it out, or the host")
        one = self.client.monitors.host(parsed_args.host)
        self.tell(parsed_args, f"host {one['host']}: {one['sentence']}")
        return rows(OF_ONE, (_network(name, seen) for name, seen in one["networks"].items()))


def _row(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "health": Dots(found["health"]), "since": Moment(found["since"])}


def _network(name: str, seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "network": name,
        "state": State(seen["state"]),
        "since": Moment(seen["since"]),
        "seen_by": SeenBy(seen["seen_by"]),
    }
