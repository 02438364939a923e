# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Slots port: inventories by generation, and server groups."""

from collections.abc import Sequence

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Inventory, ServerGroup


class SimSlots:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def inventory(self, host: str, resource_class: str) -> Inventory:
        """A class the host never had has a total of 0: its generation is still needed."""
        with self._wire.call("slots.inventory") as world:
            row = world.host(host)
            found = world.one(
                "SELECT total FROM inventories WHERE host_id = ? AND resource_class = ?",
                *(row["id"], resource_class),
            )
            total = found["total"] if found else 0
            return Inventory(row["name"], resource_class, total, row["generation"])

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        subject = f"{host}/{resource_class}"
        with self._wire.call("slots.set_inventory", subject) as world:
            row = world.host(host)
            world.subject = f"{row['name']}/{resource_class}"
            if row["generation"] != generation:
                raise Conflict(
                    f"host {row['name']}: its inventories are at generation"
                    f" {row['generation']}, not {generation}; read again"
                )
            world.run(
                "INSERT INTO inventories VALUES (?, ?, ?)"
                " ON CONFLICT (host_id, resource_class)"
                " DO UPDATE SET total = excluded.total",
                *(row["id"], resource_class, total),
            )
            world.run("UPDATE hosts SET generation = generation + 1 WHERE id = ?", row["id"])
            return Inventory(row["name"], resource_class, total, generation + 1)

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        with self._wire.call("slots.create_group", name) as world:
            if world.one("SELECT id FROM server_groups WHERE name = ?", name):
                raise Conflict(f"server group {name} exists already")
            group = ServerGroup(world.new_id(), name, policy, project_id)
            world.run(
                "INSERT INTO server_groups VALUES (?, ?, ?, ?)",
                *(group.id, name, policy, project_id),
            )
            return group

    def groups(self) -> Sequence[ServerGroup]:
        with self._wire.call("slots.groups") as world:
            rows = world.all("SELECT * FROM server_groups ORDER BY name")
            return [ServerGroup(*row) for row in rows]

    def delete_group(self, group_id: str) -> None:
        with self._wire.call("slots.delete_group", group_id) as world:
            world.run("DELETE FROM server_groups WHERE id = ?", group_id)
