# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud: it keeps its promises, and it is as nasty as it promises to be."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.drivers.cloud.sim import Settings, SimCloud, Simulator, connect
from holdfast.drivers.cloud.sim.fate import Dice, decide
from holdfast.drivers.cloud.sim.settings import CALLS
from holdfast.model.errors import Conflict, DriverError, InvalidInput, NotFound
from holdfast.ports.clock import SystemClock
from holdfast.ports.cloud import Cloud, Flavor, Server

SRC = str(Path(holdfast.__file__).parents[1])


class HandClock:
    """Time that moves when somebody waits or turns it."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    def wait(self, bell: threading.Event, seconds: float) -> bool:
        self._seconds += max(0.0, seconds)
        return bell.is_set()

    def turn(self, seconds: float) -> None:
        self._seconds += seconds


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "cloud.db")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def cloud(path: str, clock: HandClock) -> Iterator[SimCloud]:
    made = SimCloud(path, clock, seed=1)
    yield made
    made.close()


@pytest.fixture
def sim(path: str, clock: HandClock, cloud: SimCloud) -> Iterator[Simulator]:
    made = Simulator(path, clock)
    for number in (1, 2, 3):
        made.add_host(f"cmp-{number}", vcpus=8, memory_mb=16384, local_gb=100)
    yield made
    made.close()


def small(sim: Simulator, name: str = "s", host: str | None = "cmp-1") -> Server:
    return sim.boot(name, "p", host, 2, 2048, 10)


def python(code: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
    )


# The ports


def test_it_is_a_cloud_and_connects_from_configuration(path: str) -> None:
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
    found = cloud.pools.find("r1")
    assert found is not None
    assert found.hosts == ("cmp-1",)
    assert found.metadata == {"blazar:owner": "p"}
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


def test_an_unknown_host_or_pool_is_not_found(cloud: SimCloud, sim: Simulator) -> None:
    pool = cloud.pools.create("r1", {})
    tries: list[Callable[[], Any]] = [
        lambda: cloud.pools.add_host(pool.id, "nobody"),
        lambda: cloud.pools.remove_host(pool.id, "nobody"),
        lambda: cloud.pools.add_host("99", "cmp-1"),
        lambda: cloud.pools.set_metadata("x", {}),
        lambda: cloud.services.disable("nobody", ""),
        lambda: cloud.servers.list(host="nobody"),
        lambda: cloud.servers.stop("nobody"),
        lambda: cloud.moves.migrations(source_host="nobody"),
        lambda: cloud.flavors.show("nobody"),
        lambda: cloud.slots.inventory("nobody", "X"),
        lambda: sim.fail_host("nobody"),
        lambda: sim.crash_server("nobody"),
    ]
    for attempt in tries:
        with pytest.raises(NotFound):
            attempt()


def test_flavors_refuse_a_taken_id_or_name_and_keep_access(cloud: SimCloud) -> None:
    mine = Flavor("f1", "one", 1, 512, 1, False, {"k": "v"}, ("p",))
    cloud.flavors.create(mine)
    assert cloud.flavors.show("f1") == mine
    for taken in (Flavor("f1", "x", 1, 1, 1), Flavor("x", "one", 1, 1, 1)):
        with pytest.raises(Conflict):
            cloud.flavors.create(taken)
    for _ in range(2):
        cloud.flavors.add_access("f1", "q")
        cloud.flavors.remove_access("f1", "p")
    assert cloud.flavors.list()[0].projects == ("q",)
    cloud.flavors.create(Flavor("pub", "public", 1, 1, 1))
    with pytest.raises(Conflict):
        cloud.flavors.add_access("pub", "q")
    for _ in range(2):
        cloud.flavors.delete("f1")
    assert [f.id for f in cloud.flavors.list()] == ["pub"]


def test_an_inventory_write_with_a_stale_generation_is_refused(
    cloud: SimCloud, sim: Simulator
) -> None:
    first = cloud.slots.inventory("cmp-1", "CUSTOM_A")
    assert (first.total, first.generation) == (0, 0)
    written = cloud.slots.set_inventory("cmp-1", "CUSTOM_A", 4, first.generation)
    assert written == cloud.slots.inventory("cmp-1", "CUSTOM_A")
    with pytest.raises(Conflict, match="generation 1, not 0"):
        # Another class, the same host: one generation guards them all.
        cloud.slots.set_inventory("cmp-1", "CUSTOM_B", 4, first.generation)
    cloud.slots.set_inventory("cmp-1", "CUSTOM_B", 4, written.generation)
    assert cloud.slots.inventory("cmp-2", "CUSTOM_B").generation == 0


def test_groups_addresses_and_volumes_are_kept(cloud: SimCloud, sim: Simulator) -> None:
    group = cloud.slots.create_group("g", "affinity", "p")
    with pytest.raises(Conflict):
        cloud.slots.create_group("g", "anti-affinity", "p")
    assert cloud.slots.groups() == [group]
    cloud.slots.delete_group(group.id)
    assert cloud.slots.groups() == []

    address = cloud.addresses.create("net", "10.0.0.5", "p", ["t1"])
    with pytest.raises(Conflict):
        cloud.addresses.create("net", "10.0.0.5", "q", [])
    assert cloud.addresses.list() == [address]
    cloud.addresses.delete(address.id)
    assert cloud.addresses.list() == []

    server = small(sim)
    attached = sim.add_volume("v", "p", 10, server.id)
    assert attached.status == "in-use"
    sim.add_volume("w", "p", 10)
    assert cloud.volumes.list(server_id=server.id) == [attached]
    cloud.servers.delete(server.id)
    assert {v.status for v in cloud.volumes.list()} == {"available"}


# Servers


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
    with pytest.raises(Conflict, match="No valid host"):
        cloud.servers.unshelve(server.id, "cmp-1")
    cloud.servers.unshelve(server.id, "cmp-2")
    seen = cloud.servers.show(server.id)
    assert (seen.status, seen.host) == ("ACTIVE", "cmp-2")
    assert sim.running(server.id) == ["cmp-2"]


def test_snapshots_make_images_and_locks_do_not_stop_an_admin(
    cloud: SimCloud, sim: Simulator
) -> None:
    server = small(sim)
    cloud.servers.lock(server.id, "lease ended")
    seen = cloud.servers.show(server.id)
    assert (seen.locked, seen.locked_reason) == (True, "lease ended")
    image = cloud.servers.snapshot(server.id, "keep")
    assert cloud.servers.images(server.id, "keep") == [image]
    assert cloud.servers.images(server.id, "other") == []
    cloud.servers.stop(server.id)
    cloud.servers.unlock(server.id)
    assert not cloud.servers.show(server.id).locked
    again = cloud.servers.snapshot(server.id, "keep")  # nobody keeps names apart
    assert cloud.servers.images(server.id, "keep") == [image, again]
    assert cloud.servers.images(small(sim, "other").id, "keep") == []
    cloud.servers.delete(server.id)
    assert cloud.servers.images(server.id, "keep") == [image, again]


def test_servers_are_listed_by_host_and_project(cloud: SimCloud, sim: Simulator) -> None:
    one = small(sim, "one")
    two = sim.boot("two", "q", "cmp-2", 1, 1, 1, "m1", {"k": "v"})
    assert cloud.servers.list() == [one, two]
    assert cloud.servers.list(host="cmp-2.example.org") == [two]
    assert cloud.servers.list(project_id="p") == [one]
    assert cloud.servers.list(host="cmp-2", project_id="p") == []


@pytest.mark.parametrize("size", [(9, 1, 1), (1, 16385, 1), (1, 1, 101)])
def test_capacity_is_enforced_when_booting(sim: Simulator, size: tuple[int, int, int]) -> None:
    for host in ("cmp-1", None):
        with pytest.raises(Conflict, match="No valid host"):
            sim.boot("huge", "p", host, *size)


def test_nobody_lands_in_reserved_pools_unless_told_or_entitled(
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


# Dead hosts


def test_a_dead_host_looks_up_for_a_while_and_its_servers_look_active(
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


def test_evacuation_needs_room_and_counts_what_is_on_its_way(
    cloud: SimCloud, sim: Simulator
) -> None:
    sim.change(action_s=10)
    servers = [small(sim, f"s{n}") for n in range(4)]
    sim.boot("there", "p", "cmp-2", 5, 1, 1)
    sim.fail_host("cmp-1")
    cloud.moves.evacuate(servers[0].id, "cmp-2")
    with pytest.raises(Conflict, match="2 vCPUs wanted, 1 free"):
        cloud.moves.evacuate(servers[1].id, "cmp-2")
    cloud.moves.evacuate(servers[1].id)
    cloud.services.disable("cmp-3", "")
    with pytest.raises(Conflict, match="No valid host"):
        cloud.moves.evacuate(servers[2].id)


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


def test_an_unfenced_host_makes_a_server_run_twice_and_the_simulator_tells(
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


# Faults


def test_fate_is_decided_in_order_and_only_for_chosen_calls() -> None:
    lucky, unlucky = Dice(0.99, 0.99, 0.99, 0.5), Dice(0.0, 0.0, 0.0, 0.5)
    bad = Settings(failure_rate=0.5, lost_reply_rate=0.5, latency_s=1)
    assert decide(bad, "a", 10, lucky) == decide(Settings(latency_s=1), "a", 10, lucky)
    assert "failed" in decide(bad, "a", 10, unlucky).refusal
    chosen = Settings(down=True, only_calls=("pools.list",))
    assert decide(chosen, "pools.find", 10, unlucky).refusal == ""
    assert "down" in decide(chosen, "pools.list", 10, unlucky).refusal
    jittery = Settings(latency_s=2, latency_jitter=0.5)
    assert decide(jittery, "a", 10, Dice(0, 0, 0, 0.0)).wait_s == 1.0
    assert decide(jittery, "a", 10, Dice(0, 0, 0, 0.75)).wait_s == 2.5
    done = decide(Settings(hang_s=99), "a", 10, unlucky)
    not_done = decide(Settings(hang_s=99), "a", 10, lucky)
    assert (done.refusal, done.wait_after) == ("", True)
    assert (not_done.wait_s, not_done.loss) == (10, "")


def test_a_cloud_that_is_down_fails_at_once_and_changes_nothing(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    sim.change(down=True, latency_s=5)
    before = clock.monotonic()
    with pytest.raises(DriverError, match=r"sim cloud: pools\.create.*down") as error:
        cloud.pools.create("r1", {})
    assert error.value.retryable
    assert clock.monotonic() == before
    sim.change(down=False, latency_s=0)
    assert cloud.pools.list() == []
    assert sim.calls()["pools.create"] == 1


def test_a_lost_reply_comes_after_the_effect_and_a_failure_before(
    cloud: SimCloud, sim: Simulator
) -> None:
    pool = cloud.pools.create("r1", {})
    sim.change(lost_reply_rate=1, only_calls=["pools.add_host"])
    for _ in range(3):
        with pytest.raises(DriverError, match="no reply") as error:
            cloud.pools.add_host(pool.id, "cmp-1")
        assert error.value.retryable
    with pytest.raises(DriverError, match="no reply"):  # a refusal is lost as well
        cloud.pools.add_host(pool.id, "nobody")
    assert cloud.pools.list()[0].hosts == ("cmp-1",)
    assert len(sim.effects("pools.add_host", "r1/cmp-1")) == 1
    assert sim.calls()["pools.add_host"] == 4

    sim.change(lost_reply_rate=0, failure_rate=1, only_calls=[])
    with pytest.raises(DriverError, match="nothing was changed") as error:
        cloud.pools.remove_host(pool.id, "cmp-1")
    assert error.value.retryable
    sim.change(failure_rate=0)
    assert cloud.pools.list()[0].hosts == ("cmp-1",)


def test_latency_passes_outside_any_transaction(path: str, cloud: SimCloud, sim: Simulator) -> None:
    class Peeking(HandClock):
        peeked: list[float]

        def wait(self, bell: threading.Event, seconds: float) -> bool:
            # Another writer gets in while the call sleeps, or this raises.
            with sqlite3.connect(path, timeout=0) as other:
                other.execute("BEGIN IMMEDIATE")
            other.close()
            self.peeked.append(seconds)
            return super().wait(bell, seconds)

    slow = Peeking()
    slow.peeked = []
    sim.change(latency_s=2, latency_jitter=0.5)
    other = SimCloud(path, slow, seed=3)
    for n in range(5):
        other.pools.create(f"r{n}", {})
    other.close()
    assert len(set(slow.peeked)) == 5
    assert all(1 <= seconds <= 3 for seconds in slow.peeked)


def test_a_hanging_call_ends_at_its_timeout_with_or_without_the_effect(
    path: str, clock: HandClock, sim: Simulator
) -> None:
    cloud = SimCloud(path, clock, call_timeout_s=4, seed=5)
    sim.change(hang_s=600)
    for n in range(20):
        before = clock.monotonic()
        with pytest.raises(DriverError, match="no answer within 4 s") as error:
            cloud.pools.create(f"r{n}", {})
        assert error.value.retryable
        assert clock.monotonic() - before == pytest.approx(4)
    sim.change(hang_s=3)  # shorter than the timeout: slow, but fine
    made = len(cloud.pools.list())
    cloud.close()
    assert 0 < made < 20
    assert made == len(sim.effects("pools.create"))


def test_a_hanging_call_ends_on_time_by_the_real_clock_too(path: str) -> None:
    cloud = SimCloud(path, SystemClock(), call_timeout_s=0.2)
    sim = Simulator(path, SystemClock())
    sim.change(hang_s=60)
    began = time.monotonic()
    with pytest.raises(DriverError):
        cloud.hosts.list()
    assert time.monotonic() - began < 2
    cloud.close()
    sim.close()


def test_a_seed_replays_the_same_faults(tmp_path: Path) -> None:
    def run(name: str) -> list[str]:
        path = str(tmp_path / name)
        cloud, sim = SimCloud(path, HandClock(), seed=7), Simulator(path, HandClock())
        sim.change(failure_rate=0.3, lost_reply_rate=0.3)
        said = []
        for n in range(40):
            try:
                said.append(cloud.slots.create_group(f"g{n}", "affinity", "p").id)
            except DriverError as error:
                said.append(error.message)
        cloud.close()
        sim.close()
        return said

    first = run("one.db")
    assert first == run("two.db")
    assert {"failed, nothing was changed", "no reply"} <= {
        line.rsplit(": ", 1)[-1] for line in first
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency_s", -1),
        ("latency_s", "1"),
        ("hang_s", float("nan")),
        ("lost_reply_rate", 1.1),
        ("failure_rate", True),
        ("latency_jitter", 2),
        ("down", 1),
        ("only_calls", ["pools.fly"]),
        ("only_calls", "pools.list"),
        ("colour", "blue"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_nothing_changes(
    sim: Simulator, field: str, value: Any
) -> None:
    with pytest.raises(InvalidInput, match=field) as error:
        sim.change(delete_s=9, **{field: value})
    assert error.value.details["field"] == field
    assert sim.settings() == Settings()


def test_every_call_of_every_port_can_fail_and_is_counted_by_its_name(
    cloud: SimCloud, sim: Simulator
) -> None:
    sim.change(down=True)
    arguments: dict[str, tuple[Any, ...]] = {
        "pools.create": ("n", {}),
        "pools.set_metadata": ("1", {}),
        "flavors.create": (Flavor("f", "f", 1, 1, 1),),
        "slots.set_inventory": ("h", "c", 1, 1),
        "slots.create_group": ("g", "affinity", "p"),
        "addresses.create": ("n", "a", "p", []),
        "moves.migrations": (),
    }
    two = {"add_host", "remove_host", "snapshot", "lock", "disable", "inventory"}
    two |= {"images", "add_access", "remove_access"}
    for call in CALLS:
        port, method = call.split(".")
        args = arguments.get(call, ("a", "b") if method in two else ("a",))
        if method in ("list", "groups"):
            args = ()
        named = {"source_host": "h"} if method == "migrations" else {}
        with pytest.raises(DriverError) as error:
            getattr(getattr(cloud, port), method)(*args, **named)
        assert error.value.retryable
    assert sim.calls() == dict.fromkeys(CALLS, 1)


# Many hands


def test_many_threads_share_one_cloud(cloud: SimCloud, sim: Simulator) -> None:
    pool = cloud.pools.create("r1", {})

    def work(n: int) -> bool:
        cloud.pools.add_host(pool.id, f"cmp-{n % 3 + 1}")
        try:
            cloud.pools.create(f"name-{n // 8}", {})
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(work, range(64)))
    assert sum(won) == 8  # one winner for each name
    assert len(sim.effects("pools.add_host")) == 3
    assert sim.calls()["pools.add_host"] == 64


BOOKER = """
import sys
from holdfast.drivers.cloud.sim import SimCloud, Simulator
from holdfast.model.errors import Conflict
from holdfast.ports.clock import SystemClock
path, me = sys.argv[1:]
cloud, sim = SimCloud(path, SystemClock()), Simulator(path, SystemClock())
sim.seed_demo()
wins = 0
for n in range(60):
    try:
        cloud.pools.create(f"pool-{n}", {"by": me})
        wins += 1
    except Conflict:
        pass
    while True:
        seen = cloud.slots.inventory("cmp-01", "CUSTOM_X")
        try:
            cloud.slots.set_inventory(
                "cmp-01", "CUSTOM_X", seen.total + 1, seen.generation
            )
            break
        except Conflict:
            pass
