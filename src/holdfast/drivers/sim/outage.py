# SPDX-License-Identifier: Apache-2.0
"""Power and cables of simulated hosts: failures and their repair, the fence, the membership."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from holdfast.drivers.fence.device import PORT as FENCE
from holdfast.drivers.fence.device import Device
from holdfast.drivers.sim.file import File
from holdfast.drivers.sim.wire import FINE, FaultDecision, Wire
from holdfast.drivers.sim.world import IDLE, SERVERS, World
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.ports.fence import OFF, ON
from holdfast.ports.membership import Members, Proof
from holdfast.runtime.clock import Clock, SystemClock


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


# The fence of the simulated cloud: cuts the power of a host in the cloud's file.
#
# The fence has its own faults, which can be set at run time. Faults of calls affect it only if
# `only_calls` names `fence.power`, `fence.off` or `fence.on`: a BMC does not fail because the
# cloud's API does. With `fence_lies` the fence accepts orders and does nothing.
#
#     simulator.change(only_calls=["fence.off"], failure_rate=1.0)
#     simulator.change(fence_lies=True)


class FenceWire(Wire):
    """A wire with faults only for calls named in `only_calls`."""

    def _decide_fault(self, world: World, name: str) -> FaultDecision:
        decision = super()._decide_fault(world, name)
        return decision if name in world.settings.only_calls else FINE


class SimFence:
    """A Fence for all hosts of the file; safe from many threads and several processes."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        call_timeout_s: float = 30.0,
        fault: str = "",
        seed: int | None = None,
    ) -> None:
        self.call_timeout_s = call_timeout_s
        self._fault = fault
        self._file = File(path, clock)
        self._wire = FenceWire(self._file, clock, call_timeout_s, seed)

    def power(self, host: str) -> str:
        self._break("fence.power")
        with _as_fence_error(), self._wire.call("fence.power", host) as world:
            return ON if world.host(host)["powered"] else OFF

    def off(self, host: str) -> None:
        self._break("fence.off")
        with _as_fence_error(), self._wire.call("fence.off", host) as world:
            if not self._lies(world):
                power_off(world, host)

    def on(self, host: str) -> None:
        self._break("fence.on")
        with _as_fence_error(), self._wire.call("fence.on", host) as world:
            if not self._lies(world) and not world.host(host)["powered"]:
                power_on(world, host)

    def how(self, _host: str) -> str | None:
        return "sim"

    def accepts_risk(self, _host: str) -> bool:
        return False

    def close(self) -> None:
        self._file.close()

    def _lies(self, world: World) -> bool:
        return world.settings.fence_lies or self._fault == "lies"

    def _break(self, name: str) -> None:
        if self._fault == "fails":
            raise DriverError(FENCE, f"{name}: failed, nothing was changed", retryable=True)
        if self._fault == "hangs":
            with _as_fence_error():
                self._wire.time_out(name)


@contextmanager
def _as_fence_error() -> Iterator[None]:
    """Convert errors of the cloud's file into errors of the fence port."""
    try:
        yield
    except DriverError as error:
        why = error.message.removeprefix(f"{error.port}: ")
        raise DriverError(FENCE, why, retryable=error.retryable) from error


def connect_fence(device: Device, conf: Any, clock: Clock) -> SimFence:
    return SimFence(conf.sim.database, clock, call_timeout_s=device.timeout_s, fault=device.fault)


# Membership of the simulated cloud: each host is a node on every network.
#
# A host is down on a network if its cable there is cut (`holdfast sim cut HOST --network storage`),
# and on all networks if it has no power or is cut off. There is no cluster that could lose its
# leader, and the driver never loses its view.


MEMBERSHIP: Final = "membership"
LEADER: Final = "sim"
#: Interval of polls of the file while a caller waits.
POLL_S: Final = 0.2
_STATES = (
    "SELECT h.name, h.failed_at IS NOT NULL OR EXISTS (SELECT 1 FROM cuts c"
    " WHERE c.host_id = h.id AND c.network = ?) AS down FROM hosts h ORDER BY h.name"
)


class SimMembership:
    """The simulated driver of the membership port."""

    def __init__(self, network: str, path: str, clock: Clock) -> None:
        self.network = network
        self._clock = clock
        self._file = File(path, clock)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._last: dict[str, str] = {}
        self._version = 0

    def poll(self, after: int | None, wait_s: float) -> Members:
        until = self._clock.monotonic() + wait_s
        while True:
            members = self._now()
            left = until - self._clock.monotonic()
            if after is None or members.version != after or left <= 0:
                return members
            if self._clock.wait(self._closed, min(POLL_S, left)):
                raise self._failed("we are closing")

    def prove(self) -> Proof:
        return Proof(LEADER, "", servers_alive=1, servers=1, gossip=self._now().states)

    def close(self) -> None:
        self._closed.set()
        self._file.close()

    def _now(self) -> Members:
        """Return the present members; the version counts the changes seen by this object."""
        if self._closed.is_set():
            raise self._failed("we are closing")
        try:
            with self._file.reading() as db:
                rows = db.execute(_STATES, (self.network,)).fetchall()
        except DriverError as error:
            # The driver may have been closed during the poll.
            why = "we are closing" if self._closed.is_set() else error.message
            raise self._failed(why) from error
        states = {row["name"]: DOWN if row["down"] else UP for row in rows}
        with self._lock:
            if states != self._last or self._version == 0:
                self._last, self._version = states, self._version + 1
            return Members(states, self._version, LEADER)

    def _failed(self, why: str) -> DriverError:
        return DriverError(MEMBERSHIP, f"{self.network}: {why}", retryable=True)


def connect_membership(conf: Any, network: str) -> SimMembership:
    return SimMembership(network, conf.sim.database, SystemClock())
