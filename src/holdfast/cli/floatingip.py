# SPDX-License-Identifier: Apache-2.0
"""holdfast floatingip list | show | create | delete"""

import argparse

from holdfast.cli import Base, ListCommand, ShowCommand, Table, one, rows


class List(ListCommand):
    """List the floating IPs available for leases."""

    example = "  holdfast floatingip list --sort-column floating_ip_address"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        columns = ("id", "floating_ip_address", "floating_network_id", "reservable")
        return rows(columns, self.client.floatingips.list())


class Show(ShowCommand):
    """Show a floating IP."""

    example = "  holdfast floatingip show 203.0.113.17"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("floatingip", help="address or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.floatingips.find(parsed_args.floatingip))


class Create(ShowCommand):
    """Let leases reserve a floating IP address.

    The address must be in a subnet of the network, outside the allocation pools of the network.
    """

    example = "  holdfast floatingip create 9c5ad2b6-8f5e-4b8e-9a51-0b6f7d1f2a3b 203.0.113.17"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("network_id", help="the external network, by id")
        parser.add_argument("address", help="the address")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        return one(self.client.floatingips.create(args.network_id, args.address))


class Delete(Base):
    """Remove floating IP addresses from reservation; fails for a reserved address."""

    example = "  holdfast floatingip delete 203.0.113.17 203.0.113.18"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("floatingips", nargs="+", metavar="floatingip", help="address or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.each(parsed_args.floatingips, self._delete)

    def _delete(self, ref: str) -> None:
        found = self.client.floatingips.find(ref)
        self.client.floatingips.delete(found["id"])
        what = f"floating IP {found['floating_ip_address']} ({found['id']})"
        self.say_deleted(what, lambda: self.client.floatingips.show(found["id"]))
