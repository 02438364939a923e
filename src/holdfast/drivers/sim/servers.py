# SPDX-License-Identifier: Apache-2.0
"""The simulated Servers and Moves ports.

An action is accepted at once and completes `action_s` later. On a host without power it never
completes: the task state stays until the host is back or the server is evacuated, as in Nova. This
holds for deletes too, unless the host is known to be down: then the cloud does not need the host,
and a second delete completes a stuck delete. Locks stop users, not Holdfast.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.drivers.sim.placement import order_of, place
from holdfast.drivers.sim.wire import Wire
from holdfast.drivers.sim.world import IDLE, SERVERS, World, moment
from holdfast.model.errors import Conflict
from holdfast.nova.admission import is_preemptible
from holdfast.ports.cloud import Migration, Server


@dataclass(frozen=True)
class Action:
    """An action: the allowed states, the task state, and the final state."""

    verb: str
    allowed: frozenset[str]
    task_state: str
    ends: str


RESIZED = "VERIFY_RESIZE"
_POWERED = ("ACTIVE", RESIZED)
_PRESENT = frozenset({"ACTIVE", "SHUTOFF", "SUSPENDED", "PAUSED"})

STOP = Action("stop", frozenset({"ACTIVE", "ERROR"}), "powering-off", "SHUTOFF")
START = Action("start", frozenset({"SHUTOFF"}), "powering-on", "ACTIVE")
SUSPEND = Action("suspend", frozenset({"ACTIVE"}), "suspending", "SUSPENDED")
SHELVE = Action("shelve", _PRESENT, "shelving", "SHELVED_OFFLOADED")
SNAPSHOT = Action("snapshot", _PRESENT, "image_snapshot", "")
UNSHELVE = Action("unshelve", frozenset({"SHELVED_OFFLOADED"}), "unshelving", "ACTIVE")


class SimServers:
    """The simulated Servers port."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, host: str | None = None, project_id: str | None = None, placed: bool = True
    ) -> Sequence[Server]:
        with self._wire.read("servers.list") as world:
            host_id = world.host(host)["id"] if host is not None else None
            rows = world.all(
                f"{SERVERS} WHERE (?1 IS NULL OR COALESCE(s.host_id, s.dest_host_id) = ?1)"
                " AND (?2 IS NULL OR s.project_id = ?2) AND (?3 OR s.host_id IS NOT NULL)"
                " ORDER BY s.name, s.id",
                *(host_id, project_id, placed or host is None),
            )
            return [server_of(row) for row in rows]

    def show(self, server_id: str) -> Server:
        with self._wire.read("servers.show") as world:
            return server_of(world.server(server_id))

    def delete(self, server_id: str) -> None:
        with self._wire.call("servers.delete", server_id) as world:
            server = world.one(f"{SERVERS} WHERE s.id = ?", server_id)
            if server is None:
                return
            world.abandon_move(server_id)
            if server["host"] and not world.appears_up(world.host(server["host"])):
                world.run("DELETE FROM servers WHERE id = ?", server_id)
                return
            world.run(
                "UPDATE servers SET task_state = 'deleting', finish_at = ?,"
                " next_status = NULL, dest_host_id = NULL"
                " WHERE id = ? AND task_state IS NOT 'deleting'",
                *(world.now + world.settings.delete_s, server_id),
            )

    def stop(self, server_id: str) -> None:
        self._act(STOP, server_id)

    def start(self, server_id: str) -> None:
        self._act(START, server_id)

    def suspend(self, server_id: str) -> None:
        self._act(SUSPEND, server_id)

    def shelve(self, server_id: str) -> None:
        self._act(SHELVE, server_id)

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        with self._wire.call("servers.unshelve", server_id) as world:
            server = world.server(server_id)
            check(server, UNSHELVE)
            try:
                begin(world, UNSHELVE, server_id, place(world, order_of(server), host))
            except Conflict:  # accepted: the scheduler chooses afterwards
                begin(world, replace(UNSHELVE, ends=server["status"]), server_id)

    def snapshot(self, server_id: str, name: str) -> str:
        with self._wire.call("servers.snapshot", server_id) as world:
            server = world.server(server_id)
            check(server, SNAPSHOT)
            begin(world, replace(SNAPSHOT, ends=server["status"]), server_id)
            image_id = world.new_id()
            world.run(
                "INSERT INTO images VALUES (?, ?, ?, ?)",
                *(image_id, name, server_id, world.now),
            )
            return image_id

    def images(self, server_id: str, name: str) -> Sequence[str]:
        """List the server's images.

        Images outlive their server, so a missing server is no error.
        """
        with self._wire.read("servers.images") as world:
            rows = world.all(
                "SELECT id FROM images WHERE server_id = ? AND name = ? ORDER BY rowid",
                *(server_id, name),
            )
            return [row["id"] for row in rows]

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the properties of the servers' source images; `Simulator.set_image` sets them."""
        with self._wire.read("servers.image_properties") as world:
            names = ", ".join("?" for _ in image_ids)
            rows = world.all(f"SELECT * FROM meta WHERE name IN ({names})", *image_ids)
            return {row["name"]: json.loads(row["value"]) for row in rows}

    def lock(self, server_id: str, reason: str) -> None:
        with self._wire.call("servers.lock", server_id) as world:
            world.server(server_id)
            world.run(
                "UPDATE servers SET locked = 1, locked_reason = COALESCE(?1, locked_reason)"
                " WHERE id = ?2 AND (NOT locked OR locked_reason != ?1)",
                *(reason or None, server_id),
            )

    def unlock(self, server_id: str) -> None:
        with self._wire.call("servers.unlock", server_id) as world:
            world.server(server_id)
            world.run(
                "UPDATE servers SET locked = 0, locked_reason = '' WHERE id = ? AND locked",
                server_id,
            )

    def reset(self, server_id: str, *, active: bool = False) -> None:
        status = "ACTIVE" if active else "ERROR"
        with self._wire.call("servers.reset", server_id) as world:
            world.server(server_id)
            world.abandon_move(server_id)
            world.run(
                f"UPDATE servers SET status = ?1, {IDLE}"
                " WHERE id = ?2 AND (status != ?1 OR finish_at IS NOT NULL)",
                *(status, server_id),
            )

    def _act(self, action: Action, server_id: str) -> None:
        with self._wire.call(f"servers.{action.verb}", server_id) as world:
            check(world.server(server_id), action)
            begin(world, action, server_id)


