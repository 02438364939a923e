# SPDX-License-Identifier: Apache-2.0
"""What Placement says of a host, when it says something else than usual.

Against a stand-in that does what it is told (`tests/cloud/stub.py`): the lab's Placement is well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers.nova.cloud import NovaCloud
from holdfast.model.errors import DriverError
from holdfast.model.host import Inventory
from tests.cloud.stub import Act, Handler, Stub, saying
from tests.cloud.test_edge import config, stub

__all__ = ["stub"]  # so that tests of this file may ask for it

UUID = "4ab11c5e-7bb4-4f0e-8b52-000000000001"
HYPERVISOR = {
    "id": UUID,
    "hypervisor_hostname": "cmp-1",
    "service": {"host": "cmp-1"},
    "vcpus": 8,
    "memory_mb": 1024,
    "local_gb": 10,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 1,
    "cpu_info": {},
    "state": "up",
}
OWN = f"GET /placement/resource_providers/{UUID}"
PCPU = {
    "total": 16,
    "reserved": 2,
    "allocation_ratio": 1.5,
    "max_unit": 8,
    "min_unit": 1,
    "step_size": 1,
}


@pytest.fixture
def cloud(stub: Stub, tmp_path: Path) -> Iterator[NovaCloud]:
    stub.acts = {
        "GET /v2.1/os-hypervisors/detail": saying(200, {"hypervisors": [HYPERVISOR]}),
        "GET /v2.1/os-services": saying(200, {"services": [{"host": "cmp-1", "zone": "az"}]}),
        f"{OWN}/inventories": saying(200, {"inventories": {"PCPU": PCPU}}),
        f"{OWN}/traits": saying(200, {"traits": ["HW_CPU_X86_VMX"]}),
    }
    with contextlib.closing(NovaCloud(config(tmp_path, stub.server_port))) as made:
        yield made


def test_every_class_and_every_trait_of_the_provider_is_the_hosts(cloud: NovaCloud) -> None:
    host = cloud.hosts.find("cmp-1")
    assert host.inventories == {"PCPU": Inventory(16, reserved=2, ratio=1.5, most=8)}
    assert host.inventories["PCPU"].capacity == 21
    assert host.traits == {"HW_CPU_X86_VMX"}
    assert host.zone == "az"


def test_a_compute_without_a_report_has_no_inventories(stub: Stub, cloud: NovaCloud) -> None:
    missing: Any = {"errors": [{"status": 404, "detail": "No resource provider with uuid"}]}
    stub.acts[f"{OWN}/inventories"] = saying(404, missing)
    host = cloud.hosts.find("cmp-1")
    assert (host.vcpus, host.inventories, host.traits) == (8, {}, frozenset())


def html(status: int) -> Act:
    def act(handler: Handler) -> None:
        handler.say_text(status, "<html>no such site</html>", "text/html")

    return act


@pytest.mark.parametrize("act", [html(404), saying(500, {}), saying(503, {})])
def test_an_unreachable_placement_is_an_error_and_not_a_host_without_inventories(
    stub: Stub, cloud: NovaCloud, act: Act
) -> None:
    stub.acts[f"{OWN}/traits"] = act
    with pytest.raises(DriverError) as failed:
        cloud.hosts.find("cmp-1")
    assert failed.value.retryable
