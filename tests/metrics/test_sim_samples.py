# SPDX-License-Identifier: Apache-2.0
"""Numbers of a simulated host: made up, marked as that, the same each time; none of the dead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.app.demo import samples_part
from holdfast.db import Store
from holdfast.drivers.sim import metrics
from holdfast.drivers.sim.simulator import Simulator
from holdfast.metrics import history
from holdfast.metrics.history import EVERY_S, FIELDS, NOTHING, POINTS, Hour
from holdfast.runtime.clock import SystemClock
from tests.hoststatus.site import empty_database
from tests.processes import eventually
from tests.simclock import SimClock

HOST = "cmp-05"


class Town:
    """The demo world, a store, and what makes numbers up; in simulated time."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimClock()
        self.simulator = Simulator(str(folder / "sim.db"), self.clock)
        self.simulator.seed_demo()
        self.clock.advance(3 * 3600)
        (folder / "x.db").write_bytes(empty_database())
        self.store = Store(f"sqlite:///{folder / 'x.db'}", self.clock)
        self._part = samples_part(lambda: self.simulator, self.store.samples, self.clock)

    @property
    def slot(self) -> int:
        return history.slot_of(self.clock.now().timestamp())

    def hour(self, count: int = POINTS) -> Hour:
        return metrics.hour(self.simulator.world(), HOST, self.slot + 1 - count, self.slot + 1)

    def turn(self) -> Hour:
        self._part._run()
        return self.store.samples.samples_of(HOST).hour


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.store.close()
    made.simulator.close()


def test_the_past_hour_is_available_at_once_and_marked_as_simulated(town: Town) -> None:
    hour = town.hour()
    assert (hour.points, hour.end, hour.simulated) == (POINTS, town.slot + 1, True)
    servers = [
        server for server in town.simulator.world()["servers"] if HOST in server["running_on"]
    ]
    kinds = [line.kind for line in hour.lines]
    assert kinds == ["host", *(kind for kind in ("guest", "disk", "nic") for _ in servers)]
    for line in hour.lines:
        assert set(line.values) == set(FIELDS[line.kind])
        for name, row in line.values.items():
            assert all(value >= 0 for value in row), (line.id, name)
            assert name == "over_contract_ratio" or "ratio" not in name or max(row) <= 1
    assert history.plain(history.read(history.plain(hour))) == history.plain(hour)


def test_a_new_simulated_world_has_a_history(town: Town) -> None:
    town.clock.advance(-3 * 3600)
    rows = [row for line in town.hour().lines for row in line.values.values()]
    assert rows and not any(math.isnan(point) for row in rows for point in row)


def test_each_simulated_point_is_reproducible_in_any_chunking(town: Town) -> None:
    whole = town.hour()
    pieces = NOTHING
    for first in range(whole.begin, whole.end, 50):
        end = min(first + 50, whole.end)
        pieces = history.merged(pieces, metrics.hour(town.simulator.world(), HOST, first, end))
    assert history.plain(pieces) == history.plain(whole)


def test_simulated_host_load_follows_its_servers(town: Town) -> None:
    lines = {line.id: line for line in town.hour().lines}
    world = town.simulator.world()
    vcpus = next(host["vcpus"] for host in world["hosts"] if host["name"] == HOST)
    mine = [server for server in world["servers"] if HOST in server["running_on"]]
    for place in (0, 100, 359):
        cores = sum(
            lines[server["id"]].values["util_ratio"][place] * server["vcpus"] for server in mine
        )
        busy = lines[HOST].values["cpu_util_ratio"][place]
        assert cores / vcpus <= busy <= cores / vcpus + 0.05


def test_a_server_of_the_demo_world_is_too_busy(town: Town) -> None:
    world = town.simulator.world()
    begin, end = town.slot + 1 - POINTS, town.slot + 1
    hours = [metrics.hour(world, host["name"], begin, end) for host in world["hosts"]]
    guests = [line for hour in hours for line in hour.lines if line.kind == "guest"]
    hot = [guest for guest in guests if max(guest.values["util_ratio"]) > 0.95]
    assert 2 <= len(hot) < len(guests) / 2


def test_a_dead_simulated_host_has_no_points_until_recovery(town: Town) -> None:
    store = town.store.samples
    store.want(HOST)
    before = town.turn()
    assert before.points == POINTS
    town.simulator.fail_host(HOST)
    town.clock.advance(10 * EVERY_S)
    assert town.hour() == NOTHING
    assert history.plain(town.turn()) == history.plain(before)
    town.clock.advance(4 * EVERY_S)
    assert not store.samples_of(HOST).fresh
    town.simulator.recover_host(HOST)
    store.want(HOST)
    town.clock.advance(2 * EVERY_S)
    after = town.turn()
    row = after.lines[0].values["load1"]
    assert [math.isnan(point) for point in row[-20:]] == [False] * 4 + [True] * 13 + [False] * 3


def test_a_new_simulated_server_has_no_history(town: Town) -> None:
    town.simulator.boot("new", "demo", HOST, 1, 512, 1)
    town.clock.advance(3 * EVERY_S)
    (line,) = (line for line in town.hour().lines if line.name == "new")
    assert [math.isnan(point) for point in line.values["util_ratio"][-6:]] == [True] * 2 + [
        False
    ] * 4


def test_no_samples_are_simulated_without_a_viewer(town: Town) -> None:
    assert town.turn() == NOTHING
    town.store.samples.want(HOST)
    town.store.samples.want("nobody")
    first = town.turn()
    assert first.points == POINTS
    town.clock.advance(EVERY_S)
    assert town.turn().end == first.end + 1
    town.clock.advance(3600)
    assert town.turn().end == first.end + 1


def test_samples_of_a_viewed_host_arrive_while_the_simulation_runs(tmp_path: Path) -> None:
    clock = SystemClock()
    simulator = Simulator(str(tmp_path / "sim.db"), clock)
    simulator.add_host("cmp-1", zone="az-1", rack="rack-a")
    (tmp_path / "x.db").write_bytes(empty_database())
    store = Store(f"sqlite:///{tmp_path / 'x.db'}", clock)
    store.samples.want("cmp-1")
    part = samples_part(lambda: simulator, store.samples, clock)
    part.start()
    try:
        assert eventually(lambda: store.samples.samples_of("cmp-1").hour.lines)
    finally:
        part.stop()
        store.close()
        simulator.close()
