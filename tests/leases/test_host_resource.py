# SPDX-License-Identifier: Apache-2.0
"""What a `physical:host` reservation may ask for, and what it then gets."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.leases.resources.base import Opening, Wish
from holdfast.leases.resources.host import MOST, HostResource
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import InvalidInput, NotEnoughHosts
from holdfast.model.host import Host, Inventory
from holdfast.model.lease import Allocation, Reservation, Window

resource = HostResource()
validate = resource.validate


def test_a_whole_request_comes_back_in_order() -> None:
    spec = {
        "min": 1,
        "max": 3,
        "hypervisor_properties": '[">=", "$vcpus", "8"]',
        "resource_properties": "",
        "before_end": "snapshot",
    }
    assert validate(spec) == spec


def test_parameters_left_out_by_the_command_line_client_have_defaults() -> None:
    assert validate({"min": "1", "max": " 2 ", "resource_properties": None}) == {
        "min": 1,
        "max": 2,
        "hypervisor_properties": "",
        "resource_properties": "",
        "before_end": "",
    }


@pytest.mark.parametrize("missing", ["min", "max"])
@pytest.mark.parametrize("value", [None, "", "absent"])
def test_both_numbers_are_needed(missing: str, value: str | None) -> None:
    spec: dict[str, Any] = {"min": 1, "max": 1, missing: value}
    if value == "absent":
        del spec[missing]
    with pytest.raises(InvalidInput, match=f"Missing parameter {missing}"):
        validate(spec)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(
    "value", ["foo", "1.5", 1.5, True, [], {}, "-1", "+1", "\u0661", "9" * 5000, "1_0", "0x1"]
)
def test_a_value_other_than_a_whole_number_is_malformed(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"Malformed parameter {name}"):
        validate({"min": 1, "max": 1, name: value})


@pytest.mark.parametrize("value", [0, -1, MOST + 1, "0", 10**30])
def test_numbers_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="is not between 1 and"):
        validate({"min": value, "max": value})


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(InvalidInput, match="min: 3 is more than max 2"):
        validate({"min": 3, "max": 2})


@pytest.mark.parametrize("value", ["email", "SNAPSHOT", ["snapshot"], 1])
def test_an_unknown_before_end_is_malformed(value: object) -> None:
    with pytest.raises(InvalidInput, match="Malformed parameter before_end"):
        validate({"min": 1, "max": 1, "before_end": value})


@pytest.mark.parametrize("name", ["hypervisor_properties", "resource_properties"])
def test_expressions_are_read_at_once_and_the_field_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        validate({"min": 1, "max": 1, name: '["=="]'})
    with pytest.raises(InvalidInput, match=f"Malformed parameter {name}"):
        validate({"min": 1, "max": 1, name: ["==", "$a", "b"]})


@pytest.mark.parametrize("unknown", ["mim", "vcpu", "on_start", "", "id"])
def test_an_unknown_field_is_refused_by_name(unknown: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{unknown}: not a parameter of physical:host"):
        validate({"min": 1, "max": 1, unknown: "x"})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_NAMES = st.sampled_from(
    [
        "min",
        "max",
        "before_end",
        "hypervisor_properties",
        "resource_properties",
        "region",
        "availability_zone",
        "vcpus",
        "memory_mb",
        "capabilities",
        "spread",
        "pack",
        "x",
    ]
)


@settings(deadline=None)
@given(st.dictionaries(_NAMES, _JSON))
def test_any_json_is_a_host_spec_or_a_refusal(spec: dict[str, Any]) -> None:
    try:
        found = validate(spec)
    except InvalidInput:
        return
    assert validate(found) == found
    assert 1 <= found["min"] <= found["max"]


# beyond the contract


def test_unrequested_fields_never_appear() -> None:
    empty = {
        "min": 1,
        "max": 1,
        "region": "",
        "availability_zone": None,
        "vcpus": "",
        "memory_mb": None,
        "capabilities": {},
        "spread": "",
        "pack": None,
    }
    assert validate(empty).keys() == {
        "min",
        "max",
        "before_end",
        "hypervisor_properties",
        "resource_properties",
    }


def test_new_fields_are_kept_as_they_are_meant() -> None:
    found = validate(
        {
            "min": 1,
            "max": 2,
            "region": " north ",
            "availability_zone": "az1",
            "vcpus": "8",
            "memory_mb": 1024,
            "local_gb": 10,
            "capabilities": '{"capabilities:gpu": ">= 4"}',
            "spread": "rack",
        }
    )
    assert found["region"] == "north"
    assert found["vcpus"] == 8
    assert found["capabilities"] == {"capabilities:gpu": ">= 4"}
    assert validate(found) == found


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ({"region": 7}, "region"),
        ({"region": "x" * 300}, "region: longer than 255"),
        ({"vcpus": "many"}, "Malformed parameter vcpus"),
        ({"vcpus": 0}, "vcpus: 0 is not between"),
        ({"local_gb": -1}, "local_gb: -1 is not between"),
        ({"capabilities": "gpu"}, "Malformed parameter capabilities"),
        ({"capabilities": {"gpu": ">= x"}}, "capabilities: gpu: >= compares numbers"),
        ({"capabilities": {f"k{n}": "1" for n in range(101)}}, "more than 100"),
        ({"spread": "room"}, "Malformed parameter spread"),
        ({"pack": ["rack"]}, "Malformed parameter pack"),
        ({"spread": "rack", "pack": "zone"}, "contradict"),
    ],
)
def test_contradictory_parameters_are_refused(more: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        validate({"min": 1, "max": 1, **more})


def test_an_update_may_take_a_new_field_away_again() -> None:
    held = Reservation("r", "physical:host", spec=validate({"min": 1, "max": 1, "vcpus": 8}))
    assert "vcpus" not in resource.change(held, {"vcpus": None})
    assert resource.change(held, {"max": 3})["vcpus"] == 8


# what it gets

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BOOK: Any = SimpleNamespace(now=lambda: NOW)


def host(number: int, **more: Any) -> Host:
    name = f"cmp-{number}"
    return Host(number, f"u{number}", name, name, name, **more)


HOUSE = CapacitySnapshot(
    {
        1: host(1, region="north", zone="az1", rack="a", vcpus=8, capabilities={"gpu": "4"}),
        2: host(2, region="north", zone="az2", rack="b", vcpus=16, memory_mb=4096, local_gb=50),
        3: host(
            3,
            region="south",
            zone="az1",
            rack="a",
            vcpus=64,
            memory_mb=9000,
            inventories={
                "PCPU": Inventory(4),
                "VCPU": Inventory(10, reserved=2),
                "MEMORY_MB": Inventory(9000, reserved=6000),
            },
            cpu_info='{"features": ["aes", "avx2"]}',
        ),
    }
)


def wish(window: Window | None = None, **asked: Any) -> Wish:
    spec = validate({"min": 1, "max": 3, **asked})
    return Wish(spec, window or Window(NOW, NOW + HOUR), "p")


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({}, {1, 2, 3}),
        ({"region": "north"}, {1, 2}),
        ({"availability_zone": "az1"}, {1, 3}),
        ({"vcpus": 9}, {2, 3}),
        ({"vcpus": 13}, {2}),
        ({"memory_mb": 3000}, {2, 3}),
        ({"memory_mb": 3001}, {2}),
        ({"local_gb": 50}, {2}),
        ({"capabilities": {"gpu": "<= 4"}}, {1}),
        ({"capabilities": {"capabilities:cpu_info:features": "<all-in> aes avx2"}}, {3}),
        ({"capabilities": {"rack": "<or> b <or> c"}}, {2}),
        ({"resource_properties": '["not", ["==", "$rack", "a"]]'}, {2}),
        ({"resource_properties": '[">=", "$free_ram_mb", "3001"]'}, {2}),
        ({"hypervisor_properties": '["in", "$availability_zone", "az2", "az3"]'}, {2}),
    ],
)
def test_hosts_are_chosen_by_the_requested_conditions(asked: dict[str, Any], ids: set[int]) -> None:
    found = resource.plan(wish(**asked), HOUSE, BOOK)
    assert {a.host_id for a in found} == ids
    assert {a.held for a in found} == {Window(NOW, NOW + HOUR)}


def test_a_spec_that_was_stored_before_plans_too() -> None:
    old = {"min": 1, "max": 3, "hypervisor_properties": "", "resource_properties": ""}
    assert len(resource.plan(Wish(old, Window(NOW, NOW + HOUR), "p"), HOUSE, BOOK)) == 3


def test_a_refusal_carries_the_counts() -> None:
    busy = HOUSE.with_holds([Allocation(1, Window(NOW, NOW + 5 * HOUR))])
    with pytest.raises(NotEnoughHosts) as refused:
        resource.plan(wish(min=2, region="north"), busy, BOOK)
    assert refused.value.message == (
        "Not enough hosts available: 2 asked for; of 3 hosts 2 match (region == north removed 1)"
        " and 1 of those is free in the window"
    )
    assert refused.value.details == {
        "conditions": [{"condition": "region == north", "hosts": 1}],
        "matching": 2,
        "free": 1,
        "busy": [1],
    }


def test_openings_come_as_windows_of_the_length_asked_for() -> None:
    busy = HOUSE.with_holds(
        [Allocation(1, Window(NOW, NOW + 2 * HOUR)), Allocation(2, Window(NOW, NOW + 5 * HOUR))]
    )
    asked = wish(region="north", max=2)
    found = resource.openings(asked, NOW + 24 * HOUR, busy, BOOK, 5)
    assert found == [
        Opening(Window(NOW + 2 * HOUR, NOW + 3 * HOUR), 1),
        Opening(Window(NOW + 5 * HOUR, NOW + 6 * HOUR), 2),
    ]
    assert resource.openings(asked, NOW + HOUR, busy, BOOK, 5) == []


def test_an_active_reservation_has_no_other_openings() -> None:
    held = Window(NOW, NOW + HOUR)
    running = Reservation("r", "physical:host", "active", allocations=(Allocation(1, held),))
    asked = Wish(validate({"min": 1, "max": 2}), held, "p", running)
    assert resource.plan(asked, HOUSE, BOOK)[0].host_id == 1
    assert resource.openings(asked, NOW + HOUR, HOUSE, BOOK, 5) == ()
