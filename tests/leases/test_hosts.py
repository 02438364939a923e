# SPDX-License-Identifier: Apache-2.0
"""Hosts come into reservation and leave it, in the book and in the cloud."""

import pytest

from holdfast.model.errors import Conflict, HostInUse, InvalidInput, NotEnoughHosts, NotFound
from tests.leases.house import ADMIN, House, Killed, Points


def enrol(house: House, name: str, **capabilities: str) -> int:
    return house.m.commands.enrol_host(ADMIN, name, capabilities)


def test_an_enrolled_host_is_in_the_free_pool_and_can_be_reserved(house: House) -> None:
    house.add("cmp-1.example.org")
    host_id = enrol(house, "cmp-1", gpu="a100")
    host = house.m.store.ledger.host(str(host_id))
    assert (host.name, host.reservable, host.capabilities) == (
        "cmp-1.example.org",
        True,
        {"gpu": "a100"},
    )
    assert house.pools() == {"freepool": {"cmp-1.example.org"}}
    assert house.all_pools()["holdfast"] == {"cmp-1.example.org"}
    assert house.held(house.create(resource_properties='["==", "$gpu", "a100"]')) == [
        ["cmp-1.example.org"]
    ]


def test_a_host_with_servers_is_refused(house: House) -> None:
    house.add("cmp-1")
    house.boot("web", "cmp-1")
    with pytest.raises(HostInUse, match="has 1 servers"):
        enrol(house, "cmp-1")
    assert house.m.store.ledger.enrolled() == []
    assert house.pools() == {}


def test_a_server_created_during_enrolment_keeps_the_host_closed(house: House) -> None:
    """The cloud is away for a while in the middle of an enrolment: the end of a lease would
    delete that server."""
    house.add("cmp-1")
    house.sim.change(down=True, only_calls=["pools.add_host"])
    enrol(house, "cmp-1")
    house.boot("stranger", "cmp-1")
    house.sim.change(down=False, only_calls=[])
    house.run(minutes=1)
    with pytest.raises(NotEnoughHosts):
        house.create()
    house.m.cloud.servers.delete(house.sim.world()["servers"][0]["id"])
    house.run(minutes=1)
    house.create()


def test_a_host_that_is_not_there_or_enrolled_already_is_refused(house: House) -> None:
    with pytest.raises(NotFound):
        enrol(house, "moon")
    house.add("cmp-1")
    enrol(house, "cmp-1")
    with pytest.raises(Conflict, match="enrolled already"):
        enrol(house, "cmp-1")


def test_a_host_outside_the_free_pool_cannot_be_reserved(house: House) -> None:
    house.add("cmp-1")
    house.sim.change(down=True, only_calls=["pools.add_host"])
    enrol(house, "cmp-1")
    with pytest.raises(NotEnoughHosts):
        house.create()
    house.sim.change(down=False, only_calls=[])
    house.run(minutes=1)
    house.create()


def test_a_withdrawn_host_leaves_the_pool_and_comes_back_with_the_same_id(house: House) -> None:
    (host_id,) = house.enrol("cmp-1")
    house.m.commands.withdraw_host(ADMIN, host_id)
    assert house.pools() == {"freepool": set()}
    with pytest.raises(NotEnoughHosts):
        house.create()
    assert enrol(house, "cmp-1") == host_id
    assert house.pools() == {"freepool": {"cmp-1"}}
    house.m.commands.withdraw_host(ADMIN, host_id)
    assert house.pools() == {"freepool": set()}


@pytest.mark.parametrize("minutes", [0, 10], ids=["waiting", "running"])
def test_a_reserved_host_is_not_withdrawn(house: House, minutes: float) -> None:
    (host_id,) = house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 20))
    house.run(minutes=minutes)
    with pytest.raises(HostInUse, match="is reserved"):
        house.m.commands.withdraw_host(ADMIN, host_id)
    house.run(minutes=30)
    assert house.status(lease_id) == "TERMINATED"
    house.m.commands.withdraw_host(ADMIN, host_id)


