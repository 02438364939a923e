# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Hosts port.

A host has as much of VCPU, MEMORY_MB and DISK_GB as its columns say, none set aside and nothing
promised twice, unless somebody wrote an inventory of the class.
"""

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict
from holdfast.model.host import Inventory, normalise, same, short
from holdfast.ports.cloud import CloudHost


class SimHosts:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[CloudHost]:
        with self._wire.look("hosts.list") as world:
            rows = world.all("SELECT * FROM hosts ORDER BY name")
            return [_host(world, row) for row in rows]

    def find(self, name: str) -> CloudHost:
        with self._wire.look("hosts.find") as world:
            return _whole(world, world.host(name))


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
        " local_gb, inventories, traits)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        host.uuid or str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        *(name, short(name), hypervisor, short(hypervisor)),
        *(host.hypervisor_type, host.hypervisor_version, host.cpu_info),
        *(host.zone, host.rack, host.vcpus, host.memory_mb, host.local_gb),
        *(_inventories_text(host.inventories), _traits_text(host.traits)),
    )
    return _whole(world, world.host(name))


def change(world: World, name: str, values: Mapping[str, Any]) -> CloudHost:
    """Make the host another one: any of CloudHost's sizes, zone, rack, inventories, traits."""
    row = world.host(name)
    for column, value in values.items():
        written = _WRITTEN[column](value) if column in _WRITTEN else value
        world.run(f"UPDATE hosts SET {column} = ? WHERE id = ?", written, row["id"])
    return _whole(world, world.host(row["name"]))


def inventories(row: sqlite3.Row) -> dict[str, Inventory]:
    """What the host has, by resource class."""
    sizes = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"], "DISK_GB": row["local_gb"]}
    written = {key: Inventory(**one) for key, one in json.loads(row["inventories"]).items()}
    return {**{key: Inventory(total, most=total) for key, total in sizes.items()}, **written}


def traits(row: sqlite3.Row) -> frozenset[str]:
    return frozenset(json.loads(row["traits"]))


def _inventories_text(given: Mapping[str, Inventory]) -> str:
    return json.dumps({key: dataclasses.asdict(one) for key, one in given.items()})


def _traits_text(given: Iterable[str]) -> str:
    return json.dumps(sorted(given))


_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    "inventories": _inventories_text,
    "traits": _traits_text,
}


def _whole(world: World, row: sqlite3.Row) -> CloudHost:
    return replace(_host(world, row), inventories=inventories(row), traits=traits(row))


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
