# SPDX-License-Identifier: Apache-2.0
"""The Hosts port, in every world."""

import json

import pytest

from holdfast.model.errors import NotFound
from tests.cloud.worlds import World


def test_a_host_is_found_by_short_name_full_name_and_uuid(world: World) -> None:
    listed = {host.service_host: host for host in world.cloud.hosts.list()}
    mine = listed[world.hosts[0]]
    for name in (mine.service_host, f"{mine.service_host.upper()}.example.org.", mine.uuid):
        assert world.cloud.hosts.find(name) == mine
    with pytest.raises(NotFound, match="nobody"):
        world.cloud.hosts.find("nobody")
    with pytest.raises(NotFound):
        world.cloud.hosts.find("4ab11c5e-7bb4-4f0e-8b52-000000000000")


def test_a_host_tells_its_size_and_whether_it_is_up(world: World) -> None:
    host = world.cloud.hosts.find(world.hosts[0])
    assert min(host.vcpus, host.memory_mb, host.local_gb) > 0
    assert isinstance(json.loads(host.cpu_info), dict)
    assert host.state == "up"
    world.cloud.services.force_down(host.service_host)
    assert world.cloud.hosts.find(world.hosts[0]).state == "down"
