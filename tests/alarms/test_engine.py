# SPDX-License-Identifier: Apache-2.0
"""What a pass makes of numbers: when an alarm begins, when it ends, when nothing is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.ports.metrics import DISK, GUEST, MIGRATED, NIC, Snapshot, Table
from tests.alarms.world import BEGIN, World, one_rule, rules

P, F, N, O = "pending", "firing", "no_data", "ok"  # noqa: E741


@pytest.mark.parametrize(
    ("when", "good", "bad"),
    [("> 5", 5, 5.1), (">= 5", 4.9, 5), ("< 5", 5, 4.9), ("<= 5", 5.1, 5), ("== 5", 6, 5)],
)
def test_each_comparator_holds_on_the_expected_side(when: str, good: float, bad: float) -> None:
    assert World(one_rule(when=when)).run(good, bad, None) == [O, F, N]


def test_anything_else_can_be_an_alarm_too() -> None:
    assert World(one_rule(when="!= 5")).run(5, 6, None) == [O, F, N]


def test_an_alarm_ends_only_below_the_clear_level() -> None:
    assert World(one_rule("clear: 80")).run(85, 91, 85, 81, 80, 85) == [O, F, F, F, O, O]


def test_the_default_clear_level_is_a_tenth_on_the_good_side() -> None:
    assert World(one_rule()).run(91, 82, 81) == [F, F, O]
    assert World(one_rule(when="< 10")).run(9, 10.9, 11) == [F, F, O]


def test_an_alarm_is_pending_until_for_has_passed() -> None:
    world = World(one_rule("for: 3s"))
    assert world.run(91, 91, 91, 91, 0) == [P, P, P, F, O]
    assert world.changes[1].samples == 4
    assert world.changes[1].first_at == BEGIN


def test_the_clear_level_does_not_count_while_pending() -> None:
    assert World(one_rule("for: 2s, clear: 50")).run(91, 60, 91, 91, 91) == [P, O, P, P, F]


def test_keep_firing_bridges_dips_and_gaps() -> None:
    world = World(one_rule("keep_firing: 3s, clear: 90"))
    assert world.run(91, 0, None, 91, None, 0, 0, 0) == [F, F, F, F, F, F, F, O]


def test_n_of_m_samples_must_hold() -> None:
    world = World(one_rule("hits: 2 of 4, clear: 90"))
    assert world.run(91, 0, 0, 91, 0, 0, 91, 0, 0, 0) == [O, O, O, F, O, O, F, O, O, O]


def test_a_missing_value_is_no_sample() -> None:
    world = World(one_rule("hits: 2 of 2, clear: 90"))
    assert world.run(91, None, None, 91) == [O, N, N, F]


def test_a_suspended_guest_is_neither_good_nor_bad() -> None:
    assert World(one_rule()).run(91, "suspended", "suspended", 91, 0) == [F, N, N, F, O]


def test_nothing_known_is_not_ok_even_from_the_first_pass() -> None:
    assert World(one_rule()).run(None, 1) == [N, O]


def test_the_rate_of_a_reset_counter_counts_from_zero() -> None:
    world = World(one_rule("measure: rate, over: 10s, clear: 100", when="> 100"), step_s=10)
    assert world.run(0, 900, 1800, 1100, 2200, 2300) == [O, O, O, F, F, O]
    assert [round(change.value or 0) for change in world.changes] == [110, 10]


def test_a_duplicate_entity_does_not_keep_another_alarm_from_ending() -> None:
    world = World(one_rule())

    def look(a: float, b: float) -> Snapshot:
        snapshot = world.snapshot({"a": a, "b": b})
        world.now += 1
        readings = snapshot.tables[GUEST].readings
        return replace(snapshot, tables={GUEST: Table(GUEST, [*readings, readings[1]])})

    world.take(look(95, 95))
    world.take(look(0, 95))
    assert {alarm.name: alarm.state for alarm in world.engine.alarms()} == {"b": F}


def test_a_rate_needs_two_samples_of_the_same_guest() -> None:
    world = World(one_rule("measure: rate, over: 10s", when="> 100"), step_s=5)
    world.see(a=0)
    assert world.see(a=5000, b=1e9) == ["a firing", "b no_data"]
    assert world.see(a=9000, b=1e9) == ["b ok"]


def test_time_to_full_fires_while_time_is_left() -> None:
    text = "measure: time_to_full, over: 1h, full: capacity"
    world = World(one_rule(text, when="< 1h"), step_s=60)
    states = [world.run({"x": float(used), "capacity": 1000.0})[0] for used in range(0, 1000, 10)]
    assert states.count(F) == 59  # of 10 a minute 600 are an hour
    assert states[-1] == F and states[39] == O


def test_a_value_without_growth_never_reaches_the_limit() -> None:
    world = World(one_rule("measure: time_to_full, over: 1h, full: 1000", when="< 1h"), step_s=60)
    assert set(world.run(*range(900, 0, -10))) == {O}


def test_more_than_the_contract_is_the_customers_own_limit() -> None:
    world = World(one_rule("contract: tx_bps, clear: 1.2", on=NIC, when="> 1.2"))
    world.entity("five", NIC, contracts={"tx_bps": 5e9})
    world.entity("forty", NIC, contracts={"tx_bps": 40e9})
    world.entity("free", NIC)
    assert world.see(five=20e9, forty=20e9, free=20e9) == ["five firing"]
    assert world.changes[0].value == 4.0
    assert world.see(five=6e9, forty=20e9, free=None) == ["five ok"]


def test_a_burst_raises_no_alarm_until_the_allowance_is_spent() -> None:
    # 5 Gb with 30 s of burst: 150 Gb may be too much; at 20 Gb that is 10 s
    world = World(one_rule("burst: 30s, clear: 5G", when="> 5G"))
    assert world.run(*[20e9] * 3, *[0] * 30).count(F) == 0
    states = world.run(*[20e9] * 12)
    assert states == [*[O] * 9, *[F] * 3]
    assert world.run(4e9) == [O]


def test_the_burst_allowance_refills_slowly() -> None:
    world = World(one_rule("burst: 10s, clear: 100", when="> 100"))
    assert world.run(*[200] * 9, 50, 200, 200) == [*[O] * 9, O, O, F]


COMPOSITE = """
conditions:
  busy: {{field: cpu, when: "> 90", clear: 90}}
  starved: {{field: steal, when: "> 10", clear: 10}}
