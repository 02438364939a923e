# SPDX-License-Identifier: Apache-2.0
"""A simulated cloud with three hosts, in time that is turned by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drivers.hands import HandClock

from holdfast.drivers.cloud.sim import SimCloud, Simulator


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
