# SPDX-License-Identifier: Apache-2.0
"""What happens to machines: power lost, cables cut, power back, a guest that dies."""

import sqlite3

from holdfast.drivers.sim.world import IDLE, SERVERS, World
from holdfast.model.errors import Conflict, NotFound


def power_off(world: World, name: str) -> None:
    """The host loses power: nothing runs on it any more, and the cloud does not know.

    Its servers keep the status they had. What was moving *to* it fails: an evacuated server ends
    ERROR where it came from, an unshelved one stays shelved, one that ran goes on where it is.
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
    """Nothing is heard of the host any more, and nothing reaches it: all on it goes on running.

    To the cloud that looks like a loss of power. What was to be done there waits.
    """
    host = world.host(name)
    world.subject = host["name"]
    world.run(
        "UPDATE hosts SET failed_at = ? WHERE id = ? AND failed_at IS NULL",
        *(world.now, host["id"]),
    )


def hang(world: World, name: str) -> None:
    """The kernel of the host hangs: nothing runs on it any more and nothing is heard of it, but it
    has power. Its servers keep the status they had; what was moving to it waits."""
    host = world.host(name)
    world.subject = host["name"]
    world.run("DELETE FROM domains WHERE host_id = ?", host["id"])
    world.run(
        "UPDATE hosts SET failed_at = COALESCE(failed_at, ?) WHERE id = ?",
        *(world.now, host["id"]),
    )


def reach_again(world: World, name: str) -> None:
    """The host that was cut off is heard again. Its nova-compute has not restarted: what left it
    meanwhile still runs there, and it cannot be un-forced."""
    host = world.host(name)
    world.subject = host["name"]
    if not host["powered"]:
        raise Conflict(f"host {host['name']} has no power; recover it")
    world.run(
        "UPDATE hosts SET failed_at = NULL WHERE id = ? AND failed_at IS NOT NULL",
        host["id"],
    )


def unplug(world: World, name: str, network: str) -> None:
    """The cable of one network is cut: who watches that network misses the host, and the cloud
    notices nothing."""
    host = world.host(name)
    world.subject = host["name"]
    world.run("INSERT OR IGNORE INTO cuts VALUES (?, ?)", host["id"], network)


def plug(world: World, name: str, network: str) -> None:
    """The cable is whole again; no power and no restart of the host does that."""
    host = world.host(name)
    world.subject = host["name"]
    world.run("DELETE FROM cuts WHERE host_id = ? AND network = ?", host["id"], network)


def power_on(world: World, name: str) -> None:
    """The host, or at least its nova-compute, starts again.

    Domains of servers that have left are destroyed and their evacuations marked cleaned, so that
    the service may be un-forced. Live migrations from here are forgotten. Servers still here whose
    guests were lost with the power or the kernel are found stopped; others run on.
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
    """The guest dies: nothing runs, power state `crashed`; `action_s` later, when the cloud has
    noticed, the status is SHUTOFF. Of one that was resized it does not notice."""
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
    """Somebody removes the guest behind the cloud's back, which goes on saying what it said; it is
    there again once the cloud starts it."""
    server = _server(world, id_or_name)
    world.run("DELETE FROM domains WHERE server_id = ?", server["id"])
    world.run("UPDATE servers SET crashed = 2 WHERE id = ?", server["id"])


def resize(world: World, id_or_name: str) -> None:
    """It waits for its user's word, and does what it did."""
    server = _server(world, id_or_name)
    if server["status"] != "ACTIVE" or server["task_state"]:
        raise Conflict(f"server {server['id']} is {server['status']}: it cannot be resized")
    world.run("UPDATE servers SET status = 'VERIFY_RESIZE' WHERE id = ?", server["id"])


def _server(world: World, id_or_name: str) -> sqlite3.Row:
    found = world.all(f"{SERVERS} WHERE s.id = ?1 OR s.name = ?1", id_or_name)
    if not found:
        raise NotFound(f"simulated cloud: no server {id_or_name}")
    if len(found) > 1:
        raise Conflict(f"{len(found)} servers are named {id_or_name}; give an id")
    world.subject = found[0]["id"]
    return found[0]
