# SPDX-License-Identifier: Apache-2.0
"""What leaves the host: as little as is enough, and never less."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import inf

import pytest

from holdfast.alarms import engine
from holdfast.alarms.engine import Engine
from holdfast.alarms.tracks import Change, change_from
from tests.alarms.world import World, one_rule, rules

CPU = """
rules:
  - {id: host, on: host, field: load, when: "> 10", class: cpu, clear: 10}
  - {id: guest, on: guest, field: x, when: "> 90", class: cpu, clear: 90}
  - {id: other, on: guest, field: x, when: "> 90", class: ram, clear: 90}
"""


def said(world: World) -> list[str]:
    """And forget it."""
    lines = [f"{change.rule} {change.name} {change.event}" for change in world.told]
    world.groups.clear()
    return lines


def passes(world: World, count: int, **guests: float | str | None) -> list[str]:
    for _ in range(count):
        world.see(**guests)
    return said(world)


def test_related_alarms_share_a_notification_group() -> None:
    world = World(one_rule(), step_s=0.5)
    world.entity("a", project="p")
    world.entity("b", project="p")
    world.entity("c", project="q")
    world.see(a=95, b=0, c=95)
    world.see(a=95, b=95, c=95)
    assert world.groups == []
    world.see(a=95, b=95, c=95)
    assert [(group.project, [c.name for c in group.changes]) for group in world.groups] == [
        ("p", ["a", "b"]),
        ("q", ["c"]),
    ]


@pytest.mark.parametrize("step_s", [30, 60])
def test_a_group_is_sent_before_a_pass_that_would_come_too_late(step_s: float) -> None:
    world = World(one_rule(), step_s=step_s)
    world.see(a=95)
    (group,) = world.groups
    assert group.plain()["alarms"][0]["event"] == "raised"


def test_a_group_does_not_wait_while_the_pass_interval_is_unknown() -> None:
    world = World(one_rule(), step_s=0)
    world.see(a=95)
    assert said(world) == ["r a raised"]


def test_a_slightly_early_pass_does_not_delay_a_group_by_another_pass() -> None:
    world = World(one_rule())
    world.take(world.snapshot({"a": 95}))
    assert world.groups == []
    world.now += 0.9995
    world.take(world.snapshot({"a": 95}))
    assert said(world) == ["r a raised"]


@pytest.mark.parametrize("seed", range(5))
def test_an_alarm_is_notified_within_for_and_a_pass(seed: int) -> None:
    """Its own and that of its group are no more than one altogether."""
    chance = random.Random(seed)
    for _ in range(50):
        world = World(one_rule("for: 10s"))
        world.take(world.snapshot({"a": 95}))
        begun = world.now
        world.now += chance.random()  # and then every second, nearly
        while not world.groups:
            world.take(world.snapshot({"a": 95}))
            notified_at = world.now
            world.now += chance.uniform(0.99, 1.01)
        assert 10 <= notified_at - begun <= 10 + 1 + 0.15


def test_a_host_alarm_holds_back_guest_alarms_of_the_same_class() -> None:
    world = World(rules(CPU))

    def go(load: float, x: float) -> list[str]:
        for _ in range(2):
            world.take(world.snapshot({"a": x}, host={"load": load}))
            world.now += 1
        return said(world)

    assert go(20, 95) == ["host cmp-7 raised", "other a raised"]
    states = {alarm.rule: alarm.state for alarm in world.engine.alarms()}
    assert states == {"host": "firing", "guest": "firing", "other": "firing"}
    assert go(0, 95) == ["host cmp-7 cleared", "guest a raised"]
    assert go(20, 95) == ["host cmp-7 raised"]  # what was told stays told
    assert go(20, 0) == ["guest a cleared", "other a cleared"]


def test_a_flapping_alarm_is_notified_less_and_less() -> None:
    world = World(one_rule("damp: 4s, damp_cap: 60s, clear: 90", top="group_wait: 0"))
    events = []
    for _ in range(40):
        events += passes(world, 2, a=95) + passes(world, 2, a=0)
    assert events == ["r a raised", "r a cleared", "r a raised"]
    assert passes(world, 56, a=0) == []
    assert passes(world, 4, a=0) == ["r a cleared"]


def test_flaps_are_forgotten_after_a_long_quiet_time() -> None:
    world = World(one_rule("damp: 4s, damp_cap: 20s, clear: 90", top="group_wait: 0"))
    for _ in range(4):
        passes(world, 2, a=95) + passes(world, 2, a=0)
    passes(world, 30, a=0)
    assert world.engine.watchers["r"].tracks == {}
    assert passes(world, 1, a=95) + passes(world, 1, a=0) == ["r a raised", "r a cleared"]


def test_a_raise_is_never_held_back_by_damping() -> None:
    world = World(one_rule("damp: 60s, clear: 90", top="group_wait: 0"))
    assert passes(world, 1, a=95) == ["r a raised"]
    assert passes(world, 1, a=0) == ["r a cleared"]
    assert passes(world, 1, a=95) == ["r a raised"]


def test_a_raised_alarm_is_repeated() -> None:
    world = World(one_rule("repeat: 10s", top="group_wait: 0"))
    assert passes(world, 25, a=95) == ["r a raised", "r a again", "r a again"]
    assert passes(world, 1, a=0) == ["r a cleared"]
    assert passes(world, 25, a=0) == []


def test_no_data_is_notified_after_no_data_for_with_the_no_data_severity() -> None:
    world = World(one_rule("no_data: warning, no_data_for: 5s, severity: critical"))
    assert passes(world, 5, a=None) == []
    world.see(a=None)
    world.see(a=None)
    assert [(change.event, change.severity, change.value) for change in world.told] == [
        ("no_data", "warning", None)
    ]
    world.groups.clear()
    assert passes(world, 2, a=1) == ["r a cleared"]


def test_an_alarm_of_a_silent_guest_is_not_cleared() -> None:
    world = World(one_rule("no_data: none, no_data_for: 5s", top="group_wait: 0"))
    assert passes(world, 2, a=95) == ["r a raised"]
    assert passes(world, 5, a="suspended") == []
    assert passes(world, 5, a="suspended") == ["r a no_data"]
    assert passes(world, 1, a=95) == ["r a raised"]


def test_an_alarm_without_notification_is_still_listed() -> None:
    world = World(one_rule("no_data: none"))
    assert passes(world, 300, a=None) == []
    assert [alarm.state for alarm in world.engine.alarms()] == ["no_data"]


def test_a_no_data_severity_set_later_notifies_the_alarm() -> None:
    world = World(one_rule("no_data: none"))
    assert passes(world, 100, a=None) == []
    world.engine.apply(one_rule("no_data: warning"))
    assert passes(world, 2, a=None) == ["r a no_data"]


def test_in_a_storm_the_worst_alarms_are_sent_and_the_number_of_the_rest() -> None:
    world = World(one_rule("clear: 90", top="storm: 3\ngroup_wait: 0"))
    guests = {f"g{n}": 91.0 + n for n in range(10)}
    assert passes(world, 30, **guests) == [
        "r g9 raised",
        "r g8 raised",
        "r g7 raised",
        "storm cmp-7 raised",
    ]
    assert world.engine.notifier.storm.notified == 7
    # the others have their turn when there is room, and not faster than so many in a minute
    assert passes(world, 29, **{**guests, "g9": 0}) == ["r g9 cleared"]
    assert passes(world, 3, **{**guests, "g9": 0}) == ["r g6 raised"]
    quiet = passes(world, 200, **dict.fromkeys(guests, 0.0))
    assert sorted(quiet[:3]) == ["r g6 cleared", "r g7 cleared", "r g8 cleared"]
    assert quiet[3:] == ["storm cmp-7 cleared"]


def test_a_growing_storm_is_notified_again_after_doubling() -> None:
    world = World(one_rule("clear: 90", top="storm: 1\ngroup_wait: 0"))
    counts = []
    for count in range(1, 33):
        guests = {f"g{n}": 95.0 if n < count else 0.0 for n in range(32)}
        counts += passes(world, 1, **guests)
    assert counts == ["r g0 raised", "storm cmp-7 raised", *["storm cmp-7 again"] * 4]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_a_storm_is_bounded(seed: int) -> None:
    """Of 30 guests that do anything at all, no minute has more than a few messages."""
    chance = random.Random(seed)
    world = World(one_rule("clear: 90", top="storm: 5\ngroup_wait: 0"))
    values = (0, 95, None, "suspended")
    sent: list[int] = []
    for _ in range(180):
        world.see(**{f"g{n}": chance.choice(values) for n in range(30)})
        sent.append(len(said(world)))
    assert sum(sent) > 10
    for n in range(120):
        # 5 that are raised and 5 that end; no data of each, and back; the storm's own
        assert sum(sent[n : n + 60]) <= 25


def test_all_notifications_of_an_alarm_have_the_same_key() -> None:
    text = "repeat: 5s, damp: 4s, clear: 90, no_data_for: 2s"
    world = World(one_rule(text, top="group_wait: 0"))
    for _ in range(4):
        world.run(*[95] * 7, *[0] * 3)
    world.run(*[95] * 7, *["suspended"] * 4, *[95] * 2, *["suspended"] * 4, *[0] * 100)
    assert {"raised", "no_data", "again", "cleared"} == {change.event for change in world.told}
    keys: list[set[str]] = [set()]
    for change in world.told:
        keys[-1].add(change.key)
        if change.event == "cleared":
            keys.append(set())
    assert [len(each) for each in keys] == [1, 1, 0]


@pytest.mark.parametrize("lasts", ["0s", "4s"])
def test_an_alarm_that_loses_data_and_then_ends_is_cleared_once(lasts: str) -> None:
    world = World(one_rule(f"for: {lasts}, no_data_for: 60s", top="group_wait: 0"))
    world.run(*[95] * 6, *["suspended"] * 70, *[95] * 2, *[0] * 40)
    raised, *_, cleared = world.told
    assert (raised.event, cleared.event, cleared.value) == ("raised", "cleared", 0)
    assert {change.key for change in world.told} == {raised.key}
    assert [change.event for change in world.told].count("cleared") == 1


def test_a_missed_sample_ends_no_alarm() -> None:
    world = World(one_rule("for: 20s, clear: 80", top="group_wait: 0"))
    states = world.run(*[95] * 21, None, 85, 95, None, None, 95)
    assert states[20:] == ["firing", "no_data", "firing", "firing", "no_data", "no_data", "firing"]
    assert [change.event for change in world.told] == ["raised"]
    assert {change.key for change in world.changes[1:]} == {world.told[0].key}


def test_after_a_long_gap_for_starts_again_and_the_alarm_is_not_cleared() -> None:
    world = World(one_rule("for: 20s, no_data_for: 5s", top="group_wait: 0"))
    states = world.run(*[95] * 21, *[None] * 6, *[95] * 21)
    assert states[-21:] == ["pending"] * 20 + ["firing"]
    assert [change.event for change in world.told] == ["raised", "no_data", "raised"]
    assert [change.before for change in world.told] == ["ok", "firing", "no_data"]
    assert len({change.key for change in world.told}) == 1


def test_no_data_without_a_severity_keeps_the_severity_of_the_alarm() -> None:
    text = "no_data: none, no_data_for: 5s, severity: critical"
    world = World(one_rule(text, top="group_wait: 0"))
    world.run(95, *["suspended"] * 8)
    assert [(change.event, change.severity) for change in world.told] == [
        ("raised", "critical"),
        ("no_data", "critical"),
    ]


MANY = """
group_wait: 0
storm: 5
rules:
  - {id: ram, on: guest, field: used, when: "> 1", no_data_for: 2s}
  - {id: bad, on: guest, field: x, when: "> 90", severity: critical, clear: 90}
  - {id: host, on: host, field: load, when: "> 10", severity: critical}
