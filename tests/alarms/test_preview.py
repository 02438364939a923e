# SPDX-License-Identifier: Apache-2.0
"""Alarm rules over the last hour of hosts: what they would have made of it, by the same engine."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.alarms.preview import preview
from holdfast.alarms.rules import BadRules
from holdfast.metrics.history import EVERY_S, NOTHING, POINTS, Hour, Line

BEGIN = 178_945_000
NAN = math.nan
HOT = "{id: hot, on: guest, field: util_ratio, when: '> 90%', clear: 90%, for: 30s}"
OVER = "{id: pipe, on: nic, field: tx_bps, when: '> 200%', contract: tx_bps}"
LOAD = "{id: load, on: host, field: load1, when: '> 8', clear: 8}"


def text(*rules: str) -> str:
    return "\n".join(["rules:", *(f"  - {rule}" for rule in rules)])


def line(kind: str, name: str, field: str, *points: float, **about: object) -> Line:
    values = {field: array("f", points)}
    return Line(kind, f"u-{name}", name, "p-1", values=values, **about)  # type: ignore[arg-type]


def hour(*lines: Line) -> Hour:
    (points,) = {len(row) for series in lines for row in series.values.values()}
    return Hour(BEGIN, points, lines)


def at(place: int) -> datetime:
    return datetime.fromtimestamp(BEGIN * EVERY_S, UTC) + timedelta(seconds=place * EVERY_S)


def test_a_value_above_the_level_for_long_enough_fires_and_ends() -> None:
    web = line("guest", "web", "util_ratio", 0.1, 0.95, 0.95, 0.95, 0.95, 0.95, 0.2, 0.1)
    calm = line("guest", "calm", "util_ratio", *[0.1] * 8)
    result = preview(text(HOT), {"cmp-7": hour(web, calm)})
    (story,) = result.stories
    assert (story.host, story.rule, story.name, story.project) == ("cmp-7", "hot", "web", "p-1")
    assert [(change.state, change.at) for change in story.changes] == [
        ("pending", at(1)), ("firing", at(4)), ("ok", at(6)),
    ]  # fmt: skip
    assert (story.state, story.raised) == ("ok", 1)
    assert result.silent == {}


def test_hosts_are_each_by_themselves_and_stories_come_in_the_order_of_the_rules() -> None:
    hot = [line("guest", name, "util_ratio", *[0.99] * 5) for name in ("b", "a")]
    busy = line("host", "cmp-8", "load1", 1, 9, 9, 9, 9)
    hours = {"cmp-8": hour(busy, *hot), "cmp-7": hour(*hot)}
    result = preview(text(HOT, LOAD), hours)
    assert [(story.rule, story.host, story.name) for story in result.stories] == [
        ("hot", "cmp-7", "a"), ("hot", "cmp-7", "b"), ("hot", "cmp-8", "a"), ("hot", "cmp-8", "b"),
        ("load", "cmp-8", "cmp-8"),
    ]  # fmt: skip
    assert {story.state for story in result.stories} == {"firing"}


def test_an_interface_above_the_contract_fires() -> None:
    pipe = line("nic", "tap0", "tx_bps", 1e9, 2e10, 2e10, contracts={"tx_bps": 5e9})
    free = line("nic", "tap1", "tx_bps", 1e9, 2e10, 2e10)
    (story,) = preview(text(OVER), {"cmp-7": hour(pipe, free)}).stories
    assert story.changes[0].value == pytest.approx(4.0)


def test_an_entity_with_a_gap_is_no_data_and_a_departed_entity_is_gone() -> None:
    rule = HOT.replace("for: 30s", "no_data_for: 20s")
    gap = line("guest", "gap", "util_ratio", 0.1, *[NAN] * 5, 0.1, 0.1)
    gone = line("guest", "gone", "util_ratio", 0.1, 0.99, 0.99, *[NAN] * 5)
    late = line("guest", "late", "util_ratio", *[NAN] * 5, 0.1, 0.1, 0.1)
    result = preview(text(rule), {"cmp-7": hour(gap, gone, late)})
    states = {story.name: [change.state for change in story.changes] for story in result.stories}
    assert states == {"gap": ["no_data", "ok"], "gone": ["firing", "ok"]}
    (left,) = (story for story in result.stories if story.name == "gone")
    assert left.changes[-1].reason == "gone"


def test_rules_on_unrecorded_fields_are_listed_as_silent_not_as_no_data() -> None:
    swap = "{id: swap, on: guest, field: swap_in_kib_per_s, when: '> 5'}"
    web = line("guest", "web", "util_ratio", *[0.99] * 9)
    result = preview(text(swap, HOT), {"cmp-7": hour(web)})
    assert result.silent == {"swap": ("swap_in_kib_per_s",)}
    assert {story.rule for story in result.stories} == {"hot"}


def test_time_to_full_fires_before_the_disk_is_full() -> None:
    rule = (
        "{id: full, on: disk, field: allocation_bytes, measure: time_to_full,"
        " full: capacity_bytes, over: 5m, when: '< 1h'}"
    )
    grows = line("disk", "web/vda", "allocation_bytes", *[8e9 + 2e7 * n for n in range(60)])
    size = {**grows.values, "capacity_bytes": array("f", [1e10] * 60)}
    (story,) = preview(text(rule), {"cmp-7": hour(replace(grows, values=size))}).stories
    assert story.raised == 1


def test_rules_for_a_group_are_previewed_on_hosts_of_the_group() -> None:
    rule = LOAD.replace("on: host", "on: host, group: gpu")
    hours = {name: hour(line("host", name, "load1", 9, 9)) for name in ("cmp-7", "cmp-8")}
    result = preview(text(rule), hours, {"cmp-8": ["gpu"]})
    assert [story.host for story in result.stories] == ["cmp-8"]


def test_bad_rules_are_refused_by_line_and_no_hours_are_no_stories() -> None:
    with pytest.raises(BadRules) as caught:
        preview(text(HOT, "{id: x, on: guest, field: y, when: 'about 3'}"), {})
    assert [problem.line for problem in caught.value.problems] == [3]
    assert preview(text(HOT), {"cmp-7": NOTHING}).stories == ()


def test_a_full_hour_is_seen_in_a_moment() -> None:
    """A net: 150 lines and five rules take about a tenth of a second."""
    lines = [line("guest", f"g{n}", "util_ratio", *[n / 150] * POINTS) for n in range(150)]
    rules = [HOT.replace("hot", f"hot{n}") for n in range(5)]
    assert len(preview(text(*rules), {"cmp-7": hour(*lines)}).stories) == 5 * 14
