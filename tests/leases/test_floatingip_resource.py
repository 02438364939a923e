# SPDX-License-Identifier: Apache-2.0
"""`virtual:floatingip`: what may be asked for, who gets which address, its life in the cloud."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from holdfast.leases.resources.floatingip import FloatingIpResource, home, parse
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughAddresses, NotFound, StaleWrite
from holdfast.model.lease import Allocation, Lease, NewLease, NewReservation, Reservation, Window
from holdfast.ports.cloud import Address, Subnet
from holdfast.ports.ledger import Work
from holdfast.ports.manager import AvailabilityQuery
from tests.leases.house import ADMIN, ANN, BOB, House, Killed, Points

NET = "public"
IPS = tuple(f"203.0.113.{n}" for n in range(11, 15))
validate = FloatingIpResource().validate


@pytest.fixture
def ips(house: House) -> House:
    """Four addresses of a network, enrolled."""
    house.sim.add_subnet(NET, "203.0.113.0/24", "203.0.113.1", [("203.0.113.100", "203.0.113.199")])
    for ip in IPS:
        house.m.commands.enrol_floatingip(ADMIN, NET, ip)
    return house


def create(
    house: House,
    *,
    minutes: tuple[float | None, float] = (5, 65),
    caller: Any = ANN,
    more: tuple[dict[str, Any], ...] = (),
    **spec: Any,
) -> str:
    wanted = NewLease(
        id=house.new_id(),
        name="addresses",
        start=None if minutes[0] is None else house.at(minutes[0]),
        end=house.at(minutes[1]),
        reservations=tuple(
            NewReservation("virtual:floatingip", {"network_id": NET, **each})
            for each in (spec, *more)
        ),
    )
    house.m.commands.create_lease(caller, wanted)
    return wanted.id


def there(house: House) -> dict[str, str]:
    """Who has which address in the cloud."""
    return {one.address: one.project_id for one in house.m.cloud.addresses.list()}


def held(house: House, lease_id: str) -> list[set[str]]:
    names = {
        floatingip.thing: floatingip.address for floatingip in house.m.store.ledger.floatingips()
    }
    reservations = house.lease(lease_id).reservations
    return [{names[a.thing or ""] for a in r.allocations} for r in reservations]


# what may be asked for


def test_a_whole_request_comes_back_in_order() -> None:
    spec = {"network_id": NET, "amount": 2, "required_floatingips": ["203.0.113.11"]}
    assert validate(spec) == spec


@pytest.mark.parametrize(
    "left_out",
    [
        {},
        {"amount": None, "required_floatingips": None},
        {"amount": "", "required_floatingips": ""},
    ],
)
def test_an_empty_request_means_a_single_address_of_any_kind(left_out: dict[str, Any]) -> None:
    expected = {"network_id": NET, "amount": 1, "required_floatingips": []}
    assert validate({"network_id": NET, **left_out}) == expected


def test_addresses_are_stored_in_canonical_form() -> None:
    spec = validate({"network_id": NET, "required_floatingips": [" 2001:DB8:0::7 "]})
    assert spec["required_floatingips"] == ["2001:db8::7"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"network_id": None}, "Missing parameter network_id"),
        ({"network_id": ""}, "Missing parameter network_id"),
        ({"network_id": 7}, "Malformed parameter network_id"),
        ({"network_id": "x" * 37}, "Malformed parameter network_id"),
        ({"amount": "two"}, "Malformed parameter amount"),
        ({"amount": True}, "Malformed parameter amount"),
        ({"amount": 1.5}, "Malformed parameter amount"),
        ({"amount": 0}, "amount: 0 is not between"),
        ({"amount": 10**9}, "is not between"),
        ({"required_floatingips": "203.0.113.11"}, "Malformed parameter required_floatingips"),
        ({"required_floatingips": ["nowhere"]}, "'nowhere' is not an IP address"),
        ({"required_floatingips": [7]}, "'7' is not an IP address"),
        ({"required_floatingips": ["fe80::1%eth0"]}, "has a zone"),
        ({"required_floatingips": list(IPS)}, "4 addresses are more than amount 1"),
        ({"amount": 2, "required_floatingips": [IPS[0]] * 2}, "named twice"),
        ({"colour": "blue"}, "colour: not a parameter"),
    ],
)
def test_a_senseless_parameter_is_refused_by_field(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        validate({"network_id": NET, **bad})


# which addresses can be enrolled

SUBNETS = [
    Subnet("upper", NET, "198.51.100.0/24", None),
    Subnet("lower", NET, "203.0.113.0/24", "203.0.113.1", (("203.0.113.100", "203.0.113.199"),)),
    Subnet("six", NET, "2001:db8::/64", "2001:db8::1", (("2001:db8::2", "2001:db8::ffff"),)),
    Subnet("pair", NET, "192.0.2.4/31", None),
]


@pytest.mark.parametrize(
    ("address", "subnet"),
    [
        ("203.0.113.2", "lower"),
        ("203.0.113.99", "lower"),
        ("203.0.113.200", "lower"),
        ("198.51.100.1", "upper"),
        ("2001:db8::1:0", "six"),
        ("192.0.2.4", "pair"),
    ],
)
def test_an_address_outside_the_pools_is_of_its_subnet(address: str, subnet: str) -> None:
    assert home(SUBNETS, NET, parse(address, "x")).id == subnet


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("203.0.113.1", "is the gateway"),
        ("203.0.113.100", "lies in an allocation pool"),
        ("203.0.113.199", "lies in an allocation pool"),
        ("2001:db8::3", "lies in an allocation pool"),
        ("203.0.113.0", "is the network address"),
        ("203.0.113.255", "is the broadcast address"),
        ("192.0.2.77", "is of no subnet of network public"),
    ],
)
def test_an_address_that_the_cloud_may_give_away_cannot_be_enrolled(address: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        home(SUBNETS, NET, parse(address, "x"))


def test_an_address_is_enrolled_once_and_withdrawn_once(ips: House) -> None:
    commands = ips.m.commands
    with pytest.raises(Conflict, match="is enrolled already"):
        commands.enrol_floatingip(ADMIN, NET, f" {IPS[0]} ")
    first = next(
        floatingip
        for floatingip in ips.m.store.ledger.floatingips(NET)
        if floatingip.address == IPS[0]
    )
    commands.withdraw_floatingip(ADMIN, first.id)
    with pytest.raises(NotFound, match=first.id):
        commands.withdraw_floatingip(ADMIN, first.id)
    assert commands.enrol_floatingip(ADMIN, NET, IPS[0]) == first.id  # it is the same thing


def test_an_address_of_an_unknown_network_is_not_found(ips: House) -> None:
    with pytest.raises(NotFound, match=r"'network_id': 'nowhere'"):
        ips.m.commands.enrol_floatingip(ADMIN, "nowhere", IPS[0])


# who gets which


def test_required_addresses_come_first_and_no_address_is_held_twice(ips: House) -> None:
    one = create(ips, amount=2, required_floatingips=[IPS[2]])
    assert held(ips, one) == [{IPS[2], IPS[0]}]
    other = create(ips, amount=2)
    assert held(ips, other) == [{IPS[1], IPS[3]}]
    with pytest.raises(NotEnoughAddresses, match=r"1 asked for; of 4 in network public 0 are free"):
        create(ips)
    after = create(ips, minutes=(65, 125), amount=4)
    assert held(ips, after) == [set(IPS)]


def test_two_reservations_of_one_lease_never_get_the_same_address(ips: House) -> None:
    lease = create(ips, amount=2, more=({"amount": 2},))
    one, other = held(ips, lease)
    assert one | other == set(IPS)
    assert not one & other
    with pytest.raises(NotEnoughAddresses):
        create(ips, minutes=(70, 130), amount=3, more=({"amount": 2},))


def test_a_refusal_names_the_earliest_fitting_window(ips: House) -> None:
    create(ips, minutes=(5, 65), amount=3)
    with pytest.raises(NotEnoughAddresses) as refused:
        create(ips, minutes=(5, 35), amount=2)
    assert refused.value.status == 400
    assert refused.value.details["earliest"]["start_date"] == f"{ips.at(65):%Y-%m-%dT%H:%M:%S.%f}"


def test_a_required_address_that_is_held_or_unknown_is_refused(ips: House) -> None:
    create(ips, required_floatingips=[IPS[0]])
    with pytest.raises(NotEnoughAddresses, match=rf"{IPS[0]} held in that window"):
        create(ips, required_floatingips=[IPS[0]])
    with pytest.raises(InvalidInput, match=r"203\.0\.113\.99 of network public cannot be reserved"):
        create(ips, required_floatingips=["203.0.113.99"])


def test_availability_names_the_first_windows(ips: House) -> None:
    create(ips, minutes=(5, 65), amount=4)
    create(ips, minutes=(65, 95), amount=1)
    wish = NewReservation("virtual:floatingip", {"network_id": NET, "amount": 2})
    query = AvailabilityQuery(wish, start=ips.at(5), length_s=1800, limit=2)
    found = ips.m.commands.availability(ANN, query)
    assert [(w.window.start, w.amount) for w in found.windows] == [(ips.at(65), 3), (ips.at(95), 4)]


def test_an_address_that_was_withdrawn_meanwhile_cannot_be_booked(ips: House) -> None:
    """Between somebody's plan and his booking an admin was faster."""
    first = next(floatingip for floatingip in ips.m.store.ledger.floatingips(NET))
    window = Window(ips.at(5), ips.at(65))
    hold = Allocation(None, window, thing=first.thing)
    planned = Reservation(ips.new_id(), "virtual:floatingip", allocations=(hold,))
    lease = Lease(
        ips.new_id(), "late", "ann", "alpha", window.start, window.end, reservations=(planned,)
    )
    ips.m.commands.withdraw_floatingip(ADMIN, first.id)
    with pytest.raises(StaleWrite, match=first.id):
        ips.m.store.ledger.book(lease, Work())


