# SPDX-License-Identifier: Apache-2.0
"""Which hosts a request gets, or the sentence that says why not."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.leases.placement import (
    FEW,
    MOST_BUSY,
    MOST_REMEMBERED,
    Choice,
    HostRequest,
    Refusal,
    choose,
    conditions,
)
from holdfast.model.capacity import CapacitySnapshot, Hold, Line
from holdfast.model.host import Host

START, END = 100.0, 200.0
RACK_A = conditions({"resource_properties": '["==", "$rack", "a"]'})


def host(host_id: int, rack: str = "a", **more: Any) -> Host:
    name = f"cmp-{host_id}"
    return Host(host_id, f"uuid-{host_id}", name, name, name, rack=rack, **more)


def snapshot(
    *lines: list[tuple[float, float]], racks: str = "", zones: str = ""
) -> CapacitySnapshot:
    """Hosts 1, 2, …, each with what is held of it."""
    hosts = {
        number: host(
            number,
            racks[number - 1] if racks else "a",
            zone=zones[number - 1] if zones else "",
        )
        for number in range(1, len(lines) + 1)
    }
    holds = {n: Line(Hold(*span) for span in spans) for n, spans in enumerate(lines, start=1)}
    return CapacitySnapshot(hosts, holds)


def hosts(*free: bool, racks: str = "", zones: str = "") -> CapacitySnapshot:
    return snapshot(*([] if one else [(START, END)] for one in free), racks=racks, zones=zones)


def request(low: int, high: int, **more: Any) -> HostRequest:
    return HostRequest(low, high, **{"start": START, "end": END, "now": 0.0, **more})


def test_as_many_as_can_be_up_to_the_most_wanted() -> None:
    assert choose(request(1, 2), hosts(True, True, True)) == Choice((1, 2))
    assert choose(request(1, 5), hosts(True, False, True)) == Choice((1, 3))


def test_too_few_are_refused_with_the_numbers() -> None:
    answer = choose(request(3, 3, conditions=RACK_A), hosts(True, False, True, racks="aab"))
    assert answer == Refusal(
        "3 asked for; of 3 hosts 2 match (rack == a removed 1)"
        " and 1 of those is free in the window",
        conditions=(("rack == a", 1),),
        matching=2,
        free=1,
    )
    assert answer.busy == (2,)


def test_nothing_at_all_is_refused_too() -> None:
    assert choose(request(1, 1), snapshot()) == Refusal(
        "1 asked for; of 0 hosts 0 match and 0 of those are free in the window"
    )


def test_every_condition_counts_the_hosts_left_by_earlier_conditions() -> None:
    wanted = conditions(
        {
            "region": "north",
            "vcpus": 8,
            "capabilities": {"capabilities:gpu": ">= 4"},
            "resource_properties": '["and", ["==", "$rack", "a"], ["in", "$id", "1", "2"]]',
        }
    )
    house = CapacitySnapshot(
        {
            1: host(1, "b", region="north", vcpus=8, capabilities={"gpu": "4"}),
            2: host(2, region="north", vcpus=8, capabilities={"gpu": "3"}),
            3: host(3, region="north", vcpus=4, capabilities={"gpu": "3"}),
            4: host(4, region="south", vcpus=4),
            5: host(5, region="north", vcpus=8, capabilities={"gpu": "8"}),
        }
    )
    answer = choose(request(1, 1, conditions=wanted), house)
    assert isinstance(answer, Refusal)
    assert answer.conditions == (
        ("region == north", 1),
        ("vcpus >= 8", 1),
        ("gpu >= 4", 1),
        ("rack == a", 1),
        ("id in 1, 2", 1),
    )
    assert "region == north removed 1, vcpus >= 8 removed 1, gpu >= 4 removed 1" in answer.sentence


@pytest.mark.parametrize(
    "spec",
    [
        {"resource_properties": '["==", "$moon", "1"]'},
        {"resource_properties": '["not", ["==", "$moon", "1"]]', "vcpus": 1},
        {"capabilities": {"capabilities:moon:base": ">= 1"}},
    ],
)
def test_a_property_no_host_has_is_named(spec: dict[str, Any]) -> None:
    answer = choose(request(1, 1, conditions=conditions(spec)), hosts(True, True))
    assert isinstance(answer, Refusal)
    assert answer.sentence.endswith("; no host has moon")


def test_conditions_with_equal_texts_are_not_confused() -> None:
    """What matches is remembered: one request must not get the hosts of another."""
    house = CapacitySnapshot({1: host(1, "a, b"), 2: host(2, "a")})
    one = conditions({"resource_properties": '["in", "$rack", "a, b"]'})
    two = conditions({"resource_properties": '["in", "$rack", "a", "b"]'})
    assert one[0].text == two[0].text
    assert choose(request(1, 1, conditions=one), house) == Choice((1,))
    assert choose(request(1, 1, conditions=two), house) == Choice((2,))


def test_blocking_hosts_are_named_in_the_order_of_release() -> None:
    house = snapshot([(50, 180)], [(120, 300)], [(90, 110), (150, 400)], [(0, 100)])
    answer = choose(request(2, 2), house)
    assert isinstance(answer, Refusal)
    assert answer.busy == (3, 1, 2)
    many = choose(request(1, 1), hosts(*[False] * (MOST_BUSY + 5)))
    assert isinstance(many, Refusal)
    assert len(many.busy) == MOST_BUSY


# which of them


def test_a_gap_that_is_filled_exactly_is_best() -> None:
    house = snapshot([], [(0, 90), (210, 300)], [(0, 100), (200, 300)], [(0, 100)])
    assert choose(request(1, 1), house) == Choice((3,))
    assert choose(request(3, 3), house) == Choice((3, 4, 2))


def test_past_time_is_no_fragment() -> None:
    house = snapshot([(90, 95)], [(0, 40)], [(0, 99)])
    assert choose(request(1, 1, now=0.0), house) == Choice((3,))
    assert choose(request(1, 1, now=START), house) == Choice((1,))


def test_the_caller_sets_the_order_among_fitting_hosts() -> None:
    assert choose(request(2, 2), hosts(True, True, True), lambda i: -i) == Choice((3, 2))


def test_rivals_do_not_all_want_the_host_that_fits_best() -> None:
    house = snapshot(*([(0, 100 - n)] for n in range(50)))
    chance = random.Random(1)
    chosen = {choose(request(1, 1), house, lambda _i: chance.random()) for _ in range(40)}
    assert len(chosen) > 15


def test_hosts_are_spread_over_as_many_racks_as_there_are() -> None:
    house = hosts(*[True] * 6, racks="aaabbc")
    assert choose(request(3, 3, spread="rack"), house) == Choice((1, 4, 6))
    assert choose(request(5, 5, spread="rack"), house) == Choice((1, 4, 6, 2, 5))
    zones = hosts(*[True] * 3, zones="xxy")
    assert choose(request(2, 2, spread="zone"), zones) == Choice((1, 3))


def test_spreading_counts_hosts_held_already() -> None:
    house = hosts(*[True] * 4, racks="aabb")
    assert choose(request(2, 2, spread="rack", keep=(1,)), house) == Choice((1, 3))


def test_hosts_are_packed_into_as_few_racks_as_can_be() -> None:
    house = hosts(*[True] * 8, racks="abbcccdd")
    assert choose(request(2, 2, pack="rack"), house) == Choice((2, 3))
    assert choose(request(3, 3, pack="rack"), house) == Choice((4, 5, 6))
    assert choose(request(4, 4, pack="rack"), house) == Choice((4, 5, 6, 1))
    assert choose(request(2, 2, pack="rack", keep=(7,)), house) == Choice((7, 8))
    assert choose(request(2, 2, pack="zone"), hosts(*[True] * 3, zones="xyx")) == Choice((1, 3))


# what is held already


def test_hosts_held_already_come_first() -> None:
    assert choose(request(1, 1, keep=(3,)), hosts(True, True, True)) == Choice((3,))
    assert choose(request(2, 2, keep=(3,)), hosts(True, True, True)) == Choice((3, 1))


def test_a_waiting_reservation_may_lose_hosts() -> None:
    assert choose(request(1, 2, keep=(1, 2)), hosts(False, True, True)) == Choice((2, 3))
    assert choose(request(1, 1, keep=(1, 2)), hosts(True, True)) == Choice((1,))
    assert choose(request(1, 1, keep=(9,)), hosts(True)) == Choice((1,))


def test_an_active_reservation_keeps_every_host_even_above_its_most() -> None:
    kept = request(1, 1, keep=(1, 2), must_keep=True)
    assert choose(kept, hosts(True, True, True)) == Choice((1, 2))


def test_an_active_reservation_that_would_lose_a_host_is_refused_by_name() -> None:
    kept = request(1, 2, keep=(1, 2), must_keep=True)
    answer = choose(kept, hosts(True, False, True))
    assert isinstance(answer, Refusal)
    assert "cmp-2 cannot stay" in answer.sentence
    assert answer.busy == (2,)
    gone = choose(request(1, 2, keep=(1, 9), must_keep=True), hosts(True))
    assert isinstance(gone, Refusal)
    assert "one of its hosts cannot stay" in gone.sentence


def test_an_active_reservation_may_gain_hosts() -> None:
    kept = request(1, 3, keep=(2,), must_keep=True)
    assert choose(kept, hosts(True, True, False, True)) == Choice((2, 1, 4))


# whatever is asked

_SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 8)).map(
        lambda one: (one[0] * 10.0, (one[0] + one[1]) * 10.0)
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=150)
@given(
    lines=st.lists(_SPANS, max_size=10),
    racks=st.text("ab", min_size=10, max_size=10),
    low=st.integers(1, 6),
    more=st.integers(0, 6),
    keep=st.lists(st.integers(1, 12), unique=True, max_size=4),
    must=st.booleans(),
    group=st.sampled_from([{}, {"spread": "rack"}, {"pack": "rack"}]),
    only_a=st.booleans(),
    seed=st.integers(0, 3),
)
def test_whatever_is_asked_a_choice_is_free_matching_distinct_and_enough(
    lines: list[list[tuple[float, float]]],
    racks: str,
    low: int,
    more: int,
    keep: list[int],
    must: bool,
    group: dict[str, str],
    only_a: bool,
    seed: int,
) -> None:
    house = snapshot(*lines, racks=racks)
    usable = {
        n
        for n, spans in enumerate(lines, start=1)
        if all(b <= START or a >= END for a, b in spans) and (racks[n - 1] == "a" or not only_a)
    }
    wanted = request(
        low,
        low + more,
        keep=tuple(keep),
        must_keep=must,
        conditions=RACK_A if only_a else (),
        **group,
    )
    order = [2.0, 5.0, 1.0, 9.0, 0.5, 4.0, 3.0, 8.0, 7.0, 6.0, 0.1, 0.2, 0.3]
    by = (lambda i: order[(i + seed) % 13]) if seed else float
    answer = choose(wanted, house, by)
    assert answer == choose(wanted, house, by)
    if isinstance(answer, Refusal):
        assert len(usable) < low or (must and not set(keep) <= usable)
        return
    chosen = answer.host_ids
    assert len(set(chosen)) == len(chosen) >= min(low + more, len(usable)) >= low
    assert set(chosen) <= usable
    assert len(chosen) <= max(low + more, len(keep) if must else 0)
    assert set(keep) & usable <= set(chosen) or len(set(keep) & usable) > low + more
    groups = {racks[i - 1] for i in chosen}
    if group.get("spread") and len(chosen) > 1 and not keep:
        assert groups == {racks[i - 1] for i in usable}
    if group.get("pack") and not keep:
        sizes = [sum(racks[i - 1] == rack for i in usable) for rack in "ab"]
        assert len(groups) == 1 or max(sizes) < len(chosen)


@pytest.mark.parametrize("order", [float, lambda i: i * 0.37 % 1.0])
def test_in_a_large_house_the_last_free_host_is_found(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.leases.placement.SOME", 50)
    count = FEW + 100
    for free in (1, 300, count):
        house = hosts(*(number == free for number in range(1, count + 1)))
        assert choose(request(1, 3), house, order) == Choice((free,))


@pytest.mark.parametrize("kept", [(), (1, 3)])
def test_of_many_hosts_as_many_are_had_as_are_free_and_not_one_more(
    kept: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.leases.placement.SOME", 50)
    house = hosts(*(number % 3 != 0 for number in range(FEW + 100)))
    free = sum(number % 3 != 0 for number in range(FEW + 100))
    chosen = choose(request(free, FEW, keep=kept), house)
    assert isinstance(chosen, Choice)
    assert len(set(chosen.host_ids)) == free
    refused = choose(request(free + 1, FEW + 1, keep=kept), house)
    assert isinstance(refused, Refusal)
    assert refused.free == free
    assert len(refused.busy) == MOST_BUSY


def test_hosts_with_different_facts_are_tested_separately() -> None:
    house = CapacitySnapshot({n: host(n, vcpus=n) for n in range(1, 2 * MOST_REMEMBERED)})
    properties = {"resource_properties": f'[">", "$vcpus", "{MOST_REMEMBERED}"]'}
    scoped = {"capabilities": {"capabilities:vcpus": f">= {MOST_REMEMBERED + 1}"}}
    for spec in (properties, scoped):
        for _again in range(2):
            chosen = choose(request(1, 500, conditions=conditions(spec)), house)
            assert chosen == Choice(tuple(range(MOST_REMEMBERED + 1, 2 * MOST_REMEMBERED)))


def test_ten_thousand_hosts_are_no_trouble() -> None:
    house = CapacitySnapshot({number: host(number) for number in range(10_000)})
    kept = tuple(range(0, 10_000, 10))
    answer = choose(request(1, 10_000, keep=kept, must_keep=True), house)
    assert isinstance(answer, Choice)
    assert len(set(answer.host_ids)) == 10_000
    looked: list[int] = []
    line = CapacitySnapshot.line

    class Counting(CapacitySnapshot):
        def line(self, host_id: int) -> Line:
            looked.append(host_id)
            return line(self, host_id)

    assert isinstance(choose(request(1, 1), Counting(house.hosts)), Choice)
    assert len(looked) < 200
