# SPDX-License-Identifier: Apache-2.0
"""An agent that cannot write, or stumbles over what it heard, loses nothing of the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.test_services_told import Nothing
from tests.simclock import SimClock

from holdfast.agent.agent import HostAgent, QueuedEvent
from holdfast.agent.guest_filters import FilterFile
from holdfast.agent.guest_state import GuestEvent, GuestWatch
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch
from holdfast.model.errors import DriverError
from holdfast.ports.guests import LIFECYCLE, MONITOR, Event, Guest


class SmallOutbox(Outbox):
    """It is full as often as it is told."""

    full = 0

    def put(self, *args: Any) -> None:
        if self.full:
            self.full -= 1
            raise DriverError("outbox", "no space left", retryable=True)
        super().put(*args)


class Room:
    """`ports.guests.Guests`: what is in it can be read."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.states: dict[str, str] = {"web": "running booted", "db": "running booted"}

    def start(self, listener: object) -> None: ...

    def close(self) -> None: ...

    def why_deaf(self) -> str:
        return ""

    def read(self) -> tuple[Sequence[Guest], datetime]:
        found = [Guest(name, name, *state.split()) for name, state in self.states.items()]
        return found, self.clock.now()


class House:
    def __init__(self, folder: Path, filters: Path | None = None) -> None:
        self.clock = SimClock()
        self.filters = FilterFile(str(filters) if filters else None)
        self.outbox = SmallOutbox(str(folder / "outbox"))
        self.room = Room(self.clock)
        self.begin()
        self.read()

    def begin(self) -> None:
        """An agent, or the next one after it was killed."""
        settings = SimpleNamespace(services_interval_s=60.0)
        services, filters = ProcessWatch(Nothing(), []), self.filters
        self.agent = HostAgent(
            *("cmp-1", self.room, services, filters, self.outbox, settings, self.clock),
            report_stored=lambda: None,
        )

    def heard(self, *said: str) -> list[QueuedEvent]:
        """web lifecycle stopped failed"""
        self.clock.advance(0.1)
        for one in said:
            name, kind, *words = one.split()
            self.agent.heard(Event(name, name, kind, self.clock.now(), *words))
        return self.agent._next()

    def read(self) -> None:
        self.clock.advance(0.1)
        self.agent.reconciled(*self.room.read())
        self.go_on(self.agent._next())

    def go_on(self, taken: list[QueuedEvent], rounds: int = 10) -> None:
        """What its thread does."""
        for _ in range(rounds):
            taken = self.agent._come_round(taken)
            if not taken:
                return
        raise AssertionError("it does not get over it")

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.go_on([])

    @property
    def told(self) -> list[str]:
        return [
            f"{body['evidence']['domain_name']} {body['evidence']['event']}"
            + (" again" if "told_before" in body["evidence"] else "")
            for body in self._bodies()
        ]

    @property
    def states(self) -> list[str]:
        return [body["state"] for body in self._bodies()]

    def _bodies(self) -> list[dict[str, Any]]:
        rows = self.outbox._db.execute("SELECT body FROM reports ORDER BY id").fetchall()
        return [json.loads(body) for (body,) in rows]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


DIED = f"web {LIFECYCLE} stopped failed"


