# SPDX-License-Identifier: Apache-2.0
"""Rules that change while it runs: one door, nothing by halves, and a restart goes on with them."""

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
    SOCKET,
    Heartbeat,
    RuleCommands,
    RuleManager,
    RulesFile,
    RulesPart,
)
from holdfast.alarms.rules import BadRules, RuleSet
from holdfast.alarms.scopes import Held
from holdfast.model.errors import Conflict, DriverError, InvalidInput, Unavailable
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
    """A desk, and a world whose passes go through it."""

    def __init__(self, path: Path) -> None:
        self.outbox = Outbox(str(path))
        self.world = World(RuleSet())
        self.rule_manager = RuleManager(self.world.engine, self.outbox, CLOCK, known_fields=False)

    def look(self, **guests: float) -> list[tuple[str, str]]:
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


def test_what_is_taken_counts_from_the_next_pass_on(house: House) -> None:
    assert house.look(web=95) == []
    accepted = house.rule_manager.offer(HOT, FILE)
    assert accepted.applied.begun == ("hot",)
    (trial,) = accepted.trials
    assert (trial.rule, trial.selected, trial.holds) == ("hot", 1, 1)
    assert house.look(web=95) == [("hot", "firing")]
    (alarm,) = house.rule_manager.alarms()
    assert alarm.version == house.rule_manager.rules.version == accepted.rules.version