def begin(world: World, action: Action, server_id: str, dest_host_id: int | None = None) -> None:
    """Begin an action on a server; `world.settle` completes it when due."""
    world.run(
        "UPDATE servers SET task_state = ?, finish_at = ?, next_status = ?,"
        " dest_host_id = ?, crashed = 0 WHERE id = ?",
        *(action.task_state, world.now + world.settings.action_s),
        *(action.ends, dest_host_id, server_id),
    )


def server_of(row: sqlite3.Row) -> Server:
    return Server(
        id=row["id"],
        name=row["name"],
        project_id=row["project_id"],
        host=row["host"],
        status=row["status"],
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        disk_gb=row["disk_gb"],
        task_state=row["task_state"],
        locked=bool(row["locked"]),
        locked_reason=row["locked_reason"],
        flavor=row["flavor"],
        preemptible=is_preemptible(json.loads(row["extra_specs"] or "{}")),
        metadata=json.loads(row["metadata"]),
        extra_specs=json.loads(row["extra_specs"] or "{}"),
        image_id=row["image"] or "",
        user_id=row["user_id"],
        created_at=moment(row["created_at"]),
        powered=row["status"] in _POWERED and not row["crashed"],
    )


def check(server: sqlite3.Row, action: Action) -> None:
    """Raise Conflict unless the server's state allows the action."""
    if server["task_state"]:
        raise Conflict(
            f"server {server['id']}: cannot {action.verb} it while it is {server['task_state']}"
        )
    if server["status"] not in action.allowed:
        raise Conflict(
            f"server {server['id']}: cannot {action.verb} it while it is {server['status']}"
        )


EVACUATE = Action("evacuate", frozenset({"ACTIVE", "SHUTOFF", "ERROR"}), "rebuilding", "SHUTOFF")
LIVE = Action("live migrate", frozenset({"ACTIVE"}), "migrating", "ACTIVE")


class SimMoves:
    """The simulated Moves port: evacuations, live migrations, and their migration records."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        last_read: Server | None = None,
    ) -> None:
        with self._wire.call("moves.evacuate", server_id) as world:
            server = world.server(server_id)
            _check(world, server)
            dest = _dest(world, server, host)
            # A server in ERROR comes back running, as in Nova. The host is chosen after the
            # request was accepted, and a server that finds no room ends in ERROR.
            runs = {"ERROR", "ACTIVE"} if as_it_was else {"ERROR"}
            ends = "ACTIVE" if server["status"] in runs else EVACUATE.ends
            begin(world, replace(EVACUATE, ends=ends if dest else "ERROR"), server_id, dest)
            world.abandon_move(server_id)  # a live migration that the host's death interrupted
            _record(world, server, "evacuation", dest)

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        with self._wire.call("moves.live_migrate", server_id) as world:
            server = world.server(server_id)
            check(server, LIVE)
            if not world.appears_up(world.host(server["host"])):
                raise Conflict(
                    f"server {server_id}: cannot live migrate it while the compute service of"
                    f" {server['host']} is down; evacuate it"
                )
            dest = _dest(world, server, host)
            begin(world, LIVE, server_id, dest)
            _record(world, server, "live-migration", dest)

    def migrations(
        self, *, source_host: str, kind: str = "evacuation", after: int = 0
    ) -> Sequence[Migration]:
        with self._wire.read("moves.migrations") as world:
            rows = world.all(
                "SELECT m.*, s.name AS source, d.name AS dest FROM migrations m"
                " JOIN hosts s ON s.id = m.source_id"
                " LEFT JOIN hosts d ON d.id = m.dest_id"
                " WHERE m.source_id = ? AND m.type = ? AND m.id > ? ORDER BY m.id",
                *(world.host(source_host)["id"], kind, after),
            )
            return [_migration(row) for row in rows]


def _check(world: World, server: sqlite3.Row) -> None:
    """Raise Conflict unless the server may be evacuated now.

    As in Nova, any task state but these two is ignored: on a dead host it would stay for ever, and
    the server with it.
    """
    subject = f"server {server['id']}"
    if server["task_state"] in ("rebuilding", "deleting"):
        raise Conflict(f"{subject}: cannot evacuate it while it is {server['task_state']}")
    if server["status"] not in EVACUATE.allowed:
        raise Conflict(f"{subject}: cannot evacuate it while it is {server['status']}")
    if world.appears_up(world.host(server["host"])):
        raise Conflict(
            f"{subject}: cannot evacuate it while the compute service of {server['host']}"
            " is up; force it down first"
        )


def _dest(world: World, server: sqlite3.Row, host: str | None) -> int | None:
    """Return the destination host; None without room. Conflict if the server is already there."""
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
        # The conductor needs a moment before the target begins: a fifth of the total time.
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