def test_reports_from_before_an_unforeseen_error_are_sent_all_the_same(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = GuestWatch.hear

    def stumble(watch: GuestWatch, event: Event, *times: float) -> list[GuestEvent]:
        if event.name == "db":
            raise RuntimeError("nobody thought of that")
        return hear(watch, event, *times)

    monkeypatch.setattr(GuestWatch, "hear", stumble)
    house.room.states["web"] = "shutoff crashed"
    house.go_on(house.heard(DIED, f"db {LIFECYCLE} resumed unpaused"))
    assert house.told == ["web stopped"]


def test_a_repeated_report_is_sent_although_the_first_write_failed(house: House) -> None:
    house.room.states["web"] = "shutoff crashed"
    house.go_on(house.heard(DIED))
    house.begin()
    house.outbox.full = 1
    house.read()
    house.clock.advance(10)
    house.outbox.full = 2
    house.read()
    assert house.told == ["web stopped", "web stopped again"]
    house.read()
    house.outbox.full = 1
    house.read()
    assert house.told == ["web stopped", "web stopped again"]


def test_a_write_that_fails_in_the_grace_time_loses_no_qemu_that_hangs(house: House) -> None:
    house.go_on(house.heard(f"web {MONITOR} stuck"))
    house.wait(30)
    house.outbox.full = 1
    house.read()
    house.wait(50)
    assert house.told == []
    house.wait(20)
    assert house.told == ["web monitor"]


def test_a_clock_that_is_set_back_silences_no_guest(house: House) -> None:
    house.go_on(
        house.heard(f"web {LIFECYCLE} suspended paused", f"web {LIFECYCLE} resumed unpaused")
    )
    house.clock._start -= timedelta(hours=1)
    house.room.states["web"] = "shutoff crashed"
    house.read()
    assert house.told == ["web stopped"]


def test_what_was_heard_while_all_were_read_is_newer_than_what_was_read(house: House) -> None:
    guests, at = house.room.read()
    taken = house.heard(DIED)
    house.clock.advance(2.0)
    house.agent.reconciled(guests, at)
    house.go_on([*taken, *house.agent._next()])
    assert house.agent.view().tracks["web"].life == "off"
    assert house.told == ["web stopped"]


def test_what_waited_with_events_before_it_is_newer_than_they_are(house: House) -> None:
    """A flood: what was not kept of it shows in the reading that follows."""
    taken = house.heard(f"web {LIFECYCLE} resumed unpaused")
    house.clock.advance(60.0)  # they wait to be judged
    house.room.states["web"] = "shutoff crashed"
    house.agent.reconciled(*house.room.read())
    house.clock.advance(60.0)
    house.go_on([*taken, *house.agent._next()])
    assert house.told == ["web stopped"]


def test_a_write_that_fails_makes_no_old_reading_new(house: House) -> None:
    guests, at = house.room.read()
    house.go_on(house.heard(DIED))
    house.clock.advance(2.0)
    house.agent.reconciled(guests, at)
    house.outbox.full = 1
    house.go_on(house.agent._next())
    assert house.agent.view().tracks["web"].life == "off"
    house.room.states["web"] = "shutoff crashed"
    house.read()
    assert house.told == ["web stopped"]


def test_a_write_that_fails_forgets_no_rate(tmp_path: Path) -> None:
    rules = tmp_path / "filters.yaml"
    rules.write_text("rules: [{event: stopped, detail: failed, rate: 2 in 1h, do: report}]\n")
    house = House(tmp_path, rules)
    for _ in range(2):
        house.go_on(house.heard(DIED, f"web {LIFECYCLE} started booted"))
        house.outbox.full = 1
        house.read()
    assert house.states == ["failed", "well", "noted"]
    house.go_on(house.heard(DIED))
    house.outbox.full = 1
    house.room.states["web"] = "shutoff crashed"
    house.read()
    assert house.states == ["failed", "well", "noted", "noted"]


def test_a_waiting_report_of_a_death_says_that_the_guest_runs_again(tmp_path: Path) -> None:
    """The API was away; else it would begin to recover what runs, before the next report comes."""
    house = House(tmp_path)
    house.go_on(house.heard(DIED))
    assert "over_since" not in house._bodies()[0]["evidence"]
    house.go_on(house.heard(f"web {LIFECYCLE} started booted"))
    failed, well = house._bodies()
    assert (failed["state"], well["state"]) == ("failed", "well")
    assert failed["evidence"]["over_since"] == well["since"]
    house.go_on(house.heard(DIED))
    last = house._bodies()[-1]
    assert (last["state"], "over_since" in last["evidence"]) == ("failed", False)
