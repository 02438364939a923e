# SPDX-License-Identifier: Apache-2.0
"""What would follow if hosts died: of their servers nothing is promised that recovery would not do,
and what is left is told in hosts, vCPUs and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.console.wall import CLOSED, FREE, RESERVED, Tile
from holdfast.console.what_if import (
    After,
    Known,
    RecoveryPreview,
    command,
    left,
    recovery_preview,
    sums,
)
from holdfast.db.views import Held
from holdfast.model.host import Size
from holdfast.model.segment import AUTO, RESERVED_HOST, Segment, SegmentHost
from holdfast.ports.recovery import Switch
from tests.api.ha import add_host, make_segment
from tests.api.house import OWN
from tests.console.site import Site
from tests.console.test_wall import QUIET, hold, stand

Build = Callable[..., Site]
NOW = datetime(2026, 11, 17, 3, 20, 5, tzinfo=UTC)
NORTH = Segment(1, "n-uuid", "north", AUTO, "compute")
STORM = Switch("", "ann", "storm", None)
BLUE = Held("l-1", "blue", "p")


def host(number: int, **about: Any) -> Tile:
    made = Tile(number, f"cmp-{number}", rack="a", segment="north", guests=2)
    return replace(made, **about)


def reserved(number: int, *held: Held, **about: Any) -> Tile:
    use = RESERVED if held else FREE
    return host(number, enrolled=True, use=use, held=held, **about)


def known(tiles: Sequence[Tile], segment: Segment = NORTH, **about: Any) -> Known:
    members = {
        one.id: SegmentHost(
            one.id, f"m-{one.id}", one.name, one.id, "KVM", "", one.spare, one.maintenance, segment
        )
        for one in tiles
        if one.segment
    }
    return Known(NOW, tiles, members, **about)


def move(*joins: str, lease: str = "l-1") -> Mapping[str, Any]:
    return {"lease_id": lease, "active": True, "joins": joins}


def fate(of: Known, *dead: str, moves: Sequence[Mapping[str, Any]] = ()) -> RecoveryPreview:
    return recovery_preview(of, dead or ["cmp-1"], moves)[0]


FLEET = [host(number, rack=f"r{number}") for number in (1, 2, 3)]


def test_servers_of_a_host_whose_recovery_nothing_holds_move() -> None:
    assert fate(known(FLEET)) == RecoveryPreview("cmp-1", 2, "north")
    assert recovery_preview(known([host(1, guests=0), host(2)]), ["cmp-1"], ()) == []


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"pauses": {"": STORM}}, "recovery is paused by ann: storm"),
        ({"pauses": {"n-uuid": STORM}}, "recovery is paused by ann: storm"),
        ({"pauses": {"other": STORM}}, ""),
        ({"silences": [({"host": "cmp-1"}, STORM)]}, "silenced by ann: storm"),
        ({"silences": [({"segment": "n-uuid"}, STORM)]}, "silenced by ann: storm"),
        ({"silences": [({"host": "cmp-2"}, STORM)]}, ""),
        ({"silences": [({"kind": "guest"}, STORM)]}, ""),
        ({"segment": replace(NORTH, enabled=False)}, "segment north is disabled"),
        ({"dry_run": True}, "[recovery] dry_run is on"),
    ],
)
def test_a_switch_that_holds_recovery_is_told(about: dict[str, Any], why: str) -> None:
    said = fate(known(FLEET, **about)).why
    assert said.startswith(why) and bool(said) == bool(why)


def test_a_host_without_segment_or_on_maintenance_is_left_as_it_is() -> None:
    assert fate(known([host(1, segment=""), host(2)])).why == "it is in no segment"
    marked = [host(1, maintenance=True), host(2, rack="b")]
    assert fate(known(marked)).why == "cmp-1 is on maintenance"


def test_too_much_at_once_is_held_unless_somebody_approved_it() -> None:
    rack = [host(number) for number in range(1, 5)] + [host(9, rack="b")]
    dead = [f"cmp-{number}" for number in range(1, 5)]
    held = fate(known(rack), *dead).why
    assert held.startswith("4 of 4 hosts in a are down: too many at once")
    assert "holdfast recovery approve --domain a" in held
    for domain in ("", "a"):
        assert fate(known(rack, approved=[domain]), *dead).why == ""
    assert fate(known(rack, approved=["b"]), *dead).why
    few = [host(number) for number in range(1, 12)] + [host(99, rack="b")]
    slow = fate(known(few), "cmp-1", "cmp-2", "cmp-3")
    assert (slow.why, slow.how) == ("", "3 of 11 hosts in a are down: one host after the other")


def test_who_is_down_already_takes_nobody_and_counts_with_the_dead() -> None:
    assert fate(known([host(1), host(2, state="down")])).why == (
        "no other host is up that would take them"
    )
    rack = [host(1), host(2, state="down"), host(3, state="down"), host(9, rack="b")]
    assert "3 of 3 hosts in a are down" in fate(known(rack)).why


def test_ordinary_servers_find_no_place_on_hosts_that_are_enrolled() -> None:
    assert fate(known([host(1), reserved(2)])).why == "no other host is up that would take them"
    assert fate(known([reserved(1), reserved(2)])).why == ""
    assert fate(known([reserved(1), reserved(2, BLUE)])).why
    assert fate(known([reserved(1), reserved(2)]), moves=[move("cmp-2")]).why


def test_a_segment_that_goes_by_spares_needs_one() -> None:
    spares = replace(NORTH, recovery_method=RESERVED_HOST)
    assert fate(known([host(1), host(2)], spares)).why == "no spare host of segment north is left"
    assert fate(known([host(1), host(2, spare=True)], spares)).why == ""
    gone = [host(1), host(2, spare=True), host(3)]
    assert fate(known(gone, spares), "cmp-1", "cmp-2").why


def test_servers_of_a_reservation_wait_for_a_host_of_it() -> None:
    alone = [reserved(1, BLUE), reserved(2)]
    assert fate(known(alone)).why == "its lease blue has no other host"
    assert fate(known(alone), moves=[move("cmp-2")]).why == ""
    assert "repair is off" in fate(known(alone, repairs=False), moves=[move("cmp-2")]).why
    assert fate(known([reserved(1, BLUE), reserved(2, BLUE)])).why == ""
    rack = [reserved(number, BLUE) for number in (1, 2, 3)] + [host(4), host(5), host(6)]
    rack += [reserved(9, rack="b")]
    waits = fate(known(rack), "cmp-1", "cmp-2", "cmp-3", moves=[move("cmp-9")])
    assert waits.why == "its lease blue gets no other host before somebody approves"


def test_servers_are_summed_up_and_those_that_nobody_counted_are_told() -> None:
    some = [
        RecoveryPreview("a", 3),
        RecoveryPreview("b", 2, why="x"),
        RecoveryPreview("c", None),
        RecoveryPreview("d", None, why="x"),
    ]
    found = sums(some)
    assert (found.move, found.stay, found.uncounted) == (3, 2, 2)


def test_what_is_left_counts_only_hosts_that_leases_can_get() -> None:
    tiles = [
        reserved(1, BLUE),
        reserved(2),
        reserved(3),
        host(4, enrolled=True, use=CLOSED),
        host(5),
        host(6, state="down"),
    ]
    sizes = {one.id: Size(8, 1024, 10) for one in tiles}
    (rack,) = left(tiles, After({"cmp-1", "cmp-5"}, {"cmp-2"}, sizes), "rack")
    assert (rack.up, rack.still_up, rack.usable, rack.still_usable) == (5, 3, 3, 2)
    assert (rack.free, rack.still_free) == (2, 1)
    assert (rack.size, rack.still_size) == (Size(40, 5120, 50), Size(24, 3072, 30))


def test_the_command_names_what_the_planner_knows() -> None:
    some = [reserved(1), reserved(2), host(3), reserved(4, rack="b")]
    assert command(some, {"a"}, ()) == [
        "holdfast", "what-if", "--fail-rack", "a", "--fail", "cmp-4",
    ]  # fmt: skip
    assert command(some[:3], (), ()) == ["holdfast", "what-if", "--fail", "cmp-1", "cmp-2"]
    assert command(some[2:3], {"a"}, ()) == ["holdfast", "repair", "plan"]
    assert command(some, {"a"}, ["cmp-4"]) == ["holdfast", "what-if", "--fail", "cmp-1", "cmp-2"]


# on the page


def shown(site: Site, query: str) -> str:
    text = site.call("GET", f"/console/what-if?{query}").text
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text.partition('id="result"')[2]))


def test_the_page_promises_only_what_recovery_would_do(build: Build) -> None:
    site = build(QUIET)
    segment = make_segment(site)["uuid"]
    for name in ("cmp-5", "cmp-6"):
        add_host(site, segment, name)
    said = shown(site, "fail=cmp-6")
    assert "1 server moves" in said and "0 stay down" in said
    assert "cmp-6: 1 server ●would be started elsewhere by recovery (segment north)" in said
    assert "6 → 5" in said and "holdfast repair plan" in said
    both = shown(site, "fail=cmp-5&fail=cmp-6")
    assert "0 servers move" in both and "1 stays down" in both
    assert "no other host is up that would take them" in both
    whole = shown(site, "rack=rack-a")
    assert "would stay down: 6 of 6 hosts are down" in whole
    assert "would be started" not in whole and "--fail-rack rack-a" in whole
    made = site.call("POST", f"{OWN}/pauses", json={"reason": "storm"})
    assert made.status_code == 201, made.text
    assert "would stay down: recovery is paused by" in shown(site, "fail=cmp-6")


def test_a_maintenance_window_counts_from_its_beginning(build: Build) -> None:
    site = build(QUIET)
    segment = make_segment(site)["uuid"]
    for name in ("cmp-5", "cmp-6"):
        add_host(site, segment, name)
    hour = timedelta(hours=1)
    times = {"starts_at": datetime.now(UTC) + hour, "expires_at": datetime.now(UTC) + 2 * hour}
    later = {name: at.isoformat() for name, at in times.items()}
    about = {"matcher": {"host": "cmp-6"}, "reason": "new fans"}
    assert (
        site.call("POST", f"{OWN}/maintenance-windows", json={**about, **later}).status_code == 201
    )
    assert "1 server moves" in shown(site, "fail=cmp-6")
    later.pop("starts_at")
    assert (
        site.call("POST", f"{OWN}/maintenance-windows", json={**about, **later}).status_code == 201
    )
    assert "would stay down: silenced by" in shown(site, "fail=cmp-6")


def test_what_is_left_is_told_in_vcpus_and_memory(build: Build) -> None:
    site = build(QUIET)
    hold(site, "blue")
    stand(site, "cmp-4", "down", "so it is")
    said = shown(site, "fail=cmp-1")
    sizes = site.core.store.ledger.sizes()
    vcpus, memory = sizes[1].vcpus, sizes[1].memory_mb // 1024
    assert vcpus and memory
    assert f"{3 * vcpus} → {2 * vcpus}" in said
    assert f"{3 * memory:,} → {2 * memory:,} GiB" in said
