# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of the service we succeed, each as a test that ours has none of it."""

from holdfast.heal import moves as moves_
from tests.heal.house import HealHouse

HOSTS = tuple(f"cmp-{i}" for i in range(1, 7))


def recovered(house: HealHouse, report: str, minutes: float = 2) -> None:
    house.run(minutes=minutes)
    assert house.incident(report).status == "recovered", house.incident(report)
    house.check_never_twice()
    house.check_unlocked()


def test_nova_is_told_at_once_and_nobody_sleeps_until_it_notices(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(service_down_s=600.0)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    recovered(house, report, minutes=0.25)


def test_a_recovery_whose_manager_died_is_gone_on_with(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(action_s=5.0)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=2)
    assert house.incident(report).status == "running"
    house.manager()  # the old one is never heard of again
    recovered(house, report)


def test_an_answer_of_503_leaves_no_server_behind_and_none_locked(house: HealHouse) -> None:
    house.segment(*HOSTS)
    for i in range(10):
        house.boot(f"web-{i}", "cmp-1")
    house.sim.fail_host("cmp-1")
    house.sim.change(failure_rate=0.3, lost_reply_rate=0.1)
    report = house.report("cmp-1")
    house.run(minutes=2)
    house.sim.change(failure_rate=0.0, lost_reply_rate=0.0)
    recovered(house, report, minutes=5)
    assert {one.status for one in house.moves(report)} == {"succeeded"}


def test_a_host_of_unknown_status_is_not_evacuated(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", "cmp-1")
    report = house.report("cmp-1", host_status="UNKNOWN")
    house.run(minutes=1)
    assert house.reported(report) == "ignored"
    assert not house.effects("fence.off")


def test_paused_and_suspended_servers_end_stopped_elsewhere(house: HealHouse) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", "cmp-1")
    house.m.cloud.servers.suspend(server)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    recovered(house, report)
    assert (house.server(server)["status"], house.server(server)["host"] != "cmp-1") == (
        "SHUTOFF",
        True,
    )


def test_a_server_stuck_in_a_task_leaves_all_the_same(house: HealHouse) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", "cmp-1")
    house.sim.change(action_s=600.0)
    house.m.cloud.servers.stop(server)
    house.sim.change(action_s=0.0)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    recovered(house, report)
    assert house.server(server)["host"] != "cmp-1"


def test_servers_that_others_replace_are_left_alone(house: HealHouse) -> None:
    house.segment(*HOSTS)
    amphora = house.boot("amphora-1b2c", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    recovered(house, report)
    assert house.server(amphora)["host"] == "cmp-1"


def test_our_own_lock_is_known_after_a_restart(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(action_s=5.0)
    server = house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=2)
    assert house.server(server)["locked_reason"].startswith(moves_.LOCK)
    house.manager()
    recovered(house, report)


def test_a_server_deleted_by_its_owner_in_the_middle_ends_its_move(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(action_s=5.0)
    server = house.boot("web", "cmp-1")
    house.boot("db", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=2)
    house.m.cloud.servers.delete(server)
    recovered(house, report)
    assert sorted(one.status for one in house.moves(report)) == ["ignored", "succeeded"]


def test_a_host_that_recovery_works_on_can_be_reported_again_without_harm(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(fence_lies=True)
    house.boot("web", "cmp-1")
    first = house.report("cmp-1")
    house.run(seconds=3)
    again = house.report("cmp-1", cluster_status="ONLINE")
    house.run(seconds=3)
    assert house.incident(first).id == house.incident(again).id
    house.sim.change(fence_lies=False)
    recovered(house, first)
    assert house.reported(again) == "finished"
