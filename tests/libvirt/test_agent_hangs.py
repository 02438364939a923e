# SPDX-License-Identifier: Apache-2.0
"""Guests that hang, and services that end, through the agent's own program: from the fault to what
the API has of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.libvirt.host import CHANNEL, GuestHost
from tests.libvirt.site import Site, manned, recovered
from tests.processes import Kept, eventually, script
from tests.servers.libvirt import remove

HOST = "cmp-1"
WISH = '<h:guest xmlns:h="urn:holdfast:guest" heartbeat="yes"/>'
FILTERS = """\
rules:
  - {event: hang, detail: hung, after: 1s, do: recover}
  - {event: monitor, do: ignore}  # a machine of tests is slow at times
otherwise: defaults
"""
#: One that is well and gets no processor for a while misses a few heartbeats, too.
AGENT = {
    "heartbeat_interval_s": 1,
    "heartbeat_max_missed": 3,
    "heartbeat_idle_s": 5,
    "stalled_s": 6,
    "services_interval_s": 0.5,
}
HOGS = 3
HUNG = "failed hang hung"
#: As a service of the host: its socket says whether it is there; who starts it is told by a file.
SERVICES = """\
services:
  - name: libvirtd
    socket: {socket}
    restart: [touch, {wish}]
    patience: 10m
  - name: never-was
    restart: ["false"]
    if_seen: yes
  - name: gone
    matching: no such thing runs here
    restart: ["false"]
    tries: 2
    patience: 1s
"""


class Guests:
    def __init__(self, host: GuestHost) -> None:
        self._host = host
        self.ids: dict[str, str] = {}

    def begin(self, name: str, devices: str = "", metadata: str = "") -> str:
        with contextlib.closing(self._host.connected()) as way:
            domain = way.defineXML(self._host.xml(name, devices, metadata=metadata))
            domain.create()
            self.ids[name] = domain.UUIDString()
        self._host.wait_ready(name)
        return self.ids[name]

    def end(self) -> None:
        with contextlib.closing(self._host.connected()) as way:
            for uuid in self.ids.values():
                remove(way.lookupByUUIDString(uuid))


@pytest.fixture
def guests(host: GuestHost) -> Iterator[Guests]:
    made = Guests(host)
    yield made
    made.end()


@pytest.fixture(scope="module")
def wish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wish") / "restart"


@pytest.fixture(scope="module")
def site(host: GuestHost, wish: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hangs")
    services = folder / "services.yaml"
    services.write_text(SERVICES.format(socket=host.socket, wish=wish))
    agent = AGENT | {"services_file": services, "socket": folder / "agent.sock"}
    with manned(folder, {HOST: host.url}, agent=agent, filters=FILTERS) as made:
        made.begin(HOST)
        yield made


@pytest.mark.slow("libvirt itself takes five seconds to find that an agent does not answer")
@pytest.mark.timeout(600)
def test_a_guest_whose_agent_falls_silent_and_that_does_nothing_is_recovered(
    host: GuestHost, guests: Guests, site: Site
) -> None:
    hangs = guests.begin("ah-hangs", CHANNEL, WISH)
    unasked = guests.begin("ah-unasked", CHANNEL)
    site.knows(HOST, hangs, unasked)
    for name in ("ah-hangs", "ah-unasked"):
        eventually(lambda name=name: host.say(name, "a", 5) == b"channel\n")  # type: ignore[misc]
    # who never answered may still be booting; a wish that could not be read is, a minute later
    eventually(lambda: host.say("ah-hangs", "q", 5) == b"pinged\n", 240)
    # on a busy machine a guest may also be noted as stalled, which is true of it
    assert HUNG not in site.said(hangs)
    for name in ("ah-hangs", "ah-unasked"):
        host.say(name, "x")
    eventually(lambda: HUNG in site.said(hangs), 180)
    recovered(site, hangs, 1)
    host.wait_ready("ah-hangs")
    assert site.said(hangs).count(HUNG) == 1
    assert HUNG not in site.said(unasked)
    assert site.incidents(unasked) == []


@contextlib.contextmanager
def starved(host: GuestHost, name: str) -> Iterator[None]:
    """Its processor has the lowest priority, and others want the same one. Where the kernel shares
    between sessions, its session has the lowest, too."""
    (cpu, *_) = os.sched_getaffinity(0)
    pid = host.pid(name)
    threads = Path(f"/proc/{pid}/task").iterdir()
    (thread,) = [
        int(thread.name) for thread in threads if (thread / "comm").read_text().startswith("CPU 0")
    ]
    os.sched_setaffinity(thread, {cpu})
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text("19")
    busy = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with contextlib.ExitStack() as stack:
        for _ in range(HOGS):
            hog = Kept([sys.executable, "-c", busy], log=host.log)
            stack.callback(hog.close, keep=True)
        yield


def test_a_guest_without_processor_time_is_noted_and_not_recovered(
    host: GuestHost, guests: Guests, site: Site
) -> None:
    starves = guests.begin("ah-starves")
    spins = guests.begin("ah-spins")
    site.knows(HOST, starves, spins)
    pid = host.pid("ah-starves")
    for name in ("ah-starves", "ah-spins"):
        host.say(name, "b")
    with starved(host, "ah-starves"):
        eventually(lambda: site.said(starves))
    assert set(site.said(starves)) == {"noted hang stalled"}  # twice, if it got some in between
    assert site.observations(starves)[0]["evidence"]["reason"] == "vcpu 0"
    assert site.said(spins) == []
    assert site.incidents(starves) == []
    assert host.pid("ah-starves") == pid


def test_a_libvirtd_that_ends_is_restarted_and_its_guests_are_seen_again(
    host: GuestHost, guests: Guests, site: Site, wish: Path
) -> None:
    lives = guests.begin("ah-lives")
    site.knows(HOST, lives)
    assert not wish.exists()
    host.die(signal.SIGKILL)
    try:
        eventually(wish.exists)
    finally:
        host.start()
    host.kill_guest("ah-lives")
    eventually(lambda: site.said(lives) == ["failed stopped failed"])
    time.sleep(1)
    log = site.agents[HOST].log.read_text()
    assert "libvirtd does not run (no answer at" in log
    assert "restart 1/3" in log
    assert "restart 2/3" not in log
    assert "never-was" not in log


def test_a_service_that_no_restart_brings_back_is_reported_once_in_spite_of_kills_of_the_agent(
    site: Site,
) -> None:
    def told() -> list[str]:
        found = site.client.wire.call(
            "GET",
            "/holdfast/v1/observations",
            query={"subject": f"process:{HOST}:gone"},
            key="observations",
        )
        return [f"{one['state']}: {one['evidence']['sentence']}" for one in found]

    wanted = ["failed: gone does not run after 2 restarts: no such process"]
    eventually(lambda: told() == wanted)
    agent = site.agents[HOST]
    for _ in range(2):
        agent.kill()
        site.begin(HOST)
        time.sleep(2)
    assert told() == wanted
    log = agent.log.read_text()
    assert log.count("gone does not run (no such process): restart") == 2
    assert "gone could not be restarted: false ended with 1" in log


def test_the_command_shows_what_the_file_would_have_watched(site: Site) -> None:
    command = [script("holdfast"), "guest", "service", "check", site.folder / "services.yaml"]
    ran = subprocess.run([*command, "-f", "value"], check=True, capture_output=True, text=True)
    first, second, _third = ran.stdout.splitlines()
    assert "libvirtd socket" in first
    assert "if seen running before" in second
