# SPDX-License-Identifier: Apache-2.0
"""Three KVM machines, each with its agent, and Holdfast: a guest dies where it is, until it is
started elsewhere. All programs are real, and nobody but them lifts a finger."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import serve
from tests.libvirt.site import manned, recovered
from tests.processes import eventually
from tests.servers.kvm import Kvm

A, B, C = Kvm.names
WRITES = os.O_WRONLY | os.O_RDWR


@pytest.fixture(scope="module")
def kvm() -> Iterator[Kvm]:
    yield from serve(Kvm())


class Writers:
    """Looks all the time who has a disk open for writing: any process of this machine."""

    def __init__(self, disk: Path) -> None:
        self._disk = str(disk)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, daemon=True)
        self.seen: set[int] = set()  # all there ever were
        self.most = 0
        self.looks = 0

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> set[int]:
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        seen = {pid for pid in pids if self._writes(pid)}
        # one after the other was looked at: the first may have ended before the last began
        found = {pid for pid in seen if self._writes(pid)} if len(seen) > 1 else seen
        self.seen |= seen
        self.most = max(self.most, len(found))
        self.looks += 1
        return found

    def _forever(self) -> None:
        while not self._stop.wait(0.02):
            self.look()

    def _writes(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has just ended
            if not Path(f"/proc/{pid}/comm").read_text().startswith("qemu-system"):
                return False
            for number in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{number}") == self._disk:
                    return _for_writing(Path(f"/proc/{pid}/fdinfo/{number}"))
        return False


def _for_writing(about: Path) -> bool:
    (flags,) = [line for line in about.read_text().splitlines() if line.startswith("flags:")]
    return bool(int(flags.split()[1], 8) & WRITES)


def locks(disk: Path) -> int:
    """Whoever writes to an image holds locks on some of its bytes (OFD locks, which have no pid):
    as many if there is one as there are in one QEMU."""
    inode = disk.stat().st_ino
    return sum(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.slow("a guest dies and is started four times, on three hosts")
@pytest.mark.timeout(600)
def test_a_guest_is_restarted_where_it_dies_and_the_third_time_on_another_host(
    kvm: Kvm, tmp_path: Path
) -> None:
    disk = kvm.shared / "web.raw"
    hosts = {host.name: host.uri for host in kvm.hosts}
    options = {"recovery": {"guest_restarts_in_place": 2}}
    with manned(tmp_path, hosts, options, shared=kvm.shared) as site:
        guest, other = kvm.boot(A, "web"), kvm.boot(A, "other")
        for host, known in ((A, (guest, other)), (B, ()), (C, ())):
            site.begin(host, *known)
        one_writer = locks(disk)
        assert one_writer > 0
        with Writers(disk) as writers:
            for death, where in enumerate(([A], [A], [B, C]), 1):
                assert len(writers.look()) == 1
                kvm.kill(guest)
                recovered(site, guest, death)
                (now,) = kvm.runs(guest)
                assert now in where
                eventually(lambda: locks(disk) == one_writer)
            third = site.incidents(guest)[0]
            assert "it died 3 times" in third["sentence"]
            assert kvm.domain(A, guest) == "missing"
            site.knows(now, guest)
            assert len(writers.look()) == 1
            kvm.kill(guest)  # its budget is used up: people are called, wherever it is
            eventually(lambda: sorted(site.statuses(guest)) == ["failed", *["recovered"] * 3])
            time.sleep(0.5)
        assert kvm.runs(guest) == []
        assert (writers.most, len(writers.seen), locks(disk)) == (1, 4, 0)
        assert writers.looks > 10
        told = [
            observation
            for observation in site.observations(guest)
            if observation["state"] != "well"
        ]
        assert [one["observer"] for one in told] == [f"agent@{A}"] * 3 + [f"agent@{now}"]
        assert {one["state"] for one in told} == {"failed"}
        assert kvm.runs(other) == [A]
        assert site.said(other) == []
