# SPDX-License-Identifier: Apache-2.0
"""holdfast floatingip list | show | create | delete"""

import argparse

from holdfast.cli import DeleteEach, ListObjects, ShowCommand, ShowObject, Table, arg, one
from holdfast.client.client import FloatingIps, Object, Objects


class List(ListObjects):
    """List the floating IPs available for leases."""

    example = "  holdfast floatingip list --sort-column floating_ip_address"
    columns = ("id", "floating_ip_address", "floating_network_id", "reservable")

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.floatingips.list()


class Show(ShowObject):
    """Show a floating IP."""

    example = "  holdfast floatingip show 203.0.113.17"
    arguments = (arg("ref", metavar="floatingip", help="address or id"),)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.floatingips.find(ref)


class Create(ShowCommand):
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


class Delete(DeleteEach):
    """Remove floating IP addresses from reservation; fails for a reserved address."""

    example = "  holdfast floatingip delete 203.0.113.17 203.0.113.18"
    arguments = (arg("refs", nargs="+", metavar="floatingip", help="address or id"),)
    noun, named = "floating IP", "floating_ip_address"

    def resource(self) -> FloatingIps:
        return self.client.floatingips
