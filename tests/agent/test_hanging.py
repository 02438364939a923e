# SPDX-License-Identifier: Apache-2.0
"""Who looks for guests that hang, beside an agent that knows how they live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.agent.test_services_told import Nothing
from tests.simclock import SimClock

from holdfast.agent.agent import HostAgent
from holdfast.agent.guest_filters import FilterFile
from holdfast.agent.guest_store import Reading
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch
from holdfast.app import agent
from holdfast.ports.guests import LIFECYCLE, Event, Guest, Pulse

EVERY_S = 10.0


class Hearts:
    """One guest: it answers, or stands quite still."""

    def __init__(self) -> None:
        self.answers = True

    def pulses(self) -> Sequence[Pulse]:
        if self.answers:
            return [Pulse("u", "web", answered=True)]
        return [Pulse("u", "web", answered=False, io=7, cpu_s=3.0)]

    def close(self) -> None: ...


class Quiet:
    """Nobody hears anything of guests by themselves."""

    def start(self, listener: object) -> None: ...

    def close(self) -> None: ...

    def why_deaf(self) -> str:
        return ""


class House:
    def __init__(self, path: Path, patch: pytest.MonkeyPatch, filters: Path | None = None) -> None:
        self.clock = SimClock()
        self.hearts = Hearts()
        patch.setattr(agent, "connect_heartbeats", lambda *_: self.hearts)
        self.outbox = Outbox(str(path))
        self.filters = filters
        self.begin()

    def begin(self) -> None:
        """An agent, or the next one after it was killed."""
        file = FilterFile(str(self.filters) if self.filters else None)
        settings = SimpleNamespace(
            services_interval_s=60.0,
            guests="libvirt",
            guests_address="",
            heartbeat_interval_s=EVERY_S,
            heartbeat_max_missed=3,
            heartbeat_idle_s=30.0,
            stalled_s=0.0,
        )
        services = ProcessWatch(Nothing(), [])
        self.agent = HostAgent(
            *("cmp-1", Quiet(), services, file, self.outbox, settings, self.clock),  # type: ignore[arg-type]
            report_stored=lambda: None,
        )
        self.part = agent.HangPart(settings, self.agent, self.clock)

    def hear(self, detail: str, reason: str) -> None:
        event = Event("u", "web", LIFECYCLE, self.clock.now(), detail, reason)
        self.agent.turn([event])

    def read(self, state: str, reason: str) -> None:
        self.agent.turn([Reading((Guest("u", "web", state, reason),), self.clock.now())])

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds / EVERY_S)):
            self.clock.advance(EVERY_S)
            self.part.ask_agents()
            waiting = self.agent._waiting
            self.agent._turn([waiting.get() for _ in range(waiting.qsize())])

    @property
    def told(self) -> list[str]:
        words = ("event", "detail")
        bodies = [item.body for item in self.outbox.heads()]
        return [" ".join(body["evidence"][word] for word in words) for body in bodies]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path / "outbox", monkeypatch)


def begun(house: House) -> House:
    """A guest that runs and has answered."""
    house.read("running", "booted")
    house.live(20)
    house.hearts.answers = False
    return house


def test_a_hung_guest_is_reported_once(house: House) -> None:
    begun(house).live(300)
    assert house.told == ["hang hung"]


def test_a_guest_that_is_paused_for_a_backup_is_not_restarted(house: House) -> None:
    begun(house).hear("suspended", "paused")
    house.live(600)
    assert house.told == []
    house.hear("resumed", "unpaused")
    house.hearts.answers = True
    house.live(60)
    assert house.told == []


def test_a_guest_that_is_found_paused_is_not_restarted(house: House) -> None:
    begun(house).live(30)
    house.read("paused", "user")
    house.live(600)
    assert house.told == []


def test_a_guest_that_hangs_after_the_pause_of_the_agent_is_reported(house: House) -> None:
    begun(house).hear("suspended", "paused")
    house.live(60)
    house.hear("resumed", "unpaused")
    house.live(100)
    assert house.told == ["hang hung"]


@pytest.mark.parametrize("after", ["30s", "2m"])
def test_an_agent_killed_in_the_grace_time_reports_the_hang_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    rules = tmp_path / "filters.yaml"
    rules.write_text(f"rules: [{{event: hang, detail: hung, after: {after}, do: recover}}]\n")
    house = begun(House(tmp_path / "outbox", monkeypatch, rules))
    house.live(50)
    assert house.agent.view().tracks["u"].faults
    house.begin()
    house.live(400)
    assert house.told == ["hang hung"]


def test_one_that_came_to_life_while_no_agent_was_there_is_not_restarted(house: House) -> None:
    begun(house).live(50)
    assert house.agent.view().tracks["u"].faults
    house.hearts.answers = True
    house.begin()
    house.live(400)
    assert house.told == []


def test_a_report_from_before_the_kill_is_not_repeated(house: House) -> None:
    begun(house).live(300)
    house.begin()
    house.live(300)
    assert house.told == ["hang hung"]
