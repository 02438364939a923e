# SPDX-License-Identifier: Apache-2.0
"""A host dies: what becomes of it and of its servers, on the simulated cloud, in one thread."""

import pytest

from holdfast.model.errors import Conflict
from holdfast.model.incident_progress import plain
from holdfast.ports.cloud import Server
from holdfast.recovery import evacuation
from holdfast.recovery.timeline import MovePostponed
from tests.recovery.house import HealHouse

HOSTS = tuple(f"cmp-{i}" for i in range(1, 9))


def test_servers_of_a_dead_host_run_elsewhere(house: HealHouse) -> None:
    house.segment(*HOSTS)
    ran = [house.boot(f"web-{i}", "cmp-1") for i in range(5)]
    stopped = house.boot("db", "cmp-1")
    house.m.cloud.servers.stop(stopped)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=30)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    for one in ran:
        assert house.server(one)["status"] == "ACTIVE"
        assert house.server(one)["host"] != "cmp-1"
    assert house.server(stopped)["status"] == "SHUTOFF"
    assert house.server(stopped)["host"] != "cmp-1"
    assert {move.status for move in house.moves(report)} == {"succeeded"}
    house.check_never_twice()
    house.check_unlocked()


def test_a_host_only_cut_off_is_fenced_before_any_server_leaves(house: HealHouse) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", "cmp-1")
    house.sim.cut_host("cmp-1")  # it has power, and its server runs
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"
    order = [effect.call for effect in house.sim.effects()]
    assert order.index("fence.off") < order.index("services.force_down")
    assert order.index("services.force_down") < order.index("moves.evacuate")
    assert house.sim.running(server) == [house.server(server)["host"]]


def test_a_lying_fence_stops_the_recovery_and_calls_operators(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", "cmp-1")
    house.sim.change(fence_lies=True)
    house.sim.cut_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=1)
    incident = house.incident(report)
    assert incident.status == "running"
    assert "people are needed" in incident.sentence
    assert not house.effects("moves.evacuate")
    house.sim.change(fence_lies=False)
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"
    house.check_never_twice()


def test_a_failing_fence_is_retried_with_pauses(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", "cmp-1")
    house.sim.change(only_calls=["fence.off"], failure_rate=1.0)
    house.sim.cut_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=2)
    assert not house.effects("moves.evacuate")
    assert plain(house.incident(report).details)["fence_failures"] >= 3
    assert house.sim.calls()["fence.off"] < 60  # with pauses
    house.sim.change(failure_rate=0.0)
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"


def test_a_host_without_a_fence_waits_for_an_operators_confirmation(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.unfenced.add("cmp-1")
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=2)
    incident = house.incident(report)
    assert incident.status == "held"
    assert "confirm-off" in incident.sentence
    assert not house.effects("services.force_down")


def test_a_watchdogs_time_is_evidence(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.unfenced.add("cmp-1")
    house.recovery.watchdog_s = 60.0
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=50)
    assert not house.effects("moves.evacuate")
    house.run(seconds=40)
    assert house.incident(report).status == "recovered"
    assert plain(house.incident(report).details)["evidence"]["kind"] == "watchdog"


def test_the_report_of_a_monitor_counts_only_if_the_segment_trusts_monitors(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS, trust_host_status=True)
    house.unfenced.update(HOSTS)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert plain(house.incident(report).details)["evidence"]["kind"] == "trusted"
    assert house.incident(report).status == "recovered"


def test_a_host_switched_on_again_in_the_middle_is_fenced_anew(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.parallel_moves = 1
    servers = [house.boot(f"web-{i}", "cmp-1") for i in range(4)]
    house.sim.change(action_s=5.0)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=8)
    house.sim.recover_host("cmp-1")
    house.run(minutes=3)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert len(house.effects("fence.off")) >= 1
    for one in servers:
        assert house.server(one)["host"] != "cmp-1"
    house.check_never_twice()


