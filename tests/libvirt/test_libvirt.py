# SPDX-License-Identifier: Apache-2.0
"""Real guests of a real libvirt fail in every way we know of: what is heard, and what it means."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from holdfast.drivers.libvirt import guests as driver
from holdfast.drivers.libvirt.guests import LibvirtGuests
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.libvirt.faults import DIED, FAULTS, LONG, Lab, Row
from tests.libvirt.host import FILE_DISK, GuestHost
from tests.processes import eventually

#: It is likely each time, not sure.
TRIES = 10


@pytest.fixture(scope="module")
def lab(host: GuestHost) -> Iterator[Lab]:
    """Somebody listens, and judges by the defaults."""
    ear = Ear()
    guests = LibvirtGuests(host.url, SystemClock(), probe_every_s=1.0, stuck_s=3.0)
    guests.start(ear)
    eventually(lambda: not guests.why_deaf())
    yield Lab(host, ear, guests)
    guests.close()


def plain(name: str, **more: Any) -> Row:
    return Row(name, lambda lab, name: None, (), **more)


@pytest.mark.parametrize("row", FAULTS, ids=[row.name for row in FAULTS])
def test_a_fault_is_heard_and_means_what_it_should(lab: Lab, row: Row) -> None:
    with lab.running(row):
        comes_to(lab, row.name)  # a start is nothing to tell of
        lab.ear.forget(row.name)
        row.fault(lab, row.name)
        lab.ear.wait(row.name, *row.heard)
        eventually(functools.partial(is_told, lab, row), every=0.01)
        later = row.told if row.later is None else row.later
        comes_to(lab, row.name, *later)
        check = CHECKS.get(row.name)
        if check is not None:
            check(lab, row.name)


def is_told(lab: Lab, row: Row) -> bool:
    assert lab.ear.verdicts(row.name) == list(row.told), lab.ear.said(row.name)
    return True


def comes_to(lab: Lab, name: str, *told: str) -> None:
    """What is told of it in the end. One that a busy machine keeps from answering is heard to hang
    until it answers."""

    def so() -> bool:
        assert lab.ear.verdicts(name, LONG) == list(told), lab.ear.said(name)
        return True

    eventually(so, every=0.01)


def no_io_error(lab: Lab, name: str) -> None:
    """libvirt cannot say it of a disk without a name: its pause is all there is."""
    assert not [one for one in lab.ear.said(name) if one.startswith("io_error")]


def whose_it_is(lab: Lab, name: str) -> None:
    (event,) = [one for one in lab.ear.events[name] if one.reason == "failed"]
    wanted = {"project": "p-1", "project_name": "demo", "flavor": "m1.tiny", "ha": "no"}
    assert wanted.items() <= event.metadata.items()


CHECKS = {"eio-unnamed": no_io_error, "unwanted": whose_it_is}


@contextlib.contextmanager
def asked(host: GuestHost, name: str) -> Iterator[None]:
    """Its QEMU is asked something all the time."""
    import libvirt

    over = threading.Event()

    def ask() -> None:
        with contextlib.suppress(libvirt.libvirtError), host.connected() as way:  # until it ends
            domain = way.lookupByName(name)
            while not over.is_set():
                way.domainListGetStats([domain], libvirt.VIR_DOMAIN_STATS_IOTHREAD)

    with ThreadPoolExecutor(2) as effects:
        asking = [effects.submit(ask) for _ in range(2)]
        yield
        over.set()
    for one in asking:
        one.result()


def test_an_answer_cut_off_by_the_end_of_a_guest_is_no_event(lab: Lab) -> None:
    """libvirt takes it for an error of QEMU's, if the question comes in the right moment."""
    for number in range(TRIES):
        name = f"asked-{number}"
        with lab.running(plain(name)):
            with asked(lab.host, name):
                lab.domain(name).shutdown()
                lab.ear.wait(name, "lifecycle stopped shutdown")
            comes_to(lab, name)
        if "control_error" in lab.ear.said(name):
            return