print(wins)
cloud.close()
sim.close()
"""


def test_processes_that_share_a_file_from_its_first_moment_lose_nothing(
    path: str,
) -> None:
    workers = [python(BOOKER, path, str(n)) for n in range(3)]
    wins = [int(worker.communicate(timeout=30)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert sum(wins) == 60
    cloud = SimCloud(path, SystemClock())
    assert len(cloud.hosts.list()) == 24
    inventory = cloud.slots.inventory("cmp-01", "CUSTOM_X")
    assert (inventory.total, inventory.generation) == (180, 180)
    cloud.close()


OBEYER = """
import sys
from holdfast.drivers.cloud.sim import SimCloud
from holdfast.model.errors import DriverError
from holdfast.ports.clock import SystemClock
cloud = SimCloud(sys.argv[1], SystemClock())
print(len(cloud.hosts.list()), flush=True)
for _ in sys.stdin:
    try:
        cloud.hosts.list()
        print("fine", flush=True)
    except DriverError as error:
        print(error, flush=True)
"""


def test_settings_changed_by_one_process_are_obeyed_by_the_next_call_of_another(
    path: str, sim: Simulator
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", OBEYER, path],
        env={**os.environ, "PYTHONPATH": SRC},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin and other.stdout

    def ask() -> str:
        assert other.stdin and other.stdout
        other.stdin.write("?\n")
        other.stdin.flush()
        return other.stdout.readline()

    with other:
        assert other.stdout.readline() == "3\n"
        assert ask() == "fine\n"
        sim.change(down=True)
        assert "the cloud is down" in ask()
        sim.change(down=False)
        assert ask() == "fine\n"


WRITER = """
import sys
from itertools import count
from holdfast.drivers.cloud.sim import SimCloud, Simulator
from holdfast.ports.clock import SystemClock
path, me = sys.argv[1:]
cloud, sim = SimCloud(path, SystemClock()), Simulator(path, SystemClock())
for n in count():
    pool = cloud.pools.create(f"{me}-{n}", {})
    cloud.pools.add_host(pool.id, "cmp-1")
    server = sim.boot(f"{me}-{n}", "p", "cmp-2", 1, 1, 1)
    cloud.servers.stop(server.id)
    cloud.servers.delete(server.id)
    if n == 0:
        print("going", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_consistent_world(
    path: str, cloud: SimCloud, sim: Simulator
) -> None:
    dice = random.Random(11)
    for trial in range(6):
        writer = python(WRITER, path, f"t{trial}")
        with writer:
            assert writer.stdout and writer.stdout.readline() == "going\n"
            time.sleep(dice.random() / 10)
            os.kill(writer.pid, signal.SIGKILL)
        pools = cloud.pools.list()
        # What was recorded happened, what happened was recorded, nothing in between.
        assert len(pools) == len(sim.effects("pools.create"))
        members = [pool for pool in pools if pool.hosts]
        assert len(members) == len(sim.effects("pools.add_host"))
        cloud.pools.create(f"after-{trial}", {})
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    alive = {server.id for server in cloud.servers.list()}
    assert len(alive) == len(sim.effects("sim.boot")) - len(sim.effects("servers.delete"))


def test_a_call_that_cannot_get_the_lock_ends_in_a_retryable_error(path: str) -> None:
    cloud = SimCloud(path, SystemClock(), call_timeout_s=0.2)
    hog = sqlite3.connect(path)
    hog.execute("BEGIN IMMEDIATE")
    with pytest.raises(DriverError, match="locked") as error:
        cloud.hosts.list()
    assert error.value.retryable
    hog.close()
    assert cloud.hosts.list() == []
    cloud.close()


def test_a_file_that_cannot_be_used_is_a_driver_error(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is not a database, however long one looks at it" * 20)
    for bad in (text, text / "below", tmp_path):
        with pytest.raises(DriverError):
            SimCloud(str(bad), HandClock())
    strange = tmp_path / "strange.db"
    with sqlite3.connect(strange) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(DriverError, match="layout 99"):
        SimCloud(str(strange), HandClock())


# The demo


def test_the_demo_world_is_made_once_and_can_be_told_as_json(path: str, clock: HandClock) -> None:
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
