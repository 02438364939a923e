# SPDX-License-Identifier: Apache-2.0
"""What tests of the simulated cloud share: time that is turned by hand, servers, processes."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import holdfast
from holdfast.drivers.sim.simulator import Simulator
from holdfast.ports.cloud import Server

SRC = str(Path(holdfast.__file__).parents[1])


class HandClock:
    """Time that moves when somebody waits or turns it."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    def wait(self, wake_event: threading.Event, seconds: float) -> bool:
        self._seconds += max(0.0, seconds)
        return wake_event.is_set()

    def turn(self, seconds: float) -> None:
        self._seconds += seconds


def small(sim: Simulator, name: str = "s", host: str | None = "cmp-1") -> Server:
    return sim.boot(name, "p", host, 2, 2048, 10)


def python(code: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
    )
