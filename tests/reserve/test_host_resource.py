# SPDX-License-Identifier: Apache-2.0
"""What a `physical:host` reservation may ask for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput
from holdfast.reserve.resources.host import MOST, HostResource

validate = HostResource().validate


def test_a_whole_request_comes_back_in_order() -> None:
    spec = {
        "min": 1,
        "max": 3,
        "hypervisor_properties": '[">=", "$vcpus", "8"]',
        "resource_properties": "",
        "before_end": "snapshot",
    }
    assert validate(spec) == spec


def test_what_the_command_line_client_leaves_out_has_defaults() -> None:
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
def test_what_is_no_whole_number_is_malformed(name: str, value: object) -> None:
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


@pytest.mark.parametrize("unknown", ["mim", "vcpus", "on_start", "", "id"])
def test_an_unknown_field_is_refused_by_name(unknown: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{unknown}: not a parameter of physical:host"):
        validate({"min": 1, "max": 1, unknown: "x"})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_NAMES = st.sampled_from(
    ["min", "max", "before_end", "hypervisor_properties", "resource_properties", "x"]
)


@settings(deadline=None)
@given(st.dictionaries(_NAMES, _JSON))
def test_whatever_json_comes_it_is_a_spec_or_a_refusal(spec: dict[str, Any]) -> None:
    try:
        found = validate(spec)
    except InvalidInput:
        return
    assert validate(found) == found
    assert 1 <= found["min"] <= found["max"]
