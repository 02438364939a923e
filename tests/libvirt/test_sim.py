# SPDX-License-Identifier: Apache-2.0
"""Guests of the simulated cloud: they start, are stopped, and crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import drivers
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.processes import eventually


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    cloud = SimCloud(str(tmp_path / "c.db"), SystemClock(), seed=1)
    made = Simulator(str(tmp_path / "c.db"), SystemClock())
    made.add_host("cmp-1", vcpus=8, memory_mb=16384, local_gb=100)
    yield made
    made.close()
    cloud.close()


def test_a_server_that_crashes_is_a_death_and_one_that_is_stopped_is_none(
    sim: Simulator, tmp_path: Path
) -> None:
    ear = Ear()
    driver = drivers.connect_guests("sim", f"cmp-1@{tmp_path / 'c.db'}", SystemClock())
    driver.start(ear)
    try:
        eventually(lambda: ear.readings == [{}])
        sim.boot("web", "p", "cmp-1", 2, 2048, 10)
        ear.wait("web", "lifecycle started booted")
        sim.crash_server("web")
        ear.wait("web", "lifecycle stopped failed")
        assert ear.verdicts("web", 3600) == ["failed stopped failed"]
        assert not driver.why_deaf()
    finally:
        driver.close()


def test_who_comes_later_finds_it_crashed(sim: Simulator, tmp_path: Path) -> None:
    sim.boot("web", "p", "cmp-1", 2, 2048, 10)
    sim.crash_server("web")
    ear = Ear()
    driver = drivers.connect_guests("sim", f"cmp-1@{tmp_path / 'c.db'}", SystemClock())
    driver.start(ear)
    try:
        eventually(lambda: ear.verdicts("web") == ["failed stopped failed"])
    finally:
        driver.close()


def test_a_driver_or_an_address_that_does_not_exist_is_named() -> None:
    with pytest.raises(DriverError, match="there is no 'xen'; there are libvirt, sim"):
        drivers.connect_guests("xen", "", SystemClock())
    with pytest.raises(DriverError, match="write HOST@FILE"):
        drivers.connect_guests("sim", "cmp-1", SystemClock())
