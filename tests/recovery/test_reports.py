# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of the service we succeed, each as a test that ours has none of it."""

from holdfast.nova.names import OWNER
from holdfast.recovery import evacuation as moves_
from tests.recovery.house import HealHouse

HOSTS = tuple(f"cmp-{i}" for i in range(1, 7))


def recovered(house: HealHouse, report: str, minutes: float = 2) -> None:
    house.run(minutes=minutes)
    assert house.incident(report).status == "recovered", house.incident(report)
    house.check_never_twice()
    house.check_unlocked()


def test_the_host_is_forced_down_at_once_and_recovery_does_not_wait_for_nova(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS)
    house.sim.change(service_down_s=600.0)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    recovered(house, report, minutes=0.25)


def test_a_recovery_continues_after_the_death_of_its_manager(house: HealHouse) -> None:
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
    assert {move.status for move in house.moves(report)} == {"succeeded"}


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


def test_servers_replaced_by_their_owners_are_left_alone(house: HealHouse) -> None:
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
    assert sorted(move.status for move in house.moves(report)) == ["ignored", "succeeded"]


def test_a_host_that_recovery_works_on_can_be_reported_again_without_harm(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(fence_lies=True)
    house.boot("web", "cmp-1")
    house.sim.cut_host("cmp-1")
    first = house.report("cmp-1")
    house.run(seconds=3)
    again = house.report("cmp-1", cluster_status="ONLINE")
    house.run(seconds=3)
    assert house.incident(first).id == house.incident(again).id
    house.sim.change(fence_lies=False)
    recovered(house, first)
    assert house.reported(again) == "finished"


def test_an_endless_evacuation_is_given_up_and_the_report_fails(
    house: HealHouse,
) -> None:
    """Not polled for ever, and not kept running: somebody is told which server it is."""
    house.segment(*HOSTS)
    house.recovery.move_timeout_s = 30.0
    house.recovery.move_give_up_s = 90.0
    house.sim.change(action_s=80_000.0)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=10)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("failed", "error"), incident
    assert "web" in incident.sentence
    house.check_unlocked()


def test_a_report_of_a_day_ago_that_could_not_be_dealt_with_has_failed(house: HealHouse) -> None:
    segment = house.segment(*HOSTS)
    house.recovery.give_up_s = 600.0
    house.m.store.switches.pause("", "ann", "for ever", None)
    report = house.report("cmp-1")
    house.run(minutes=9)
    assert house.reported(report) == "running"
    house.run(minutes=2)
    assert (house.incident(report).status, house.reported(report)) == ("failed", "error")
    changed = house.m.store.segments.change(segment, {"description": "free again"})
    assert changed.description == "free again"


def test_a_server_in_error_leaves_unless_it_is_to_stay(house: HealHouse) -> None:
    house.segment(*HOSTS)
    servers = {}
    for host, ignore in (("cmp-1", False), ("cmp-2", True)):
        house.recovery.ignore_error_state = ignore
        servers[host] = house.boot(f"web-{host}", host)
        house.m.cloud.servers.reset(servers[host])
        house.sim.fail_host(host)
        recovered(house, house.report(host))
    assert house.server(servers["cmp-1"])["host"] != "cmp-1"
    assert house.sim.running(servers["cmp-1"]) == []
    assert house.server(servers["cmp-2"])["host"] == "cmp-2"


def test_a_guest_that_is_busy_or_stopped_already_is_no_trouble(house: HealHouse) -> None:
    """A stop that Nova refuses is no failure of the recovery."""
    house.segment(*HOSTS)
    house.recovery.restart_all = True
    for name, busy in (("busy", True), ("stopped", False)):
        server = house.boot(name, "cmp-1")
        house.sim.change(action_s=3.0 if busy else 0.0)
        house.m.cloud.servers.stop(server)
        report = house.report_guest("cmp-1", server)
        house.run(seconds=30)
        assert house.incident(report).status == "recovered", house.incident(report)
        assert house.sim.running(server) == ["cmp-1"]


def test_a_dry_run_touches_no_guest_and_no_service(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.dry_run = house.recovery.restart_all = True
    server = house.boot("web", "cmp-1")
    house.sim.crash_server(server)
    before = len(house.sim.effects())
    guest = house.report_guest("cmp-1", server)
    said = {"process_name": "nova-compute", "event": "STOPPED"}
    process = house.notify("PROCESS", "cmp-2", said)
    house.run(minutes=1)
    for report in (guest, process):
        assert house.incident(report).status == "ignored"
        assert house.incident(report).sentence.startswith("dry run: ")
    assert len(house.sim.effects()) == before


def test_a_spare_joins_the_aggregates_of_the_failed_host_and_no_reservations_pool(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2", method="reserved_host", spares=("spare-1",))
    house.recovery.add_spare_to_aggregates = True
    pools = house.m.cloud.pools
    plain = pools.create("ssd", {"disk": "fast"})
    owned = pools.create("a-reservation", {OWNER: "somebody"})
    for pool in (plain, owned):
        pools.add_host(pool.id, "cmp-1")
    server = house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    recovered(house, house.report("cmp-1"))
    assert house.server(server)["host"] == "spare-1"
    hosts = {pool.name: set(pool.hosts) for pool in pools.list()}
    assert hosts["ssd"] == {"cmp-1", "spare-1"}
    assert hosts["a-reservation"] == {"cmp-1"}
