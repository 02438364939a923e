# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Moves port: evacuations, live migrations and their traces."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from holdfast.drivers.cloud.sim.placement import order_of, place
from holdfast.drivers.cloud.sim.servers import Action, begin, check
from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World, moment
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Migration, Server

EVACUATE = Action("evacuate", frozenset({"ACTIVE", "SHUTOFF", "ERROR"}), "rebuilding", "SHUTOFF")
LIVE = Action("live migrate", frozenset({"ACTIVE"}), "migrating", "ACTIVE")


class SimMoves:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        seen: Server | None = None,
    ) -> None:
        with self._wire.call("moves.evacuate", server_id) as world:
            server = world.server(server_id)
            _check(world, server)
            dest = _dest(world, server, host)
            # What was in ERROR comes back running, as in Nova. Where to is asked after it was
            # accepted, and what finds no room ends in ERROR.
            runs = {"ERROR", "ACTIVE"} if as_it_was else {"ERROR"}
            ends = "ACTIVE" if server["status"] in runs else EVACUATE.ends
            begin(world, replace(EVACUATE, ends=ends if dest else "ERROR"), server_id, dest)
            world.abandon_move(server_id)  # a live migration that its host's death has cut short
            _record(world, server, "evacuation", dest)

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        with self._wire.call("moves.live_migrate", server_id) as world:
            server = world.server(server_id)
            check(server, LIVE)
            if not world.looks_up(world.host(server["host"])):
                raise Conflict(
                    f"server {server_id}: cannot live migrate it while the compute service of"
                    f" {server['host']} is down; evacuate it"
                )
            dest = _dest(world, server, host)
            begin(world, LIVE, server_id, dest)
            _record(world, server, "live-migration", dest)

    def migrations(self, *, source_host: str, kind: str = "evacuation") -> Sequence[Migration]:
        with self._wire.look("moves.migrations") as world:
            rows = world.all(
                "SELECT m.*, s.name AS source, d.name AS dest FROM migrations m"
                " JOIN hosts s ON s.id = m.source_id"
                " LEFT JOIN hosts d ON d.id = m.dest_id"
                " WHERE m.source_id = ? AND m.type = ? ORDER BY m.id",
                *(world.host(source_host)["id"], kind),
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


def _dest(world: World, server: sqlite3.Row, host: str | None) -> int | None:
    """Where the server is to go; None if there is no room. Conflict if it is there now."""
    source = server["host_id"]
    if host is not None and world.host(host)["id"] == source:
        raise Conflict(f"server {server['id']}: {host} is where it is now")
    try:
        return place(world, order_of(server), host, avoid=source)
    except Conflict:
        return None


def _record(world: World, server: sqlite3.Row, kind: str, dest: int | None) -> None:
    world.run(
        "INSERT INTO migrations (server_id, source_id, dest_id, type, status, created_at, run_at)"
        " VALUES (?, ?, ?, ?, 'accepted', ?, ?)",
        *(server["id"], server["host_id"], dest, kind, world.now),
        # The conductor needs a moment before the target begins: a fifth of it all.
        world.now + world.settings.action_s / 5,
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
