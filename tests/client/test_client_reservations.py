# SPDX-License-Identifier: Apache-2.0
"""Reservations as people type them."""

import re
from typing import Any

import pytest

from holdfast.client.syntax import parse


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a:b", {"resource_type": "a:b"}),
        ("a:b,x=1", {"resource_type": "a:b", "x": 1}),
        ("resource_type=a:b, x = two words ", {"resource_type": "a:b", "x": "two words"}),
        ("a:b,x=,y=null,z=true", {"resource_type": "a:b", "x": "", "y": None, "z": True}),
        ("a:b,x=None", {"resource_type": "a:b", "x": "None"}),
        ("a:b,x=[1,2],y=3", {"resource_type": "a:b", "x": [1, 2], "y": 3}),
        ('a:b,x={"y": "}, z=1"}', {"resource_type": "a:b", "x": {"y": "}, z=1"}}),
        ("a:b,flavor_id=42,id=7", {"resource_type": "a:b", "flavor_id": "42", "id": "7"}),
        (
            'a:b,resource_properties=["and", ["==", "$a", "b,c"]],min=1',
            {
                "resource_type": "a:b",
                "resource_properties": '["and", ["==", "$a", "b,c"]]',
                "min": 1,
            },
        ),
        (' {"resource_type": "a:b", "x": [1]}', {"resource_type": "a:b", "x": [1]}),
    ],
)
def test_a_typed_reservation_is_parsed(text: str, meant: dict[str, Any]) -> None:
    assert parse(text) == meant


def test_in_an_update_the_first_value_is_the_id() -> None:
    assert parse("r1,max=3", head="id") == {"id": "r1", "max": 3}
    assert parse("max=3", head="id") == {"max": 3}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "key=value"),
        ("a:b,c", "'c'"),
        ("a:b,on_end=snapshot,delete", 'key="a,b" where a value has commas'),
        ("a:b,=1", "'=1'"),
        ("a:b,x=1,x=2", "x is there twice"),
        ("{nope", "JSON"),
    ],
)
def test_an_invalid_reservation_is_refused_with_a_reason(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)):
        parse(text)
