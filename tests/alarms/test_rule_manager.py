# SPDX-License-Identifier: Apache-2.0
"""Rules of the agent change while it runs, by file and centre; a restart continues with them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.outbox import Outbox
from holdfast.alarms.engine import Engine
from holdfast.alarms.rule_manager import (
    CENTRAL,
    FILE,
    NOTE,
    Heartbeat,
    RuleCommands,
    RuleManager,
    RulesFile,
    RulesPart,
)
from holdfast.alarms.rules import BadRules, RuleSet
from holdfast.alarms.scopes import Held
from holdfast.model.errors import DriverError, InvalidInput, Unavailable
from holdfast.model.observation import Heard
from holdfast.runtime import documents
from holdfast.runtime.clock import SystemClock
from tests.alarms.world import World
from tests.processes import eventually

CLOCK = SystemClock()
HOT = "rules:\n  - {id: hot, on: guest, field: x, when: '> 90'}\n"
COLD = "rules:\n  - {id: cold, on: guest, field: x, when: '< 10'}\n"
BROKEN = "rules:\n  - {id: hot, on: guest, field: x, when: 'about 90'}\n"


class House:
    """A rule manager, and a world whose passes go through the rule manager."""

    def __init__(self, path: Path) -> None:
        self.outbox = Outbox(str(path))
        self.world = World(RuleSet())
        self.rule_manager = RuleManager(self.world.engine, self.outbox, CLOCK, known_fields=False)

    def run_pass(self, **guests: float) -> list[tuple[str, str]]:
        """A pass; which alarms changed."""
        outcome = self.rule_manager.apply(self.world.snapshot(guests))
        self.world.now += 1
        return [(change.rule, change.state) for change in outcome.changes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.outbox"


@pytest.fixture
def house(path: Path) -> House:
    return House(path)


def test_accepted_rules_are_in_force_from_the_next_pass_on(house: House) -> None:
    assert house.run_pass(web=95) == []
    accepted = house.rule_manager.offer(HOT, FILE)
    assert accepted.applied.begun == ("hot",)
    (trial,) = accepted.trials
    assert (trial.rule, trial.selected, trial.holds) == ("hot", 1, 1)
    assert house.run_pass(web=95) == [("hot", "firing")]
    (alarm,) = house.rule_manager.alarms()
    assert alarm.version == house.rule_manager.rules.version == accepted.rules.version


def test_rules_on_unmeasured_fields_are_refused_but_accepted_rules_stay(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.outbox.close()
    outbox = Outbox(str(path))
    rule_manager = RuleManager(Engine(RuleSet()), outbox, CLOCK)
    assert list(rule_manager.rules.by_id) == ["hot"]  # as another version of this program has it
    rule_manager.offer(HOT, FILE)
    for bring in (rule_manager.test, lambda text: rule_manager.offer(text, CENTRAL)):
        with pytest.raises(BadRules, match=r"line 2: 'x' is no field of a guest"):
            bring(COLD)
    assert list(rule_manager.rules.by_id) == ["hot"]
    rule_manager.offer(COLD.replace("x", "util_ratio"), CENTRAL)
    outbox.close()


@pytest.mark.parametrize("text", [BROKEN, "", "rules: {", b"rules: [\xff]", "{}", HOT * 2])
def test_unusable_rules_are_refused_and_nothing_changes(house: House, text: str | bytes) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.run_pass(web=95)
    before = house.rule_manager.rules
    with pytest.raises(BadRules) as refused:
        house.rule_manager.offer(text, FILE)
    assert refused.value.problems
    assert house.rule_manager.rules is before
    assert house.rule_manager.tried(FILE).error == refused.value.message
    assert house.run_pass(web=95) == []
    assert [alarm.rule for alarm in house.rule_manager.alarms()] == ["hot"]


def test_a_problem_is_reported_with_its_line(house: House) -> None:
    with pytest.raises(BadRules) as refused:
        house.rule_manager.offer(BROKEN, CENTRAL)
    assert [problem.line for problem in refused.value.problems] == [2]


def test_the_centre_changes_a_level_of_the_file(house: House) -> None:
    house.rule_manager.offer(HOT.replace("90", "70"), CENTRAL, "v1")
    house.rule_manager.offer(COLD + HOT.partition("\n")[2], FILE)
    levels = {rule.id: rule.conditions[0].level for rule in house.rule_manager.rules.rules}
    assert levels == {"cold": 10, "hot": 70}
    assert [house.rule_manager.origin(name) for name in ("hot", "cold")] == [CENTRAL, FILE]
    house.rule_manager.offer("rules: []", CENTRAL)
    assert house.rule_manager.rules.by_id["hot"].conditions[0].level == 90


def test_an_alarm_stays_raised_while_levels_and_other_rules_change(house: House) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.run_pass(web=95)
    (alarm,) = house.rule_manager.alarms()
    applied = house.rule_manager.offer(
        HOT.replace("90", "92") + COLD.partition("\n")[2], FILE
    ).applied
    assert (applied.tuned, applied.begun) == (("hot",), ("cold",))
    assert house.run_pass(web=95) == []
    assert [alarm.first_at for alarm in house.rule_manager.alarms()] == [alarm.first_at]


def test_a_restart_continues_with_the_rules_in_force(house: House, path: Path) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.rule_manager.offer(HOT.replace("90", "70"), CENTRAL, "v7")
    version = house.rule_manager.rules.version
    house.outbox.close()
    again = House(path)
    assert again.rule_manager.rules.version == version
    assert again.rule_manager.state.layers[CENTRAL].version == "v7"
    assert again.run_pass(web=80) == [("hot", "firing")]
    assert again.rule_manager.offer(COLD, FILE).rules.number == 3


def test_rules_that_the_disk_refuses_are_not_in_force(house: House) -> None:
    house.rule_manager.offer(HOT, FILE)
    version = house.rule_manager.rules.version
    house.outbox.close()
    with pytest.raises(DriverError):
        house.rule_manager.offer(COLD, FILE)
    assert (house.rule_manager.rules.version, house.rule_manager.tried(FILE).error) == (version, "")


def test_the_same_text_again_is_the_same_version(house: House) -> None:
    first = house.rule_manager.offer(HOT, CENTRAL, "v1")
    again = house.rule_manager.offer(HOT, CENTRAL, "v2")
    assert again.rules.version == first.rules.version
    assert house.rule_manager.state.layers[CENTRAL].version == "v2"


def test_rules_that_trip_over_the_last_pass_are_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(_engine: Engine, _rules: RuleSet) -> None:
        raise ZeroDivisionError("by zero")

    house.run_pass(web=1)
    monkeypatch.setattr(Engine, "try_out", trips)
    with pytest.raises(BadRules, match="cannot be judged by these rules"):
        house.rule_manager.offer(HOT, FILE)
    assert house.rule_manager.rules.rules == ()


def test_rules_from_an_unknown_source_are_refused(house: House) -> None:
    with pytest.raises(InvalidInput, match="file, central, not"):
        house.rule_manager.offer(HOT, "hearsay")


def test_concurrent_offers_during_passes_lose_no_pass_and_no_offer(house: House) -> None:
    def offer(number: int) -> None:
        for round_ in range(20):
            text = HOT.replace("90", str(60 + number)) if round_ % 4 else BROKEN
            try:
                house.rule_manager.offer(text, (FILE, CENTRAL)[number])
            except BadRules:
                continue

    threads = [threading.Thread(target=offer, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    passes = 0
    while any(thread.is_alive() for thread in threads):
        house.run_pass(web=1)
        passes += 1
    assert passes
    assert house.world.engine.dropped == 0
    assert house.rule_manager.rules.by_id["hot"].conditions[0].level == 61


# the file


def test_a_changed_rules_file_is_accepted_and_a_broken_file_is_refused(
    house: House, tmp_path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.rule_manager)
    inlet.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]
    file.write_text(BROKEN)
    with pytest.raises(BadRules):
        inlet.poll()
    inlet.poll()  # said once
    assert list(house.rule_manager.rules.by_id) == ["hot"]
    file.write_text(COLD)
    inlet.poll()
    assert list(house.rule_manager.rules.by_id) == ["cold"]


class Failing:
    """An outbox whose disk is full for so many writes."""

    def __init__(self, outbox: Outbox, times: int) -> None:
        self._outbox = outbox
        self.times = times

    def put(self, items: Any, notes: Any = None) -> None:
        if self.times:
            self.times -= 1
            raise DriverError("outbox", "the disk is full", retryable=True)
        self._outbox.put(items, notes)

    def note(self, name: str) -> Any:
        return self._outbox.note(name)


@pytest.mark.parametrize("how", ["first", "changed", "hang up"])
def test_a_rules_file_is_offered_again_until_the_disk_accepts_the_rules(
    house: House, tmp_path: Path, how: str
) -> None:
    outbox = Failing(house.outbox, 2 if how == "first" else 0)
    rule_manager = RuleManager(house.world.engine, outbox, CLOCK, known_fields=False)
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), rule_manager)
    if how != "first":
        inlet.poll()
        file.write_text(COLD)
        outbox.times = 2
    with pytest.raises(DriverError):
        (inlet.again if how == "hang up" else inlet.poll)()
    with pytest.raises(DriverError):
        inlet.poll()
    inlet.poll()
    assert list(rule_manager.rules.by_id) == ["hot" if how == "first" else "cold"]
    before = rule_manager.tried(FILE)
    inlet.poll()
    assert rule_manager.tried(FILE) is before


def test_an_unreadable_rules_file_is_read_once_readable(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.rule_manager)
    inlet.poll()
    file.write_text(COLD)
    with monkeypatch.context() as patched:
        patched.setattr(documents, "open", _broken, raising=False)
        inlet.poll()
        inlet.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]
    inlet.poll()
    assert list(house.rule_manager.rules.by_id) == ["cold"]


def _broken(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_refused_rules_file_is_not_announced_as_retried(
    house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "rules.yaml"
    file.write_text(BROKEN)
    part = RulesPart(RulesFile(str(file), house.rule_manager), None, CLOCK)
    for _ in range(3):
        part._tasks[0]._try_turn()
    (said,) = [
        record.getMessage() for record in caplog.records if record.name == RuleManager.__module__
    ]
    assert "alarm rules of file are not taken" in said
    file.write_text(HOT)
    part._tasks[0]._try_turn()
    assert not any("well again" in record.getMessage() for record in caplog.records)


def test_rules_of_an_unconfigured_file_are_removed(house: House, tmp_path: Path) -> None:
    house.rule_manager.offer(HOT, FILE)
    inlet = RulesFile(None, house.rule_manager)
    inlet.poll()
    assert house.rule_manager.rules.rules == ()
    offered = house.rule_manager.tried(FILE)
    inlet.poll()
    assert (
        house.rule_manager.tried(FILE) is offered
    )  # nothing is offered, and written, every second


def test_sighup_offers_a_refused_file_at_once(house: House, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BROKEN)
    part = RulesPart(RulesFile(str(file), house.rule_manager), None, CLOCK)
    part.start()
    try:
        refused = eventually(lambda: house.rule_manager.tried(FILE).at, every=0.01)
        part.reload()
        eventually(lambda: house.rule_manager.tried(FILE).at != refused, every=0.01)
        assert house.rule_manager.rules.rules == ()
    finally:
        part.stop()


# the centre


class Centre:
    """`ports.agents.Centre`, and what it was told."""

    def __init__(self) -> None:
        self.held = Held("none", "rules: []")
        self.bodies: list[dict[str, Any]] = []
        self.asked = 0
        self.away = False

    def beat(self, host: str, body: Any) -> Heard:
        if self.away:
            raise Unavailable("away")
        self.bodies.append(body)
        return Heard(self.held.version)

    def samples(self, host: str, body: Any) -> None:
        raise AssertionError("nobody looks")

    def rules(self, host: str) -> Held:
        self.asked += 1
        return self.held


@pytest.fixture
def centre() -> Centre:
    return Centre()


@pytest.fixture
def beat(house: House, centre: Centre) -> Heartbeat:
    return Heartbeat("cmp-7", centre, house.rule_manager, lambda: {"started_at": "now"})


def test_a_new_version_is_fetched_once_and_reported_back(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    beat.poll()
    assert centre.asked == 0
    centre.held = Held("v1", HOT)
    for _ in range(3):
        beat.poll()
    assert centre.asked == 1
    assert centre.bodies[-1]["rules"] == {
        "version": house.rule_manager.rules.version,
        "central": "v1",
        "error": "",
    }
    centre.held = Held("none", "rules: []")
    beat.poll()
    assert house.rule_manager.rules.rules == ()


def test_refused_central_rules_are_reported_at_once_and_not_fetched_again(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    centre.held = Held("v2", BROKEN)
    beat.poll()
    beat.poll()
    assert centre.asked == 1
    assert "line 2" in centre.bodies[1]["rules"]["error"]
    assert centre.bodies[-1]["rules"]["central"] == "none"
    centre.held = Held("v3", HOT)
    beat.poll()
    beat.poll()
    assert centre.bodies[-1]["rules"]["error"] == ""
    assert list(house.rule_manager.rules.by_id) == ["hot"]


def test_an_unreachable_manager_changes_no_rules(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    centre.held = Held("v1", HOT)
    beat.poll()
    centre.away = True
    with pytest.raises(Unavailable):
        beat.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]


# the socket


def test_the_socket_lists_and_tests_rules_and_changes_none(house: House) -> None:
    commands = RuleCommands(house.rule_manager).commands()
    house.run_pass(web=95)
    house.rule_manager.offer(COLD, FILE)
    house.rule_manager.offer(HOT, CENTRAL)
    house.run_pass(web=95)
    assert set(commands) == {"metrics.rules.list", "metrics.rules.test"}
    listed: Any = commands["metrics.rules.list"]({})
    assert [(rule["id"], rule["source"]) for rule in listed["rules"]] == [
        ("cold", "file"),
        ("hot", "central"),
    ]
    tested: Any = commands["metrics.rules.test"]({"text": HOT.replace("90", "99")})
    assert tested["trials"] == [{"rule": "hot", "selected": 1, "holds": 0, "unknown": 0}]
    assert house.rule_manager.rules.version == listed["version"]
    with pytest.raises(BadRules):
        commands["metrics.rules.test"]({"text": BROKEN})
    with pytest.raises(InvalidInput, match="unknown"):
        commands["metrics.rules.list"]({"x": 1})
    with pytest.raises(InvalidInput, match="text"):
        commands["metrics.rules.test"]({"text": 5})


def test_unreadable_saved_rules_of_a_source_leave_the_other_source(
    house: House, path: Path
) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.rule_manager.offer(COLD, CENTRAL)
    note = house.outbox.note(NOTE)
    note["now"]["layers"]["file"]["text"] = BROKEN
    note["now"]["layers"]["gone"] = note["now"]["layers"]["central"]  # a source of another version
    house.outbox.put((), {NOTE: note})
    house.outbox.close()
    again = House(path)
    assert list(again.rule_manager.rules.by_id) == ["cold"]
    assert "line 2" in again.rule_manager.tried(FILE).error
