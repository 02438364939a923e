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
        self.spool = Outbox(str(path))
        self.world = World(RuleSet())
        self.desk = RuleManager(self.world.engine, self.spool, CLOCK, known_fields=False)

    def look(self, **guests: float) -> list[tuple[str, str]]:
        """A pass; which alarms changed."""
        outcome = self.desk.take(self.world.snapshot(guests))
        self.world.now += 1
        return [(one.rule, one.state) for one in outcome.changes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.spool"


@pytest.fixture
def house(path: Path) -> House:
    return House(path)


def test_what_is_taken_counts_from_the_next_pass_on(house: House) -> None:
    assert house.look(web=95) == []
    accepted = house.desk.offer(HOT, FILE)
    assert accepted.applied.begun == ("hot",)
    (trial,) = accepted.trials
    assert (trial.rule, trial.selected, trial.holds) == ("hot", 1, 1)
    assert house.look(web=95) == [("hot", "firing")]
    (alarm,) = house.desk.alarms()
    assert alarm.version == house.desk.rules.version == accepted.rules.version


def test_rules_about_what_nobody_measures_are_refused_but_not_taken_away(path: Path) -> None:
    house = House(path)
    house.desk.offer(HOT, FILE)
    house.spool.close()
    spool = Outbox(str(path))
    desk = RuleManager(Engine(RuleSet()), spool, CLOCK)
    assert list(desk.rules.by_id) == ["hot"]  # as another version of this program has it
    desk.offer(HOT, FILE)
    for bring in (desk.test, lambda text: desk.offer(text, SOCKET)):
        with pytest.raises(BadRules, match=r"line 2: 'x' is no number of a guest"):
            bring(COLD)
    assert list(desk.rules.by_id) == ["hot"]
    desk.offer(COLD.replace("x", "util_ratio"), SOCKET)
    spool.close()


@pytest.mark.parametrize("text", [BROKEN, "", "rules: {", b"rules: [\xff]", "{}", HOT * 2])
def test_what_cannot_be_used_is_refused_and_nothing_changes(
    house: House, text: str | bytes
) -> None:
    house.desk.offer(HOT, FILE)
    house.look(web=95)
    before = house.desk.rules
    with pytest.raises(BadRules) as refused:
        house.desk.offer(text, FILE)
    assert refused.value.problems
    assert house.desk.rules is before
    assert house.desk.tried(FILE).error == refused.value.message
    assert house.look(web=95) == []
    assert [one.rule for one in house.desk.alarms()] == ["hot"]


def test_a_problem_is_told_with_its_line(house: House) -> None:
    with pytest.raises(BadRules) as refused:
        house.desk.offer(BROKEN, SOCKET)
    assert [one.line for one in refused.value.problems] == [2]


def test_the_centre_changes_a_level_of_the_file_and_the_socket_both(house: House) -> None:
    house.desk.offer(HOT.replace("90", "50"), SOCKET)
    house.desk.offer(COLD + HOT.partition("\n")[2], FILE)
    house.desk.offer(HOT.replace("90", "70"), CENTRAL, "v1")
    levels = {one.id: one.conditions[0].level for one in house.desk.rules.rules}
    assert levels == {"cold": 10, "hot": 50}
    assert [house.desk.origin(name) for name in ("hot", "cold")] == [SOCKET, FILE]
    house.desk.offer("rules: []", SOCKET)
    assert house.desk.rules.by_id["hot"].conditions[0].level == 70


def test_an_alarm_stands_while_its_level_is_moved_and_others_are_changed(house: House) -> None:
    house.desk.offer(HOT, FILE)
    house.look(web=95)
    (alarm,) = house.desk.alarms()
    applied = house.desk.offer(HOT.replace("90", "92") + COLD.partition("\n")[2], FILE).applied
    assert (applied.tuned, applied.begun) == (("hot",), ("cold",))
    assert house.look(web=95) == []
    assert [one.first_at for one in house.desk.alarms()] == [alarm.first_at]


def test_going_back_is_one_call_and_can_be_done_again(house: House) -> None:
    first = house.desk.offer(HOT, FILE).rules.version
    house.desk.offer(COLD, FILE)
    assert house.desk.roll_back().rules.version == first
    assert list(house.desk.rules.by_id) == ["hot"]
    house.desk.roll_back()
    assert house.desk.rules.rules == ()
    with pytest.raises(Conflict, match="set others"):
        house.desk.roll_back()
    assert house.desk.offer(COLD, FILE).rules.number == 3


def test_a_restart_goes_on_with_what_was_in_force_and_can_go_back_further(
    house: House, path: Path
) -> None:
    house.desk.offer(HOT, FILE)
    house.desk.offer(HOT.replace("90", "70"), CENTRAL, "v7")
    version = house.desk.rules.version
    house.spool.close()
    again = House(path)
    assert again.desk.rules.version == version
    assert again.desk.state.layers[CENTRAL].version == "v7"
    assert again.look(web=80) == [("hot", "firing")]
    again.desk.roll_back()
    assert again.desk.rules.by_id["hot"].conditions[0].level == 90
    again.spool.close()
    assert House(path).desk.rules.by_id["hot"].conditions[0].level == 90


def test_what_is_not_written_down_is_not_in_force(house: House) -> None:
    house.desk.offer(HOT, FILE)
    version = house.desk.rules.version
    house.spool.close()
    with pytest.raises(DriverError):
        house.desk.offer(COLD, FILE)
    with pytest.raises(DriverError):
        house.desk.roll_back()
    assert (house.desk.rules.version, house.desk.tried(FILE).error) == (version, "")


def test_the_same_text_again_is_the_same_version(house: House) -> None:
    first = house.desk.offer(HOT, CENTRAL, "v1")
    again = house.desk.offer(HOT, CENTRAL, "v2")
    assert again.rules.version == first.rules.version
    assert house.desk.state.layers[CENTRAL].version == "v2"
    assert house.desk.before() == ["0-e3b0c44298fc"]


def test_rules_that_trip_over_the_last_pass_are_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(_engine: Engine, _rules: RuleSet) -> None:
        raise ZeroDivisionError("by zero")

    house.look(web=1)
    monkeypatch.setattr(Engine, "try_out", trips)
    with pytest.raises(BadRules, match="cannot be judged by these rules"):
        house.desk.offer(HOT, FILE)
    assert house.desk.rules.rules == ()


def test_rules_come_from_places_that_are_known(house: House) -> None:
    with pytest.raises(InvalidInput, match="file, central, socket"):
        house.desk.offer(HOT, "hearsay")


def test_many_who_offer_while_passes_go_on_lose_no_pass_and_no_offer(house: House) -> None:
    def offer(number: int) -> None:
        for round_ in range(20):
            text = HOT.replace("90", str(60 + number)) if round_ % 4 else BROKEN
            try:
                house.desk.offer(text, (FILE, CENTRAL, SOCKET)[number])
            except BadRules:
                continue

    threads = [threading.Thread(target=offer, args=(n,)) for n in range(3)]
    for one in threads:
        one.start()
    passes = 0
    while any(one.is_alive() for one in threads):
        house.look(web=1)
        passes += 1
    assert passes
    assert house.world.engine.dropped == 0
    assert house.desk.rules.by_id["hot"].conditions[0].level == 62


# the file


def test_a_file_is_taken_when_it_changes_and_a_broken_one_is_not(
    house: House, tmp_path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.desk)
    inlet.look()
    assert list(house.desk.rules.by_id) == ["hot"]
    file.write_text(BROKEN)
    with pytest.raises(BadRules):
        inlet.look()
    inlet.look()  # said once
    assert list(house.desk.rules.by_id) == ["hot"]
    file.write_text(COLD)
    inlet.look()
    assert list(house.desk.rules.by_id) == ["cold"]


class Failing:
    """A spool whose disk is full for so many writes."""

    def __init__(self, spool: Outbox, times: int) -> None:
        self._spool = spool
        self.times = times

    def put(self, items: Any, notes: Any = None) -> None:
        if self.times:
            self.times -= 1
            raise DriverError("spool", "the disk is full", retryable=True)
        self._spool.put(items, notes)

    def note(self, name: str) -> Any:
        return self._spool.note(name)


@pytest.mark.parametrize("how", ["first", "changed", "hang up"])
def test_a_file_that_the_disk_did_not_take_is_offered_until_it_does(
    house: House, tmp_path: Path, how: str
) -> None:
    spool = Failing(house.spool, 2 if how == "first" else 0)
    desk = RuleManager(house.world.engine, spool, CLOCK, known_fields=False)
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), desk)
    if how != "first":
        inlet.look()
        file.write_text(COLD)
        spool.times = 2
    with pytest.raises(DriverError):
        (inlet.again if how == "hang up" else inlet.look)()
    with pytest.raises(DriverError):
        inlet.look()
    inlet.look()
    assert list(desk.rules.by_id) == ["hot" if how == "first" else "cold"]
    before = desk.tried(FILE)
    inlet.look()
    assert desk.tried(FILE) is before


