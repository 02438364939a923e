# SPDX-License-Identifier: Apache-2.0
"""Numbers of real guests: one is busy, one hangs, one is suspended; the daemon dies and returns."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.drivers.libvirt import metrics
from holdfast.drivers.libvirt import metrics as driver
from holdfast.drivers.libvirt.connection import PooledConnection
from holdfast.drivers.libvirt.metrics import MOST_CONNECTIONS, Answer, LibvirtMeasures
from holdfast.metrics.collector import Collector
from holdfast.model.errors import DriverError
from holdfast.ports.metrics import DISK, GUEST, NIC, Reading, Snapshot
from holdfast.runtime.clock import SystemClock
from tests.libvirt.host import FILE_DISK
from tests.metrics.host import NIC as TAP
from tests.metrics.host import TapHost
from tests.processes import eventually

NAMES = ("m-busy", "m-hangs", "m-sleeps")
ROUND_S = 1.0


class Eye:
    """A collector and the last it saw, by the names of guests."""

    def __init__(self, host: TapHost) -> None:
        clock = SystemClock()
        self.measures = LibvirtMeasures(host.url, clock, interval_s=ROUND_S, links=host.links)
        self.collector = Collector("cmp-7", self.measures, clock)
        self.measures.start()

    def snapshot(self) -> Snapshot:
        return self.collector.snapshot()

    def guests(self, kind: str = GUEST) -> dict[str, Reading]:
        table = self.snapshot().tables.get(kind)
        readings = table.readings if table else ()
        return {reading.entity.name.partition("/")[0]: reading for reading in readings}

    def until(self, says: Callable[[dict[str, Reading]], bool], kind: str = GUEST) -> None:
        eventually(lambda: says(self.guests(kind)), every=0.1)


def begin(host: TapHost, way: Any, name: str, number: int) -> Any:
    path = host.sockets / f"{name}.raw"
    path.write_bytes(bytes(2**16))
    path.chmod(0o666)
    mac = f"52:54:00:00:00:0{number}"
    devices = FILE_DISK.format(path=path) + TAP.format(
        mac=mac, tap=host.taps[number], model="e1000"
    )
    domain = way.createXML(host.measured(name, devices, project=f"p-{name}"))
    host.wait_ready(name)
    return domain


@pytest.fixture(scope="module")
def guests(host: TapHost) -> Iterator[None]:
    """They are gone at the end: the host is there for others, and for these tests once more."""
    with contextlib.closing(host.connected()) as way, ThreadPoolExecutor(3) as effects:
        list(effects.map(lambda n: begin(host, way, NAMES[n], n), range(3)))
    yield
    with contextlib.closing(host.connected()) as way:
        for domain in way.listAllDomains():
            domain.destroy()


@pytest.fixture
def way(host: TapHost, guests: None) -> Iterator[Any]:
    """One for each test: it dies with the daemon."""
    with contextlib.closing(host.connected()) as made:
        yield made


@pytest.fixture
def eye(host: TapHost, guests: None) -> Iterator[Eye]:
    made = Eye(host)
    with contextlib.closing(made.measures):
        made.until(lambda readings: set(NAMES) <= readings.keys())
        made.until(lambda readings: not any(reading.stale for reading in readings.values()), DISK)
        yield made
    # a connection that an error still holds is closed by its collector, which waits for the daemon


def test_collected_values_equal_libvirt_statistics(host: TapHost, way: Any, eye: Eye) -> None:
    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind((host.taps[0], 0))
            wire.send(b"\xff" * 12 + b"\x08\x06" + bytes(986))

    assert host.network is not None
    host.network.do(send)
    host.say("m-busy", "d")
    domain = way.lookupByName("m-busy")

    def agrees() -> None:
        snapshot = eye.snapshot()
        ((_, stats),) = way.domainListGetStats([domain])
        by_name = {
            reading.entity.name: reading.values for reading in snapshot.tables[GUEST].readings
        }
        assert by_name["m-busy"]["cpu_time_ns"] == pytest.approx(stats["cpu.time"], abs=2e8)
        assert by_name["m-busy"]["rss_kib"] == pytest.approx(stats["balloon.rss"], rel=0.1)
        assert by_name["m-busy"]["balloon_current_kib"] == stats["balloon.current"]
        assert by_name["m-busy"]["vcpu0_delay_ns"] == pytest.approx(stats["vcpu.0.delay"], abs=2e8)
        nic = eye.guests(NIC)["m-busy"].values
        ways = [f"{way}_{counter}" for way in ("rx", "tx") for counter in ("bytes", "pkts", "drop")]
        for name in ways:
            assert nic[name] == stats[f"net.0.{name.replace('_', '.')}"]
        assert nic["rx_bytes"] > nic["tx_bytes"]
        disk = eye.guests(DISK)["m-busy"].values
        assert disk["rd_reqs"] == stats["block.0.rd.reqs"] > 0
        assert disk["capacity_bytes"] == stats["block.0.capacity"]

    eventually(lambda: agrees() is None, every=0.3)


def test_a_hanging_or_suspended_guest_does_not_affect_other_guests(
    host: TapHost, way: Any, eye: Eye
) -> None:
    host.say("m-busy", "b")
    way.lookupByName("m-sleeps").suspend()
    os.kill(host.pid("m-hangs"), signal.SIGSTOP)
    try:
        eye.until(lambda readings: readings["m-sleeps"].stale == "suspended: user")
        eye.until(lambda readings: readings["m-hangs"].stale == metrics.HANGS, DISK)
        rounds = eye.measures.polled().round
        eye.until(lambda readings: not readings["m-busy"].stale, DISK)
        eventually(lambda: goes_on(eye))
        eventually(lambda: eye.measures.polled().round > rounds)
        eye.until(lambda readings: not readings["m-busy"].stale, DISK)
    finally:
        os.kill(host.pid("m-hangs"), signal.SIGCONT)
        way.lookupByName("m-sleeps").resume()
        way.lookupByName("m-busy").reset()  # it obeys again, whoever is next
    host.wait_ready("m-busy")
    eye.until(lambda readings: not any(reading.stale for reading in readings.values()))
    eye.until(lambda readings: not any(reading.stale for reading in readings.values()), DISK)


def goes_on(eye: Eye) -> bool:
    """One is busy, one hangs, one sleeps: the kernel's numbers of a while say so."""
    before, began = eye.guests(), time.monotonic()
    time.sleep(1.5)
    guests, took_s = eye.guests(), time.monotonic() - began
    assert took_s < 10, "the kernel's numbers do not wait for libvirt"
    busy = guests["m-busy"].values
    # what it did not get it waited for: the machine may be full. If it is one itself, what others
    # took from it shows nowhere, but not all the time
    assert busy["util_ratio"] + busy["steal_ratio"] > 0.7
    assert busy["util_ratio"] <= 1.2
    hung = guests["m-hangs"]
    assert not hung.stale
    assert hung.values["util_ratio"] == 0
    assert hung.values["cpu_time_ns"] == before["m-hangs"].values["cpu_time_ns"]
    assert guests["m-sleeps"].values == before["m-sleeps"].values
    return True


