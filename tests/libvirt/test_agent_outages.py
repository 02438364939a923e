# SPDX-License-Identifier: Apache-2.0
"""libvirtd, the agent or the API goes away while guests die: every death is told once and mended,
and nothing that is no death is told. Real programs, real guests."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from holdfast.client.client import Client
from tests.libvirt.host import GuestHost
from tests.libvirt.site import Site, manned, recovered, verdict
from tests.processes import eventually, free_port
from tests.servers.libvirt import remove

HOST = "cmp-1"
#: How long the API is away at least, and the seconds until it is up again on top.
AWAY_S = float(os.environ.get("API_AWAY_S", "5"))
#: How often the agent is killed while guests die.
KILLS = int(os.environ.get("AGENT_KILLS", "6"))
SEED = int(os.environ.get("RACES_SEED", "7"))
#: Memory of an agent at most, and what a flood may add to it.
MOST_MB, MORE_MB = 200, 48


@pytest.fixture(scope="module")
def site(host: GuestHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = {"recovery": {"guest_max_recoveries": 10_000}}
    with manned(tmp_path_factory.mktemp("site"), {HOST: host.url}, options) as made:
        yield made


@contextlib.contextmanager
def guests(
    host: GuestHost, site: Site, *names: str, short: Sequence[str] = (), **shape: Any
) -> Iterator[dict[str, str]]:
    """Guests that run and whose agent knows them; their uuids. Those of `short` are not kept."""
    uuids: dict[str, str] = {}

    def boot(name: str) -> None:
        with host.connected() as way:
            xml = host.xml(name, **shape)
            if name in short:
                domain = way.createXML(xml)
            else:
                domain = way.defineXML(xml)
                domain.create()
            uuids[name] = domain.UUIDString()
        host.wait_ready(name)

    try:
        with ThreadPoolExecutor(4) as effects:
            list(effects.map(boot, (*names, *short)))
        site.begin(HOST, *uuids.values())
        yield uuids
    finally:
        site.agents[HOST].kill()
        with host.connected() as way:
            for domain in way.listAllDomains():
                if domain.name() in (*names, *short):
                    remove(domain)


def died(host: GuestHost, name: str) -> None:
    """It is killed, and gone."""
    pid = host.kill_guest(name)
    eventually(lambda: not psutil.pid_exists(pid), every=0.01)


# libvirtd


def test_deaths_while_libvirtd_is_dead_are_reported_once_and_recovered(
    host: GuestHost, site: Site
) -> None:
    names = ("gap-killed", "gap-panics", "gap-off", "gap-well")
    with guests(host, site, *names, short=["gap-short"], on_crash="preserve") as uuids:
        host.die(signal.SIGKILL)
        died(host, "gap-killed")
        died(host, "gap-short")
        host.say("gap-panics", "p")
        host.say("gap-off", "s")
        host.start()
        recovered(site, uuids["gap-killed"], 1)
        recovered(site, uuids["gap-panics"], 1)
        eventually(lambda: site.said(uuids["gap-short"]))
        died(host, "gap-well")
        recovered(site, uuids["gap-well"], 1)
        time.sleep(1)
        told = {name: site.said(uuid) for name, uuid in uuids.items()}
        assert told == {
            "gap-killed": ["failed stopped failed"],
            "gap-panics": ["failed panic panicked"],
            "gap-off": [],
            "gap-well": ["failed stopped failed"],
            "gap-short": ["failed stopped vanished"],
        }
        assert [site.statuses(uuids[name]) for name in names] == [
            *[["recovered"]] * 2,
            [],
            ["recovered"],
        ]


def test_deaths_while_libvirtd_is_frozen_are_reported_once_and_recovered(
    host: GuestHost, site: Site
) -> None:
    with guests(host, site, "cold", "colder") as uuids:
        agent = site.agents[HOST]
        before = len(agent.log.read_text())

        def is_missed() -> bool:
            said = agent.log.read_text()[before:]
            return any(one in said for one in ("silent", "no answer"))

        with host.frozen_daemon():
            died(host, "cold")
            agent.wait_until(is_missed)
        recovered(site, uuids["cold"], 1)
        time.sleep(1)
        recovered(site, uuids["cold"], 1)
        assert site.said(uuids["cold"]) == ["failed stopped failed"]
        assert (site.said(uuids["colder"]), site.statuses(uuids["colder"])) == ([], [])


# the agent


class Reaper:
    """Kills a guest whenever it runs and all its deaths before have been mended."""

    def __init__(self, host: GuestHost, site: Site, uuids: dict[str, str], seed: int) -> None:
        self.deaths: Counter[str] = Counter()
        self._host, self._uuids = host, uuids
        self._client = Client(site.client.url)
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._reap, daemon=True)
        self._broke: list[BaseException] = []

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()
        assert not self._broke, self._broke

    def _reap(self) -> None:
        try:
            while not self._stop.wait(self._chance.uniform(0.05, 0.4)):
                name = self._chance.choice(list(self._uuids))
                if self._mended(name):
                    died(self._host, name)
                    self.deaths[name] += 1
        except BaseException as error:  # the top of the thread: the test says it
            self._broke.append(error)

    def _mended(self, name: str) -> bool:
        found = self._client.incidents.list(kind="guest", limit=1000)
        mine = [one for one in found if one["subject"] == f"server:{self._uuids[name]}"]
        return [one["status"] for one in mine] == ["recovered"] * self.deaths[name]


@pytest.mark.slow("the agent is killed six times while guests die and are started again")
def test_an_agent_that_is_killed_again_and_again_loses_no_death_and_doubles_none(
    host: GuestHost, site: Site
) -> None:
    chance = random.Random(SEED)
    names = [f"doomed-{number}" for number in range(4)]
    with guests(host, site, *names) as uuids:
        agent = site.agents[HOST]
        with Reaper(host, site, uuids, SEED) as reaper:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.2, 2.0))
                agent.kill()
                agent.start()
            # where recoveries take long there were few so far
            eventually(lambda: reaper.deaths.total() >= KILLS / 2)
        for name, uuid in uuids.items():
            recovered(site, uuid, reaper.deaths[name])
        time.sleep(1)
        for name, uuid in uuids.items():
            recovered(site, uuid, reaper.deaths[name])
            told = [
                observation
                for observation in site.observations(uuid)
                if observation["state"] != "well"
            ]
            assert {verdict(one) for one in told} <= {"failed stopped failed"}, (SEED, name)
            assert len({one["incident_id"] for one in told}) == reaper.deaths[name], (SEED, name)
            assert len(site.said(uuid)) <= reaper.deaths[name], (SEED, name)
        print(f"{reaper.deaths.total()} deaths while the agent was killed {KILLS} times")


class Swallower:
    """Stands before the API: takes everything there, and lets no answer back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.near = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.near))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port), 60)
                self._open += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                far.sendall(data)

    def close(self) -> None:
        for one in self._open:
            one.close()


