# SPDX-License-Identifier: Apache-2.0
"""The last hour of a host: it is read as it was written, grows at its end and never beyond an hour,
and what is no hour is refused."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.metrics import history
from holdfast.metrics.history import FIELDS, MOST_BYTES, MOST_LINES, NOTHING, POINTS, Hour, Line
from holdfast.model.errors import InvalidInput

#: On a machine that has much else to do, too.
CALM = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
FLOATS = st.floats(width=32)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@st.composite
def hours(draw: st.DrawFn, most: int = 20) -> Hour:
    begin, points = draw(st.integers(0, 60)), draw(st.integers(0, most))
    lines = []
    for kind, key in draw(st.sets(st.tuples(st.sampled_from(list(FIELDS)), st.sampled_from("ab")))):
        names = draw(st.sets(st.sampled_from(FIELDS[kind])))
        row = st.lists(FLOATS, min_size=points, max_size=points)
        values = {name: array("f", draw(row)) for name in sorted(names)}
        contracts = draw(st.dictionaries(WORDS, st.floats(-1e6, 1e6), max_size=2))
        lines.append(Line(kind, key, draw(WORDS), contracts=contracts, values=values))
    return Hour(begin, points, tuple(lines), draw(st.integers(0, 9)), draw(st.booleans()))


def shown(hour: Hour) -> Any:
    """What can be compared: no NaN is the same as another."""
    return history.plain(hour)


def points_of(hour: Hour) -> dict[tuple[str, str, str, int], float]:
    """All that is known, by whom, of what, and when."""
    return {
        (line.kind, line.id, name, hour.begin + place): value
        for line in hour.lines
        for name, row in line.values.items()
        for place, value in enumerate(row)
        if not math.isnan(value)
    }


@CALM
@given(hours())
def test_written_samples_are_read_back(hour: Hour) -> None:
    read = history.read(json.loads(json.dumps(shown(hour))))
    assert shown(read) == shown(hour)
    assert points_of(read) == points_of(hour)


@CALM
@given(hours(), st.integers(-5, 100))
def test_a_later_query_returns_only_newer_samples(hour: Hour, last: int) -> None:
    later = history.after(hour, last)
    assert points_of(later) == {k: v for k, v in points_of(hour).items() if k[3] > last}
    assert later.end == hour.end
    assert all(len(row) == later.points for line in later.lines for row in line.values.values())


@CALM
@given(hours(), hours())
def test_two_adjacent_spans_are_merged(old: Hour, new: Hour) -> None:
    both = history.merged(old, new)
    if not new.points:
        assert both is old
        return
    assert both.end == new.end
    known = points_of(both)
    written = {(*key, name) for key, name in _fields(new)}
    wanted = {
        key: value
        for key, value in points_of(old).items()
        if key[3] < new.end and not (key[3] >= new.begin and key[:3] in written)
    }
    assert known == wanted | points_of(new)
    assert all(len(row) == both.points for line in both.lines for row in line.values.values())
    assert both.simulated == new.simulated


def _fields(hour: Hour) -> list[tuple[tuple[str, str], str]]:
    return [((line.kind, line.id), name) for line in hour.lines for name in line.values]


@CALM
@given(hours(), hours(), hours())
def test_samples_in_several_pieces_equal_samples_in_a_single_piece(
    old: Hour, new: Hour, more: Hour
) -> None:
    """A piece twice is that piece."""
    once = history.merged(history.merged(old, new), more)
    twice = history.merged(once, more)
    assert points_of(twice) == points_of(once)


def line(begin: int, count: int, key: str = "g") -> Hour:
    row = array("f", [float(begin + place) for place in range(count)])
    return Hour(begin, count, (Line("guest", key, values={"util_ratio": row}),))


def test_samples_cover_at_most_an_hour() -> None:
    hour = NOTHING
    for first in range(0, 3 * POINTS, 7):
        hour = history.merged(hour, line(first, 7))
    assert hour.points == POINTS
    assert list(hour.lines[0].values["util_ratio"]) == [
        float(at) for at in range(hour.begin, hour.end)
    ]


def test_guests_unknown_in_the_last_hour_are_left_out() -> None:
    hour = history.merged(line(0, 5, "gone"), line(POINTS - 1, 1, "here"))
    assert {one.id for one in hour.lines} == {"gone", "here"}
    hour = history.merged(hour, line(POINTS + 5, 1, "here"))
    assert {one.id for one in hour.lines} == {"here"}


def test_samples_older_than_an_hour_are_not_merged_with_new_samples() -> None:
    assert shown(history.merged(line(0, 5), line(10 * POINTS, 2))) == shown(line(10 * POINTS, 2))


def test_after_a_clock_set_back_future_samples_are_dropped() -> None:
    assert shown(history.merged(line(5000, 9), line(100, 2))) == shown(line(100, 2))
    both = history.merged(line(100, 50), line(120, 2))
    assert (both.begin, both.end) == (100, 122)


def test_of_very_many_the_number_is_told() -> None:
    row = {"util_ratio": array("f", [1.0])}
    first = Hour(0, 1, tuple(Line("guest", f"a{n}", values=row) for n in range(MOST_LINES)))
    second = Hour(1, 1, (Line("guest", "b", values=row),), left_out=2)
    both = history.merged(first, second)
    assert (len(both.lines), both.left_out) == (MOST_LINES, 3)
    assert both.lines[0].id == "b"


def test_the_fullest_hour_fits_into_a_body() -> None:
    full = {name: history.unknown(POINTS) for name in FIELDS["disk"]}
    uuid = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
    lines = [Line("disk", f"{n}{uuid}", "name", uuid, values=full) for n in range(MOST_LINES)]
    assert len(json.dumps(history.plain(Hour(0, POINTS, tuple(lines))))) < MOST_BYTES


GOOD = {"kind": "guest", "id": "g", "values": {"util_ratio": "AACAPw=="}}


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "",
        {},
        {"begin": 1, "points": 1},
        {"begin": -1, "points": 1, "lines": []},
        {"begin": 1.5, "points": 1, "lines": []},
        {"begin": True, "points": 1, "lines": []},
        {"begin": 2**40, "points": 1, "lines": []},
        {"begin": 1, "points": POINTS + 1, "lines": []},
        {"begin": 1, "points": 1, "lines": {}},
        {"begin": 1, "points": 1, "lines": [None]},
        {"begin": 1, "points": 1, "lines": [GOOD] * 2},
        {"begin": 1, "points": 1, "lines": [GOOD] * (MOST_LINES + 1)},
        {"begin": 1, "points": 2, "lines": [GOOD]},
        {"begin": 1, "points": 1, "lines": [GOOD], "left_out": "3"},
        *(
            {"begin": 1, "points": 1, "lines": [{**GOOD, **bad}]}
            for bad in (
                {"kind": "planet"},
                {"kind": []},
                {"id": ""},
                {"id": 7},
                {"name": "x" * 256},
                {"project": None},
                {"values": []},
                {"values": {"colour": "AACAPw=="}},
                {"values": {"util_ratio": 1.0}},
                {"values": {"util_ratio": [1.0]}},
                {"values": {"util_ratio": "AACA"}},
                {"values": {"util_ratio": "!ACAPw=="}},
                {"values": {"util_ratio": "\u00e4"}},
                {"contracts": 5},
                {"contracts": {"tx_bps": "5"}},
                {"contracts": {"tx_bps": 1e300}},
                {"contracts": {"tx_bps": True}},
                {"contracts": {str(n): 1.0 for n in range(99)}},
            )
        ),
    ],
)  # fmt: skip
def test_a_malformed_hour_of_samples_is_refused(said: Any) -> None:
    with pytest.raises(InvalidInput, match="samples"):
        history.read(said)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@CALM
@given(
    st.fixed_dictionaries(
        {"begin": ANYTHING | st.integers(0, 9), "points": ANYTHING | st.integers(0, 2)},
        optional={"lines": st.lists(ANYTHING | st.fixed_dictionaries(
            {"kind": st.sampled_from(["guest", "host"]), "id": ANYTHING, "values": ANYTHING}))},
    )
)  # fmt: skip
def test_anything_else_is_an_hour_or_refused(said: Any) -> None:
    try:
        hour = history.read(said)
    except InvalidInput:
        return
    assert shown(history.read(history.plain(hour))) == shown(hour)
