# SPDX-License-Identifier: Apache-2.0
"""Where slots go: capacity at the peak, affinity, packing, what an update keeps, and why not."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.leases.placement import Refusal, conditions
from holdfast.leases.resources.instance_placement import (
    Slot,
    SlotsRequest,
    capacity,
    choose,
    openings,
)
from holdfast.model.capacity import CapacitySnapshot, Hold, Line, hold_of, too_much
from holdfast.model.host import Host, Inventory
from holdfast.model.lease import Allocation, Window

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE = Slot({"VCPU": 1, "MEMORY_MB": 512})


def window(begin: float, end: float) -> Window:
    return Window(NOON + begin * HOUR, NOON + end * HOUR)


def host(number: int, vcpus: int = 4, **more: object) -> Host:
    made = Host(number, str(number), f"cmp{number}", f"cmp{number}", f"cmp{number}")
    return replace(made, vcpus=vcpus, memory_mb=65536, local_gb=100, **more)  # type: ignore[arg-type]


def part(host_id: int, begin: float, end: float, slots: int) -> Allocation:
    takes = {"VCPU": slots, "MEMORY_MB": 512 * slots}
    return Allocation(host_id, window(begin, end), slots, takes)


def whole(host_id: int, begin: float, end: float) -> Allocation:
    return Allocation(host_id, window(begin, end))


def snapshot(hosts: Sequence[Host], *held: Allocation) -> CapacitySnapshot:
    lines: dict[int, list[Hold]] = {}
    for allocation in held:
        lines.setdefault(allocation.host_id or 0, []).append(hold_of(allocation))
    return CapacitySnapshot(
        {one.id: one for one in hosts}, {i: Line(some) for i, some in lines.items()}
    )


def ask(
    amount: int, affinity: bool | None = None, slot: Slot = ONE, **more: object
) -> SlotsRequest:
    made = SlotsRequest(slot, amount, affinity, window(0, 1))
    return replace(made, **more)  # type: ignore[arg-type]


def refused(request: SlotsRequest, of: CapacitySnapshot) -> Refusal:
    answer = choose(request, of)
    assert isinstance(answer, Refusal)
    return answer


# capacity


def test_a_host_takes_no_more_slots_than_it_has_room_for() -> None:
    assert choose(ask(4), snapshot([host(1)])) == {1: 4}
    answer = refused(ask(5), snapshot([host(1)]))
    assert answer.sentence == (
        "5 slots of 512 MEMORY_MB, 1 VCPU asked for; of 1 hosts 1 match and have room for 4"
        " in the window"
    )
    assert (answer.matching, answer.free, answer.busy) == (1, 4, ())


def test_every_slot_of_others_counts_each_time() -> None:
    """Where Blazar sold nine slots of a host with four."""
    assert choose(ask(1), snapshot([host(1)], part(1, 0, 1, 3))) == {1: 1}
    answer = refused(ask(2), snapshot([host(1)], part(1, 0, 1, 3)))
    assert answer.busy == (1,)
    assert isinstance(
        choose(ask(1), snapshot([host(1)], part(1, 0, 1, 3), part(1, 0, 1, 1))), Refusal
    )


def test_the_peak_counts_and_not_the_sum() -> None:
    before, after = part(1, -1, 0.5, 3), part(1, 0.5, 2, 3)
    assert choose(ask(1), snapshot([host(1)], before, after)) == {1: 1}
    assert isinstance(choose(ask(2), snapshot([host(1)], before, after)), Refusal)


def test_a_hold_that_ends_as_the_window_begins_is_not_in_the_way() -> None:
    held = part(1, -1, 0, 4), part(1, 1, 2, 4), whole(1, 2, 3)
    assert choose(ask(4), snapshot([host(1)], *held)) == {1: 4}


def test_a_host_held_as_a_whole_is_out_of_the_question() -> None:
    assert isinstance(choose(ask(1), snapshot([host(1)], whole(1, 0.5, 0.6))), Refusal)


def test_ratios_and_reserved_amounts_make_the_capacity() -> None:
    has = {
        "VCPU": Inventory(4, reserved=1, ratio=2.0),
        "MEMORY_MB": Inventory(2048, reserved=512, ratio=1.0),
    }
    larger = host(1, inventories=has)
    assert choose(ask(3), snapshot([larger])) == {1: 3}
    assert isinstance(choose(ask(4), snapshot([larger])), Refusal)
    bigger = Slot({"VCPU": 2, "MEMORY_MB": 1})
    assert choose(ask(3, slot=bigger), snapshot([larger])) == {1: 3}
    assert isinstance(choose(ask(4, slot=bigger), snapshot([larger])), Refusal)


def test_a_slot_is_no_larger_than_the_largest_server_of_the_host() -> None:
    limited = host(1, inventories={"VCPU": Inventory(16, most=4), "MEMORY_MB": Inventory(65536)})
    assert choose(ask(8, slot=Slot({"VCPU": 2})), snapshot([limited])) == {1: 8}
    answer = refused(ask(1, slot=Slot({"VCPU": 5})), snapshot([limited]))
    assert answer.conditions == (("has 5 VCPU", 1),)


def test_a_class_that_the_host_does_not_have_cannot_be_had() -> None:
    assert isinstance(choose(ask(1, slot=Slot({"PCPU": 1})), snapshot([host(1)])), Refusal)
    pinned = host(2, inventories={"PCPU": Inventory(2)})
    assert choose(ask(2, slot=Slot({"PCPU": 1})), snapshot([host(1), pinned])) == {2: 2}


# affinity


def test_affinity_puts_all_slots_on_the_same_host() -> None:
    hosts = snapshot([host(1, 2), host(2, 2), host(3, 8)])
    assert choose(ask(4, True), hosts) == {3: 4}
    answer = refused(ask(9, True), hosts)
    assert "on one host" in answer.sentence
    assert answer.conditions == (("has 4608 MEMORY_MB, 9 VCPU, 512 MEMORY_MB, 1 VCPU of them for"
                                  " one server", 3),)  # fmt: skip


def test_apart_means_as_many_hosts_as_slots() -> None:
    hosts = snapshot([host(n) for n in (1, 2, 3)])
    assert choose(ask(3, False), hosts) == {1: 1, 2: 1, 3: 1}
    assert "on hosts of their own" in refused(ask(4, False), hosts).sentence


def test_together_takes_the_host_where_the_least_is_left() -> None:
    assert choose(ask(3, True), snapshot([host(1, 16), host(2, 3), host(3, 8)])) == {2: 3}


# packing


def test_slots_go_to_hosts_that_carry_slots_already() -> None:
    held = part(2, 0, 1, 1)
    assert choose(ask(2), snapshot([host(1), host(2), host(3)], held)) == {2: 2}
    assert choose(ask(4), snapshot([host(1), host(2), host(3)], held)) == {2: 3, 1: 1}
    assert choose(ask(2, False), snapshot([host(1), host(2), host(3)], held)) == {2: 1, 1: 1}


def test_slots_go_to_the_tightest_host() -> None:
    held = part(1, 0, 1, 1), part(2, 0, 1, 2), part(3, 0, 1, 1)
    assert choose(ask(2), snapshot([host(1), host(2), host(3)], *held)) == {2: 2}
    assert choose(ask(3), snapshot([host(1), host(2), host(3)], *held)) == {1: 3}


def test_the_first_room_behind_thousands_of_full_hosts_is_found_without_asking_them_all() -> None:
    hosts = [host(n) for n in range(1, 10_001)]
    looked: list[int] = []

    class Counting(Line):
        def peak(self, start: float, end: float) -> Mapping[str, int] | None:
            looked.append(1)
            return super().peak(start, end)

    lines = {n: Counting([hold_of(part(n, 0, 1, 4))]) for n in range(1, 9_001)}
    full = CapacitySnapshot({one.id: one for one in hosts}, lines)
    assert choose(ask(3), full) == {9001: 3}
    assert len(looked) < 100


def test_a_booking_among_ten_thousand_hosts_takes_a_few_milliseconds() -> None:
    """One of 10,000 with 100 holds each, the first half of them full; 5 times what is measured."""
    holds = [part(1, n, n + 3, 1) for n in range(-50, 50)]
    some = Line(hold_of(hold) for hold in holds)
    full = Line(hold_of(one) for one in (*holds, *holds))
    hosts = {n: host(n, 6) for n in range(1, 10_001)}
    busy = CapacitySnapshot(hosts, {n: full if n < 5000 else some for n in hosts})
    choose(ask(2), busy)  # which hosts match is remembered
    began = time.thread_time()
    for _ in range(10):
        assert choose(ask(2), busy) == {5000: 2}
    assert (time.thread_time() - began) / 10 < 0.05


# conditions


def test_properties_zone_and_capabilities_decide_and_are_named() -> None:
    asked = {
        "resource_properties": '["==", "$gpu", "True"]',
        "availability_zone": "north",
    }
    slot = replace(ONE, where=conditions(asked))
    plain, gpu = host(1, zone="north"), host(2, zone="north", capabilities={"gpu": "True"})
    south = host(3, zone="south", capabilities={"gpu": "True"})
    hosts = snapshot([plain, gpu, south])
    assert choose(ask(1, slot=slot), hosts) == {2: 1}
    answer = refused(ask(5, slot=slot), hosts)
    assert [count for _text, count in answer.conditions] == [1, 1, 0]
    assert (answer.matching, answer.free) == (1, 4)


# updates


def kept(*held: Allocation, active: bool = False) -> dict[str, object]:
    return {"kept": held, "must_keep": active}


def test_a_pending_reservation_keeps_hosts_if_possible() -> None:
    mine = part(3, 0, 1, 2)
    hosts = snapshot([host(1), host(2), host(3)])
    assert choose(ask(2, **kept(mine)), hosts) == {3: 2}
    assert choose(ask(3, **kept(mine)), hosts) == {3: 3}
    assert choose(ask(1, **kept(mine)), hosts) == {3: 1}
    assert choose(ask(2, True, **kept(mine)), hosts) == {3: 2}
    assert choose(ask(2, False, **kept(mine)), hosts) == {3: 1, 1: 1}
    taken = snapshot([host(1), host(2), host(3)], whole(3, 0, 1))
    assert choose(ask(2, **kept(mine)), taken) == {1: 2}


def test_an_active_reservation_never_moves() -> None:
    mine = part(3, 0, 0.5, 2)
    hosts = [host(1), host(2), host(3)]
    assert choose(ask(2, **kept(mine, active=True)), snapshot(hosts)) == {3: 2}
    crowded = snapshot(hosts, part(3, 0, 1, 3))
    answer = refused(ask(2, **kept(mine, active=True)), crowded)
    assert answer.sentence == "the lease is active and cmp3 cannot stay with it in that window"
    assert answer.busy == (3,)


def test_an_active_reservation_grows_beside_the_present_slots() -> None:
    mine = part(3, 0, 1, 2)
    hosts = [host(1), host(2), host(3)]
    assert choose(ask(3, **kept(mine, active=True)), snapshot(hosts)) == {3: 3}
    assert choose(ask(6, **kept(mine, active=True)), snapshot(hosts)) == {3: 4, 1: 2}
    crowded = snapshot(hosts, part(3, 0, 1, 2))
    assert choose(ask(3, **kept(mine, active=True)), crowded) == {3: 2, 1: 1}
    assert choose(ask(4, True, **kept(mine, active=True)), snapshot(hosts)) == {3: 4}
    assert isinstance(choose(ask(3, True, **kept(mine, active=True)), crowded), Refusal)
    single = part(3, 0, 1, 1)
    assert choose(ask(2, False, **kept(single, active=True)), snapshot(hosts)) == {3: 1, 1: 1}


def test_an_active_reservation_keeps_an_unreservable_host_for_the_held_time() -> None:
    mine = part(3, 0, 1, 2)
    assert choose(ask(3, **kept(mine, active=True)), snapshot([host(1)])) == {3: 2, 1: 1}
    longer = ask(2, held=window(0, 2), **kept(mine, active=True))
    assert isinstance(choose(longer, snapshot([host(1)])), Refusal)


def test_allocations_say_what_all_slots_of_a_host_take_together() -> None:
    request = ask(5)
    made = request.allocations({1: 4, 2: 1})
    assert made == (part(1, 0, 1, 4), part(2, 0, 1, 1))


# openings


def found(
    request: SlotsRequest, of: CapacitySnapshot, until: float = 100, most: int = 5
) -> list[Window]:
    return list(islice(openings(request, of, NOON + until * HOUR), most))


def test_a_fitting_request_is_offered_at_once() -> None:
    assert found(ask(2), snapshot([host(1)])) == [window(0, 1)]


def test_the_earliest_window_begins_when_enough_was_given_back() -> None:
    held = part(1, -1, 2, 3), part(2, -1, 3, 3), part(1, 5, 6, 4)
    hosts = snapshot([host(1), host(2)], *held)
    assert found(ask(5), hosts) == [window(2, 3), window(6, 7)]
    assert found(ask(8), hosts) == [window(3, 4), window(6, 7)]
    assert found(ask(4, True), hosts) == [window(2, 3)]
    assert found(ask(9), hosts) == []
    assert found(ask(5), hosts, until=1) == []


def test_windows_begin_on_whole_minutes() -> None:
    held = part(1, -1, 0.51, 4)
    (first,) = found(ask(1), snapshot([host(1)], held))
    assert first.start == NOON + timedelta(minutes=31)
    assert first.end - first.start == HOUR


# whatever comes


@st.composite
def worlds(draw: st.DrawFn) -> CapacitySnapshot:
    """Hosts with slots and whole holds that can be."""
    hosts = [host(n, draw(st.integers(1, 6))) for n in range(1, draw(st.integers(1, 5)) + 1)]
    held: list[Allocation] = []
    for one in hosts:
        for _ in range(draw(st.integers(0, 4))):
            begin = draw(st.integers(-4, 6)) / 2
            slots = draw(st.integers(0, 4))
            end = begin + draw(st.integers(1, 4)) / 2
            more = part(one.id, begin, end, slots) if slots else whole(one.id, begin, end)
            mine = [hold_of(a) for a in (*held, more) if a.host_id == one.id]
            if not too_much(capacity(one), mine):
                held.append(more)
    return snapshot(hosts, *held)


def fits(of: CapacitySnapshot, host_id: int, slots: int) -> bool:
    mine = [*of.line(host_id), hold_of(part(host_id, 0, 1, slots))]
    return not too_much(capacity(of.hosts[host_id]), mine)


@settings(deadline=None)
@given(worlds(), st.integers(1, 8), st.sampled_from([None, True, False]), st.floats(0, 1))
def test_the_plan_finds_existing_room_and_never_takes_more(
    of: CapacitySnapshot, amount: int, affinity: bool | None, luck: float
) -> None:
    order = float if luck < 0.5 else (lambda host_id: (host_id * luck) % 1.0)
    chosen = choose(ask(amount, affinity, order=order), of)
    room = {i: max((n for n in range(1, 9) if fits(of, i, n)), default=0) for i in of.hosts}
    possible = {
        None: sum(room.values()) >= amount,
        True: max(room.values()) >= amount,
        False: sum(1 for n in room.values() if n) >= amount,
    }[affinity]
    assert isinstance(chosen, Refusal) is not possible
    if isinstance(chosen, Refusal):
        return
    assert sum(chosen.values()) == amount
    assert all(0 < slots <= room[i] for i, slots in chosen.items())
    if affinity is not None:
        assert len(chosen) == (1 if affinity else amount)


@settings(deadline=None)
@given(worlds(), st.integers(1, 8), st.sampled_from([None, True, False]))
def test_the_first_opening_is_the_first_moment_at_which_it_fits(
    of: CapacitySnapshot, amount: int, affinity: bool | None
) -> None:
    request = ask(amount, affinity)
    first = next((w.start for w in openings(request, of, NOON + 9 * HOUR)), None)
    moments = [window(n / 2, n / 2 + 1) for n in range(19)]
    tried = (
        moment.start
        for moment in moments
        if not isinstance(choose(replace(request, held=moment), of), Refusal)
    )
    assert first == next(tried, None)


@pytest.mark.parametrize("affinity", [None, True, False])
def test_of_no_hosts_at_all_none_is_chosen(affinity: bool | None) -> None:
    assert refused(ask(1, affinity), snapshot([])).matching == 0
