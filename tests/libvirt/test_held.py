# SPDX-License-Identifier: Apache-2.0
"""An order to a QEMU that does not end, and ordinary ones that take their time."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.drivers.libvirt.guests import LibvirtGuests
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.libvirt.faults import LONG, Lab, Row
from tests.libvirt.host import GuestHost
from tests.processes import PATIENCE_S, eventually

#: More than a busy machine keeps a QEMU from answering.
HELD_S = STUCK_S = 4.0


@pytest.fixture(scope="module")
def lab(host: GuestHost) -> Iterator[Lab]:
    ear = Ear()
    spans = {"probe_every_s": 0.5, "stuck_s": STUCK_S, "held_s": HELD_S}
    guests = LibvirtGuests(host.url, SystemClock(), **spans)
    guests.start(ear)
    eventually(lambda: not guests.why_deaf())
    yield Lab(host, ear, guests)
    guests.close()


def row(name: str, *, proxied: bool = False) -> Row:
    return Row(name, lambda lab, name: None, (), file=True, proxied=proxied)


def ready_copy(lab: Lab, name: str) -> Any:
    """A disk is being copied, for as long as nobody ends that."""
    domain, path = lab.domain(name), lab.host.sockets / f"{name}.copy"
    job = f"<disk type='file'><source file='{path}'/><driver type='raw'/></disk>"
    domain.blockCopy("hda", job, {}, 4)
    lab.ear.wait(name, "block_job ready copy hda")
    return domain


def is_well(lab: Lab, name: str) -> None:
    """Nothing is said of its monitor that was not taken back: a machine that is busy may keep it
    from answering for a while."""

    def so() -> bool:
        said = [one for one in lab.ear.said(name) if one.startswith("monitor ")]
        assert said[-1:] in ([], ["monitor answering"], ["monitor released"]), said
        return True

    eventually(so)


def test_a_command_that_hangs_is_reported_from_its_begin_to_its_end(lab: Lab) -> None:
    with lab.running(row("held", proxied=True)):
        domain = ready_copy(lab, "held")
        lab.host.spoil("held", "keep")
        begun = datetime.now(UTC)
        order = threading.Thread(target=domain.blockJobAbort, args=("hda",))
        order.start()
        lab.ear.wait("held", "monitor held")
        (event,) = [one for one in lab.ear.events["held"] if one.detail == "held"]
        # its begin, not when it was told of
        assert event.at - begun > timedelta(seconds=-1)
        assert datetime.now(UTC) - event.at >= timedelta(seconds=HELD_S)
        assert lab.ear.verdicts("held", 50, "monitor held") == []
        assert lab.ear.verdicts("held", 70, "monitor held") == ["noted monitor held"]
        lab.host.spoil("held", "give")
        order.join(PATIENCE_S)
        lab.ear.wait("held", "monitor released")
        assert lab.ear.verdicts("held", LONG) == []


def test_each_of_six_hanging_qemus_is_reported_and_no_other(lab: Lab) -> None:
    frozen = [f"ice-{number}" for number in range(6)]
    well = [f"warm-{number}" for number in range(4)]
    with lab.running(*(row(name) for name in (*frozen, *well))):
        pids = {name: lab.host.kill_guest(name, signal.SIGSTOP) for name in frozen}
        try:
            for name in frozen:
                lab.ear.wait(name, "monitor stuck")
            for name in well:
                is_well(lab, name)
            assert lab.domain("warm-0").isActive()  # somebody is left there who answers
        finally:
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)
        for name in frozen:
            lab.ear.wait(name, "monitor answering")


def test_a_copy_and_a_save_that_take_long_are_nothing(lab: Lab) -> None:
    with lab.running(row("copied"), row("saved"), row("clock")):
        ready_copy(lab, "copied")
        pipe = lab.host.sockets / "saved.pipe"
        os.mkfifo(pipe)
        pipe.chmod(0o666)
        reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # it takes what fits, and no more
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        saving = threading.Thread(target=lab.domain("saved").save, args=(str(pipe),))
        saving.start()
        try:
            # one that does hang is found meanwhile, and so is that it goes on again
            pid = lab.host.kill_guest("clock", signal.SIGSTOP)
            try:
                lab.ear.wait("clock", "monitor stuck")
            finally:
                os.kill(pid, signal.SIGCONT)
            lab.ear.wait("clock", "monitor answering")
            for name in ("copied", "saved"):
                is_well(lab, name)
            assert saving.is_alive()
        finally:
            _drain(reader, saving)


def _drain(reader: int, saving: threading.Thread) -> None:
    until = time.monotonic() + PATIENCE_S
    while saving.is_alive() and time.monotonic() < until:
        try:
            os.read(reader, 2**16)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(reader)
    saving.join(PATIENCE_S)
    assert not saving.is_alive()
