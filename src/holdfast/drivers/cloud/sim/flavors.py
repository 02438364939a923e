# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Flavors port."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Flavor


class SimFlavors:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Flavor]:
        with self._wire.look("flavors.list") as world:
            rows = world.all("SELECT * FROM flavors ORDER BY name")
            return [replace(_flavor(world, row), projects=()) for row in rows]

    def show(self, flavor_id: str) -> Flavor:
        with self._wire.look("flavors.show") as world:
            return _flavor(world, _known(world, flavor_id))

    def create(self, flavor: Flavor) -> None:
        with self._wire.call("flavors.create", flavor.id) as world:
            create(world, flavor)

    def delete(self, flavor_id: str) -> None:
        with self._wire.call("flavors.delete", flavor_id) as world:
            world.run("DELETE FROM flavors WHERE id = ?", flavor_id)

    def add_access(self, flavor_id: str, project_id: str) -> None:
        subject = f"{flavor_id}/{project_id}"
        with self._wire.call("flavors.add_access", subject) as world:
            if _known(world, flavor_id)["public"]:
                raise Conflict(f"flavor {flavor_id} is public: all projects have it")
            world.run(
                "INSERT OR IGNORE INTO flavor_access VALUES (?, ?)",
                *(flavor_id, project_id),
            )

    def remove_access(self, flavor_id: str, project_id: str) -> None:
        subject = f"{flavor_id}/{project_id}"
        with self._wire.call("flavors.remove_access", subject) as world:
            world.run(
                "DELETE FROM flavor_access WHERE flavor_id = ? AND project_id = ?",
                *(flavor_id, project_id),
            )


def create(world: World, flavor: Flavor) -> None:
    """A new flavor, or the completion of one; shared with the demo world."""
    found = world.all("SELECT * FROM flavors WHERE id = ? OR name = ?", flavor.id, flavor.name)
    if not found:
        world.run(
            "INSERT INTO flavors VALUES (?, ?, ?, ?, ?, ?, '{}')",
            *(flavor.id, flavor.name, flavor.vcpus, flavor.memory_mb, flavor.disk_gb),
            flavor.public,
        )
    elif any(_shape(_flavor(world, row)) != _shape(flavor) for row in found):
        raise Conflict(f"another flavor has the id {flavor.id} or the name {flavor.name}")
    _complete(world, flavor)


def _complete(world: World, flavor: Flavor) -> None:
    """Extra specs and access; what is so already leaves no effect."""
    there = _flavor(world, _known(world, flavor.id))
    specs = {**there.extra_specs, **flavor.extra_specs}
    if specs != there.extra_specs:
        world.run("UPDATE flavors SET extra_specs = ? WHERE id = ?", json.dumps(specs), flavor.id)
    for project_id in flavor.projects:
        world.run("INSERT OR IGNORE INTO flavor_access VALUES (?, ?)", flavor.id, project_id)


def _shape(flavor: Flavor) -> Flavor:
    return replace(flavor, extra_specs={}, projects=())


def _known(world: World, flavor_id: str) -> sqlite3.Row:
    row = world.one("SELECT * FROM flavors WHERE id = ?", flavor_id)
    if row is None:
        raise NotFound(f"simulated cloud: no flavor with id {flavor_id}")
    return row


def _flavor(world: World, row: sqlite3.Row) -> Flavor:
    access = world.all(
        "SELECT project_id FROM flavor_access WHERE flavor_id = ? ORDER BY project_id",
        row["id"],
    )
    return Flavor(
        id=row["id"],
        name=row["name"],
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        disk_gb=row["disk_gb"],
        public=bool(row["public"]),
        extra_specs=json.loads(row["extra_specs"]),
        projects=tuple(one["project_id"] for one in access),
    )
