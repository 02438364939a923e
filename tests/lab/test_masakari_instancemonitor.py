# SPDX-License-Identifier: Apache-2.0
"""masakari-monitors' instance monitor, as it comes, reports to us; the guest that was killed runs
again. Guest, libvirtd and all programs are real: the cloud is the libvirt host that it watches."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import serve
from tests.e2e.deployment import Options
from tests.lab.monitored import PATIENCE_S, Town, monitored
from tests.processes import Program, eventually
from tests.servers.libvirt import Libvirt

if TYPE_CHECKING:
    from lab.cloud import Lab

HOST = "kvm-1"


@pytest.fixture(scope="module")
def libvirt() -> Iterator[Libvirt]:
    yield from serve(Libvirt())


@pytest.fixture(scope="module")
def town(lab: Lab, libvirt: Libvirt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("instancemonitor")
    hosts = {"hosts": f"{HOST}:{libvirt.url}", "state": folder / "libvirt.db"}
    extra: Options = {"libvirt": hosts, "recovery": {"restart_all": True}}
    with monitored(lab, folder, cloud="libvirt", hosts=0, extra=extra) as made:
        made.enlist([HOST])
        yield made


@pytest.mark.slow("libvirtd, an instance monitor and Holdfast start")
def test_a_guest_reported_dead_by_the_instance_monitor_runs_again(
    town: Town, libvirt: Libvirt, tmp_path: Path
) -> None:
    guest = libvirt.machine("web")
    libvirt.switch("web", True)
    options: Options = {
        "DEFAULT": {"hostname": HOST, "debug": True},
        "libvirt": {"connection_uri": libvirt.url},
    }
    monitor = town.monitor("masakari-instancemonitor", options, PYTHONPATH=str(library(tmp_path)))
    with monitor:
        eventually(lambda: is_heard(libvirt, guest, monitor), PATIENCE_S, 0.2)
        (killed,) = emulators(libvirt, guest)
        killed.send_signal(signal.SIGKILL)
        (report,) = town.reports("VM")
    assert report.payload == {
        "event": "LIFECYCLE",
        "instance_uuid": guest,
        "vir_domain_event": "STOPPED_FAILED",
    }
    assert report.source_host_uuid == town.member(HOST).uuid
    (alive,) = emulators(libvirt, guest)
    assert alive.pid != killed.pid
    assert libvirt.runs("web")


def emulators(libvirt: Libvirt, guest: str) -> list[psutil.Process]:
    """The QEMUs of that guest that there are."""
    assert libvirt.kept is not None
    return [one for one in libvirt.kept.tree() if guest in one.cmdline()]


def is_heard(libvirt: Libvirt, guest: str, monitor: Program) -> bool:
    """Whether the monitor notices what becomes of it; a pause is nothing to report."""
    with libvirt.connected() as connection:
        domain = connection.lookupByUUIDString(guest)
        domain.suspend()
        domain.resume()
    return f"uuid = {guest}" in monitor.log.read_text()


def library(folder: Path) -> Path:
    """The library that speaks to libvirt, which they take from the system: our own will do."""
    for name in ("libvirt", "libvirtmod"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None
        (folder / Path(found.origin).name).symlink_to(found.origin)
    return folder
