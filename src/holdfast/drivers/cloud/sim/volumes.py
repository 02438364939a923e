# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Volumes port."""

import sqlite3
from collections.abc import Sequence

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.ports.cloud import Volume


class SimVolumes:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        with self._wire.look("volumes.list") as world:
            rows = world.all(
                "SELECT * FROM volumes v WHERE ?1 IS NULL OR EXISTS"
                " (SELECT 1 FROM attachments a"
                "  WHERE a.volume_id = v.id AND a.server_id = ?1) ORDER BY v.rowid",
                server_id,
            )
            return [volume_of(world, row) for row in rows]


def volume_of(world: World, row: sqlite3.Row) -> Volume:
    attached = world.all(
        "SELECT server_id FROM attachments WHERE volume_id = ? ORDER BY server_id",
        row["id"],
    )
    return Volume(
        id=row["id"],
        name=row["name"],
        project_id=row["project_id"],
        size_gb=row["size_gb"],
        server_ids=tuple(one["server_id"] for one in attached),
        status="in-use" if attached else "available",
    )
