# SPDX-License-Identifier: Apache-2.0
"""A host or guest that dies again, or a process that runs again: no report is lost for a clock."""

from datetime import timedelta

import pytest

from holdfast.conf import hostmonitor
from holdfast.conf import recovery as options
from holdfast.hostmonitor import matrix
from holdfast.model.votes import View, picture, without_network
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_liveness import HOST, HOSTS, beat, cut, incidents, post
from tests.recovery.test_observed import Agent
from tests.recovery.voters import GONE, Voter, voters
from tests.simclock import EPOCH

BEHIND_S = 600.0


def reboots(house: HealHouse, ctls: list[Voter]) -> None:
    """It dies, comes back before anybody cut it, and its servers start in place."""
    beat(house, *HOSTS)
    house.run(seconds=1)
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.fail_host(HOST)
    for ctl in ctls:
        ctl.fails(HOST, GONE)
    house.run(seconds=5)
    house.sim.recover_host(HOST)
    beat(house, HOST, boot_id="second", running=())
    house.m.store.switches.resume("", "ann")
    for _ in range(14):
        beat(house, HOST, boot_id="second", running=())
        house.run(seconds=5)


@pytest.fixture
def ctls(house: HealHouse) -> list[Voter]:
    house.segment(*HOSTS)
    house.boot("web", HOST)
    return voters(house, *HOSTS)


def test_a_second_death_after_an_end_in_place_is_recovered(
    house: HealHouse, ctls: list[Voter]
) -> None:
    """The monitors never saw the host in between."""
    reboots(house, ctls)
    assert incidents(house)[-1].sentence.startswith("recovered in place")
    house.sim.hang_host(HOST)
    for ctl in ctls:
        ctl.beat()
    house.run(minutes=2)
    first, second = incidents(house)
    assert (first.status, second.status) == ("recovered", "recovered")
    assert cut(house) == {HOST}
    house.check_never_twice()


def test_a_host_that_beats_after_its_end_in_place_is_not_cut_for_what_monitors_see(
    house: HealHouse, ctls: list[Voter]
) -> None:
    reboots(house, ctls)
    for _ in range(20):
        for ctl in ctls:
            ctl.beat()
        beat(house, HOST, boot_id="second", running=())
        house.run(seconds=5)
    assert not cut(house)
    assert not house.effects("services.force_down")
    assert [one.status for one in incidents(house)] == ["recovered", "held"]


def test_a_second_death_with_a_date_of_a_late_clock_is_recovered(house: HealHouse) -> None:
    house.segment(*HOSTS)
    for _ in range(2):
        house.boot("web", HOST)
        house.sim.cut_host(HOST)
        post(house, "ann", "STOPPED", age_s=BEHIND_S - 1)
        house.run(minutes=2)
        house.sim.recover_host(HOST)
        house.run(minutes=3)
    assert [one.status for one in incidents(house)] == ["recovered", "recovered"]
    assert len(house.effects("fence.off")) == 2


@pytest.mark.parametrize("dies", [True, False])
def test_a_guests_second_death_with_a_date_of_a_late_clock_is_recovered(
    house: HealHouse, dies: bool
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    for again in (False, True):
        if dies or not again:
            house.sim.crash_server(server)
        at = house.clock.now() - timedelta(seconds=BEHIND_S)
        house.report_guest("cmp-1", server, at=at)
        house.run(minutes=1)
    assert [one.status for one in incidents(house)] == ["recovered"] * (1 + dies)
    assert len(house.effects("servers.start")) == 1 + dies
    assert house.sim.running(server) == ["cmp-1"]


def test_an_agent_withdraws_its_report_of_a_process(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.m.store.switches.pause("", "ann", "wait", None)
    agent, process = Agent(house, "cmp-1"), "process:cmp-1:nova-compute"
    agent.tells(process, "process", sentence="it does not run")
    house.run(seconds=5)
    agent.tells(process, "process", "well", sentence="it runs")
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert [one.status for one in incidents(house)] == ["ignored"]
    assert not house.effects("services.disable")


def test_heartbeats_travel_by_default_over_a_network_of_the_default_matrix() -> None:
    (option,) = [one for one in options.OPTS if one.dest == "heartbeat_network"]
    networks = list(hostmonitor.USUAL)
    body = {"networks": {}, "ha_matrix": matrix.default(networks).to_plain(), "rows": []}
    view = View("ctl-1", "host", EPOCH, EPOCH, 5.0, picture(body))
    assert not without_network([view], option.default)
    warning = "only manage, storage and tenant: heartbeats contradict no report"
    assert warning in without_network([view], "management")
    assert not without_network([], "management")
