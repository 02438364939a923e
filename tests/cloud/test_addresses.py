# SPDX-License-Identifier: Apache-2.0
"""The Addresses port, in every world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Address
from tests.cloud.worlds import World

IP = "203.0.113.77"


@pytest.fixture
def tags(world: World) -> Iterator[list[str]]:
    """The marks of a reservation; the addresses of this file are free before and after."""

    def free() -> None:
        for address in world.cloud.addresses.list():
            if address.address == IP:
                world.cloud.addresses.delete(address.id)

    free()
    yield ["blazar", f"reservation:{world.name('r')}"]
    free()


def listed(world: World) -> list[Address]:
    return [address for address in world.cloud.addresses.list() if address.address == IP]


def test_an_address_is_made_for_a_project_with_its_tags(world: World, tags: list[str]) -> None:
    made = world.cloud.addresses.create(world.network, IP, world.projects[1], tags)
    assert (made.network_id, made.address) == (world.network, IP)
    assert (made.project_id, made.server_id) == (world.projects[1], None)
    assert set(made.tags) == set(tags)
    assert [(one.id, set(one.tags)) for one in listed(world)] == [(made.id, set(tags))]


def test_a_floating_ip_of_another_owner_is_a_conflict(world: World, tags: list[str]) -> None:
    made = world.cloud.addresses.create(world.network, IP, world.projects[1], tags)
    others = (
        (world.projects[0], tags),
        (world.projects[1], ["blazar", "reservation:another"]),
        (world.projects[1], []),
    )
    for project, other in others:
        with pytest.raises(Conflict, match="taken"):
            world.cloud.addresses.create(world.network, IP, project, other)
    assert listed(world) == [made]


def test_without_tags_a_repeated_create_is_a_conflict(world: World, tags: list[str]) -> None:
    world.cloud.addresses.create(world.network, IP, world.projects[1], [])
    with pytest.raises(Conflict, match="taken"):
        world.cloud.addresses.create(world.network, IP, world.projects[1], [])


def test_a_repeated_create_returns_the_same_floating_ip(world: World, tags: list[str]) -> None:
    made = world.cloud.addresses.create(world.network, IP, world.projects[1], tags)
    again = world.cloud.addresses.create(world.network, IP, world.projects[1], tags)
    assert again == made
    assert len(listed(world)) == 1


def test_a_missing_floating_ip_can_be_deleted(world: World, tags: list[str]) -> None:
    made = world.cloud.addresses.create(world.network, IP, world.projects[1], tags)
    for _ in range(2):
        world.cloud.addresses.delete(made.id)
    assert listed(world) == []


def test_the_subnets_of_a_network_say_what_the_cloud_hands_out_itself(world: World) -> None:
    (subnet,) = world.cloud.addresses.subnets(world.network)
    assert subnet.network_id == world.network
    assert (subnet.cidr, subnet.gateway) == ("203.0.113.0/24", "203.0.113.1")
    assert subnet.pools == (("203.0.113.2", "203.0.113.254"),)
    assert subnet.id


@pytest.mark.parametrize("nobody", ["4ab11c5e-7bb4-4f0e-8b52-000000000000", "no such/network?"])
def test_a_missing_network_is_not_found(world: World, nobody: str) -> None:
    with pytest.raises(NotFound):
        world.cloud.addresses.subnets(nobody)
