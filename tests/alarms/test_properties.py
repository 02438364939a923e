# SPDX-License-Identifier: Apache-2.0
"""Whatever the numbers are: what must be true of every alarm."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.alarms import engine, preview
from holdfast.alarms.engine import Engine
from holdfast.alarms.rules import RuleSet
from tests.alarms.world import Values, World, one_rule, rules

FULL = """
group_wait: 2s
storm: 3
conditions:
  high: {field: x, when: "> 90"}
  low: {field: x, when: "< 10"}
rules:
  - {id: over, on: guest, field: x, when: "> 90", clear: 70, for: 3s, class: c, repeat: 7s}
  - {id: kept, on: guest, field: x, when: ">= 90", keep_firing: 4s, damp: 2s, damp_cap: 20s}
  - {id: hits, on: guest, field: x, when: "> 90", hits: 2 of 4, for: 1s}
  - {id: burst, on: guest, field: x, when: "> 50", burst: 3s, no_data: none}
  - {id: rate, on: guest, field: x, when: "> 10", measure: rate, over: 5s}
  - {id: full, on: guest, field: x, when: "< 10s", measure: time_to_full, over: 9s, full: 200}
  - {id: share, on: guest, field: x, when: "> 1", contract: x, no_data_for: 2s}
  - {id: either, on: guest, any: [high, low], for: 2s}
  - {id: both, on: guest, all: [high, low]}
