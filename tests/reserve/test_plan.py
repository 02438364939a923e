# SPDX-License-Identifier: Apache-2.0
"""Which hosts a request gets, or the sentence that says why not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.expression import parse
from holdfast.model.host import Host
from holdfast.reserve.plan import Choice, HostRequest, Refusal, choose

ANY = parse("")
RACK_A = parse('["==", "$rack", "a"]')


def host(host_id: int, rack: str = "a") -> Host:
    name = f"cmp-{host_id}"
    return Host(host_id, f"uuid-{host_id}", name, name, name, rack=rack)


def hosts(*free: bool) -> list[tuple[Host, bool]]:
    return [(host(number), is_free) for number, is_free in enumerate(free, start=1)]


def request(low: int, high: int, **more: Any) -> HostRequest:
    return HostRequest(low, high, **{"where": ANY, **more})


def test_as_many_as_can_be_up_to_the_most_wanted() -> None:
    assert choose(request(1, 2), hosts(True, True, True)) == Choice((1, 2))
    assert choose(request(1, 5), hosts(True, False, True)) == Choice((1, 3))


def test_too_few_are_refused_with_the_numbers() -> None:
    answer = choose(request(3, 3, where=RACK_A), [*hosts(True, False), (host(3, "b"), True)])
    assert answer == Refusal(
        "3 asked for; of 3 hosts 2 match and 1 of those are free in the window"
    )


def test_nothing_at_all_is_refused_too() -> None:
    assert choose(request(1, 1), []) == Refusal(
        "1 asked for; of 0 hosts 0 match and 0 of those are free in the window"
    )


def test_hosts_spoken_for_in_this_plan_are_not_chosen() -> None:
    assert choose(request(1, 3), hosts(True, True, True), taken={1, 3}) == Choice((2,))
    assert isinstance(choose(request(1, 1), hosts(True), taken={1}), Refusal)


def test_hosts_held_already_come_first() -> None:
    assert choose(request(1, 1, keep=(3,)), hosts(True, True, True)) == Choice((3,))
    assert choose(request(2, 2, keep=(3,)), hosts(True, True, True)) == Choice((3, 1))


def test_a_waiting_reservation_may_lose_hosts() -> None:
    assert choose(request(1, 2, keep=(1, 2)), hosts(False, True, True)) == Choice((2, 3))
    assert choose(request(1, 1, keep=(1, 2)), hosts(True, True)) == Choice((1,))


def test_an_active_reservation_keeps_every_host_even_above_its_most() -> None:
    kept = request(1, 1, keep=(1, 2), must_keep=True)
    assert choose(kept, hosts(True, True, True)) == Choice((1, 2))


def test_an_active_reservation_that_would_lose_a_host_is_refused_by_name() -> None:
    kept = request(1, 2, keep=(1, 2), must_keep=True)
    answer = choose(kept, hosts(True, False, True))
    assert isinstance(answer, Refusal)
    assert "cmp-2 cannot stay" in answer.sentence
    gone = choose(request(1, 2, keep=(1, 9), must_keep=True), hosts(True))
    assert isinstance(gone, Refusal)
    assert "one of its hosts cannot stay" in gone.sentence


def test_an_active_reservation_may_gain_hosts() -> None:
    kept = request(1, 3, keep=(2,), must_keep=True)
    assert choose(kept, hosts(True, True, False, True)) == Choice((2, 1, 4))


def test_the_order_is_the_callers() -> None:
    assert choose(request(2, 2), hosts(True, True, True), order=lambda i: -i) == Choice((3, 2))


@settings(deadline=None)
@given(
    free=st.lists(st.booleans(), max_size=12),
    low=st.integers(1, 6),
    more=st.integers(0, 6),
    taken=st.sets(st.integers(1, 12)),
    keep=st.lists(st.integers(1, 12), unique=True, max_size=4),
    must=st.booleans(),
)
def test_whatever_is_asked_a_choice_is_free_distinct_and_enough(
    free: list[bool], low: int, more: int, taken: set[int], keep: list[int], must: bool
) -> None:
    answer = choose(request(low, low + more, keep=tuple(keep), must_keep=must), hosts(*free), taken)
    usable = {n for n, is_free in enumerate(free, start=1) if is_free} - taken
    if isinstance(answer, Refusal):
        assert len(usable) < low or (must and not set(keep) <= usable)
        return
    chosen = answer.host_ids
    assert len(set(chosen)) == len(chosen) >= low
    assert set(chosen) <= usable
    assert len(chosen) <= max(low + more, len(keep) if must else 0)
    if must:
        assert set(keep) <= set(chosen)


@pytest.mark.parametrize("count", [1, 10_000])
def test_ten_thousand_hosts_are_no_trouble(count: int) -> None:
    many = [(host(number), True) for number in range(count)]
    kept = tuple(range(0, count, 10))
    answer = choose(request(1, count, keep=kept, must_keep=True), many)
    assert isinstance(answer, Choice)
    assert len(answer.host_ids) == count
