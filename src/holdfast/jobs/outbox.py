# SPDX-License-Identifier: Apache-2.0
"""The outbox: deliver events to sinks, at least once, from a job row per event and sink.

`leases/events` and `recovery/events` write the rows and decide the content. This module
delivers them. Events of one subject are delivered in the order of their `sequence`.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import DriverError
from holdfast.model.operation import Operation
from holdfast.ports.publishers import ANNOUNCE, PRIORITY, PUBLISHER, LeaseNotice, Sink
from holdfast.runtime.clock import Clock

#: Added to the sink's timeout: the time until the operating system schedules the thread again.
MARGIN_S = 1.0


class Settings(Protocol):
    """The `[publishers]` options, read anew at every use."""

    give_up_h: float


class OutboxJob:
    """The outbox of this process: a gate for each configured sink."""

    def __init__(self, sinks: Sequence[Sink], settings: Settings | None, clock: Clock) -> None:
        self._settings = settings
        self._gates = {sink.name: SinkGate(sink, clock) for sink in sinks}

    def kinds(self) -> dict[str, Kind]:
        """Return the job kind, also with no sinks: rows written for earlier sinks must still
        end."""
        return {ANNOUNCE: _Publish(self._gates, self._settings)}

    def close(self) -> None:
        for gate in self._gates.values():
            gate.sink.close()


#: Per sink: at most 8 sends run at once. After a failure the sink rests 1 s, at most 60 s.
MOST_AT_ONCE = 8
FIRST_REST_S, MOST_REST_S = 1.0, 60.0
#: A waiting event retries 10 ms after the previous waiting event, or at a random time within
#: 2 minutes. Otherwise ten thousand events that wait for a slow sink would delay all other jobs.
APART_S, WHILE_S = 0.01, 120.0


@dataclass
class SinkGate:
    """The gate of a sink: limits concurrent sends, and rests after failures.

    While the sink is unreachable, a single send at a time probes it. All other events wait,
    each with a time at which it may try again.
    """

    sink: Sink
    clock: Clock
    _failures: int = 0
    _inside: int = 0
    _rests_until: float = 0.0
    _queue_until: float = 0.0  # when the last waiting event tries again
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """Start a send; raise NotYet while the sink rests or is busy."""
        with self._lock:
            left = self._rests_until - self.clock.monotonic()
            if left > 0:
                sentence = f"{self.sink.name} is away: waits until it is tried again"
                raise NotYet(sentence, self._wait(left))
            if self._inside >= (1 if self._failures else MOST_AT_ONCE):
                raise NotYet(f"{self.sink.name}: other events are being sent", self._wait(0.1))
            self._inside += 1

    def _wait(self, least: float) -> float:
        now = self.clock.monotonic()
        following = max(self._queue_until + APART_S, now + least)
        if following - now > WHILE_S:
            return random.uniform(WHILE_S / 2, WHILE_S)
        self._queue_until = following
        return following - now

    def leave(self, *, away: bool | None) -> None:
        """End a send. `away` None: the send did not show whether the sink is reachable."""
        with self._lock:
            self._inside -= 1
            if away is None:
                return
            self._failures = self._failures + 1 if away else 0
            rest = min(FIRST_REST_S * 2.0 ** min(self._failures - 1, 16), MOST_REST_S)
            self._rests_until = self.clock.monotonic() + rest if away else 0.0


class _Publish:
    """Job kind: deliver an event to a sink.

    The job drops an event that the sink refuses for good. It retries an event that does not
    reach the sink until `give_up_h` hours have passed.
    """

    name = ANNOUNCE
    retry_forever = False

    def __init__(self, gates: Mapping[str, SinkGate], settings: Settings | None) -> None:
        self._gates = gates
        self._settings = settings

    def steps(self) -> Sequence[Step]:
        return (Step("publish", self.publish, recorded=False),)

    def publish(self, run: Run) -> str:
        payload = run.operation.payload
        gate = self._gates.get(payload["sink"])
        if gate is None:  # configured on another manager only, or removed from the configuration
            raise NotYet(f"{payload['sink']} is not configured here", 60.0)
        gate.enter()
        away: bool | None = None
        try:
            run.hold(gate.sink.timeout_s + MARGIN_S)
            gate.sink.send(notice(payload))
            away = False
        except DriverError as error:
            away = error.retryable
            raise
        finally:
            gate.leave(away=away)
        return f"{gate.sink.name} received {payload['event_type']}"

    def give_up_at(self, operation: Operation) -> datetime | None:
        hours = self._settings.give_up_h if self._settings is not None else 0.0
        return operation.due_at + timedelta(hours=hours)

    def failed(self, run: Run, why: str) -> None:
        """Write nothing: the row records the failure, and the lease is not affected."""


def notice(payload: Mapping[str, Any]) -> LeaseNotice:
    return LeaseNotice(
        publisher=payload.get("publisher", PUBLISHER),
        priority=payload.get("priority", PRIORITY),
        message_id=payload["message_id"],
        event_type=payload["event_type"],
        at=datetime.fromisoformat(payload["at"]),
        payload=payload["payload"],
    )
