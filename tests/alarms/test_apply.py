# SPDX-License-Identifier: Apache-2.0
"""Other rules while it runs: what is the same goes on, what is not begins anew."""

from __future__ import annotations

import time

from tests.alarms.world import World, one_rule, rules

SAME = "{id: same, on: guest, field: y, when: '> 5', for: 4s, clear: 5}"


def two(own: str, number: int = 1) -> str:
    return f"rules:\n  - {SAME}\n  - {own}\n"


def own(when: str = "> 90", field: str = "x", more: str = "") -> str:
    return f"{{id: own, on: guest, field: {field}, when: '{when}', for: 4s{more}}}"


def go(world: World, count: int, x: float = 95.0, y: float = 10.0) -> dict[str, str]:
    for _ in range(count):
        world.see(a={"x": x, "y": y, "z": x})
    return {alarm.rule: alarm.state for alarm in world.engine.alarms()}


def test_an_unchanged_rule_keeps_the_elapsed_time() -> None:
    world = World(rules(two(own())))
    go(world, 3)
    applied = world.engine.apply(rules(two(own(field="z")), 2))
    assert (applied.kept, applied.begun, applied.ended) == (("same",), ("own",), ("own",))
    assert go(world, 2) == {"same": "firing", "own": "pending"}


def test_another_level_keeps_the_window() -> None:
    world = World(rules(two(own())))
    go(world, 3)
    applied = world.engine.apply(rules(two(own("> 80")), 2))
    assert applied.tuned == ("own",)
    assert go(world, 2) == {"same": "firing", "own": "firing"}


def test_another_level_keeps_the_window_of_a_rate() -> None:
    text = "measure: rate, over: 30s, clear: 100"
    world = World(one_rule(text, when="> 1000"))
    world.run(*range(0, 10_000, 500))
    world.engine.apply(one_rule(text, when="> 100"))
    assert world.run(10_000) == ["firing"]


def test_another_level_keeps_when_a_burst_was_counted_last() -> None:
    world = World(one_rule("burst: 60s, clear: 100", when="> 100"))

    def look(value: float, fresh: bool) -> None:
        fresh_fields = frozenset({"x"} if fresh else ())
        world.take(world.snapshot({"a": value}, fresh=fresh_fields))
        world.now += 1

    look(300, True)
    for _ in range(29):
        look(300, False)
    world.engine.apply(one_rule("burst: 59s, clear: 100", when="> 100"))
    look(300, True)  # of thirty seconds, each of which spent two
    assert [alarm.state for alarm in world.engine.alarms()] == ["firing"]


def test_a_rule_with_another_field_ends_the_old_alarms_with_a_reason() -> None:
    world = World(rules(two(own())))
    go(world, 6)
    world.engine.apply(rules(two(own(field="z")), 2))
    go(world, 3)
    ended = [change for change in world.changes if change.state == "ok"]
    assert [(change.rule, change.reason) for change in ended] == [("own", "rule changed")]
    assert [change.event for change in world.told if change.rule == "own"] == ["raised", "cleared"]


def test_a_removed_rule_ends_all_its_alarms() -> None:
    world = World(rules(two(own())))
    go(world, 6)
    world.engine.apply(rules(f"rules:\n  - {SAME}\n", 2))
    assert go(world, 3) == {"same": "firing"}
    (cleared,) = [change for change in world.told if change.event == "cleared"]
    assert (cleared.rule, cleared.reason, cleared.version[:2]) == ("own", "rule removed", "2-")


def test_an_entity_no_longer_selected_has_no_alarm() -> None:
    world = World(rules(two(own())))
    go(world, 6)
    world.engine.apply(rules(two(own(more=", name: b*")), 2))
    assert go(world, 1) == {"same": "firing"}
    assert world.changes[-1].reason == "not selected"


def test_every_message_says_which_rules_were_in_force() -> None:
    world = World(one_rule("for: 2s"))
    world.run(95, 95)
    other = rules("rules:\n  - {id: r, on: guest, field: x, when: '> 90', for: 1s}", 2)
    world.engine.apply(other)
    world.run(95)
    assert [change.version for change in world.changes] == [world.rules.version, other.version]
    assert world.rules.version.startswith("1-") and other.version.startswith("2-")


def test_prepared_rules_are_put_in_force_after_any_intermediate_change() -> None:
    world = World(rules(two(own())))
    go(world, 2)
    prepared = world.engine.prepare(rules(two(own("> 80")), 2))
    go(world, 1)
    world.engine.apply(rules(two(own("> 70")), 3))
    go(world, 1)
    assert world.engine.apply(prepared).version.startswith("2-")
    assert world.engine.rules.rules[1].conditions[0].level == 80
    assert go(world, 1) == {"same": "firing", "own": "firing"}


def test_new_rules_are_tried_on_the_last_pass_and_touch_nothing() -> None:
    world = World(one_rule("for: 5s"))
    assert world.engine.try_out(world.rules) == []
    world.see(a=95, b=50, c=None)
    before = {alarm.key for alarm in world.engine.alarms()}
    (trial,) = world.engine.try_out(one_rule("for: 1h", when="> 40"))
    assert (trial.selected, trial.holds, trial.unknown) == (3, 2, 1)
    assert {alarm.key for alarm in world.engine.alarms()} == before
    assert world.run(95) == ["pending"]


def test_a_thousand_guests_do_not_make_the_change_slow() -> None:
    """A net: bench/alarms.py has the figure, a fifth of this."""
    text = "rules:\n" + "".join(
        f"  - {{id: r{n}, on: guest, field: x, when: '> {{level}}', for: {n}s}}\n"
        for n in range(20)
    )
    worlds = [rules(text.replace("{level}", str(level)), level) for level in (80, 90)]
    world = World(worlds[0])
    guests = {f"g{n}": 95.0 for n in range(1000)}
    took = []
    for n in range(10):
        world.see(**guests)
        began = time.thread_time()
        world.engine.apply(worlds[n % 2])
        took.append(time.thread_time() - began)
    assert min(took) < 0.005
