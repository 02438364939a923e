# SPDX-License-Identifier: Apache-2.0
"""A guest dies: restarted in place, elsewhere when that fails, not for ever."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.model.errors import Conflict
from tests.recovery.house import HealHouse


def ha(house: HealHouse, name: str = "web", host: str = "cmp-1") -> str:
    return house.sim.boot(name, "alpha", host, 1, 512, 1, metadata={"HA_Enabled": "True"}).id


def test_a_crashed_guest_is_stopped_and_started(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert (house.incident(report).status, house.reported(report)) == ("recovered", "finished")
    assert house.sim.running(server) == ["cmp-1"]


def test_an_unmarked_guest_is_left_alone(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = house.boot("web", "cmp-1")
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.reported(report) == "ignored"
    assert "HA_Enabled" in house.incident(report).sentence
    assert not house.effects("servers.start")


def test_a_guest_not_starting_on_its_host_is_brought_up_elsewhere(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    server = ha(house)
    house.sim.crash_server(server)
    house.sim.change(only_calls=["servers.start"], failure_rate=1.0)
    report = house.report_guest("cmp-1", server)
    house.run(minutes=5)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.sim.running(server) in (["cmp-2"], ["cmp-3"])


def test_a_second_crash_after_it_was_recovered_is_a_new_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    incidents = set()
    for _ in range(3):
        house.sim.crash_server(server)
        report = house.report_guest("cmp-1", server)
        house.run(seconds=20)
        assert house.incident(report).status == "recovered"
        incidents.add(house.incident(report).id)
    assert len(incidents) == 3


def test_a_guest_dying_again_and_again_is_left_to_operators(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.guest_max_recoveries = 2
    server = ha(house)
    for _ in range(3):
        house.sim.crash_server(server)
        report = house.report_guest("cmp-1", server)
        house.run(seconds=20)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("failed", "error")
    assert "keeps dying" in incident.sentence
    assert len(house.effects("servers.start")) == 2
    house.run(minutes=90)
    house.sim.recover_host("cmp-1")
    house.m.cloud.servers.start(server)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.incident(report).status == "recovered"


def test_the_budget_refills_one_by_one_and_refusals_do_not_use_it(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.guest_max_recoveries, house.recovery.guest_window_s = 3, 3600.0
    server = ha(house)

    def dies(refused: bool) -> None:
        house.clock.advance(5)
        house.sim.crash_server(server)
        report = house.report_guest("cmp-1", server)
        house.run(seconds=20)
        assert house.incident(report).status == ("failed" if refused else "recovered")
        if refused:
            house.m.cloud.servers.start(server)  # by hand
            house.run(seconds=5)

    for refused in (False, False, False, True, True, True):
        dies(refused)
    house.run(minutes=20)  # a third of the window: one recovery more, whatever was refused
    for refused in (False, True):
        dies(refused)
    house.run(minutes=40)
    for refused in (False, False, True):
        dies(refused)


def test_a_report_whose_recovery_failed_does_not_hide_a_new_crash(house: HealHouse) -> None:
    """Nor is it delivered again as new."""
    house.segment("cmp-1")
    server, crash = ha(house), house.clock.now()
    house.recovery.start_timeout_s = house.recovery.move_timeout_s = 5.0
    house.sim.change(only_calls=["servers.start", "servers.shelve"], failure_rate=1.0)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server, at=crash)
    house.run(seconds=60)
    assert house.reported(report) == "error"
    house.sim.change(failure_rate=0.0)
    for at in (crash, crash + timedelta(seconds=1)):
        with pytest.raises(Conflict):
            house.report_guest("cmp-1", server, at=at)
    house.m.cloud.servers.start(server)
    house.run(seconds=5)
    house.sim.crash_server(server)
    again = house.report_guest("cmp-1", server)
    house.run(seconds=30)
    assert house.incident(again).status == "recovered"
    assert house.incident(again).id != house.incident(report).id


def test_a_guest_dying_again_on_its_host_is_started_elsewhere(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.guest_restarts_in_place = 2
    server = ha(house)
    for where in ("cmp-1", "cmp-1", "cmp-2"):
        house.sim.crash_server(server)
        report = house.report_guest("cmp-1", server)
        house.run(seconds=20)
        assert house.incident(report).status == "recovered"
        assert house.sim.running(server) == [where]
    assert "it died 3 times" in house.incident(report).sentence
    assert len(house.effects("servers.start")) == 2


def test_the_same_report_delivered_late_is_a_duplicate(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    at = house.clock.now()
    house.report_guest("cmp-1", server, at=at)
    house.run(seconds=20)
    with pytest.raises(Conflict):
        house.report_guest("cmp-1", server, at=at)


def test_a_dead_host_explains_its_dead_guests(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = ha(house)
    house.sim.change(service_down_s=30.0)
    house.sim.fail_host("cmp-1")
    guest = house.report_guest("cmp-1", server)
    house.run(seconds=3)
    host = house.report("cmp-1")
    house.run(minutes=2)
    assert house.incident(guest).id == house.incident(host).id
    assert house.incident(host).status == "recovered"
    assert (house.reported(guest), house.reported(host)) == ("finished", "finished")
    assert house.server(server)["host"] != "cmp-1"
    assert house.effects("moves.evacuate") == [server]
    house.check_never_twice()


def test_guests_reported_while_their_host_is_dealt_with_join_it(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.sim.change(fence_lies=True)
    server = ha(house)
    house.sim.cut_host("cmp-1")
    host = house.report("cmp-1")
    house.run(seconds=20)
    assert house.incident(host).status == "running"
    guest = house.report_guest("cmp-1", server)
    house.run(seconds=5)
    assert house.incident(guest).id == house.incident(host).id


def test_a_guest_dies_on_a_host_that_was_falsely_reported(house: HealHouse) -> None:
    """The false report stays, and signs of life hold its incident for as long."""
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = ha(house)
    host = house.report("cmp-1")
    house.run(seconds=30)
    assert house.incident(host).status == "held"
    house.sim.crash_server(server)
    guest = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.incident(guest).status == "recovered"
    assert house.sim.running(server) == ["cmp-1"]
    assert house.incident(host).status == "held"


def test_a_false_report_of_its_host_does_not_end_the_recovery_of_a_guest(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = ha(house)
    house.sim.crash_server(server)
    house.m.store.switches.pause("", "ann", "wait", None)
    guest = house.report_guest("cmp-1", server)
    house.run(seconds=2)
    host = house.report("cmp-1")
    house.run(seconds=2)
    said = {"event": "STARTED", "host_status": "NORMAL", "cluster_status": "ONLINE"}
    house.notify("COMPUTE_HOST", "cmp-1", said)
    house.run(seconds=30)
    assert house.incident(host).status == "ignored"
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert house.incident(guest).status == "recovered"
    assert house.sim.running(server) == ["cmp-1"]


def test_a_guest_stopped_for_its_restart_runs_again_after_the_death_of_its_host(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = ha(house)
    house.sim.crash_server(server)
    guest = house.report_guest("cmp-1", server)
    while house.server(server)["status"] != "SHUTOFF":
        house.run(seconds=0.1)
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(minutes=2)
    assert house.incident(guest).kind == "host"
    assert house.sim.running(server) not in ([], ["cmp-1"])
    house.check_never_twice()


def test_a_guest_deleted_meanwhile_ends_the_matter(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    house.m.cloud.servers.delete(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.reported(report) == "ignored"


def test_ordinary_events_of_a_guest_are_noted_and_ignored(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    said = {"instance_uuid": server, "event": "LIFECYCLE", "vir_domain_event": "STOPPED_SHUTDOWN"}
    report = house.notify("VM", "cmp-1", said)
    house.run(seconds=5)
    assert house.reported(report) == "ignored"
    assert not house.effects("servers.stop")


def test_a_resized_guest_counts_as_active_before_it_is_restarted(house: HealHouse) -> None:
    """Nova stops what is active or in error, and leaves what waits for its user's word alone."""
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.resize_server(server)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.sim.running(server) == ["cmp-1"]
    assert house.server(server)["status"] == "ACTIVE"
    assert house.effects("servers.reset") == [server]
    assert house.effects("servers.shelve") == []


