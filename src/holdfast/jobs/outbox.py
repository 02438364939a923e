# SPDX-License-Identifier: Apache-2.0
"""News on its way to the sinks: a row of work for each piece and sink, told at least once.

Who writes such a row decides what is told (`leases/events`, `recovery/events`); here it is brought
there. Those of one subject are told in the order of their `sequence`.
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

#: Beyond the sink's own limit: the time it takes a thread to be scheduled again.
MARGIN_S = 1.0


class Settings(Protocol):
    """[lease_notifications], read anew each time."""

    give_up_h: float


class OutboxJob:
    """The ways to all sinks of this process."""

    def __init__(self, sinks: Sequence[Sink], settings: Settings | None, clock: Clock) -> None:
        self._settings = settings
        self._doors = {sink.name: SinkGate(sink, clock) for sink in sinks}

    def kinds(self) -> dict[str, Kind]:
        """Also with no sinks: what was written when there were some must come to its end."""
        return {ANNOUNCE: _Publish(self._doors, self._settings)}

    def close(self) -> None:
        for door in self._doors.values():
            door.sink.close()


#: Of one sink: so many sends at once, so long a rest after failures.
MOST_AT_ONCE = 8
FIRST_REST_S, MOST_REST_S = 1.0, 60.0
#: Who waits outside comes back so long after the one before, or somewhen within a while: ten
#: thousand that wait for a slow sink must not keep all other work waiting by asking.
APART_S, WHILE_S = 0.01, 120.0


@dataclass
class SinkGate:
    """The way to one sink. While it is away a try now and then finds out; all others wait
    outside, each with a time at which it may ask again."""

    sink: Sink
    clock: Clock
    _failures: int = 0
    _inside: int = 0
    _rests_until: float = 0.0
    _line_until: float = 0.0  # when the last of those outside asks again
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """NotYet when it is not our turn."""
        with self._lock:
            left = self._rests_until - self.clock.monotonic()
            if left > 0:
                said = f"{self.sink.name} is away: waits until it is tried again"
                raise NotYet(said, self._wait(left))
            if self._inside >= (1 if self._failures else MOST_AT_ONCE):
                raise NotYet(f"{self.sink.name}: others are being told", self._wait(0.1))
            self._inside += 1

    def _wait(self, least: float) -> float:
        now = self.clock.monotonic()
        following = max(self._line_until + APART_S, now + least)
        if following - now > WHILE_S:
            return random.uniform(WHILE_S / 2, WHILE_S)
        self._line_until = following
        return following - now

    def leave(self, *, away: bool | None) -> None:
        """`away` None: it was not found out."""
        with self._lock:
            self._inside -= 1
            if away is None:
                return
            self._failures = self._failures + 1 if away else 0
            rest = min(FIRST_REST_S * 2.0 ** min(self._failures - 1, 16), MOST_REST_S)
            self._rests_until = self.clock.monotonic() + rest if away else 0.0


class _Publish:
    """One piece of news to one sink. What the sink refuses for good is let go; what does not reach
    it is tried again for hours."""

    name = ANNOUNCE
    retry_forever = False

    def __init__(self, doors: Mapping[str, SinkGate], settings: Settings | None) -> None:
        self._doors = doors
        self._settings = settings

    def steps(self) -> Sequence[Step]:
        return (Step("tell", self.publish, recorded=False),)

    def publish(self, run: Run) -> str:
        told = run.operation.payload
        door = self._doors.get(told["sink"])
        if door is None:  # of another manager's configuration, or of none any more
            raise NotYet(f"{told['sink']} is not configured here", 60.0)
        door.enter()
        away: bool | None = None
        try:
            run.hold(door.sink.timeout_s + MARGIN_S)
            door.sink.send(notice(told))
            away = False
        except DriverError as error:
            away = error.retryable
            raise
        finally:
            door.leave(away=away)
        return f"{door.sink.name} was told of {told['event_type']}"

    def give_up_at(self, operation: Operation) -> datetime | None:
        hours = self._settings.give_up_h if self._settings is not None else 0.0
        return operation.due_at + timedelta(hours=hours)

    def failed(self, run: Run, why: str) -> None:
        """The row says so; the lease is none the worse."""


def notice(told: Mapping[str, Any]) -> LeaseNotice:
    return LeaseNotice(
        publisher=told.get("publisher", PUBLISHER),
        priority=told.get("priority", PRIORITY),
        message_id=told["message_id"],
        event_type=told["event_type"],
        at=datetime.fromisoformat(told["at"]),
        payload=told["payload"],
    )
