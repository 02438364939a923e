# SPDX-License-Identifier: Apache-2.0
"""The Slots port, in every world: inventories that servers take from, and server groups."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.ports.cloud import Flavor, Inventory
from tests.cloud.worlds import NovaWorld, World, gone
from tests.processes import eventually


@pytest.fixture
def classes(world: World) -> Iterator[tuple[str, str]]:
    """Names of two resource classes; neither is left anywhere after the test."""
    names = [f"CUSTOM_RESERVATION_{uuid.uuid4()}".upper().replace("-", "_") for _ in range(2)]
    yield names[0], names[1]
    for name in names:
        for host in world.hosts:
            put(world, host, name, 0)
        world.cloud.slots.drop_class(name)


@pytest.fixture
def slot(world: World, classes: tuple[str, str]) -> Iterator[Flavor]:
    """A flavor whose servers take one slot of the first class."""
    own = str(uuid.uuid4())
    flavor = Flavor(own, f"reservation:{own}", 1, 64, 1, True, {f"resources:{classes[0]}": "1"})
    world.cloud.flavors.create(flavor)
    yield flavor
    for server in world.cloud.servers.list():
        if server.flavor in (flavor.id, flavor.name):
            world.cloud.servers.delete(server.id)
            gone(world, server)
    world.cloud.flavors.delete(flavor.id)


def put(world: World, host: str, resource_class: str, total: int) -> Inventory:
    """Set the total, whoever wrote in between."""
    while True:
        seen = world.cloud.slots.inventory(host, resource_class)
        try:
            return world.cloud.slots.set_inventory(host, resource_class, total, seen.generation)
        except Conflict as lost:
            if "generation" not in str(lost):
                raise


def refused(world: World, flavor: Flavor) -> bool:
    """Whether there is no valid host for another server of that flavor."""
    try:
        server = world.boot(flavor=flavor.id, wait=False)
    except Conflict:
        return True
    ended = eventually(lambda: _ended(world, server.id), every=0.1)
    return ended == "ERROR"


def _ended(world: World, server_id: str) -> str | None:
    status = world.cloud.servers.show(server_id).status
    return None if status == "BUILD" else status


def test_a_written_total_is_read_back(world: World, classes: tuple[str, str]) -> None:
    host = world.hosts[0]
    before = world.cloud.slots.inventory(host, classes[0])
    assert (before.total, before.used) == (0, 0)
    written = world.cloud.slots.set_inventory(host, classes[0], 4, before.generation)
    assert written.total == 4
    assert written.generation > before.generation
    assert world.cloud.slots.inventory(host, classes[0]) == written
    assert world.cloud.slots.inventory(world.hosts[1], classes[0]).total == 0


def test_a_generation_guards_all_resource_classes_of_a_host(
    world: World, classes: tuple[str, str]
) -> None:
    host = world.hosts[0]
    first = world.cloud.slots.inventory(host, classes[0])
    written = world.cloud.slots.set_inventory(host, classes[0], 4, first.generation)
    for stale in classes:
        with pytest.raises(Conflict, match=f"generation {written.generation}, not"):
            world.cloud.slots.set_inventory(host, stale, 9, first.generation)
    other = world.cloud.slots.set_inventory(host, classes[1], 2, written.generation)
    assert other.total == 2
    assert world.cloud.slots.inventory(host, classes[0]).total == 4


def test_a_host_is_found_by_short_name_full_name_and_any_case(
    world: World, classes: tuple[str, str]
) -> None:
    host = world.hosts[0]
    written = put(world, host, classes[0], 3)
    assert world.cloud.slots.inventory(f"{host.upper()}.example.org", classes[0]) == written
    with pytest.raises(NotFound):
        world.cloud.slots.inventory("nobody", classes[0])
    with pytest.raises(NotFound):
        world.cloud.slots.set_inventory("nobody", classes[0], 1, 0)


def test_a_resource_class_is_dropped_after_the_last_inventory(
    world: World, classes: tuple[str, str]
) -> None:
    for host in world.hosts:
        put(world, host, classes[0], 1)
    for host in world.hosts:
        with pytest.raises(Conflict, match=classes[0]):
            world.cloud.slots.drop_class(classes[0])
        assert put(world, host, classes[0], 0).total == 0
    for _ in range(2):
        world.cloud.slots.drop_class(classes[0])
    assert put(world, world.hosts[0], classes[0], 1).total == 1  # made again on demand


def test_a_class_by_another_kind_of_name_is_refused_for_good(world: World) -> None:
    seen = world.cloud.slots.inventory(world.hosts[0], "SLOTS")
    with pytest.raises(DriverError) as error:
        world.cloud.slots.set_inventory(world.hosts[0], "SLOTS", 1, seen.generation)
    assert not error.value.retryable


def test_servers_take_slots_where_they_are_and_no_more_than_there_are(
    world: World, classes: tuple[str, str], slot: Flavor
) -> None:
    host = world.hosts[1]
    assert refused(world, slot)
    put(world, host, classes[0], 2)
    servers = [world.boot(flavor=slot.id) for _ in range(2)]
    assert [server.host for server in servers] == [host, host]
    assert refused(world, slot)

    full = world.cloud.slots.inventory(host, classes[0])
    assert (full.total, full.used) == (2, 2)
    for less in (0, 1):
        with pytest.raises(Conflict, match="have 2 slots"):
            world.cloud.slots.set_inventory(host, classes[0], less, full.generation)
    world.cloud.servers.delete(servers[0].id)
    gone(world, servers[0])
    eventually(lambda: world.cloud.slots.inventory(host, classes[0]).used == 1, every=0.1)
    assert put(world, host, classes[0], 1).used == 1


@pytest.mark.slow("nova-compute starts again")
def test_slots_outlive_a_restart_of_their_host(
    world: World, classes: tuple[str, str], slot: Flavor
) -> None:
    """nova-compute writes what it thinks the host has when it starts."""
    host = world.hosts[1]
    put(world, host, classes[0], 2)
    world.boot(flavor=slot.id)
    before = world.cloud.slots.inventory(host, classes[0])
    world.fail(host)
    world.recover(host)
    assert world.boot(flavor=slot.id).host == host
    after = world.cloud.slots.inventory(host, classes[0])
    assert (before.total, before.used) == (2, 1)
    assert (after.total, after.used) == (2, 2)


@pytest.fixture
def group_name(world: World, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for groups. In Nova, our user is given what it takes to make groups for others."""
    if isinstance(world, NovaWorld):
        let_us_in(request)
    name = world.name("group")
    yield name
    for group in world.cloud.slots.groups():
        if group.name == name:
            world.cloud.slots.delete_group(group.id)


