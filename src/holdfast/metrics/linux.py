# SPDX-License-Identifier: Apache-2.0
"""What Linux says about a host: processors, memory, pressure, and its network interfaces.

Counters are as the kernel has them since it started, in nanoseconds and bytes; what a kernel does
not have (pressure, KSM) is left out.
"""

import contextlib
import os
import re
import resource
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.ports.metrics import Link, Process, Vcpu
from holdfast.runtime.clock import Clock

# Files of /proc and /sys that are read again and again: opened once, read from the beginning.
#
#     files = Files()
#     files.read("/proc/4711/stat")     # None once the process has gone
#
# Reading one that is open already costs a third of opening it each time. Of more than a share of
# what
# the process may have open nothing is kept; then it costs more, and works.


#: The share of the files we may have open that is spent on this.
SHARE: Final = 0.5
BLOCK: Final = 1024
LARGE: Final = 65536


class Files:
    """One thread at a time."""

    def __init__(self, most: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = int(soft * SHARE) if most is None else most
        self._open: dict[str, int] = {}

    def read(self, path: str, size: int = BLOCK) -> bytes | None:
        """The first `size` bytes; None if it is not there, or no longer."""
        number = self._open.get(path)
        try:
            if number is None:
                number = self._opened(path)
            if number is None:
                return _once(path, size)
            return os.pread(number, size, 0)
        except OSError:
            self.forget(path)
            return None

    def read_all(self, path: str) -> bytes | None:
        """Of a file longer than what the kernel gives at a time."""
        found = self.read(path, LARGE)
        number = self._open.get(path)
        if not found or number is None:
            return found
        try:
            while more := os.pread(number, LARGE, len(found)):
                found += more
        except OSError:
            self.forget(path)
            return None
        return found

    def forget(self, path: str) -> None:
        number = self._open.pop(path, None)
        if number is not None:
            os.close(number)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _opened(self, path: str) -> int | None:
        if len(self._open) >= self._most:
            return None
        number = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return number


def _once(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        found = b""
        while len(found) < size and (more := file.read(size - len(found))):
            found += more
        return found


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

    def read(self) -> dict[str, float]:
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

    def read(self, wanted: Collection[str]) -> dict[str, Link]:
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


# What this process takes of its host: memory, and the time that its threads have to wait.


class OwnProcess:
    """`plugin_limits.Own`."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def rss(self) -> int:
        """In bytes; takes a few microseconds."""
        return int(os.pread(self._file, 128, 0).split()[1]) * self._page

    def waits(self) -> "OwnWaits":
        return OwnWaits()

    def close(self) -> None:
        os.close(self._file)


class OwnWaits:
    """`plugin_limits.Waits` of the thread that makes it."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # a kernel that does not count it
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """In the queue for a processor; and what other threads ran meanwhile, for they may have had
        the interpreter."""
        others_s = time.process_time() - time.thread_time()
        if self._file < 0:
            return others_s
        return others_s + int(os.pread(self._file, 128, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# What Linux says about the processes of guests: their processors' time, to the nanosecond, and
# how long they had to wait for it. Nothing is asked of libvirt or of QEMU, and no rights are
# needed
# but to see processes (/proc mounted without hidepid).
#
# libvirt starts QEMU with the guest's uuid in its arguments and names the threads of its
# processors
# ("CPU 3/KVM"), which is how they are found.


PAGE_KIB: Final = os.sysconf("SC_PAGE_SIZE") // 1024
#: Threads of processors are looked for again after so many looks: they can be plugged in.
AGAIN: Final = 30
#: One whose process is not found is looked for less and less often, in looks.
LONGEST_PAUSE: Final = 32
_THREAD: Final = re.compile(rb"CPU (\d+)/")
_UUID: Final = re.compile(rb"\0-uuid\0([0-9a-f-]{36})\0")
#: Linux makes the clock of another process of its number (clock_getcpuclockid(3)).
_SCHEDULED: Final = 2


@dataclass(slots=True)
class _Known:
    pid: int
    started: int
    stat: str
    clock: int
    threads: list[tuple[int, str]] = field(default_factory=list)  # number, file
    looks: int = 0


class Qemus:
    """One thread at a time."""

    def __init__(self, files: Files, clock: Clock, proc: str = "/proc") -> None:
        self._files = files
        self._clock = clock
        self._proc = proc
        self._known: dict[str, _Known] = {}
        self._sought: frozenset[str] = frozenset()
        self._pause = self._wait = 0

    def read(self, wanted: Collection[str]) -> dict[str, Process]:
        """Of those that have a process."""
        for uuid in [one for one in self._known if one not in wanted]:
            self._forget(uuid)
        found = {}
        for uuid in wanted:
            seen = self._one(uuid)
            if seen is not None:
                found[uuid] = seen
        if len(found) < len(wanted):
            for uuid in self._find([one for one in wanted if one not in found]):
                seen = self._one(uuid)
                if seen is not None:
                    found[uuid] = seen
        return found

    def pid(self, uuid: str) -> int | None:
        known = self._known.get(uuid)
        return known.pid if known else None

    # one process

    def _one(self, uuid: str) -> Process | None:
        known = self._known.get(uuid)
        if known is None:
            return None
        text = self._files.read(known.stat)
        at = self._clock.monotonic()
        seen = None if text is None else _stat(text)
        if seen is None or seen.started != known.started:
            self._forget(uuid)
            return None
        if known.looks % AGAIN == 0:
            self._threads(known)
        known.looks += 1
        try:
            cpu_ns = time.clock_gettime_ns(known.clock)
        except OSError:
            cpu_ns = seen.user_ns + seen.system_ns
        return seen._replace(at=at, cpu_ns=cpu_ns, vcpus=tuple(self._vcpus(known)))

    def _vcpus(self, known: _Known) -> Iterator[Vcpu]:
        for number, path in known.threads:
            text = self._files.read(path, 128)
            if text is not None:
                ran, waited, _ = text.split()
                yield Vcpu(number, int(ran), int(waited))

    def _threads(self, known: _Known) -> None:
        folder = f"{self._proc}/{known.pid}/task"
        found = []
        try:
            for tid in os.listdir(folder):
                named = _THREAD.match(_read(f"{folder}/{tid}/comm"))
                if named:
                    found.append((int(named[1]), f"{folder}/{tid}/schedstat"))
        except OSError:
            return  # it has just gone; the next look finds that out
        known.threads = sorted(found)

    def _forget(self, uuid: str) -> None:
        known = self._known.pop(uuid, None)
        if known is not None:
            for path in (known.stat, *(path for _, path in known.threads)):
                self._files.forget(path)

    # finding them

    def _find(self, wanted: Collection[str]) -> list[str]:
        """Go through all processes; for one that cannot be found not in every pass."""
        sought = frozenset(wanted)
        if self._wait > 0 and sought <= self._sought:
            self._wait -= 1
            return []
        found = self._all(sought)
        known_before = sought <= self._sought
        self._pause = min(LONGEST_PAUSE, self._pause * 2) if known_before and self._pause else 1
        self._wait, self._sought = self._pause, sought - found.keys()
        self._known.update(found)
        return list(found)

    def _all(self, wanted: Collection[str]) -> dict[str, _Known]:
        found: dict[str, _Known] = {}
        for pid in filter(str.isdigit, os.listdir(self._proc)):
            try:
                said = _UUID.search(_read(f"{self._proc}/{pid}/cmdline", 65536))
                uuid = said[1].decode() if said else ""
                seen = _stat(_read(f"{self._proc}/{pid}/stat")) if uuid in wanted else None
            except OSError:
                continue  # it ended meanwhile
            # of two the younger: the other is on its way out
            if seen and (uuid not in found or seen.started > found[uuid].started):
                clock = (~int(pid) << 3) | _SCHEDULED
                stat = f"{self._proc}/{pid}/stat"
                found[uuid] = _Known(int(pid), seen.started, stat, clock)
        return found


def _stat(text: bytes) -> Process | None:
    """/proc/PID/stat; None of one that has ended and is only not buried yet."""
    n = text.rpartition(b")")[2].split(None, 22)
    if len(n) < 22 or n[0] in (b"Z", b"X"):
        return None
    user, system = int(n[11]) * TICK_NS, int(n[12]) * TICK_NS
    return Process(0.0, int(n[19]), user + system, user, system, int(n[21]) * PAGE_KIB, ())


def _read(path: str, size: int = 1024) -> bytes:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(number, size)
    finally:
        os.close(number)
