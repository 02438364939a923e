# SPDX-License-Identifier: Apache-2.0
"""`NovaCloud` with all ports, and the Hosts, Volumes and Addresses ports.

They use Nova, Placement, Cinder and Neutron.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from openstack import exceptions as sdk
from openstack.connection import Connection
from openstack.exceptions import NotFoundException

from holdfast.drivers.nova.directory import (
    Directory,
    NovaServices,
    hypervisors,
    hypervisors_of,
    services,
)
from holdfast.drivers.nova.pools import NovaPools
from holdfast.drivers.nova.servers import NovaMoves, NovaServers
from holdfast.drivers.nova.session import Edge, answer, failed, pages, spoken_by_a_service
from holdfast.drivers.nova.slots import NovaFlavors, NovaSlots
from holdfast.model.errors import Conflict
from holdfast.model.host import Inventory
from holdfast.ports import cloud as ports
from holdfast.ports.cloud import Address, CloudHost, Subnet, Volume
from holdfast.runtime.clock import Clock

#: Microversion for inventories and traits of a provider; older versions have both, too.
PLACEMENT = "1.20"


class NovaHosts:
    """The Hosts port on Nova: hypervisors, with the zone of their compute service.

    Inventories and allocation ratios come from Placement, not from the hypervisor's own columns:
    these know neither ratios nor what is reserved for the host itself.
    """

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[CloudHost]:
        with self._edge.call("hosts.list") as cloud:
            zones = {service["host"]: service["zone"] for service in services(cloud)}
            cloud_hosts = [_host(hypervisor, zones) for hypervisor in hypervisors(cloud)]
        return sorted(cloud_hosts, key=lambda host: host.service_host)

    def find(self, name: str) -> CloudHost:
        with self._edge.call("hosts.find", name) as cloud:
            hypervisor = hypervisors_of(cloud, name)[0]
            own = hypervisor["service"]["host"]
            zones = {service["host"]: service["zone"] for service in services(cloud, own)}
            return _with_its_provider(cloud, _host(hypervisor, zones))


def _host(hypervisor: Mapping[str, Any], zones: Mapping[str, str]) -> CloudHost:
    own = hypervisor["service"]["host"]
    return CloudHost(
        uuid=hypervisor["id"],
        hypervisor_hostname=hypervisor["hypervisor_hostname"],
        service_host=own,
        zone=zones.get(own, ""),
        vcpus=hypervisor["vcpus"],
        memory_mb=hypervisor["memory_mb"],
        local_gb=hypervisor["local_gb"],
        hypervisor_type=hypervisor["hypervisor_type"],
        hypervisor_version=hypervisor["hypervisor_version"],
        cpu_info=json.dumps(hypervisor["cpu_info"], sort_keys=True),
        state=hypervisor["state"],
    )


def _with_its_provider(cloud: Any, host: CloudHost) -> CloudHost:
    """Return the host with inventories and traits of the Placement provider with the same uuid."""
    path = f"/resource_providers/{host.uuid}"
    try:
        have = answer(cloud.placement.get(f"{path}/inventories", microversion=PLACEMENT))
        traits = answer(cloud.placement.get(f"{path}/traits", microversion=PLACEMENT))
    except NotFoundException as unknown:
        if unknown.response is None or not spoken_by_a_service(unknown.response):
            raise
        return host  # a compute that never reported has no provider
    inventories = {name: _inventory(inventory) for name, inventory in have["inventories"].items()}
    return replace(host, inventories=inventories, traits=frozenset(traits["traits"]))


def _inventory(body: Mapping[str, Any]) -> Inventory:
    numbers = body["total"], body["reserved"], body["allocation_ratio"], body["max_unit"]
    made = Inventory(*numbers)
    if not all(isinstance(number, int) for number in (made.total, made.reserved, made.most)):
        raise TypeError(f"inventory {numbers!r:.80}")
    _ = made.capacity  # NaN and infinity have none
    return made


#: Names of the service type in catalogs, newest first.
NAMES = ("block-storage", "block-store", "volumev3")


class NovaVolumes:
    """The Volumes port on Cinder, if the catalog has block storage.

    Tests on a real cloud prove the error for a catalog without block storage; the lab has no
    Cinder. The list was tried by hand on the API of Cinder 29 (all projects, pages of three, a
    volume attached to two servers), with volumes that no backend had made.
    """

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        """List volumes; Cinder has no filter by server, so the driver reads all volumes."""
        with self._edge.call("volumes.list", server_id or "") as cloud:
            _must_be_there(cloud)
            bodies = pages(
                cloud.block_storage,
                "/volumes/detail",
                "volumes",
                params={"all_tenants": "1"},
            )
            volumes = [_volume(body) for body in bodies]
        return [volume for volume in volumes if server_id is None or server_id in volume.server_ids]


def _must_be_there(cloud: Connection) -> None:
    if not {entry["type"] for entry in cloud.service_catalog} & set(NAMES):
        raise failed("the catalog has no block storage", retryable=False)


def _volume(body: Mapping[str, Any]) -> Volume:
    return Volume(
        id=body["id"],
        name=body["name"] or "",
        project_id=body["os-vol-tenant-attr:tenant_id"],
        size_gb=body["size"],
        server_ids=tuple(sorted(attachment["server_id"] for attachment in body["attachments"])),
        status=body["status"],
    )


_PATH = "/floatingips"


class NovaAddresses:
    """The Addresses port: floating IPs of Neutron.

    Tags need a second call. The first call already writes them into the description, so that a
    repeated `create` recognises its own floating IP and completes it.
    """

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[Address]:
        with self._edge.call("addresses.list") as cloud:
            bodies = list(_pages(cloud, _PATH, "floatingips"))
            servers = _servers(cloud, bodies)
            return [_address(body, servers) for body in bodies]

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
            # For an unknown network Neutron lists no subnets and reports no error.
            path = f"/networks/{quote(network_id, safe='')}"
            answer(cloud.network.get(path, params={"fields": "id"}))
            bodies = _pages(cloud, "/subnets", "subnets", {"network_id": network_id})
            return [_subnet(body) for body in bodies]


def _own(cloud: Connection, wanted: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the floating IP if an earlier call for the same purpose made it."""
    if not wanted["description"]:
        return None
    params = {key: wanted[key] for key in ("floating_network_id", "floating_ip_address")}
    for page in _pages(cloud, _PATH, "floatingips", params):
        if all(page[key] == wanted[key] for key in ("project_id", "description")):
            return page
    return None


