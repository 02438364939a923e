# SPDX-License-Identifier: Apache-2.0
"""What Linux says about a host: processors, memory, pressure, and its network interfaces.

Counters are as the kernel has them since it started, in nanoseconds and bytes; what a kernel does
not have (pressure, KSM) is left out.
"""

import os
import re
from collections.abc import Callable, Collection
from typing import Final

from holdfast.drivers.metrics.files import LARGE, Files
from holdfast.ports.measures import Link

TICK_NS: Final = 10**9 // os.sysconf("SC_CLK_TCK")
#: The speed of processors is dear to ask for: once in so many looks.
SELDOM: Final = 30
_LOOKED_FOR: Final = {
    b"MemTotal": "mem_total_bytes",
    b"MemFree": "mem_free_bytes",
    b"MemAvailable": "mem_available_bytes",
    b"Cached": "mem_cached_bytes",
    b"SwapTotal": "swap_total_bytes",
    b"SwapFree": "swap_free_bytes",
}
_MHZ: Final = re.compile(rb"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)


class Host:
    """The numbers of the host itself; one thread at a time."""

    def __init__(self, files: Files, proc: str = "/proc", sys: str = "/sys") -> None:
        self._files = files
        self._proc = proc
        self._sys = sys
        self._looks = 0
        self._mhz: dict[str, float] = {}
        self._readers: list[tuple[str, int, Callable[[bytes], dict[str, float]]]] = [
            (f"{proc}/stat", LARGE, processors),
            (f"{proc}/meminfo", 8192, memory),
            (f"{proc}/loadavg", 128, load),
            (f"{proc}/sys/fs/file-nr", 128, open_files),
            (f"{sys}/kernel/mm/ksm/pages_sharing", 64, merged),
        ]
        for name, short in (("cpu", "cpu"), ("memory", "mem"), ("io", "io")):
            self._readers.append((f"{proc}/pressure/{name}", 256, _Pressure(short)))

    def look(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for path, size, understood in self._readers:
            text = self._files.read(path, size)
            if text:
                found.update(understood(text))
        if self._looks % SELDOM == 0:
            self._mhz = self._speed()
        self._looks += 1
        found.update(self._mhz)
        return found

    def _speed(self) -> dict[str, float]:
        try:
            with open(f"{self._proc}/cpuinfo", "rb") as file:
                return speed(file.read())
        except OSError:
            return {}


class Links:
    """The host's network interfaces; one thread at a time."""

    def __init__(self, files: Files, path: str = "/proc/net/dev") -> None:
        self._files = files
        self._path = path

    def look(self, wanted: Collection[str]) -> dict[str, Link]:
        return links(self._files.read_all(self._path) or b"", wanted) if wanted else {}


def processors(text: bytes) -> dict[str, float]:
    """The first line of /proc/stat. Time of guests is in the user's already."""
    first, _, rest = text.partition(b"\n")
    ticks = [int(word) for word in first.split()[1:9]]
    ticks += [0] * (8 - len(ticks))
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    count = 0
    while rest.startswith(b"cpu"):
        count += 1
        rest = rest.partition(b"\n")[2]
    return {
        "cpu_user_ns": (user + nice) * TICK_NS,
        "cpu_kernel_ns": (system + irq + softirq) * TICK_NS,
        "cpu_idle_ns": idle * TICK_NS,
        "cpu_iowait_ns": iowait * TICK_NS,
        "cpu_steal_ns": steal * TICK_NS,
        "cpus": count,
    }


def memory(text: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        known = _LOOKED_FOR.get(name)
        if known:
            found[known] = int(value.split()[0]) * 1024
    total, free = found.pop("swap_total_bytes", None), found.pop("swap_free_bytes", None)
    if total is not None and free is not None:
        found["swap_used_bytes"] = total - free
    return found


def load(text: bytes) -> dict[str, float]:
    return {"load1": float(text.split()[0])}


def open_files(text: bytes) -> dict[str, float]:
    return {"fds": int(text.split()[0])}


def merged(text: bytes) -> dict[str, float]:
    return {"ksm": int(text)}


def speed(text: bytes) -> dict[str, float]:
    found = [float(one) for one in _MHZ.findall(text)]
    return {"cpu_mhz": sum(found) / len(found)} if found else {}


class _Pressure:
    def __init__(self, short: str) -> None:
        self._name = f"psi_{short}_some_avg10"

    def __call__(self, text: bytes) -> dict[str, float]:
        return {self._name: pressure(text)}


def pressure(text: bytes) -> float:
    """Of /proc/pressure/*: the percentage of the last ten seconds in which somebody waited."""
    return float(text.split(None, 2)[1].partition(b"=")[2])


def links(text: bytes, wanted: Collection[str]) -> dict[str, Link]:
    """Of /proc/net/dev, those that are wanted."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(b":")
        known = name.strip().decode(errors="replace")
        if known in wanted:
            n = list(map(int, numbers.split()))
            found[known] = Link(n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11])
    return found
