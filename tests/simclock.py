# SPDX-License-Identifier: Apache-2.0
"""Time that a test turns by hand: the Clock port without a machine's clock behind it.

clock = SimClock()                  # a wait moves time at once: one thread, no real sleeping
clock = SimClock(by_hand=True)      # a wait blocks until `advance` passes it or its bell rings
clock.settle(); clock.advance(60)   # once somebody sleeps, let a minute pass
"""

import threading
import time
from datetime import UTC, datetime, timedelta

from tests.processes import PATIENCE_S

#: A Tuesday, ten past nothing.
EPOCH = datetime(2030, 1, 1, 10, 0, tzinfo=UTC)


class SimClock:
    """Whole microseconds inside, so that what is due at a moment is due at that moment."""

    def __init__(self, start: datetime = EPOCH, *, by_hand: bool = False) -> None:
        self._start = start
        self._by_hand = by_hand
        self._passed_us = 0
        self._lock = threading.Lock()
        self._asleep: dict[int, int] = {}
        self.waits: list[float] = []

    def now(self) -> datetime:
        with self._lock:
            return self._start + timedelta(microseconds=self._passed_us)

    def monotonic(self) -> float:
        with self._lock:
            return self._passed_us / 1e6

    def wait(self, wake_event: threading.Event, seconds: float) -> bool:
        """Let the seconds pass, or sleep until somebody else lets them pass."""
        self.waits.append(seconds)
        if not self._by_hand:
            if not wake_event.is_set():
                self.advance(seconds)
            return wake_event.is_set()
        me = threading.get_ident()
        with self._lock:
            until = self._passed_us + _us(seconds)
            self._asleep[me] = until
        try:
            while not wake_event.wait(0.0005) and not self._passed(until):
                pass
        finally:
            with self._lock:
                del self._asleep[me]
        return wake_event.is_set()

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._passed_us += _us(seconds)

    def advance_to(self, when: datetime) -> None:
        self.advance((when - self.now()).total_seconds())

    def settle(self, sleepers: int = 1) -> float:
        """Wait (in real time, briefly) until so many threads sleep: how long the first will."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with self._lock:
                if len(self._asleep) >= sleepers:
                    return (min(self._asleep.values()) - self._passed_us) / 1e6
            time.sleep(0.0005)
        raise AssertionError(f"{len(self._asleep)} threads sleep, not {sleepers}")

    def overslept(self) -> bool:
        """Whether somebody still sleeps whose time is over."""
        with self._lock:
            return any(until <= self._passed_us for until in self._asleep.values())

    def _passed(self, until: int) -> bool:
        with self._lock:
            return self._passed_us >= until


def _us(seconds: float) -> int:
    """Never nothing for something: a wait that is too short to count must not repeat forever."""
    whole = round(seconds * 1e6)
    return whole if whole > 0 or seconds <= 0 else 1
