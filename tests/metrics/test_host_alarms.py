# SPDX-License-Identifier: Apache-2.0
"""What alarms say reaches the outbox once, with what has to be remembered, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.outbox import Outbox
from holdfast.alarms import central
from holdfast.alarms.host_alarms import HostAlarms
from holdfast.alarms.rule_manager import FILE, RuleManager
from holdfast.alarms.rules import RuleSet
from holdfast.alarms.tracks import Group
from holdfast.metrics.plugin_events import MOST_NOTES, MOST_RAISED, PluginEvents
from holdfast.model import observation
from holdfast.model.host import normalise
from holdfast.ports.metric_plugins import Note
from tests.alarms.world import World
from tests.simclock import SimClock

#: It stands still: time passes where a test says so.
CLOCK = SimClock()
UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
HOT = "group_wait: 0\nrules:\n  - {id: hot, on: guest, field: x, when: '> 90'}\n"


class House:
    def __init__(self, path: Path, most: int = 100) -> None:
        self.outbox = Outbox(str(path), most=most)
        self.world = World(RuleSet(), now=CLOCK.monotonic())
        self.world.about["web"] = self.world.entity("web").__class__("guest", UUID, "web", "p-1")
        self.rule_manager = RuleManager(self.world.engine, self.outbox, CLOCK, known_fields=False)
        self.rung = 0
        self.alarms = HostAlarms(
            "cmp-7", self.rule_manager, self.outbox, CLOCK, report_stored=self._wake
        )

    def _wake(self) -> None:
        self.rung += 1

    def look(self, web: float) -> None:
        self.alarms.evaluate(self.world.snapshot({"web": web}))
        self.world.now += 1

    def hear(self, events: PluginEvents, *notes: Note) -> list[dict[str, Any]]:
        """A pass in which plugins say that; what is told."""
        snapshot = self.world.snapshot({"web": 1.0})
        for plugin_note in notes:
            events.note(plugin_note)
        self.alarms.evaluate(snapshot)
        changes = events.consume(snapshot)
        self.alarms.notify([Group("cmp-7", "", tuple(changes))])
        self.world.now += 1
        return self.told()

    def told(self) -> list[dict[str, Any]]:
        bodies = []
        while heads := self.outbox.heads():
            for item in heads:
                bodies.append(dict(item.body))
                self.outbox.done(item)
        return bodies


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.outbox"


def test_an_alarm_is_reported_when_raised_and_when_cleared(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    for value in (10, 95, 96, 50):
        house.look(value)
    raised, cleared = house.told()
    assert (raised["state"], cleared["state"]) == ("raised", "cleared")
    assert raised["key"] != cleared["key"]
    assert raised["evidence"]["key"] == cleared["evidence"]["key"]
    assert house.rung == 2


def test_alarm_reports_are_accepted_by_the_managers_parser(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    (body,) = house.told()
    assert body["state"] in observation.STATES[body["kind"]]
    subject = observation.subject(body["kind"], body["subject"], body["evidence"]["host"])
    report = central.read(body["evidence"], normalise("CMP-7"), subject, body["state"])
    assert (report.rule, report.state, report.project) == ("hot", "firing", "p-1")
    assert (report.subject, report.version) == (f"server:{UUID}", house.rule_manager.rules.version)


def test_after_a_restart_only_the_end_of_the_alarm_is_reported(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    (raised,) = house.told()
    house.outbox.close()  # as after kill -9: nothing is said
    again = House(path)
    again.look(95)
    assert again.told() == []
    again.look(10)
    (cleared,) = again.told()
    assert cleared["state"] == "cleared"
    assert cleared["evidence"]["key"] == raised["evidence"]["key"]


def test_reports_that_the_disk_refuses_are_sent_later(path: Path) -> None:
    house = House(path, most=1)
    house.outbox.put([("x", "x", {})])  # full
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    assert [head.body for head in house.outbox.heads()] == [{}]
    house.outbox.done(house.outbox.heads()[0])
    house.look(95)
    assert [body["state"] for body in house.told()] == ["raised"]


def test_plugin_alarms_are_reported_like_rule_alarms(path: Path) -> None:
    house = House(path)
    events = PluginEvents("cmp-7")
    events.off("greedy", "5 strikes within 60 s")
    changes = events.consume(house.world.snapshot({"web": 1.0}))
    house.alarms.notify([Group("cmp-7", "", tuple(changes))])
    (body,) = house.told()
    assert (body["subject"], body["state"]) == ("host:cmp-7", "raised")
    report = central.read(body["evidence"], "cmp-7", body["subject"], "raised")
    assert report.rule.startswith("plugin:")


def note(house: House, about: Any = "", plugin: str = "hot", **more: Any) -> Note:
    made = Note(plugin, "cmp-7", about, "it is so", house.world.at, "warning", 1.0, 0.5)
    return replace(made, **more)


def test_a_plugin_alarm_from_before_a_restart_is_cleared_unless_repeated(path: Path) -> None:
    house = House(path)
    (raised,) = house.hear(PluginEvents("cmp-7"), note(house))
    house.outbox.close()
    again, events = House(path), PluginEvents("cmp-7")
    assert again.hear(events) == []
    again.world.now += 58
    assert again.hear(events) == []
    again.world.now += 1
    (cleared,) = again.hear(events)
    assert (cleared["state"], cleared["evidence"]["reason"]) == ("cleared", "no longer reported")
    assert cleared["evidence"]["key"] == raised["evidence"]["key"]
    assert again.hear(events) == []
    again.outbox.close()
    last = House(path)
    last.world.now += 100
    assert last.hear(PluginEvents("cmp-7")) == []


def test_a_note_repeated_after_a_restart_continues_the_same_alarm(path: Path) -> None:
    house = House(path)
    (raised,) = house.hear(PluginEvents("cmp-7"), note(house))
    house.outbox.close()
    again, events = House(path), PluginEvents("cmp-7")
    for _ in range(3):
        again.world.now += 40
        assert again.hear(events, note(again)) == []
    again.world.now += 100
    (cleared,) = again.hear(events)
    assert cleared["state"] == "cleared"
    assert cleared["evidence"]["key"] == raised["evidence"]["key"]


@pytest.mark.parametrize(
    "bad", [{"value": object()}, {"value": float("nan")}, {"threshold": {1}}, {"about": "\ud800"}]
)
def test_an_alarm_that_cannot_be_serialised_does_not_block_other_alarms(
    path: Path, bad: dict[str, Any]
) -> None:
    house, events = House(path), PluginEvents("cmp-7")
    house.rule_manager.offer(HOT, FILE)
    assert [body["evidence"].get("value") for body in house.hear(events, note(house, **bad))] in (
        [],
        [None],  # what is no number is not known
    )
    house.look(95)
    assert [body["state"] for body in house.told()] == ["raised"]
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


@pytest.mark.parametrize("about", [7, None, ["u"], b"x", "n" * 5000])
def test_a_plugin_note_about_any_subject_is_a_valid_alarm_report(path: Path, about: Any) -> None:
    house, events = House(path), PluginEvents("cmp-7")
    (raised,) = house.hear(events, note(house, about))
    report = central.read(raised["evidence"], "cmp-7", raised["subject"], "raised")
    assert report.rule.startswith("plugin:hot")


def test_a_noisy_plugin_does_not_suppress_alarms_of_other_plugins(path: Path) -> None:
    house, events = House(path), PluginEvents("cmp-7")
    loud = [note(house, f"u{n}", "loud") for n in range(MOST_NOTES + 500)]
    bodies = house.hear(events, *loud, note(house, plugin="quiet"))
    rules = [body["evidence"]["rule"] for body in bodies]
    assert rules.count("plugin:quiet") == 1
    assert events.ignored["loud"] == len(loud) - MOST_RAISED


def test_the_heartbeat_knows_how_many_alarms_fire_from_the_start(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


TWO = HOT + "  - {id: cold, on: guest, field: x, when: '< 10'}\n"


def test_only_changed_state_is_written_and_all_state_is_restored(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(TWO, FILE)
    house.look(95)
    before = house.outbox.note("alarms/hot")
    for value in (50, 5):
        house.look(value)
    assert house.outbox.note("alarms")["rules"] == ["cold", "hot"]
    assert house.outbox.note("alarms/hot")["tracks"][0]["state"] == "ok"
    cooled = house.outbox.note("alarms/hot")
    assert cooled != before
    house.look(50)
    house.look(5)
    assert house.outbox.note("alarms/hot") == cooled
    house.told()
    house.outbox.close()
    again = House(path)
    assert again.rule_manager.firing == 1
    again.look(50)
    again.world.now += 40  # it came and went
    again.look(50)
    assert [body["evidence"]["rule"] for body in again.told()] == ["cold"]


def test_unwritten_reports_are_written_with_the_next_pass(path: Path) -> None:
    house = House(path, most=1)
    house.rule_manager.offer(HOT, FILE)
    house.look(10)
    house.outbox.put([("x", "x", {})])  # full
    house.look(95)
    house.outbox.done(house.outbox.heads()[0])
    house.look(95)  # nothing changes any more
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


def test_a_removed_rule_leaves_no_saved_state(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    house.rule_manager.offer("group_wait: 0\nrules: []", FILE)
    house.look(95)
    assert house.outbox.note("alarms")["rules"] == []
    assert house.outbox.note("alarms/hot") is None
    assert [body["state"] for body in house.told()] == ["raised", "cleared"]


def test_malformed_saved_state_is_ignored_and_alarms_start_anew(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    note = house.outbox.note("alarms")
    house.outbox.put((), {"alarms": {**note, "rules": {"hot": {"memory": "x"}}, "open": 5}})
    house.outbox.close()
    again = House(path)
    assert again.rule_manager.alarms() == []
