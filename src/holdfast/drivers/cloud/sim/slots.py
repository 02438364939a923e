# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Slots port: inventories by generation, and server groups.

A server has a slot of a class if its flavor says so (extra spec `resources:<class>`), on the host
where it is and on the one it is going to.
"""

import json
import re
import sqlite3
from collections.abc import Sequence

from holdfast.drivers.cloud.sim.file import failed
from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Inventory, ServerGroup

PREFIX = "resources:"
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")


class SimSlots:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def inventory(self, host: str, resource_class: str) -> Inventory:
        with self._wire.look("slots.inventory") as world:
            return _inventory(world, world.host(host), resource_class)

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        subject = f"{host}/{resource_class}"
        with self._wire.call("slots.set_inventory", subject) as world:
            row = world.host(host)
            world.subject = f"{row['name']}/{resource_class}"
            _check(_inventory(world, row, resource_class), total, generation)
            world.run(
                "DELETE FROM inventories WHERE host_id = ? AND resource_class = ?",
                *(row["id"], resource_class),
            )
            if total:
                world.run(
                    "INSERT INTO inventories VALUES (?, ?, ?)", row["id"], resource_class, total
                )
            world.run("UPDATE hosts SET generation = generation + 1 WHERE id = ?", row["id"])
            return _inventory(world, world.host(row["name"]), resource_class)

    def drop_class(self, resource_class: str) -> None:
        with self._wire.call("slots.drop_class", resource_class) as world:
            held = world.one(
                "SELECT h.name FROM inventories i JOIN hosts h ON h.id = i.host_id"
                " WHERE i.resource_class = ? ORDER BY h.name",
                resource_class,
            )
            if held:
                raise Conflict(f"host {held['name']} still has slots of {resource_class}")

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        with self._wire.call("slots.create_group", name) as world:
            if world.one(
                "SELECT id FROM server_groups WHERE name = ? AND project_id = ?",
                *(name, project_id),
            ):
                raise Conflict(f"project {project_id} has a server group {name} already")
            group = ServerGroup(world.new_id(), name, policy, project_id)
            world.run(
                "INSERT INTO server_groups VALUES (?, ?, ?, ?)",
                *(group.id, name, policy, project_id),
            )
            return group

    def groups(self) -> Sequence[ServerGroup]:
        with self._wire.look("slots.groups") as world:
            rows = world.all("SELECT * FROM server_groups ORDER BY name")
            return [ServerGroup(*row) for row in rows]

    def delete_group(self, group_id: str) -> None:
        with self._wire.call("slots.delete_group", group_id) as world:
            world.run("DELETE FROM server_groups WHERE id = ?", group_id)


def missing(world: World, host: sqlite3.Row, flavor: str) -> str | None:
    """Which slots a server of that flavor would lack on the host, if any."""
    for resource_class, amount in wanted(world, flavor).items():
        found = _inventory(world, host, resource_class)
        if found.used + amount > found.total:
            free = found.total - found.used
            return f"{amount} {resource_class} wanted, {free} free"
    return None


def wanted(world: World, flavor: str) -> dict[str, int]:
    """The custom resources a flavor asks for."""
    return {
        key.removeprefix(PREFIX): int(amount)
        for key, amount in extra_specs(world, flavor).items()
        if key.startswith(f"{PREFIX}CUSTOM_")
    }


def extra_specs(world: World, flavor: str) -> dict[str, str]:
    """Those of a flavor by id or name; of a flavor nobody made, none."""
    row = world.one("SELECT extra_specs FROM flavors WHERE id = ?1 OR name = ?1", flavor)
    return dict(json.loads(row["extra_specs"])) if row else {}


def _inventory(world: World, host: sqlite3.Row, resource_class: str) -> Inventory:
    found = world.one(
        "SELECT total FROM inventories WHERE host_id = ? AND resource_class = ?",
        *(host["id"], resource_class),
    )
    servers = world.all(
        "SELECT flavor, COUNT(*) AS count FROM servers"
        " WHERE host_id = ?1 OR dest_host_id = ?1 GROUP BY flavor",
        host["id"],
    )
    return Inventory(
        host=host["name"],
        resource_class=resource_class,
        total=found["total"] if found else 0,
        generation=host["generation"],
        used=sum(
            row["count"] * wanted(world, row["flavor"]).get(resource_class, 0) for row in servers
        ),
    )


def _check(now: Inventory, total: int, generation: int) -> None:
    if not _CUSTOM.fullmatch(now.resource_class):
        raise failed(f"{now.resource_class} is no name of a custom class", retryable=False)
    now.check(total, generation)
