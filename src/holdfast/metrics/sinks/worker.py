# SPDX-License-Identifier: Apache-2.0
"""A sink: what is worth sending, on a thread of its own, within a budget.

    lane = SinkLane(Statsd(address), Export(fields, band), Pace(every_s=10.0), clock)
    lane.start()
    lane.offer(snapshot, changes)      # in every pass; never waits

A snapshot that cannot be dealt with in time is dropped, the oldest first, and counted: the next one
has all that matters. Alarms are not: of each the latest state waits until it is sent, and those
that last are said again with every refresh, for nobody knows what became of a datagram. Of more
than a thousand at once the newest are lost, and counted, but never the end of one that was said.
What exceeds the budget of bytes waits too. Time is that of the snapshots.
"""

import logging
import math
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.metrics.fields import Fields, has_changed, is_counter
from holdfast.model.errors import HoldfastError
from holdfast.ports.metric_plugins import ALARM, FIRING, NO_DATA, OK, Outlet, Sample, Transition
from holdfast.ports.metrics import DISK, GUEST, NIC, Entity, Reading, Snapshot, Table
from holdfast.runtime.clock import Clock
from holdfast.runtime.text import printable
from holdfast.runtime.threads import Worker

# Which numbers are worth sending: those that changed, and each of them now and then. Pure.
#
#     export = Export(Fields(["guest.util_ratio"]), Band(0.05, refresh_s=300))
#     for sample in export.due(snapshot):
#         export.sent(sample)
#
# What was sent is compared with what is, so that one that could not be sent is due again. The
# refreshes of many numbers are spread over their interval: not all come at once.


@dataclass(frozen=True)
class Band:
    """A number is sent if it changed by more than `change` of itself, and every `refresh_s`."""

    change: float = 0.05
    refresh_s: float = 300.0


class _Sent(NamedTuple):
    value: float
    fresh_until: float


class Export:
    """One thread at a time."""

    def __init__(self, fields: Fields, band: Band) -> None:
        self._fields = fields
        self._band = band
        self._sent: dict[tuple[str, str], dict[str, _Sent]] = {}

    def due(self, snapshot: Snapshot) -> list[Sample]:
        """What was sent longest ago first, what never was before that."""
        found: list[tuple[float, Sample]] = []
        for kind, table in snapshot.tables.items():
            for reading in table.readings:
                found += self._of(snapshot, reading)
            self._forget(kind, table)
        found.sort(key=lambda one: one[0])
        return [sample for _, sample in found]

    def sent(self, sample: Sample) -> None:
        entity, now = sample.entity, sample.monotonic
        known = self._sent.setdefault((entity.kind, entity.id), {})
        again_s = self._band.refresh_s
        if sample.field not in known:
            again_s *= _share(f"{entity.id} {sample.field}")
        known[sample.field] = _Sent(sample.value, now + again_s)

    def _of(self, snapshot: Snapshot, reading: Reading) -> Iterator[tuple[float, Sample]]:
        entity, now = reading.entity, snapshot.monotonic
        if reading.stale:
            return
        known: Mapping[str, _Sent] = self._sent.get((entity.kind, entity.id), {})
        for field, value in reading.values.items():
            if not self._fields.has(entity.kind, field) or not math.isfinite(value):
                continue
            last = known.get(field)
            until = -math.inf if last is None else last.fresh_until
            if last is not None and now < until and self._is_near(field, value, last.value):
                continue
            step = None
            if last is not None and is_counter(field) and value >= last.value:
                step = value - last.value
            yield until, Sample(snapshot.host, entity, field, value, snapshot.at, now, step)

    def _is_near(self, field: str, value: float, last: float) -> bool:
        return not has_changed(field, value, last, self._band.change)

    def _forget(self, kind: str, table: Table) -> None:
        """Who is no longer there."""
        mine = [key for key in self._sent if key[0] == kind]
        if len(mine) <= len(table.entities):
            return
        there = {one.id for one in table.entities}
        for key in mine:
            if key[1] not in there:
                del self._sent[key]


def _share(text: str) -> float:
    """The same for the same text, anything from 0 to 1."""
    return zlib.crc32(text.encode(errors="replace")) / 2**32


