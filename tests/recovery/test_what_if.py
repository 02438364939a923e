# SPDX-License-Identifier: Apache-2.0
"""What would follow if hosts died: of their servers nothing is promised that recovery would not do,
and what is left is told in hosts, vCPUs and memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.model.host import Size
from holdfast.model.segment import AUTO, RESERVED_HOST, Segment, SegmentHost
from holdfast.ports.recovery import Switch
from holdfast.recovery.what_if import (
    RACK,
    After,
    Holder,
    Host,
    Inputs,
    RecoveryPreview,
    left,
    preview,
    sums,
)

NOW = datetime(2026, 11, 17, 3, 20, 5, tzinfo=UTC)
NORTH = Segment(1, "n-uuid", "north", AUTO, "compute")
STORM = Switch("", "ann", "storm", None)
BLUE = Holder("l-1", "blue")


def host(number: int, **about: Any) -> Host:
    made = Host(number, f"cmp-{number}", rack="a", segment="north", guests=2)
    return replace(made, **about)


def reserved(number: int, *held: Holder, **about: Any) -> Host:
    return host(number, enrolled=True, reservable=True, held=held, **about)


def inputs(hosts: Sequence[Host], segment: Segment = NORTH, **about: Any) -> Inputs:
    members = {
        one.id: SegmentHost(
            one.id, f"m-{one.id}", one.name, one.id, "KVM", "", one.spare, one.maintenance, segment
        )
        for one in hosts
        if one.segment
    }
    return Inputs(NOW, hosts, members, **about)


NOBODY: Mapping[str, Collection[str]] = {}


def fate(
    of: Inputs, *dead: str, replacements: Mapping[str, Collection[str]] = NOBODY
) -> RecoveryPreview:
    return preview(of, dead or ["cmp-1"], replacements)[0]


FLEET = [host(number, rack=f"r{number}") for number in (1, 2, 3)]


def test_servers_of_a_host_whose_recovery_nothing_holds_move() -> None:
    assert fate(inputs(FLEET)) == RecoveryPreview("cmp-1", 2, "north")
    assert preview(inputs([host(1, guests=0), host(2)]), ["cmp-1"], {}) == []


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"pauses": {"": STORM}}, "recovery is paused by ann: storm"),
        ({"pauses": {"n-uuid": STORM}}, "recovery is paused by ann: storm"),
        ({"pauses": {"other": STORM}}, ""),
        ({"maintenance_windows": [({"host": "cmp-1"}, STORM)]}, "maintenance window by ann: storm"),
        (
            {"maintenance_windows": [({"segment": "n-uuid"}, STORM)]},
            "maintenance window by ann: storm",
        ),
        ({"maintenance_windows": [({"host": "cmp-2"}, STORM)]}, ""),
        ({"maintenance_windows": [({"kind": "guest"}, STORM)]}, ""),
        ({"segment": replace(NORTH, enabled=False)}, "segment north is disabled"),
        ({"dry_run": True}, "[recovery] dry_run is on"),
    ],
)
def test_a_switch_against_recovery_is_named(about: dict[str, Any], why: str) -> None:
    said = fate(inputs(FLEET, **about)).why
    assert said.startswith(why) and bool(said) == bool(why)


def test_a_host_without_segment_or_on_maintenance_is_left_as_it_is() -> None:
    assert fate(inputs([host(1, segment=""), host(2)])).why == "it is in no segment"
    marked = [host(1, maintenance=True), host(2, rack="b")]
    assert fate(inputs(marked)).why == "cmp-1 is on maintenance"


def test_a_mass_failure_is_held_unless_an_operator_approved() -> None:
    rack = [host(number) for number in range(1, 5)] + [host(9, rack="b")]
    dead = [f"cmp-{number}" for number in range(1, 5)]
    held = fate(inputs(rack), *dead).why
    assert held.startswith("4 of 4 hosts in a are down: too many at once")
    assert "holdfast recovery approve --domain a" in held
    for domain in ("", "a"):
        assert fate(inputs(rack, approved=[domain]), *dead).why == ""
    assert fate(inputs(rack, approved=["b"]), *dead).why
    few = [host(number) for number in range(1, 12)] + [host(99, rack="b")]
    slow = fate(inputs(few), "cmp-1", "cmp-2", "cmp-3")
    assert (slow.why, slow.how) == ("", "3 of 11 hosts in a are down: one host after the other")


def test_a_host_already_down_takes_no_server_and_counts_as_failed() -> None:
    assert fate(inputs([host(1), host(2, state="down")])).why == (
        "no other host is up that would take them"
    )
    rack = [host(1), host(2, state="down"), host(3, state="down"), host(9, rack="b")]
    assert "3 of 3 hosts in a are down" in fate(inputs(rack)).why


def test_ordinary_servers_find_no_place_on_hosts_that_are_enrolled() -> None:
    assert fate(inputs([host(1), reserved(2)])).why == "no other host is up that would take them"
    assert fate(inputs([reserved(1), reserved(2)])).why == ""
    assert fate(inputs([reserved(1), reserved(2, BLUE)])).why
    assert fate(inputs([reserved(1), reserved(2)]), replacements={"l-1": ["cmp-2"]}).why


def test_a_segment_with_reserved_hosts_needs_a_spare() -> None:
    spares = replace(NORTH, recovery_method=RESERVED_HOST)
    assert fate(inputs([host(1), host(2)], spares)).why == "no spare host of segment north is left"
    assert fate(inputs([host(1), host(2, spare=True)], spares)).why == ""
    gone = [host(1), host(2, spare=True), host(3)]
    assert fate(inputs(gone, spares), "cmp-1", "cmp-2").why


def test_servers_of_a_reservation_wait_for_a_host_of_it() -> None:
    alone = [reserved(1, BLUE), reserved(2)]
    assert fate(inputs(alone)).why == "its lease blue has no other host"
    assert fate(inputs(alone), replacements={"l-1": ["cmp-2"]}).why == ""
    assert (
        "repair is off" in fate(inputs(alone, repairs=False), replacements={"l-1": ["cmp-2"]}).why
    )
    assert fate(inputs([reserved(1, BLUE), reserved(2, BLUE)])).why == ""
    rack = [reserved(number, BLUE) for number in (1, 2, 3)] + [host(4), host(5), host(6)]
    rack += [reserved(9, rack="b")]
    waits = fate(inputs(rack), "cmp-1", "cmp-2", "cmp-3", replacements={"l-1": ["cmp-9"]})
    assert waits.why == "its lease blue gets no other host before an operator approves"


def test_servers_are_summed_up_and_uncounted_hosts_are_named() -> None:
    some = [
        RecoveryPreview("a", 3),
        RecoveryPreview("b", 2, why="x"),
        RecoveryPreview("c", None),
        RecoveryPreview("d", None, why="x"),
    ]
    found = sums(some)
    assert (found.move, found.stay, found.uncounted) == (3, 2, 2)


def test_the_sentence_equals_the_text_of_the_page() -> None:
    assert RecoveryPreview("a", 1, "north", how="slowly").sentence == (
        "1 server would be started elsewhere by recovery (segment north); slowly"
    )
    assert RecoveryPreview("a", 2, why="no room").sentence == "2 servers would stay down: no room"
    assert RecoveryPreview("a", None, why="x").sentence == "its servers would stay down: x"


def test_the_capacity_left_counts_only_reservable_hosts() -> None:
    hosts = [
        reserved(1, BLUE),
        reserved(2),
        reserved(3),
        host(4, enrolled=True),
        host(5),
        host(6, state="down"),
    ]
    sizes = {one.id: Size(8, 1024, 10) for one in hosts}
    (rack,) = left(hosts, After({"cmp-1", "cmp-5"}, {"cmp-2"}, sizes), RACK)
    assert (rack.up, rack.still_up, rack.usable, rack.still_usable) == (5, 3, 3, 2)
    assert (rack.free, rack.still_free) == (2, 1)
    assert (rack.size, rack.still_size) == (Size(40, 5120, 50), Size(24, 3072, 30))
