# SPDX-License-Identifier: Apache-2.0
"""Clocks: the only module that reads the machine's clocks; other modules get a `Clock` argument.

`now()` is timezone-aware UTC and may jump. `monotonic()` never jumps, so every wait and every
deadline uses it.
"""

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time source of all parts; tests pass their own."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def wait(self, wake_event: threading.Event, seconds: float) -> bool:
        """Sleep until the event is set (True) or the seconds are over (False)."""
        ...


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return CLOCK_BOOTTIME, which runs during suspend, because claims age then too."""
        return time.clock_gettime(_BOOTTIME)

    def wait(self, wake_event: threading.Event, seconds: float) -> bool:
        return wake_event.wait(max(0.0, seconds))