LOG = logging.getLogger(__name__)

#: Snapshots that wait.
MOST_WAITING: Final = 2
#: Alarms that wait, and that are said again.
MOST_ALARMS: Final = 1_000
#: A burst of samples may take as much as this while would.
BURST_S: Final = 60.0
#: A sink that failed is well again when it did not for so long.
WELL_S: Final = 60.0
IDLE_S: Final = 5.0
#: Of alarms at least one datagram goes at once.
DATAGRAM: Final = 1_400

_STATES: Final = {"ok": OK, "firing": FIRING, "no_data": NO_DATA}
_Key = tuple[str, str]


@dataclass(frozen=True)
class Pace:
    every_s: float = 10.0
    refresh_s: float = 300.0  # of alarms that last; `Export` has that of numbers
    alarm_bytes_per_s: float = 1_000.0
    bytes_per_s: float = 1_000.0
    guest_bytes_per_s: float = 200.0  # for each guest so much more


@dataclass
class Tally:
    offered: int = 0  # snapshots
    dropped: int = 0  # of them, since the sink was not ready
    sent: int = 0  # samples, alarms among them
    sent_bytes: int = 0
    held_back: int = 0  # samples, by the budget: they are due again
    failed: int = 0  # times that sending failed
    alarms_lost: int = 0  # more at once than are kept


class Budget:
    """So many bytes a second, and at most `burst` at once; what is larger than that goes when all
    of it is there, and is paid for afterwards."""

    def __init__(self, burst: float) -> None:
        self._left = self._burst = burst
        self._at: float | None = None

    def refill(self, now: float, per_s: float, burst: float) -> None:
        passed_s = now - self._at if self._at is not None else 0.0
        self._at, self._burst = now, burst
        self._left = min(burst, self._left + max(0.0, passed_s) * per_s)

    def spend(self, size: int) -> bool:
        if size > self._left and self._left < self._burst:
            return False
        self._left -= size
        return True


