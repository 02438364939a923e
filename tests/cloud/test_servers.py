# SPDX-License-Identifier: Apache-2.0
"""The Servers port, in every world."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.model.errors import Conflict, NotFound
from tests.cloud.worlds import World, gone, settled
from tests.processes import eventually


def test_servers_are_listed_by_host_and_project(world: World) -> None:
    servers = world.cloud.servers
    one = world.boot(host=world.hosts[0])
    two = world.boot(host=world.hosts[1], project=world.projects[1])
    assert (one.status, one.host, one.project_id) == ("ACTIVE", world.hosts[0], world.projects[0])
    assert one.vcpus == 1
    assert one.memory_mb == 512
    assert {one.id, two.id} <= {server.id for server in servers.list()}
    assert servers.list(host=world.hosts[0]) == [one]
    assert servers.list(host=f"{world.hosts[1]}.example.org") == [two]
    assert one.id in {server.id for server in servers.list(project_id=world.projects[0])}
    assert servers.list(project_id=world.projects[1]) == [two]
    assert servers.list(host=world.hosts[1], project_id=world.projects[0]) == []
    with pytest.raises(NotFound):
        servers.list(host="nobody")


def test_a_server_has_the_user_and_the_time_of_creation(world: World) -> None:
    before = datetime.now(UTC)
    made = world.boot(host=world.hosts[0])
    assert made.user_id == world.user
    assert made.created_at is not None
    assert abs(made.created_at - before) < timedelta(minutes=10)
    world.cloud.servers.stop(made.id)
    stopped = settled(world, made, "SHUTOFF")
    assert (stopped.user_id, stopped.created_at) == (made.user_id, made.created_at)


def test_only_existing_images_have_properties(world: World) -> None:
    server = world.boot(host=world.hosts[0])
    images = [server.image_id] if server.image_id else []
    found = world.cloud.servers.image_properties([*images, str(uuid.uuid4())])
    assert list(found) == images
    assert all(isinstance(value, str) for said in found.values() for value in said.values())


def test_an_action_needs_the_right_state_and_says_so(world: World) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    refused: list[Callable[[str], Any]] = [servers.start, servers.unshelve]
    for action in refused:
        with pytest.raises(Conflict, match=server.id):
            action(server.id)
    servers.stop(server.id)
    assert settled(world, server, "SHUTOFF").host == world.hosts[0]
    for action in (servers.stop, servers.suspend):
        with pytest.raises(Conflict, match=server.id):
            action(server.id)
    servers.start(server.id)
    settled(world, server, "ACTIVE")
    servers.suspend(server.id)
    settled(world, server, "SUSPENDED")
    with pytest.raises(Conflict):
        servers.start(server.id)


def test_a_running_task_excludes_other_actions(world: World) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    with world.hold(world.hosts[0]):
        servers.stop(server.id)
        seen = servers.show(server.id)
        assert (seen.status, seen.task_state) == ("ACTIVE", "powering-off")
        for action in (servers.stop, servers.start, servers.shelve, servers.suspend):
            with pytest.raises(Conflict):
                action(server.id)
        with pytest.raises(Conflict):
            servers.snapshot(server.id, world.name("image"))
    settled(world, server, "SHUTOFF")


def test_a_deleted_server_lingers_then_is_gone_and_may_be_deleted_again(world: World) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    servers.lock(server.id, "not in our way")
    servers.delete(server.id)
    gone(world, server)
    servers.delete(server.id)
    assert server.id not in {other.id for other in servers.list()}
    assert servers.list(host=world.hosts[0]) == []


def test_a_server_that_was_reset_is_in_error_and_may_be_stopped(world: World) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    for _ in range(2):
        servers.reset(server.id)
        seen = servers.show(server.id)
        assert (seen.status, seen.task_state, seen.host) == ("ERROR", None, world.hosts[0])
    servers.stop(server.id)
    settled(world, server, "SHUTOFF")


def test_a_server_reset_to_active_is_active_and_can_be_stopped(
    world: World,
) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    servers.reset(server.id)
    for _ in range(2):
        servers.reset(server.id, active=True)
        seen = servers.show(server.id)
        assert (seen.status, seen.task_state, seen.host) == ("ACTIVE", None, world.hosts[0])
        assert seen.powered
    servers.stop(server.id)
    settled(world, server, "SHUTOFF")
    assert not servers.show(server.id).powered


def test_a_stopped_server_and_one_in_the_middle_of_something_can_be_deleted(world: World) -> None:
    servers = world.cloud.servers
    stopped, stopping = world.boot(host=world.hosts[0]), world.boot(host=world.hosts[0])
    servers.stop(stopped.id)
    settled(world, stopped, "SHUTOFF")
    servers.stop(stopping.id)
    for server in (stopped, stopping):
        servers.delete(server.id)
    for server in (stopped, stopping):
        gone(world, server)


def test_nothing_can_be_done_with_a_server_that_is_not_there(world: World) -> None:
    servers = world.cloud.servers
    nobody = "4ab11c5e-7bb4-4f0e-8b52-000000000000"
    tries: list[Callable[[], Any]] = [
        lambda: servers.show(nobody),
        lambda: servers.stop(nobody),
        lambda: servers.unshelve(nobody),
        lambda: servers.reset(nobody),
        lambda: servers.lock(nobody, "why"),
        lambda: servers.snapshot(nobody, "image"),
    ]
    for attempt in tries:
        with pytest.raises(NotFound, match=nobody):
            attempt()
    servers.delete(nobody)
    assert servers.images(nobody, "image") == []


def test_a_lock_has_a_reason_and_does_not_stop_us(world: World) -> None:
    servers = world.cloud.servers
    server = world.boot(host=world.hosts[0])
    servers.lock(server.id, "lease over")
    servers.lock(server.id, "lease really over")
    seen = servers.show(server.id)
    assert (seen.locked, seen.locked_reason) == (True, "lease really over")
    servers.lock(server.id, "")
    assert servers.show(server.id).locked_reason == "lease really over"
    servers.stop(server.id)
    settled(world, server, "SHUTOFF")
    for _ in range(2):
        servers.unlock(server.id)
    seen = servers.show(server.id)
    assert (seen.locked, seen.locked_reason) == (False, "")


def test_a_shelved_server_frees_the_host_and_returns_on_the_named_host(world: World) -> None:
    servers, (one, other) = world.cloud.servers, world.hosts
    server = world.boot(host=one)
    servers.shelve(server.id)
    assert settled(world, server, "SHELVED_OFFLOADED").host is None
    assert servers.list(host=one) == []
    world.cloud.services.disable(other, "for a test")
    servers.unshelve(server.id, other)  # accepted, and then there is no room
    assert settled(world, server).status == "SHELVED_OFFLOADED"
    world.cloud.services.enable(other)
    with world.hold(other):
        servers.unshelve(server.id, f"{other}.example.org")

        def coming() -> bool:
            return server.id in {each.id for each in servers.list(host=other)}

        eventually(coming)
        assert servers.show(server.id).host is None
    assert settled(world, server, "ACTIVE").host == other


def test_a_server_on_its_way_to_a_host_is_listed_there(world: World) -> None:
    servers, (host, _) = world.cloud.servers, world.hosts
    with world.hold(host):
        server = world.boot(host=host, wait=False)
        eventually(lambda: servers.list(host=host))
        assert [each.id for each in servers.list(host=host)] == [server.id]
        assert servers.list(host=host, project_id=world.projects[1]) == []
        servers.delete(server.id)
    gone(world, server)
    eventually(lambda: servers.list(host=host) == [])


def test_a_snapshot_makes_an_image_that_is_found_by_name_and_server(world: World) -> None:
    servers = world.cloud.servers
    server, other = world.boot(host=world.hosts[0]), world.boot(host=world.hosts[0])
    name = world.name("image")
    servers.lock(server.id, "locks do not stop a snapshot")
    image = servers.snapshot(server.id, name)
    assert servers.images(server.id, name) == [image]
    assert servers.images(server.id, world.name("image")) == []
    settled(world, server, "ACTIVE")
    again = servers.snapshot(server.id, name)  # nobody keeps names apart
    assert set(servers.images(server.id, name)) == {image, again}
    assert servers.images(other.id, name) == []
    settled(world, server, "ACTIVE")
    servers.delete(server.id)
    gone(world, server)
    assert set(servers.images(server.id, name)) == {image, again}


def test_a_delete_on_a_dead_host_is_stuck_until_it_is_known_to_be_down(world: World) -> None:
    servers, (host, _) = world.cloud.servers, world.hosts
    server = world.boot(host=host)
    world.fail(host)
    for _ in range(2):
        servers.delete(server.id)
        assert servers.show(server.id).task_state == "deleting"
    assert [each.id for each in servers.list(host=host)] == [server.id]
    world.cloud.services.force_down(host)
    servers.delete(server.id)
    gone(world, server)
    assert servers.list(host=host) == []
