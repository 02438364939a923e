# SPDX-License-Identifier: Apache-2.0
"""Real guests of a real libvirt are gone, off or there although the cloud says otherwise: found by
the agent as its own program, from no event and no memory."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent.outbox import Outbox
from holdfast.drivers.libvirt import guests
from holdfast.drivers.libvirt.guests import LibvirtGuests
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.model.errors import DriverError
from holdfast.ports.guests import Guest
from holdfast.runtime.clock import SystemClock
from tests.e2e.town import HOST, Town, a_town
from tests.libvirt.host import GuestHost
from tests.processes import eventually
from tests.servers.libvirt import remove

EVERY_S = 0.5
MANY_LOOKS_S = 6 * EVERY_S


@dataclass
class Place:
    """The cloud is simulated and says what Nova would; its host's guests are real."""

    host: GuestHost
    town: Town

    def boot(self, *names: str) -> dict[str, str]:
        """Servers of the cloud, each with its guest; their ids."""
        made = {name: self.town.sim.boot(name, "demo", HOST, 1, 64, 1).id for name in names}
        with self.host.connected() as way:
            for name, own in made.items():
                way.defineXML(with_uuid(self.host.xml(name), own)).create()
        for name in names:
            self.host.wait_ready(name)
        return made

    def observed(self, server: str) -> list[str]:
        rows: list[dict[str, Any]] = self.town.client.wire.call(
            "GET",
            "/holdfast/v1/observations",
            query={"subject": f"server:{server}"},
            key="observations",
        )
        troubles = (row for row in rows if row["state"] != "well")
        said = (trouble["evidence"] | {"state": trouble["state"]} for trouble in troubles)
        return [f"{one['state']} {one['event']} {one['detail']}" for one in said]

    def recovered(self, server: str) -> None:
        def so() -> bool:
            statuses = [incident["status"] for incident in self.town.incidents(server)]
            assert statuses == ["recovered"], statuses
            return True

        eventually(so)

    def state(self, name: str) -> tuple[str, str]:
        with contextlib.closing(LibvirtGuests(self.host.url, SystemClock())) as driver:
            guests = eventually(lambda: read(driver)) or []
            return {guest.name: (guest.state, guest.reason) for guest in guests}[name]


def with_uuid(xml: str, own: str) -> str:
    return xml.replace("</name>", f"</name><uuid>{own}</uuid>", 1)


def end(host: GuestHost) -> None:
    with host.connected() as way:
        for domain in way.listAllDomains():
            remove(domain)


