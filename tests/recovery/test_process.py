# SPDX-License-Identifier: Apache-2.0
"""A process on a host dies."""

from datetime import timedelta

import pytest

from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_observed import Agent, incidents


def stopped(house: HealHouse, name: str) -> str:
    report = house.notify("PROCESS", "cmp-1", {"process_name": name, "event": "STOPPED"})
    house.run(seconds=20)
    return report


def started(house: HealHouse, **payload: str) -> None:
    said = {"process_name": "nova-compute", "event": "STARTED", **payload}
    house.notify("PROCESS", "cmp-1", said)


def is_closed(house: HealHouse) -> bool:
    """Whether the host takes no new servers, and is on maintenance."""
    (service,) = [s for s in house.m.cloud.services.list() if s.host == "cmp-1"]
    assert service.enabled is not house.m.store.segments.member("cmp-1").on_maintenance
    return not service.enabled


def test_without_nova_compute_a_host_takes_no_new_servers_until_it_is_back(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.sim.fail_host("cmp-1")  # its service is silent
    house.sim.change(service_down_s=0.0)
    report = stopped(house, "nova-compute")
    assert house.incident(report).status == "recovered"
    assert is_closed(house)
    started(house)
    house.run(minutes=2)
    assert is_closed(house)
    house.sim.recover_host("cmp-1")
    house.run(minutes=2)
    assert not is_closed(house)


@pytest.mark.parametrize("who", ["agent", "notification"])
def test_a_host_is_not_enabled_before_a_source_says_that_its_nova_compute_runs(
    house: HealHouse, who: str
) -> None:
    """Nova shows the service up: nova-compute may be up and useless, its monitor knows better."""
    house.segment("cmp-1", "cmp-2")
    agent = Agent(house, "cmp-1")
    if who == "agent":
        agent.tells("process:cmp-1:nova-compute", "process")
        house.run(seconds=20)
    else:
        stopped(house, "nova-compute")
        started(house, process_name="libvirtd")
    house.run(minutes=30)
    assert is_closed(house)
    if who == "agent":
        agent.tells("process:cmp-1:nova-compute", "process", "well")
    else:
        started(house)
    house.run(minutes=2)
    assert not is_closed(house)


def test_an_operator_may_enable_a_host_whose_nova_compute_nobody_reports(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    stopped(house, "nova-compute")
    assert is_closed(house)
    house.m.cloud.services.enable("cmp-1")
    house.run(minutes=2)
    assert not is_closed(house)


def test_any_other_process_is_noted_and_does_not_touch_maintenance(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    report = stopped(house, "libvirtd")
    assert house.reported(report) == "finished"
    assert not house.m.store.segments.member("cmp-1").on_maintenance
    assert not house.effects("services.disable")


def test_a_host_dying_after_its_nova_compute_is_recovered(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = house.boot("web", "cmp-1")
    house.sim.cut_host("cmp-1")
    stopped(house, "nova-compute")
    assert house.m.store.segments.member("cmp-1").on_maintenance
    report = house.report("cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.server(server)["host"] != "cmp-1"
    house.check_never_twice()


@pytest.mark.parametrize("who", ["agent", "notification"])
def test_a_guest_that_dies_while_nova_compute_is_away_is_started_when_that_is_back(
    house: HealHouse, who: str
) -> None:
    """Nobody says it again then."""
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.change(service_down_s=0.0)
    house.sim.cut_host("cmp-1")
    stopped(house, "nova-compute")
    house.sim.crash_server(server)
    if who == "agent":
        Agent(house, "cmp-1").lost(server)
    else:
        house.report_guest("cmp-1", server)
    house.run(minutes=10)
    (guest,) = [incident for incident in incidents(house) if incident.kind == "guest"]
    assert guest.status == "held"
    assert guest.sentence == "cmp-1 cannot start it before its nova-compute is back"
    assert not house.effects("servers.start")
    house.sim.recover_host("cmp-1")
    started(house)
    house.run(minutes=3)
    (guest,) = [incident for incident in incidents(house) if incident.kind == "guest"]
    assert guest.status == "recovered", guest
    assert house.sim.running(server) == ["cmp-1"]
    assert len(house.effects("servers.start")) == 1


def test_a_guest_that_was_moved_while_its_host_could_not_start_it_is_left_alone(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    server = ha(house)
    house.sim.cut_host("cmp-1")
    stopped(house, "nova-compute")
    report = house.report_guest("cmp-1", server)
    house.run(seconds=30)
    house.sim.recover_host("cmp-1")
    started(house)
    cloud = house.m.cloud.servers
    cloud.shelve(server)
    house.run(seconds=1)
    cloud.unshelve(server, "cmp-2")
    house.run(minutes=3)
    assert house.reported(report) == "ignored"
    assert house.incident(report).sentence == "the server is on cmp-2 by now"
    assert not house.effects("servers.start")


def test_a_host_on_maintenance_is_left_alone_with_its_guests(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    member = house.m.store.segments.member("cmp-1")
    with house.m.store.database.write() as conn:
        conn.exec_driver_sql(
            "UPDATE segment_hosts SET on_maintenance = 1 WHERE id = ?", (member.id,)
        )
    house.sim.crash_server(server)
    Agent(house, "cmp-1").lost(server)
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["ignored"]


@pytest.mark.parametrize("runs", [True, False])
def test_an_old_report_of_nova_compute_counts_only_if_nova_hears_nothing_either(
    house: HealHouse, runs: bool
) -> None:
    house.segment("cmp-1", "cmp-2")
    if not runs:
        house.sim.cut_host("cmp-1")
    said = {"process_name": "nova-compute", "event": "STOPPED"}
    report = house.notify("PROCESS", "cmp-1", said, house.clock.now() - timedelta(days=300))
    house.run(minutes=2)
    assert house.reported(report) == ("ignored" if runs else "finished")
    assert bool(house.effects("services.disable")) is not runs