class SinkWorker(Worker):
    """`offer` is for one thread, `turn` for another."""

    def __init__(self, outlet: Outlet, export: Export, pace: Pace, clock: Clock) -> None:
        self.name = outlet.name
        super().__init__(f"sink-{outlet.name}", clock)
        self._outlet = outlet
        self._export = export
        self._pace = pace
        self._lock = threading.Lock()
        self._waiting: deque[Snapshot] = deque()
        self._alarms: dict[_Key, Sample] = {}
        self._standing: dict[_Key, Sample] = {}
        self._said: set[_Key] = set()  # whose end has to be said: the last that was heard is not ok
        self._now = 0.0
        self._due: float | None = None
        self._budget = Budget(float("inf"))
        self._alarm_budget = Budget(DATAGRAM)
        self._failing_since: float | None = None
        self._failed_at = 0.0
        self.tally = Tally()

    # by the thread of the passes

    def offer(self, snapshot: Snapshot, changes: Sequence[Transition]) -> None:
        now = snapshot.monotonic
        with self._lock:
            self._now = now
            self.tally.offered += 1
            for change in changes:
                self._note(change, snapshot)
            if self._due is None or now >= self._due - 1e-6:
                self._due = now + self._pace.every_s
                self._say_again(now)
                self._waiting.append(snapshot)
                if len(self._waiting) > MOST_WAITING:
                    self._waiting.popleft()
                    self.tally.dropped += 1
            if self._waiting or self._alarms:
                self.wake()

    def close(self) -> None:
        """Ends it within a moment, or leaves it to its own slowness."""
        self._stop.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        if not self._thread.is_alive():
            self._outlet.close()

    def _note(self, change: Transition, snapshot: Snapshot) -> None:
        """What a change means for who looks only at how alarms stand."""
        state, key = _STATES.get(change.state), (change.rule, change.entity)
        stood = change.before in ("firing", "no_data") or key in self._said
        if state is None or (state == OK and not stood):
            return
        is_due = key in self._alarms or (state == OK and key in self._said)
        if not is_due and len(self._alarms) >= MOST_ALARMS:
            self.tally.alarms_lost += 1
            return
        self._alarms[key] = _alarm(change, state, snapshot)
        if state == OK:
            self._said.discard(key)
        else:
            self._said.add(key)

    def _say_again(self, now: float) -> None:
        """But not what is over: the word of that may be on its way."""
        for key, sample in self._standing.items():
            is_old = now - sample.monotonic >= self._pace.refresh_s
            if is_old and key in self._said and key not in self._alarms:
                self._alarms[key] = sample._replace(monotonic=now)

    # by its own

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._clock.wait(self._bell, IDLE_S)
            self._bell.clear()
            try:
                self.turn()
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("sink %s: unforeseen", self.name)

    def turn(self) -> None:
        """Send what is to be sent now."""
        with self._lock:
            now, alarms, self._alarms = self._now, self._alarms, {}
        self._send_alarms(alarms, now)
        while not self._stop.is_set():
            with self._lock:
                if not self._waiting:
                    return
                snapshot = self._waiting.popleft()
            self._send_samples(snapshot)

    def _send_alarms(self, alarms: dict[_Key, Sample], now: float) -> None:
        if not alarms:
            return
        per_s = self._pace.alarm_bytes_per_s
        self._alarm_budget.refill(now, per_s, max(per_s, DATAGRAM))
        chosen = self._affordable(alarms.values(), self._alarm_budget)
        if not chosen or not self._deliver([line for _, line in chosen], now):
            chosen = []
        done = {(one.about["rule"], one.entity.id) for one, _ in chosen}
        with self._lock:
            for key, sample in alarms.items():
                if key not in done:
                    self._alarms.setdefault(key, sample)  # unless there is later news
                elif sample.value == OK:
                    self._standing.pop(key, None)
                elif key in self._standing or len(self._standing) < MOST_ALARMS:
                    self._standing[key] = sample

    def _send_samples(self, snapshot: Snapshot) -> None:
        pace, now = self._pace, snapshot.monotonic
        table = snapshot.tables.get(GUEST)
        guests = len(table.entities) if table is not None else 0
        per_s = pace.bytes_per_s + pace.guest_bytes_per_s * guests
        self._budget.refill(now, per_s, per_s * BURST_S)
        chosen = self._affordable(self._export.due(snapshot), self._budget)
        lines = [line for _, line in chosen if line]
        if lines and not self._deliver(lines, now):
            return
        for sample, _ in chosen:
            self._export.sent(sample)

    def _affordable(self, samples: Iterable[Sample], budget: Budget) -> list[tuple[Sample, bytes]]:
        found: list[tuple[Sample, bytes]] = []
        left = 0
        for sample in samples:
            line = b"" if left else self._outlet.encode(sample)
            if left or not budget.spend(len(line) + 1):  # and what stands between two of them
                left += 1
            else:
                found.append((sample, line))
        self.tally.held_back += left
        return found

    def _deliver(self, lines: Sequence[bytes], now: float) -> bool:
        try:
            self._outlet.send(lines, now)
        except HoldfastError as error:
            self.tally.failed += 1
            self._failed_at = now
            if self._failing_since is None:
                self._failing_since = now
                LOG.error("sink %s: %s; it is tried again", self.name, error.message)
            return False
        self.tally.sent += len(lines)
        self.tally.sent_bytes += sum(map(len, lines)) + len(lines)
        if self._failing_since is not None and now - self._failed_at >= WELL_S:
            LOG.info("sink %s: all is well again", self.name)
            self._failing_since = None
        return True


def _alarm(change: Transition, state: float, snapshot: Snapshot) -> Sample:
    guest = change.entity.partition("/")[0] if change.kind in (DISK, NIC) else ""
    entity = Entity(change.kind, change.entity, change.name, change.project, guest=guest)
    about = {"rule": change.rule, "severity": change.severity, "state": change.state}
    if change.value is not None:
        about |= {"value": f"{change.value:g}", "threshold": f"{change.threshold:g}"}
    about = {name: printable(text) for name, text in about.items()}
    about["rule"] = change.rule
    return Sample(snapshot.host, entity, ALARM, state, change.at, snapshot.monotonic, about=about)
