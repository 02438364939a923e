# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Hosts port: hypervisors, with the zone of their service."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.drivers.cloud.nova.directory import hypervisors, hypervisors_of, services
from holdfast.drivers.cloud.nova.edge import Edge
from holdfast.ports.cloud import CloudHost


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
            return _host(one, zones)


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
