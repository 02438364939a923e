# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Moves port: evacuations and their traces."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from holdfast.drivers.cloud.sim.placement import order_of, place
from holdfast.drivers.cloud.sim.servers import Action, begin
from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World, moment
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Migration

EVACUATE = Action("evacuate", frozenset({"ACTIVE", "SHUTOFF", "ERROR"}), "rebuilding", "SHUTOFF")


class SimMoves:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def evacuate(self, server_id: str, host: str | None = None) -> None:
        with self._wire.call("moves.evacuate", server_id) as world:
            server = world.server(server_id)
            _check(world, server)
            source = server["host_id"]
            if host is not None and world.host(host)["id"] == source:
                raise Conflict(f"server {server_id}: {host} is where it is now")
            dest: int | None = None
            try:
                dest = place(world, order_of(server), host, avoid=source)
                # What was in ERROR comes back running, as in Nova; all others stopped.
                ends = "ACTIVE" if server["status"] == "ERROR" else EVACUATE.ends
                begin(world, replace(EVACUATE, ends=ends), server_id, dest)
            except Conflict:  # accepted all the same: where to is asked afterwards
                begin(world, replace(EVACUATE, ends="ERROR"), server_id)
            world.run(
                "INSERT INTO migrations"
                " (server_id, source_id, dest_id, type, status, created_at, run_at)"
                " VALUES (?, ?, ?, 'evacuation', 'accepted', ?, ?)",
                *(server_id, source, dest, world.now),
                # The conductor needs a moment before the target begins: a fifth of it all.
                world.now + world.settings.action_s / 5,
            )

    def migrations(self, *, source_host: str) -> Sequence[Migration]:
        with self._wire.call("moves.migrations") as world:
            rows = world.all(
                "SELECT m.*, s.name AS source, d.name AS dest FROM migrations m"
                " JOIN hosts s ON s.id = m.source_id"
                " LEFT JOIN hosts d ON d.id = m.dest_id"
                " WHERE m.source_id = ? ORDER BY m.id",
                world.host(source_host)["id"],
            )
            return [_migration(row) for row in rows]


def _check(world: World, server: sqlite3.Row) -> None:
    """Conflict unless the server may be evacuated now.

    Like Nova, any task state but these two is passed over: on a dead host it would stay forever,
    and the server with it.
    """
    what = f"server {server['id']}"
    if server["task_state"] in ("rebuilding", "deleting"):
        raise Conflict(f"{what}: cannot evacuate it while it is {server['task_state']}")
    if server["status"] not in EVACUATE.allowed:
        raise Conflict(f"{what}: cannot evacuate it while it is {server['status']}")
    if world.looks_up(world.host(server["host"])):
        raise Conflict(
            f"{what}: cannot evacuate it while the compute service of {server['host']}"
            " is up; force it down first"
        )


def _migration(row: sqlite3.Row) -> Migration:
    return Migration(
        id=str(row["id"]),
        server_id=row["server_id"],
        source_host=row["source"],
        dest_host=row["dest"],
        type=row["type"],
        status=row["status"],
        created_at=moment(row["created_at"]),
    )
