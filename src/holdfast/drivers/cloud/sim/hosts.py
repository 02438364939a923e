# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Hosts port."""

import sqlite3
import uuid
from collections.abc import Sequence

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict
from holdfast.model.host import normalise, same, short
from holdfast.ports.cloud import CloudHost


class SimHosts:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[CloudHost]:
        with self._wire.call("hosts.list") as world:
            rows = world.all("SELECT * FROM hosts ORDER BY name")
            return [_host(world, row) for row in rows]

    def find(self, name: str) -> CloudHost:
        with self._wire.call("hosts.find") as world:
            return _host(world, world.host(name))


def add(world: World, host: CloudHost) -> CloudHost:
    """A new host, switched on; a missing uuid or hypervisor name comes from its name."""
    name = normalise(host.service_host)
    hypervisor = host.hypervisor_hostname or name
    for row in world.all("SELECT name FROM hosts WHERE short = ?", short(name)):
        if same(row["name"], name):
            raise Conflict(f"host {row['name']} exists already")
    world.run(
        "INSERT INTO hosts (uuid, name, short, hypervisor_hostname, hypervisor_short,"
        " hypervisor_type, hypervisor_version, cpu_info, zone, rack, vcpus, memory_mb,"
        " local_gb) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        host.uuid or str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        *(name, short(name), hypervisor, short(hypervisor)),
        *(host.hypervisor_type, host.hypervisor_version, host.cpu_info),
        *(host.zone, host.rack, host.vcpus, host.memory_mb, host.local_gb),
    )
    return _host(world, world.host(name))


def _host(world: World, row: sqlite3.Row) -> CloudHost:
    return CloudHost(
        uuid=row["uuid"],
        hypervisor_hostname=row["hypervisor_hostname"],
        service_host=row["name"],
        zone=row["zone"],
        rack=row["rack"],
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        local_gb=row["local_gb"],
        hypervisor_type=row["hypervisor_type"],
        hypervisor_version=row["hypervisor_version"],
        cpu_info=row["cpu_info"],
        state="up" if world.looks_up(row) else "down",
    )
