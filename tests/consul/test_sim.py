# SPDX-License-Identifier: Apache-2.0
"""The networks of the simulated cloud."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import conf as configuration
from holdfast.app import hostmonitor
from holdfast.drivers.sim.outage import SimMembership
from holdfast.drivers.sim.simulator import Simulator
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import DriverError, NotFound
from holdfast.ports.membership import Membership
from holdfast.runtime.clock import SystemClock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sim.db")


@pytest.fixture
def simulator(path: str) -> Iterator[Simulator]:
    made = Simulator(path, SystemClock())
    for name in ("cmp-1", "cmp-2"):
        made.add_host(name)
    yield made
    made.close()


@pytest.fixture
def storage(path: str, simulator: Simulator) -> Iterator[SimMembership]:
    made = SimMembership("storage", path, SystemClock())
    yield made
    made.close()


def test_a_cut_cable_is_seen_on_its_network_alone(
    path: str, simulator: Simulator, storage: Membership
) -> None:
    manage = SimMembership("manage", path, SystemClock())
    before = storage.poll(None, 0)
    assert before.states == {"cmp-1": UP, "cmp-2": UP}
    threading.Timer(0.3, simulator.cut_network, ("cmp-1", "storage")).start()
    began = time.monotonic()
    after = storage.poll(before.version, 100)
    assert 0.2 < time.monotonic() - began < 60
    assert after.states == {"cmp-1": DOWN, "cmp-2": UP}
    assert manage.poll(None, 0).states == {"cmp-1": UP, "cmp-2": UP}
    assert storage.prove().gossip == after.states
    assert [host["cut"] for host in simulator.world()["hosts"]] == [["storage"], []]
    simulator.repair_network("cmp-1", "storage")
    assert storage.poll(after.version, 100).states == before.states
    manage.close()


def test_a_host_without_power_or_cut_off_is_down_everywhere(
    simulator: Simulator, storage: Membership
) -> None:
    simulator.fail_host("cmp-1")
    simulator.cut_host("cmp-2")
    assert storage.poll(None, 0).states == {"cmp-1": DOWN, "cmp-2": DOWN}
    simulator.recover_host("cmp-1")
    simulator.repair_host("cmp-2")
    assert storage.poll(None, 0).states == {"cmp-1": UP, "cmp-2": UP}


def test_a_cable_stays_cut_over_a_restart(simulator: Simulator, storage: Membership) -> None:
    simulator.cut_network("cmp-1", "storage")
    simulator.fail_host("cmp-1")
    simulator.recover_host("cmp-1")
    assert storage.poll(None, 0).states["cmp-1"] == DOWN


def test_without_a_change_a_poll_ends_after_its_timeout(storage: Membership) -> None:
    before = storage.poll(None, 0)
    began = time.monotonic()
    assert storage.poll(before.version, 0.4) == before
    assert time.monotonic() - began >= 0.4


def test_closing_ends_a_waiting_poll(storage: Membership) -> None:
    version = storage.poll(None, 0).version
    threading.Timer(0.2, storage.close).start()
    began = time.monotonic()
    with pytest.raises(DriverError, match="closing"):
        storage.poll(version, 100)
    assert time.monotonic() - began < 60


def test_an_unknown_host_has_no_cable(simulator: Simulator) -> None:
    with pytest.raises(NotFound, match="cmp-9"):
        simulator.cut_network("cmp-9", "storage")


def test_the_group_of_a_network_names_its_driver(
    tmp_path: Path, path: str, simulator: Simulator
) -> None:
    file = tmp_path / "holdfast.conf"
    file.write_text(
        f"[sim]\ndatabase = {path}\n[hostmonitor]\nnetworks = storage, backup\n"
        "[network_storage]\ndriver = sim\n[network_backup]\ndriver = acme\n"
    )
    conf = configuration.load([], [str(file)])
    assert configuration.unknown(conf) == []
    made = hostmonitor.connect(conf, "storage")
    assert made.poll(None, 0).states == {"cmp-1": UP, "cmp-2": UP}
    made.close()
    with pytest.raises(DriverError, match=r"network_backup.*'acme'; there are consul, sim"):
        hostmonitor.connect(conf, "backup")


@pytest.mark.parametrize("names", ["", "a, a", "Storage", "sto rage", "x" * 40])
def test_an_invalid_network_name_is_refused_at_once(tmp_path: Path, names: str) -> None:
    file = tmp_path / "holdfast.conf"
    file.write_text(f"[hostmonitor]\nnetworks = {names}\n")
    with pytest.raises(configuration.cfg.Error, match="networks"):
        configuration.load([], [str(file)])


def test_an_invalid_address_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.conf"
    file.write_text("[network_storage]\nurl = localhost:8500\n")
    conf = configuration.load([], [str(file)])
    with pytest.raises(DriverError, match=r"\[network_storage\] url: 'localhost:8500' is none of"):
        hostmonitor.connect(conf, "storage")
