# SPDX-License-Identifier: Apache-2.0
"""A host that died and came back with another boot id is not cut: its servers start in place."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from holdfast.model.incident_progress import plain
from tests.recovery.house import HealHouse
from tests.recovery.test_liveness import HOST, HOSTS, beat, cut, incidents, started
from tests.recovery.voters import voters


@pytest.fixture
def site(house: HealHouse) -> HealHouse:
    house.segment(*HOSTS)
    beat(house, *HOSTS)
    house.run(seconds=3)
    return house


def reboot(house: HealHouse, dark_s: float = 4.0) -> None:
    """Its kernel crashes, and it boots again: nothing runs there."""
    house.sim.fail_host(HOST)
    house.run(seconds=dark_s)
    house.sim.recover_host(HOST)


def lives(
    house: HealHouse,
    seconds: float,
    *running: str,
    boot_id: str = "second",
    ran: Sequence[str] = (),
) -> None:
    """Heartbeats for so long, every five seconds."""
    for _ in range(int(seconds // 5)):
        beat(house, HOST, boot_id=boot_id, running=running, ran=ran)
        house.run(seconds=5)


def crash_unseen(house: HealHouse) -> str:
    """It crashes, is reported, and its power never reads off."""
    house.sim.cut_host(HOST)
    return house.report(HOST)


def test_a_rebooted_host_is_not_cut_and_its_servers_start_in_place(site: HealHouse) -> None:
    web = site.boot("web", HOST)
    site.m.store.switches.pause("", "ann", "wait", None)
    site.sim.fail_host(HOST)
    report = site.report(HOST)
    site.run(seconds=4)  # what ran there is known
    site.sim.recover_host(HOST)
    beat(site, HOST, boot_id="second", running=())
    site.m.store.switches.resume("", "ann")
    lives(site, 90)
    incident = site.incident(report)
    assert incident.status == "recovered", incident.sentence
    assert incident.sentence.startswith("recovered in place")
    assert site.server(web)["status"] == "ACTIVE"
    assert site.sim.running(web) == [HOST]
    assert not cut(site)
    assert not site.effects("services.force_down")


def test_guests_restarted_by_nova_are_left_alone(site: HealHouse) -> None:
    web = site.boot("web", HOST)
    report = crash_unseen(site)
    site.run(seconds=2)
    site.sim.repair_host(HOST)  # to the cloud it never lost power, and the guest runs
    lives(site, 90, web)
    assert site.incident(report).status == "recovered"
    assert not cut(site)
    assert not site.effects("servers.stop")
    assert not site.effects("servers.start")


def test_a_guest_that_the_cloud_calls_active_and_its_agent_does_not_see_is_started(
    site: HealHouse,
) -> None:
    web = site.boot("web", HOST)
    report = crash_unseen(site)
    site.run(seconds=2)
    site.sim.repair_host(HOST)
    lives(site, 120)  # no guest runs
    assert site.incident(report).status == "recovered"
    assert site.effects("servers.stop") == site.effects("servers.start") == [web]


def test_no_server_starts_before_the_agent_reports_the_running_guests(site: HealHouse) -> None:
    site.boot("web", HOST)
    report = crash_unseen(site)
    site.run(seconds=2)
    site.sim.repair_host(HOST)
    for _ in range(12):
        beat(site, HOST, boot_id="second")
        site.run(seconds=5)
    assert site.incident(report).status == "running"
    assert not site.effects("servers.stop")
    assert not cut(site)


def test_a_report_that_comes_after_the_reboot_starts_the_servers_too(site: HealHouse) -> None:
    """Nova has stopped them by then, and its agent knows that one of them ran before."""
    web, stopped = site.boot("web", HOST), site.boot("db", HOST)
    site.m.cloud.servers.stop(stopped)
    site.run(seconds=3)
    reboot(site)
    lives(site, 60, ran=[web])
    assert site.server(web)["status"] == "SHUTOFF"
    report = site.report(HOST)
    lives(site, 90, ran=[web])
    sentence = "recovered in place: cmp-1: 0 of 2 servers moved, 1 started in place, 1 stay"
    assert site.incident(report).sentence == sentence
    assert site.sim.running(web) == [HOST]
    assert not site.sim.running(stopped)
    assert not cut(site)


def test_a_withdrawn_report_waits_whether_the_host_rebooted(site: HealHouse) -> None:
    web = site.boot("web", HOST)
    site.sim.hang_host(HOST)
    report = site.report(HOST)
    site.run(seconds=2)
    site.sim.recover_host(HOST)
    started(site, HOST)
    site.run(seconds=8)  # its agent starts later than its monitor sees it
    assert site.incident(report).status == "held"
    lives(site, 60)
    assert site.incident(report).sentence.startswith("recovered in place")
    assert site.sim.running(web) == [HOST]


def test_a_withdrawn_report_is_closed_if_no_agent_is_heard_for_ten_minutes(site: HealHouse) -> None:
    report = crash_unseen(site)
    site.run(seconds=2)
    site.sim.repair_host(HOST)
    started(site, HOST)
    site.run(minutes=9)
    assert site.incident(report).status == "held"
    site.run(minutes=2)
    assert site.incident(report).status == "ignored"
    assert not cut(site)


def test_an_old_report_of_a_host_that_rebooted_is_not_dropped(site: HealHouse) -> None:
    site.boot("web", HOST)
    reboot(site)
    lives(site, 60)
    report = site.report(HOST, at=site.clock.now() - timedelta(hours=1))
    lives(site, 90)
    assert site.incident(report).sentence.startswith("recovered in place")
    assert not cut(site)


def test_a_host_silent_after_its_reboot_is_cut(site: HealHouse) -> None:
    web = site.boot("web", HOST)
    report = crash_unseen(site)
    site.run(seconds=2)
    beat(site, HOST, boot_id="second", running=())
    site.run(seconds=10)
    assert plain(site.incident(report).details)["power_returned"]["rebooted"]
    assert not cut(site)
    site.run(minutes=2)
    assert cut(site) == {HOST}
    assert site.incident(report).status == "recovered"
    assert site.server(web)["host"] != HOST


def test_a_reboot_does_not_explain_storage_that_monitors_see_lost(site: HealHouse) -> None:
    site.boot("web", HOST)
    for voter in voters(site, *HOSTS):
        voter.fails(HOST)  # on storage
    lives(site, 30)
    assert cut(site) == {HOST}
    assert [incident.status for incident in incidents(site)] == ["recovered"]


def test_the_same_boot_id_is_no_reboot(site: HealHouse) -> None:
    site.boot("web", HOST)
    report = site.report(HOST)
    lives(site, 60, boot_id="first")
    assert site.incident(report).status == "held"
    assert not cut(site)
