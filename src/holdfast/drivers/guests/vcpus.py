# SPDX-License-Identifier: Apache-2.0
"""Threads of QEMUs, by /proc. libvirt could say the same, but it asks the QEMU, which costs twenty
times as much and hangs with it.

That a thread waits for a processor is told by its state: the kernel adds up what it waited for only
when it gets one. A thread that the kernel holds up (D: a page that does not come, storage that does
not answer) wants to go on as well.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.ports.vcpus import Vcpu

#: What QEMU calls them, told to by libvirt: CPU 0/KVM, CPU 1/TCG; one for all in old emulation.
_CPU: Final = re.compile(r"(?:CPU (\d{1,4})|ALL CPUs)/")
_UUID: Final = re.compile(rb"\0-uuid\0([0-9a-f-]{36})\0")
_NAME: Final = re.compile(rb"\0-name\0(?:[^\0]*,)?guest=([^,\0]+)")
_WANTS: Final = ("R", "D")
#: At every so many looks all processes are: one that was seen just before it became QEMU is found.
AFRESH: Final = 6


@dataclass
class _Qemu:
    uuid: str
    name: str
    numbers: dict[int, int | None] = field(default_factory=dict)  # by thread; None: another kind


class QemuVcpus:
    """One thread at a time. What it has seen it does not read again."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._known: dict[int, _Qemu | None] = {}  # by pid; None: something else
        self._looks = 0

    def read(self) -> Sequence[Vcpu]:
        pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        self._looks += 1
        afresh = self._looks % AFRESH == 0
        known = {pid: one for pid, one in self._known.items() if one is not None or not afresh}
        self._known = {pid: known[pid] if pid in known else self._of(pid) for pid in pids}
        found: list[Vcpu] = []
        for pid, qemu in list(self._known.items()):
            if qemu is not None:
                found += self._threads(pid, qemu)
        return found

    def _of(self, pid: int) -> _Qemu | None:
        line = _bytes(self._proc / str(pid) / "cmdline")
        uuid, name = _UUID.search(line), _NAME.search(line)
        if uuid is None:
            return None
        return _Qemu(uuid[1].decode(), name[1].decode(errors="replace") if name else "")

    def _threads(self, pid: int, qemu: _Qemu) -> Iterator[Vcpu]:
        folder = self._proc / str(pid) / "task"
        try:
            present = [int(name) for name in os.listdir(folder)]
        except OSError:  # it has just ended
            present = []
        had = any(number is not None for number in qemu.numbers.values())
        qemu.numbers = {
            one: qemu.numbers[one] if one in qemu.numbers else _number(folder / str(one))
            for one in present
        }
        cpus = [(number, one) for one, number in qemu.numbers.items() if number is not None]
        if had and not cpus:  # another process has its number now, or will
            del self._known[pid]
            return
        for number, thread in sorted(cpus):
            times = _bytes(folder / str(thread) / "schedstat").split()
            status = _bytes(folder / str(thread) / "stat").rpartition(b")")[2].split()
            if len(times) >= 2 and status:
                ran, waited = int(times[0]), int(times[1])
                wants = status[0].decode() in _WANTS
                yield Vcpu(qemu.uuid, qemu.name, number, thread, ran, waited, wants)


def _number(folder: Path) -> int | None:
    """Which processor this thread is; None if it is none."""
    match = _CPU.match(_bytes(folder / "comm").decode(errors="replace"))
    return None if match is None else int(match[1] or 0)


def _bytes(path: Path) -> bytes:
    """Empty if it has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
