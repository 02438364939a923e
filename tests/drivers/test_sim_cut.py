# SPDX-License-Identifier: Apache-2.0
"""A simulated host that is cut off and runs on, and running servers that move."""

import pytest
from tests.drivers.small_cloud import HandClock, small

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, DriverError


def test_a_cut_off_host_appears_dead_and_runs_on(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(service_down_s=60)
    sim.cut_host("cmp-1")
    cut = clock.now()
    clock.turn(59)
    sim.cut_host("cmp-1")  # no second cut
    service = cloud.services.list()[0]
    assert (service.state, service.updated_at) == ("up", cut)
    with pytest.raises(DriverError) as late:
        cloud.services.disable("cmp-1", "cut off")
    assert late.value.retryable
    cloud.servers.stop(server.id)
    clock.turn(10)
    assert cloud.services.list()[0].state == "down"
    assert cloud.servers.show(server.id).task_state == "powering-off"
    assert sim.running(server.id) == ["cmp-1"]
    assert sim.world()["hosts"][0]["powered"] is True
    assert len(sim.effects("sim.cut_host", "cmp-1")) == 1


def test_actions_for_a_cut_off_host_run_after_the_host_is_reachable_again(
    cloud: SimCloud, sim: Simulator
) -> None:
    stopping, staying = small(sim, "stopping"), small(sim, "staying")
    sim.cut_host("cmp-1")
    cloud.servers.stop(stopping.id)
    for _ in range(2):
        sim.repair_host("cmp-1")
    assert cloud.services.list()[0].state == "up"
    assert cloud.servers.show(stopping.id).status == "SHUTOFF"
    assert (sim.running(stopping.id), sim.running(staying.id)) == ([], ["cmp-1"])


def test_a_server_evacuated_from_a_host_that_is_only_cut_off_runs_twice(
    cloud: SimCloud, sim: Simulator
) -> None:
    server = small(sim)
    sim.cut_host("cmp-1")
    cloud.moves.evacuate(server.id, "cmp-2")
    assert sim.running(server.id) == ["cmp-1"]
    cloud.servers.start(server.id)
    assert sim.running(server.id) == ["cmp-1", "cmp-2"]
    cloud.services.force_down("cmp-1")
    sim.repair_host("cmp-1")  # its nova-compute has not restarted and cleans up nothing
    assert sim.running(server.id) == ["cmp-1", "cmp-2"]
    with pytest.raises(Conflict, match="restart"):
        cloud.services.unforce("cmp-1")
    sim.recover_host("cmp-1")
    cloud.services.unforce("cmp-1")
    assert sim.running(server.id) == ["cmp-2"]


def test_a_fenced_cut_off_host_runs_no_guest(cloud: SimCloud, sim: Simulator) -> None:
    server, staying = small(sim), small(sim, "staying")
    sim.cut_host("cmp-1")
    sim.fail_host("cmp-1")
    with pytest.raises(Conflict, match="no power"):
        sim.repair_host("cmp-1")
    cloud.moves.evacuate(server.id, "cmp-2")
    cloud.servers.start(server.id)
    assert sim.running(server.id) == ["cmp-2"]
    sim.recover_host("cmp-1")
    assert cloud.servers.show(staying.id).status == "SHUTOFF"
    assert sim.running(server.id) == ["cmp-2"]


def test_a_live_migration_takes_the_guest_along(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=10)
    cloud.moves.live_migrate(server.id)
    clock.turn(9)
    (move,) = cloud.moves.migrations(source_host="cmp-1", kind="live-migration")
    assert (move.status, sim.running(server.id)) == ("running", ["cmp-1"])
    clock.turn(1)
    assert sim.running(server.id) == ["cmp-2"]
    assert cloud.moves.migrations(source_host="cmp-1") == []
    cloud.services.force_down("cmp-1")
    cloud.services.unforce("cmp-1")  # only evacuations stand in the way


def test_a_guest_killed_during_a_migration_arrives_nowhere(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=10)
    cloud.moves.live_migrate(server.id, "cmp-2")
    sim.crash_server(server.id)
    clock.turn(10)
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.host, seen.task_state) == ("SHUTOFF", "cmp-1", None)
    assert sim.running(server.id) == []
    (move,) = cloud.moves.migrations(source_host="cmp-1", kind="live-migration")
    assert move.status == "failed"


def test_a_live_migration_to_a_dying_host_leaves_the_guest_on_the_source(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=10)
    cloud.moves.live_migrate(server.id, "cmp-2")
    sim.fail_host("cmp-2")
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.host, seen.task_state) == ("ACTIVE", "cmp-1", None)
    assert sim.running(server.id) == ["cmp-1"]


def test_a_live_migration_from_a_dying_host_never_arrives(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    moving, kept = small(sim, "moving"), small(sim, "kept")
    sim.change(action_s=10)
    cloud.moves.live_migrate(moving.id, "cmp-2")
    cloud.moves.live_migrate(kept.id, "cmp-2")
    sim.fail_host("cmp-1")
    clock.turn(1000)
    assert cloud.servers.show(moving.id).task_state == "migrating"
    cloud.moves.evacuate(moving.id, "cmp-2")
    clock.turn(10)
    seen = cloud.servers.show(moving.id)
    assert (seen.status, seen.host, sim.running(moving.id)) == ("SHUTOFF", "cmp-2", [])
    sim.recover_host("cmp-1")
    seen = cloud.servers.show(kept.id)
    assert (seen.status, seen.host, seen.task_state) == ("SHUTOFF", "cmp-1", None)
    found = cloud.moves.migrations(source_host="cmp-1", kind="live-migration")
    assert [move.status for move in found] == ["failed", "failed"]


def test_a_repeated_reset_has_a_single_effect(cloud: SimCloud, sim: Simulator) -> None:
    server = small(sim)
    sim.fail_host("cmp-1")
    cloud.servers.stop(server.id)
    for _ in range(3):
        cloud.servers.reset(server.id)
    assert len(sim.effects("servers.reset", server.id)) == 1
    assert cloud.servers.show(server.id).task_state is None


def test_a_host_whose_kernel_hangs_has_power_and_its_servers_are_found_stopped_after_the_reboot(
    cloud: SimCloud, sim: Simulator
) -> None:
    server = small(sim)
    sim.hang_host("cmp-1")
    assert sim.running(server.id) == []
    assert sim.world()["hosts"][0]["powered"] is True
    assert cloud.services.list()[0].state == "down"
    assert cloud.servers.show(server.id).status == "ACTIVE"
    sim.recover_host("cmp-1")
    assert cloud.services.list()[0].state == "up"
    assert cloud.servers.show(server.id).status == "SHUTOFF"


def test_a_nova_compute_reports_once_per_interval_until_its_host_is_cut_off(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    sim.change(report_s=10)
    heard = []
    for second in range(40):
        if second == 25:
            sim.cut_host("cmp-1")
        heard.append(cloud.services.list()[0].updated_at)
        clock.turn(1)
    assert len(set(heard)) == 3
    assert len(set(heard[25:])) == 1
    sim.repair_host("cmp-1")
    assert cloud.services.list()[0].updated_at not in heard