def test_a_host_is_not_withdrawn_before_an_overdue_lease_gave_it_back(house: House) -> None:
    """Its pool would put it back into the free pool after it was withdrawn."""
    (host_id,) = house.enrol("cmp-1")
    house.create(minutes=(None, 10))
    house.clock.advance(3600)
    with pytest.raises(HostInUse):
        house.m.commands.withdraw_host(ADMIN, host_id)


def test_enrolment_waits_for_a_withdrawal_still_under_way(house: House) -> None:
    """A withdraw hangs in its call; the host is enrolled again before the call arrives."""
    (host_id,) = house.enrol("cmp-1")
    house.m.commands.withdraw_host(ADMIN, host_id)
    enrol(house, "cmp-1")
    hung = house.manager(Points(at=4))
    with pytest.raises(Killed):
        hung.commands.withdraw_host(ADMIN, host_id)
    house.manager()
    enrol(house, "cmp-1")
    assert not house.m.store.ledger.host(str(host_id)).reservable
    freepool = house.m.cloud.pools.find("freepool")
    house.m.cloud.pools.remove_host(freepool.id, "cmp-1")  # now it arrives
    house.run(minutes=1)
    assert house.m.store.ledger.host(str(host_id)).reservable
    assert house.pools() == {"freepool": {"cmp-1"}}


def test_capabilities_are_set_changed_and_removed(house: House) -> None:
    house.add("cmp-1")
    host_id = enrol(house, "cmp-1", gpu="a100", room="3")
    house.m.commands.describe_host(ADMIN, host_id, {"gpu": "h100", "room": None, "row": "7"})
    assert house.m.store.ledger.host("cmp-1").capabilities == {"gpu": "h100", "row": "7"}


def test_rack_and_region_are_capabilities_too(house: House) -> None:
    house.add("cmp-1", "cmp-2")
    enrol(house, "cmp-1", rack="b7", region="north")
    enrol(house, "cmp-2")
    lease_id = house.create(resource_properties='["==", "$rack", "b7"]')
    assert house.held(lease_id) == [["cmp-1"]]
    capabilities = house.m.store.ledger.host("cmp-1").capabilities
    assert capabilities == {"rack": "b7", "region": "north"}


def test_a_capability_that_a_live_lease_asked_for_stays(house: House) -> None:
    house.add("cmp-1")
    host_id = enrol(house, "cmp-1", gpu="a100", room="3")
    house.create(resource_properties='["==", "$gpu", "a100"]')
    with pytest.raises(Conflict, match="gpu"):
        house.m.commands.describe_host(ADMIN, host_id, {"gpu": None})
    house.m.commands.describe_host(ADMIN, host_id, {"room": "4"})


@pytest.mark.parametrize(
    "capabilities",
    [{"k" * 65: "x"}, {"": "x"}, {"vcpus": "8"}, {"status": "x"}, {"k": "x" * 4097}],
    ids=["long key", "no key", "column", "wire name", "long value"],
)
def test_bad_capabilities_are_refused_before_anything_happens(
    house: House, capabilities: dict[str, str]
) -> None:
    house.add("cmp-1")
    with pytest.raises(InvalidInput):
        enrol(house, "cmp-1", **capabilities)
    assert house.m.store.ledger.enrolled() == []
    host_id = enrol(house, "cmp-1")
    with pytest.raises(InvalidInput):
        house.m.commands.describe_host(ADMIN, host_id, capabilities)


def test_describing_nothing_is_refused(house: House) -> None:
    (host_id,) = house.enrol("cmp-1")
    with pytest.raises(InvalidInput, match="No data to update"):
        house.m.commands.describe_host(ADMIN, host_id, {})


def test_private_properties_are_known_names_only(house: House) -> None:
    house.add("cmp-1")
    enrol(house, "cmp-1", gpu="a100")
    house.m.commands.set_property(ADMIN, "gpu", True)
    assert house.m.store.ledger.property("gpu")["private"]
    with pytest.raises(NotFound):
        house.m.commands.set_property(ADMIN, "moon", True)


def test_a_manager_returns_the_own_name(house: House) -> None:
    assert house.m.commands.ping() == house.m.name
