# SPDX-License-Identifier: Apache-2.0
"""What happens within a real operating system, from its own words to what the API has of it: Linux
panics, its watchdog expires, its guest agent (QEMU's own) ends, comes back and falls silent."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.model.incident import LIVING
from tests.libvirt.ear import Ear
from tests.libvirt.faults import Lab, listening, watchdog
from tests.libvirt.host import CHANNEL, GuestHost
from tests.libvirt.site import Site, manned
from tests.processes import PATIENCE_S, eventually
from tests.servers.base import Missing
from tests.servers.libvirt import remove
from tests.servers.linux import Console, Linux, built

HOST, OBSERVER = "cmp-1", "agent@cmp-1"
#: One guest has an agent, the other a watchdog.
TALKS, BARKS = "lx-talks", "lx-barks"
WISH = '<h:guest xmlns:h="urn:holdfast:guest" heartbeat="yes"/>'
FILTERS = """\
rules:
  - {event: hang, detail: hung, after: 1s, do: recover}
  - {event: agent, detail: disconnected, reason: channel, do: report}
  - {event: monitor, do: ignore}  # a machine of tests is slow at times
otherwise: defaults
"""
#: One that is well and gets no processor for a while misses a few, too.
AGENT = {"heartbeat_interval_s": 1, "heartbeat_max_missed": 3, "heartbeat_idle_s": 6}
#: A wish that could not be read is read again a minute later.
SILENCE_S = 240.0
TOLD = {
    TALKS: ["noted agent disconnected", "failed hang hung"],
    BARKS: ["failed watchdog pause", "failed panic panicked"],
}


@pytest.fixture(scope="module")
def linux() -> Linux:
    try:
        return built()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@contextlib.contextmanager
def booted(lab: Lab, xmls: dict[str, str]) -> Iterator[dict[str, Console]]:
    """All at once."""
    with contextlib.ExitStack() as stack:
        consoles = {}
        for name, xml in xmls.items():
            domain = lab.way.defineXML(xml)
            stack.callback(remove, domain)
            domain.create()
            consoles[name] = Console(lab.host.sockets / name)
            stack.callback(consoles[name].close)
        for console in consoles.values():
            console.ready()
        yield consoles


@dataclass(frozen=True)
class Row:
    """A guest, and who hears of it."""

    name: str
    uuid: str
    console: Console
    ear: Ear
    site: Site

    def stored(self, number: int, within_s: float = PATIENCE_S) -> None:
        """The API has the first so many of what is to be told, and nothing else; an agent that ends
        a second time is noted a second time if that is more than a minute later."""

        def so() -> bool:
            said = [words for words, _ in itertools.groupby(self.site.said(self.uuid))]
            assert said == TOLD[self.name][:number]
            return True

        eventually(so, within_s)

    def is_over(self) -> bool:
        """There was an incident, and it has ended."""
        found = self.site.statuses(self.uuid)
        return bool(found) and not set(found) & set(LIVING)

    def has_its_incidents(self) -> bool:
        """One for each failure that the agent told of, once the reports were taken in."""
        found = self.site.observations(self.uuid)
        assert {one["observer"] for one in found} == {OBSERVER}
        told = [one["incident_id"] for one in found if one["state"] == "failed"]
        known = [incident["id"] for incident in self.site.incidents(self.uuid)]
        assert all(told) and sorted(told) == sorted(known), (told, known)
        return True


@pytest.mark.slow("two guests boot Linux on an emulated processor")
@pytest.mark.timeout(900)
def test_what_fails_within_linux_is_stored_as_what_it_means(
    host: GuestHost, linux: Linux, tmp_path: Path
) -> None:
    mine = linux.copied(host.folder)
    xmls = {
        TALKS: mine.within(host.xml(TALKS, CHANNEL, metadata=WISH)),
        BARKS: mine.within(host.xml(BARKS, watchdog("pause"), on_crash="preserve")),
    }
    options = {"recovery": {"dry_run": True}}
    with (
        manned(tmp_path, {HOST: host.url}, options, agent=AGENT, filters=FILTERS) as site,
        listening(host) as lab,
    ):
        site.begin(HOST)
        with booted(lab, xmls) as consoles, ThreadPoolExecutor(2) as effects:
            rows = {
                name: Row(name, lab.domain(name).UUIDString(), console, lab.ear, site)
                for name, console in consoles.items()
            }
            site.knows(HOST, *(row.uuid for row in rows.values()))
            silence = effects.submit(agent_ends_and_falls_silent, rows[TALKS])
            effects.submit(watchdog_expires_and_kernel_panics, rows[BARKS], host).result()
            silence.result()
            for row in rows.values():
                row.stored(len(TOLD[row.name]))
                eventually(row.has_its_incidents)


def agent_ends_and_falls_silent(row: Row) -> None:
    console, ear = row.console, row.ear
    ear.wait(TALKS, "agent disconnected domain_started", "agent connected channel")
    for signal in ("KILL", "TERM"):
        was_asked(console)
        ear.forget(TALKS)
        console.do(f"kill -{signal} $(pidof qemu-ga)")
        ear.wait(TALKS, "agent disconnected channel")
        row.stored(1)
        ear.forget(TALKS)
        console.do("rm /run/agent.log; agent")
        ear.wait(TALKS, "agent connected channel")
    # now its channel stays open, and nobody answers there
    was_asked(console)
    console.do("kill -STOP $(pidof qemu-ga)")
    row.stored(2, SILENCE_S)
    told = [
        observation
        for observation in row.site.observations(row.uuid)
        if observation["state"] == "failed"
    ]
    assert told[-1]["evidence"]["reason"] == "idle"


def was_asked(console: Console) -> None:
    """The agent itself has written down that somebody wanted to know whether it lives."""
    eventually(lambda: "guest-ping" in console.do("cat /run/agent.log"), SILENCE_S, 0.2)


def watchdog_expires_and_kernel_panics(row: Row, host: GuestHost) -> None:
    row.console.do("watchdog -T 4 -t 60 -F /dev/watchdog &")
    row.ear.wait(BARKS, "watchdog pause", "lifecycle suspended watchdog")
    row.stored(1)
    eventually(row.is_over)  # or what fails next would belong to the same incident
    with host.connected() as way:
        way.lookupByName(BARKS).resume()
    row.ear.wait(BARKS, "lifecycle resumed unpaused")
    row.console.say("echo c > /proc/sysrq-trigger")
    row.ear.wait(BARKS, "lifecycle crashed panicked")
    row.stored(2)
    row.console.wait("sysrq triggered crash")
