# SPDX-License-Identifier: Apache-2.0
"""`virtual:instance`: what may be asked for, and its life in the cloud from booking to end."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.jobs.job import NotYet, never_ending
from holdfast.leases import aggregates as telling
from holdfast.leases.aggregates import RECONCILE
from holdfast.leases.resources import instance
from holdfast.leases.resources.instance import InstanceResource, resource_class
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.lease import NewLease, NewReservation, Reservation
from holdfast.nova.names import OWNER, SLOTS, SLOTS_SPEC
from holdfast.ports.cloud import Flavor
from holdfast.ports.manager import Caller
from tests.leases.house import ADMIN, ANN, BOB, CLAIM_S, House, Killed, Points, copy
from tests.simclock import SimClock

TYPE = "virtual:instance"
SMALL = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
validate = InstanceResource().validate
#: What openstack reservation lease create sends for what was not said.
CLI = {
    "vcpus": "",
    "memory_mb": "",
    "disk_gb": "",
    "amount": "",
    "affinity": "None",
    "resource_properties": "",
}


# what may be asked for


def test_numbers_and_words_come_as_clients_write_them() -> None:
    asked = {**CLI, "vcpus": "2", "memory_mb": 512, "disk_gb": " 0 ", "amount": "3"}
    assert validate(asked) == {
        "vcpus": 2,
        "memory_mb": 512,
        "disk_gb": 0,
        "amount": 3,
        "affinity": None,
        "resource_properties": "",
    }


@pytest.mark.parametrize("name", ["vcpus", "memory_mb", "disk_gb", "amount"])
@pytest.mark.parametrize("value", ["", None])
def test_a_missing_number_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"^Missing parameter {name}"):
        validate({**SMALL, "amount": 1, name: value})


@pytest.mark.parametrize("name", ["vcpus", "memory_mb", "disk_gb", "amount"])
@pytest.mark.parametrize("value", [True, "x", 1.5, [], {}, "1e3", "-1", "\u0661", "9" * 5000])
def test_a_value_other_than_a_whole_number_is_malformed(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"^Malformed parameter {name}"):
        validate({**SMALL, "amount": 1, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vcpus", 0),
        ("memory_mb", 0),
        ("disk_gb", -1),
        ("amount", 0),
        ("vcpus", 2**31),
        ("amount", 10**9),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}: {value} is not between"):
        validate({**SMALL, "amount": 1, name: value})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (True, True),
        ("True", True),
        ("true", True),
        ("false", False),
        (False, False),
        ("None", None),
        ("", None),
        (None, None),
        ("null", None),
    ],
)
def test_affinity_has_three_values_in_many_words(said: object, meant: bool | None) -> None:
    assert validate({**SMALL, "amount": 1, "affinity": said})["affinity"] is meant


@pytest.mark.parametrize("said", ["perhaps", 1, 0, [], {}])
def test_any_other_affinity_is_malformed(said: object) -> None:
    with pytest.raises(InvalidInput, match=r"^Malformed parameter affinity"):
        validate({**SMALL, "amount": 1, "affinity": said})


def test_hosts_are_asked_for_by_expression_zone_and_capability() -> None:
    where = {
        "resource_properties": '["==", "$gpu", "True"]',
        "availability_zone": "north",
        "capabilities": {"ssd": "<in> yes"},
    }
    found = validate({**SMALL, "amount": 1, **where})
    assert {name: found[name] for name in where} == where
    with pytest.raises(InvalidInput, match="resource_properties"):
        validate({**SMALL, "amount": 1, "resource_properties": '["=="]'})
    with pytest.raises(InvalidInput, match=r"^Malformed parameter resource_properties"):
        validate({**SMALL, "amount": 1, "resource_properties": ["==", "$a", "b"]})
    with pytest.raises(InvalidInput, match=r"^flavor_id: not a parameter of virtual:instance"):
        validate({**SMALL, "amount": 1, "flavor_id": "x"})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*CLI, "region", "capabilities", "x"]), _JSON))
def test_any_json_is_a_slot_spec_or_a_refusal(spec: dict[str, Any]) -> None:
    try:
        found = validate({**SMALL, "amount": 1, **spec})
    except InvalidInput:
        return
    assert validate(found) == found


# what may change


def changed(status: str, **wanted: object) -> Mapping[str, Any]:
    spec = validate({**SMALL, "amount": 2})
    return InstanceResource().change(Reservation("r", TYPE, status, spec=spec), wanted)


def test_before_the_start_everything_may_change() -> None:
    assert changed("pending", vcpus="4", amount=1, affinity="True")["vcpus"] == 4


def test_an_active_reservation_only_grows() -> None:
    assert changed("active", amount=3, vcpus=1)["amount"] == 3
    with pytest.raises(Conflict, match=r"^amount: an active reservation keeps its 2 slots"):
        changed("active", amount=1)
    with pytest.raises(Conflict, match=r"^memory_mb: cannot change"):
        changed("active", amount=3, memory_mb=1024)
    with pytest.raises(Conflict, match=r"^region: cannot change"):
        changed("active", region="north")


def test_a_server_in_error_is_left_alone() -> None:
    with pytest.raises(Conflict, match="is error"):
        changed("error", amount=3)


# its life


@dataclass
class Ground:
    """A house with two hosts of four cores each, and what slots leave in its cloud."""

    house: House

    def lease(
        self,
        amount: int,
        affinity: bool | None = None,
        minutes: tuple[float | None, float] = (5, 125),
        caller: Caller = ANN,
        **spec: Any,
    ) -> str:
        house = self.house
        asked = {**SMALL, "amount": amount, "affinity": affinity, **spec}
        start = None if minutes[0] is None else house.at(minutes[0])
        wanted = NewLease(
            id=house.new_id(),
            name="slots",
            start=start,
            end=house.at(minutes[1]),
            reservations=(NewReservation(TYPE, asked),),
        )
        house.m.commands.create_lease(caller, wanted)
        return wanted.id

    def reservation(self, lease_id: str) -> Reservation:
        (found,) = self.house.lease(lease_id).reservations
        return found

    def slots(self, lease_id: str) -> dict[str, int]:
        return {a.host: a.slots or 0 for a in self.reservation(lease_id).allocations}

    def totals(self, reservation_id: str) -> dict[str, int]:
        """What the hosts have in the cloud."""
        name, slots = resource_class(reservation_id), self.house.m.cloud.slots
        return {h: n for h in self.house.hosts() if (n := slots.inventory(h, name).total)}

    def flavor(self, reservation_id: str) -> Flavor | None:
        try:
            found: Flavor = self.house.m.cloud.flavors.show(reservation_id)
        except NotFound:
            return None
        return found

    def groups(self) -> list[tuple[str, str]]:
        return [(group.policy, group.project_id) for group in self.house.m.cloud.slots.groups()]

    def boot(self, reservation_id: str, name: str, project: str = "alpha") -> str:
        server = self.house.sim.boot(name, project, None, 1, 512, 1, reservation_id)
        return str(server.host)

    def gone(self, reservation_id: str) -> bool:
        left = self.totals(reservation_id), self.flavor(reservation_id), self.groups()
        return left == ({}, None, []) and set(self.house.pools()) == {"freepool"}


def enrol(house: House) -> None:
    for name in ("cmp-1", "cmp-2"):
        house.sim.add_host(name, vcpus=4)
        house.m.commands.enrol_host(ADMIN, name, {})


@pytest.fixture
def ground(house: House) -> Ground:
    enrol(house)
    return Ground(house)


def test_slots_are_the_owners_from_start_to_end(ground: Ground) -> None:
    house = ground.house
    lease_id = ground.lease(6)
    mine = ground.reservation(lease_id).id
    assert ground.slots(lease_id) == {"cmp-1": 4, "cmp-2": 2}
    assert ground.gone(mine)  # nothing is made yet

    house.run(minutes=4.5)  # the minute before
    flavor = ground.flavor(mine)
    assert flavor is not None
    assert (flavor.name, flavor.public, flavor.projects) == (f"reservation:{mine}", False, ())
    assert (flavor.vcpus, flavor.memory_mb, flavor.disk_gb) == (1, 512, 1)
    assert flavor.extra_specs == {SLOTS_SPEC: mine, f"resources:{resource_class(mine)}": "1"}
    assert ground.totals(mine) == {"cmp-1": 4, "cmp-2": 2}
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2"}, mine: {"cmp-1", "cmp-2"}}
    before = house.sim.calls()

    house.run(minutes=1)
    assert house.status(lease_id) == "ACTIVE"
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2"}, mine: {"cmp-1", "cmp-2"}}
    pool = house.m.cloud.pools.find(mine)
    assert pool.metadata == {SLOTS: mine, OWNER: "alpha", "filter_tenant_id": "alpha"}
    spent = {k: n - before.get(k, 0) for k, n in house.sim.calls().items() if "resync" not in k}
    changes = {k: n for k, n in spent.items() if n and not k.endswith(("find", "list", "show"))}
    assert changes == {"flavors.add_access": 1}
    made = ground.reservation(lease_id).made
    assert (made["flavor_id"], made["server_group_id"]) == (mine, None)
    assert made["aggregate_id"] == int(pool.id)

    hosts = [ground.boot(mine, f"s{n}") for n in range(6)]
    assert sorted(hosts) == ["cmp-1"] * 4 + ["cmp-2"] * 2
    with pytest.raises(Conflict, match="No valid host"):
        ground.boot(mine, "seventh")
    with pytest.raises(Conflict, match="No valid host"):
        ground.boot(mine, "strange", "beta")

    house.sim.change(delete_s=3.0)
    house.run(minutes=121)
    assert house.status(lease_id) == "TERMINATED"
    assert house.servers() == []
    assert ground.gone(mine)
    house.tell()
    house.run(minutes=2)
    assert set(house.all_pools()) == {"freepool", "holdfast"}


def test_a_lease_that_starts_now_makes_all_at_once(ground: Ground) -> None:
    lease_id = ground.lease(2, True, minutes=(None, 60))
    ground.house.run(seconds=1)
    mine = ground.reservation(lease_id)
    assert ground.house.status(lease_id) == "ACTIVE"
    assert ground.groups() == [("affinity", "alpha")]
    flavor, pool = ground.flavor(mine.id), ground.house.m.cloud.pools.find(mine.id)
    assert flavor is not None
    assert flavor.projects == ("alpha",)
    group = mine.made["server_group_id"]
    assert flavor.extra_specs["affinity_id"] == pool.metadata["affinity_id"] == group
    assert len({ground.boot(mine.id, f"s{n}") for n in range(2)}) == 1


def test_apart_is_on_two_hosts_and_the_group_says_so(ground: Ground) -> None:
    lease_id = ground.lease(2, False, minutes=(None, 60))
    ground.house.run(seconds=1)
    mine = ground.reservation(lease_id).id
    assert ground.groups() == [("anti-affinity", "alpha")]
    assert {ground.boot(mine, f"s{n}") for n in range(2)} == {"cmp-1", "cmp-2"}
    ground.house.run(minutes=61)
    assert ground.gone(mine)


def test_slots_of_two_projects_share_a_host_and_never_more_than_it_has(ground: Ground) -> None:
    one, other = ground.lease(3), ground.lease(4, caller=BOB)
    assert ground.slots(one) == {"cmp-1": 3}
    assert ground.slots(other) == {"cmp-1": 1, "cmp-2": 3}
    with pytest.raises(NotEnoughHosts, match="2 slots of") as refused:
        ground.lease(2)
    assert refused.value.details["earliest"]["start_date"].startswith("2030-01-01T12:05")
    assert refused.value.details["obstacles"][0]["name"] in ("slots", None)
    assert ground.lease(1)
    ground.house.run(minutes=6)
    assert [ground.boot(ground.reservation(one).id, f"a{n}") for n in range(3)] == ["cmp-1"] * 3
    theirs = ground.reservation(other).id
    assert sorted(ground.boot(theirs, f"b{n}", "beta") for n in range(4))[:2] == ["cmp-1", "cmp-2"]


def test_a_host_is_never_reserved_as_a_whole_and_by_slots_at_once(ground: Ground) -> None:
    ground.lease(1)
    with pytest.raises(NotEnoughHosts):
        ground.house.create(hosts=2)
    assert ground.house.held(ground.house.create(hosts=1)) == [["cmp-2"]]
    with pytest.raises(NotEnoughHosts):
        ground.lease(4)


def test_slots_wait_until_the_host_is_given_back(ground: Ground) -> None:
    house = ground.house
    before = house.create(minutes=(None, 10), hosts=2)
    house.run(seconds=1)
    house.boot("theirs", "cmp-1")
    house.sim.change(delete_s=20.0)
    lease_id = ground.lease(5, minutes=(10, 60))
    house.run(minutes=9.9)
    mine = ground.reservation(lease_id).id
    assert house.pools()[mine] == set()  # it would be in the way of those who are still there
    house.run(seconds=12)
    assert (house.status(before), house.status(lease_id)) == ("TERMINATING", "STARTING")
    house.run(seconds=30)
    assert (house.status(before), house.status(lease_id)) == ("TERMINATED", "ACTIVE")
    assert house.pools()[mine] == {"cmp-1", "cmp-2"}


def test_a_reservation_changed_after_prepare_starts_with_the_new_spec(
    ground: Ground,
) -> None:
    house = ground.house
    lease_id = ground.lease(4, True)
    house.run(minutes=4.5)
    mine = ground.reservation(lease_id).id
    assert ground.totals(mine) == {"cmp-1": 4}
    house.update(lease_id, reservations={mine: {"amount": 2, "affinity": False, "vcpus": 2}})
    house.run(minutes=1)
    assert house.status(lease_id) == "ACTIVE"
    assert ground.totals(mine) == {"cmp-1": 1, "cmp-2": 1}
    assert ground.groups() == [("anti-affinity", "alpha")]
    flavor = ground.flavor(mine)
    assert flavor is not None
    assert (flavor.vcpus, flavor.projects) == (2, ("alpha",))
    pool = house.m.cloud.pools.find(mine)
    group = ground.reservation(lease_id).made["server_group_id"]
    assert flavor.extra_specs["affinity_id"] == pool.metadata["affinity_id"] == group
    house.delete(lease_id)
    house.run(minutes=3)
    assert ground.gone(mine)


def test_prepared_slots_that_are_deferred_leave_their_hosts_at_once(ground: Ground) -> None:
    house = ground.house
    lease_id = ground.lease(2)
    house.run(minutes=4.5)
    mine = ground.reservation(lease_id).id
    assert house.pools()[mine] == {"cmp-1"}
    week = 7 * 24 * 60
    house.update(lease_id, start=house.at(week), end=house.at(week + 60))
    house.run(seconds=1)
    assert house.pools()[mine] == set()
    assert ground.totals(mine) == {}
    house.run(minutes=week)
    assert house.status(lease_id) == "ACTIVE"
    assert house.pools()[mine] == {"cmp-1"}
    assert ground.totals(mine) == {"cmp-1": 2}


def test_the_comparison_of_pools_finds_hosts_of_slots_that_were_deferred(ground: Ground) -> None:
    """As a call leaves them that took effect after its timeout; one of the hosts has a server."""
    house, cloud = ground.house, ground.house.m.cloud
    lease_id = ground.lease(2, minutes=(7 * 1440, 8 * 1440))
    mine = ground.reservation(lease_id).id
    pool = cloud.pools.create(mine, {SLOTS: mine, OWNER: "alpha"})
    for host in ("cmp-1", "cmp-2"):
        cloud.pools.add_host(pool.id, host)
    house.boot("of-others", "cmp-2")
    house.m.store.operations.ensure(never_ending(RECONCILE, house.clock.now()))
    house.run(minutes=1)
    assert house.pools()[mine] == set()


def test_a_host_added_by_a_crashed_manager_leaves_before_the_start(
    ground: Ground,
) -> None:
    """A manager died while it prepared; then an update moved the reservation."""
    house, cloud = ground.house, ground.house.m.cloud
    lease_id = ground.lease(2)
    mine = ground.reservation(lease_id).id
    pool = cloud.pools.create(mine, {SLOTS: mine, OWNER: "alpha"})
    cloud.pools.add_host(pool.id, "cmp-2")
    name = resource_class(mine)
    cloud.slots.set_inventory("cmp-2", name, 4, cloud.slots.inventory("cmp-2", name).generation)
    house.run(minutes=6)
    assert house.status(lease_id) == "ACTIVE"
    assert house.pools()[mine] == {"cmp-1"}
    assert ground.totals(mine) == {"cmp-1": 2}


@pytest.mark.parametrize("affinity", [True, False])
def test_an_affinity_without_a_role_in_the_project_is_refused_at_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, affinity: bool
) -> None:
    def refuse(project_id: str) -> None:
        raise Conflict(f"affinity: openstack role add --project {project_id} member")

    monkeypatch.setattr(ground.house.m.cloud.slots, "check_role", refuse)
    with pytest.raises(Conflict, match="role add --project alpha"):
        ground.lease(2, affinity)
    assert not ground.house.m.store.ledger.with_events()
    ground.lease(2)


def test_a_pending_reservation_may_give_up_affinity(ground: Ground) -> None:
    lease_id = ground.lease(2, True)
    ground.house.run(minutes=4.5)
    mine = ground.reservation(lease_id).id
    ground.house.update(lease_id, reservations={mine: {"affinity": "None"}})
    ground.house.run(minutes=1)
    flavor = ground.flavor(mine)
    assert flavor is not None
    assert "affinity_id" not in flavor.extra_specs
    assert ground.reservation(lease_id).made["server_group_id"] is None
    assert {ground.boot(mine, f"s{n}") for n in range(2)} == {"cmp-1"}
    ground.house.run(minutes=125)
    assert ground.gone(mine)


def test_an_active_reservation_gets_more_slots_beside_running_servers(ground: Ground) -> None:
    house = ground.house
    lease_id = ground.lease(2, minutes=(None, 60))
    house.run(seconds=1)
    mine = ground.reservation(lease_id).id
    for n in range(2):
        ground.boot(mine, f"s{n}")
    house.update(lease_id, reservations={mine: {"amount": 6}})
    house.run(seconds=5)
    assert ground.totals(mine) == {"cmp-1": 4, "cmp-2": 2}
    assert house.pools()[mine] == {"cmp-1", "cmp-2"}
    for n in range(2, 6):
        ground.boot(mine, f"s{n}")
    assert len(house.servers()) == 6
    house.run(minutes=60)
    assert ground.gone(mine)


def test_a_lease_deleted_before_anything_was_made_leaves_nothing(ground: Ground) -> None:
    lease_id = ground.lease(2, True, minutes=(500, 600))
    mine = ground.reservation(lease_id).id
    ground.house.delete(lease_id)
    ground.house.run(seconds=5)
    assert ground.gone(mine)


def test_a_server_of_the_flavor_goes_wherever_it_is_and_no_other_does(ground: Ground) -> None:
    house = ground.house
    lease_id = ground.lease(2, minutes=(None, 10))
    house.run(seconds=1)
    mine = ground.reservation(lease_id).id
    ground.boot(mine, "shelved")
    ground.boot(mine, "here")
    other = ground.lease(1, minutes=(None, 60))
    house.run(seconds=1)
    ground.boot(ground.reservation(other).id, "of-another-lease")
    (server,) = [s for s in house.m.cloud.servers.list() if s.name == "shelved"]
    house.m.cloud.servers.shelve(server.id)
    house.run(minutes=12)
    assert house.servers() == ["of-another-lease"]


def test_preemptible_servers_make_way_for_slots(ground: Ground) -> None:
    house = ground.house
    house.settings.preemptibles = True
    spec = {"blazar:preemptible": "true"}
    house.m.cloud.flavors.create(Flavor("spot", "spot", 1, 512, 1, extra_specs=spec))
    house.boot("spot-1", "cmp-1", "spot")
    house.boot("spot-2", "cmp-2", "spot")
    lease_id = ground.lease(2, minutes=(None, 60))
    house.run(seconds=10)
    assert house.status(lease_id) == "ACTIVE"
    assert house.servers() == ["spot-2"]


def test_a_deleted_flavor_is_created_again(ground: Ground) -> None:
    lease_id = ground.lease(1)
    ground.house.run(minutes=4.5)
    mine = ground.reservation(lease_id).id
    ground.house.m.cloud.flavors.delete(mine)
    ground.house.run(minutes=1)
    flavor = ground.flavor(mine)
    assert flavor is not None
    assert flavor.projects == ("alpha",)


# one after the other


def test_slots_start_and_end_within_a_minute_where_half_of_the_calls_fail(
    ground: Ground,
) -> None:
    """A large reservation too: what was made by a failed attempt is not made once more."""
    house = ground.house
    for number in range(30):
        house.sim.add_host(f"big-{number}", vcpus=4)
        house.m.commands.enrol_host(ADMIN, f"big-{number}", {})
    leases = [ground.lease(amount, False, (5, 60)) for amount in (1, 2, 3, 30)]
    house.sim.change(failure_rate=0.3, lost_reply_rate=0.2)
    leases += [ground.lease(amount, False, (None, 65)) for amount in (1, 2, 3, 25)]
    house.run(minutes=1)
    assert [house.status(lease_id) for lease_id in leases] == ["PENDING"] * 4 + ["ACTIVE"] * 4
    house.run(minutes=5)
    assert {house.status(lease_id) for lease_id in leases} == {"ACTIVE"}
    assert len(house.effects("slots.create_group")) == len(leases)
    house.run(minutes=62)
    assert {house.status(lease_id) for lease_id in leases} == {"TERMINATED"}
    house.sim.change(failure_rate=0.0, lost_reply_rate=0.0)
    assert all(ground.gone(ground.reservation(lease_id).id) for lease_id in leases)


def test_slots_with_an_affinity_are_booked_while_the_cloud_is_away(ground: Ground) -> None:
    ground.house.sim.change(down=True)
    lease_id = ground.lease(2, False, (5, 60))
    assert ground.house.status(lease_id) == "PENDING"
    ground.house.sim.change(down=False)
    ground.house.run(minutes=6)
    assert ground.house.status(lease_id) == "ACTIVE"


def test_a_single_writer_works_on_a_host_and_late_writers_retry_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance, "_TURN_S", 0.02)
    turns = instance.KeyedLock()

    def at(host: str) -> str:
        try:
            with turns.at(host):
                return "its turn"
        except NotYet as later:
            return later.sentence

    with ThreadPoolExecutor(1) as other, turns.at("cmp-1"):
        assert other.submit(at, "CMP-1").result() == "host CMP-1: others are at it"
        assert other.submit(at, "cmp-2").result() == "its turn"
    assert at("cmp-1") == "its turn"


# kill -9 everywhere


def begin(house: House) -> str:
    """Two slots apart are booked, and nothing of them is in the cloud yet; the lease."""
    enrol(house)
    lease_id = Ground(house).lease(2, False, minutes=(5, 30))
    house.run(minutes=3)
    return lease_id


def tell(house: House, lease_id: str, points: Points) -> None:
    """They are prepared, started, used and ended; somebody may die on the way."""
    ground = Ground(house)
    mine = ground.reservation(lease_id).id
    start = house.lease(lease_id).start - timedelta(minutes=5)
    house.manager(points)

    def until(minutes: float) -> None:
        for _ in range(3):
            try:
                house.run(until=max(start + timedelta(minutes=minutes), house.clock.now()))
                return
            except Killed:
                house.manager(None)
                house.clock.advance(CLAIM_S)
        raise AssertionError(f"it dies again and again: {points.where}")

    until(4.5)
    until(6)
    assert house.status(lease_id) == "ACTIVE", points.where
    assert ground.totals(mine) == {"cmp-1": 1, "cmp-2": 1}, points.where
    assert {ground.boot(mine, f"s{n}") for n in range(2)} == {"cmp-1", "cmp-2"}
    house.sim.change(delete_s=0.4)
    until(31.5)
    points.armed = False
    house.tell()
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED", points.where
    assert house.servers() == []
    assert ground.gone(mine), points.where
    assert set(house.all_pools()) == {"freepool", "holdfast"}
    for call in ("flavors.create", "slots.create_group", "pools.delete"):
        assert len(house.effects(call)) == 1, points.where


def worth_dying_at(passed: Sequence[str]) -> Iterator[int]:
    """The points of slots: what they change in the cloud, and the first commit after; each kind
    once, unless all are wanted."""
    seen: set[str] = set()
    for at, what in enumerate(passed, 1):
        before = passed[at - 2] if at > 1 else "commit"
        if "resync" in what or ("commit" in what and "commit" in before):
            continue
        kind = f"{before} > {what}" if "commit" in what else what
        if kind not in seen or os.environ.get("CRASH_POINTS") == "all":
            seen.add(kind)
            yield at


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["kill", "lose"])
def test_another_manager_completes_the_lease_after_a_crash_at_any_point(
    template: Path, site: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One telling has every point of three.
    monkeypatch.setattr(telling, "RESYNC_AFTER_S", telling.RESYNC_AFTER_S[:1])
    first = House(copy(template, site))
    lease_id = begin(first)
    first.close()
    stage = copy(site, tmp_path / "stage")

    def told(points: Points) -> Sequence[str]:
        house = House(copy(stage, site), SimClock(first.clock.now()), ids_from=1000)
        try:
            tell(house, lease_id, points)
        finally:
            house.close()
        return points.passed

    found = list(worth_dying_at(told(Points(how=how))))
    assert len(found) >= 16
    for at in found:
        told(Points(at=at, how=how))
