# SPDX-License-Identifier: Apache-2.0
"""Guests of a host of the simulated cloud: reports starts, stops and crashes.

`holdfast sim crash-server` crashes a guest. The address is the host and the cloud's file:
`cmp-1@/var/lib/holdfast/sim.db`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.drivers import PORT
from holdfast.drivers.sim.file import File
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports.guests import LIFECYCLE, Event, Guest, Listener
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

#: Interval of polls of the file.
POLL_S: Final = 0.1
#: Interval at which the driver reports all guests, as the libvirt driver does.
READ_EVERY_S: Final = 15.0
_COLUMNS = "s.id, s.name, s.project_id, s.flavor, s.crashed, d.server_id IS NOT NULL AS runs"
#: Guests that the cloud lists on the host, except removed ones, and guests that really run
#: there.
_GUESTS = (
    f"SELECT {_COLUMNS} FROM hosts h JOIN servers s ON s.host_id = h.id"
    " LEFT JOIN domains d ON d.server_id = s.id AND d.host_id = h.id"
    " WHERE h.name = ?1 AND (d.server_id IS NOT NULL OR s.crashed < 2)"
    f" UNION SELECT {_COLUMNS} FROM hosts h JOIN domains d ON d.host_id = h.id"
    " JOIN servers s ON s.id = d.server_id WHERE h.name = ?1"
)


@dataclass(frozen=True)
class _Seen:
    name: str
    runs: bool
    crashed: bool
    metadata: Mapping[str, str]

    @property
    def state(self) -> tuple[str, str]:
        if self.runs:
            return "running", "booted"
        return "shutoff", "crashed" if self.crashed else "destroyed"


class SimGuests:
    """The simulated driver of the guests port."""

    def __init__(self, host: str, path: str, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._file = File(path, clock)
        self._before: dict[str, _Seen] | None = None  # guests at the last look
        self._due = 0.0  # monotonic time of the next report of all guests
        self._why = "the cloud has not been looked at yet"
        self._worker = Worker(
            "guests-sim", clock, self._turn, retry_s=POLL_S, failed=self._failed, stop_s=5.0
        )
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._worker.start()

    def close(self) -> None:
        self._worker.stop()
        self._file.close()

    def read(self) -> tuple[Sequence[Guest], datetime]:
        at = self._clock.now()
        return _guests(self._seen()), at

    def why_deaf(self) -> str:
        return self._why

    def _turn(self) -> float:
        self._before = self._look(self._before)
        self._why = ""
        return POLL_S

    def _failed(self, error: Exception) -> None:
        unforeseen = "something unforeseen, see the log"
        self._why = error.message if isinstance(error, HoldfastError) else unforeseen
        self._before = None

    def _seen(self) -> dict[str, _Seen]:
        with self._file.looking() as db:
            found = db.execute(_GUESTS, (self._host,)).fetchall()
        return {
            row["id"]: _Seen(
                row["name"],
                bool(row["runs"]),
                bool(row["crashed"]),
                {"project": row["project_id"], "flavor": row["flavor"]},
            )
            for row in found
        }

    def _look(self, before: dict[str, _Seen] | None) -> dict[str, _Seen]:
        assert self._listener is not None
        at = self._clock.now()
        seen = self._seen()
        if before is None or self._clock.monotonic() >= self._due:
            self._listener.reconciled(_guests(seen), at)
            self._due = self._clock.monotonic() + READ_EVERY_S
        if before is None:
            return seen
        for uuid in sorted({*before, *seen}):
            for detail, reason in _changes(before.get(uuid), seen.get(uuid)):
                known = seen.get(uuid) or before[uuid]
                event = Event(
                    uuid, known.name, LIFECYCLE, at, detail, reason, metadata=known.metadata
                )
                self._listener.heard(event)
        return seen


def _guests(seen: Mapping[str, _Seen]) -> Sequence[Guest]:
    return [Guest(uuid, one.name, *one.state, metadata=one.metadata) for uuid, one in seen.items()]


def _changes(old: _Seen | None, new: _Seen | None) -> list[tuple[str, str]]:
    """Return the lifecycle events that libvirt would send for a change."""
    said = []
    ran, runs = old is not None and old.runs, new is not None and new.runs
    if old is None:
        said.append(("defined", "added"))
    if ran and not runs:
        crashed = new is not None and new.crashed
        said.append(("stopped", "failed" if crashed else "destroyed"))
    if runs and not ran:
        said.append(("started", "booted"))
    if new is None:
        said.append(("undefined", "removed"))
    return said


def connect(address: str, clock: Clock) -> SimGuests:
    host, at, path = address.partition("@")
    if not (host and at and path):
        raise DriverError(PORT, f"{address!r}: write HOST@FILE of the cloud", retryable=False)
    return SimGuests(host, path, clock)
