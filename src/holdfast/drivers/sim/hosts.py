# SPDX-License-Identifier: Apache-2.0
"""The simulated Hosts and Services ports.

A host has as much VCPU, MEMORY_MB and DISK_GB as its columns say, without reserved amounts and
overcommit, unless an inventory of the class was written.
"""

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.drivers.sim.wire import Wire
from holdfast.drivers.sim.world import World, moment
from holdfast.model.errors import Conflict
from holdfast.model.host import Inventory, normalise, same, short
from holdfast.ports.cloud import CloudHost, Service


class SimHosts:
    """The simulated Hosts port."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[CloudHost]:
        with self._wire.read("hosts.list") as world:
            rows = world.all("SELECT * FROM hosts ORDER BY name")
            return [_host(world, row) for row in rows]

    def find(self, name: str) -> CloudHost:
        with self._wire.read("hosts.find") as world:
            return _whole(world, world.host(name))


def add(world: World, host: CloudHost) -> CloudHost:
    """Add a host with power on; derive a missing uuid or hypervisor name from the name."""
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
    """Change the host: any of CloudHost's sizes, zone, rack, inventories, traits."""
    row = world.host(name)
    for column, value in values.items():
        written = _WRITTEN[column](value) if column in _WRITTEN else value
        world.run(f"UPDATE hosts SET {column} = ? WHERE id = ?", written, row["id"])
    return _whole(world, world.host(row["name"]))


def inventories(row: sqlite3.Row) -> dict[str, Inventory]:
    """Return the host's inventories by resource class."""
    sizes = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"], "DISK_GB": row["local_gb"]}
    written = {
        key: Inventory(**inventory) for key, inventory in json.loads(row["inventories"]).items()
    }
    return {**{key: Inventory(total, most=total) for key, total in sizes.items()}, **written}


def traits(row: sqlite3.Row) -> frozenset[str]:
    return frozenset(json.loads(row["traits"]))


def _inventories_text(inventories: Mapping[str, Inventory]) -> str:
    return json.dumps(
        {key: dataclasses.asdict(inventory) for key, inventory in inventories.items()}
    )


def _traits_text(traits: Iterable[str]) -> str:
    return json.dumps(sorted(traits))


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
        state="up" if world.appears_up(row) else "down",
    )


class SimServices:
    """The simulated Services port: the nova-compute service of each host."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Service]:
        with self._wire.read("services.list") as world:
            rows = world.all("SELECT * FROM hosts ORDER BY name")
            return [_service(world, row) for row in rows]

    def disable(self, host: str, reason: str) -> None:
        with self._wire.call("services.disable", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET enabled = 0, disabled_reason = ?1, changed_at = ?2"
                " WHERE id = ?3 AND (enabled OR disabled_reason != ?1)",
                *(reason, world.now, row["id"]),
            )
            unheard = row["enabled"] and _unheard(world, row)
        if unheard:
            self._wire.time_out("services.disable")

    def enable(self, host: str) -> None:
        with self._wire.call("services.enable", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET enabled = 1, disabled_reason = '', changed_at = ?"
                " WHERE id = ? AND NOT enabled",
                *(world.now, row["id"]),
            )
            unheard = not row["enabled"] and _unheard(world, row)
        if unheard:
            self._wire.time_out("services.enable")

    def force_down(self, host: str) -> None:
        with self._wire.call("services.force_down", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET forced_down = 1, changed_at = ? WHERE id = ? AND NOT forced_down",
                *(world.now, row["id"]),
            )

    def unforce(self, host: str) -> None:
        with self._wire.call("services.unforce", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            if not row["forced_down"]:
                return
            # A restart of the host cleans up after evacuations; before, Nova refuses.
            left = world.all(
                "SELECT id FROM migrations WHERE source_id = ? AND type = 'evacuation'"
                " AND status = 'done' AND NOT cleaned",
                row["id"],
            )
            if left:
                raise Conflict(
                    f"host {row['name']}: {len(left)} evacuations from it are recorded as"
                    " done and its service has not restarted since; restart it first"
                )
            world.run(
                "UPDATE hosts SET forced_down = 0, changed_at = ? WHERE id = ?",
                *(world.now, row["id"]),
            )


def _unheard(world: World, row: sqlite3.Row) -> bool:
    """Return whether the cloud now waits in vain for the host's answer.

    This is so while the cloud does not know yet that the host is dead or cut off.
    """
    return row["failed_at"] is not None and world.appears_up(row)


def _service(world: World, row: sqlite3.Row) -> Service:
    return Service(
        host=row["name"],
        state="up" if world.appears_up(row) else "down",
        enabled=bool(row["enabled"]),
        disabled_reason=row["disabled_reason"],
        forced_down=bool(row["forced_down"]),
        updated_at=moment(_updated_at(world, row)),
    )


def _updated_at(world: World, row: sqlite3.Row) -> float:
    """Return the time of the host's last report or of a later change of its row, as Nova does."""
    silent, every = row["failed_at"], world.settings.report_s
    reported_at: float = world.now if silent is None else silent
    if every:
        reported_at = max(reported_at - reported_at % every, row["restarted_at"] or 0.0)
    return reported_at if silent is None and not every else max(reported_at, row["changed_at"])
