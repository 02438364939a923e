# SPDX-License-Identifier: Apache-2.0
"""A lease as it is shown: at 1.0 the contract's keys alone, from 1.1 on all there is to know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.api.reservation_v1.leases import view
from holdfast.model.lease import Allocation, Lease, Reservation, Window

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HELD = Window(NOW, NOW + timedelta(hours=1))
COMMON = {
    "id",
    "lease_id",
    "resource_id",
    "resource_type",
    "status",
    "missing_resources",
    "resources_changed",
    "created_at",
    "updated_at",
}
INSTANCE = {
    "vcpus",
    "memory_mb",
    "disk_gb",
    "amount",
    "affinity",
    "flavor_id",
    "aggregate_id",
    "server_group_id",
    "resource_properties",
}
HOST = {"hypervisor_properties", "resource_properties", "before_end", "min", "max"}
SIZE = {"vcpus": 2, "memory_mb": 4096, "disk_gb": 20, "amount": 3, "affinity": False}


def shown(
    reservation: Reservation, *, later: bool = False, admin: bool = False, **addresses: str
) -> dict[str, Any]:
    lease = Lease("l1", "one", "u", "p", HELD.start, HELD.end, reservations=(reservation,))
    (found,) = view(lease, (), NOW, addresses if later else None, admin)["reservations"]
    return dict(found)


def test_hosts_at_1_0_have_the_contracts_keys_in_the_order_they_always_had() -> None:
    spec = {
        **{"resource_properties": "", "hypervisor_properties": "", "spread": "rack"},
        **{"before_end": "", "max": 2, "min": 1, "region": "north"},
    }
    said = shown(Reservation("r1", "physical:host", spec=spec))
    assert [key for key in said if key not in COMMON] == [
        "min",
        "max",
        "before_end",
        "hypervisor_properties",
        "resource_properties",
    ]


@pytest.mark.parametrize("type_", ["virtual:instance", "flavor:instance"])
def test_slots_at_1_0_have_the_contracts_keys_before_and_after_they_are_made(type_: str) -> None:
    spec = {**SIZE, "resource_properties": "", "source_flavor_id": "42", "takes": {"VCPU": 2}}
    before = shown(Reservation("r1", type_, spec=spec))
    assert before.keys() == COMMON | INSTANCE
    assert (before["flavor_id"], before["aggregate_id"], before["server_group_id"]) == (
        "r1",
        None,
        None,
    )
    made = {"flavor_id": "r1", "aggregate_id": 7, "server_group_id": "g", "stands": {"x": 1}}
    after = shown(Reservation("r1", type_, spec=spec, made=made))
    assert after.keys() == COMMON | INSTANCE
    assert (after["aggregate_id"], after["server_group_id"]) == (7, "g")


def test_a_flavor_that_was_asked_for_is_not_the_flavor_to_use() -> None:
    said = shown(Reservation("r1", "flavor:instance", spec={**SIZE, "flavor_id": "m1.large"}))
    assert said["flavor_id"] == "r1"


def test_addresses_at_1_0_have_the_contracts_keys() -> None:
    spec = {"network_id": "n", "amount": 1, "required_floatingips": [], "more": 1}
    said = shown(Reservation("r1", "virtual:floatingip", spec=spec))
    assert said.keys() == COMMON | {"network_id", "amount", "required_floatingips"}


def test_a_type_of_its_own_shows_everything_but_never_passes_for_something_else() -> None:
    spec = {"seats": 5, "id": "forged", "status": "forged"}
    said = shown(Reservation("r1", "acme:licence", spec=spec, made={"seats": 6}))
    assert said.keys() == COMMON | {"seats"}
    assert (said["id"], said["status"], said["seats"]) == ("r1", "pending", 6)


def test_where_a_leased_server_is_and_what_steps_remember_is_not_shown() -> None:
    spec = {"server_id": "s1", "on_end": "stop", "host": "cmp-4"}
    held = (
        Allocation(None, HELD, thing="server:s1"),
        Allocation(4, HELD, 1, {"VCPU": 4}, host="cmp-4"),
    )
    server = Reservation("r1", "virtual:server", spec=spec, allocations=held)
    for later in (False, True):
        said = shown(server, later=later)
        assert "host" not in said and "cmp-4" not in str(said)
        assert said["server_id"] == "s1"
    assert said["hosts"] == [] and said["things"] == ["server:s1"]
    for_admins = shown(server, later=True, admin=True)["hosts"]
    assert for_admins == [{"id": "4", "name": "cmp-4", "slots": 1}]
    made = {"stands": {}, "cloud_ids": ["x"], "snapshot_for": "20300101T000000"}
    said = shown(Reservation("r1", "acme:licence", spec={"host": "theirs"}, made=made), later=True)
    assert said.keys() == COMMON | {"host", "hosts"}


def test_from_1_1_on_owners_see_their_hosts_slots_and_addresses() -> None:
    whole = Reservation(
        "r1",
        "physical:host",
        spec={"min": 1, "max": 2, "spread": "rack"},
        allocations=(Allocation(4, HELD, host="cmp-4"), Allocation(5, HELD, host="cmp-5")),
    )
    said = shown(whole, later=True)
    assert said["hosts"] == [{"id": "4", "name": "cmp-4"}, {"id": "5", "name": "cmp-5"}]
    assert said["spread"] == "rack"
    slots = Reservation(
        "r1",
        "virtual:instance",
        spec={**SIZE, "zone": "a"},
        made={"aggregate_id": 7, "stands": {"x": 1}},
        allocations=(Allocation(4, HELD, 2, {"VCPU": 4}, host="cmp-4"),),
    )
    said = shown(slots, later=True)
    assert said["hosts"] == [{"id": "4", "name": "cmp-4", "slots": 2}]
    assert said.keys() == COMMON | INSTANCE - {"resource_properties"} | {
        "zone",
        "hosts",
        "resource_properties",
    }
    address = Reservation(
        "r1",
        "virtual:floatingip",
        spec={"network_id": "n", "amount": 1, "required_floatingips": []},
        allocations=(
            Allocation(None, HELD, thing="address:f1"),
            Allocation(None, HELD, thing="address:f2"),
        ),
    )
    said = shown(address, later=True, f1="203.0.113.7")
    assert said["floatingips"] == [
        {"id": "f1", "address": "203.0.113.7"},
        {"id": "f2", "address": None},
    ]
    assert "things" not in said
    licence = Reservation("r1", "a:b", allocations=(Allocation(None, HELD, thing="licence:42"),))
    assert shown(licence, later=True)["things"] == ["licence:42"]
