# SPDX-License-Identifier: Apache-2.0
"""What is read of /proc: texts of all sorts, and the kernel this runs on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.metrics import linux
from holdfast.metrics.linux import Files, Host, Links, Qemus
from holdfast.ports.metrics import Link, Process
from holdfast.runtime.clock import SystemClock
from tests.processes import eventually

STAT = b"""\
cpu  100 20 30 400 50 6 7 8 90 0
cpu0 50 10 15 200 25 3 3 4 45 0
cpu1 50 10 15 200 25 3 4 4 45 0
intr 1 2 3
"""
MEMINFO = b"""\
MemTotal:       24682416 kB
MemFree:         1000000 kB
MemAvailable:    2000000 kB
Buffers:          300000 kB
Cached:           400000 kB
SwapCached:            0 kB
SwapTotal:       1000000 kB
SwapFree:         999990 kB
HugePages_Total:       0
"""
NET = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 999 9    0    0    0     0          0         0 999 9    0    0    0     0       0     0
tap6a1ad63a-e6:100 2 3 4 0 0 0 0 5000 60 7 8 0 0 0 0
"""
TICK = linux.TICK_NS


def test_processors_are_counted_in_nanoseconds_and_interrupts_are_the_kernels() -> None:
    assert linux.processors(STAT) == {
        "cpu_user_ns": 120 * TICK,
        "cpu_kernel_ns": 43 * TICK,
        "cpu_idle_ns": 400 * TICK,
        "cpu_iowait_ns": 50 * TICK,
        "cpu_steal_ns": 8 * TICK,
        "cpus": 2,
    }


def test_fewer_cpu_columns_of_an_old_kernel_are_parsed() -> None:
    assert linux.processors(b"cpu 1 2 3 4\n")["cpu_steal_ns"] == 0


def test_memory_is_in_bytes_and_swap_is_the_used_part() -> None:
    values = linux.memory(MEMINFO)
    assert values["mem_total_bytes"] == 24682416 * 1024
    assert values["mem_cached_bytes"] == 400000 * 1024
    assert values["swap_used_bytes"] == 10 * 1024
    assert "swap_used_bytes" not in linux.memory(b"MemTotal: 5 kB\n")


def test_only_wanted_interfaces_are_read_even_without_a_blank_after_the_colon() -> None:
    assert linux.links(NET, {"tap6a1ad63a-e6", "tapgone"}) == {
        "tap6a1ad63a-e6": Link(100, 2, 3, 4, 5000, 60, 7, 8)
    }


def test_pressure_and_speed_are_read() -> None:
    text = b"some avg10=79.04 avg60=56.73 avg300=29.31 total=30900482109\nfull avg10=0.00\n"
    assert linux.pressure(text) == 79.04
    assert linux.speed(b"cpu MHz\t\t: 2000.0\ncpu MHz\t\t: 3000.0\n") == {"cpu_mhz": 2500.0}
    assert linux.speed(b"no such line\n") == {}


def test_pressure_and_ksm_are_left_out_on_a_kernel_without_both(tmp_path: Path) -> None:
    for name, text in (("stat", STAT), ("meminfo", MEMINFO), ("loadavg", b"1.5 1 1 1/2 3\n")):
        (tmp_path / name).write_bytes(text)
    with contextlib.closing(Files()) as files:
        values = Host(files, str(tmp_path), str(tmp_path)).read()
    assert values["load1"] == 1.5
    assert not {"ksm", "fds", "cpu_mhz", "psi_cpu_some_avg10"} & values.keys()


def test_the_running_kernel_provides_all_host_counters() -> None:
    with contextlib.closing(Files()) as files:
        host, links = Host(files), Links(files)
        first = host.read()
        time.sleep(0.05)
        second = host.read()
        assert links.read({"lo"})["lo"].rx_bytes >= 0
        assert links.read(()) == {}
    assert first["cpus"] == os.cpu_count()
    assert first["mem_total_bytes"] > first["mem_free_bytes"] > 0
    total = [sum(v for k, v in reading.items() if k.endswith("_ns")) for reading in (first, second)]
    assert total[1] > total[0]


def test_files_beyond_the_share_are_read_all_the_same(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_text(path.name)
    with contextlib.closing(Files(most=2)) as files:
        assert [files.read(str(path)) for path in paths] == [b"0", b"1", b"2", b"3"]
        assert open_below(tmp_path) == 2
        assert files.read_all(str(paths[3])) == b"3"
        assert files.read(str(tmp_path / "none")) is None
    assert open_below(tmp_path) == 0


def open_below(folder: Path) -> int:
    """How many files in it this process has open."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
    return count


PRETENDER = """\
import ctypes, threading, time
libc = ctypes.CDLL(None)
def spin():
    libc.prctl(15, b"CPU 1/TCG", 0, 0, 0)
    print("on", flush=True)
    while True: pass
threading.Thread(target=spin, daemon=True).start()
time.sleep(600)
"""


@contextlib.contextmanager
def pretender(guest_uuid: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a QEMU with one busy processor."""
    command = [sys.executable, "-c", PRETENDER, "-uuid", guest_uuid, "-end"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_qemu_process_is_found_by_uuid_and_forgotten_at_the_end() -> None:
    guest_uuid = str(uuid.uuid4())
    with contextlib.closing(Files()) as files:
        qemus = Qemus(files, SystemClock())
        assert qemus.read([guest_uuid]) == {}
        with pretender(guest_uuid) as process:
            qemus = Qemus(files, SystemClock())
            first = qemus.read([guest_uuid])[guest_uuid]
            assert qemus.pid(guest_uuid) == process.pid

            def goes_on() -> Process:
                """Its files are read one after the other: on a busy machine it runs meanwhile."""
                second = qemus.read([guest_uuid])[guest_uuid]
                (vcpu,), (later,) = first.vcpus, second.vcpus
                assert vcpu.number == 1
                assert later.time_ns > vcpu.time_ns
                assert second.cpu_ns > first.cpu_ns
                assert second.cpu_ns == pytest.approx(second.user_ns + second.system_ns, abs=3e8)
                assert second.rss_kib > 1000
                return second

            second = eventually(goes_on, every=0.3)
        assert qemus.read([guest_uuid]) == {}
        with pretender(guest_uuid):
            reads = [qemus.read([guest_uuid]) for _ in range(4)]
            assert reads[-1][guest_uuid].started != second.started


def test_a_guest_without_process_does_not_keep_other_guests_from_being_found() -> None:
    lost, guest_uuid = str(uuid.uuid4()), str(uuid.uuid4())
    with contextlib.closing(Files()) as files:
        qemus = Qemus(files, SystemClock())
        for _ in range(20):
            assert qemus.read([lost]) == {}
        with pretender(guest_uuid):
            assert list(qemus.read([lost, guest_uuid])) == [guest_uuid]