def test_a_monitor_that_hangs_up_is_a_death_and_leaves_no_qemu_behind(lab: Lab) -> None:
    with lab.running(plain("qmp-close", proxied=True)):
        pid = lab.host.pid("qmp-close")
        lab.host.spoil("qmp-close", "close")
        lab.ear.wait("qmp-close", DIED)
        eventually(lambda: lab.ear.verdicts("qmp-close") == ["failed stopped failed"])
        eventually(lambda: not psutil.pid_exists(pid))


def test_a_guest_that_cannot_be_started_did_not_die(lab: Lab) -> None:
    disk = FILE_DISK.format(path=lab.host.sockets / "nowhere")
    domain = lab.way.defineXML(lab.host.xml("stillborn", disk))
    with pytest.raises(Exception, match="nowhere"):
        domain.create()
    domain.undefine()
    lab.ear.wait("stillborn", "lifecycle undefined removed")
    comes_to(lab, "stillborn")


def told(lab: Lab, names: Sequence[str]) -> dict[str, list[str]]:
    return {name: lab.ear.verdicts(name) for name in names}


def seen_again(lab: Lab, readings: int) -> None:
    """All guests were read again: 2 s once the daemon answers."""
    eventually(lambda: len(lab.ear.readings) > readings, every=0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_happens_while_the_daemon_is_away_is_found_when_it_is_back(
    lab: Lab, number: signal.Signals
) -> None:
    names = ("killed", "panics", "off", "well", "short")
    rows = [plain(name, on_crash="preserve", kept=name != "short") for name in names]
    with lab.running(*rows):
        readings = len(lab.ear.readings)
        lab.host.die(number)
        eventually(lab.guests.why_deaf)
        for name in names:
            lab.ear.forget(name)
        gone = [lab.host.kill_guest("killed"), lab.host.kill_guest("short")]
        lab.say("panics", "p")
        lab.say("off", "s")
        eventually(lambda: not any(map(psutil.pid_exists, gone)))
        lab.host.start()
        del lab.way
        seen_again(lab, readings)
        wanted = {
            "killed": ["failed stopped failed"],
            "panics": ["failed panic panicked"],
            "off": [],
            "well": [],
            "short": ["failed stopped vanished"],
        }
        found = functools.partial(told, lab, names)
        with contextlib.suppress(AssertionError):
            eventually(lambda: found() == wanted)
        assert found() == wanted
        lab.host.kill_guest("well")
        lab.ear.wait("well", DIED)
        wanted["well"] = ["failed stopped failed"]
        for name in names:
            comes_to(lab, name, *wanted[name])


def test_a_daemon_that_freezes_is_left_and_found_again(lab: Lab) -> None:
    with lab.running(plain("cold"), plain("colder")):
        readings = len(lab.ear.readings)
        lab.ear.forget("cold")
        with lab.host.frozen_daemon():
            pid = lab.host.kill_guest("cold")
            eventually(lab.guests.why_deaf)
            why = lab.guests.why_deaf()  # by its keepalive, or asked at that very moment
            assert "silent" in why or "no answer" in why
            eventually(lambda: not psutil.pid_exists(pid))
        del lab.way
        seen_again(lab, readings)
        eventually(lambda: lab.ear.verdicts("cold") == ["failed stopped failed"])
        time.sleep(0.5)
        comes_to(lab, "cold", "failed stopped failed")
        comes_to(lab, "colder")


def test_one_qemu_that_hangs_is_seen_and_delays_nothing_about_the_others(lab: Lab) -> None:
    names = [f"near-{number}" for number in range(4)]
    with lab.running(plain("frozen"), *map(plain, names)):
        for name in ("frozen", *names):
            lab.ear.forget(name)
        pid = lab.host.kill_guest("frozen", signal.SIGSTOP)
        try:
            lab.ear.wait("frozen", "monitor stuck")
            for name in names[:2]:  # it stays frozen: who waited for it would wait in vain
                lab.host.kill_guest(name)
                lab.ear.wait(name, DIED)
            ear = Ear()
            with contextlib.closing(LibvirtGuests(lab.host.url, SystemClock())) as late:
                late.start(ear)
                eventually(lambda: ear.readings, every=0.01)
            assert {"frozen", *names} <= set(ear.readings[0])
            assert lab.ear.verdicts("frozen", 50, "monitor stuck") == []
            assert lab.ear.verdicts("frozen", 70, "monitor stuck") == ["failed monitor stuck"]
        finally:
            lab.host.kill_guest("frozen", signal.SIGCONT)
        assert psutil.pid_exists(pid)
        lab.ear.wait("frozen", "monitor answering")
        for name in ("frozen", *names[2:]):
            comes_to(lab, name)


def test_what_changes_while_a_guest_runs_is_known_before_it_fails(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wish of its owner's, and a disk that was not there when it began."""
    import libvirt

    monkeypatch.setattr(driver, "AGAIN_S", ())
    ear = Ear()
    path = lab.host.sockets / "late.raw"
    path.write_bytes(bytes(2**16))
    path.chmod(0o666)
    disk = FILE_DISK.format(path=path).replace("dev='hda' bus='ide'", "dev='vdb' bus='virtio'")
    with (
        lab.running(plain("fickle")),
        contextlib.closing(LibvirtGuests(lab.host.url, SystemClock())) as guests,
    ):
        guests.start(ear)
        eventually(lambda: ear.readings)
        domain = lab.domain("fickle")
        uuid, live = domain.UUIDString(), libvirt.VIR_DOMAIN_AFFECT_LIVE
        element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        domain.setMetadata(element, '<guest ha="no"/>', "h", "urn:holdfast:guest", live)
        domain.attachDeviceFlags(disk, live)
        eventually(lambda: "vdb" in [disk.name for disk in guests._facts[uuid].disks.values()])
        lab.host.kill_guest("fickle")
        ear.wait("fickle", DIED)
        (died,) = [one for one in ear.events["fickle"] if one.reason == "failed"]
        assert died.metadata["ha"] == "no"


class Slow(Ear):
    """Listens to one thing, and then to nothing until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.waits = threading.Event()

    def heard(self, event: Any) -> None:
        self.waits.set()
        self.go_on.wait(600)
        super().heard(event)


def test_a_flood_of_events_is_bounded_and_hides_no_death(lab: Lab) -> None:
    names = ["flood-0", "flood-1"]
    with lab.running(*map(plain, names)):
        slow = Slow()
        guests = LibvirtGuests(lab.host.url, SystemClock(), most_waiting=50)
        guests.start(slow)
        eventually(lambda: slow.readings)
        began = time.monotonic()

        def shake(name: str) -> None:
            domain = lab.domain(name)
            for _ in range(250):
                domain.suspend()
                domain.resume()

        with ThreadPoolExecutor(2) as effects:
            list(effects.map(shake, names))
        took_s = time.monotonic() - began
        lab.host.kill_guest("flood-0")
        lab.ear.wait("flood-0", DIED)
        slow.go_on.set()
        eventually(lambda: slow.verdicts("flood-0") == ["failed stopped failed"])
        heard = sum(len(slow.said(name)) for name in names)
        assert heard < 200, f"1000 events in {took_s:.1f} s, {heard} were kept"
        lags_s = sorted(lab.ear.lags_s)
        p95_s = lags_s[len(lags_s) * 95 // 100]
        print(f"{len(lags_s)} events, 1000 of them in {took_s:.1f} s; judged after {p95_s:.4f} s")
        assert p95_s < 20.0  # a net: the whole way to the API may take 0.2 s on a quiet machine
        for name in names:  # whoever is quick enough hears all of it
            assert sum("suspended" in one for one in lab.ear.said(name)) == 250
        time.sleep(0.3)
        assert slow.verdicts("flood-0", LONG) == ["failed stopped failed"]
        eventually(lambda: slow.verdicts("flood-1", LONG) == [])
        guests.close()