def test_while_all_guests_hang_kernel_values_stay_and_libvirtd_gets_no_more_calls(
    host: TapHost, eye: Eye
) -> None:
    pids = [host.pid(name) for name in NAMES]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        eye.until(lambda readings: all(readings[name].stale for name in NAMES), DISK)
        rounds = eye.measures.polled().round
        eventually(lambda: eye.measures.polled().round > rounds + 1, every=0.1)
        assert not any(guest.stale for guest in eye.guests().values())
        asking = [thread for thread in threading.enumerate() if thread.name == "libvirt-stats"]
        assert len(asking) <= metrics.MOST_HANGING
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    eye.until(lambda readings: not any(reading.stale for reading in readings.values()), DISK)


def test_hanging_facts_of_a_guest_do_not_affect_other_guests(
    host: TapHost, way: Any, eye: Eye, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = way.lookupByName("m-hangs").UUIDString()
    stuck, read = threading.Event(), metrics._read

    def slow(domain: str, pooled: PooledConnection) -> Answer:
        if domain == uuid:
            stuck.wait()
        return read(domain, pooled)

    monkeypatch.setattr(metrics, "_read", slow)
    monkeypatch.setattr(driver, "PATIENCE_S", 3.0)
    late = Eye(host)  # to which all of them are new
    try:
        for watcher in (eye, late):
            watcher.measures._again(uuid)
        for name in ("m-busy", "m-sleeps"):
            late.until(
                lambda readings, name=name: not readings[name].stale if readings else False, DISK
            )
        rounds = eye.measures.polled().round
        eventually(lambda: eye.measures.polled().round > rounds + 1, every=0.1)
        eye.until(lambda readings: not readings["m-busy"].stale, DISK)
        # one for each of us, however often it was tried; those of others come back
        eventually(
            lambda: [thread.name for thread in threading.enumerate()].count("libvirt-facts") == 2
        )
        stuck.set()
        late.until(lambda readings: readings.keys() >= set(NAMES))
    finally:
        stuck.set()
        late.measures.close()


def test_guests_come_and_go_between_passes(host: TapHost, way: Any, eye: Eye) -> None:
    domain = begin(host, way, "m-brief", 3)
    eye.until(lambda readings: "m-brief" in readings and "util_ratio" in readings["m-brief"].values)
    new = eye.guests()["m-brief"].entity
    assert (new.project, new.flavor) == ("p-m-brief", "small")
    domain.destroy()

    def left() -> dict[str, str]:
        return dict(eye.snapshot().gone)

    gone = eventually(left, every=0.05)
    assert gone[new.id] == "destroyed"
    assert len(gone) == 3  # with its disk and its interface


def test_while_the_daemon_is_frozen_or_dead_the_kernel_goes_on(host: TapHost, eye: Eye) -> None:
    before = hung_up()
    with host.frozen_daemon():
        eye.until(lambda readings: all(reading.stale for reading in readings.values()), DISK)
        guests = eye.guests()
        assert not any(guest.stale for guest in guests.values())
        assert "util_ratio" in guests["m-busy"].values
    host.die(signal.SIGKILL)
    assert not any(guest.stale for guest in eye.guests().values())
    host.start()
    eye.until(lambda readings: not any(reading.stale for reading in readings.values()), DISK)
    eventually(lambda: not hung_up() - before)  # old connections are not kept


def test_a_slow_libvirtd_gets_a_limited_number_of_connections(eye: Eye) -> None:
    before = sockets()
    held, stuck = threading.Semaphore(0), threading.Event()

    def owe() -> bool:
        """As if libvirtd owed one more answer; whether it owes as many as it may."""
        with contextlib.suppress(DriverError):
            eye.measures._pool.begin("an answer", lambda _: held.release() or stuck.wait())
        return held._value == MOST_CONNECTIONS

    eventually(owe, every=0.05)
    full = sockets()
    assert full < before + MOST_CONNECTIONS, "one was there already"
    try:
        eye.measures._listed = -1e9
        way, rounds = eye.measures._connection, eye.measures.polled().round
        time.sleep(2.5)
        assert sockets() <= full
        assert eye.measures._connection is way, "nor is it left"
        assert eye.measures.polled().round <= rounds + 1
    finally:
        stuck.set()
    eventually(lambda: eye.measures.polled().round > rounds + 1, every=0.1)


def sockets() -> int:
    """How many this process has open of the kind that leads to libvirtd."""
    count = 0
    for number, _ in open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            count += connection.family == socket.AF_UNIX
    return count


def hung_up() -> set[str]:
    """Those whose other end has gone."""
    closed = set()
    for number, name in open_sockets():
        poll = select.poll()
        poll.register(number, 0)  # hang-ups are told anyway
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            closed.add(name)
    return closed


def open_sockets() -> Iterator[tuple[int, str]]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("socket:"):
                yield int(number), name
