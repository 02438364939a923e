# SPDX-License-Identifier: Apache-2.0
"""Enrol and withdraw floating IPs: changes rows only, and reads subnets from the cloud."""

import ipaddress
from collections.abc import Sequence

from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.floatingip import FloatingIp
from holdfast.ports.cloud import Cloud, Subnet
from holdfast.ports.ledger import Ledger

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class FloatingIps:
    def __init__(self, ledger: Ledger, cloud: Cloud) -> None:
        self._ledger = ledger
        self._cloud = cloud

    def enrol(self, network_id: str, address: str) -> str:
        """Enrol a floating IP for reservation; return its id."""
        wanted = parse(address, "floating_ip_address")
        try:
            subnets = self._cloud.addresses.subnets(network_id)
        except NotFound as unknown:
            raise NotFound(f"Object with {{'network_id': {network_id!r}}} not found") from unknown
        subnet = home(subnets, network_id, wanted)
        floating_ip = FloatingIp.of(network_id, subnet.id, str(wanted))
        self._ledger.enrol_floatingip(floating_ip)
        return floating_ip.id

    def withdraw(self, floatingip_id: str) -> None:
        self._ledger.withdraw_floatingip(floatingip_id)


def parse(text: object, field: str) -> IpAddress:
    """Parse an IP address in any common notation; InvalidInput names the field."""
    try:
        if not isinstance(text, str):
            raise ValueError
        found = ipaddress.ip_address(text.strip())
    except ValueError:
        raise InvalidInput(f"{field}: {str(text)[:60]!r} is not an IP address") from None
    if isinstance(found, ipaddress.IPv6Address) and found.scope_id:
        raise InvalidInput(f"{field}: {found} has a zone, which no floating IP can have")
    return found


def home(subnets: Sequence[Subnet], network_id: str, wanted: IpAddress) -> Subnet:
    """Return the subnet of the address; InvalidInput if the address cannot be reserved.

    The cloud hands out addresses of its allocation pools, and could assign one to another
    project at any time.
    """
    for subnet in subnets:
        net = ipaddress.ip_network(subnet.cidr, strict=False)
        if wanted not in net:
            continue
        why = _unfit(subnet, net, wanted)
        if why:
            raise InvalidInput(f"floating_ip_address: {wanted} {why} of subnet {subnet.id}")
        return subnet
    ranges = ", ".join(subnet.cidr for subnet in subnets) or "none"
    raise InvalidInput(
        f"floating_ip_address: {wanted} is of no subnet of network {network_id} ({ranges})"
    )


def _unfit(
    subnet: Subnet, net: ipaddress.IPv4Network | ipaddress.IPv6Network, wanted: IpAddress
) -> str | None:
    if subnet.gateway and ipaddress.ip_address(subnet.gateway) == wanted:
        return "is the gateway"
    if any(_within(wanted, first, last) for first, last in subnet.pools):
        return "lies in an allocation pool, choose one outside the pools"
    # Too small to have a network and a broadcast address.
    whole = net.prefixlen >= net.max_prefixlen - 1
    if not whole and wanted == net.network_address:
        return "is the network address"
    if not whole and net.version == 4 and wanted == net.broadcast_address:
        return "is the broadcast address"
    return None


def _within(wanted: IpAddress, first: str, last: str) -> bool:
    low, high = ipaddress.ip_address(first), ipaddress.ip_address(last)
    return low.version == wanted.version and int(low) <= int(wanted) <= int(high)
