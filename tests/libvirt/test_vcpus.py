# SPDX-License-Identifier: Apache-2.0
"""Threads of QEMUs in /proc: which are processors of guests, and what they do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.drivers.libvirt.heartbeat import AFRESH, QemuVcpus
from holdfast.ports.guests import Vcpu

UUID = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0"
QEMU = f"/usr/bin/qemu\0-name\0guest=web-1,debug-threads=on\0-uuid\0{UUID}\0-m\x001\0"


class Proc:
    """A folder as the kernel shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()

    def process(self, pid: int, line: str) -> None:
        path = self.folder / str(pid)
        path.mkdir(exist_ok=True)
        (path / "cmdline").write_text(line)
        (path / "task").mkdir(exist_ok=True)

    def thread(self, pid: int, tid: int, name: str, ran: int = 0, state: str = "S") -> None:
        path = self.folder / str(pid) / "task" / str(tid)
        path.mkdir(parents=True, exist_ok=True)
        (path / "comm").write_text(f"{name}\n")
        (path / "schedstat").write_text(f"{ran} 7 9\n")
        (path / "stat").write_text(f"{tid} ({name}) {state} 1 2 3\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    made.process(1, "/sbin/init\0")
    made.process(50, QEMU)
    made.thread(50, 50, "qemu-system-x86", 1000, "R")
    made.thread(50, 53, "CPU 1/KVM", 5, "D")
    made.thread(50, 52, "CPU 0/KVM", 4)
    made.thread(50, 54, "worker", 9, "R")
    return made


def test_only_vcpu_threads_are_reported(proc: Proc) -> None:
    vcpus = QemuVcpus(str(proc.folder))
    assert vcpus.read() == [
        Vcpu(UUID, "web-1", 0, 52, 4, 7, wants=False),
        Vcpu(UUID, "web-1", 1, 53, 5, 7, wants=True),
    ]
    proc.thread(50, 52, "CPU 0/KVM", 10, "R")
    first, _ = vcpus.read()
    assert (first.ran_ns, first.wants) == (10, True)


def test_a_processor_that_is_plugged_in_later_is_seen(proc: Proc) -> None:
    vcpus = QemuVcpus(str(proc.folder))
    vcpus.read()
    proc.thread(50, 60, "CPU 2/KVM")
    assert [one.number for one in vcpus.read()] == [0, 1, 2]


def test_a_guest_that_ends_is_forgotten_and_its_number_may_be_anothers(proc: Proc) -> None:
    vcpus = QemuVcpus(str(proc.folder))
    vcpus.read()
    proc.end(50)
    proc.process(50, "/bin/sh\0")
    proc.thread(50, 50, "sh")
    assert vcpus.read() == []
    proc.process(50, QEMU.replace("web-1", "web-2"))
    proc.thread(50, 70, "CPU 0/TCG")
    assert [one.name for one in vcpus.read()] == ["web-2"]
    proc.end(50)
    assert vcpus.read() == []


def test_a_process_that_becomes_a_qemu_after_it_was_seen_is_found(proc: Proc) -> None:
    vcpus = QemuVcpus(str(proc.folder))
    proc.process(60, "/usr/sbin/libvirtd\0")
    vcpus.read()
    proc.process(60, QEMU.replace("web-1", "web-2"))
    proc.thread(60, 61, "ALL CPUs/TCG")
    found = [[one.name for one in vcpus.read()] for _ in range(AFRESH)]
    assert sorted(found[-1]) == ["web-1", "web-1", "web-2"]
