# SPDX-License-Identifier: Apache-2.0
"""Membership of the simulated cloud: each host is a node on every network.

A host is down on a network if its cable there is cut (`holdfast sim cut HOST --network storage`),
and on all networks if it has no power or is cut off. There is no cluster that could lose its
leader, and the driver never loses its view.
"""

import threading
from typing import Any, Final

from holdfast.drivers.sim.file import File
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import DriverError
from holdfast.ports.membership import Members, Proof
from holdfast.runtime.clock import Clock, SystemClock

PORT: Final = "membership"
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
            with self._file.looking() as db:
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
        return DriverError(PORT, f"{self.network}: {why}", retryable=True)


def connect(conf: Any, network: str) -> SimMembership:
    return SimMembership(network, conf.sim.database, SystemClock())
