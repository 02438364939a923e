# SPDX-License-Identifier: Apache-2.0
"""How busy a host's processors are, under Nova's names: what its driver says, or else Linux."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

LOG = logging.getLogger(__name__)

#: What a driver's get_host_cpu_stats() has: times in nanoseconds since the host started.
TIMES = ("user", "kernel", "idle", "iowait")
KERNEL = "/proc"
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_MHZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)

Stats = Mapping[str, int]


class HostCpu:
    """One thread at a time. A driver that does not say is asked again each time."""

    def __init__(
        self, ask: Callable[[], Mapping[str, Any]], name: str, proc: str = "/proc"
    ) -> None:
        self._ask = ask
        self._name = name
        self._proc = proc
        self._before: Stats = {}
        self._shares: dict[str, int] = {}
        self._silent = False
        self.stats: Stats = {}  # of the last look
        self.source = ""  # the driver's name, or KERNEL

    def look(self) -> dict[str, int]:
        """Every number that Nova's CPU monitors have, by its name."""
        found, source = self._asked()
        if source != self.source:
            self._before = {}  # other counters
        self.stats, self.source = found, source
        self._shares = shares(found, self._before) or self._shares
        self._before = found
        made = {f"cpu.{name}.time": found[name] for name in TIMES}
        return {**made, "cpu.frequency": found["frequency"], **self._shares}

    def _asked(self) -> tuple[Stats, str]:
        try:
            said = self._ask()
            stats = {name: int(said[name]) for name in (*TIMES, "frequency")}
        except Exception as error:  # a driver's errors have nothing in common, and Linux knows too
            if not self._silent:
                LOG.warning(
                    "%s does not say how busy its host is, Linux is asked: %r", self._name, error
                )
            self._silent = True
            return of_linux(self._proc), KERNEL
        self._silent = False
        return stats, self._name


def shares(now: Stats, before: Stats) -> dict[str, int]:
    """In percent of the time since; {} if none has passed, or the counters were begun anew.

    >>> one = {"user": 100, "kernel": 50, "idle": 800, "iowait": 50}
    >>> shares(one, {})["cpu.percent"]
    20
    """
    ran = {name: now[name] - before.get(name, 0) for name in TIMES}
    total = sum(ran.values())
    if total <= 0 or min(ran.values()) < 0:
        return {}
    made = {f"cpu.{name}.percent": 100 * ran[name] // total for name in TIMES}
    return {**made, "cpu.percent": 100 * (total - ran["idle"]) // total}


def of_linux(proc: str = "/proc") -> Stats:
    with open(f"{proc}/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:8]]
    user, nice, system, idle, iowait, irq, softirq = ticks
    counted = {
        "user": user + nice,
        "kernel": system + irq + softirq,
        "idle": idle,
        "iowait": iowait,
    }
    stats = {name: ticks * _TICK_NS for name, ticks in counted.items()}
    return {**stats, "frequency": _speed(proc)}


def _speed(proc: str) -> int:
    """In MHz, on average; 0 where the kernel does not tell."""
    try:
        with open(f"{proc}/cpuinfo") as file:
            found = [float(one) for one in _MHZ.findall(file.read())]
    except OSError:
        return 0
    return int(sum(found) / len(found)) if found else 0
