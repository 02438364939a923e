# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: the only place that reads the machine's clocks.

`now()` is aware UTC and may jump; `monotonic()` never does, so every wait and every deadline of our
own uses it.
"""

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def wait(self, bell: threading.Event, seconds: float) -> bool:
        """Sleep until the bell rings (True) or the seconds are over (False)."""
        ...


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Goes on while the machine sleeps: a claim ages then too."""
        return time.clock_gettime(_BOOTTIME)

    def wait(self, bell: threading.Event, seconds: float) -> bool:
        return bell.wait(max(0.0, seconds))