def _tag(cloud: Connection, made: Mapping[str, Any], tags: Sequence[str]) -> None:
    if set(made.get("tags") or ()) != set(tags):
        body = {"tags": list(tags)}
        answer(cloud.network.put(f"{_PATH}/{made['id']}/tags", json=body))


def _mark(tags: Sequence[str]) -> str:
    return " ".join(tags)


def _servers(cloud: Connection, addresses: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Map each port id to its server id.

    Neutron includes the port with the address (extension `fip-port-details`). Without the
    extension, the driver lists all ports at once.
    """
    bound = [address for address in addresses if address["port_id"]]
    ports = {
        address["port_id"]: address["port_details"]
        for address in bound
        if address.get("port_details")
    }
    if any(address["port_id"] not in ports for address in bound):
        ports |= {port["id"]: port for port in _pages(cloud, "/ports", "ports")}
    return {
        port_id: port["device_id"]
        for port_id, port in ports.items()
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


class NovaCloud:
    """A `Cloud` on OpenStack.

    Safe from many threads. The driver sends nothing before the first call.
    """

    def __init__(self, conf: Any) -> None:
        self._edge = Edge(conf)
        directory = Directory()
        self.call_timeout_s = self._edge.call_timeout_s
        self.hosts: ports.Hosts = NovaHosts(self._edge)
        self.pools: ports.Pools = NovaPools(self._edge, directory)
        self.servers: ports.Servers = NovaServers(self._edge, directory)
        self.moves: ports.Moves = NovaMoves(self._edge, directory)
        self.services: ports.Services = NovaServices(self._edge, directory)
        self.flavors: ports.Flavors = NovaFlavors(self._edge)
        self.slots: ports.Slots = NovaSlots(self._edge, directory)
        self.addresses: ports.Addresses = NovaAddresses(self._edge)
        self.volumes: ports.Volumes = NovaVolumes(self._edge)

    def close(self) -> None:
        self._edge.close()


def connect(conf: Any, clock: Clock) -> NovaCloud:
    """The entry point `nova` of `holdfast.cloud`."""
    return NovaCloud(conf)