def let_us_in(request: pytest.FixtureRequest) -> None:
    """A role of our service user in all projects, by one assignment."""
    identity = request.getfixturevalue("lab").connect().identity
    user, role = identity.find_user("holdfast"), identity.find_role("member")
    identity.assign_domain_role_to_user("default", user, role, inherited=True)


def test_a_group_belongs_to_the_project_it_is_made_for(world: World, group_name: str) -> None:
    slots = world.cloud.slots
    made = [
        slots.create_group(group_name, policy, project)
        for policy, project in zip(("affinity", "anti-affinity"), world.projects, strict=True)
    ]
    assert [group.project_id for group in made] == list(world.projects)
    assert [group.policy for group in made] == ["affinity", "anti-affinity"]
    assert set(made) <= set(slots.groups())


def test_a_group_name_is_a_key_within_its_project(world: World, group_name: str) -> None:
    slots = world.cloud.slots
    made = slots.create_group(group_name, "affinity", world.projects[1])
    with pytest.raises(Conflict, match=group_name):
        slots.create_group(group_name, "anti-affinity", world.projects[1])
    assert [group for group in slots.groups() if group.name == group_name] == [made]


def test_a_missing_group_can_be_deleted(world: World, group_name: str) -> None:
    slots = world.cloud.slots
    made = slots.create_group(group_name, "affinity", world.projects[1])
    for _ in range(2):
        slots.delete_group(made.id)
    assert made not in slots.groups()


def test_servers_of_the_project_may_name_the_group(world: World, group_name: str) -> None:
    group = world.cloud.slots.create_group(group_name, "anti-affinity", world.projects[1])
    hints = {"group": group.id}
    server = world.boot(project=world.projects[1], hints=hints)
    assert server.status == "ACTIVE"