"""


def test_a_lower_severity_takes_no_room_from_a_higher_severity() -> None:
    world = World(rules(MANY))

    def go(count: int, load: float, bad: int = 0) -> list[str]:
        for _ in range(count):
            guests = {f"g{n}": {"x": 95.0 if n < bad else 0.0} for n in range(20)}
            world.take(world.snapshot(guests, host={"load": load}))
            world.now += 1
        return [f"{change.rule} {change.event} {change.severity}" for change in _taken(world)]

    assert go(5, 0) == ["ram no_data info"] * 5 + ["storm raised info"]
    assert go(1, 20) == ["host raised critical"]
    # and these are bounded too: of the worst as many as of all
    assert go(30, 20, bad=10) == ["bad raised critical"] * 5 + ["storm again critical"]
    assert world.engine.notifier.raised_by_severity == {"info": 5, "critical": 5}
    assert sorted(go(1, 0)) == ["bad cleared critical"] * 5 + ["host cleared critical"]


def test_host_alarms_are_notified_during_a_storm_of_guest_alarms() -> None:
    world = World(rules(MANY))

    def go(count: int, load: float, bad: int) -> list[str]:
        for _ in range(count):
            guests = {f"g{n}": {"x": 95.0 if n < bad else 0.0, "used": 0.0} for n in range(20)}
            world.take(world.snapshot(guests, host={"load": load}))
            world.now += 1
        return [f"{change.rule} {change.event}" for change in _taken(world)]

    assert go(100, 0, bad=20) == ["bad raised"] * 5 + ["storm raised"]
    assert go(100, 20, bad=20) == ["host raised"]
    again = Engine(rules(MANY))  # and after a restart it takes nobody's room either
    saved = json.loads(json.dumps(engine.plain(world.engine, world.at, world.now)))
    assert engine.restore(again, saved, world.at, world.now)
    assert again.notifier.raised_by_severity == world.engine.notifier.raised_by_severity
    assert go(1, 0, bad=20) == ["host cleared"]
    assert +world.engine.notifier.raised_by_severity == {"critical": 5}


def _taken(world: World) -> list[Change]:
    changes = world.told
    world.groups.clear()
    return changes


def test_an_infinite_time_to_full_is_sent_as_null() -> None:
    text = "measure: time_to_full, over: 5m, full: 1000, clear: 1h"
    world = World(one_rule(text, when="< 1h", top="group_wait: 0"), step_s=60)
    world.run(*range(0, 1000, 100), 0, 0)
    assert [(change.event, change.value is None) for change in world.told] == [
        ("raised", False),
        ("cleared", True),
    ]
    for change in (*world.changes, *world.told):
        json.dumps(change.plain(), allow_nan=False)
        infinite = replace(change, value=inf)
        assert infinite.plain()["value"] is None


def test_a_missing_value_beside_a_bad_value_is_not_reported() -> None:
    text = """
