# SPDX-License-Identifier: Apache-2.0
"""The Moves port, in every world."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Migration, Server
from tests.cloud.worlds import World, settled
from tests.processes import eventually


def moves_of(world: World, server: Server, kind: str = "evacuation") -> list[Migration]:
    found = world.cloud.moves.migrations(source_host=f"{world.hosts[0]}.example.org", kind=kind)
    return [move for move in found if move.server_id == server.id]


@pytest.mark.slow("nova-compute starts again, and Nova evacuates by its own clock")
def test_an_evacuation_ends_stopped_elsewhere_and_keeps_the_host_down_until_it_restarts(
    world: World,
) -> None:
    moves, services, (source, target) = world.cloud.moves, world.cloud.services, world.hosts
    server, unlucky, kept, off = (world.boot(host=source) for _ in range(4))
    world.cloud.servers.stop(off.id)
    settled(world, off, "SHUTOFF")
    with pytest.raises(Conflict):  # its host looks up
        moves.evacuate(server.id, target)
    assert moves_of(world, server) == []
    world.fail(source)
    services.force_down(source)
    with pytest.raises(Conflict):  # it is there now
        moves.evacuate(server.id, source)
    with pytest.raises(NotFound):
        moves.evacuate(server.id, "nobody")
    evacuate_without_room(world, unlucky)
    with world.hold(target):
        moves.evacuate(server.id, f"{target}.example.org")
        seen = world.cloud.servers.show(server.id)
        assert (seen.status, seen.task_state) == ("ACTIVE", "rebuilding")
        with pytest.raises(Conflict, match="rebuilding"):
            moves.evacuate(server.id, target)
        (move,) = moves_of(world, server)
        assert move.status in ("accepted", "running")
        moves.evacuate(unlucky.id, target)
        for each in (kept, off):
            moves.evacuate(each.id, target, as_it_was=True)
    eventually(lambda: moves_of(world, server)[0].status == "done")
    assert settled(world, server, "SHUTOFF").host == target
    (move,) = moves_of(world, server)
    assert (move.source_host, move.dest_host, move.type) == (source, target, "evacuation")
    assert abs(datetime.now(UTC) - move.created_at) < timedelta(minutes=20)
    # Stopped is how all others end, but Nova starts what was in ERROR.
    eventually(lambda: [m.status for m in moves_of(world, unlucky)] == ["failed", "done"])
    assert settled(world, unlucky, "ACTIVE").host == target
    for each, status in ((kept, "ACTIVE"), (off, "SHUTOFF")):
        eventually(lambda: [m.status for m in moves_of(world, each)] == ["done"])  # noqa: B023
        assert settled(world, each, status).host == target
    for placed in (True, False):
        there = world.cloud.servers.list(host=target, placed=placed)
        assert {each.id for each in there} == {server.id, unlucky.id, kept.id, off.id}
    found = moves.migrations(source_host=source)
    for at in (0, len(found) // 2, len(found) - 1):
        assert moves.migrations(source_host=source, after=int(found[at].id)) == found[at + 1 :]
    here = {each.id for each in world.cloud.servers.list(host=target)}
    assert here == {server.id, unlucky.id, kept.id, off.id}
    assert world.cloud.servers.list(host=source) == []
    unforce_after_restart(world, source)
    assert [move.status for move in moves_of(world, server)] == ["done"]
    world.cloud.servers.start(server.id)
    assert settled(world, server, "ACTIVE").host == target


def evacuate_without_room(world: World, server: Server) -> None:
    """It is accepted, and fails."""
    source, target = world.hosts
    world.cloud.services.disable(target, "for a test")
    world.cloud.moves.evacuate(server.id, target)
    assert settled(world, server, "ERROR").host == source
    eventually(lambda: [move.status for move in moves_of(world, server)] == ["failed"])
    world.cloud.services.enable(target)


def unforce_after_restart(world: World, host: str) -> None:
    """Not before."""
    with pytest.raises(Conflict, match="restart"):
        world.cloud.services.unforce(host)
    world.recover(host)

    def back() -> bool:
        try:
            world.cloud.services.unforce(host)
        except Conflict:  # it has not cleaned up yet
            return False
        return True

    eventually(back, every=0.5)


def test_a_missing_server_cannot_be_evacuated(world: World) -> None:
    with pytest.raises(NotFound):
        world.cloud.moves.evacuate("4ab11c5e-7bb4-4f0e-8b52-000000000000")
    with pytest.raises(NotFound, match="nobody"):
        world.cloud.moves.migrations(source_host="nobody")


@pytest.mark.slow("nova-compute starts again, and Nova evacuates by its own clock")
def test_a_stuck_evacuation_is_reset_and_done_again(world: World) -> None:
    moves, servers, (source, target) = world.cloud.moves, world.cloud.servers, world.hosts
    server = world.boot(host=source)
    world.fail(source)
    world.cloud.services.force_down(source)
    with world.hold(target):
        moves.evacuate(server.id, target)
        for _ in range(2):
            servers.reset(server.id)
            seen = servers.show(server.id)
            assert (seen.status, seen.task_state, seen.host) == ("ERROR", None, source)
    eventually(lambda: [move.status for move in moves_of(world, server)] == ["failed"])

    def again() -> bool:
        servers.reset(server.id)
        try:
            moves.evacuate(server.id, target)
        except Conflict:  # the target came to the first one late, and left it `rebuilding`
            return False
        return True

    eventually(again, every=0.5)
    eventually(lambda: [move.status for move in moves_of(world, server)] == ["failed", "done"])
    assert settled(world, server, "ACTIVE").host == target


def test_a_running_server_is_live_migrated(world: World) -> None:
    moves, (source, target) = world.cloud.moves, world.hosts
    server = world.boot(host=source)
    with pytest.raises(Conflict, match=source):  # it is there now
        moves.live_migrate(server.id, source)
    with pytest.raises(NotFound):
        moves.live_migrate(server.id, "nobody")
    with world.hold(target):
        moves.live_migrate(server.id, f"{target}.example.org")
        seen = world.cloud.servers.show(server.id)
        assert (seen.status, seen.task_state, seen.host) == ("ACTIVE", "migrating", source)
        for attempt in (moves.live_migrate, world.cloud.servers.stop):
            with pytest.raises(Conflict, match="migrating"):
                attempt(server.id)
    eventually(lambda: [m.status for m in moves_of(world, server, "live-migration")] == ["done"])
    assert settled(world, server, "ACTIVE").host == target
    (move,) = moves_of(world, server, "live-migration")
    assert (move.source_host, move.dest_host, move.type) == (source, target, "live-migration")
    assert moves_of(world, server) == []


def test_a_running_server_for_which_there_is_no_room_stays_where_it_is(world: World) -> None:
    source, target = world.hosts
    server = world.boot(host=source)
    world.cloud.services.disable(target, "for a test")
    world.cloud.moves.live_migrate(server.id, target)
    eventually(lambda: [m.status for m in moves_of(world, server, "live-migration")] == ["failed"])
    assert settled(world, server, "ACTIVE").host == source


def test_only_a_running_server_on_an_up_host_can_be_live_migrated(world: World) -> None:
    moves, servers, (source, target) = world.cloud.moves, world.cloud.servers, world.hosts
    stopped, running = world.boot(host=source), world.boot(host=source)
    servers.stop(stopped.id)
    settled(world, stopped, "SHUTOFF")
    with pytest.raises(Conflict, match="SHUTOFF"):
        moves.live_migrate(stopped.id, target)
    world.cloud.services.force_down(source)
    with pytest.raises(Conflict, match="evacuate it"):
        moves.live_migrate(running.id, target)
    assert servers.show(running.id).task_state is None
    with pytest.raises(NotFound):
        moves.live_migrate("4ab11c5e-7bb4-4f0e-8b52-000000000000")
