# SPDX-License-Identifier: Apache-2.0
"""Real guests with an agent: they answer, hang, or have stopped their agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from holdfast.agent.hangs import HangSettings, HangWatch
from holdfast.drivers.libvirt import heartbeat
from holdfast.drivers.libvirt.heartbeat import LibvirtHeartbeats
from holdfast.ports.guests import Pulse
from holdfast.runtime.clock import SystemClock
from tests.libvirt.host import CHANNEL, FILE_DISK, GuestHost
from tests.processes import eventually
from tests.servers.libvirt import end

WISH = '<h:guest xmlns:h="urn:holdfast:guest" heartbeat="{}"/>'
NAMES = ("hb-well", "hb-idle", "hb-spin", "hb-busy", "hb-gone", "hb-other")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is well is waited for, however busy the machine; libvirt knows who does not hear."""
    for name in ("ANSWER_S", "SPARE_S", "FACTS_S"):
        monkeypatch.setattr(heartbeat, name, 30)


@pytest.fixture(scope="module")
def guests(host: GuestHost) -> Iterator[GuestHost]:
    with contextlib.closing(host.connected()) as way:

        def begin(name: str) -> None:
            path = host.sockets / f"{name}.raw"
            path.write_bytes(bytes(2**16))
            path.chmod(0o666)
            wish = WISH.format("no" if name == "hb-other" else "yes")
            devices = CHANNEL + FILE_DISK.format(path=path)
            way.createXML(host.xml(name, devices, metadata=wish))
            host.wait_ready(name)
            eventually(lambda: host.say(name, "a", 5) == b"channel\n")

        with ThreadPoolExecutor(3) as effects:
            list(effects.map(begin, NAMES))
        yield host
        for domain in way.listAllDomains():
            if domain.name() in NAMES:
                end(domain)


def test_as_long_as_nobody_wants_it_nothing_is_opened_that_could_write(host: GuestHost) -> None:
    with contextlib.closing(host.connected()) as way:
        domain = way.createXML(host.xml("hb-none"))
        heart = LibvirtHeartbeats(host.url, SystemClock())
        try:
            asked = heart.pulses()  # of guests of other tests, maybe
            assert bool(heart._pool._connections) == bool(asked)
            read = dict(heart._facts)
            assert (domain.UUIDString(), domain.ID()) in read
            heart.pulses()
            assert heart._facts == read  # nobody's XML was read a second time
        finally:
            domain.destroy()
        heart.pulses()
        assert domain.UUIDString() not in {uuid for uuid, _ in heart._facts}
        heart.close()


@pytest.mark.slow("libvirt itself takes five seconds to find that an agent does not answer")
@pytest.mark.timeout(600)
def test_a_hung_guest_differs_from_a_working_guest_and_a_guest_without_an_agent(
    guests: GuestHost,
) -> None:
    heart = LibvirtHeartbeats(guests.url, SystemClock())
    watch = HangWatch(HangSettings(misses=2, quiet_s=3.0))
    said: dict[str, list[str]] = {name: [] for name in NAMES}

    def look() -> dict[str, Pulse]:
        pulses = heart.pulses()
        running = [pulse.uuid for pulse in pulses]
        for event in watch.check(pulses, running, datetime.now(UTC), time.monotonic()):
            said[event.name].append(f"{event.detail} {event.reason}")
        return {pulse.name: pulse for pulse in pulses}

    def all_answer() -> bool:
        found = look()
        return sorted(found) == sorted(NAMES[:-1]) and all(one.answered for one in found.values())

    eventually(all_answer)
    for name, command in (("hb-idle", "x"), ("hb-spin", "b"), ("hb-gone", "A")):
        guests.say(name, command)
    until = time.monotonic() + 240
    while time.monotonic() < until and not (said["hb-idle"] and said["hb-spin"]):
        assert guests.say("hb-busy", "d", 60) == b"good\n"
        found = look()
    assert said == {
        "hb-well": [],
        "hb-idle": ["hung idle"],
        "hb-spin": ["hung spinning"],
        "hb-busy": [],
        "hb-gone": [],
        "hb-other": [],
    }
    eventually(lambda: look()["hb-well"].answered)
    assert not found["hb-gone"].open
    heart.close()


def test_missing_write_access_is_reported_with_the_next_step() -> None:
    import libvirt

    heart = LibvirtHeartbeats("test:///default", SystemClock())
    with pytest.raises(libvirt.libvirtError) as refused:
        libvirt.openReadOnly("test:///default").defineXML("<domain/>")
    said = heart._why(refused.value)
    assert "the group libvirt" in said
    assert "heartbeat_interval_s = 0" in said
    with pytest.raises(libvirt.libvirtError) as other:
        libvirt.open("test:///default").lookupByName("nobody")
    assert heart._why(other.value) == str(other.value)