group_wait: 0
conditions: {one: {field: x, when: "> 90"}, other: {field: y, when: "> 90"}}
rules: [{id: r, on: guest, any: [one, other], repeat: 1s}]
"""
    world = World(rules(text))
    world.run({"x": 95.0, "y": 95.0}, {"y": 95.0}, {"y": 95.0}, {"y": 95.0})
    assert [change.value for change in world.told] == [95.0] * 4


def test_a_notification_carries_the_condition_that_holds() -> None:
    text = """
group_wait: 0
storm: 1
conditions: {one: {field: x, when: "> 90"}, other: {field: y, when: "> 10"}}
rules: [{id: r, on: guest, any: [one, other]}]
"""
    world = World(rules(text))
    low, high = {"x": 1.0, "y": 11.0}, {"x": 2.0, "y": 40.0}
    world.see(a=low, b=high)
    raised, _ = world.told
    assert (raised.name, raised.value, raised.threshold) == ("b", 40.0, 10.0)  # the worse one
    assert {(change.name, change.value, change.threshold) for change in world.changes} == {
        ("a", 11.0, 10.0),
        ("b", 40.0, 10.0),
    }
    again = Engine(rules("rules: []"))
    saved = json.loads(json.dumps(engine.plain(world.engine, world.at, world.now)))
    assert engine.restore(again, saved, world.at, world.now)
    over = again.evaluate(world.snapshot({})).changes  # its rule is not there any more
    assert {(change.state, change.threshold) for change in over} == {("ok", 10.0)}
    world.see(a=low, b={"x": 95.0, "y": 1.0})
    world.see(a=low, b={"x": 3.0, "y": 2.0})
    assert [(change.value, change.threshold) for change in world.changes[2:]] == [(3.0, 90.0)]


def test_a_changed_severity_or_action_of_a_raised_alarm_is_notified() -> None:
    world = World(one_rule(top="group_wait: 0"))
    assert passes(world, 3, a=95, b=0) == ["r a raised"]
    world.engine.apply(one_rule("severity: critical, actions: [incident]", top="group_wait: 0"))
    world.see(a=95, b=0)
    (change,) = world.told
    assert (change.event, change.severity, change.actions) == ("raised", "critical", ("incident",))
    assert +world.engine.notifier.raised_by_severity == {"critical": 1}
    assert said(world) and passes(world, 3, a=95, b=95) == ["r b raised"]
    world.engine.apply(one_rule("severity: critical", top="group_wait: 0"))
    assert sorted(passes(world, 3, a=0, b=95)) == ["r a cleared", "r b raised"]
    world.engine.apply(one_rule("severity: critical, for: 5s", top="group_wait: 0"))
    assert passes(world, 3, a=0, b=95) == []  # that it has to last is nothing to tell


def test_a_message_survives_json() -> None:
    world = World(one_rule("actions: [incident]"))
    passes_told = world.run(95, 95, None, None)
    assert passes_told
    for change in (*world.changes, *world.told):
        assert change_from(json.loads(json.dumps(change.plain()))) == change
