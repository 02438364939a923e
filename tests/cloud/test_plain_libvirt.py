# SPDX-License-Identifier: Apache-2.0
"""Plain libvirt keeps what the ports promise, as far as it has them: the same tests in its world.

Left out is what it refuses (leases: pools, slots, addresses, images; live migration) and what needs
a host that takes in what it does not do: here a host that does not answer takes nothing in.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.drivers.libvirt.settings import Settings
from holdfast.ports.cloud import Cloud, Server
from holdfast.runtime.clock import SystemClock
from tests.cloud.test_hosts import test_a_host_is_found_by_short_name_full_name_and_uuid
from tests.cloud.test_moves import test_a_missing_server_cannot_be_evacuated
from tests.cloud.test_servers import (
    test_a_lock_has_a_reason_and_does_not_stop_us,
    test_a_server_reset_to_active_is_active_and_can_be_stopped,
    test_a_server_that_was_reset_is_in_error_and_may_be_stopped,
    test_nothing_can_be_done_with_a_server_that_is_not_there,
    test_servers_are_listed_by_host_and_project,
)
from tests.cloud.test_services import (
    test_a_service_has_the_time_of_its_last_report,
    test_a_service_is_disabled_forced_down_and_back_however_often_asked,
    test_an_unknown_host_has_no_service,
    test_disabling_a_dead_host_that_was_forced_down_first_is_quick,
    test_forcing_a_dead_host_down_updates_the_time_of_the_last_report,
)
from tests.conftest import serve
from tests.libvirt.plain_house import Patient
from tests.servers.kvm import Kvm

__all__ = [
    "test_a_host_is_found_by_short_name_full_name_and_uuid",
    "test_a_lock_has_a_reason_and_does_not_stop_us",
    "test_a_missing_server_cannot_be_evacuated",
    "test_a_server_reset_to_active_is_active_and_can_be_stopped",
    "test_a_server_that_was_reset_is_in_error_and_may_be_stopped",
    "test_a_service_has_the_time_of_its_last_report",
    "test_a_service_is_disabled_forced_down_and_back_however_often_asked",
    "test_an_unknown_host_has_no_service",
    "test_disabling_a_dead_host_that_was_forced_down_first_is_quick",
    "test_forcing_a_dead_host_down_updates_the_time_of_the_last_report",
    "test_nothing_can_be_done_with_a_server_that_is_not_there",
    "test_servers_are_listed_by_host_and_project",
]


class LibvirtWorld:
    hosts = (Kvm.names[0], Kvm.names[1])
    projects = ("red", "blue")
    network = "none"
    user = ""

    def __init__(self, kvm: Kvm, folder: Path) -> None:
        self._kvm = kvm
        self._state, self._shared = str(folder / "libvirt.db"), (str(kvm.shared),)
        self._numbers = itertools.count()
        self._open = contextlib.ExitStack()
        self.cloud: Cloud = self._connect(Patient(kvm.hosts, self._state, self._shared))
        self.cloud.services.list()

    def close(self) -> None:
        self._open.close()

    def name(self, word: str) -> str:
        return f"{word}-{next(self._numbers)}"

    def hasty(self, call_timeout_s: float) -> Cloud:
        return self._connect(
            Settings(self._kvm.hosts, self._state, self._shared, call_timeout_s=call_timeout_s)
        )

    def _connect(self, settings: Settings) -> Cloud:
        from holdfast.drivers.libvirt.cloud import LibvirtCloud

        cloud = LibvirtCloud(settings, SystemClock())
        return self._open.enter_context(contextlib.closing(cloud))

    def boot(
        self,
        *,
        host: str | None = None,
        project: str | None = None,
        hints: Mapping[str, str] | None = None,
        flavor: str | None = None,
        wait: bool = True,
    ) -> Server:
        where, whose = host or self.hosts[0], project or self.projects[0]
        guest = self._kvm.boot(where, self.name("server"), project=whose, memory_mb=512)
        return self.cloud.servers.show(guest)

    @contextlib.contextmanager
    def hold(self, host: str) -> Iterator[None]:
        with self._kvm.machines[host].paused():
            yield

    def fail(self, host: str) -> None:
        self._kvm.cut(host)

    def recover(self, host: str) -> None:
        self._kvm.switch_on(host)


@pytest.fixture(scope="module")
def machines() -> Iterator[Kvm]:
    yield from serve(Kvm())


@pytest.fixture
def world(machines: Kvm, tmp_path: Path) -> Iterator[LibvirtWorld]:
    made = LibvirtWorld(machines, tmp_path)
    yield made
    made.close()
    machines.restore()