@pytest.fixture(scope="module")
def town(host: GuestHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with a_town(tmp_path_factory.mktemp("town")) as made:
        kept = [
            line
            for line in made.config.read_text().splitlines()
            if not line.startswith(("guests =", "guests_address ="))
        ]
        often = [f"expected_interval_s = {EVERY_S}", f"expected_grace_s = {EVERY_S}"]
        where = ["guests = libvirt", f"guests_address = {host.url}"]
        made.config.write_text("\n".join([*kept, *often, *where, ""]))
        yield made


@pytest.fixture
def place(host: GuestHost, town: Town) -> Iterator[Place]:
    yield Place(host, town)
    end(host)
    clear(town)


def clear(town: Town) -> None:
    """No server of the cloud is on the host any more."""
    file = str(town.folder / "state" / "sim.db")
    with contextlib.closing(SimCloud(file, SystemClock(), seed=1)) as cloud:
        for server in cloud.servers.list(host=HOST):
            cloud.servers.delete(server.id)


def noted(town: Town) -> str:
    """What the agent has written down of guests."""
    with contextlib.closing(Outbox(str(town.folder / "agent.outbox"))) as outbox:
        return str(outbox.note("guests"))


def lose_memory(town: Town) -> None:
    for file in town.folder.glob("agent.outbox*"):
        file.unlink()


def test_a_domain_that_was_removed_behind_everybodys_back_is_recovered(place: Place) -> None:
    town = place.town
    clear(town)
    made = place.boot("removed", "stays")
    agent = town.agent()
    with agent:
        town.knows(made["removed"])
        agent.kill()
        with place.host.connected() as way:
            domain = way.lookupByName("removed")
            domain.destroy()
            domain.undefine()
        lose_memory(town)
        agent.start()
        place.recovered(made["removed"])
        time.sleep(MANY_LOOKS_S)
        place.recovered(made["removed"])
    assert place.observed(made["removed"]) == ["failed expectation missing"]
    assert place.observed(made["stays"]) == []


@pytest.mark.slow("the cloud is asked 0, 6 and 12 s after a removal")
def test_a_domain_that_is_removed_while_the_agent_listens_is_recovered(place: Place) -> None:
    """Without waiting for the next look that would come by itself, an hour later."""
    clear(place.town)
    made = place.boot("removed", "deleted", "stays")
    seldom = place.town.folder / "seldom.conf"
    often = f"expected_interval_s = {EVERY_S}"
    seldom.write_text(place.town.config.read_text().replace(often, "expected_interval_s = 3600"))
    town = replace(place.town, config=seldom)
    file = str(town.folder / "state" / "sim.db")
    with town.agent():
        town.knows(made["removed"])
        town.knows(made["stays"])
        with contextlib.closing(SimCloud(file, SystemClock(), seed=1)) as cloud:
            cloud.servers.delete(made["deleted"])
        with place.host.connected() as way:
            for name in ("deleted", "removed"):
                domain = way.lookupByName(name)
                domain.destroy()
                domain.undefine()
        place.recovered(made["removed"])
    assert place.observed(made["removed"]) == ["failed expectation missing"]
    assert place.observed(made["deleted"]) == []
    assert place.observed(made["stays"]) == []


def test_guests_that_a_reboot_of_the_host_left_off_are_recovered(place: Place) -> None:
    """What libvirt knew of running guests is gone with the boot: it says `shutoff unknown`, which
    no event comes with, and which could be somebody's will if the cloud did not say otherwise."""
    town, host = place.town, place.host
    clear(town)
    made = place.boot("rebooted", "switched-off")
    agent = town.agent()
    with agent:
        town.knows(made["rebooted"])
        host.say("switched-off", "s")
        eventually(lambda: "'ended': 'shutdown'" in noted(town))
        agent.kill()
        host.die(signal.SIGKILL)
        pid = host.kill_guest("rebooted")
        eventually(lambda: not psutil.pid_exists(pid))
        for file in host.folder.glob("run/libvirt/qemu/run/*.xml"):
            file.unlink()
        host.start()
        assert place.state("rebooted") == ("shutoff", "unknown")
        assert place.state("switched-off") == ("shutoff", "unknown")
        agent.start()
        place.recovered(made["rebooted"])
        time.sleep(MANY_LOOKS_S)
    assert place.observed(made["rebooted"]) == ["failed expectation stopped"]
    assert place.observed(made["switched-off"]) == []  # its own will, which the agent had heard


def test_a_guest_that_the_cloud_has_off_is_noted(place: Place) -> None:
    town = place.town
    clear(town)
    made = place.boot("undead")
    file = str(town.folder / "state" / "sim.db")
    with contextlib.closing(SimCloud(file, SystemClock(), seed=1)) as cloud:
        cloud.servers.stop(made["undead"])
    with town.agent():
        eventually(lambda: place.observed(made["undead"]))
        time.sleep(MANY_LOOKS_S)
    assert place.observed(made["undead"]) == ["noted expectation unexpected"]
    assert town.incidents(made["undead"]) == []


# readings


@pytest.fixture
def driver(host: GuestHost) -> Iterator[LibvirtGuests]:
    """Never started: nobody listens."""
    with contextlib.closing(LibvirtGuests(host.url, SystemClock())) as made:
        yield made
    end(host)


def test_a_reading_needs_no_listener_and_is_not_held_up_by_a_qemu_that_hangs(
    host: GuestHost, driver: LibvirtGuests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "GUEST_S", 5.0)  # on a busy machine one that is well needs more
    monkeypatch.setattr(guests, "ANSWER_S", 60.0)
    with host.connected() as way:
        for name in ("frozen", "well"):
            way.defineXML(host.xml(name)).create()
        way.defineXML(host.xml("off"))
    host.wait_ready("frozen")
    pid = host.kill_guest("frozen", signal.SIGSTOP)

    def is_read() -> bool:
        guests, at = driver.read()
        found = {guest.name: guest.state for guest in guests}
        assert found["well"] == "running"  # or it got no processor all the while
        assert found["off"] == "shutoff"
        assert found["frozen"] in ("running", "unknown")
        assert at.tzinfo is not None
        return True

    try:
        for _ in range(5):
            eventually(is_read)
    finally:
        psutil.Process(pid).resume()


def test_a_daemon_that_is_away_or_frozen_has_no_guest_list(
    host: GuestHost, driver: LibvirtGuests, tmp_path: Path
) -> None:
    nowhere = LibvirtGuests(f"qemu+unix:///session?socket={tmp_path / 'none'}", SystemClock())
    with contextlib.closing(nowhere), pytest.raises(DriverError):
        nowhere.read()
    eventually(lambda: read(driver) == [])
    with host.frozen_daemon():
        began = time.monotonic()
        with pytest.raises(DriverError):
            driver.read()
        assert time.monotonic() - began < 60  # it is frozen for as long as we like
    eventually(lambda: read(driver) == [])
    host.die(signal.SIGKILL)
    with pytest.raises(DriverError):
        driver.read()
    host.start()
    eventually(lambda: read(driver) == [])


def read(driver: LibvirtGuests) -> Sequence[Guest] | None:
    """None if the daemon does not answer in time, be it away or only busy."""
    with contextlib.suppress(DriverError):
        return driver.read()[0]
    return None