def test_a_report_whose_sender_was_killed_before_it_heard_that_it_was_taken_is_one(
    host: GuestHost, site: Site
) -> None:
    config = site.folder / f"{HOST}.conf"
    text = config.read_text()
    with guests(host, site, "unsure") as uuids:
        agent, uuid = site.agents[HOST], uuids["unsure"]
        port = int(site.client.url.rpartition(":")[2])
        with contextlib.closing(Swallower(port)) as swallower:
            agent.kill()
            config.write_text(text.replace(f":{port}", f":{swallower.near}"))
            agent.start()
            site.knows(HOST, uuid)
            died(host, "unsure")
            eventually(lambda: site.said(uuid))
            assert site.waiting(HOST) >= 1  # and that it runs again, if it does by now
            agent.kill()
        config.write_text(text)
        agent.start()
        eventually(lambda: site.waiting(HOST) == 0)
        recovered(site, uuid, 1)
        assert site.said(uuid) == ["failed stopped failed"]


# the API


@pytest.mark.slow("the API is away for a while and is started again")
def test_deaths_while_the_api_is_away_are_reported_once_afterwards(
    host: GuestHost, site: Site
) -> None:
    """The agent is killed meanwhile, with what it has to tell on disk."""
    names = ("away-0", "away-1", "away-2", "away-well")
    with guests(host, site, *names) as uuids:
        agent = site.agents[HOST]
        site.up.kill()
        gone = time.monotonic()
        died(host, "away-0")
        eventually(lambda: site.waiting(HOST) == 1)
        agent.kill()
        died(host, "away-1")
        agent.start()
        eventually(lambda: site.waiting(HOST) == 3)  # the first of them is said again
        died(host, "away-2")
        eventually(lambda: site.waiting(HOST) == 4)
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
        site.up.start()
        site.up.wait_http(f"{site.client.url}/readyz")
        for name in names[:3]:
            recovered(site, uuids[name], 1)
            assert site.said(uuids[name]) == ["failed stopped failed"]
        assert site.said(uuids["away-well"]) == []
        eventually(lambda: site.waiting(HOST) == 0)  # once it has heard that they were taken


# floods


def memory_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 2**20)


@contextlib.contextmanager
def bounded(pid: int) -> Iterator[None]:
    before = memory_mb(pid)
    yield
    after = memory_mb(pid)
    print(f"agent: {before:.0f} MB before, {after:.0f} MB after")
    assert after < MOST_MB
    assert after - before < MORE_MB


def shaken(host: GuestHost, name: str, times: int) -> None:
    with host.connected() as way:
        domain = way.lookupByName(name)
        for _ in range(times):
            domain.suspend()
            domain.resume()


def test_a_thousand_events_hide_no_death_and_cost_no_memory(host: GuestHost, site: Site) -> None:
    names = [f"shaken-{number}" for number in range(4)]
    with guests(host, site, *names, "victim-0", "victim-1") as uuids:
        agent = site.agents[HOST]
        with bounded(agent.pid), ThreadPoolExecutor(4) as effects:
            began = time.monotonic()
            shaking = [effects.submit(shaken, host, name, 125) for name in names]
            died(host, "victim-0")
            for one in shaking:
                one.result()
            died(host, "victim-1")
            print(f"1000 events in {time.monotonic() - began:.2f} s")
            for name in ("victim-0", "victim-1"):
                recovered(site, uuids[name], 1)
                assert site.said(uuids[name]) == ["failed stopped failed"]
        assert [site.said(uuids[name]) for name in names] == [[]] * 4