def test_ha_servers_go_first_then_by_priority_and_group(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.parallel_moves = 1

    def boot(name: str, **metadata: str) -> str:
        return house.sim.boot(name, "alpha", "cmp-1", 1, 512, 1, metadata=metadata).id

    last = boot("a-plain")
    third = boot("b", HA_Enabled="true", HA_Priority="1", HA_Group="z")
    second = boot("c", HA_Enabled="true", HA_Priority="1", HA_Group="m")
    first = boot("d", HA_Enabled="true", HA_Priority="9")
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(minutes=2)
    assert house.effects("moves.evacuate") == [first, second, third, last]


def test_no_more_servers_are_under_way_than_the_budget_allows(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.parallel_moves = 3
    house.sim.change(action_s=2.0)
    for host in ("cmp-1", "cmp-2"):
        for i in range(5):
            house.boot(f"{host}-{i}", host)
        house.sim.fail_host(host)
    reports = [house.report(host) for host in ("cmp-1", "cmp-2")]
    most = 0
    for _ in range(200):
        house.run(seconds=0.5)
        moving = [s for s in house.sim.world()["servers"] if s["task_state"] == "rebuilding"]
        most = max(most, len(moving))
    assert most == 3
    assert {house.incident(report).status for report in reports} == {"recovered"}


@pytest.mark.parametrize("method", ["reserved_host", "rh_priority"])
def test_a_spare_host_takes_over_and_is_used_up(house: HealHouse, method: str) -> None:
    house.segment("cmp-1", "cmp-2", method=method, spares=("spare-1", "spare-2"))
    servers = [house.boot(f"web-{i}", "cmp-1") for i in range(3)]
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=40)
    assert house.incident(report).status == "recovered"
    assert {house.server(server)["host"] for server in servers} == {"spare-1"}
    members = {m.name: m for m in house.m.store.segments.all_members()}
    assert (members["spare-1"].reserved, members["spare-2"].reserved) == (False, True)
    assert members["cmp-1"].on_maintenance


def test_a_spare_is_not_used_up_by_a_host_without_servers(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", method="reserved_host", spares=("spare-1",))
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"
    (spare,) = [m for m in house.m.store.segments.all_members() if m.name == "spare-1"]
    assert spare.reserved


def test_auto_priority_turns_to_the_spare_when_the_scheduler_finds_nothing(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2", method="auto_priority", spares=("spare-1",))
    server = house.sim.boot("big", "alpha", "cmp-1", 20, 60_000, 10).id
    house.sim.boot("in the way", "alpha", "cmp-2", 20, 100_000, 10)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"
    assert house.server(server)["host"] == "spare-1"
    assert house.server(server)["status"] == "ACTIVE"


def test_servers_without_room_wait_and_go_when_there_is_some(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    small = house.sim.boot("small", "alpha", "cmp-1", 1, 512, 1).id
    big = house.sim.boot("big", "alpha", "cmp-1", 20, 100_000, 10).id
    blocker = house.sim.boot("in the way", "alpha", "cmp-2", 20, 100_000, 10).id
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=2)
    assert house.server(small)["host"] == "cmp-2"
    assert house.incident(report).status == "running"
    house.m.cloud.servers.delete(blocker)
    house.run(minutes=3)
    assert house.incident(report).status == "recovered"
    assert (house.server(big)["host"], house.server(big)["status"]) == ("cmp-2", "ACTIVE")
    told = house.m.store.incident_queries.case(house.incident(report).id).timeline
    tries = [one.data for one in told if isinstance(one.data, MovePostponed)]
    assert tries and {try_.server_id for try_ in tries} == {big}
    assert all("for another try: " in try_.sentence for try_ in tries)
    house.check_unlocked()


def test_a_server_that_found_no_room_in_time_is_left_and_named(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.move_give_up_s = 120.0
    house.sim.boot("big", "alpha", "cmp-1", 20, 100_000, 10)
    house.sim.boot("in the way", "alpha", "cmp-2", 20, 100_000, 10)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=6)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("failed", "error")
    assert "big" in incident.sentence
    house.check_unlocked()


def test_a_server_deleted_after_its_host_was_listed_ends_its_move_at_once(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=0.2)
    first, second = house.boot("a", "cmp-1"), house.boot("b", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    while not house.effects("moves.evacuate"):
        house.run(seconds=0.1)
    house.m.cloud.servers.delete(second)  # its host is down: gone at once
    lists = house.sim.calls()["servers.list"]
    while house.moves(report)[1].status != "ignored":
        house.run(seconds=0.1)
        assert not house.moves(report)[1].not_before
    assert house.sim.calls()["servers.list"] == lists
    assert house.moves(report)[1].message == "it was deleted meanwhile"
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"
    assert house.server(first)["host"] == "cmp-2"
    house.check_unlocked()


def test_the_target_dying_sends_the_server_to_a_third_host(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4", "cmp-5", "cmp-6", "cmp-7")
    house.sim.change(action_s=10.0)
    server = house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=5)
    (move,) = house.m.cloud.moves.migrations(source_host="cmp-1")
    target = move.dest_host
    assert target
    house.sim.fail_host(target)
    second = house.report(target)
    house.run(minutes=4)
    assert house.incident(report).status == house.incident(second).status == "recovered"
    assert house.server(server)["host"] not in ("cmp-1", target)
    assert house.server(server)["status"] == "ACTIVE"
    house.check_never_twice()


def test_a_locked_server_stays_locked_by_its_owner(house: HealHouse) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", "cmp-1")
    house.m.cloud.servers.lock(server, "mine")
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(seconds=30)
    assert house.server(server)["locked"]
    assert house.server(server)["host"] != "cmp-1"


def test_only_marked_servers_move_if_configured(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.evacuate_all = False
    marked = house.sim.boot("ha", "alpha", "cmp-1", 1, 512, 1, metadata={"HA_Enabled": "True"}).id
    plain = house.boot("plain", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert house.server(marked)["host"] != "cmp-1"
    assert house.server(plain)["host"] == "cmp-1"
    assert {m.server_name: m.status for m in house.moves(report)} == {
        "ha": "succeeded",
        "plain": "ignored",
    }


def test_a_dry_run_decides_and_touches_nothing(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.dry_run = True
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    before = len(house.sim.effects())
    report = house.report("cmp-1")
    house.run(seconds=30)
    incident = house.incident(report)
    assert incident.status == "ignored"
    assert "dry run: cmp-1 would be fenced" in incident.sentence
    assert "web" in incident.sentence
    assert len(house.sim.effects()) == before


def test_steps_of_the_site_run_before_after_and_instead(house: HealHouse) -> None:
    said: list[str] = []

    def mail(incident: object, cloud: object) -> str:
        said.append(f"mail {len(house.effects('moves.evacuate'))}")
        return "mailed"

    def nothing(incident: object, cloud: object) -> str:
        said.append("instead")
        return "nothing done"

    house.own_steps |= {"mail": mail, "nothing": nothing}
    house.recovery.steps_before = {"move": "mail"}
    house.recovery.steps_after = {"move": "mail"}
    house.recovery.steps_instead = {"repair": "nothing"}
    house.segment(*HOSTS)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"
    assert said == ["instead", "mail 0", "mail 1"]


# the host returns


def test_a_restarted_and_healthy_host_is_used_again(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(minutes=2)
    with pytest.raises(Conflict):
        house.report("cmp-1")  # on maintenance
    house.sim.recover_host("cmp-1")
    house.run(minutes=2)
    (service,) = [s for s in house.m.cloud.services.list() if s.host == "cmp-1"]
    assert (service.enabled, service.forced_down, service.state) == (True, False, "up")
    (member,) = [m for m in house.m.store.segments.all_members() if m.name == "cmp-1"]
    assert not member.on_maintenance
    house.check_never_twice()


def test_servers_move_back_to_the_returned_host_if_configured(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.move_back = True
    server = house.boot("web", "cmp-1")
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(minutes=2)
    house.sim.recover_host("cmp-1")
    house.run(minutes=3)
    assert house.server(server)["host"] == "cmp-1"
    assert house.sim.running(server) == ["cmp-1"]


def test_a_running_resized_server_runs_again(house: HealHouse) -> None:
    house.segment(*HOSTS)
    server = house.boot("web", "cmp-1")
    house.sim.resize_server(server)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.server(server)["status"] == "ACTIVE"
    assert house.sim.running(server) == [house.server(server)["host"]] != ["cmp-1"]
    house.check_unlocked()


def test_a_resized_server_without_power_counts_as_stopped(house: HealHouse) -> None:
    ran, stopped = (
        Server(name, name, "alpha", "cmp-1", "VERIFY_RESIZE", powered=name == "ran")
        for name in ("ran", "stopped")
    )
    assert evacuation.servers_to_run([ran, stopped], (), house.recovery) == ["ran"]