# in the cloud


def test_addresses_are_the_projects_for_the_time_of_the_lease(ips: House) -> None:
    lease = create(ips, minutes=(5, 65), amount=2)
    ips.run(minutes=4)
    assert there(ips) == {}
    ips.run(minutes=2)
    assert ips.status(lease) == "ACTIVE"
    assert there(ips) == {IPS[0]: "alpha", IPS[1]: "alpha"}
    (reservation,) = ips.lease(lease).reservations
    tags: list[Address] = list(ips.m.cloud.addresses.list())
    assert {tag.tags for tag in tags} == {("blazar", f"reservation:{reservation.id}")}
    ips.run(minutes=60)
    assert ips.status(lease) == "TERMINATED"
    assert there(ips) == {}
    (reservation,) = ips.lease(lease).reservations
    assert not reservation.missing_resources


def test_an_address_can_be_withdrawn_when_no_lease_needs_it_any_more(ips: House) -> None:
    lease = create(ips, minutes=(5, 65), required_floatingips=[IPS[0]])
    (first, *_) = (
        floatingip
        for floatingip in ips.m.store.ledger.floatingips(NET)
        if floatingip.address == IPS[0]
    )
    for _ in range(2):
        with pytest.raises(Conflict, match=rf"{IPS[0]} is reserved \(first lease ends"):
            ips.m.commands.withdraw_floatingip(ADMIN, first.id)
        ips.run(minutes=30)
    ips.run(minutes=10)
    assert ips.status(lease) == "TERMINATED"
    ips.m.commands.withdraw_floatingip(ADMIN, first.id)