# who says so, from where and when


def test_a_notification_from_a_host_where_the_cloud_does_not_have_the_server_leads_to_nothing(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house, host="cmp-2")
    report = house.report_guest("cmp-1", server)
    house.run(minutes=1)
    assert house.reported(report) == "ignored"
    assert "is on cmp-2" in house.m.store.notifications.notification(report).message
    assert not house.effects("servers.stop")


def test_a_notification_about_a_suspended_server_leads_to_nothing(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.m.cloud.servers.suspend(server)
    house.run(seconds=5)
    report = house.report_guest("cmp-1", server)
    house.run(minutes=6)
    assert house.reported(report) == "ignored"
    for call in ("stop", "start", "shelve"):
        assert not house.effects(f"servers.{call}")


@pytest.mark.parametrize("source", ["cmp-1", "cmp-2"])
def test_while_a_server_migrates_a_report_waits_and_counts_where_the_server_ends_up(
    house: HealHouse, source: str
) -> None:
    """Of a migration that fails the target sees a guest die that runs on its source."""
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.change(action_s=30.0)
    house.m.cloud.moves.live_migrate(server, "cmp-2")
    report = house.report_guest(source, server)
    house.run(seconds=20)
    assert house.reported(report) == "new"
    house.sim.change(action_s=0.2)
    house.run(minutes=2)
    if source == "cmp-1":
        assert house.reported(report) == "ignored"
        assert not house.effects("servers.stop")
    else:
        assert house.incident(report).status == "recovered"
    assert house.sim.running(server) == ["cmp-2"]


def test_a_server_that_moves_away_after_the_guards_is_not_stopped(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    step_done = house.m.store.operations.step_done

    def step(claim: Any, position: int, name: str, *more: Any) -> Any:
        done = step_done(claim, position, name, *more)
        if name == "guards":
            house.sim.change(action_s=10.0)
            house.m.cloud.moves.live_migrate(server, "cmp-2")
        return done

    house.m.store.operations.step_done = step  # type: ignore[method-assign]
    report = house.report_guest("cmp-1", server)
    house.run(minutes=2)
    assert house.incident(report).status == "ignored"
    assert "moved to cmp-2" in house.incident(report).sentence
    assert not house.effects("servers.stop")


@pytest.mark.parametrize("after_s", [0, 20])
def test_a_crash_reported_again_by_a_monitor_whose_clock_is_ahead_leads_to_nothing(
    house: HealHouse, after_s: float
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, crash = ha(house), house.clock.now()
    house.sim.crash_server(server)
    house.report_guest("cmp-1", server, at=crash)
    house.run(seconds=after_s)
    payload = {"instance_uuid": server, "event": "LIFECYCLE"}
    said = {**payload, "vir_domain_event": "STOPPED_FAILED", "monitor": "second"}
    report = house.notify("VM", "cmp-1", said, crash + timedelta(seconds=60 + after_s))
    house.run(minutes=2)
    assert house.reported(report) == "finished"
    assert len(house.effects("servers.start")) == 1
    assert not house.effects("servers.stop")


def test_a_new_crash_reported_by_a_monitor_whose_clock_is_ahead_is_recovered(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, ahead = ha(house), timedelta(seconds=60)
    house.sim.change(action_s=10.0)  # as long the cloud says ACTIVE of a guest that died
    for _ in range(2):
        house.sim.crash_server(server)
        report = house.report_guest("cmp-1", server, at=house.clock.now() + ahead)
        house.run(minutes=1)
        assert house.incident(report).status == "recovered"
    assert house.sim.running(server) == ["cmp-1"]
    assert len(house.effects("servers.start")) == 2


def test_a_report_dated_in_the_far_future_hides_no_later_one(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    house.report_guest("cmp-1", server, at=house.clock.now() + timedelta(days=365))
    with pytest.raises(Conflict):  # the same crash, by a clock that is right
        house.report_guest("cmp-1", server)
    house.run(seconds=20)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.incident(report).status == "recovered"
    assert len(house.effects("servers.start")) == 2
