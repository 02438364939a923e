# SPDX-License-Identifier: Apache-2.0
"""A host that is well is left alone, a dead one is recovered: signs of life against reports."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from holdfast.db.incident_queries import Wanted
from holdfast.model.errors import Conflict
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import plain
from holdfast.model.notification import NewNotification
from tests.recovery.house import HealHouse
from tests.recovery.voters import GONE, voters
from tests.simclock import EPOCH

HOSTS = ("cmp-1", "cmp-2", "cmp-3", "cmp-4", "cmp-5", "cmp-6")
HOST = "cmp-1"
BEAT_S = 10.0


def beat(
    house: HealHouse,
    *hosts: str,
    boot_id: str = "first",
    running: Sequence[str] | None = None,
    ran: Sequence[str] = (),
) -> None:
    values: dict[str, Any] = {
        "started_at": EPOCH,
        "heartbeat_s": BEAT_S,
        "rules_version": "",
        "central_version": "",
        "boot_id": boot_id,
        "details": {"ran": list(ran), **({} if running is None else {"running": list(running)})},
    }
    for host in hosts:
        house.m.store.agents.beat(host, values)


def started(house: HealHouse, host: str) -> str:
    said = {"event": "STARTED", "host_status": "NORMAL", "cluster_status": "ONLINE"}
    return house.notify("COMPUTE_HOST", host, said)


def post(house: HealHouse, reporter: str, event: str, age_s: float = 0.0) -> None:
    said = {"event": event, "host_status": "NORMAL", "cluster_status": "OFFLINE"}
    at = house.clock.now() - timedelta(seconds=age_s)
    new = NewNotification("COMPUTE_HOST", HOST, at, said, reporter=reporter)
    interval = timedelta(seconds=180)
    house.m.store.notifications.admit(house.new_id(), new, interval=interval)


def incidents(house: HealHouse) -> list[Incident]:
    return [one.incident for one in reversed(house.m.store.incident_queries.list_all(Wanted()))]


def cut(house: HealHouse) -> set[str]:
    """Hosts whose power was cut."""
    return {effect.subject for effect in house.sim.effects("fence.off")}


@pytest.fixture
def site(house: HealHouse) -> HealHouse:
    house.segment(*HOSTS)
    house.boot("web", HOST)
    return house


def test_a_host_whose_agent_beats_after_the_report_is_not_cut(site: HealHouse) -> None:
    beat(site, HOST)
    site.run(seconds=3)
    report = site.report(HOST)
    for _ in range(12):
        site.run(seconds=5)
        beat(site, HOST)
    incident = site.incident(report)
    assert incident.status == "held"
    assert "contradicted: its agent gave a sign of life" in incident.sentence
    assert not cut(site)


def test_a_contradiction_that_lasts_is_one_line_of_the_story(site: HealHouse) -> None:
    report = site.report(HOST)
    for _ in range(24):
        site.run(seconds=5)
        beat(site, HOST)
    story = site.m.store.incident_queries.case(site.incident(report).id).timeline
    held = [one.data for one in story if getattr(one.data, "status", "") == "held"]
    assert len(held) == len(set(held)) <= 3, held


def test_a_report_is_contradicted_by_nova_where_there_is_no_agent(site: HealHouse) -> None:
    report = site.report(HOST)
    site.run(minutes=5)
    assert "contradicted: Nova gave a sign of life" in site.incident(report).sentence
    assert not cut(site)


def test_a_stale_state_up_in_nova_contradicts_nothing(site: HealHouse) -> None:
    site.sim.change(service_down_s=3600.0)
    site.sim.cut_host(HOST)
    report = site.report(HOST)
    site.run(seconds=11)
    assert not cut(site)  # Nova's next report is not overdue yet
    site.run(seconds=3)
    assert cut(site) == {HOST}
    site.run(minutes=1)
    assert site.incident(report).status == "recovered"


def test_power_off_proves_a_death_without_any_wait(site: HealHouse) -> None:
    beat(site, HOST)
    site.sim.fail_host(HOST)
    report = site.report(HOST)
    beat(site, HOST)  # it was on its way
    site.run(seconds=3)
    assert site.incident(report).status in ("running", "recovered")


def test_a_contradiction_ends_when_no_newer_beat_comes(site: HealHouse) -> None:
    report = site.report(HOST)
    site.run(seconds=1)
    beat(site, HOST)
    site.sim.cut_host(HOST)
    site.run(seconds=20)
    assert site.incident(report).status == "held"
    assert not cut(site)
    site.run(seconds=10)  # two and a half intervals without a beat
    assert cut(site) == {HOST}


def test_operators_hear_of_a_contradiction_lasting_a_minute(site: HealHouse) -> None:
    report = site.report(HOST)
    for number in range(30):
        site.run(seconds=5)
        beat(site, HOST)
        told = [one.event_type for one in site.ear.heard]
        if number < 8:
            assert told == ["incident.opened"]
    assert told == ["incident.opened", "incident.held"]
    assert site.incident(report).status == "held"


def test_a_later_started_from_the_same_source_withdraws_its_report(site: HealHouse) -> None:
    site.m.store.switches.pause("", "ann", "wait", None)
    site.sim.cut_host(HOST)
    report = site.report(HOST)
    site.run(seconds=20)
    site.sim.repair_host(HOST)
    started(site, HOST)
    site.m.store.switches.resume("", "ann")
    site.run(minutes=2)
    incident = site.incident(report)
    assert incident.status == "ignored"
    assert "withdrew the report" in incident.sentence
    assert not cut(site)


def test_a_report_stands_after_another_source_withdrew_the_same_one(site: HealHouse) -> None:
    site.sim.change(service_down_s=60.0)
    site.sim.cut_host(HOST)
    post(site, "ann", "STOPPED")
    post(site, "bob", "STOPPED")
    with pytest.raises(Conflict, match="duplicate"):
        post(site, "bob", "STOPPED")
    site.run(seconds=1)
    post(site, "ann", "STARTED")
    site.run(seconds=20)
    assert cut(site) == {HOST}


def test_a_host_reported_again_after_a_withdrawal_is_recovered(site: HealHouse) -> None:
    site.m.store.switches.pause("", "ann", "wait", None)
    site.sim.cut_host(HOST)
    site.report(HOST)
    started(site, HOST)
    site.run(seconds=1)
    again = site.report(HOST, at=site.clock.now() + timedelta(seconds=1))
    site.m.store.switches.resume("", "ann")
    site.run(minutes=2)
    assert site.incident(again).status == "recovered"
    assert cut(site) == {HOST}


def test_hosts_of_a_rack_whose_switch_was_repaired_are_not_cut_when_approved(
    house: HealHouse,
) -> None:
    names = [f"r-{number}" for number in range(8)]
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.segment(*names, *HOSTS)
    for name in names:
        house.sim.cut_host(name)
        house.report(name)
    house.run(minutes=1)
    assert {incident.status for incident in incidents(house)} == {"held"}
    for name in names:
        house.sim.repair_host(name)
        started(house, name)
    house.m.store.incident_actions.approve("ann", "it is so", "r1")
    house.run(minutes=5)
    assert not cut(house)
    assert {incident.status for incident in incidents(house)} == {"ignored"}


def test_a_process_that_runs_again_before_the_pause_ends_does_not_disable_its_host(
    site: HealHouse,
) -> None:
    site.m.store.switches.pause("", "ann", "wait", None)
    for event in ("STOPPED", "STARTED"):
        said = {"process_name": "nova-compute", "event": event}
        site.notify("PROCESS", HOST, said)
        site.run(seconds=2)
    site.m.store.switches.resume("", "ann")
    site.run(minutes=2)
    assert [incident.status for incident in incidents(site)] == ["ignored"]
    assert not site.effects("services.disable")


def test_an_old_report_about_a_healthy_host_opens_nothing(site: HealHouse) -> None:
    report = site.report(HOST, at=EPOCH - timedelta(days=3650))
    site.run(minutes=2)
    found = site.m.store.notifications.notification(report)
    assert (found.status, found.incident_id) == ("ignored", None)
    assert "old" in (found.message or "")
    assert not incidents(site)
    assert not cut(site)


def test_a_report_delayed_by_an_outage_is_not_lost(site: HealHouse) -> None:
    site.sim.cut_host(HOST)
    report = site.report(HOST, at=site.clock.now() - timedelta(hours=1))
    site.run(minutes=2)
    assert site.incident(report).status == "recovered"


def test_a_report_dated_before_its_sources_started_does_not_open_a_second_incident(
    site: HealHouse,
) -> None:
    began = site.clock.now()
    site.report(HOST)
    site.run(seconds=1)
    started(site, HOST)
    site.run(seconds=5)
    late = site.report(HOST, at=began, cluster_status="ONLINE")
    site.run(minutes=2)
    assert site.m.store.notifications.notification(late).status == "ignored"
    assert [incident.status for incident in incidents(site)] == ["ignored"]
    assert not cut(site)


def test_an_old_report_about_a_dead_host_waits_once_for_nova(site: HealHouse) -> None:
    site.sim.change(service_down_s=60.0)
    site.sim.cut_host(HOST)
    site.report(HOST, at=site.clock.now() - timedelta(hours=1))
    site.run(seconds=6)
    site.manager()  # another one goes on
    site.run(seconds=8)
    assert cut(site) == {HOST}


def test_reports_of_nova_since_an_old_report_count_for_the_joined_incident(
    site: HealHouse,
) -> None:
    site.sim.change(service_down_s=60.0)
    site.sim.cut_host(HOST)
    post(site, "bob", "STOPPED", age_s=3600)
    site.run(seconds=6)
    post(site, "ann", "STOPPED")
    site.run(seconds=9)
    assert cut(site) == {HOST}


def test_an_old_report_is_not_dropped_for_a_heartbeat_that_was_on_its_way(site: HealHouse) -> None:
    beat(site, HOST)
    site.sim.cut_host(HOST)
    site.report(HOST, at=site.clock.now() - timedelta(hours=1))
    site.run(seconds=1)
    beat(site, HOST)
    site.run(seconds=20)
    assert not cut(site)
    site.run(seconds=10)
    assert cut(site) == {HOST}


def test_a_report_against_the_votes_of_all_monitors_cuts_no_host(site: HealHouse) -> None:
    voters(site, *HOSTS)
    report = site.report(HOST)
    site.run(minutes=5)
    incident = site.incident(report)
    assert incident.status == "held"
    assert "ctl-1, ctl-2 and ctl-3 saw it well" in incident.sentence
    assert not cut(site)


def test_beats_over_a_network_that_is_up_do_not_contradict_lost_storage(site: HealHouse) -> None:
    for voter in voters(site, *HOSTS):
        voter.fails(HOST)  # on storage; up on the others
    for _ in range(6):
        beat(site, HOST)
        site.run(seconds=5)
    assert cut(site) == {HOST}
    assert [incident.status for incident in incidents(site)] == ["recovered"]


def test_storage_that_stays_lost_when_management_is_back_is_not_contradicted_by_beats(
    site: HealHouse,
) -> None:
    monitors = voters(site, *HOSTS)
    for monitor in monitors:
        monitor.fails(HOST, health=GONE)
    site.run(seconds=0.5)
    for monitor in monitors:
        monitor.sees(failed=[HOST])  # on storage only
    for _ in range(3):
        beat(site, HOST)
        site.run(seconds=2)
    assert cut(site) == {HOST}


def test_beats_contradict_monitors_that_see_a_host_down_on_every_network(site: HealHouse) -> None:
    for voter in voters(site, *HOSTS):
        voter.fails(HOST, health=GONE)
    for _ in range(12):
        beat(site, HOST)
        site.run(seconds=5)
    assert not cut(site)
    assert [incident.status for incident in incidents(site)] == ["held"]


def test_a_host_that_shows_life_between_the_guards_and_the_fence_is_not_cut(
    site: HealHouse,
) -> None:
    site.sim.cut_host(HOST)
    site.sim.change(only_calls=["fence.power"], failure_rate=1.0)
    report = site.report(HOST)
    site.run(seconds=14)
    assert site.incident(report).status == "running"
    beat(site, HOST)
    site.sim.change(failure_rate=0.0)
    site.run(seconds=10)
    assert not cut(site)
    site.run(seconds=30)
    assert cut(site) == {HOST}


def test_the_first_host_of_a_rack_outage_waits_until_its_extent_is_known(
    house: HealHouse,
) -> None:
    names = [f"r-{number}" for number in range(8)]
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.segment(*names, *HOSTS)
    for name in names:
        house.sim.fail_host(name)
        house.report(name)
        house.run(seconds=0.8)
    house.run(minutes=1)
    assert not cut(house)
    assert {incident.status for incident in incidents(house)} == {"held"}


def test_a_lone_host_loses_at_most_a_second_by_settling(site: HealHouse) -> None:
    site.sim.fail_host(HOST)
    report = site.report(HOST)
    site.run(seconds=1.5)
    assert plain(site.incident(report).details)["started_at"]


@pytest.mark.parametrize("trusts", [False, True])
def test_a_notification_against_all_signs_of_life_cuts_a_host_only_where_it_is_trusted(
    house: HealHouse, trusts: bool
) -> None:
    house.segment(*HOSTS, trust_notifications=trusts)
    house.boot("web", HOST)
    voters(house, *HOSTS)
    beat(house, HOST)
    house.run(seconds=3)
    report = house.report(HOST)
    for _ in range(3):
        house.run(seconds=1)
        beat(house, HOST)
    assert cut(house) == ({HOST} if trusts else set())
    incident = house.incident(report)
    assert (incident.status == "held") == (not trusts)
    if trusts:
        counted = {source["counted"] for source in plain(incident.details)["sources"]}
        assert "counts whatever else is said: its segment trusts notifications" in counted


def test_a_trusted_notification_is_withdrawn_by_its_own_source(house: HealHouse) -> None:
    house.segment(*HOSTS, trust_notifications=True)
    house.boot("web", HOST)
    house.m.store.switches.pause("", "ann", "wait", None)
    report = house.report(HOST)
    house.run(seconds=5)
    started(house, HOST)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=2)
    assert house.incident(report).status == "ignored"
    assert not cut(house)


def test_false_reports_about_a_rack_do_not_hold_the_recovery_of_a_dead_host(
    house: HealHouse,
) -> None:
    names = [f"cmp-{number}" for number in range(1, 11)]
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.segment(*names)
    house.boot("web", "cmp-10")
    for name in names[:8]:
        house.report(name)
    house.run(seconds=30)
    assert {one.status for one in incidents(house)} == {"held"}
    house.sim.fail_host("cmp-10")
    report = house.report("cmp-10")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"
    assert cut(house) <= {"cmp-10"}


def test_a_rack_whose_signs_of_life_end_together_is_held_as_a_mass_failure(
    house: HealHouse,
) -> None:
    names = [f"cmp-{number}" for number in range(1, 11)]
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.segment(*names)
    for name in names[:8]:
        house.report(name)
    house.run(seconds=30)
    for name in names[:8]:
        house.sim.cut_host(name)
    house.run(minutes=2)
    assert not cut(house)
    sentences = [one.sentence for one in incidents(house)]
    assert all("8 of 10 hosts are down" in sentence for sentence in sentences), sentences
