# SPDX-License-Identifier: Apache-2.0
"""The Pools port, in every world."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.model.errors import Conflict, InvalidInput, NotFound
from tests.cloud.worlds import World


def test_adds_and_removes_may_be_repeated_and_a_taken_name_is_refused(world: World) -> None:
    pools, (host, _) = world.cloud.pools, world.hosts
    name = world.name("pool")
    pool = pools.create(name, {"owner": "p"})
    assert pools.find(name) == pool
    with pytest.raises(Conflict, match=name):
        pools.create(name, {})
    world.boot(host=host)  # a host with servers may join and leave: pools have no zones
    for spelling in (host, host, f"{host}.example.org"):
        pools.add_host(pool.id, spelling)
    found = pools.find(name)
    assert found is not None
    assert (found.hosts, found.metadata) == ((host,), {"owner": "p"})
    with pytest.raises(Conflict):
        pools.delete(pool.id)
    for spelling in (f"{host}.example.org", host):
        pools.remove_host(pool.id, spelling)
    for _ in range(2):
        pools.delete(pool.id)
    pools.remove_host(pool.id, host)
    assert pools.find(name) is None
    assert pool.id not in {other.id for other in pools.list()}


def test_metadata_is_replaced_not_merged(world: World) -> None:
    pools = world.cloud.pools
    name = world.name("pool")
    pool = pools.create(name, {"a": "1", "b": "2"})
    for _ in range(2):
        pools.set_metadata(pool.id, {"b": "3", "c": "4"})
        found = pools.find(name)
        assert found is not None
        assert found.metadata == {"b": "3", "c": "4"}
    pools.set_metadata(pool.id, {})
    found = pools.find(name)
    assert found is not None
    assert found.metadata == {}


def test_a_pool_gets_another_name_unless_the_name_is_taken(world: World) -> None:
    pools, old, new = world.cloud.pools, world.name("pool"), world.name("pool")
    pool = pools.create(old, {"a": "1"})
    for _ in range(2):
        pools.rename(pool.id, new)
        found = pools.find(new)
        assert found is not None
        assert (found.id, found.metadata) == (pool.id, {"a": "1"})
        assert pools.find(old) is None
    other = pools.create(old, {})
    with pytest.raises(Conflict):
        pools.rename(other.id, new)


def test_a_pool_has_no_zone(world: World) -> None:
    pool = world.cloud.pools.create(world.name("pool"), {})
    with pytest.raises(InvalidInput):
        world.cloud.pools.set_metadata(pool.id, {"availability_zone": "z"})
    with pytest.raises(InvalidInput):
        world.cloud.pools.create(world.name("pool"), {"availability_zone": "z"})


def test_an_unknown_host_or_pool_is_not_found(world: World) -> None:
    pools, (host, _) = world.cloud.pools, world.hosts
    pool = pools.create(world.name("pool"), {})
    tries: list[Callable[[], Any]] = [
        lambda: pools.add_host(pool.id, "nobody"),
        lambda: pools.remove_host(pool.id, "nobody"),
        lambda: pools.add_host("999999", host),
        lambda: pools.add_host("x", host),
        lambda: pools.set_metadata("999999", {}),
        lambda: pools.set_metadata("x", {}),
        lambda: pools.rename("999999", world.name("pool")),
    ]
    for attempt in tries:
        with pytest.raises(NotFound):
            attempt()
    for pool_id in ("999999", "x"):
        pools.remove_host(pool_id, host)
        pools.delete(pool_id)


def test_hosts_that_come_and_go_at_once_are_all_known_to_the_scheduler(world: World) -> None:
    pools = world.cloud.pools
    name = world.name("pool")
    pool = pools.create(name, {"blazar:owner": world.projects[0]})
    with ThreadPoolExecutor(2) as both:
        for _ in range(2):
            list(both.map(lambda host: pools.add_host(pool.id, host), world.hosts))
            found = pools.find(name)
            assert found is not None
            assert found.hosts == world.hosts
            for host in world.hosts:
                server = world.boot(host=host, hints={"reservation": name})
                assert server.host == host
            list(both.map(lambda host: pools.remove_host(pool.id, host), world.hosts))
    for host in world.hosts:  # ordinary hosts again
        assert world.boot(host=host).host == host