def test_a_file_that_could_not_be_read_is_read_when_it_can_be(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.desk)
    inlet.look()
    file.write_text(COLD)
    with monkeypatch.context() as patched:
        patched.setattr(documents, "open", _broken, raising=False)
        inlet.look()
        inlet.look()
    assert list(house.desk.rules.by_id) == ["hot"]
    inlet.look()
    assert list(house.desk.rules.by_id) == ["cold"]


def _broken(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_of_a_file_that_is_refused_nobody_says_that_it_is_tried_again(
    house: House, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "rules.yaml"
    file.write_text(BROKEN)
    part = RulesPart(RulesFile(str(file), house.desk), None, CLOCK)
    for _ in range(3):
        part._rounds[0]._round()
    (said,) = [one.getMessage() for one in caplog.records if one.name == RuleManager.__module__]
    assert "alarm rules of file are not taken" in said
    file.write_text(HOT)
    part._rounds[0]._round()
    assert not any("well again" in one.getMessage() for one in caplog.records)


def test_a_file_that_was_gone_back_from_is_taken_again_only_by_a_hang_up(
    house: House, tmp_path: Path, path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    inlet = RulesFile(str(file), house.desk)
    inlet.look()
    house.desk.roll_back()
    inlet.look()
    assert house.desk.rules.rules == ()
    house.spool.close()
    again = House(path)
    inlet = RulesFile(str(file), again.desk)
    inlet.look()
    assert again.desk.rules.rules == ()
    inlet.again()
    assert list(again.desk.rules.by_id) == ["hot"]


def test_rules_of_a_file_that_is_not_configured_any_more_are_gone(
    house: House, tmp_path: Path
) -> None:
    house.desk.offer(HOT, FILE)
    inlet = RulesFile(None, house.desk)
    inlet.look()
    assert house.desk.rules.rules == ()
    offered = house.desk.tried(FILE)
    inlet.look()
    assert house.desk.tried(FILE) is offered  # nothing is offered, and written, every second
    house.desk.roll_back()
    inlet.look()
    assert list(house.desk.rules.by_id) == ["hot"]


def test_a_hang_up_is_heard_at_once(house: House, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(HOT)
    part = RulesPart(RulesFile(str(file), house.desk), None, CLOCK)
    part.start()
    try:
        eventually(lambda: house.desk.rules.rules, every=0.01)
        house.desk.roll_back()
        part.reload()
        eventually(lambda: house.desk.rules.rules, every=0.01)
        assert list(house.desk.rules.by_id) == ["hot"]
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
    return Heartbeat("cmp-7", centre, house.desk, lambda: {"started_at": "now"})


def test_a_new_version_is_fetched_once_and_told_back(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    beat.look()
    assert centre.asked == 0
    centre.held = Held("v1", HOT)
    for _ in range(3):
        beat.look()
    assert centre.asked == 1
    assert centre.bodies[-1]["rules"] == {
        "version": house.desk.rules.version,
        "central": "v1",
        "error": "",
    }
    centre.held = Held("none", "rules: []")
    beat.look()
    assert house.desk.rules.rules == ()


def test_what_is_refused_is_told_at_once_and_not_asked_for_again(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    centre.held = Held("v2", BROKEN)
    beat.look()
    beat.look()
    assert centre.asked == 1
    assert "line 2" in centre.bodies[1]["rules"]["error"]
    assert centre.bodies[-1]["rules"]["central"] == "none"
    centre.held = Held("v3", HOT)
    beat.look()
    beat.look()
    assert centre.bodies[-1]["rules"]["error"] == ""
    assert list(house.desk.rules.by_id) == ["hot"]


def test_what_was_gone_back_from_on_the_host_stays_so_and_is_told(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    for version, text in (("v1", HOT), ("v2", COLD)):
        centre.held = Held(version, text)
        beat.look()
    house.desk.roll_back()
    beat.look()
    assert list(house.desk.rules.by_id) == ["hot"]
    assert centre.bodies[-1]["rules"]["central"] == "v1"
    assert "v2 was gone back from" in centre.bodies[-1]["rules"]["error"]


def test_a_centre_that_is_away_changes_nothing(
    house: House, centre: Centre, beat: Heartbeat
) -> None:
    centre.held = Held("v1", HOT)
    beat.look()
    centre.away = True
    with pytest.raises(Unavailable):
        beat.look()
    assert list(house.desk.rules.by_id) == ["hot"]


# the socket


def test_people_list_set_test_and_go_back_by_the_socket(house: House) -> None:
    commands = RuleCommands(house.desk).commands()
    house.look(web=95)
    house.desk.offer(COLD, FILE)
    house.look(web=95)
    said = commands["metrics.rules.set"]({"text": HOT})
    assert said["begun"] == ["hot"] and said["kept"] == ["cold"]  # type: ignore[index]
    listed: Any = commands["metrics.rules.list"]({})
    assert [(one["id"], one["source"]) for one in listed["rules"]] == [
        ("cold", "file"),
        ("hot", "socket"),
    ]
    tested: Any = commands["metrics.rules.test"]({"text": HOT.replace("90", "99")})
    assert tested["trials"] == [{"rule": "hot", "selected": 1, "holds": 0, "unknown": 0}]
    assert house.desk.rules.version == listed["version"]
    with pytest.raises(BadRules):
        commands["metrics.rules.test"]({"text": BROKEN})
    commands["metrics.rules.rollback"]({})
    assert list(house.desk.rules.by_id) == ["cold"]
    with pytest.raises(InvalidInput, match="unknown"):
        commands["metrics.rules.list"]({"x": 1})
    with pytest.raises(InvalidInput, match="text"):
        commands["metrics.rules.set"]({"text": 5})


def test_a_note_of_rules_that_cannot_be_read_any_more_leaves_the_others(
    house: House, path: Path
) -> None:
    house.desk.offer(HOT, FILE)
    house.desk.offer(COLD, SOCKET)
    note = house.spool.note(NOTE)
    note["now"]["layers"]["file"]["text"] = BROKEN
    house.spool.put((), {NOTE: note})
    house.spool.close()
    again = House(path)
    assert list(again.desk.rules.by_id) == ["cold"]
    assert "line 2" in again.desk.tried(FILE).error
