# SPDX-License-Identifier: Apache-2.0
"""Simulated failures: power loss, cut cables, hanging kernels, dying guests, and their repair."""

import sqlite3

from holdfast.drivers.sim.world import IDLE, SERVERS, World
from holdfast.model.errors import Conflict, NotFound


def power_off(world: World, name: str) -> None:
    """Cut the host's power: nothing runs there any more, and the cloud does not know.

    Its servers keep their status. A move *to* the host fails: an evacuated server ends in ERROR on
    its source, an unshelved server stays shelved, and a live-migrated server goes on where it is.
    """
    host = world.host(name)
    world.subject = host["name"]
    if not host["powered"]:
        return
    world.run("DELETE FROM domains WHERE host_id = ?", host["id"])
    for server in world.all(f"{SERVERS} WHERE s.dest_host_id = ?", host["id"]):
        world.abandon_move(server["id"])
        status = "ERROR" if server["task_state"] == "rebuilding" else server["status"]
        world.run(f"UPDATE servers SET status = ?, {IDLE} WHERE id = ?", status, server["id"])
    world.run(
        "UPDATE hosts SET powered = 0, failed_at = COALESCE(failed_at, ?) WHERE id = ?",
        *(world.now, host["id"]),
    )


def cut_off(world: World, name: str) -> None:
    """Cut the host off from all networks; everything on the host goes on running.

    To the cloud this looks like a loss of power. Actions for the host wait.
    """
    host = world.host(name)
    world.subject = host["name"]
    world.run(
        "UPDATE hosts SET failed_at = ? WHERE id = ? AND failed_at IS NULL",
        *(world.now, host["id"]),
    )


def hang(world: World, name: str) -> None:
    """Hang the host's kernel: nothing runs there and the host is silent, but has power.

    Its servers keep their status; a move to the host waits.
    """
    host = world.host(name)
    world.subject = host["name"]
    world.run("DELETE FROM domains WHERE host_id = ?", host["id"])
    world.run(
        "UPDATE hosts SET failed_at = COALESCE(failed_at, ?) WHERE id = ?",
        *(world.now, host["id"]),
    )


def reach_again(world: World, name: str) -> None:
    """Reconnect a host that was cut off.

    Its nova-compute has not restarted: servers that left meanwhile still run there, and the host
    cannot be un-forced.
    """
    host = world.host(name)
    world.subject = host["name"]
    if not host["powered"]:
        raise Conflict(f"host {host['name']} has no power; recover it")
    world.run(
        "UPDATE hosts SET failed_at = NULL WHERE id = ? AND failed_at IS NOT NULL",
        host["id"],
    )


def unplug(world: World, name: str, network: str) -> None:
    """Cut the cable of a network: monitors of this network miss the host, the cloud does not."""
    host = world.host(name)
    world.subject = host["name"]
    world.run("INSERT OR IGNORE INTO cuts VALUES (?, ?)", host["id"], network)


def plug(world: World, name: str, network: str) -> None:
    """Repair the cable of a network; neither power nor a restart of the host does this."""
    host = world.host(name)
    world.subject = host["name"]
    world.run("DELETE FROM cuts WHERE host_id = ? AND network = ?", host["id"], network)


def power_on(world: World, name: str) -> None:
    """Start the host, or at least its nova-compute, again.

    The restart destroys domains of servers that have left and marks their evacuations as cleaned,
    so that the service may be un-forced. Live migrations from the host are forgotten. Servers
    still on the host whose guests were lost with the power or the kernel are found stopped; others
    run on.
    """
    host = world.host(name)
    world.subject = host["name"]
    for server in world.all(
        f"{SERVERS} WHERE s.host_id = ? AND s.task_state = 'migrating'", host["id"]
    ):
        world.abandon_move(server["id"])
        world.run(f"UPDATE servers SET {IDLE} WHERE id = ?", server["id"])
    if not host["powered"] or host["failed_at"] is not None:
        world.run(
            f"UPDATE servers SET status = 'SHUTOFF', {IDLE} WHERE host_id = ?1"
            " AND status = 'ACTIVE' AND dest_host_id IS NULL"
            " AND task_state IS NOT 'deleting'"
            " AND id NOT IN (SELECT server_id FROM domains WHERE host_id = ?1)",
            host["id"],
        )
    world.run(
        "DELETE FROM domains WHERE host_id = ?1"
        " AND server_id NOT IN (SELECT id FROM servers WHERE host_id = ?1)",
        host["id"],
    )
    world.run(
        "UPDATE migrations SET cleaned = 1 WHERE source_id = ? AND status = 'done'",
        host["id"],
    )
    world.run(
        "UPDATE hosts SET powered = 1, failed_at = NULL, restarted_at = ? WHERE id = ?",
        *(world.now, host["id"]),
    )


def crash(world: World, id_or_name: str) -> None:
    """Crash the guest: nothing runs, and the power state is `crashed`.

    `action_s` later, when the cloud has noticed, the status is SHUTOFF. For a server in
    VERIFY_RESIZE the cloud does not notice.
    """
    server = _server(world, id_or_name)
    gone = world.run(
        "DELETE FROM domains WHERE server_id = ? AND host_id IS ?",
        *(server["id"], server["host_id"]),
    )
    if not gone:
        raise Conflict(f"server {server['id']} does not run, so it cannot crash")
    world.run("UPDATE servers SET crashed = 1 WHERE id = ?", server["id"])
    world.run(
        "UPDATE servers SET finish_at = ?, next_status = 'SHUTOFF'"
        " WHERE id = ? AND task_state IS NULL AND status != 'VERIFY_RESIZE'",
        *(world.now + world.settings.action_s, server["id"]),
    )


def lose(world: World, id_or_name: str) -> None:
    """Remove the guest without the cloud's knowledge, whose reports do not change.

    The guest exists again after the cloud starts it.
    """
    server = _server(world, id_or_name)
    world.run("DELETE FROM domains WHERE server_id = ?", server["id"])
    world.run("UPDATE servers SET crashed = 2 WHERE id = ?", server["id"])


def resize(world: World, id_or_name: str) -> None:
    """Put the server into VERIFY_RESIZE; the guest keeps running."""
    server = _server(world, id_or_name)
    if server["status"] != "ACTIVE" or server["task_state"]:
        raise Conflict(f"server {server['id']} is {server['status']}: it cannot be resized")
    world.run("UPDATE servers SET status = 'VERIFY_RESIZE' WHERE id = ?", server["id"])


def _server(world: World, id_or_name: str) -> sqlite3.Row:
    rows = world.all(f"{SERVERS} WHERE s.id = ?1 OR s.name = ?1", id_or_name)
    if not rows:
        raise NotFound(f"simulated cloud: no server {id_or_name}")
    if len(rows) > 1:
        raise Conflict(f"{len(rows)} servers are named {id_or_name}; give an id")
    world.subject = rows[0]["id"]
    return rows[0]
