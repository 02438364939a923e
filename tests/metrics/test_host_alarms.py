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
from holdfast.metrics.plugin_events import MOST_NOTES, MOST_STANDING, PluginEvents
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

    def hear(self, news: PluginEvents, *notes: Note) -> list[dict[str, Any]]:
        """A pass in which plugins say that; what is told."""
        snapshot = self.world.snapshot({"web": 1.0})
        for one in notes:
            news.note(one)
        self.alarms.evaluate(snapshot)
        said = news.consume(snapshot)
        self.alarms.notify([Group("cmp-7", "", tuple(said))])
        self.world.now += 1
        return self.told()

    def told(self) -> list[dict[str, Any]]:
        found = []
        while heads := self.outbox.heads():
            for item in heads:
                found.append(dict(item.body))
                self.outbox.done(item)
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.outbox"


def test_an_alarm_is_told_when_it_is_raised_and_when_it_is_over(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    for value in (10, 95, 96, 50):
        house.look(value)
    raised, cleared = house.told()
    assert (raised["state"], cleared["state"]) == ("raised", "cleared")
    assert raised["key"] != cleared["key"]
    assert raised["evidence"]["key"] == cleared["evidence"]["key"]
    assert house.rung == 2


def test_what_is_told_is_what_the_centre_understands(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    (body,) = house.told()
    assert body["state"] in observation.STATES[body["kind"]]
    subject = observation.subject(body["kind"], body["subject"], body["evidence"]["host"])
    said = central.read(body["evidence"], normalise("CMP-7"), subject, body["state"])
    assert (said.rule, said.state, said.project) == ("hot", "firing", "p-1")
    assert (said.subject, said.version) == (f"server:{UUID}", house.rule_manager.rules.version)


def test_a_restart_goes_on_with_the_alarm_and_tells_only_its_end(path: Path) -> None:
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


def test_what_the_disk_does_not_take_is_told_later(path: Path) -> None:
    house = House(path, most=1)
    house.outbox.put([("x", "x", {})])  # full
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    assert [head.body for head in house.outbox.heads()] == [{}]
    house.outbox.done(house.outbox.heads()[0])
    house.look(95)
    assert [one["state"] for one in house.told()] == ["raised"]


def test_what_plugins_say_goes_the_same_way(path: Path) -> None:
    house = House(path)
    news = PluginEvents("cmp-7")
    news.off("greedy", "5 strikes within 60 s")
    changes = news.consume(house.world.snapshot({"web": 1.0}))
    house.alarms.notify([Group("cmp-7", "", tuple(changes))])
    (body,) = house.told()
    assert (body["subject"], body["state"]) == ("host:cmp-7", "raised")
    said = central.read(body["evidence"], "cmp-7", body["subject"], "raised")
    assert said.rule.startswith("plugin:")


def note(house: House, about: Any = "", plugin: str = "hot", **more: Any) -> Note:
    made = Note(plugin, "cmp-7", about, "it is so", house.world.at, "warning", 1.0, 0.5)
    return replace(made, **more)


def test_what_a_plugin_said_before_a_restart_ends_when_it_is_not_said_again(path: Path) -> None:
    house = House(path)
    (raised,) = house.hear(PluginEvents("cmp-7"), note(house))
    house.outbox.close()
    again, news = House(path), PluginEvents("cmp-7")
    assert again.hear(news) == []
    again.world.now += 58
    assert again.hear(news) == []
    again.world.now += 1
    (cleared,) = again.hear(news)
    assert (cleared["state"], cleared["evidence"]["reason"]) == ("cleared", "no longer told")
    assert cleared["evidence"]["key"] == raised["evidence"]["key"]
    assert again.hear(news) == []
    again.outbox.close()
    last = House(path)
    last.world.now += 100
    assert last.hear(PluginEvents("cmp-7")) == []


def test_what_a_plugin_says_again_after_a_restart_is_the_same_alarm(path: Path) -> None:
    house = House(path)
    (raised,) = house.hear(PluginEvents("cmp-7"), note(house))
    house.outbox.close()
    again, news = House(path), PluginEvents("cmp-7")
    for _ in range(3):
        again.world.now += 40
        assert again.hear(news, note(again)) == []
    again.world.now += 100
    (cleared,) = again.hear(news)
    assert cleared["state"] == "cleared"
    assert cleared["evidence"]["key"] == raised["evidence"]["key"]


@pytest.mark.parametrize(
    "bad", [{"value": object()}, {"value": float("nan")}, {"threshold": {1}}, {"about": "\ud800"}]
)
def test_what_cannot_be_written_down_keeps_nobody_else_from_it(
    path: Path, bad: dict[str, Any]
) -> None:
    house, news = House(path), PluginEvents("cmp-7")
    house.rule_manager.offer(HOT, FILE)
    assert [one["evidence"].get("value") for one in house.hear(news, note(house, **bad))] in (
        [],
        [None],  # what is no number is not known
    )
    house.look(95)
    assert [one["state"] for one in house.told()] == ["raised"]
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


@pytest.mark.parametrize("about", [7, None, ["u"], b"x", "n" * 5000])
def test_a_plugin_may_be_wrong_about_whom_it_speaks_of(path: Path, about: Any) -> None:
    house, news = House(path), PluginEvents("cmp-7")
    (raised,) = house.hear(news, note(house, about))
    said = central.read(raised["evidence"], "cmp-7", raised["subject"], "raised")
    assert said.rule.startswith("plugin:hot")


def test_a_plugin_that_says_very_much_does_not_drown_the_others(path: Path) -> None:
    house, news = House(path), PluginEvents("cmp-7")
    loud = [note(house, f"u{n}", "loud") for n in range(MOST_NOTES + 500)]
    told = house.hear(news, *loud, note(house, plugin="quiet"))
    rules = [one["evidence"]["rule"] for one in told]
    assert rules.count("plugin:quiet") == 1
    assert news.unheard["loud"] == len(loud) - MOST_STANDING


def test_the_heartbeat_knows_how_many_alarms_fire_from_the_start(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


TWO = HOT + "  - {id: cold, on: guest, field: x, when: '< 10'}\n"


def test_only_what_changed_is_written_and_all_of_it_is_remembered(path: Path) -> None:
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
    assert [one["evidence"]["rule"] for one in again.told()] == ["cold"]


def test_what_was_not_written_is_written_with_the_next(path: Path) -> None:
    house = House(path, most=1)
    house.rule_manager.offer(HOT, FILE)
    house.look(10)
    house.outbox.put([("x", "x", {})])  # full
    house.look(95)
    house.outbox.done(house.outbox.heads()[0])
    house.look(95)  # nothing changes any more
    house.outbox.close()
    assert House(path).rule_manager.firing == 1


def test_a_rule_that_is_taken_away_leaves_nothing_behind(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    house.rule_manager.offer("group_wait: 0\nrules: []", FILE)
    house.look(95)
    assert house.outbox.note("alarms")["rules"] == []
    assert house.outbox.note("alarms/hot") is None
    assert [one["state"] for one in house.told()] == ["raised", "cleared"]


def test_what_is_remembered_is_of_this_form_or_begins_anew(path: Path) -> None:
    house = House(path)
    house.rule_manager.offer(HOT, FILE)
    house.look(95)
    note = house.outbox.note("alarms")
    house.outbox.put((), {"alarms": {**note, "rules": {"hot": {"memory": "x"}}, "open": 5}})
    house.outbox.close()
    again = House(path)
    assert again.rule_manager.alarms() == []
