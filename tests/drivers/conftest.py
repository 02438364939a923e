# SPDX-License-Identifier: Apache-2.0
"""A simulated cloud with three hosts, in time that is turned by hand; real machines with BMCs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import serve
from tests.drivers.bmc import PASSWORD, USER
from tests.drivers.small_cloud import HandClock
from tests.servers.ipmi import Ipmi
from tests.servers.libvirt import Libvirt
from tests.servers.redfish import Redfish

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator


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


@pytest.fixture(scope="session")
def libvirt() -> Iterator[Libvirt]:
    yield from serve(Libvirt())


@pytest.fixture(scope="session")
def machines(libvirt: Libvirt) -> dict[str, str]:
    """Machines by name, with their uuids."""
    return {name: libvirt.machine(name) for name in ("cmp-1", "cmp-2")}


@pytest.fixture(scope="session")
def bmc(libvirt: Libvirt, machines: dict[str, str]) -> Iterator[Redfish]:
    yield from serve(Redfish(libvirt, USER, PASSWORD))


@pytest.fixture(scope="session")
def ipmi(libvirt: Libvirt, machines: dict[str, str]) -> Iterator[Ipmi]:
    yield from serve(Ipmi(libvirt, USER, PASSWORD, *machines))


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    return str(file)