def test_an_address_goes_from_one_lease_to_the_next_without_a_gap(ips: House) -> None:
    create(ips, minutes=(5, 65), required_floatingips=[IPS[0]])
    second = create(ips, minutes=(65, 125), required_floatingips=[IPS[0]], caller=BOB)
    ips.run(minutes=64)
    assert there(ips) == {IPS[0]: "alpha"}
    ips.run(minutes=2)
    assert ips.status(second) == "ACTIVE"
    assert there(ips) == {IPS[0]: "beta"}
    assert not ips.lease(second).degraded


def test_an_address_that_a_stranger_has_is_missing_after_a_while(ips: House) -> None:
    stranger = ips.m.cloud.addresses.create(NET, IPS[0], "gamma", [])
    lease = create(ips, minutes=(5, 65), amount=2)
    ips.run(minutes=5, seconds=60)
    assert ips.status(lease) == "STARTING"
    ips.run(minutes=2)
    assert ips.status(lease) == "ACTIVE"
    assert ips.lease(lease).degraded
    assert ips.lease(lease).reservations[0].missing_resources
    assert there(ips) == {IPS[0]: "gamma", IPS[1]: "alpha"}
    ips.run(minutes=60)
    assert ips.status(lease) == "TERMINATED"
    assert [one.id for one in ips.m.cloud.addresses.list()] == [stranger.id]


def test_an_address_goes_also_if_its_owner_took_the_tag_off(ips: House) -> None:
    """Tags of an address are its project's to change."""
    lease = create(ips, minutes=(None, 60))
    ips.run(minutes=1)
    with sqlite3.connect(ips.sim.path) as world:
        world.execute("UPDATE addresses SET tags = '[]'")
    change(ips, lease, amount=2)
    ips.run(minutes=3)
    assert len(there(ips)) == 2
    ips.run(minutes=60)
    assert ips.status(lease) == "TERMINATED"
    assert there(ips) == {}


