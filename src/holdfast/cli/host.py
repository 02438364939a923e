# SPDX-License-Identifier: Apache-2.0
"""holdfast host create | list | show | set | unset | delete | status | health, host allocation
list, host property list | set, holdfast floatingip list | show | create | delete"""

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
from holdfast.client.client import FloatingIps, Object, Objects
from holdfast.client.client import Hosts as EnrolledHosts
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

    def row(self, host: Object) -> Object:
        return {**host, "since": Moment(host["since"])}


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
        allocations = self.client.hosts.allocations(lease_id=lease_id, **wanted)
        names = {str(host["id"]): host["hypervisor_hostname"] for host in self.client.hosts.list()}
        for each in allocations:
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
        sees = {name: UP if sight["sighted"] else DOWN for name, sight in self._value.items()}
        blind = [
            f"{name} blind since {Moment(sight['since']).human_readable()}: {sight['why']}"
            for name, sight in self._value.items()
            if not sight["sighted"]
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


def explained(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the explanation of a host's health, line by line."""
    health = {name: network["state"] for name, network in report["networks"].items()}
    yield f"host {report['host']}: {dots(health, signs())} {words(health)}"
    width = max(map(len, health), default=0)
    for name, network in report["networks"].items():
        yield f"  {name:<{width}}  {signs()[network['state']]} {network_line(network)}"
    yield f"row: [{', '.join(health.values())}]: {report['sentence']}"
    yield f"votes: {votes_line(report['votes'])}"
    if report["status"]:
        yield f"status: {status_line(report['status'])}"
    yield f"so: {consequence(report)}"


def network_line(network: Mapping[str, Any]) -> str:
    """Format a network: down since 2027-01-31 12:00:03 UTC, say ctl-1 and ctl-2; up, says ctl-3"""
    since = f" since {Moment(network['since']).human_readable()}" if network["since"] else ""
    observers_by_state: dict[str, list[str]] = {network["state"]: []}
    for vote in network["seen_by"]:
        observers_by_state.setdefault(vote["state"], []).append(vote["observer"])
    parts = []
    for state, observers in observers_by_state.items():
        words = state + since * (state == network["state"])
        parts.append(words + (f", {_say(observers)}" if observers else ", no monitor says more"))
    return "; ".join(parts)


def votes_line(votes: Mapping[str, Any]) -> str:
    """Format the votes about a host.

    2 that it failed (ctl-1, ctl-2), 1 against (ctl-3); it takes 1, and more than are against
    """
    sides = (("for", "that it failed"), ("against", "against"), ("abstain", "without an opinion"))
    parts = [
        f"{len(votes[side])} {opinion} ({', '.join(votes[side])})"
        for side, opinion in sides
        if votes[side]
    ]
    return (
        f"{', '.join(parts) or 'no monitor'}; it takes {votes['needed']}, and more than are against"
    )


def status_line(status: Mapping[str, Any]) -> str:
    since = f" since {Moment(status['since']).human_readable()}" if status["since"] else ""
    why = f": {status['why']}" if status["why"] else ""
    return f"{status['state']}{since}{why}"


def consequence(report: Mapping[str, Any]) -> str:
    """Return what Holdfast does about the host, or would do, and why."""
    action, votes = report["action"], report["votes"]
    yes, no, needed = len(votes["for"]), len(votes["against"]), votes["needed"]
    if report["incident_id"]:
        ref = report["incident_id"]
        return f"it is being recovered; `holdfast incident explain {ref}` tells how"
    if action == UNDECIDED:
        return "no action: too many networks are unknown, and unknown is neither up nor down"
    if action == NONE:
        return "nothing is done"
    if action == ALERT:
        return f"an alert is published {after(report['for_s'])}; nothing is moved"
    if yes >= needed and yes > no:
        return "enough monitors say that it failed: an incident is opened, once for each failure"
    if not yes:
        return f"it is recovered if this lasts: {after(report['for_s'])} monitors vote for it"
    if yes < needed:
        return f"nothing is done yet: {yes} of the {needed} votes that it takes"
    return f"nothing is done: {no} against {yes}; both count views of the same host"


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
        arg("--bad", action="store_true", help="only hosts that are not up on every network"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.host is None:
            hosts = self.client.monitors.hosts(bad=parsed_args.bad)
            return rows(HEALTH_COLUMNS, map(_row, hosts))
        if parsed_args.bad:
            self.parser.error("--bad picks hosts: leave it out, or the host")
        host = self.client.monitors.host(parsed_args.host)
        self.note(parsed_args, f"host {host['host']}: {host['sentence']}")
        return rows(OF_ONE, (_network(name, network) for name, network in host["networks"].items()))


def _row(host: dict[str, Any]) -> dict[str, Any]:
    return {**host, "health": Dots(host["health"]), "since": Moment(host["since"])}


def _network(name: str, network: dict[str, Any]) -> dict[str, Any]:
    return {
        "network": name,
        "state": State(network["state"]),
        "since": Moment(network["since"]),
        "seen_by": SeenBy(network["seen_by"]),
    }


# Floating IPs available for leases


class ListFloatingIps(ListObjects):
    """List the floating IPs available for leases."""

    example = "  holdfast floatingip list --sort-column floating_ip_address"
    columns = ("id", "floating_ip_address", "floating_network_id", "reservable")

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.floatingips.list()


class ShowFloatingIp(ShowObject):
    """Show a floating IP."""

    example = "  holdfast floatingip show 203.0.113.17"
    arguments = (arg("ref", metavar="floatingip", help="address or id"),)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.floatingips.find(ref)


class CreateFloatingIp(ShowCommand):
    """Let leases reserve a floating IP address.

    The address must be in a subnet of the network, outside the allocation pools of the network.
    """

    example = "  holdfast floatingip create 9c5ad2b6-8f5e-4b8e-9a51-0b6f7d1f2a3b 203.0.113.17"
    arguments = (
        arg("network_id", help="the external network, by id"),
        arg("address", help="the address"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        return one(self.client.floatingips.create(args.network_id, args.address))


class DeleteFloatingIp(DeleteEach):
    """Remove floating IP addresses from reservation; fails for a reserved address."""

    example = "  holdfast floatingip delete 203.0.113.17 203.0.113.18"
    arguments = (arg("refs", nargs="+", metavar="floatingip", help="address or id"),)
    noun, named = "floating IP", "floating_ip_address"

    def resource(self) -> FloatingIps:
        return self.client.floatingips