rules:
  - {{id: r, on: guest, {how}: [busy, starved]}}
"""


@pytest.mark.parametrize(
    ("how", "expected"), [("all", [O, O, O, F, N, O, N]), ("any", [O, F, F, F, F, N, N])]
)
def test_combined_conditions_handle_unknown_values(how: str, expected: list[str]) -> None:
    world = World(rules(COMPOSITE.format(how=how)))
    good_good, bad_good, good_bad = (0.0, 0.0), (95.0, 0.0), (0.0, 20.0)
    pairs = [good_good, bad_good, good_bad, (95.0, 20.0)]
    values = [{"cpu": cpu, "steal": steal} for cpu, steal in pairs]
    assert world.run(*values, {"cpu": 95.0}, {"cpu": 0.0}, {}) == expected


def test_a_rule_outside_the_configured_hours_raises_no_alarm() -> None:
    world = World(one_rule("hours: [mon-fri 08:00-12:01]"), step_s=30)
    assert world.run(91, 91, 91) == [F, F, O]
    assert world.changes[-1].reason == "outside its hours"


def test_values_outside_the_rules_hours_do_not_use_up_the_burst() -> None:
    text = "hours: mon-fri 08:00-12:01, burst: 10s, clear: 100"
    world = World(one_rule(text, when="> 100"))
    world.run(150)
    world.now += 600
    world.run(150)
    world.now += 20 * 3600 - 600
    assert world.run(150) == [O]  # 08:00 of the next day: the night was no burst
    assert world.run(*[200] * 9).count(F) == 0


def test_samples_of_yesterday_are_no_samples_of_today() -> None:
    world = World(one_rule("hours: mon-fri 08:00-12:01, hits: 3 of 5"))
    world.run(95, 95)
    world.now += 600
    assert world.run(0) == [O]
    world.now += 20 * 3600 - 600
    assert world.run(95, 95, 95) == [O, O, F]


def test_hours_over_midnight_belong_to_the_first_day() -> None:
    world = World(one_rule("hours: mon 22:00-06:00"), step_s=3600)
    assert [n for n, state in enumerate(world.run(*[91] * 48)) if state == F] == [*range(10, 18)]


def test_a_rule_applies_only_to_selected_entities() -> None:
    text = "project: [dev*, p-7], flavor: large, name: 'web-*'"
    world = World(one_rule(text))
    world.entity("web-1", project="p-7", flavor="large")
    world.entity("web-2", project="x", project_name="dev-9", flavor="large")
    world.entity("web-3", project="x", flavor="large")
    world.entity("web-4", project="p-7", flavor="small")
    world.entity("db-1", project="p-7", flavor="large")
    assert world.see(**dict.fromkeys(world.about, 95)) == ["web-1 firing", "web-2 firing"]


def test_a_rule_for_a_group_of_hosts_is_not_there_on_others() -> None:
    world = World(one_rule("group: 'gpu*'"))
    assert world.see(a=95) == []
    world.engine.groups = frozenset({"gpu-4"})
    world.engine.apply(world.rules)
    assert world.see(a=95) == ["a firing"]


def test_a_departed_entity_has_no_alarm() -> None:
    world = World(one_rule())
    world.see(a=95, b=95)
    assert world.see(b=95) == ["a ok"]
    assert world.changes[-1].reason == "gone"


def test_samples_before_an_entity_left_do_not_count_after_the_return() -> None:
    world = World(one_rule("hits: 2 of 4"))
    world.see(a=95)
    world.see()
    assert world.see(a=95) == []
    assert world.see(a=95) == ["a firing"]


def test_every_sample_of_an_alarm_is_counted() -> None:
    world = World(one_rule("for: 2s"))
    world.run(95, 95, 95, 95, 85, 95, 0)
    assert [change.samples for change in world.changes] == [1, 3, 6]


def test_migration_ends_the_alarm_on_the_source_and_restarts_for_on_the_target() -> None:
    here, there = World(one_rule("for: 2s")), World(one_rule("for: 2s"), host="cmp-8")
    here.run(95, 95, 95)
    here.take(here.snapshot({}, gone={"u-a": MIGRATED}))
    assert (here.changes[-1].state, here.changes[-1].reason) == (O, MIGRATED)
    there.entity("a", came=MIGRATED)
    assert there.run(95) == [P]
    there.entity("a", project="")  # an ordinary one from now on
    assert there.run(95, 95) == [P, F]
    assert [change.reason for change in there.changes] == [MIGRATED, MIGRATED]
    assert there.changes[1].entity == here.changes[1].entity


def test_late_and_repeated_snapshots_are_dropped() -> None:
    world = World(one_rule("hits: 2 of 2"))
    first = world.snapshot({"a": 95.0})
    assert not world.take(first).dropped
    assert world.take(first).dropped
    assert world.run(95) == [F]
    assert world.take(first).dropped
    assert world.engine.dropped == 2


def test_an_unread_kind_is_unknown_not_gone() -> None:
    world = World(one_rule(on=DISK))
    world.entity("vda", DISK)
    world.see(vda=95)
    bare = world.snapshot({})
    tables = {kind: table for kind, table in bare.tables.items() if kind != DISK}
    world.take(Snapshot(bare.host, bare.pass_id, bare.at, bare.monotonic, 1.0, tables))
    assert (world.changes[-1].state, world.changes[-1].reason) == (N, "")


def test_values_not_read_in_this_pass_are_no_samples() -> None:
    world = World(one_rule("hits: 2 of 2, clear: 90"))
    old: frozenset[str] = frozenset()
    for fresh in (None, old, old):
        assert not world.take(world.snapshot({"a": 95.0}, fresh=fresh)).changes
        world.now += 1
    assert world.see(a=95) == ["a firing"]


def test_a_seldom_read_counter_has_a_rate_of_the_read_values_only() -> None:
    world = World(one_rule("measure: rate, over: 2m", when="< 1"))
    for second in range(91):
        fresh = None if second % 30 == 0 else frozenset[str]()
        world.take(world.snapshot({"a": 1000.0 + second // 30 * 300}, fresh=fresh))
        world.now += 1
    assert world.changes == []


def test_a_stale_guest_has_no_rate_despite_earlier_reads() -> None:
    world = World(one_rule("measure: rate, over: 10s", when="> 100"))
    assert world.run(0, 9000, 18000) == [O, F, F]
    world.take(world.snapshot({"a": "suspended"}, fresh=frozenset()))
    assert world.changes[-1].state == N


def test_rate_windows_survive_arriving_and_departing_entities() -> None:
    world = World(one_rule("measure: rate, over: 10s, clear: 100", when="> 100"))
    for n in range(5):
        world.see(a=1000 * n, b=n, c=n)
    assert world.see(b=5, d=0) == ["a ok", "d no_data"]
    assert world.see(d=1, a=0, b=6) == ["a no_data", "d ok"]
    assert world.see(a=1, d=9000, b=7) == ["d firing", "a ok"]


def test_a_change_as_json_has_all_attributes() -> None:
    more = "for: 2s, severity: critical, class: cpu, actions: [notify, migrate_away]"
    world = World(one_rule(more, when="> 90"))
    world.entity("a", project="p-7")
    world.run(95, 96, 97)
    change = world.changes[-1]
    assert change.plain() == {
        "rule": "r",
        "version": world.rules.version,
        "host": "cmp-7",
        "kind": "guest",
        "entity": "u-a",
        "name": "a",
        "project": "p-7",
        "before": P,
        "state": F,
        "severity": "critical",
        "value": 97,
        "threshold": 90.0,
        "window_s": 2.0,
        "first_at": BEGIN.isoformat(),
        "last_at": (BEGIN + timedelta(seconds=2)).isoformat(),
        "at": (BEGIN + timedelta(seconds=2)).isoformat(),
        "samples": 3,
        "topic": "cpu",
        "actions": ["notify", "migrate_away"],
        "key": f"u-a/r/{BEGIN.isoformat()}",
    }
