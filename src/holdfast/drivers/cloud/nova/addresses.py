# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Addresses port: floating IPs of Neutron.

Tags are a second call. What the first one made carries them in its description already, so that a
repeated `create` knows its own and completes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from openstack import exceptions as sdk
from openstack.connection import Connection

from holdfast.drivers.cloud.nova.edge import Edge, answer, pages
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Address, Subnet

_PATH = "/floatingips"


class NovaAddresses:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[Address]:
        with self._edge.call("addresses.list") as cloud:
            found = list(_pages(cloud, _PATH, "floatingips"))
            servers = _servers(cloud, found)
            return [_address(one, servers) for one in found]

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        with self._edge.call("addresses.create", address) as cloud:
            body = {
                "floating_network_id": network_id,
                "floating_ip_address": address,
                "project_id": project_id,
                "description": _mark(tags),
            }
            try:
                made = answer(cloud.network.post(_PATH, json={"floatingip": body}))["floatingip"]
            except sdk.ConflictException as taken:
                made = _own(cloud, body)
                if made is None:
                    raise Conflict(f"address {address} of network {network_id} is taken") from taken
            _tag(cloud, made, tags)
            return _address({**made, "tags": tags}, _servers(cloud, [made]))

    def delete(self, address_id: str) -> None:
        with self._edge.call("addresses.delete", address_id) as cloud:
            try:
                answer(cloud.network.delete(f"{_PATH}/{address_id}"))
            except sdk.NotFoundException:
                return

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        with self._edge.call("addresses.subnets", network_id) as cloud:
            # Of a network that is not there Neutron lists no subnets and says nothing.
            path = f"/networks/{quote(network_id, safe='')}"
            answer(cloud.network.get(path, params={"fields": "id"}))
            found = _pages(cloud, "/subnets", "subnets", {"network_id": network_id})
            return [_subnet(one) for one in found]


def _own(cloud: Connection, wanted: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The address, if an earlier call for the same purpose made it."""
    if not wanted["description"]:
        return None
    asked = {key: wanted[key] for key in ("floating_network_id", "floating_ip_address")}
    for one in _pages(cloud, _PATH, "floatingips", asked):
        if all(one[key] == wanted[key] for key in ("project_id", "description")):
            return one
    return None


def _tag(cloud: Connection, made: Mapping[str, Any], tags: Sequence[str]) -> None:
    if set(made.get("tags") or ()) != set(tags):
        body = {"tags": list(tags)}
        answer(cloud.network.put(f"{_PATH}/{made['id']}/tags", json=body))


def _mark(tags: Sequence[str]) -> str:
    return " ".join(tags)


def _servers(cloud: Connection, found: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Which server has which port. Neutron says it with the address (extension `fip-port-details`);
    where it does not, all ports of servers are asked for at once."""
    bound = [one for one in found if one["port_id"]]
    said = {one["port_id"]: one["port_details"] for one in bound if one.get("port_details")}
    if any(one["port_id"] not in said for one in bound):
        said |= {port["id"]: port for port in _pages(cloud, "/ports", "ports")}
    return {
        port_id: port["device_id"]
        for port_id, port in said.items()
        if str(port["device_owner"]).startswith("compute:")
    }


def _pages(
    cloud: Connection, path: str, key: str, params: Mapping[str, str] | None = None
) -> Iterable[Mapping[str, Any]]:
    return pages(cloud.network, path, key, params=params)


def _address(body: Mapping[str, Any], servers: Mapping[str, str]) -> Address:
    return Address(
        id=body["id"],
        network_id=body["floating_network_id"],
        address=body["floating_ip_address"],
        project_id=body["project_id"],
        server_id=servers.get(body["port_id"] or ""),
        tags=tuple(body.get("tags") or ()),
    )


def _subnet(body: Mapping[str, Any]) -> Subnet:
    return Subnet(
        id=body["id"],
        network_id=body["network_id"],
        cidr=body["cidr"],
        gateway=body["gateway_ip"],
        pools=tuple((pool["start"], pool["end"]) for pool in body["allocation_pools"]),
    )
