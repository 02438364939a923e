# SPDX-License-Identifier: Apache-2.0
"""Lines of holds against the plain meaning of each question, minute by minute."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.capacity import (
    FOREVER,
    MOST_MATCHES,
    CapacitySnapshot,
    Hold,
    Line,
    peak,
    too_much,
)
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Window

START = datetime(2030, 1, 1, tzinfo=UTC)
END = 30

_TAKES = st.none() | st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB"]), st.integers(1, 4))


@st.composite
def _holds(draw: st.DrawFn, takes: st.SearchStrategy[Any] = _TAKES) -> list[Hold]:
    """Any holds at all, also ones that no booking would let through."""
    spans = draw(st.lists(st.tuples(st.integers(0, END), st.integers(1, 9)), max_size=8))
    return [Hold(float(a), float(a + length), draw(takes)) for a, length in spans]


@st.composite
def _whole(draw: st.DrawFn) -> list[Hold]:
    """Whole hosts, one after the other, some without a gap between them."""
    found, at = [], 0
    for pause, length in draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)))):
        found.append(Hold(float(at + pause), float(at + pause + length)))
        at += pause + length
    return found


_ANY = _holds() | _whole()
_WINDOW = st.tuples(st.integers(-2, END), st.integers(1, 9)).map(
    lambda one: (float(one[0]), float(one[0] + one[1]))
)


def touching(holds: list[Hold], start: float, end: float) -> list[Hold]:
    return sorted(
        (h for h in holds if h.start < end and h.end > start), key=lambda h: (h.start, h.end)
    )


def held(holds: list[Hold], moment: float) -> bool:
    return any(h.start <= moment < h.end for h in holds)


@settings(max_examples=150, deadline=None)
@given(_ANY, _WINDOW)
def test_a_line_answers_as_looking_at_every_hold_would(
    holds: list[Hold], window: tuple[float, float]
) -> None:
    line, inside = Line(holds), touching(holds, *window)
    assert len(line) == len(holds)
    assert sorted(map(str, line)) == sorted(map(str, holds))
    assert line.is_free(*window) == (not inside)
    assert sorted(map(str, line.within(*window))) == sorted(map(str, inside))
    assert line.busy_until(*window) == min((h.end for h in inside), default=None)
    assert (line.gap(*window) is None) == bool(inside)


@settings(max_examples=150, deadline=None)
@given(_ANY, _WINDOW)
def test_the_gap_around_a_free_window_reaches_to_the_next_hold_on_either_side(
    holds: list[Hold], window: tuple[float, float]
) -> None:
    start, end = window
    gap = Line(holds).gap(start, end)
    if gap is None:
        return
    assert Line(holds).around(start, end) == gap
    assert gap[0] == max((h.end for h in holds if h.end <= start), default=-FOREVER)
    assert gap[1] == min((h.start for h in holds if h.start >= end), default=FOREVER)


def at_most(holds: list[Hold], moments: range) -> dict[str, int]:
    """Minute by minute: all times are whole here."""
    most: dict[str, int] = {}
    for moment in moments:
        now: dict[str, int] = {}
        for hold in holds:
            if hold.start <= moment < hold.end:
                for name, amount in (hold.takes or {}).items():
                    now[name] = now.get(name, 0) + amount
        for name, amount in now.items():
            most[name] = max(most.get(name, 0), amount)
    return most


@settings(max_examples=150, deadline=None)
@given(_holds(), _WINDOW)
def test_the_peak_is_the_most_of_any_moment_of_the_window(
    holds: list[Hold], window: tuple[float, float]
) -> None:
    found = Line(holds).peak(*window)
    if any(h.takes is None for h in touching(holds, *window)):
        assert found is None
        return
    assert found == at_most(holds, range(int(window[0]), int(window[1])))


@settings(max_examples=150, deadline=None)
@given(_holds(), st.integers(0, 6), st.integers(0, 6))
def test_too_much_is_two_owners_or_more_than_there_is_at_some_moment(
    holds: list[Hold], vcpus: int, memory: int
) -> None:
    capacity = {"VCPU": vcpus, "MEMORY_MB": memory}
    minutes = range(END + 12)
    owners = any(
        len(now) > 1 and any(h.takes is None for h in now)
        for m in minutes
        if (now := [h for h in holds if h.start <= m < h.end])
    )
    parts = [h for h in holds if h.takes is not None]
    over = any(n > capacity[name] for name, n in at_most(parts, minutes).items())
    assert too_much(capacity, holds) is (owners or over)


def test_a_hold_makes_room_at_the_moment_of_the_end() -> None:
    assert peak([Hold(0, 5, {"VCPU": 3}), Hold(5, 9, {"VCPU": 2})]) == {"VCPU": 3}
    assert not too_much({"VCPU": 3}, [Hold(0, 5, {"VCPU": 3}), Hold(5, 9)])


# the snapshot


def allocation(host_id: int, begin: int, end: int) -> Allocation:
    return Allocation(
        host_id, Window(START + timedelta(minutes=begin), START + timedelta(minutes=end))
    )


def minutes(snapshot: CapacitySnapshot, host_id: int) -> list[tuple[float, float]]:
    zero = START.timestamp()
    return [((h.start - zero) / 60, (h.end - zero) / 60) for h in snapshot.line(host_id)]


def host(number: int) -> Host:
    return Host(number, f"u{number}", f"cmp-{number}", f"cmp-{number}", f"cmp-{number}")


def test_a_snapshot_has_planned_holds_and_lacks_released_holds() -> None:
    empty = CapacitySnapshot({1: host(1), 2: host(2)})
    first, second = allocation(1, 0, 10), allocation(1, 10, 20)
    booked = empty.with_holds([first, allocation(2, 0, 5)])
    assert minutes(booked, 1) == [(0, 10)]
    assert minutes(booked.without_holds([first]).with_holds([second]), 1) == [(10, 20)]
    assert minutes(booked.without_holds([first]), 1) == []
    assert minutes(booked.without_holds([second]), 1) == [(0, 10)]
    assert minutes(empty, 1) == []


def test_matching_hosts_are_remembered_until_facts_change() -> None:
    snapshot, asked = CapacitySnapshot({1: host(1), 2: host(2)}), []

    def test(one: Host) -> bool:
        asked.append(one.id)
        return one.id == 2

    for _ in range(2):
        assert [one.id for one in snapshot.matching("two", test)] == [2]
        assert [one.id for one in snapshot.with_holds([]).matching("two", test)] == [2]
    assert asked == [1, 2]
    for number in range(MOST_MATCHES):
        snapshot.matching(number, test)
    snapshot.matching("two", test)
    assert len(asked) == 2 * (MOST_MATCHES + 2)
