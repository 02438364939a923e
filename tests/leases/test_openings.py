# SPDX-License-Identifier: Apache-2.0
"""When a request could be had, against trying every minute."""

import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.leases import openings as module
from holdfast.leases.openings import MINUTE_S, openings
from holdfast.leases.placement import Choice, HostRequest, choose
from holdfast.model.capacity import CapacitySnapshot, Hold, Line
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Window

M = MINUTE_S


def snapshot(*lines: list[tuple[float, float]]) -> CapacitySnapshot:
    """Hosts 1, 2, … and when they are held, in minutes."""
    hosts = {n: Host(n, f"u{n}", f"h{n}", f"h{n}", f"h{n}") for n in range(1, len(lines) + 1)}
    return CapacitySnapshot(
        hosts,
        {n: Line(Hold(a * M, b * M) for a, b in spans) for n, spans in enumerate(lines, start=1)},
    )


def request(low: int, high: int, minutes: float, since: float = 0.0) -> HostRequest:
    return HostRequest(low, high, since * M, (since + minutes) * M, now=since * M)


def found(
    wanted: HostRequest, house: CapacitySnapshot, until: float = 100, most: int = 9
) -> list[Any]:
    return [(at / M, amount) for at, amount in openings(wanted, until * M, house, most)]


def test_a_free_host_is_offered_at_once() -> None:
    assert found(request(1, 2, 10), snapshot([], [])) == [(0, 2)]


def test_each_gap_that_is_long_enough_is_offered_once() -> None:
    house = snapshot([(0, 10), (15, 20), (30, 40), (45, 60)])
    assert found(request(1, 1, 5), house) == [(10, 1), (20, 1), (40, 1), (60, 1)]
    assert found(request(1, 1, 10), house) == [(20, 1), (60, 1)]
    assert found(request(1, 1, 11), house) == [(60, 1)]
    assert found(request(1, 1, 10), house, until=59) == [(20, 1)]
    assert found(request(1, 1, 5), house, most=2) == [(10, 1), (20, 1)]


def test_enough_hosts_must_be_free_for_the_whole_length_at_once() -> None:
    house = snapshot([(0, 10), (20, 30)], [(12, 18)], [(0, 25)])
    assert found(request(2, 2, 6), house) == [(25, 2)]
    assert found(request(3, 3, 5), house) == [(30, 3)]


def test_more_hosts_are_worth_an_offer_when_all_or_twice_as_many_are_there() -> None:
    house = snapshot([], [(0, 5)], [(0, 10)], [(0, 15)], [(0, 20)])
    assert found(request(1, 5, 10), house) == [(0, 1), (5, 2), (15, 4), (20, 5)]


def test_starts_are_on_whole_minutes_but_for_the_one_asked_for() -> None:
    house = snapshot([(0, 10.5)])
    assert found(request(1, 1, 5), house) == [(11, 1)]
    assert found(request(1, 1, 5, since=10.75), house) == [(10.75, 1)]
    assert found(request(1, 1, 5), snapshot([(0, 10.5), (15.8, 20)])) == [(20, 1)]


def test_a_house_that_is_too_small_has_no_openings() -> None:
    assert found(request(3, 3, 5), snapshot([], [])) == []


_SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda one: (one[0], sum(one))),
    max_size=5,
)
_LINES = st.lists(_SPANS, max_size=6)


def by_brute_force(
    wanted: HostRequest, house: CapacitySnapshot, until: int
) -> list[tuple[float, int]]:
    """Every minute tried by the planner itself."""
    length, offers, best, was = wanted.end - wanted.start, [], 0, False
    for minute in range(int(wanted.start // M), until + 1):
        start = minute * M
        answer = choose(HostRequest(1, wanted.high, start, start + length), house)
        amount = len(answer.host_ids) if isinstance(answer, Choice) else 0
        enough = amount >= wanted.low
        if enough and (not was or (amount > best and amount >= min(wanted.high, 2 * best))):
            offers.append((float(minute), amount))
            best = max(best, amount)
        was = enough
    return offers


@pytest.mark.parametrize("few", [3, 1 << 15])
@settings(deadline=None, max_examples=80)
@given(
    lines=_LINES,
    low=st.integers(1, 3),
    more=st.integers(0, 3),
    minutes=st.integers(1, 12),
    since=st.integers(0, 20),
    until=st.integers(20, 70),
)
def test_openings_equal_the_result_of_trying_every_minute(
    few: int,
    lines: list[list[tuple[float, float]]],
    low: int,
    more: int,
    minutes: int,
    since: int,
    until: int,
) -> None:
    house, wanted = snapshot(*lines), request(low, low + more, minutes, since)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STRETCH", few)
        patch.setattr("holdfast.model.gaps.PORTION", few)
        patch.setattr("holdfast.model.capacity.FEW", few)
        assert found(wanted, house, until, 100) == by_brute_force(wanted, house, until)


@settings(deadline=None, max_examples=60)
@given(
    lines=st.lists(_SPANS, min_size=1, max_size=6),
    more=st.tuples(st.integers(1, 6), st.integers(0, 40), st.integers(1, 12)),
    low=st.integers(1, 3),
    minutes=st.integers(1, 12),
    few=st.integers(0, 1),
)
def test_earlier_queries_change_no_answer(
    lines: list[list[tuple[float, float]]],
    more: tuple[int, int, int],
    low: int,
    minutes: int,
    few: int,
) -> None:
    """In a large house the arrays are kept: booked or planned since then is seen all the same."""
    wanted = request(low, low + 2, minutes)
    house, number, begin = snapshot(*lines), more[0] % len(lines) + 1, more[1]
    booked = [*lines[number - 1], (begin, begin + more[2])]
    after = snapshot(*(booked if n == number else one for n, one in enumerate(lines, start=1)))
    want_before, want_after = (by_brute_force(wanted, one, 100) for one in (house, after))
    held = Window(*(datetime.fromtimestamp(m * M, UTC) for m in (begin, begin + more[2])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.model.capacity.FEW", few)
        patch.setattr("holdfast.model.capacity.MANY", few)
        assert found(wanted, house, most=100) == want_before
        assert found(wanted, house.with_holds([Allocation(number, held)]), most=100) == want_after
        assert found(wanted, house, most=100) == want_before
        lines_of(house)[number] = after.line(number)
        house.changes += 1
        assert found(wanted, house, most=100) == want_after
        fewer = house.excluding_hosts([number])
        assert found(wanted, fewer, most=100) == by_brute_force(wanted, fewer, 100)


def lines_of(house: CapacitySnapshot) -> dict[int, Line]:
    """As who keeps it fresh has them, and says so in `changes`."""
    assert isinstance(house.lines, dict)
    return house.lines


def test_a_start_a_century_ahead_is_found_without_counting_each_minute() -> None:
    century = 100 * 365 * 24 * 60
    house = snapshot([(0, 10), (16, century)], [(0, 11)])
    tracemalloc.start()
    try:
        assert found(request(2, 2, 5), house, until=2 * century) == [(11, 2), (century, 2)]
        assert found(request(1, 1, 6), house, until=2 * century) == [(10, 1)]
        assert tracemalloc.get_traced_memory()[1] < 8 * century / 10
    finally:
        tracemalloc.stop()


def test_only_a_query_for_openings_loads_numpy() -> None:
    code = (
        "import sys, holdfast.app.service, holdfast.app.demo, holdfast.leases.resources.host\n"
        "assert 'numpy' not in sys.modules\n"
        "import holdfast.leases.openings\n"
        "assert 'numpy' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
