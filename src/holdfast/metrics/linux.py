# SPDX-License-Identifier: Apache-2.0
"""Linux metric source: host CPU, memory, pressure (PSI), interfaces, and QEMU processes.

Counters are the kernel's values since boot, in nanoseconds and bytes. Values that a kernel does
not provide (pressure, KSM) are left out.
"""

import os
import re
import resource
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.ports.metrics import Link, Process, Vcpu
from holdfast.runtime.clock import Clock

# Cache of open files.


#: Share of the process's limit of open files that the cache may use.
SHARE: Final = 0.5
BLOCK: Final = 1024
LARGE: Final = 65536


class Files:
    """Cache of open files in /proc and /sys, for files that are read in every pass.

        files = Files()
        files.read("/proc/4711/stat")     # None after the process has ended

    Reading an open file from its beginning costs a third of opening the file each time. The
    cache holds at most `SHARE` of the process's file limit; further files are opened for each
    read, which is slower but works. Only one thread at a time may use the cache.
    """

    def __init__(self, most: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = int(soft * SHARE) if most is None else most
        self._open: dict[str, int] = {}

    def read(self, path: str, size: int = BLOCK) -> bytes | None:
        """Return the first `size` bytes, or None if the file does not exist (any more)."""
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
        """Return the whole content of a file that is longer than a single kernel read."""
        content = self.read(path, LARGE)
        number = self._open.get(path)
        if not content or number is None:
            return content
        try:
            while more := os.pread(number, LARGE, len(content)):
                content += more
        except OSError:
            self.forget(path)
            return None
        return content

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
        content = b""
        while len(content) < size and (more := file.read(size - len(content))):
            content += more
        return content


TICK_NS: Final = 10**9 // os.sysconf("SC_CLK_TCK")
#: Reading the CPU frequency is expensive: it is read once in this many passes.
SELDOM: Final = 30
_MEMINFO: Final = {
    b"MemTotal": "mem_total_bytes",
    b"MemFree": "mem_free_bytes",
    b"MemAvailable": "mem_available_bytes",
    b"Cached": "mem_cached_bytes",
    b"SwapTotal": "swap_total_bytes",
    b"SwapFree": "swap_free_bytes",
}
_MHZ: Final = re.compile(rb"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)


class Host:
    """Reader of host metrics; only one thread at a time may use the reader."""

    def __init__(self, files: Files, proc: str = "/proc", sys: str = "/sys") -> None:
        self._files = files
        self._proc = proc
        self._sys = sys
        self._reads = 0
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
        values: dict[str, float] = {}
        for path, size, parse in self._readers:
            text = self._files.read(path, size)
            if text:
                values.update(parse(text))
        if self._reads % SELDOM == 0:
            self._mhz = self._speed()
        self._reads += 1
        values.update(self._mhz)
        return values

    def _speed(self) -> dict[str, float]:
        try:
            with open(f"{self._proc}/cpuinfo", "rb") as file:
                return speed(file.read())
        except OSError:
            return {}


class Links:
    """Reader of the host's network interfaces; only one thread at a time may use the reader."""

    def __init__(self, files: Files, path: str = "/proc/net/dev") -> None:
        self._files = files
        self._path = path

    def read(self, wanted: Collection[str]) -> dict[str, Link]:
        return links(self._files.read_all(self._path) or b"", wanted) if wanted else {}


def processors(text: bytes) -> dict[str, float]:
    """Parse the `cpu` line of /proc/stat; user time already includes guest time."""
    first, _, rest = text.partition(b"\n")
    ticks = [int(number) for number in first.split()[1:9]]
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
    """Parse /proc/meminfo."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        field = _MEMINFO.get(name)
        if field:
            values[field] = int(value.split()[0]) * 1024
    total, free = values.pop("swap_total_bytes", None), values.pop("swap_free_bytes", None)
    if total is not None and free is not None:
        values["swap_used_bytes"] = total - free
    return values


def load(text: bytes) -> dict[str, float]:
    return {"load1": float(text.split()[0])}


def open_files(text: bytes) -> dict[str, float]:
    return {"fds": int(text.split()[0])}


def merged(text: bytes) -> dict[str, float]:
    """Parse the number of pages that KSM shares."""
    return {"ksm": int(text)}


def speed(text: bytes) -> dict[str, float]:
    """Return the mean CPU frequency from /proc/cpuinfo."""
    frequencies = [float(number) for number in _MHZ.findall(text)]
    return {"cpu_mhz": sum(frequencies) / len(frequencies)} if frequencies else {}


class _Pressure:
    def __init__(self, short: str) -> None:
        self._name = f"psi_{short}_some_avg10"

    def __call__(self, text: bytes) -> dict[str, float]:
        return {self._name: pressure(text)}


def pressure(text: bytes) -> float:
    """Parse /proc/pressure/*: percentage of the last 10 s in which at least one task waited."""
    return float(text.split(None, 2)[1].partition(b"=")[2])


def links(text: bytes, wanted: Collection[str]) -> dict[str, Link]:
    """Parse /proc/net/dev; return the interfaces in `wanted`."""
    interfaces = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(b":")
        ifname = name.strip().decode(errors="replace")
        if ifname in wanted:
            n = list(map(int, numbers.split()))
            interfaces[ifname] = Link(n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11])
    return interfaces


# QEMU processes of guests.


PAGE_KIB: Final = os.sysconf("SC_PAGE_SIZE") // 1024
#: vCPU threads are listed again after this many reads, because vCPUs can be hot-plugged.
AGAIN: Final = 30
#: Longest pause, in passes, between two searches for a guest without a process.
LONGEST_PAUSE: Final = 32
_THREAD: Final = re.compile(rb"CPU (\d+)/")
_UUID: Final = re.compile(rb"\0-uuid\0([0-9a-f-]{36})\0")
#: Linux derives the CPU clock of a process from its process id (clock_getcpuclockid(3)).
_SCHEDULED: Final = 2


@dataclass(slots=True)
class _Qemu:
    pid: int
    started: int
    stat: str
    clock: int
    threads: list[tuple[int, str]] = field(default_factory=list)  # number, file
    reads: int = 0


class Qemus:
    """Reader of the guests' QEMU processes; only one thread at a time may use the reader.

    The reader gets the vCPUs' run time in nanoseconds and their wait time from Linux. It asks
    neither libvirt nor QEMU, and needs no rights except to see processes (/proc mounted without
    hidepid).

    libvirt starts QEMU with the guest's UUID in its arguments and names the vCPU threads ("CPU
    3/KVM"); the reader finds both by these names.
    """

    def __init__(self, files: Files, clock: Clock, proc: str = "/proc") -> None:
        self._files = files
        self._clock = clock
        self._proc = proc
        self._qemus: dict[str, _Qemu] = {}
        self._sought: frozenset[str] = frozenset()
        self._pause = self._wait = 0

    def read(self, wanted: Collection[str]) -> dict[str, Process]:
        """Return the process values of each wanted guest that has a process."""
        for uuid in [known for known in self._qemus if known not in wanted]:
            self._forget(uuid)
        processes = {}
        for uuid in wanted:
            process = self._read_process(uuid)
            if process is not None:
                processes[uuid] = process
        if len(processes) < len(wanted):
            for uuid in self._find([guest for guest in wanted if guest not in processes]):
                process = self._read_process(uuid)
                if process is not None:
                    processes[uuid] = process
        return processes

    def pid(self, uuid: str) -> int | None:
        """Return the process id of a guest's QEMU, if known."""
        qemu = self._qemus.get(uuid)
        return qemu.pid if qemu else None

    # a known process

    def _read_process(self, uuid: str) -> Process | None:
        """Read a known process; forget the process if it has ended."""
        qemu = self._qemus.get(uuid)
        if qemu is None:
            return None
        text = self._files.read(qemu.stat)
        at = self._clock.monotonic()
        process = None if text is None else _stat(text)
        if process is None or process.started != qemu.started:
            self._forget(uuid)
            return None
        if qemu.reads % AGAIN == 0:
            self._threads(qemu)
        qemu.reads += 1
        try:
            cpu_ns = time.clock_gettime_ns(qemu.clock)
        except OSError:
            cpu_ns = process.user_ns + process.system_ns
        return process._replace(at=at, cpu_ns=cpu_ns, vcpus=tuple(self._vcpus(qemu)))

    def _vcpus(self, qemu: _Qemu) -> Iterator[Vcpu]:
        for number, path in qemu.threads:
            text = self._files.read(path, 128)
            if text is not None:
                ran, waited, _ = text.split()
                yield Vcpu(number, int(ran), int(waited))

    def _threads(self, qemu: _Qemu) -> None:
        """Find the vCPU threads of a process."""
        folder = f"{self._proc}/{qemu.pid}/task"
        threads = []
        try:
            for tid in os.listdir(folder):
                named = _THREAD.match(_read(f"{folder}/{tid}/comm"))
                if named:
                    threads.append((int(named[1]), f"{folder}/{tid}/schedstat"))
        except OSError:
            return  # the process has just ended; the next read detects the end
        qemu.threads = sorted(threads)

    def _forget(self, uuid: str) -> None:
        qemu = self._qemus.pop(uuid, None)
        if qemu is not None:
            for path in (qemu.stat, *(path for _, path in qemu.threads)):
                self._files.forget(path)

    # search for processes

    def _find(self, wanted: Collection[str]) -> list[str]:
        """Search all processes for the wanted guests.

        A guest without a process is not searched for in every pass: the pause doubles up to
        `LONGEST_PAUSE` passes.
        """
        sought = frozenset(wanted)
        if self._wait > 0 and sought <= self._sought:
            self._wait -= 1
            return []
        qemus = self._scan(sought)
        known_before = sought <= self._sought
        self._pause = min(LONGEST_PAUSE, self._pause * 2) if known_before and self._pause else 1
        self._wait, self._sought = self._pause, sought - qemus.keys()
        self._qemus.update(qemus)
        return list(qemus)

    def _scan(self, wanted: Collection[str]) -> dict[str, _Qemu]:
        qemus: dict[str, _Qemu] = {}
        for pid in filter(str.isdigit, os.listdir(self._proc)):
            try:
                match = _UUID.search(_read(f"{self._proc}/{pid}/cmdline", 65536))
                uuid = match[1].decode() if match else ""
                process = _stat(_read(f"{self._proc}/{pid}/stat")) if uuid in wanted else None
            except OSError:
                continue  # the process ended meanwhile
            # of two processes take the younger: the other is about to exit
            if process and (uuid not in qemus or process.started > qemus[uuid].started):
                clock = (~int(pid) << 3) | _SCHEDULED
                stat = f"{self._proc}/{pid}/stat"
                qemus[uuid] = _Qemu(int(pid), process.started, stat, clock)
        return qemus


def _stat(text: bytes) -> Process | None:
    """Parse /proc/PID/stat; None for a zombie or dead process."""
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
