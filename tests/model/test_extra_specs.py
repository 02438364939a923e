# SPDX-License-Identifier: Apache-2.0
"""Capabilities asked for as Nova's flavors do it: every operator, scoped keys, what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import expression
from holdfast.model.errors import InvalidInput
from holdfast.model.expression import MAX_SPEC, parse_spec, path, read, value


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("4", ["4"], ["4.0", "5", "", "44"]),
        ("kvm 2", ["kvm 2"], ["kvm", "2"]),
        ("= 4", ["4", "4.0", "5"], ["3.9", "x", "", "nan"]),
        ("== 4", ["4", "4.0"], ["5", "x"]),
        ("!= 4", ["5", "3"], ["4", "4.0", "x"]),
        (">= 4", ["4", "10", "1e3"], ["3", "x", "inf"]),
        ("<= 4", ["4", "-1"], ["4.1", "10", "1_0"]),
        ("s== 4", ["4"], ["4.0", "x"]),
        ("s!= a", ["b", ""], ["a"]),
        ("s< b", ["a", "B"], ["b", "c"]),
        ("s<= b", ["a", "b"], ["c"]),
        ("s> b", ["c", "ba"], ["b", "a"]),
        ("s>= 9", ["9", "91"], ["10"]),
        ("<in> avx", ["sse avx2", "avx"], ["sse", "AVX"]),
        ("<all-in> aes avx", ["['avx2', 'aes']", "aes avx"], ["aes", "avx"]),
        ("<or> a7 <or> a8", ["a7", "a8"], ["a", "a7 a8", "<or>"]),
        ("<or> a7", ["a7"], ["a8"]),
    ],
)
def test_every_operator_of_nova(text: str, yes: list[str], no: list[str]) -> None:
    test = parse_spec(text)
    assert [test(one) for one in yes] == [True] * len(yes)
    assert [test(one) for one in no] == [False] * len(no)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "empty"),
        ("   ", "empty"),
        (">=", "needs a value"),
        ("<or>", "needs a value"),
        (">= four", "compares numbers"),
        ("== nan", "compares numbers"),
        (">= 4 5", "takes one value"),
        ("s== a b", "takes one value"),
        (">=4", "a space after >="),
        ("s==x", "a space after s=="),
        ("<in>x", "a space after <in>"),
        ("<or> a b", "write <or>"),
        ("<or> a <or>", "write <or>"),
        ("x" * (MAX_SPEC + 1), "longer than"),
    ],
)
def test_a_senseless_capability_is_refused_with_the_key_and_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^capabilities: gpu: .*{hint}"):
        parse_spec(text, "capabilities: gpu")


FACTS: dict[str, Any] = {
    "gpu": "8",
    "vcpus": 16,
    "a:b": "whole",
    "cpu_info": '{"arch": "x86_64", "features": ["aes", "avx2"], "topology": {"cores": 8}}',
    "broken": "{",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("gpu", "8"),
        ("capabilities:gpu", "8"),
        ("capabilities:vcpus", "16"),
        ("capabilities:a:b", "whole"),
        ("capabilities:cpu_info:arch", "x86_64"),
        ("cpu_info:topology:cores", "8"),
        ("cpu_info:features", "['aes', 'avx2']"),
        ("cpu_info:features:aes", None),
        ("cpu_info:nothing", None),
        ("cpu_info:arch:more", None),
        ("broken:x", None),
        ("deep:x", None),
        ("vcpus:x", None),
        ("moon", None),
        ("moon:base", None),
    ],
)
def test_keys_reach_the_value_with_and_without_scope(key: str, found: str | None) -> None:
    assert value(FACTS.get, key) == found


def test_the_scope_is_dropped_once() -> None:
    assert path("capabilities:capabilities:x") == "capabilities:x"
    assert path("cpu_info:arch") == "cpu_info:arch"


def test_a_request_comes_as_an_object_or_as_its_json() -> None:
    wanted = {"capabilities:gpu": ">= 4", "rack": "a7"}
    assert dict(read(wanted)) == wanted
    assert dict(read('{"capabilities:gpu": ">= 4", "rack": "a7"}')) == wanted
    assert dict(read({"gpu": 4, "price": 2.5})) == {"gpu": "4", "price": "2.5"}
    assert dict(read("")) == dict(read({})) == {}


@pytest.mark.parametrize(
    "given_",
    [
        "x",
        "[]",
        7,
        [],
        True,
        {"": "1"},
        {"capabilities:": "1"},
        {"a": None},
        {"a": True},
        {"a": []},
    ],
)
def test_a_request_without_an_object_is_malformed(given_: object) -> None:
    with pytest.raises(InvalidInput, match="Malformed parameter capabilities"):
        list(read(given_))


@pytest.mark.parametrize(
    "given_",
    [
        {str(n): "1" for n in range(101)},
        {"k" * 256: "1"},
        {"a": "\x00"},
        '{"a": "\\ud800"}',
        '{"a\\u0000": "1"}',
        '{"a": "' + "x" * 65_536 + '"}',
        "[" * 60_000,
    ],
)
def test_too_many_or_unstorable_capabilities_are_refused(given_: object) -> None:
    with pytest.raises(InvalidInput, match="capabilities"):
        list(read(given_))


def test_requests_are_not_remembered() -> None:
    before = expression._loaded.cache_info().currsize
    for number in range(50):
        dict(read(f'{{"serial": "{number}"}}'))
    assert expression._loaded.cache_info().currsize == before


_WORDS = st.sampled_from(["<or>", "<in>", "<all-in>", "s==", ">=", "=", "a", "1", "nan", ""])


@settings(max_examples=200, deadline=None)
@given(st.lists(_WORDS, max_size=6).map(" ".join) | st.text(max_size=30), st.text(max_size=8))
def test_any_text_is_a_test_or_a_refusal(text: str, of: str) -> None:
    try:
        test = parse_spec(text)
    except InvalidInput:
        return
    assert test(of) in (True, False)
