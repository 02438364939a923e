# SPDX-License-Identifier: Apache-2.0
"""A host is judged again before any evidence is accepted, and what is written is no life."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.model.incident_progress import NovaReads, PowerReturned, plain
from holdfast.ports.cloud import Server, Service
from holdfast.recovery import host_return
from holdfast.recovery.host_liveness import read_nova
from tests.recovery.house import HealHouse
from tests.recovery.test_liveness import HOST, HOSTS, beat, cut, incidents, post, started
from tests.recovery.voters import GONE, voters
from tests.simclock import EPOCH

Arrange = Callable[[HealHouse], object]


@pytest.fixture
def site(house: HealHouse) -> HealHouse:
    house.segment(*HOSTS)
    house.boot("web", HOST)
    return house


def watchdog(house: HealHouse) -> None:
    house.unfenced.add(HOST)
    house.recovery.watchdog_s = 60.0


def bmc_away(house: HealHouse) -> None:
    house.sim.change(only_calls=["fence.power", "fence.off"], failure_rate=1.0)


def lives(house: HealHouse, seconds: float) -> None:
    for _ in range(int(seconds // 5)):
        beat(house, HOST)
        house.run(seconds=5)


def check_untouched(house: HealHouse, status: str) -> None:
    (incident,) = incidents(house)
    assert incident.status == status, incident.sentence
    assert not house.effects("services.force_down")
    assert not cut(house)


@pytest.mark.parametrize("without", [watchdog, bmc_away])
def test_a_withdrawn_report_ends_the_incident_while_nothing_proves_the_host_off(
    site: HealHouse, without: Arrange
) -> None:
    without(site)
    site.sim.cut_host(HOST)
    site.report(HOST)
    site.run(seconds=20)
    assert [one.status for one in incidents(site)] == ["running"]
    site.sim.repair_host(HOST)
    started(site, HOST)
    site.run(minutes=2)
    check_untouched(site, "ignored")


@pytest.mark.parametrize("without", [watchdog, bmc_away])
def test_a_host_that_beats_again_is_held_as_contradicted_and_announced(
    site: HealHouse, without: Arrange
) -> None:
    without(site)
    site.sim.cut_host(HOST)
    site.report(HOST)
    site.run(seconds=20)
    site.sim.repair_host(HOST)
    lives(site, 50)
    told = [one.event_type for one in site.ear.heard]
    assert "incident.held" not in told
    check_untouched(site, "held")
    assert "contradicted: " in incidents(site)[0].sentence
    lives(site, 40)
    told = [one.event_type for one in site.ear.heard]
    assert told.count("incident.held") == 1
    check_untouched(site, "held")


def test_the_time_of_a_watchdog_counts_from_the_last_sign_of_life(site: HealHouse) -> None:
    watchdog(site)
    site.sim.cut_host(HOST)
    site.report(HOST)
    site.run(seconds=30)
    beat(site, HOST)
    last = site.clock.now()
    site.run(seconds=58)
    assert not site.effects("services.force_down")
    site.run(seconds=10)
    (incident,) = incidents(site)
    assert plain(incident.details)["evidence"]["kind"] == "watchdog"
    assert incident.host_progress.evidence.at >= last + timedelta(seconds=60)  # type: ignore[union-attr]
    assert site.effects("services.force_down")


@pytest.mark.parametrize("trusts", [True, False])
def test_evidence_without_a_cut_is_judged_again(house: HealHouse, trusts: bool) -> None:
    """Managers are away between the guards and the fence, and the host is well by then."""
    house.segment(*HOSTS, trust_host_status=trusts)
    house.boot("web", HOST)
    (house.unfenced if trusts else house.accepted).add(HOST)
    answers: list[str] = []
    house.own_steps["wait"] = lambda _incident, _cloud: answers[0]
    house.recovery.steps_before = {"fence": "wait"}
    house.manager()
    house.sim.cut_host(HOST)
    house.report(HOST)
    house.run(seconds=20)  # the site's own step fails so long
    house.sim.repair_host(HOST)
    started(house, HOST)
    answers.append("the managers are back")
    house.run(minutes=2)
    check_untouched(house, "ignored")


@pytest.mark.parametrize("rack", ["r1", ""])
def test_an_older_incident_of_the_domain_does_not_switch_settling_off(
    house: HealHouse, rack: str
) -> None:
    """Hosts without a rack are a domain of their own."""
    names = [f"r-{number}" for number in range(8)]
    for name in names:
        house.sim.add_host(name, rack=rack)
    house.segment(*names)
    house.sim.add_host("elsewhere", rack="r2")
    house.segment("elsewhere")
    house.unfenced.add(names[0])  # its incident stays open
    for pause, name in zip((60.0, *[0.8] * 7), names, strict=True):
        house.sim.fail_host(name)
        house.report(name)
        house.run(seconds=pause)
    house.run(minutes=1)
    assert not house.effects("services.force_down")
    assert {incident.status for incident in incidents(house)} == {"held"}


def test_a_host_that_returns_during_a_pause_is_left_on(site: HealHouse) -> None:
    site.boot("web-2", HOST)
    site.recovery.parallel_moves = 1
    site.sim.cut_host(HOST)
    site.report(HOST)
    while not site.effects("fence.off"):
        site.run(seconds=0.5)
    site.m.store.switches.pause("", "ann", "wait", None)
    site.run(seconds=10)  # the first server arrives
    site.sim.recover_host(HOST)
    site.run(minutes=3)
    assert len(site.effects("fence.off")) == 1
    site.m.store.switches.resume("", "ann")
    site.run(minutes=3)
    (incident,) = incidents(site)
    assert incident.sentence.endswith("1 of 2 servers moved, 1 started in place"), incident.sentence
    assert len(site.effects("fence.off")) == 1
    assert all(site.sim.running(one["id"]) for one in site.sim.world()["servers"])
    site.check_never_twice()


@pytest.mark.parametrize(
    ("changes", "is_sign"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"forced_down": True}, False),
        ({"disabled_reason": "Holdfast: nova-compute died"}, False),
    ],
)
def test_a_row_of_nova_that_a_client_wrote_is_no_sign_of_life(
    changes: dict[str, object], is_sign: bool
) -> None:
    before = Service(HOST, "up", updated_at=EPOCH)
    reads = read_nova(None, before, EPOCH)
    later = EPOCH + timedelta(seconds=4)
    written = Service(HOST, "up", **{"updated_at": later, **changes})  # type: ignore[arg-type]
    reads = read_nova(reads, written, later)
    assert isinstance(reads, NovaReads)
    assert (reads.advanced_at is not None) == is_sign
    again = Service(**{**vars(written), "updated_at": later + timedelta(seconds=4)})
    reads = read_nova(reads, again, later + timedelta(seconds=4))
    assert reads is not None
    assert (reads.advanced_at is not None) == (not written.forced_down)


@pytest.mark.parametrize(("status", "runs"), [("ACTIVE", True), ("SHUTOFF", False)])
def test_novas_state_counts_for_a_guest_of_which_no_agent_says_anything(
    site: HealHouse, status: str, runs: bool
) -> None:
    power = PowerReturned(site.clock.now() - timedelta(seconds=901), rebooted=True)
    server = Server("s", "web", "p", HOST, status)
    assert host_return.guest_runs(site.context, HOST, server, power) == runs


@pytest.mark.parametrize("said", ["withdrawn", "contradicted", "of all networks, once"])
def test_a_report_that_holds_no_longer_is_no_proof_of_power_off(
    house: HealHouse, said: str
) -> None:
    """Without a fence a trusted report proves that a host is off; here only its storage is lost."""
    house.segment(*HOSTS, trust_host_status=True)
    server = house.boot("web", HOST)
    house.unfenced.add(HOST)
    house.recovery.heartbeat_network = "manage"
    one, two, three = voters(house, *HOSTS)
    house.m.store.switches.pause("", "ann", "wait", None)
    beat(house, HOST)
    if said == "of all networks, once":
        one.fails(HOST, GONE)
        two.fails(HOST, GONE)
        house.run(seconds=2)
    else:
        post(house, "ann", "STOPPED")
        house.run(seconds=2)
        if said == "withdrawn":
            post(house, "ann", "STARTED")
    for ctl in (one, two, three):
        ctl.fails(HOST)
    lives(house, 15)
    house.m.store.switches.resume("", "ann")
    lives(house, 60)
    (incident,) = incidents(house)
    assert "nothing proves that cmp-1 is off" in incident.sentence
    assert house.sim.running(server) == [HOST]
    assert not house.effects("moves.evacuate")


def test_a_later_report_about_the_whole_host_is_proof_in_a_trusting_segment(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS, trust_host_status=True)
    house.boot("web", HOST)
    house.unfenced.add(HOST)
    ctls = voters(house, *HOSTS)
    house.m.store.switches.pause("", "ann", "wait", None)
    for ctl in ctls:
        ctl.fails(HOST)
    house.run(seconds=5)
    house.sim.fail_host(HOST)
    post(house, "ann", "STOPPED")
    house.m.store.switches.resume("", "ann")
    house.run(minutes=2)
    assert [one.status for one in incidents(house)] == ["recovered"]
    house.check_never_twice()


@pytest.mark.parametrize("away_after_s", [0.01, 8.0])
def test_a_watchdogs_time_counts_from_a_report_to_nova_while_no_manager_ran(
    house: HealHouse, away_after_s: float
) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", HOST)
    watchdog(house)
    house.recovery.heartbeat_network = "manage"
    one, two, _three = voters(house, *HOSTS)
    one.fails(HOST)
    two.fails(HOST)
    house.run(seconds=away_after_s)
    house.clock.advance(80)
    house.run(minutes=3)
    assert [one.status for one in incidents(house)] == ["running"]
    assert house.sim.running(server) == [HOST]
    assert not house.effects("moves.evacuate")
