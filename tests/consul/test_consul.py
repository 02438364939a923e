# SPDX-License-Identifier: Apache-2.0
"""The Consul driver on a real cluster: three servers, three clients, each a network namespace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.drivers.consul import ConsulMembership, Endpoint
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import DriverError
from holdfast.ports.membership import LEFT, Members
from holdfast.runtime.clock import SystemClock
from tests.conftest import serve
from tests.consul.patient import PatientClock
from tests.processes import PATIENCE_S, eventually
from tests.servers.consul import CONTROLLERS, Site

NET = "storage"
#: How long a look may wait for news: much longer than any of these tests makes it wait.
LONG_S = 100.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Site]:
    yield from serve(Site(networks=(NET,)))


@pytest.fixture
def site(cluster: Site) -> Iterator[Site]:
    """Whole, whatever the test before has done to it, and seen to be so for a while."""
    cluster.whole()
    cluster.calm()
    yield cluster


@pytest.fixture
def asking(site: Site) -> Iterator[Callable[..., ConsulMembership]]:
    """A driver that asks the agent of one host; one in a hurry has its two seconds and no more."""
    made: list[ConsulMembership] = []

    def make(host: str, watch_servers: bool = False, hurry: bool = False) -> ConsulMembership:
        door = Endpoint(site.agent(host, NET).url)
        clock = SystemClock() if hurry else PatientClock()
        made.append(ConsulMembership(NET, door, clock, watch_servers=watch_servers))
        return made[-1]

    yield make
    for each in made:
        each.close()


Asking = Callable[..., ConsulMembership]


def following(asked: ConsulMembership, until: Callable[[Members], bool]) -> list[Members]:
    """All answers, one after the other, up to the one that is waited for."""
    seen = [asked.poll(None, 0)]
    while not until(seen[-1]):
        assert len(seen) < 100, seen
        seen.append(asked.poll(seen[-1].version, LONG_S))
    return seen


def others(site: Site) -> list[str]:
    """Controllers without the leader."""
    return [each for each in CONTROLLERS if each != site.leader(NET)]


def test_hosts_are_seen_and_neither_servers_nor_ourselves(site: Site, asking: Asking) -> None:
    hosts = {"h1": UP, "h2": UP, "h3": UP}
    sees(asking("k1"), hosts)
    sees(asking("k1", watch_servers=True), hosts | {"k2": UP, "k3": UP})
    sees(asking("h1"), {"h2": UP, "h3": UP})


def sees(asked: ConsulMembership, states: Mapping[str, str]) -> None:
    """For a moment at least: one that gets no processor may look dead to the others."""

    def so() -> bool:
        try:
            return bool(asked.poll(None, 0).states == states)
        except DriverError:
            return False

    eventually(so)


def test_a_proof_names_the_leader_and_everybody(site: Site, asking: Asking) -> None:
    proof = asking("k1").prove()
    leader = site.cables.address(site.leader(NET), NET)
    assert (proof.leader, proof.me) == (f"{leader}:8300", "k1")
    assert (proof.servers_alive, proof.servers) == (3, 3)
    assert proof.gossip == dict.fromkeys(site.hosts, UP)


def test_a_failure_is_seen_as_soon_as_consul_sees_it(site: Site, asking: Asking) -> None:
    asked = asking("k1")

    def is_down(seen: Members) -> bool:
        return seen.states["h1"] == DOWN

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(lambda: (following(asked, is_down), time.monotonic()))
        time.sleep(0.2)
        assert not looking.done()
        site.cut("h1", NET)
        eventually(lambda: site.agent("k1", NET).members()["h1"] == "failed", every=0.005)
        failed_at = time.monotonic()
        seen, seen_at = looking.result(LONG_S)
    assert seen[-1].states == {"h1": DOWN, "h2": UP, "h3": UP}
    assert seen_at - failed_at < LONG_S / 4  # of what it would wait for news
    assert asked.prove().gossip["h1"] == DOWN


def test_without_a_change_a_poll_ends_after_its_timeout(site: Site, asking: Asking) -> None:
    asked = asking("k2")

    def nothing_new() -> float:
        before = asked.poll(None, 0)
        began = time.monotonic()
        assert asked.poll(before.version, 1.5) == before
        return time.monotonic() - began

    assert 1.4 < eventually(nothing_new) < 60  # Consul's own time is five minutes


def test_a_member_which_leaves_is_never_down(site: Site, asking: Asking) -> None:
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(following, asking("k3"), lambda seen: seen.states["h2"] == LEFT)
        site.agent("h2", NET).ask("/v1/agent/leave", "PUT", timeout=PATIENCE_S)
        seen = looking.result(LONG_S)
    assert {each.states["h2"] for each in seen} <= {UP, LEFT}
    assert asking("k3").prove().gossip["h2"] == LEFT


def test_a_silent_death_of_the_leader_keeps_no_poll_waiting(site: Site, asking: Asking) -> None:
    leader, asked = site.leader(NET), asking(others(site)[0])
    asked.prove()
    version = asked.poll(None, 0).version
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(asked.poll, version, LONG_S)
        time.sleep(0.2)
        site.cut(leader, NET)
        began = time.monotonic()
        eventually(lambda: _proves(asked) and site.leader(NET) != leader)
        assert looking.result(LONG_S).states.keys() == {"h1", "h2", "h3"}
    assert time.monotonic() - began < 0.7 * LONG_S  # that look would have waited for news so long
    sees(asked, {"h1": UP, "h2": UP, "h3": UP})


def test_a_leader_cut_off_from_the_cluster_is_not_trusted(site: Site, asking: Asking) -> None:
    leader = site.leader(NET)
    version = asking(leader).poll(None, 0).version
    asked = asking(leader, hurry=True)
    site.cut(leader, NET)
    _believes_nothing(asked, version)


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_member_with_one_way_traffic_proves_nothing(site: Site, asking: Asking, way: str) -> None:
    host = others(site)[0]
    asked = asking(host, hurry=True)
    site.cables.lose(host, NET, way, 100)
    _believes_nothing(asked, 1)


def test_with_two_of_three_servers_stopped_no_server_answers(site: Site, asking: Asking) -> None:
    stopped = others(site)
    (left,) = [each for each in CONTROLLERS if each not in stopped]
    for host in stopped:
        site.agent(host, NET).pause()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda host: _believes_nothing(asking(host, hurry=True), 1), (left, "h1")))
    for host in stopped:
        site.agent(host, NET).resume()
    eventually(lambda: _proves(asking(left)))


def test_closing_ends_a_waiting_poll(site: Site, asking: Asking) -> None:
    asked = asking("k1")
    version = asked.poll(None, 0).version
    ended: list[float] = []

    def look() -> None:
        with pytest.raises(DriverError, match="closing"):
            while True:
                asked.poll(version, LONG_S)
        ended.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    time.sleep(0.3)
    closed = time.monotonic()
    asked.close()
    thread.join(LONG_S)
    assert ended and ended[0] - closed < 0.7 * LONG_S
    with pytest.raises(DriverError, match="closing"):
        asked.prove()


def _proves(asked: ConsulMembership) -> bool:
    try:
        return bool(asked.prove())
    except DriverError:
        return False


def _believes_nothing(asked: ConsulMembership, version: int) -> None:
    """From soon on, and quickly: neither proof nor look."""
    eventually(lambda: not _proves(asked))
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        asks = (asked.prove, lambda: asked.poll(None, 0), lambda: asked.poll(version, 0.5))
        for answer in [pool.submit(ask) for ask in asks]:
            with pytest.raises(DriverError):
                answer.result()
    assert time.monotonic() - began < 60  # a question to a dead leader waits for longer
