# SPDX-License-Identifier: Apache-2.0
"""Real monitors on real Consul clusters: what they report, and what they do not.

The clusters see a failure in two seconds here (docs/install/consul.md, faster), and three are
what the rules want it to last. Several hosts fail at once, so that it does not take all day.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from tests.e2e.deployment import host_lease, wire_date
from tests.hostmonitor.house import QUIET_S, House, Monitor, now, soon
from tests.servers.consul import CONTROLLERS, NETWORKS

pytestmark = [
    pytest.mark.networks,
    pytest.mark.slow(
        "Consul takes seconds to see a failure, and monitors seconds to be sure of it"
    ),
]

#: Everything the matrices of the test of combinations have to say: what is cut, and what follows.
CUSTOM = """\
for: 3s
rules:
  - {when: {manage: down, tenant: down, storage: up}, do: alert}
  - {when: {storage: down, tenant: up}, do: recovery}
  - {when: {storage: down, manage: down}, do: recovery}
otherwise: none
"""
#: In this order no combination passes through another one that would be reported.
ORDER = ("tenant", "storage", "manage")
CUTS = [cut for size in range(4) for cut in itertools.combinations(NETWORKS, size)]


def by_default(cut: tuple[str, ...]) -> str:
    return "failed" if "storage" in cut else ""


def by_custom(cut: tuple[str, ...]) -> str:
    if set(cut) == {"manage", "tenant"}:
        return "alert"
    if "storage" in cut and ("tenant" not in cut or "manage" in cut):
        return "failed"
    return ""


def by_manage(cut: tuple[str, ...]) -> str:
    return "failed" if "manage" in cut else ""


EXPECTED: dict[str, Callable[[tuple[str, ...]], str]] = {
    "k1": by_default,
    "k2": by_custom,
    "k3": by_manage,
}


def test_each_combination_of_cut_cables_gives_the_action_of_the_matrix(house: House) -> None:
    monitors = (
        Monitor(house, "k1", ha_matrix=None),
        Monitor(house, "k2", ha_matrix=CUSTOM),
        Monitor(house, "k3", ha_matrix=None, networks=("manage",)),
    )
    rounds = [CUTS[:3], CUTS[3:6], CUTS[6:]]
    assert sum(map(len, rounds)) == 8
    with house.monitors(*monitors):
        for cuts in rounds:
            began = now()
            wanted = {
                (observer, host, says(cut))
                for host, cut in zip(("h1", "h2", "h3"), cuts, strict=False)
                for observer, says in EXPECTED.items()
                if says(cut)
            }
            for network in ORDER:
                cut_and_seen(
                    house,
                    network,
                    *(
                        h
                        for h, cut in zip(("h1", "h2", "h3"), cuts, strict=False)
                        if network in cut
                    ),
                )
            soon(lambda wanted=wanted, began=began: reported(house, began) >= wanted)
            time.sleep(5)
            assert reported(house, began) == wanted
            house.site.whole()
            soon(lambda: all(monitor.sees() for monitor in monitors))
            told = {(observer, host) for observer, host, _ in wanted}
            soon(lambda told=told, began=began: house.said(began, "well") >= told)


def cut_and_seen(house: House, network: str, *hosts: str) -> None:
    """Pull these cables; Consul knows when this returns."""
    for host in hosts:
        house.site.cut(host, network)
    soon(lambda: house.site.lost(network, *hosts))


def reported(house: House, since: datetime) -> set[tuple[str, str, str]]:
    return {
        (observer, host, state)
        for state in ("failed", "alert")
        for observer, host in house.said(since, state)
    }


@contextmanager
def nobody_is_reported(house: House, seconds: float = QUIET_S) -> Iterator[None]:
    """While something goes on, for some seconds more, and when all is mended, so long as it takes
    to be sure of what was seen before."""
    began = now()
    yield
    house.quiet(began, seconds)
    house.site.whole()
    house.quiet(began, 4.0)


def a_real_failure_is_found(house: House, host: str, *observers: str) -> None:
    """By these, once each."""
    began = now()
    house.site.cut(host, "storage")
    soon(lambda: house.said(began) >= {(each, host) for each in observers})
    assert sorted(word["observer"] for word in house.words(began)) == sorted(observers)
    house.site.whole()
    soon(lambda: house.said(began, "well") >= {(each, host) for each in observers})


def test_a_monitor_cut_off_from_the_networks_reports_no_host(house: House) -> None:
    """On one network, on two, on all; then it hears and is not heard, and the other way round."""
    with house.three() as (first, _second, _third):
        with nobody_is_reported(house, 0):
            for network, seconds in zip(reversed(NETWORKS), (QUIET_S, 4.0, 4.0), strict=True):
                house.site.cut("k1", network)
                house.quiet(now(), seconds)
            soon(
                lambda: (
                    "this monitor sees no member of any network" in first.program.log.read_text()
                )
            )
        soon(first.sees)
        for way in ("in", "out"):
            with nobody_is_reported(house):
                for network in NETWORKS[1:]:
                    house.site.cables.lose("k1", network, way, 100)
            soon(first.sees)
        a_real_failure_is_found(house, "h1", *CONTROLLERS)


def test_a_cluster_without_leader_or_majority_shows_no_host_as_failed(house: House) -> None:
    site = house.site
    with house.three() as monitors:
        with nobody_is_reported(house):  # killed
            site.agent(site.leader("storage"), "storage").kill()
        soon(lambda: all(each.sees() for each in monitors))
        with nobody_is_reported(house, 0):  # paused, and on its way back as if nothing had been
            leader = site.agent(site.leader("storage"), "storage")
            leader.pause()
            house.quiet(now(), QUIET_S)
            leader.resume()
        soon(lambda: all(each.sees() for each in monitors))
        with nobody_is_reported(house, 0):  # two of three
            for host in CONTROLLERS[:2]:
                site.agent(host, "storage").pause()
            house.quiet(now(), QUIET_S + 2)
            for host in CONTROLLERS[:2]:
                site.agent(host, "storage").resume()
        soon(lambda: all(each.sees() for each in monitors))
        a_real_failure_is_found(house, "h2", *CONTROLLERS)


def test_lost_packets_and_a_stopped_monitor_cause_no_report(house: House) -> None:
    """Every twentieth packet for half a minute, on all networks; the monitor of k2 sleeps for half
    of it, and whatever it slept through is not what it says when it wakes."""
    with house.three() as (_first, second, _third):
        began = now()
        for host, network in itertools.product(house.site.hosts, NETWORKS):
            house.site.cables.lose(host, network, "in", 5)
        house.quiet(began, 8)
        second.program.signal(signal.SIGSTOP)
        house.quiet(began, 15)  # much longer than a proof is fresh
        second.program.signal(signal.SIGCONT)
        house.quiet(began, QUIET_S)
        house.site.whole()
        house.quiet(began, 2)
        a_real_failure_is_found(house, "h3", *CONTROLLERS)


def test_a_host_that_was_dead_before_the_monitors_started_is_recovered_once(house: House) -> None:
    house.segment("h1", "spare-1")
    house.sim.boot("web-1", "alpha", "h1", 1, 512, 1)
    cut_and_seen(house, "storage", "h1")
    began = now()
    monitors = [Monitor(house, host) for host in CONTROLLERS]
    with house.monitors(*monitors):
        soon(lambda: house.said(began) == {(host, "h1") for host in CONTROLLERS})
        soon(lambda: house.recovered("h1"))
        time.sleep(2)
        assert sorted(word["observer"] for word in house.words(began)) == sorted(CONTROLLERS)
        (incident,) = house.client.incidents.list(host="h1")
        told = house.client.incidents.explain(incident["id"])["text"]
        assert "storage" in told
        assert house.site.cables.address(house.site.leader("storage"), "storage") in told


def test_what_was_decided_while_the_api_was_away_arrives_once_though_the_monitor_was_killed(
    house: House,
) -> None:
    house.segment("h2", "spare-2")
    server = house.sim.boot("web-2", "alpha", "h2", 1, 512, 1)
    with house.three() as (first, *_):
        began = now()
        house.connect(away=True)
        house.site.cut("h2", "storage")
        soon(lambda: "host:h2: failed since" in first.program.log.read_text())
        first.program.kill()  # decided, and nobody knows of it
        first.start()
        time.sleep(12)  # twice the longest pause between two tries to deliver
        assert not house.words(began)
        assert not house.client.incidents.list(host="h2")
        house.connect()
        soon(lambda: house.said(began) == {(host, "h2") for host in CONTROLLERS})
        soon(lambda: house.recovered("h2"))
        time.sleep(2)
        assert house.recovered("h2")
        fenced = [effect for effect in house.sim.effects("fence.off") if effect.subject == "h2"]
        assert len(fenced) == 1
        assert len(house.sim.effects("moves.evacuate", server.id)) == 1


def test_a_cut_storage_cable_ends_with_the_server_elsewhere_and_the_reservation_whole(
    house: House,
) -> None:
    house.segment("h3", "spare-3")
    house.client.hosts.create("h3", {"kind": "pair"})
    lease = house.client.leases.create(
        "pair",
        end_date=wire_date(now() + timedelta(hours=1)),
        reservations=[host_lease(1, 1, '["==", "$kind", "pair"]')],
    )
    soon(lambda: house.client.leases.show(lease["id"])["status"] == "ACTIVE")
    house.client.hosts.create("spare-3", {"kind": "pair"})
    inside = {"reservation": lease["reservations"][0]["id"]}
    server = house.sim.boot("web-3", lease["project_id"], "h3", 1, 512, 1, metadata=inside)
    with house.three():
        house.site.cut("h3", "storage")
        soon(lambda: house.recovered("h3"))
    assert house.sim.running(server.id) == ["spare-3"]
    assert not powered(house, "h3")
    (held,) = house.client.leases.show(lease["id"])["reservations"]
    assert (held["status"], held["missing_resources"]) == ("active", False)
    assert holding(house, lease["id"]) == ["spare-3"]


def powered(house: House, host: str) -> bool:
    return next(bool(one["powered"]) for one in house.sim.world()["hosts"] if one["name"] == host)


def holding(house: House, lease_id: str) -> list[str]:
    """The hosts that the lease has."""
    names = {one["id"]: one["hypervisor_hostname"] for one in house.client.hosts.list()}
    return [
        names[allocation["resource_id"]]
        for allocation in house.client.hosts.allocations()
        if any(held["lease_id"] == lease_id for held in allocation["reservations"])
    ]
