# SPDX-License-Identifier: Apache-2.0
"""Real guests with an agent: they answer, hang, or have stopped their agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from holdfast.drivers.guests.heartbeat import LibvirtHeartbeats
from holdfast.ports.clock import SystemClock
from holdfast.ports.guests import Pulse
from holdfast.watch.hangs import HangWatch, Settings
from tests.guests.host import CHANNEL, FILE_DISK, GuestHost
from tests.processes import eventually

WISH = '<h:guest xmlns:h="urn:holdfast:guest" heartbeat="{}"/>'
NAMES = ("hb-well", "hb-idle", "hb-spin", "hb-busy", "hb-gone", "hb-other")


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
            eventually(lambda: host.say(name, "a") == b"channel\n")

        with ThreadPoolExecutor(3) as hands:
            list(hands.map(begin, NAMES))
        yield host
        for domain in way.listAllDomains():
            if domain.name() in NAMES:
                domain.destroy()


def test_a_guest_that_hangs_is_told_from_one_that_works_and_one_without_an_agent(
    guests: GuestHost,
) -> None:
    heart = LibvirtHeartbeats(guests.url, SystemClock())
    watch = HangWatch(Settings(misses=2, quiet_s=3.0))
    said: dict[str, list[str]] = {name: [] for name in NAMES}

    def look() -> dict[str, Pulse]:
        pulses = heart.pulses()
        for event in watch.look(pulses, datetime.now(UTC), time.monotonic()):
            said[event.name].append(f"{event.detail} {event.reason}")
        return {pulse.name: pulse for pulse in pulses}

    eventually(lambda: all(pulse.answered for pulse in look().values()), 20)
    assert sorted(look()) == sorted(NAMES[:-1])
    for name, command in (("hb-idle", "x"), ("hb-spin", "b"), ("hb-gone", "A")):
        guests.say(name, command)
    until = time.monotonic() + 40
    while time.monotonic() < until and not (said["hb-idle"] and said["hb-spin"]):
        assert guests.say("hb-busy", "d") == b"good\n"
        found = look()
    assert said == {
        "hb-well": [],
        "hb-idle": ["hung idle"],
        "hb-spin": ["hung spinning"],
        "hb-busy": [],
        "hb-gone": [],
        "hb-other": [],
    }
    assert found["hb-well"].answered
    assert not found["hb-gone"].open
    heart.close()