def test_rules_about_what_nobody_measures_are_refused_but_not_taken_away(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.outbox.close()
    outbox = Outbox(str(path))
    rule_manager = RuleManager(Engine(RuleSet()), outbox, CLOCK)
    assert list(rule_manager.rules.by_id) == ["hot"]  # as another version of this program has it
    rule_manager.offer(HOT, FILE)
    for bring in (rule_manager.test, lambda text: rule_manager.offer(text, SOCKET)):
        with pytest.raises(BadRules, match=r"line 2: 'x' is no number of a guest"):
            bring(COLD)
    assert list(rule_manager.rules.by_id) == ["hot"]
    rule_manager.offer(COLD.replace("x", "util_ratio"), SOCKET)
    outbox.close()


@pytest.mark.parametrize("text", [BROKEN, "", "rules: {", b"rules: [\xff]", "{}", HOT * 2])
def test_what_cannot_be_used_is_refused_and_nothing_changes(
    house: House, text: str | bytes
) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.look(web=95)
    before = house.rule_manager.rules
    with pytest.raises(BadRules) as refused:
        house.rule_manager.offer(text, FILE)
    assert refused.value.problems
    assert house.rule_manager.rules is before
    assert house.rule_manager.tried(FILE).error == refused.value.message
    assert house.look(web=95) == []
    assert [alarm.rule for alarm in house.rule_manager.alarms()] == ["hot"]


def test_a_problem_is_told_with_its_line(house: House) -> None:
    with pytest.raises(BadRules) as refused:
        house.rule_manager.offer(BROKEN, SOCKET)
    assert [problem.line for problem in refused.value.problems] == [2]


def test_the_centre_changes_a_level_of_the_file_and_the_socket_both(house: House) -> None:
    house.rule_manager.offer(HOT.replace("90", "50"), SOCKET)
    house.rule_manager.offer(COLD + HOT.partition("\n")[2], FILE)
    house.rule_manager.offer(HOT.replace("90", "70"), CENTRAL, "v1")
    levels = {rule.id: rule.conditions[0].level for rule in house.rule_manager.rules.rules}
    assert levels == {"cold": 10, "hot": 50}
    assert [house.rule_manager.origin(name) for name in ("hot", "cold")] == [SOCKET, FILE]
    house.rule_manager.offer("rules: []", SOCKET)
    assert house.rule_manager.rules.by_id["hot"].conditions[0].level == 70


def test_an_alarm_stands_while_its_level_is_moved_and_others_are_changed(house: House) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.look(web=95)
    (alarm,) = house.rule_manager.alarms()
    applied = house.rule_manager.offer(
        HOT.replace("90", "92") + COLD.partition("\n")[2], FILE
    ).applied
    assert (applied.tuned, applied.begun) == (("hot",), ("cold",))
    assert house.look(web=95) == []
    assert [alarm.first_at for alarm in house.rule_manager.alarms()] == [alarm.first_at]


def test_going_back_is_one_call_and_can_be_done_again(house: House) -> None:
    first = house.rule_manager.offer(HOT, FILE).rules.version
    house.rule_manager.offer(COLD, FILE)
    assert house.rule_manager.roll_back().rules.version == first
    assert list(house.rule_manager.rules.by_id) == ["hot"]
    house.rule_manager.roll_back()
    assert house.rule_manager.rules.rules == ()
    with pytest.raises(Conflict, match="set others"):
        house.rule_manager.roll_back()
    assert house.rule_manager.offer(COLD, FILE).rules.number == 3


def test_a_restart_goes_on_with_what_was_in_force_and_can_go_back_further(
    house: House, path: Path
) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.rule_manager.offer(HOT.replace("90", "70"), CENTRAL, "v7")
    version = house.rule_manager.rules.version
    house.outbox.close()
    again = House(path)
    assert again.rule_manager.rules.version == version
    assert again.rule_manager.state.layers[CENTRAL].version == "v7"
    assert again.look(web=80) == [("hot", "firing")]
    again.rule_manager.roll_back()
    assert again.rule_manager.rules.by_id["hot"].conditions[0].level == 90
    again.outbox.close()
    assert House(path).rule_manager.rules.by_id["hot"].conditions[0].level == 90


def test_what_is_not_written_down_is_not_in_force(house: House) -> None:
    house.rule_manager.offer(HOT, FILE)
    version = house.rule_manager.rules.version
    house.outbox.close()
    with pytest.raises(DriverError):
        house.rule_manager.offer(COLD, FILE)
    with pytest.raises(DriverError):
        house.rule_manager.roll_back()
    assert (house.rule_manager.rules.version, house.rule_manager.tried(FILE).error) == (version, "")


def test_the_same_text_again_is_the_same_version(house: House) -> None:
    first = house.rule_manager.offer(HOT, CENTRAL, "v1")
    again = house.rule_manager.offer(HOT, CENTRAL, "v2")
    assert again.rules.version == first.rules.version
    assert house.rule_manager.state.layers[CENTRAL].version == "v2"
    assert house.rule_manager.before() == ["0-e3b0c44298fc"]


def test_rules_that_trip_over_the_last_pass_are_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(_engine: Engine, _rules: RuleSet) -> None:
        raise ZeroDivisionError("by zero")

    house.look(web=1)
    monkeypatch.setattr(Engine, "try_out", trips)
    with pytest.raises(BadRules, match="cannot be judged by these rules"):
        house.rule_manager.offer(HOT, FILE)
    assert house.rule_manager.rules.rules == ()


def test_rules_come_from_places_that_are_known(house: House) -> None:
    with pytest.raises(InvalidInput, match="file, central, socket"):
        house.rule_manager.offer(HOT, "hearsay")


def test_many_who_offer_while_passes_go_on_lose_no_pass_and_no_offer(house: House) -> None:
    def offer(number: int) -> None:
        for round_ in range(20):
            text = HOT.replace("90", str(60 + number)) if round_ % 4 else BROKEN
            try:
                house.rule_manager.offer(text, (FILE, CENTRAL, SOCKET)[number])
            except BadRules:
                continue

    threads = [threading.Thread(target=offer, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    passes = 0
    while any(thread.is_alive() for thread in threads):
        house.look(web=1)
        passes += 1
    assert passes
    assert house.world.engine.dropped == 0
    assert house.rule_manager.rules.by_id["hot"].conditions[0].level == 62


# the file


def test_a_file_is_taken_when_it_changes_and_a_broken_one_is_not(
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
    """A outbox whose disk is full for so many writes."""

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
def test_a_file_that_the_disk_did_not_take_is_offered_until_it_does(
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


def test_a_file_that_could_not_be_read_is_read_when_it_can_be(
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


def test_of_a_file_that_is_refused_nobody_says_that_it_is_tried_again(
    house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "rules.yaml"
    file.write_text(BROKEN)
    part = RulesPart(RulesFile(str(file), house.rule_manager), None, CLOCK)
    for _ in range(3):
        part._rounds[0]._try_turn()
    (said,) = [
        record.getMessage() for record in caplog.records if record.name == RuleManager.__module__
    ]
    assert "alarm rules of file are not taken" in said
    file.write_text(HOT)
    part._rounds[0]._try_turn()
    assert not any("well again" in record.getMessage() for record in caplog.records)


def test_a_file_that_was_gone_back_from_is_taken_again_only_by_a_hang_up(
    house: House, tmp_path: Path, path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.rule_manager)
    inlet.poll()
    house.rule_manager.roll_back()
    inlet.poll()
    assert house.rule_manager.rules.rules == ()
    house.outbox.close()
    again = House(path)
    inlet = RulesFile(str(file), again.rule_manager)
    inlet.poll()
    assert again.rule_manager.rules.rules == ()
    inlet.again()
    assert list(again.rule_manager.rules.by_id) == ["hot"]


def test_rules_of_a_file_that_is_not_configured_any_more_are_gone(
    house: House, tmp_path: Path
) -> None:
    house.rule_manager.offer(HOT, FILE)
    inlet = RulesFile(None, house.rule_manager)
    inlet.poll()
    assert house.rule_manager.rules.rules == ()
    offered = house.rule_manager.tried(FILE)
    inlet.poll()
    assert (
        house.rule_manager.tried(FILE) is offered
    )  # nothing is offered, and written, every second
    house.rule_manager.roll_back()
    inlet.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]


def test_a_hang_up_is_heard_at_once(house: House, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    part = RulesPart(RulesFile(str(file), house.rule_manager), None, CLOCK)
    part.start()
    try:
        eventually(lambda: house.rule_manager.rules.rules, every=0.01)
        house.rule_manager.roll_back()
        part.reload()
        eventually(lambda: house.rule_manager.rules.rules, every=0.01)
        assert list(house.rule_manager.rules.by_id) == ["hot"]
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


def test_a_new_version_is_fetched_once_and_told_back(
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


def test_what_is_refused_is_told_at_once_and_not_asked_for_again(
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


def test_what_was_gone_back_from_on_the_host_stays_so_and_is_told(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    for version, text in (("v1", HOT), ("v2", COLD)):
        centre.held = Held(version, text)
        beat.poll()
    house.rule_manager.roll_back()
    beat.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]
    assert centre.bodies[-1]["rules"]["central"] == "v1"
    assert "v2 was gone back from" in centre.bodies[-1]["rules"]["error"]


def test_a_centre_that_is_away_changes_nothing(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    centre.held = Held("v1", HOT)
    beat.poll()
    centre.away = True
    with pytest.raises(Unavailable):
        beat.poll()
    assert list(house.rule_manager.rules.by_id) == ["hot"]


# the socket


def test_people_list_set_test_and_go_back_by_the_socket(house: House) -> None:
    commands = RuleCommands(house.rule_manager).commands()
    house.look(web=95)
    house.rule_manager.offer(COLD, FILE)
    house.look(web=95)
    said = commands["metrics.rules.set"]({"text": HOT})
    assert said["begun"] == ["hot"] and said["kept"] == ["cold"]  # type: ignore[index]
    listed: Any = commands["metrics.rules.list"]({})
    assert [(rule["id"], rule["source"]) for rule in listed["rules"]] == [
        ("cold", "file"),
        ("hot", "socket"),
    ]
    tested: Any = commands["metrics.rules.test"]({"text": HOT.replace("90", "99")})
    assert tested["trials"] == [{"rule": "hot", "selected": 1, "holds": 0, "unknown": 0}]
    assert house.rule_manager.rules.version == listed["version"]
    with pytest.raises(BadRules):
        commands["metrics.rules.test"]({"text": BROKEN})
    commands["metrics.rules.rollback"]({})
    assert list(house.rule_manager.rules.by_id) == ["cold"]
    with pytest.raises(InvalidInput, match="unknown"):
        commands["metrics.rules.list"]({"x": 1})
    with pytest.raises(InvalidInput, match="text"):
        commands["metrics.rules.set"]({"text": 5})


def test_a_note_of_rules_that_cannot_be_read_any_more_leaves_the_others(
    house: House, path: Path
) -> None:
    house.rule_manager.offer(HOT, FILE)
    house.rule_manager.offer(COLD, SOCKET)
    note = house.outbox.note(NOTE)
    note["now"]["layers"]["file"]["text"] = BROKEN
    house.outbox.put((), {NOTE: note})
    house.outbox.close()
    again = House(path)
    assert list(again.rule_manager.rules.by_id) == ["cold"]
    assert "line 2" in again.rule_manager.tried(FILE).error
