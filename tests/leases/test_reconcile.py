# SPDX-License-Identifier: Apache-2.0
"""Somebody edits an aggregate by hand: it is found, and put right or told."""

import pytest

from holdfast.jobs.job import never_ending
from holdfast.leases.aggregates import RECONCILE
from holdfast.model.lease import NewLease, NewReservation
from holdfast.nova.names import CLOSED, KEPT_POOL, OPEN, OWNER
from tests.leases.house import ANN, House
from tests.leases.stories import KINDS, NETWORK


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


def deleted_by_hand(house: House, kind: str, what: str) -> tuple[str, str]:
    """A running lease, one of whose cloud objects is deleted; ids of lease and reservation."""
    KINDS[kind].ground(house)
    asked = (NewReservation(KINDS[kind].type, KINDS[kind].spec(house)),)
    lease = NewLease(house.new_id(), "lab", house.at(2), house.at(600), None, asked)
    house.m.commands.create_lease(ANN, lease)
    house.run(minutes=4)
    (reservation,) = house.lease(lease.id).reservations
    cloud = house.m.cloud
    if what == "flavor":
        cloud.flavors.delete(reservation.id)
    elif what == "group":
        cloud.slots.delete_group(reservation.made["server_group_id"])
    elif what == "address":
        cloud.addresses.delete(cloud.addresses.list()[0].id)
    else:
        cloud.servers.delete(reservation.spec["server_id"])
    house.m.store.operations.ensure(never_ending(RECONCILE, house.clock.now()))
    house.run(minutes=1)
    return lease.id, reservation.id


def flags(house: House, lease_id: str) -> tuple[bool, bool]:
    (reservation,) = house.lease(lease_id).reservations
    return reservation.missing_resources, house.lease(lease_id).degraded


@pytest.mark.parametrize("what", ["flavor", "group"])
def test_a_deleted_flavor_or_server_group_of_slots_is_made_anew(house: House, what: str) -> None:
    lease_id, mine = deleted_by_hand(house, "instance", what)
    cloud = house.m.cloud
    (group,) = cloud.slots.groups()
    flavor = cloud.flavors.show(mine)
    assert (flavor.projects, flavor.extra_specs["affinity_id"]) == (("alpha",), group.id)
    (reservation,) = house.lease(lease_id).reservations
    assert reservation.made["server_group_id"] == group.id
    assert flags(house, lease_id) == (False, False)
    assert len([line for line in house.sentences(lease_id) if "is gone" in line]) == 1


def test_a_deleted_floating_ip_is_made_anew(house: House) -> None:
    lease_id, mine = deleted_by_hand(house, "floatingip", "address")
    there = [a for a in house.m.cloud.addresses.list() if f"reservation:{mine}" in a.tags]
    assert {(a.address, a.project_id) for a in there} == {
        ("192.0.2.11", "alpha"),
        ("192.0.2.12", "alpha"),
    }
    assert flags(house, lease_id) == (False, False)


def test_a_floating_ip_that_another_project_got_meanwhile_is_missing(house: House) -> None:
    cloud, address = house.m.cloud, "192.0.2.11"
    create = cloud.addresses.create

    def taken(address_id: str) -> None:
        type(cloud.addresses).delete(cloud.addresses, address_id)
        create(NETWORK, address, "beta", ())

    cloud.addresses.delete = taken
    lease_id, _mine = deleted_by_hand(house, "floatingip", "address")
    assert flags(house, lease_id) == (True, True)


def test_a_deleted_leased_server_is_missing(house: House) -> None:
    lease_id, _mine = deleted_by_hand(house, "server", "server")
    assert flags(house, lease_id) == (True, True)
    lines = house.sentences(lease_id)
    house.run(minutes=10)
    assert house.sentences(lease_id) == lines  # said once
