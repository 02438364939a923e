# SPDX-License-Identifier: Apache-2.0
"""A restart: what was remembered is remembered, what waited goes on waiting."""

from __future__ import annotations

import json

import pytest

from holdfast.alarms import engine
from holdfast.alarms.engine import Engine
from holdfast.alarms.rules import RuleSet
from tests.alarms.world import World, one_rule


def restarted(world: World, away_s: float, rules: RuleSet | None = None) -> World:
    """The same guests, another process: its monotonic clock begins elsewhere."""
    saved = json.loads(json.dumps(engine.plain(world.engine, world.at, world.now)))
    world.now += away_s
    at, shift = world.at, 5_000_000.0
    world.begun += shift
    world.now += shift
    world.engine = Engine(rules or world.rules)
    assert engine.restore(world.engine, saved, at, world.now)
    world.number = 0
    return world


def test_a_pending_alarm_continues_after_a_restart() -> None:
    world = World(one_rule("for: 10s"))
    world.run(*[95] * 5)
    restarted(world, 2)
    assert world.run(95, 95, 95, 95) == ["pending", "pending", "pending", "firing"]
    assert world.changes[-1].first_at == world.changes[0].first_at


def test_a_long_unobserved_time_does_not_count_towards_for() -> None:
    world = World(one_rule("for: 10m"), step_s=60)
    world.run(*[95] * 5)
    restarted(world, 3600)
    # five minutes were seen, and two more may have been
    assert world.run(*[95] * 4) == ["pending", "pending", "pending", "firing"]


def test_a_raised_alarm_is_not_notified_again_after_a_restart() -> None:
    world = World(one_rule("repeat: 1h"))
    world.run(*[95] * 5)
    assert [change.event for change in world.told] == ["raised"]
    restarted(world, 5)
    world.run(95, 95, 95, 0, 0)
    assert [change.event for change in world.told] == ["raised", "cleared"]
    assert len({change.key for change in world.told}) == 1


def test_a_waiting_group_is_notified_after_a_restart() -> None:
    world = World(one_rule(top="group_wait: 30s"))
    world.run(95)
    restarted(world, 40)
    world.run(95)
    assert [change.event for change in world.told] == ["raised"]


def test_samples_and_bursts_are_remembered() -> None:
    world = World(one_rule("hits: 3 of 5, clear: 90"))
    world.run(95, 95)
    assert restarted(world, 1).run(95) == ["firing"]
    world = World(one_rule("burst: 10s, clear: 100", when="> 100"))
    world.run(*[200] * 9)
    assert restarted(world, 1).run(200) == ["firing"]


def test_an_alarm_of_a_rate_stands_until_the_rate_is_known_again() -> None:
    world = World(one_rule("measure: rate, over: 10s, clear: 100", when="> 100"))
    assert world.run(*range(0, 20_000, 1000))[-1] == "firing"
    restarted(world, 1)
    assert world.run(21_000, 22_000, 23_000) == ["firing"] * 3
    assert [change.state for change in world.changes] == ["firing"]


def test_an_alarm_stands_until_something_is_known_again() -> None:
    """As after every restart: a rate that the collector makes needs two readings."""
    world = World(one_rule("for: 10s", top="group_wait: 0"))
    world.run(*[95] * 12)
    restarted(world, 1)
    assert world.run(None, None, 95, 95) == ["firing"] * 4
    assert world.run(0) == ["ok"]
    assert [change.event for change in world.told] == ["raised", "cleared"]
    assert len({change.key for change in world.told}) == 1


def test_a_pending_alarm_continues_after_a_restart_without_data_at_first() -> None:
    world = World(one_rule("for: 10s"))
    world.run(*[95] * 5)
    restarted(world, 2)
    assert world.run(None, 95, 95, 95) == ["pending", "pending", "pending", "firing"]
    assert world.changes[-1].first_at == world.changes[0].first_at


def test_nothing_is_known_for_too_long_after_a_restart() -> None:
    world = World(one_rule("no_data_for: 5s", top="group_wait: 0"), step_s=10)
    world.run(95, 95)
    restarted(world, 1)
    states = world.run(*["suspended"] * 14)
    assert (states[11], states[12]) == ("firing", "no_data")
    assert [change.event for change in world.told] == ["raised", "no_data"]
    # and once it was seen, a gap is a gap
    world = World(one_rule("no_data_for: 5s"), step_s=10)
    world.run(95)
    assert restarted(world, 1).run(95, None) == ["firing", "no_data"]


def test_an_alarm_of_an_unread_kind_becomes_no_data_after_a_restart() -> None:
    world = World(one_rule("no_data_for: 5s", on="disk"), step_s=60)
    world.entity("vda", "disk")
    world.see(vda=95)
    restarted(world, 1)
    assert [world.see() for _ in range(4)] == [[], [], ["vda no_data"], []]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (one_rule("measure: rate, over: 10s"), "rule changed"),
        (one_rule("group: gpu"), "rule removed"),
        (RuleSet(), "rule removed"),
    ],
)
def test_alarms_of_a_removed_rule_are_cleared_after_a_restart(other: RuleSet, reason: str) -> None:
    world = World(one_rule("severity: critical, actions: [notify, incident]"))
    world.run(95, 95)
    restarted(world, 1, other)
    restarted(world, 1, other)  # killed again before it looked
    assert sum(world.engine.notifier.raised_by_severity.values()) == 1
    world.run(0, 0)
    raised, cleared = world.told
    assert (cleared.event, cleared.reason, cleared.key) == ("cleared", reason, raised.key)
    assert (cleared.severity, cleared.threshold) == (raised.severity, raised.threshold)
    assert cleared.actions == raised.actions
    assert sum(world.engine.notifier.raised_by_severity.values()) == 0
    assert world.engine.alarms() == []


def test_a_rule_about_other_numbers_begins_anew() -> None:
    world = World(one_rule("for: 5s"))
    world.run(*[95] * 4)
    other = one_rule("for: 5s, measure: rate, over: 10s")
    assert restarted(world, 1, other).engine.alarms() == []
    assert world.engine.watchers["r"].tracks == {}


def test_a_clock_set_back_does_no_harm() -> None:
    world = World(one_rule("for: 10s"))
    world.run(*[95] * 5)
    restarted(world, -3600)
    assert world.run(*[95] * 6)[-2:] == ["pending", "firing"]


def test_a_storm_is_not_sent_again_after_a_restart() -> None:
    world = World(one_rule(top="storm: 2\ngroup_wait: 0"))
    guests = {f"g{n}": 95.0 for n in range(9)}
    world.see(**guests)
    assert len(world.told) == 3
    restarted(world, 1)
    world.see(**guests)
    assert len(world.told) == 3


def test_saved_state_of_an_unknown_format_is_ignored() -> None:
    world = World(one_rule())
    assert not engine.restore(world.engine, {"format": 99}, world.at, world.now)
