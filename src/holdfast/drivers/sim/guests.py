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
class _GuestState:
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
        self._before: dict[str, _GuestState] | None = None  # guests at the last poll
        self._due = 0.0  # monotonic time of the next report of all guests
        self._why = "the simulated cloud has not been read yet"
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
        return _guests(self._read_guests()), at

    def why_deaf(self) -> str:
        return self._why

    def _turn(self) -> float:
        self._before = self._poll(self._before)
        self._why = ""
        return POLL_S

    def _failed(self, error: Exception) -> None:
        unforeseen = "something unforeseen, see the log"
        self._why = error.message if isinstance(error, HoldfastError) else unforeseen
        self._before = None

    def _read_guests(self) -> dict[str, _GuestState]:
        with self._file.reading() as db:
            rows = db.execute(_GUESTS, (self._host,)).fetchall()
        return {
            row["id"]: _GuestState(
                row["name"],
                bool(row["runs"]),
                bool(row["crashed"]),
                {"project": row["project_id"], "flavor": row["flavor"]},
            )
            for row in rows
        }

    def _poll(self, before: dict[str, _GuestState] | None) -> dict[str, _GuestState]:
        assert self._listener is not None
        at = self._clock.now()
        guests = self._read_guests()
        if before is None or self._clock.monotonic() >= self._due:
            self._listener.reconciled(_guests(guests), at)
            self._due = self._clock.monotonic() + READ_EVERY_S
        if before is None:
            return guests
        for uuid in sorted({*before, *guests}):
            for detail, reason in _changes(before.get(uuid), guests.get(uuid)):
                guest = guests.get(uuid) or before[uuid]
                event = Event(
                    uuid, guest.name, LIFECYCLE, at, detail, reason, metadata=guest.metadata
                )
                self._listener.heard(event)
        return guests


def _guests(guests: Mapping[str, _GuestState]) -> Sequence[Guest]:
    return [
        Guest(uuid, guest.name, *guest.state, metadata=guest.metadata)
        for uuid, guest in guests.items()
    ]


def _changes(old: _GuestState | None, new: _GuestState | None) -> list[tuple[str, str]]:
    """Return the lifecycle events that libvirt would send for a change."""
    events = []
    ran, runs = old is not None and old.runs, new is not None and new.runs
    if old is None:
        events.append(("defined", "added"))
    if ran and not runs:
        crashed = new is not None and new.crashed
        events.append(("stopped", "failed" if crashed else "destroyed"))
    if runs and not ran:
        events.append(("started", "booted"))
    if new is None:
        events.append(("undefined", "removed"))
    return events


def connect(address: str, clock: Clock) -> SimGuests:
    host, at, path = address.partition("@")
    if not (host and at and path):
        raise DriverError(PORT, f"{address!r}: write HOST@FILE of the cloud", retryable=False)
    return SimGuests(host, path, clock)
