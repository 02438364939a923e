# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud keeps promises that only it can be asked for.

What every cloud does is in `tests/cloud`.
"""

import json
from types import SimpleNamespace

import pytest
from tests.drivers.small_cloud import HandClock, small

from holdfast.drivers.sim.cloud import SimCloud, connect
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.ports.cloud import Cloud
from holdfast.runtime.clock import SystemClock


def test_the_simulated_cloud_has_every_port_and_connects_from_configuration(path: str) -> None:
    conf = SimpleNamespace(
        sim=SimpleNamespace(database=path), cloud=SimpleNamespace(call_timeout_s=3.0)
    )
    cloud: Cloud = connect(conf, SystemClock())
    assert cloud.call_timeout_s == 3.0
    assert cloud.hosts.list() == []
    cloud.close()
    with pytest.raises(DriverError) as error:
        cloud.hosts.list()
    assert not error.value.retryable


def test_hosts_are_found_by_short_name_full_name_and_uuid(cloud: SimCloud, sim: Simulator) -> None:
    made = sim.add_host("node-9.example.org", zone="az", rack="r", vcpus=4)
    for name in ("node-9", "NODE-9.example.org.", made.uuid):
        assert cloud.hosts.find(name) == made
    assert cloud.hosts.find("cmp-1.example.org").service_host == "cmp-1"
    assert [h.service_host for h in cloud.hosts.list()][:2] == ["cmp-1", "cmp-2"]
    with pytest.raises(NotFound):
        cloud.hosts.find("node-9.example.com")
    with pytest.raises(Conflict):
        sim.add_host("cmp-1.example.org")


def test_a_short_name_that_two_hosts_share_is_refused_not_guessed(
    cloud: SimCloud, sim: Simulator
) -> None:
    sim.add_host("n.a")
    sim.add_host("n.b")
    assert cloud.hosts.find("n.a").service_host == "n.a"
    with pytest.raises(Conflict, match=r"n\.a, n\.b"):
        cloud.hosts.find("n")


def test_pools_take_repeated_adds_and_removes_but_no_taken_name(
    cloud: SimCloud, sim: Simulator
) -> None:
    pool = cloud.pools.create("r1", {"blazar:owner": "p"})
    with pytest.raises(Conflict):
        cloud.pools.create("r1", {})
    small(sim)  # a host with servers may join and leave: no zones here
    for _ in range(2):
        cloud.pools.add_host(pool.id, "cmp-1.example.org")
    pools = cloud.pools.find("r1")
    assert pools is not None
    assert pools.hosts == ("cmp-1",)
    assert pools.metadata == {"blazar:owner": "p"}
    with pytest.raises(Conflict, match="cmp-1"):
        cloud.pools.delete(pool.id)
    for _ in range(2):
        cloud.pools.remove_host(pool.id, "cmp-1")
        cloud.pools.set_metadata(pool.id, {"a": "b"})
    assert cloud.pools.list()[0].metadata == {"a": "b"}
    for _ in range(2):
        cloud.pools.delete(pool.id)
    cloud.pools.remove_host(pool.id, "cmp-1")
    assert cloud.pools.find("r1") is None
    did = [(e.call, e.subject) for e in sim.effects() if e.call.startswith("pools.")]
    assert did == [
        ("pools.create", "r1"),
        ("pools.add_host", "r1/cmp-1"),
        ("pools.remove_host", "r1/cmp-1"),
        ("pools.set_metadata", "r1"),
        ("pools.delete", "r1"),
    ]
    assert sim.calls()["pools.add_host"] == 2


def test_a_volume_is_in_use_as_long_as_its_server_lives(cloud: SimCloud, sim: Simulator) -> None:
    server = small(sim)
    attached = sim.add_volume("v", "p", 10, server.id)
    assert attached.status == "in-use"
    sim.add_volume("w", "p", 10)
    assert cloud.volumes.list(server_id=server.id) == [attached]
    cloud.servers.delete(server.id)
    assert {v.status for v in cloud.volumes.list()} == {"available"}


def test_unknown_hosts_and_servers_can_neither_fail_nor_crash(sim: Simulator) -> None:
    for attempt in (sim.fail_host, sim.recover_host, sim.crash_server):
        with pytest.raises(NotFound):
            attempt("nobody")


def test_actions_take_their_time_and_exclude_each_other(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=5)
    with pytest.raises(Conflict, match="ACTIVE"):
        cloud.servers.start(server.id)
    cloud.servers.stop(server.id)
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.task_state) == ("ACTIVE", "powering-off")
    for action in (cloud.servers.stop, cloud.servers.start, cloud.servers.shelve):
        with pytest.raises(Conflict, match="powering-off"):
            action(server.id)
    assert sim.running(server.id) == ["cmp-1"]
    clock.turn(5)
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.task_state) == ("SHUTOFF", None)
    assert sim.running(server.id) == []
    with pytest.raises(Conflict, match="SHUTOFF"):
        cloud.servers.stop(server.id)
    cloud.servers.start(server.id)
    clock.turn(5)
    assert cloud.servers.show(server.id).status == "ACTIVE"
    assert sim.running(server.id) == ["cmp-1"]
    cloud.servers.suspend(server.id)
    clock.turn(5)
    assert cloud.servers.show(server.id).status == "SUSPENDED"


def test_a_deleted_server_lingers_then_is_gone(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(delete_s=30)
    cloud.servers.delete(server.id)
    clock.turn(20)
    cloud.servers.delete(server.id)  # asking again neither hurts nor prolongs
    assert cloud.servers.show(server.id).task_state == "deleting"
    clock.turn(10)
    with pytest.raises(NotFound):
        cloud.servers.show(server.id)
    cloud.servers.delete(server.id)
    assert len(sim.effects("servers.delete", server.id)) == 1
    assert cloud.servers.list() == []


def test_a_shelved_server_frees_its_host_and_returns_where_there_is_room(
    cloud: SimCloud, sim: Simulator
) -> None:
    server = small(sim)
    cloud.servers.shelve(server.id)
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.host) == ("SHELVED_OFFLOADED", None)
    sim.boot("big", "p", "cmp-1", 8, 1024, 1)
    cloud.servers.unshelve(server.id, "cmp-1")
    assert cloud.servers.show(server.id).status == "SHELVED_OFFLOADED"
    cloud.servers.unshelve(server.id, "cmp-2")
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.host) == ("ACTIVE", "cmp-2")
    assert sim.running(server.id) == ["cmp-2"]


@pytest.mark.parametrize("size", [(9, 1, 1), (1, 16385, 1), (1, 1, 101)])
def test_capacity_is_enforced_when_booting(sim: Simulator, size: tuple[int, int, int]) -> None:
    for host in ("cmp-1", None):
        with pytest.raises(Conflict, match="No valid host"):
            sim.boot("huge", "p", host, *size)


def test_no_server_lands_in_a_reserved_pool_without_hint_or_flavor(
    cloud: SimCloud, sim: Simulator
) -> None:
    free = cloud.pools.create("freepool", {})
    mine = cloud.pools.create("r1", {"blazar:owner": "p"})
    cloud.pools.add_host(free.id, "cmp-1")
    cloud.pools.add_host(mine.id, "cmp-2")
    assert {small(sim, f"s{n}", None).host for n in range(4)} == {"cmp-3"}
    with pytest.raises(Conflict, match="No valid host"):
        small(sim, "fifth", None)
    hint = {"reservation": "r1"}
    assert sim.boot("r", "p", None, 1, 1, 1, metadata=hint).host == "cmp-2"
    with pytest.raises(Conflict):
        sim.boot("r", "q", None, 1, 1, 1, metadata=hint)
    with pytest.raises(Conflict):
        sim.boot("r", "p", None, 1, 1, 1, metadata={"reservation": "none such"})
    assert small(sim, "told").host == "cmp-1"


def test_a_crashed_server_does_not_run_and_the_cloud_notices_later(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim, "db")
    sim.change(action_s=3)
    sim.crash_server("db")
    assert sim.running(server.id) == []
    assert sim.world()["servers"][0]["power_state"] == "crashed"
    assert cloud.servers.show(server.id).status == "ACTIVE"
    clock.turn(3)
    assert cloud.servers.show(server.id).status == "SHUTOFF"
    with pytest.raises(Conflict):
        sim.crash_server(server.id)
    cloud.servers.start(server.id)
    clock.turn(3)
    assert sim.world()["servers"][0]["power_state"] == "running"


def test_nova_shows_a_dead_host_up_for_a_while_and_its_servers_active(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(service_down_s=60)
    sim.fail_host("cmp-1")
    died = clock.now()
    clock.turn(59)
    service = cloud.services.list()[0]
    assert (service.state, service.updated_at) == ("up", died)
    assert sim.running(server.id) == []
    clock.turn(1)
    assert cloud.services.list()[0].state == "down"
    assert cloud.hosts.find("cmp-1").state == "down"
    assert cloud.servers.show(server.id).status == "ACTIVE"
    with pytest.raises(Conflict, match="service is down"):
        small(sim)


def test_services_are_disabled_enabled_and_forced_once_however_often_asked(
    cloud: SimCloud, sim: Simulator
) -> None:
    for _ in range(2):
        cloud.services.disable("cmp-1", "maintenance")
        cloud.services.force_down("cmp-1")
    service = cloud.services.list()[0]
    assert (service.enabled, service.disabled_reason) == (False, "maintenance")
    assert (service.forced_down, service.state) == (True, "down")
    for _ in range(2):
        cloud.services.unforce("cmp-1")
        cloud.services.enable("cmp-1")
    service = cloud.services.list()[0]
    assert (service.enabled, service.forced_down, service.state) == (True, False, "up")
    assert len(sim.effects(subject="cmp-1")) == 1 + 4  # add_host and four effects


def test_an_evacuation_is_refused_while_up_and_ends_stopped_elsewhere(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=10)
    with pytest.raises(Conflict, match="force it down"):
        cloud.moves.evacuate(server.id, "cmp-2")
    sim.fail_host("cmp-1")
    cloud.services.force_down("cmp-1")
    with pytest.raises(Conflict):
        cloud.moves.evacuate(server.id, "cmp-1")
    cloud.moves.evacuate(server.id, "cmp-2")
    with pytest.raises(Conflict, match="rebuilding"):
        cloud.moves.evacuate(server.id, "cmp-3")

    def status() -> str:
        (move,) = cloud.moves.migrations(source_host="cmp-1")
        assert (move.server_id, move.type) == (server.id, "evacuation")
        assert (move.source_host, move.dest_host) == ("cmp-1", "cmp-2")
        return move.status

    assert status() == "accepted"
    clock.turn(5)
    assert status() == "running"
    assert cloud.servers.show(server.id).host == "cmp-1"
    clock.turn(5)
    assert status() == "done"
    seen = cloud.servers.show(server.id)
    assert (seen.host, seen.status, seen.task_state) == ("cmp-2", "SHUTOFF", None)
    assert sim.running(server.id) == []
    cloud.servers.start(server.id)
    clock.turn(10)
    assert sim.running(server.id) == ["cmp-2"]
    assert sim.world()["migrations"] == {"done": 1}


def test_an_evacuation_needs_room_and_counts_servers_on_their_way(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    sim.change(action_s=10)
    servers = [small(sim, f"s{n}") for n in range(4)]
    sim.boot("there", "p", "cmp-2", 5, 1, 1)
    sim.fail_host("cmp-1")
    cloud.moves.evacuate(servers[0].id, "cmp-2")
    cloud.moves.evacuate(servers[1].id, "cmp-2")  # no room, but that is found out later
    cloud.moves.evacuate(servers[2].id)
    cloud.services.disable("cmp-3", "")
    cloud.moves.evacuate(servers[3].id)
    clock.turn(10)
    seen = [cloud.servers.show(server.id) for server in servers]
    assert [(s.status, s.host) for s in seen] == [
        ("SHUTOFF", "cmp-2"),
        ("ERROR", "cmp-1"),
        ("SHUTOFF", "cmp-3"),
        ("ERROR", "cmp-1"),
    ]
    found = cloud.moves.migrations(source_host="cmp-1")
    assert [m.status for m in found] == ["done", "failed", "done", "failed"]


def test_unforce_is_refused_until_the_host_has_restarted(cloud: SimCloud, sim: Simulator) -> None:
    moved, stayed = small(sim, "moved"), small(sim, "stayed")
    sim.fail_host("cmp-1")
    cloud.services.force_down("cmp-1")
    cloud.moves.evacuate(moved.id, "cmp-2")
    with pytest.raises(Conflict, match="restart"):
        cloud.services.unforce("cmp-1")
    sim.recover_host("cmp-1")
    assert cloud.services.list()[0].state == "down"  # forced, whatever it feels like
    cloud.services.unforce("cmp-1")
    assert cloud.services.list()[0].state == "up"
    assert cloud.servers.show(stayed.id).status == "SHUTOFF"
    assert cloud.servers.show(moved.id).host == "cmp-2"
    assert sim.running(stayed.id) == sim.running(moved.id) == []

    sim.fail_host("cmp-1")
    cloud.services.force_down("cmp-1")
    cloud.moves.evacuate(stayed.id, "cmp-2")
    with pytest.raises(Conflict):  # an old restart is no excuse for a new evacuation
        cloud.services.unforce("cmp-1")


def test_an_evacuation_from_an_unfenced_host_runs_a_server_twice_and_the_simulator_records_it(
    cloud: SimCloud, sim: Simulator
) -> None:
    server = small(sim)
    cloud.services.force_down("cmp-1")  # but it is alive
    cloud.moves.evacuate(server.id, "cmp-2")
    cloud.servers.start(server.id)
    assert sim.running(server.id) == ["cmp-1", "cmp-2"]
    sim.recover_host("cmp-1")  # its restarted nova-compute destroys what left
    assert sim.running(server.id) == ["cmp-2"]


def test_an_evacuation_to_a_host_that_dies_fails_and_can_be_repeated(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.change(action_s=10)
    sim.fail_host("cmp-1")
    cloud.moves.evacuate(server.id, "cmp-2")
    sim.fail_host("cmp-2")
    clock.turn(10)
    (move,) = cloud.moves.migrations(source_host="cmp-1")
    seen = cloud.servers.show(server.id)
    assert (move.status, seen.status, seen.host) == ("failed", "ERROR", "cmp-1")
    cloud.moves.evacuate(server.id, "cmp-3")
    clock.turn(10)
    assert cloud.servers.show(server.id).host == "cmp-3"


def test_an_action_on_a_dead_host_is_stuck_but_evacuation_still_works(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    server = small(sim)
    sim.fail_host("cmp-1")
    cloud.servers.stop(server.id)
    clock.turn(1000)
    assert cloud.servers.show(server.id).task_state == "powering-off"
    with pytest.raises(Conflict):
        cloud.servers.shelve(server.id)
    cloud.moves.evacuate(server.id)
    seen = cloud.servers.show(server.id)
    assert (seen.task_state, seen.status, seen.host) == (None, "SHUTOFF", "cmp-2")


def test_the_demo_world_is_made_once_and_has_a_json_form(path: str, clock: HandClock) -> None:
    sim = Simulator(path, clock)
    cloud = SimCloud(path, clock)
    sim.seed_demo()
    gone = cloud.servers.list()[0]
    cloud.servers.delete(gone.id)
    sim.seed_demo()
    world = json.loads(json.dumps(sim.world()))
    assert [h["name"] for h in world["hosts"]] == [f"cmp-{n:02d}" for n in range(1, 25)]
    assert {(h["rack"], h["zone"]) for h in world["hosts"]} == {
        ("rack-a", "az-a"),
        ("rack-b", "az-b"),
        ("rack-c", "az-c"),
    }
    assert len(world["servers"]) == 39
    assert {s["project_id"] for s in world["servers"]} == {"demo", "research"}
    for number, host in enumerate(world["hosts"]):
        assert (host["servers"] > 0) == (number % 8 >= 4)
        assert 32 <= host["vcpus"] <= 64
        assert 128 <= host["memory_mb"] / 1024 <= 256
        assert 2000 <= host["local_gb"] <= 4000
        assert host["service"]["state"] == "up"
    assert [pool["name"] for pool in world["pools"]] == ["freepool"]
    assert world["settings"]["only_calls"] == []
    cloud.close()
    sim.close()
