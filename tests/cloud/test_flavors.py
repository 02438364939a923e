# SPDX-License-Identifier: Apache-2.0
"""The Flavors port, in every world."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Flavor
from tests.cloud.worlds import World


@pytest.fixture
def flavor(world: World) -> Iterator[Flavor]:
    """What a reservation of slots makes; not made yet."""
    own = str(uuid.uuid4())
    specs = {
        "aggregate_instance_extra_specs:reservation": own,
        f"resources:CUSTOM_RESERVATION_{own.upper().replace('-', '_')}": "1",
        "affinity_id": "a key that Nova does not know",
    }
    yield Flavor(own, f"reservation:{own}", 2, 64, 1, False, specs, (world.projects[0],))
    world.cloud.flavors.delete(own)


def test_a_private_flavor_has_the_requested_settings(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(flavor)
    assert world.cloud.flavors.show(flavor.id) == flavor


def test_the_list_has_private_and_public_flavors_without_access_lists(
    world: World, flavor: Flavor
) -> None:
    public = replace(flavor, id=f"p-{flavor.id}", name="in the open", public=True, projects=())
    try:
        for one in (flavor, public):
            world.cloud.flavors.create(one)
        listed = {one.id: one for one in world.cloud.flavors.list()}
    finally:
        world.cloud.flavors.delete(public.id)
    assert listed[flavor.id] == replace(flavor, projects=())
    assert listed[public.id] == public


def test_a_flavor_made_by_half_is_completed_by_the_same_call(world: World, flavor: Flavor) -> None:
    """Nova takes the sizes, the extra specs and each access in a call of its own."""
    world.cloud.flavors.create(replace(flavor, extra_specs={}, projects=()))
    for _ in range(2):
        world.cloud.flavors.create(flavor)
        assert world.cloud.flavors.show(flavor.id) == flavor


def test_completing_a_flavor_takes_nothing_away(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(replace(flavor, extra_specs={"by": "somebody else"}))
    world.cloud.flavors.add_access(flavor.id, world.projects[1])
    world.cloud.flavors.create(flavor)
    shown = world.cloud.flavors.show(flavor.id)
    assert shown.extra_specs == {**flavor.extra_specs, "by": "somebody else"}
    assert set(shown.projects) == {world.projects[0], world.projects[1]}


def test_a_taken_id_or_name_is_a_conflict_and_changes_nothing(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(flavor)
    others = (
        replace(flavor, name="another name"),
        replace(flavor, vcpus=4),
        replace(flavor, memory_mb=65),
        replace(flavor, disk_gb=2),
        replace(flavor, public=True, projects=()),
        replace(flavor, id=f"x-{flavor.id}"),
    )
    for other in others:
        with pytest.raises(Conflict, match="another flavor"):
            world.cloud.flavors.create(replace(other, extra_specs={"sneaked": "in"}))
    assert world.cloud.flavors.show(flavor.id) == flavor
    with pytest.raises(NotFound):
        world.cloud.flavors.show(f"x-{flavor.id}")


def test_access_can_be_given_and_removed_repeatedly(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(replace(flavor, projects=()))
    assert world.cloud.flavors.show(flavor.id).projects == ()
    for _ in range(2):
        world.cloud.flavors.add_access(flavor.id, world.projects[1])
    assert world.cloud.flavors.show(flavor.id).projects == (world.projects[1],)
    for _ in range(2):
        world.cloud.flavors.remove_access(flavor.id, world.projects[1])
    assert world.cloud.flavors.show(flavor.id).projects == ()


def test_a_public_flavor_has_no_access_to_give(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(replace(flavor, public=True, projects=()))
    with pytest.raises(Conflict, match="public"):
        world.cloud.flavors.add_access(flavor.id, world.projects[1])


def test_only_removal_succeeds_for_a_missing_flavor(world: World, flavor: Flavor) -> None:
    world.cloud.flavors.create(flavor)
    for _ in range(2):
        world.cloud.flavors.delete(flavor.id)
    world.cloud.flavors.remove_access(flavor.id, world.projects[0])
    with pytest.raises(NotFound):
        world.cloud.flavors.show(flavor.id)
    with pytest.raises(NotFound):
        world.cloud.flavors.add_access(flavor.id, world.projects[0])
