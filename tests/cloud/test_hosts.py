# SPDX-License-Identifier: Apache-2.0
"""The Hosts port, in every world."""

import json
from dataclasses import replace

import pytest

from holdfast.model.errors import NotFound
from tests.cloud.worlds import World


def test_a_host_is_found_by_short_name_full_name_and_uuid(world: World) -> None:
    listed = {host.service_host: host for host in world.cloud.hosts.list()}
    mine = listed[world.hosts[0]]
    for name in (mine.service_host, f"{mine.service_host.upper()}.example.org.", mine.uuid):
        found = world.cloud.hosts.find(name)
        assert replace(found, inventories={}, traits=frozenset()) == mine
    with pytest.raises(NotFound, match="nobody"):
        world.cloud.hosts.find("nobody")
    with pytest.raises(NotFound):
        world.cloud.hosts.find("4ab11c5e-7bb4-4f0e-8b52-000000000000")


def test_a_host_has_a_size_and_a_state(world: World) -> None:
    host = world.cloud.hosts.find(world.hosts[0])
    assert min(host.vcpus, host.memory_mb, host.local_gb) > 0
    assert isinstance(json.loads(host.cpu_info), dict)
    assert host.state == "up"
    world.cloud.services.force_down(host.service_host)
    assert world.cloud.hosts.find(world.hosts[0]).state == "down"


def test_find_returns_the_inventories_and_traits_of_placement(world: World) -> None:
    host = world.cloud.hosts.find(world.hosts[0])
    sizes = {"VCPU": host.vcpus, "MEMORY_MB": host.memory_mb, "DISK_GB": host.local_gb}
    for resource_class, total in sizes.items():
        inventory = host.inventories[resource_class]
        assert inventory.total == total
        assert 0 <= inventory.reserved < total
        assert inventory.ratio > 0
        assert inventory.most == total
    assert all(trait.isupper() for trait in host.traits)


def test_slots_of_ours_are_no_part_of_what_a_host_has(world: World) -> None:
    before = world.cloud.hosts.find(world.hosts[0])
    slots, name = world.cloud.slots, "CUSTOM_NOT_THE_HOSTS_OWN"
    read = slots.inventory(world.hosts[0], name)
    written = slots.set_inventory(world.hosts[0], name, 3, read.generation)
    try:
        assert world.cloud.hosts.find(world.hosts[0]) == before
    finally:
        slots.set_inventory(world.hosts[0], name, 0, written.generation)
        slots.drop_class(name)
