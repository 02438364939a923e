# SPDX-License-Identifier: Apache-2.0
"""Property expressions: the contract's forms, ours on top, always an answer or a refusal."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput
from holdfast.model.expression import MAX_DEPTH, MAX_NODES, MAX_TEXT, both, parse

HOST = {"vcpus": 16, "rack": "a7", "gpu": "True", "price": "2.50", "room": "10", "odd": "nan"}


def matches(tree: Any, facts: dict[str, Any] = HOST) -> bool:
    return parse(json.dumps(tree)).matches(facts)


@pytest.mark.parametrize("text", ["", "  ", "[]", " [] "])
def test_nothing_asked_for_matches_every_host(text: str) -> None:
    assert parse(text).matches({})
    assert parse(text).keys == frozenset()


@pytest.mark.parametrize(
    ("op", "smaller", "equal", "larger"),
    [
        ("==", False, True, False),
        ("=", False, True, False),
        ("!=", True, False, True),
        (">=", False, True, True),
        ("<=", True, True, False),
        (">", False, False, True),
        ("<", True, False, False),
    ],
)
def test_every_comparison_of_the_contract(
    op: str, smaller: bool, equal: bool, larger: bool
) -> None:
    for fact, expected in ((9, smaller), (10, equal), (100, larger)):
        assert matches([op, "$n", "10"], {"n": fact}) is expected
        assert matches([op, "$n", "10"], {"n": str(fact)}) is expected


def test_a_key_may_carry_the_scope_of_capabilities() -> None:
    expression = parse('["and", [">", "$capabilities:room", "9"], ["in", "$rack", "a7"]]')
    assert expression.matches(HOST)
    assert expression.keys == {"room", "rack"}
    assert expression.text == "room > 9 and rack in a7"
    with pytest.raises(InvalidInput, match="Malformed requirements"):
        parse('["==", "$capabilities:", "9"]')


def test_two_numbers_compare_as_numbers_and_all_else_as_text() -> None:
    assert matches(["==", "$price", "2.5"])
    assert matches([">", "$room", "9"])
    assert matches(["<", "$rack", "a8"])
    assert matches([">", "$rack", "10"])  # text: "a7" > "10"
    assert not matches(["==", "$gpu", "true"])


@pytest.mark.parametrize("word", ["nan", "inf", "-infinity", "1_0", "1e999"])
def test_words_that_python_would_take_for_numbers_are_words(word: str) -> None:
    assert matches(["==", "$k", word], {"k": word})
    assert not matches(["==", "$k", "10"], {"k": word})
    assert matches(["!=", "$k", "10"], {"k": word})


def test_values_may_be_numbers_but_not_truth_values_or_lists() -> None:
    assert matches([">=", "$vcpus", 16])
    assert matches(["<", "$vcpus", 16.5])
    for value in (True, None, [], {}):
        with pytest.raises(InvalidInput):
            matches(["==", "$vcpus", value])


@pytest.mark.parametrize("op", ["==", "!=", ">=", "<=", ">", "<"])
def test_a_host_without_the_key_matches_no_comparison(op: str) -> None:
    assert not matches([op, "$moon", "1"])
    assert not matches(["in", "$moon", "1", "2"])


def test_conditions_nest() -> None:
    fast = [">=", "$vcpus", "16"]
    assert matches(["and", fast, ["==", "$rack", "a7"]])
    assert not matches(["and", fast, ["==", "$rack", "a8"]])
    assert matches(["or", ["==", "$rack", "a8"], fast])
    assert not matches(["not", ["or", ["not", fast], ["and", fast, fast]]])
    assert matches(["in", "$rack", "a6", "a7"])
    assert matches(["in", "$room", "9", "10.0"])
    assert not matches(["not", ["in", "$rack", "a7", "a8"]])


def test_an_expression_names_its_keys() -> None:
    one = parse('["and", ["==", "$a", "1"], ["not", ["in", "$b", "1"]]]')
    assert one.keys == {"a", "b"}
    joined = both(one, parse('["==", "$c", "1"]'))
    assert joined.keys == {"a", "b", "c"}
    assert not joined.matches({"a": 1, "c": 1, "b": 1})
    assert joined.matches({"a": 1, "c": 1, "b": 2})
    assert both().matches({})


def test_an_expression_has_a_text_and_lists_parts_joined_by_and() -> None:
    tree = ["and", [">=", "$vcpus", 8], ["and", ["not", ["in", "$rack", "a", "b"]]]]
    found = parse(json.dumps(["and", *tree[1:], ["or", ["==", "$a", "1"], ["<", "$b", "2"]]]))
    assert [part.text for part in found.parts] == [
        "vcpus >= 8",
        "not (rack in a, b)",
        "a == 1 or b < 2",
    ]
    assert found.text == "vcpus >= 8 and not (rack in a, b) and (a == 1 or b < 2)"
    assert [sorted(part.keys) for part in found.parts] == [["vcpus"], ["rack"], ["a", "b"]]
    facts = {"vcpus": 8, "rack": "c", "a": 1}
    assert found.matches(facts) and all(part.matches(facts) for part in found.parts)
    assert [part.matches({"vcpus": 9}) for part in found.parts] == [True, True, False]
    assert parse("").parts == ()
    assert [part.text for part in both(found, parse('["==", "$c", "x"]')).parts][-1] == "c == x"


@pytest.mark.parametrize(
    "text",
    [
        "vcpus > 3",
        "{}",
        "null",
        "7",
        '"=="',
        "[[]]",
        '["=="]',
        '["==", "$a"]',
        '["==", "$a", "b", "c"]',
        '["==", "a", "b"]',
        '["==", "$", "b"]',
        '["==", ["$a"], "b"]',
        '["~=", "$a", "b"]',
        '["AND", ["==", "$a", "b"]]',
        '["and"]',
        '["or"]',
        '["not"]',
        '["not", ["==", "$a", "b"], ["==", "$a", "b"]]',
        '["in", "$a"]',
        '["and", "x"]',
        '["and", []]',
        '["==", "$a", "b"',
        "[" * 10_000,
    ],
)
def test_a_malformed_expression_is_refused_with_the_field_and_a_hint(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"Malformed requirements .* in hypervisor_properties"):
        parse(text, "hypervisor_properties")


def test_the_refusal_quotes_no_more_than_a_little() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse("x" * 16_000)
    assert len(refused.value.message) < 500


def nested(depth: int) -> str:
    return '["not", ' * depth + '["==", "$a", "b"]' + "]" * depth


def test_depth_is_capped() -> None:
    parse(nested(MAX_DEPTH))
    with pytest.raises(InvalidInput, match="nested deeper"):
        parse(nested(MAX_DEPTH + 1))


def test_the_number_of_conditions_is_capped() -> None:
    condition = ["==", "$a", "b"]
    parse(json.dumps(["and", *[condition] * (MAX_NODES - 1)]))
    with pytest.raises(InvalidInput, match="conditions"):
        parse(json.dumps(["and", *[condition] * MAX_NODES]))


def test_values_of_in_count_as_conditions() -> None:
    """Or one short request would cost a million comparisons per hundred hosts."""
    parse(json.dumps(["in", "$a", *["b"] * MAX_NODES]))
    with pytest.raises(InvalidInput, match="conditions"):
        parse(json.dumps(["in", "$a", *["b"] * (MAX_NODES + 1)]))


def test_size_is_capped() -> None:
    with pytest.raises(InvalidInput, match="longer than"):
        parse(f'["==", "$a", "{"b" * MAX_TEXT}"]')


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '["and",' * 7_000,
        '["in","$a",' + "1," * 25_000 + "1]",
        '["==","$a",' + "9" * 50_000 + "]",
        '["==","$a","' + "\\u0041" * 8_000 + '"]',
        " " * 50_000 + "x",
    ],
    ids=["brackets", "joins", "values", "digits", "escapes", "spaces"],
)
def test_hostile_input_is_refused_at_once(text: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidInput):
        parse(text)
    assert time.thread_time() - began < 0.05


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_WORDS = st.sampled_from(["and", "or", "not", "in", "==", ">", "$a", "$b", "1", "nan", 3])
_TREES = st.recursive(
    _WORDS | _LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=25,
)
_FACTS = st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=5) | st.integers())


def _answered(text: str, facts: dict[str, Any]) -> None:
    try:
        found = parse(text)
    except InvalidInput:
        return
    assert found.matches(facts) is all(part.matches(facts) for part in found.parts)


@settings(max_examples=300, deadline=None)
@given(_TREES, _FACTS)
def test_any_json_is_answered_or_refused(tree: Any, facts: dict[str, Any]) -> None:
    _answered(json.dumps(tree), facts)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), _FACTS)
def test_any_text_is_answered_or_refused(text: str, facts: dict[str, Any]) -> None:
    _answered(text, facts)
