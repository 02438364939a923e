# SPDX-License-Identifier: Apache-2.0
"""Sink worker: sends changed samples and alarms to a metric sink within a byte budget.

    worker = SinkWorker(Statsd(host, port, names), Export(fields, band), Pace(10.0), clock)
    worker.start()
    worker.offer(snapshot, changes)    # in every pass; never waits

If the sink is too slow, the oldest waiting snapshot is dropped and counted: the next snapshot
has all that matters. Alarms are not dropped: the latest state of each alarm waits until it is
sent. Standing alarms are repeated with every refresh, because a datagram may get lost. With
more than 1000 alarms at once the newest are lost and counted, but never the end of an alarm
that was sent. Samples that exceed the byte budget wait too. All times are those of the
snapshots.
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

# Selection of samples.


@dataclass(frozen=True)
class Band:
    """Send threshold for values.

    A value is sent if it changed by more than `change` (a ratio), and every `refresh_s`
    seconds.
    """

    change: float = 0.05
    refresh_s: float = 300.0


class _Sent(NamedTuple):
    value: float
    fresh_until: float


class Export:
    """Selects the samples worth sending: changed values, and each value once per refresh.

        export = Export(Fields(["guest.util_ratio"]), Band(0.05, refresh_s=300))
        for sample in export.due(snapshot):
            export.sent(sample)

    A value is compared with the last value sent, so a sample that could not be sent is due
    again. Refreshes of many values are spread over the interval. Only one thread at a time may
    use an instance. No input or output.
    """

    def __init__(self, fields: Fields, band: Band) -> None:
        self._fields = fields
        self._band = band
        self._sent: dict[tuple[str, str], dict[str, _Sent]] = {}

    def due(self, snapshot: Snapshot) -> list[Sample]:
        """Return the due samples: never sent values first, then those sent longest ago."""
        samples: list[tuple[float, Sample]] = []
        for kind, table in snapshot.tables.items():
            for reading in table.readings:
                samples += self._due_of(snapshot, reading)
            self._forget(kind, table)
        samples.sort(key=lambda entry: entry[0])
        return [sample for _, sample in samples]

    def sent(self, sample: Sample) -> None:
        """Record that a sample was sent."""
        entity, now = sample.entity, sample.monotonic
        sents = self._sent.setdefault((entity.kind, entity.id), {})
        again_s = self._band.refresh_s
        if sample.field not in sents:
            again_s *= _share(f"{entity.id} {sample.field}")
        sents[sample.field] = _Sent(sample.value, now + again_s)

    def _due_of(self, snapshot: Snapshot, reading: Reading) -> Iterator[tuple[float, Sample]]:
        entity, now = reading.entity, snapshot.monotonic
        if reading.stale:
            return
        sents: Mapping[str, _Sent] = self._sent.get((entity.kind, entity.id), {})
        for field, value in reading.values.items():
            if not self._fields.has(entity.kind, field) or not math.isfinite(value):
                continue
            last = sents.get(field)
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
        """Forget entities that no longer exist."""
        mine = [key for key in self._sent if key[0] == kind]
        if len(mine) <= len(table.entities):
            return
        there = {entity.id for entity in table.entities}
        for key in mine:
            if key[1] not in there:
                del self._sent[key]


def _share(text: str) -> float:
    """Map a text to a fixed number between 0 and 1."""
    return zlib.crc32(text.encode(errors="replace")) / 2**32


LOG = logging.getLogger(__name__)

#: Largest number of waiting snapshots.
MOST_WAITING: Final = 2
#: Largest number of waiting alarms, and of alarms that are repeated.
MOST_ALARMS: Final = 1_000
#: A burst of samples may use the budget of this many seconds.
BURST_S: Final = 60.0
#: A failed sink is well again after this many seconds without a failure.
WELL_S: Final = 60.0
IDLE_S: Final = 5.0
#: Size of a datagram; alarms may always send at least this many bytes at once.
DATAGRAM: Final = 1_400

_STATES: Final = {"ok": OK, "firing": FIRING, "no_data": NO_DATA}
_Key = tuple[str, str]


@dataclass(frozen=True)
class Pace:
    """Interval and byte budget of a sink."""

    interval_s: float = 10.0
    refresh_s: float = 300.0  # of firing alarms; `Band` has the refresh of values
    alarm_bytes_per_s: float = 1_000.0
    bytes_per_s: float = 1_000.0
    guest_bytes_per_s: float = 200.0  # in addition, for each guest


@dataclass
class Tally:
    """Counters of a sink."""

    offered: int = 0  # snapshots
    dropped: int = 0  # snapshots, because the sink was busy
    sent: int = 0  # samples, including alarms
    sent_bytes: int = 0
    held_back: int = 0  # samples beyond the budget: they are due again
    failed: int = 0  # failed send calls
    alarms_lost: int = 0  # alarms beyond MOST_ALARMS


class Budget:
    """Token bucket of bytes with capacity `burst`.

    A piece larger than `burst` is sent when the bucket is full, and paid for afterwards.
    """

    def __init__(self, burst: float) -> None:
        self._left = self._burst = burst
        self._at: float | None = None

    def refill(self, now: float, per_s: float, burst: float) -> None:
        passed_s = now - self._at if self._at is not None else 0.0
        self._at, self._burst = now, burst
        self._left = min(burst, self._left + max(0.0, passed_s) * per_s)

    def spend(self, size: int) -> bool:
        """Take `size` bytes; return False if the budget does not suffice."""
        if size > self._left and self._left < self._burst:
            return False
        self._left -= size
        return True


class SinkWorker(Worker):
    """Thread of a sink. The pass thread calls `offer`; the worker's thread calls `turn`."""

    def __init__(self, outlet: Outlet, export: Export, pace: Pace, clock: Clock) -> None:
        self.name = outlet.name
        super().__init__(f"sink-{outlet.name}", clock, self.turn, stop_s=2.0)
        self._outlet = outlet
        self._export = export
        self._pace = pace
        self._lock = threading.Lock()
        self._waiting: deque[Snapshot] = deque()
        self._alarms: dict[_Key, Sample] = {}
        self._sent_alarms: dict[_Key, Sample] = {}
        self._raised: set[_Key] = set()  # alarms whose end must be sent: their last state is not ok
        self._now = 0.0
        self._due: float | None = None
        self._budget = Budget(float("inf"))
        self._alarm_budget = Budget(DATAGRAM)
        self._failing_since: float | None = None
        self._failed_at = 0.0
        self.tally = Tally()

    # called by the pass thread

    def offer(self, snapshot: Snapshot, changes: Sequence[Transition]) -> None:
        """Queue the snapshot and its alarm changes without waiting."""
        now = snapshot.monotonic
        with self._lock:
            self._now = now
            self.tally.offered += 1
            for change in changes:
                self._queue_alarm(change, snapshot)
            if self._due is None or now >= self._due - 1e-6:
                self._due = now + self._pace.interval_s
                self._refresh_alarms(now)
                self._waiting.append(snapshot)
                if len(self._waiting) > MOST_WAITING:
                    self._waiting.popleft()
                    self.tally.dropped += 1
            if self._waiting or self._alarms:
                self.wake()

    def close(self) -> None:
        """Stop the thread; wait at most 2 s."""
        self.stop()
        if not self.alive:
            self._outlet.close()

    def _queue_alarm(self, change: Transition, snapshot: Snapshot) -> None:
        """Queue the new state of an alarm.

        A receiver sees only states, so changes that do not alter a sent state are left out.
        """
        state, key = _STATES.get(change.state), (change.rule, change.entity)
        was_raised = change.before in ("firing", "no_data") or key in self._raised
        if state is None or (state == OK and not was_raised):
            return
        is_due = key in self._alarms or (state == OK and key in self._raised)
        if not is_due and len(self._alarms) >= MOST_ALARMS:
            self.tally.alarms_lost += 1
            return
        self._alarms[key] = _alarm(change, state, snapshot)
        if state == OK:
            self._raised.discard(key)
        else:
            self._raised.add(key)

    def _refresh_alarms(self, now: float) -> None:
        """Queue firing alarms for a refresh.

        Ended alarms are left out: their end may be queued already.
        """
        for key, sample in self._sent_alarms.items():
            is_old = now - sample.monotonic >= self._pace.refresh_s
            if is_old and key in self._raised and key not in self._alarms:
                self._alarms[key] = sample._replace(monotonic=now)

    # called by the worker's thread

    def turn(self) -> float:
        """Send the queued alarms, then the samples of the queued snapshots."""
        with self._lock:
            now, alarms, self._alarms = self._now, self._alarms, {}
        self._send_alarms(alarms, now)
        while not self._stop.is_set():
            with self._lock:
                if not self._waiting:
                    break
                snapshot = self._waiting.popleft()
            self._send_samples(snapshot)
        return IDLE_S

    def _send_alarms(self, alarms: dict[_Key, Sample], now: float) -> None:
        if not alarms:
            return
        per_s = self._pace.alarm_bytes_per_s
        self._alarm_budget.refill(now, per_s, max(per_s, DATAGRAM))
        chosen = self._affordable(alarms.values(), self._alarm_budget)
        if not chosen or not self._deliver([line for _, line in chosen], now):
            chosen = []
        done = {(sample.about["rule"], sample.entity.id) for sample, _ in chosen}
        with self._lock:
            for key, sample in alarms.items():
                if key not in done:
                    self._alarms.setdefault(key, sample)  # unless a newer state is queued
                elif sample.value == OK:
                    self._sent_alarms.pop(key, None)
                elif key in self._sent_alarms or len(self._sent_alarms) < MOST_ALARMS:
                    self._sent_alarms[key] = sample

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
        """Encode samples until the budget is used up; the rest is due again."""
        affordable: list[tuple[Sample, bytes]] = []
        left = 0
        for sample in samples:
            line = b"" if left else self._outlet.encode(sample)
            if left or not budget.spend(len(line) + 1):  # plus the separator
                left += 1
            else:
                affordable.append((sample, line))
        self.tally.held_back += left
        return affordable

    def _deliver(self, lines: Sequence[bytes], now: float) -> bool:
        """Send lines; log the first failure and the recovery. Return whether sending worked."""
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
    """Build the sample of an alarm change."""
    guest = change.entity.partition("/")[0] if change.kind in (DISK, NIC) else ""
    entity = Entity(change.kind, change.entity, change.name, change.project, guest=guest)
    about = {"rule": change.rule, "severity": change.severity, "state": change.state}
    if change.value is not None:
        about |= {"value": f"{change.value:g}", "threshold": f"{change.threshold:g}"}
    about = {name: printable(text) for name, text in about.items()}
    about["rule"] = change.rule
    return Sample(snapshot.host, entity, ALARM, state, change.at, snapshot.monotonic, about=about)
