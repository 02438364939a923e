# SPDX-License-Identifier: Apache-2.0
"""What is read of real guests, and when: of one that storage has stopped why, and all of them again
and again. And what libvirt's own binding makes of an event that no guest of ours can cause."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.drivers.libvirt import domain_xml
from holdfast.drivers.libvirt import guests as driver
from holdfast.drivers.libvirt import guests as libvirt_guests
from holdfast.drivers.libvirt.domain_xml import GuestDisk, GuestFacts
from holdfast.drivers.libvirt.guests import EventConnection, LibvirtGuests
from holdfast.ports.guests import Guest
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.libvirt.faults import FAULTS, Lab, Row, listening
from tests.libvirt.host import GuestHost
from tests.processes import eventually
from tests.simclock import SimClock

#: Seconds; a reading takes a few milliseconds for each guest, and one for a QEMU that hangs.
NET_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is well is waited for, however busy the machine."""
    monkeypatch.setattr(libvirt_guests, "ANSWER_S", 60.0)


def found(guests: LibvirtGuests, name: str) -> Guest:
    return next(one for one in guests.read()[0] if one.name == name)


def spoilt(lab: Lab, row: Row) -> None:
    row.fault(lab, row.name)
    lab.ear.wait(row.name, "lifecycle suspended ioerror")


def test_who_comes_too_late_to_hear_it_reads_which_disk_stopped_a_guest_and_why(
    host: GuestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libvirt_guests, "GUEST_S", 30.0)
    rows = [row for row in FAULTS if row.name in ("eio-stop", "full-stop", "full-enospace")]
    with listening(host) as lab, lab.running(*rows):
        for row in rows:
            assert (found(lab.guests, row.name).error, found(lab.guests, row.name).disk) == ("", "")
            spoilt(lab, row)
        late = Ear()
        with contextlib.closing(LibvirtGuests(host.url, SystemClock())) as guests:
            guests.start(late)
            eventually(lambda: late.readings)
            read = {row.name: found(guests, row.name) for row in rows}
        seen = {name: (one.reason, one.error, one.disk) for name, one in read.items()}
        assert seen == {
            "eio-stop": ("ioerror", "", "hda"),
            "full-stop": ("ioerror", "enospc", "hda"),
            "full-enospace": ("ioerror", "enospc", "hda"),
        }
        assert all(one.path for one in read.values())
        assert late.verdicts("eio-stop", 60) == ["failed io_error pause"]
        assert late.verdicts("full-stop", 60) == ["noted io_error pause"]


def test_a_qemu_that_storage_has_stopped_and_that_hangs_holds_up_no_reading(
    host: GuestHost,
) -> None:
    (full,) = [row for row in FAULTS if row.name == "full-stop"]
    row = replace(full, name="full-frozen")  # its disk is its own
    other = Row("beside", lambda lab, name: None, ())
    with listening(host) as lab, lab.running(row, other):
        spoilt(lab, row)
        host.kill_guest(row.name, signal.SIGSTOP)

        def is_read() -> bool:
            began = time.monotonic()
            guests = {one.name: one for one in lab.guests.read()[0]}
            assert time.monotonic() - began < NET_S
            # or it got no processor all the while
            assert (guests[row.name].state, guests[row.name].reason) == ("paused", "ioerror")
            assert guests["beside"].state == "running"
            return True

        try:
            for _ in range(libvirt_guests.MOST_DISKS + libvirt_guests.MOST_CALLS + 1):
                eventually(is_read)
        finally:
            host.kill_guest(row.name, signal.SIGCONT)
        eventually(lambda: found(lab.guests, row.name).error == "enospc")


def test_all_are_read_again_and_again_so_that_nobody_remembers_who_is_gone(
    host: GuestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "AGAIN_S", ())
    monkeypatch.setattr(driver, "READ_EVERY_S", 0.2)
    job = Row("job", lambda lab, name: lab.domain(name).destroy(), (), kept=False)
    with listening(host) as lab:
        with lab.running(job):
            assert "job" in {track.name for track in lab.ear.watches["job"].tracks.values()}
            job.fault(lab, "job")
            lab.ear.wait("job", "lifecycle stopped destroyed")
        eventually(lambda: not lab.ear.watches["job"].tracks)
        readings = len(lab.ear.readings)
        eventually(lambda: len(lab.ear.readings) > readings + 1)


def test_of_several_disks_that_fail_one_that_lacks_more_than_space_counts() -> None:
    known = GuestFacts(disks={"a": GuestDisk("vdb", "pool/b")})
    assert libvirt_guests._worst({"vda": 2, "vdb": 1}, known) == ("", "vdb", "pool/b")
    assert libvirt_guests._worst({"vdb": 2, "vdc": 2}, known) == ("enospc", "vdb", "pool/b")
    assert libvirt_guests._worst({}, known) == ("", "", "")


def test_an_error_of_a_disk_has_the_number_that_libvirt_gives_it() -> None:
    import libvirt

    assert domain_xml.DISK_ERROR == {
        libvirt.VIR_DOMAIN_DISK_ERROR_UNSPEC: "",
        libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE: "enospc",
    }


# memory that fails, which only the host's own memory can do


@pytest.mark.parametrize("recipient", ["hypervisor", "guest"])
@pytest.mark.parametrize("action", ["ignore", "inject", "fatal", "reset"])
@pytest.mark.parametrize("flags", ["", "ACTION_REQUIRED", "RECURSIVE"])
def test_a_memory_failure_has_its_action_and_its_recipient(
    recipient: str, action: str, flags: str
) -> None:
    """Through libvirt's own binding, which hands on its arguments in their order."""
    import libvirt

    event = "VIR_DOMAIN_EVENT_MEMORY_FAILURE"
    numbers = (
        getattr(libvirt, f"{event}_RECIPIENT_{recipient.upper()}"),
        getattr(libvirt, f"{event}_ACTION_{action.upper()}"),
        getattr(libvirt, f"VIR_DOMAIN_MEMORY_FAILURE_{flags}") if flags else 0,
    )
    ear, guests = Ear(), LibvirtGuests("test:///default", SimClock())
    guests._dispatcher = driver.Dispatcher(ear, lambda: None, SystemClock())
    guests._dispatcher.start()
    take = guests._decoders()[libvirt.VIR_DOMAIN_EVENT_ID_MEMORY_FAILURE]
    with contextlib.closing(libvirt.open("test:///default")) as way:
        domain: Any = way.lookupByName("test")
        guests._events = EventConnection(way)
        heard = functools.partial(guests._on_event, guests._events, take)
        about = {"cb": heard, "opaque": None}
        way._dispatchDomainEventMemoryFailureCallback(domain._o, *numbers, about)
        eventually(lambda: ear.said("test") == [f"memory_failure {action} {recipient}"])
        guests._events = EventConnection()
    guests.close()
    assert ear.verdicts("test") == [f"noted memory_failure {action}"]
