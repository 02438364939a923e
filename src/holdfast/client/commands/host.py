# SPDX-License-Identifier: Apache-2.0
"""holdfast host create | list | show | set | unset | delete | standing, and what belongs to hosts:
host allocation list, host property list | set"""

import argparse
from typing import Any

from holdfast.client.commands import (
    Base,
    ListCommand,
    Moment,
    ShowCommand,
    Table,
    one,
    pair,
    rows,
)

COLUMNS = (
    "id",
    "hypervisor_hostname",
    "vcpus",
    "memory_mb",
    "local_gb",
    "availability_zone",
    "reservable",
)
STANDING = ("name", "state", "since", "why", "enrolled", "reservable", "segment")


def _add_extra(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra",
        action="append",
        default=[],
        type=pair,
        metavar="KEY=VALUE",
        help="a capability leases can ask for; repeat it for more",
    )


class Create(ListCommand):
    """Enrol hosts: from now on leases can reserve them."""

    example = """  holdfast host create cmp-19 cmp-20 --extra gpu=True --extra room=a"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("names", nargs="+", metavar="name", help="as the hypervisor is called")
        _add_extra(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        extra = dict(parsed_args.extra)
        hosts = self.client.hosts
        made = self.each(parsed_args.names, lambda name: hosts.create(name, extra))
        return rows(COLUMNS, made)


class List(ListCommand):
    """List the hosts that leases can reserve."""

    example = "  holdfast host list --sort-column hypervisor_hostname"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return rows(COLUMNS, self.client.hosts.list())


class Show(ShowCommand):
    """Show one host, with its capabilities."""

    example = "  holdfast host show cmp-01"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("host", help="name, short or full, or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.hosts.find(parsed_args.host))


class Standing(ListCommand):
    """Show whether hosts can be used, since when, and who says so: enrolled ones and others.

    A host that is `down` takes no reservations, nor does one that is `returning`: it looks well and
    waits until it has been so for long enough.
    """

    example = """  holdfast host standing
  holdfast host standing --state down"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        states = ("up", "suspect", "down", "returning")
        parser.add_argument("--state", choices=states, help="only hosts that stand so")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self.client.hosts.standings(parsed_args.state)
        return rows(STANDING, ({**each, "since": Moment(each["since"])} for each in found))


class Set(ShowCommand):
    """Set or take away a host's capabilities.

    Not while a reservation rests on the capability.
    """

    example = "  holdfast host set cmp-01 --extra gpu=True --unset burn_in"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("host", help="name, short or full, or id")
        _add_extra(parser)
        parser.add_argument(
            "--unset",
            action="append",
            default=[],
            metavar="KEY",
            help="a capability to take away; repeat it for more",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        extra: dict[str, str | None] = dict(parsed_args.extra)
        if twice := sorted(set(extra) & set(parsed_args.unset)):
            self.parser.error(f"both --extra and --unset name {', '.join(twice)}")
        extra |= dict.fromkeys(parsed_args.unset)
        if not extra:
            self.parser.error("nothing to change: give --extra or --unset")
        host = self.client.hosts.find(parsed_args.host)
        return one(self.client.hosts.update(host["id"], extra))


class Unset(ShowCommand):
    """Take capabilities away from a host.

    Not while a reservation rests on one of them.
    """

    example = "  holdfast host unset cmp-01 burn_in room"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("host", help="name, short or full, or id")
        parser.add_argument("keys", nargs="+", metavar="key", help="a capability to take away")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        host = self.client.hosts.find(parsed_args.host)
        return one(self.client.hosts.update(host["id"], dict.fromkeys(parsed_args.keys)))


class Delete(Base):
    """Take hosts out of reservation; not while one is reserved or has servers."""

    example = "  holdfast host delete cmp-19 cmp-20"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("hosts", nargs="+", metavar="host", help="name, short or full, or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.each(parsed_args.hosts, self._delete)

    def _delete(self, ref: str) -> None:
        host = self.client.hosts.find(ref)
        self.client.hosts.delete(host["id"])
        what = f"host {host['hypervisor_hostname']} ({host['id']})"
        self.say_deleted(what, lambda: self.client.hosts.show(host["id"]))


class AllocationList(ListCommand):
    """List which reservation holds which host, and when."""

    example = """  holdfast host allocation list --sort-column start_date
  holdfast host allocation list --lease nightly-tests"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--lease", help="only of this lease, name or id")
        parser.add_argument("--reservation-id", help="only of this reservation")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        ref = parsed_args.lease
        lease_id = self.client.leases.find(ref)["id"] if ref else None
        found = self.client.hosts.allocations(
            lease_id=lease_id, reservation_id=parsed_args.reservation_id
        )
        names = {str(host["id"]): host["hypervisor_hostname"] for host in self.client.hosts.list()}
        columns = ("host", "reservation_id", "lease_id", "start_date", "end_date")
        held = (
            _held(names.get(str(each["resource_id"])), each["resource_id"], reservation)
            for each in found
            for reservation in each["reservations"]
        )
        return rows(columns, held)


def _held(name: str | None, host_id: Any, reservation: dict[str, Any]) -> dict[str, Any]:
    return {
        **reservation,
        "host": name or str(host_id),
        "reservation_id": reservation["id"],
    }


class PropertyList(ListCommand):
    """List the capabilities that leases can ask for."""

    example = """  holdfast host property list --detail
  holdfast host property list --all"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--detail", action="store_true", help="with the values hosts have")
        parser.add_argument(
            "--all", action="store_true", help="private ones too; for administrators"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        columns = ("property", "private", "values") if args.detail else ("property",)
        return rows(columns, self.client.hosts.properties(detail=args.detail, private=args.all))


class PropertySet(ShowCommand):
    """Hide a capability from ordinary users, or show it."""

    example = "  holdfast host property set purchase_order --private"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", help="the capability")
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--private", action="store_true", help="only administrators see it")
        who.add_argument("--public", action="store_true", help="everybody sees it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        return one(self.client.hosts.set_property(args.name, private=args.private))