"""
NUMBERS = st.one_of(st.sampled_from([0.0, 69.0, 71.0, 90.0, 91.0, 500.0]), st.floats(0, 100))
VALUES = st.one_of(NUMBERS, NUMBERS, st.none(), st.just("suspended"), st.just("away"))
DAYS = st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=60)
HARD = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def world_of(rule_set: RuleSet) -> World:
    world = World(rule_set)
    world.entity("a", contracts={"x": 60.0}, project="p")
    world.entity("b", contracts={"x": 60.0}, project="q")
    world.entity("c")
    return world


def live(world: World, day: list[tuple[Values, ...]]) -> None:
    for values in day:
        named = dict(zip("abc", values, strict=True))
        world.see(**{name: value for name, value in named.items() if value != "away"})


@HARD
@given(DAYS)
def test_every_change_has_a_new_state(day: list[tuple[Values, ...]]) -> None:
    world = world_of(rules(FULL))
    live(world, day)
    states: dict[tuple[str, str], str] = {}
    for change in world.changes:
        assert change.before == states.get((change.rule, change.entity), "ok")
        assert change.state != change.before
        states[change.rule, change.entity] = change.state


@HARD
@given(DAYS)
def test_no_notification_repeats_the_previous_state(day: list[tuple[Values, ...]]) -> None:
    world = world_of(rules(FULL))
    live(world, day)
    events: dict[tuple[str, str], str] = {}
    for change in world.told:
        last = events.get((change.rule, change.entity), "cleared")
        if change.event == "again":
            assert last != "cleared"
            continue
        assert change.event != last
        events[change.rule, change.entity] = change.event


@HARD
@given(DAYS, st.integers(0, 60))
def test_notifications_of_an_alarm_keep_the_key_until_cleared(
    day: list[tuple[Values, ...]], when: int
) -> None:
    """Over a restart too; and for want of numbers nothing is over."""
    world = world_of(rules(FULL.replace("storm: 3", "storm: 50")))
    live(world, day[:when])
    saved = json.loads(json.dumps(engine.plain(world.engine, world.at, world.now)))
    world.engine = Engine(world.engine.rules)
    assert engine.restore(world.engine, saved, world.at, world.now)
    live(world, day[when:])
    keys: dict[tuple[str, str], str] = {}
    states = {(change.rule, change.entity, change.at): change for change in world.changes}
    for one in world.told:
        alarm = one.rule, one.entity
        assert keys.setdefault(alarm, one.key) == one.key
        if one.event == "cleared":
            del keys[alarm]
            state = states.get((*alarm, one.at))
            assert state is None or state.state == "ok"


@HARD
@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_hysteresis_equals_a_plain_loop(values: list[float]) -> None:
    expected, on = [], False
    for value in values:
        on = value > 70 if on else value > 90
        expected.append("firing" if on else "ok")
    assert World(one_rule("clear: 70")).run(*values) == expected


@HARD
@given(st.integers(0, 20), st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 7))
def test_an_alarm_fires_in_the_first_pass_after_for(
    for_s: int, held: list[bool], step_s: int
) -> None:
    world = World(one_rule(f"for: {for_s}s, clear: 90"), step_s=float(step_s))
    expected, lasted = [], -1
    for holds in held:
        lasted = lasted + step_s if holds and lasted >= 0 else 0 if holds else -1
        expected.append("ok" if not holds else "firing" if lasted >= for_s else "pending")
    assert world.run(*[95.0 if holds else 1.0 for holds in held]) == expected


@HARD
@given(DAYS)
def test_no_alarm_comes_of_stale_numbers(day: list[tuple[Values, ...]]) -> None:
    """The same day with nothing at all instead of what is stale has the same alarms."""
    stale, bare = world_of(rules(FULL)), world_of(rules(FULL))
    live(stale, day)
    live(bare, [tuple(None if value == "suspended" else value for value in each) for each in day])
    assert stale.changes == bare.changes
    for each in day:
        if all(isinstance(value, str) or value is None for value in each):
            continue
        break
    else:
        assert not [change for change in stale.changes if change.state in ("pending", "firing")]


@HARD
@given(DAYS, st.integers(0, 60))
def test_to_apply_the_same_rules_changes_nothing(day: list[tuple[Values, ...]], when: int) -> None:
    same, applied = world_of(rules(FULL)), world_of(rules(FULL))
    live(same, day)
    live(applied, day[:when])
    applied.engine.apply(rules(FULL))
    live(applied, day[when:])
    assert (applied.changes, applied.groups) == (same.changes, same.groups)


@HARD
@given(DAYS, st.integers(0, 60))
def test_to_try_out_others_changes_nothing(day: list[tuple[Values, ...]], when: int) -> None:
    same, tried = world_of(rules(FULL)), world_of(rules(FULL))
    live(same, day)
    live(tried, day[:when])
    tried.engine.try_out(rules(FULL.replace("90", "75").replace("hits: 2 of 4", "hits: 1 of 9")))
    live(tried, day[when:])
    assert (tried.changes, tried.groups) == (same.changes, same.groups)


@HARD
@given(DAYS, st.integers(0, 60))
@example([(0.0, 0.0, None), (0.0,) * 3, (0.0, None, None), (None, 0.0, None), (0.0,) * 3], 4)
def test_plain_data_and_back_changes_nothing(day: list[tuple[Values, ...]], when: int) -> None:
    """But windows of rates, which are filled anew. Of whom nothing is known just after a restart
    is another matter (test_plain.py), so something is."""
    day = [
        tuple(50.0 if n == when and v in (None, "suspended") else v for v in each)
        for n, each in enumerate(day)
    ]
    before = rules(FULL)
    before = replace(
        before, rules=tuple(rule for rule in before.rules if rule.id not in ("rate", "full"))
    )
    same, again = world_of(before), world_of(before)
    live(same, day)
    live(again, day[:when])
    saved = engine.plain(again.engine, again.at, again.now)
    text = json.dumps(saved)
    again.engine = Engine(before)
    assert engine.restore(again.engine, json.loads(text), again.at, again.now)
    assert json.dumps(engine.plain(again.engine, again.at, again.now)) == text
    live(again, day[when:])
    assert [change.plain() for change in again.changes] == [
        change.plain() for change in same.changes
    ]


@HARD
@given(DAYS)
def test_the_replay_of_a_recorded_day_equals_the_original(day: list[tuple[Values, ...]]) -> None:
    world = world_of(rules(FULL))
    lines = []
    for values in day:
        named = dict(zip("abc", values, strict=True))
        snapshot = world.snapshot({n: value for n, value in named.items() if value != "away"})
        lines.append(preview.line(snapshot))
        world.take(snapshot)
        world.now += 1
    replayed = list(preview.replay(preview.read(lines, "day.jsonl"), rules(FULL)))
    changes = list(
        itertools.chain.from_iterable(replayed_pass.changes for replayed_pass in replayed)
    )
    groups = list(itertools.chain.from_iterable(replayed_pass.groups for replayed_pass in replayed))
    assert (changes, groups) == (world.changes, world.groups)
