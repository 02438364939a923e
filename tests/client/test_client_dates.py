# SPDX-License-Identifier: Apache-2.0
"""What people type, turned into what the wire wants: dates and conditions."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.client import dates, syntax
from holdfast.model import expression

NOON = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "wire"),
    [
        ("now", "now"),
        ("+2h", "2027-01-31 14:00"),
        ("+30m", "2027-01-31 12:30"),
        ("+45s", "2027-01-31 12:00:45"),
        ("+1d", "2027-02-01 12:00"),
        ("+1w", "2027-02-07 12:00"),
        ("today 18:00", "2027-01-31 18:00"),
        ("Tomorrow", "2027-02-01 00:00"),
        ("tomorrow 9:00", "2027-02-01 09:00"),
        ("2027-02-03", "2027-02-03 00:00"),
        ("2027-02-03 04:05", "2027-02-03 04:05"),
        ("2027-02-03 04:05:06", "2027-02-03 04:05:06"),
        ("2027-02-03T04:05:00Z", "2027-02-03 04:05"),
        ("2027-02-03T04:05+01:00", "2027-02-03 03:05"),
    ],
)
def test_a_date_reaches_the_wire_in_utc(
    monkeypatch: pytest.MonkeyPatch, typed: str, wire: str
) -> None:
    monkeypatch.setattr(dates, "now", lambda: NOON)
    assert dates.parse(typed).on_wire(NOON) == wire


@pytest.mark.parametrize(
    "typed", ["", "yesterday", "tomorrow 25:00", "+", "+2", "+2y", "2h", "2027-13-01 00:00"]
)
def test_an_invalid_date_is_refused_with_examples(typed: str) -> None:
    with pytest.raises(ValueError, match=r"is not a date: write now, \+2h"):
        dates.parse(typed)


def test_a_span_has_a_unit() -> None:
    assert dates.span("90m") == timedelta(minutes=90)
    with pytest.raises(ValueError, match="write 45s, 30m, 2h, 1d or 1w"):
        dates.span("90")


def test_a_date_beyond_the_calendar_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="999999 days from 9000-01-01 00:00 is no date"):
        dates.parse("+999999d").at(datetime(9000, 1, 1, tzinfo=UTC))


def test_a_date_of_a_lease_is_utc() -> None:
    assert dates.from_wire("2027-01-31T12:00:00.000000") == NOON


@pytest.mark.parametrize(
    ("typed", "tree"),
    [
        ("vcpus>=8", [">=", "$vcpus", "8"]),
        ("vcpus < 8", ["<", "$vcpus", "8"]),
        ("gpu=True", ["==", "$gpu", "True"]),
        ("rack!=a", ["!=", "$rack", "a"]),
        ("$rack == a b", ["==", "$rack", "a b"]),
        ("rack in a, b", ["in", "$rack", "a", "b"]),
        ("index=3", ["==", "$index", "3"]),
    ],
)
def test_a_condition_becomes_an_expression_the_server_reads(typed: str, tree: list[str]) -> None:
    assert json.loads(syntax.expression([syntax.check(typed)])) == tree
    expression.parse(syntax.expression([typed]))


def test_conditions_are_joined_by_and_and_json_passes_unchanged() -> None:
    assert syntax.expression([]) == ""
    text = '[">=",  "$vcpus", "8"]'
    assert syntax.expression([text]) == text
    assert json.loads(syntax.expression([text, "gpu=1"])) == [
        "and",
        [">=", "$vcpus", "8"],
        ["==", "$gpu", "1"],
    ]


@pytest.mark.parametrize(
    "typed", ["", "gpu", ">=8", "vcpus>=", "rack in ,", "[1", '["xor", "$a", "b"]']
)
def test_an_invalid_condition_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"is not|Malformed"):
        syntax.check(typed)
