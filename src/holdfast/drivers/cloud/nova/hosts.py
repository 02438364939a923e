# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Hosts port: hypervisors, with the zone of their service.

What a hypervisor has, and how much of it may be promised, is Placement's word, not that of the
hypervisor's own columns: these know neither ratios nor what is set aside for the host itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openstack.exceptions import NotFoundException

from holdfast.drivers.cloud.nova.directory import hypervisors, hypervisors_of, services
from holdfast.drivers.cloud.nova.edge import Edge, answer, spoken_by_a_service
from holdfast.model.host import Inventory
from holdfast.ports.cloud import CloudHost

#: Inventories and traits of one provider; both are older.
PLACEMENT = "1.20"


class NovaHosts:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[CloudHost]:
        with self._edge.call("hosts.list") as cloud:
            zones = {service["host"]: service["zone"] for service in services(cloud)}
            found = [_host(one, zones) for one in hypervisors(cloud)]
        return sorted(found, key=lambda host: host.service_host)

    def find(self, name: str) -> CloudHost:
        with self._edge.call("hosts.find", name) as cloud:
            one = hypervisors_of(cloud, name)[0]
            own = one["service"]["host"]
            zones = {service["host"]: service["zone"] for service in services(cloud, own)}
            return _with_its_provider(cloud, _host(one, zones))


def _host(one: Mapping[str, Any], zones: Mapping[str, str]) -> CloudHost:
    own = one["service"]["host"]
    return CloudHost(
        uuid=one["id"],
        hypervisor_hostname=one["hypervisor_hostname"],
        service_host=own,
        zone=zones.get(own, ""),
        vcpus=one["vcpus"],
        memory_mb=one["memory_mb"],
        local_gb=one["local_gb"],
        hypervisor_type=one["hypervisor_type"],
        hypervisor_version=one["hypervisor_version"],
        cpu_info=json.dumps(one["cpu_info"], sort_keys=True),
        state=one["state"],
    )


def _with_its_provider(cloud: Any, host: CloudHost) -> CloudHost:
    """The host with what Placement has on its own provider, which has the hypervisor's uuid."""
    path = f"/resource_providers/{host.uuid}"
    try:
        have = answer(cloud.placement.get(f"{path}/inventories", microversion=PLACEMENT))
        traits = answer(cloud.placement.get(f"{path}/traits", microversion=PLACEMENT))
    except NotFoundException as unknown:
        if unknown.response is None or not spoken_by_a_service(unknown.response):
            raise
        return host  # a compute that never reported has no provider
    inventories = {name: _inventory(one) for name, one in have["inventories"].items()}
    return replace(host, inventories=inventories, traits=frozenset(traits["traits"]))


def _inventory(one: Mapping[str, Any]) -> Inventory:
    return Inventory(
        total=one["total"],
        reserved=one["reserved"],
        ratio=one["allocation_ratio"],
        most=one["max_unit"],
    )