def test_an_address_deleted_by_the_owner_does_not_stop_the_end(ips: House) -> None:
    lease = create(ips, minutes=(None, 60))
    ips.run(minutes=1)
    (mine,) = ips.m.cloud.addresses.list()
    ips.m.cloud.addresses.delete(mine.id)
    ips.run(minutes=60)
    assert ips.status(lease) == "TERMINATED"


def test_a_deleted_lease_gives_its_addresses_back(ips: House) -> None:
    lease = create(ips, minutes=(None, 60), amount=4)
    ips.run(seconds=10)
    assert len(there(ips)) == 4
    ips.delete(lease)
    ips.run(seconds=10)
    assert there(ips) == {}
    create(ips, minutes=(None, 60), amount=4)


@pytest.mark.parametrize("how", ["kill", "lose"])
def test_a_manager_that_dies_over_the_cloud_changes_nothing_about_the_outcome(
    ips: House, how: str
) -> None:
    whole = Points(how=how)
    story(ips, whole)
    calls = [at for at, what in enumerate(whole.passed, 1) if "after addresses" in what]
    assert len(calls) == 4  # two are made, two are deleted
    for at in calls:
        story(ips, Points(at, how))


def story(house: House, points: Points) -> None:
    """A lease from just after its booking to its end, under a manager that may die."""
    points.armed = False
    house.manager(points)
    lease, began = create(house, minutes=(2, 4), amount=2), house.clock.now()
    points.armed = True
    for minutes in (3, 6):
        until = began + timedelta(minutes=minutes)
        try:
            house.run(until=until)
        except Killed:
            house.manager()
            house.run(until=until)
        expected = dict.fromkeys(IPS[:2], "alpha") if minutes == 3 else {}
        assert there(house) == expected, points.where
        assert house.status(lease) == ("ACTIVE" if expected else "TERMINATED"), points.where


# updates


def change(house: House, lease_id: str, **spec: Any) -> None:
    (reservation,) = house.lease(lease_id).reservations
    house.update(lease_id, reservations={reservation.id: spec})


def test_a_reservation_that_waits_may_grow_and_shrink(ips: House) -> None:
    lease = create(ips, amount=2, required_floatingips=[IPS[3]])
    change(ips, lease, amount=3)
    assert held(ips, lease) == [{IPS[3], IPS[0], IPS[1]}]
    change(ips, lease, amount=1)
    assert held(ips, lease) == [{IPS[3]}]
    change(ips, lease, required_floatingips=[])
    assert held(ips, lease) == [{IPS[3]}]  # what it has it keeps


def test_an_active_reservation_may_only_grow(ips: House) -> None:
    lease = create(ips, minutes=(None, 60), amount=2)
    ips.run(minutes=1)
    with pytest.raises(Conflict, match="can only grow once the lease has started"):
        change(ips, lease, amount=1)
    change(ips, lease, amount=3)
    ips.run(seconds=10)
    assert there(ips) == dict.fromkeys(IPS[:3], "alpha")
    with pytest.raises(NotEnoughAddresses):
        change(ips, lease, amount=5)
    assert len(there(ips)) == 3


def test_network_and_required_addresses_are_as_they_were_asked_for(ips: House) -> None:
    lease = create(ips, required_floatingips=[IPS[0]])
    with pytest.raises(Conflict, match="keeps its network"):
        change(ips, lease, network_id="another")
    with pytest.raises(Conflict, match="can only be emptied"):
        change(ips, lease, required_floatingips=[IPS[1]])
    change(ips, lease, required_floatingips=[IPS[0]], network_id=NET)
    assert held(ips, lease) == [{IPS[0]}]


def test_a_running_lease_is_prolonged_with_its_own_addresses_or_not_at_all(ips: House) -> None:
    lease = create(ips, minutes=(None, 60), required_floatingips=[IPS[0]])
    ips.run(minutes=1)
    ips.update(lease, end=ips.at(120))
    assert held(ips, lease) == [{IPS[0]}]
    create(ips, minutes=(130, 190), required_floatingips=[IPS[0]])
    with pytest.raises(NotEnoughAddresses, match="1 of its addresses cannot stay with it"):
        ips.update(lease, end=ips.at(140))
    assert ips.lease(lease).end - ips.clock.now() == timedelta(minutes=120)
