# SPDX-License-Identifier: Apache-2.0
"""What Linux says about the processes of guests: their processors' time, to the nanosecond, and
how long they had to wait for it. Nothing is asked of libvirt or of QEMU, and no rights are needed
but to see processes (/proc mounted without hidepid).

libvirt starts QEMU with the guest's uuid in its arguments and names the threads of its processors
("CPU 3/KVM"), which is how they are found.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.drivers.metrics.files import Files
from holdfast.drivers.metrics.kernel import TICK_NS
from holdfast.ports.clock import Clock
from holdfast.ports.measures import Process, Vcpu

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

    def look(self, wanted: Collection[str]) -> dict[str, Process]:
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
