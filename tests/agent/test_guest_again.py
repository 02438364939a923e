# SPDX-License-Identifier: Apache-2.0
"""An agent that was started anew says again what it told before, if it is still so."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.agent import guest_filters, guest_store
from holdfast.agent.guest_state import WELL, GuestEvent, GuestWatch
from holdfast.agent.guest_store import SURE_S, Again, Reading
from holdfast.ports.guests import LIFECYCLE, MONITOR, Event, Guest

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
LATER = BEGIN + timedelta(minutes=5)
DIED = ("stopped", "failed")


def watch() -> GuestWatch:
    made = GuestWatch(guest_filters.default())
    made.reconcile([Guest("u", "web", "running", "booted")], BEGIN - timedelta(minutes=1), 0.0)
    return made


def heard(watch: GuestWatch, detail: str, reason: str = "", kind: str = LIFECYCLE) -> None:
    assert watch.hear(Event("u", "web", kind, BEGIN, detail, reason), 1.0) or kind == MONITOR


def reborn(old: GuestWatch, state: str) -> tuple[GuestWatch, list[GuestEvent]]:
    """The next agent, and what it says after it has read that a few times."""
    said = json.loads(json.dumps(guest_store.to_plain(old)))
    new = guest_store.from_plain(said, old.filters, 100.0)
    again = Again(new)
    read = functools.partial(_read, new, again)
    assert read(state, 101.0) == []  # it may just not be up yet
    assert read(state, 100.0 + SURE_S) == []
    found = read(state, 101.0 + SURE_S)
    assert read(state, 200.0) == []  # once
    return new, found


def _read(watch: GuestWatch, again: Again, state: str, now: float) -> list[GuestEvent]:
    at = LATER + timedelta(seconds=now - 101.0)
    found, why = state.split()
    reading = Reading((Guest("u", "web", found, why),), at)
    told = watch.reconcile(reading.guests, at, now)
    assert [one for one in told if one.state != WELL] == []
    said = again.after(reading, watch, now)
    again.written()
    return said


@pytest.mark.parametrize(
    ("event", "state"),
    [(DIED, "shutoff crashed"), (("crashed", "panicked"), "crashed panicked")],
)
def test_a_guest_that_is_still_dead_is_reported_again_with_the_time_of_the_first_report(
    event: tuple[str, str], state: str
) -> None:
    old = watch()
    heard(old, *event)
    new, (one,) = reborn(old, state)
    assert (one.state, one.since) == ("failed", LATER)
    assert one.evidence["told_before"] == BEGIN.isoformat()
    assert one.key.endswith("/again")
    assert LATER.isoformat() in one.key
    assert [two.key for two in reborn(new, state)[1]] == [one.key]


def test_a_guest_that_runs_again_or_never_failed_is_not_mentioned() -> None:
    old = watch()
    assert reborn(old, "running booted")[1] == []
    heard(old, *DIED)
    assert reborn(old, "running booted")[1] == []
    assert reborn(old, "shutoff destroyed")[1] == []


def test_a_qemu_that_hung_is_looked_at_anew_so_that_its_death_is_not_taken_for_the_same() -> None:
    old = watch()
    heard(old, "stuck", kind=MONITOR)
    assert [timer.evidence["event"] for timer in old.check_timers(1000.0)] == [MONITOR]
    new, found = reborn(old, "running booted")
    assert found == []
    (death,) = new.hear(Event("u", "web", LIFECYCLE, LATER, *DIED), 102.0)
    assert (death.state, death.evidence["event"]) == ("failed", "stopped")


@pytest.mark.parametrize("started", [True, False])
def test_a_guest_that_is_being_started_is_not_reported_again(started: bool) -> None:
    """The order was given before the first reading, and its QEMU is up after it."""
    old = watch()
    heard(old, *DIED)
    said = json.loads(json.dumps(guest_store.to_plain(old)))
    new = guest_store.from_plain(said, old.filters, 100.0)
    again = Again(new)
    assert _read(new, again, "shutoff crashed", 101.0) == []
    if started:
        new.hear(Event("u", "web", LIFECYCLE, LATER, "started", "booted"), 102.0)
    assert _read(new, again, "running booted", 103.0) == []
    (death,) = new.hear(Event("u", "web", LIFECYCLE, LATER, *DIED), 104.0)
    assert "told_before" not in death.evidence
    for now in (105.0, 120.0):
        assert _read(new, again, "shutoff crashed", now) == []
