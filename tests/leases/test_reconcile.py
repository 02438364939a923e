# SPDX-License-Identifier: Apache-2.0
"""Somebody edits an aggregate by hand: it is found, and put right or told."""

import pytest

from holdfast.jobs.job import never_ending
from holdfast.leases.aggregates import RECONCILE
from holdfast.model.lease import NewLease, NewReservation
from holdfast.nova.names import CLOSED, KEPT_POOL, OPEN, OWNER
from tests.leases.house import ANN, House


@pytest.fixture
def ground(house: House) -> tuple[House, str]:
    """Three hosts, one of them in a lease that runs; the pool of its reservation."""
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    lease_id = house.create(minutes=(None, 600))
    (reservation,) = house.lease(lease_id).reservations
    house.run(minutes=1)
    house.m.store.operations.ensure(never_ending(RECONCILE, house.clock.now()))
    house.run(minutes=2)
    assert told(house) == []
    return house, reservation.id


def told(house: House) -> list[str]:
    lease_ids = [lease.id for lease, _events in house.m.store.ledger.with_events()]
    subjects = [*lease_ids, "pool:freepool", "pool:holdfast"]
    found = [sentence for subject in subjects for sentence in house.sentences(subject)]
    return [one for one in found if one.startswith("pool ")]


def by_hand(house: House, verb: str, name: str, host: str) -> None:
    pool = house.m.cloud.pools.find(name)
    getattr(house.m.cloud.pools, verb)(pool.id, host)


def held(house: House) -> str:
    ((lease, _events),) = house.m.store.ledger.with_events()
    ((host,),) = house.held(lease.id)
    return host


def test_a_host_taken_out_of_a_running_reservation_comes_back(ground: tuple[House, str]) -> None:
    house, pool = ground
    host = held(house)
    by_hand(house, "remove_host", pool, host)
    house.run(minutes=2)
    assert house.pools()[pool] == {host}
    assert told(house) == [f"pool {pool} lacks {host}: repaired"]


def test_a_deleted_pool_is_created_again(ground: tuple[House, str]) -> None:
    house, name = ground
    host = held(house)
    by_hand(house, "remove_host", name, host)
    found = house.m.cloud.pools.find(name)
    house.m.cloud.pools.delete(found.id)
    house.run(minutes=2)
    assert house.pools()[name] == {host}


def test_a_foreign_host_leaves_the_pool_once_empty(ground: tuple[House, str]) -> None:
    house, pool = ground
    host = held(house)
    other = next(name for name in ("cmp-1", "cmp-2", "cmp-3") if name != host)
    by_hand(house, "add_host", pool, other)
    server = house.boot("web", other)
    house.run(minutes=3)
    assert house.pools()[pool] == {host, other}
    assert told(house) == [f"pool {pool} has {other}: not repaired: check the pool"]
    house.m.cloud.servers.delete(server)
    house.run(minutes=3)
    assert house.pools()[pool] == {host}


@pytest.mark.parametrize("metadata", [{}, {OWNER: "beta"}, {OWNER: "alpha", OPEN: CLOSED}])
def test_reconcile_restores_the_owner_of_a_pool(
    ground: tuple[House, str], metadata: dict[str, str]
) -> None:
    house, name = ground
    found = house.m.cloud.pools.find(name)
    house.m.cloud.pools.set_metadata(found.id, metadata)
    house.run(minutes=2)
    now = house.m.cloud.pools.find(name)
    assert now.metadata[OWNER] == "alpha"
    assert now.metadata.get(OPEN) != CLOSED


def test_the_common_pools_are_put_right_and_foreign_hosts_left_alone(
    ground: tuple[House, str],
) -> None:
    house, _pool = ground
    host = held(house)
    free = next(name for name in ("cmp-1", "cmp-2", "cmp-3") if name != host)
    house.add("stranger")
    by_hand(house, "remove_host", "freepool", free)
    by_hand(house, "add_host", "freepool", host)
    by_hand(house, "add_host", "freepool", "stranger")
    by_hand(house, "remove_host", KEPT_POOL, free)
    house.run(minutes=2)
    assert house.pools()["freepool"] == {"cmp-1", "cmp-2", "cmp-3", "stranger"} - {host}
    assert house.all_pools()[KEPT_POOL] == {"cmp-1", "cmp-2", "cmp-3"}


def test_leases_that_come_and_go_make_no_difference(house: House) -> None:
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    house.m.store.operations.ensure(never_ending(RECONCILE, house.clock.now()))
    for minute in range(1, 9):
        house.create(minutes=(minute, minute + 1.5))
    house.run(minutes=12)
    assert told(house) == []
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2", "cmp-3"}}


def test_reconcile_switched_off_changes_nothing(ground: tuple[House, str]) -> None:
    house, pool = ground
    house.settings.reconcile_s = 0.0
    house.run(minutes=2)
    by_hand(house, "remove_host", pool, held(house))
    house.run(minutes=5)
    assert house.pools().get(pool, set()) == set()


def test_a_host_taken_out_of_a_pool_of_slots_comes_back(house: House) -> None:
    house.enrol("cmp-1")
    asked = {"vcpus": 1, "memory_mb": 256, "disk_gb": 1, "amount": 2, "affinity": None}
    reservation = NewReservation("virtual:instance", {**asked, "resource_properties": ""})
    lease_id = house.new_id()
    wanted = NewLease(lease_id, "slots", None, house.at(600), None, (reservation,))
    house.m.commands.create_lease(ANN, wanted)
    house.run(minutes=1)
    (mine,) = house.lease(lease_id).reservations
    house.m.store.operations.ensure(never_ending(RECONCILE, house.clock.now()))
    by_hand(house, "remove_host", mine.id, "cmp-1")
    house.run(minutes=4)
    assert house.pools()[mine.id] == {"cmp-1"}
    assert told(house) == [f"pool {mine.id} lacks cmp-1: repaired"]
