# SPDX-License-Identifier: Apache-2.0
"""A guest that hangs: no answer, no activity, and only both together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.hangs import HangSettings, HangTrack, HangWatch, judge_hang
from holdfast.ports.guests import Pulse

EVERY_S = 5.0


@dataclass
class Guest:
    """Looked at every five seconds."""

    now: float = 0.0
    io: int = 100
    cpu_s: float = 10.0
    track: HangTrack = field(default_factory=HangTrack)
    said: list[str] = field(default_factory=list)

    def live(
        self,
        seconds: float,
        *,
        answers: bool = False,
        io: int = 0,
        share: float = 0.0,
        is_open: bool = True,
        seen: bool = True,
    ) -> None:
        for _ in range(int(seconds / EVERY_S)):
            self.now += EVERY_S
            self.io += io
            self.cpu_s += share * EVERY_S
            known = (self.io, self.cpu_s) if seen and not answers else (None, None)
            pulse = Pulse("u", "g", answers, is_open, *known)
            self.track, said = judge_hang(self.track, pulse, self.now, HangSettings())
            if said:
                self.said.append(said)


@pytest.fixture
def guest() -> Guest:
    made = Guest()
    made.live(60, answers=True, io=10, share=0.1)
    return made


@pytest.mark.parametrize(("share", "how"), [(0.0, "idle"), (1.0, "spinning"), (3.9, "spinning")])
def test_a_guest_that_stands_still_or_spins_is_reported_hung_once(
    guest: Guest, share: float, how: str
) -> None:
    guest.live(25, share=share)
    assert guest.said == []
    guest.live(300, share=share)
    assert guest.said == ["hung"]
    assert guest.track.hung == how


def test_a_guest_that_answers_again_is_alive(guest: Guest) -> None:
    guest.live(100)
    guest.live(10, answers=True)
    assert guest.said == ["hung", "alive"]
    guest.live(100)
    assert guest.said == ["hung", "alive", "hung"]


def test_a_guest_that_reads_or_writes_is_alive_whatever_its_agent_does(guest: Guest) -> None:
    guest.live(600, io=1)
    assert guest.said == []
    guest.live(100)
    guest.live(5, io=1)
    assert guest.said == ["hung", "alive"]


def test_a_guest_that_computes_is_alive(guest: Guest) -> None:
    guest.live(600, share=0.4)
    assert guest.said == []


def test_an_agent_that_was_stopped_is_no_hang(guest: Guest) -> None:
    guest.live(600, is_open=False)
    assert guest.said == []


def test_what_cannot_be_seen_is_not_judged(guest: Guest) -> None:
    guest.live(600, seen=False)
    assert guest.said == []
    guest.live(100)
    guest.live(600, seen=False)
    assert guest.said == ["hung"]


def test_a_guest_that_never_answered_may_still_be_booting() -> None:
    guest = Guest()
    guest.live(600)
    assert guest.said == []


def test_a_guest_that_was_started_anew_begins_anew(guest: Guest) -> None:
    guest.live(25)
    guest.io, guest.cpu_s = 100, 0.1
    guest.live(25)
    assert guest.said == []


def test_a_guest_reported_hung_before_the_restart_is_not_reported_again_until_it_lives() -> None:
    watch, at = HangWatch(), datetime.now(UTC)
    watch.recall(["u"])
    still = Pulse("u", "g", answered=False, io=7, cpu_s=3.0)
    times = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    assert [watch.check([still], ["u"], at, now) for now in times] == [[]] * 6
    (event,) = watch.check([replace(still, io=8)], ["u"], at, 70.0)
    assert event.detail == "alive"
    watch.recall(["u"])
    (event,) = watch.check([Pulse("u", "g", answered=True)], ["u"], at, 80.0)
    assert event.detail == "alive"


def test_an_unreported_hang_from_before_the_restart_is_reported_if_it_persists() -> None:
    watch, at = HangWatch(), datetime.now(UTC)
    watch.recall([], ["u"])
    still = Pulse("u", "g", answered=False, io=7, cpu_s=3.0)
    said = [watch.check([still], ["u"], at, 10.0 * number) for number in range(8)]
    assert [event.detail for events in said for event in events] == ["hung"]


def test_a_guest_that_is_paused_does_not_hang_and_is_judged_anew_when_it_goes_on() -> None:
    """libvirt asks no agent of a guest that is paused: it looks like a miss, and nothing moves."""
    watch, at = HangWatch(), datetime.now(UTC)
    still = Pulse("u", "g", answered=False, io=7, cpu_s=3.0)
    assert watch.check([Pulse("u", "g", answered=True)], ["u"], at, 0.0) == []
    for now in range(10, 300, 10):
        assert watch.check([still], [], at, now) == []
    said = [(now, watch.check([still], ["u"], at, now)) for now in range(300, 400, 10)]
    assert [(now, events[0].detail) for now, events in said if events] == [(330, "hung")]


LIFE = st.tuples(
    st.integers(1, 20), st.booleans(), st.integers(0, 1), st.sampled_from([0.0, 0.5, 1.0])
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LIFE, max_size=20))
def test_hung_and_alive_take_turns_and_nobody_hangs_who_just_did_something(
    lives: list[tuple[int, bool, int, float]],
) -> None:
    guest = Guest()
    for looks, answers, io, share in lives:
        before = len(guest.said)
        guest.live(looks * EVERY_S, answers=answers, io=io, share=share)
        if answers or io:
            assert "hung" not in guest.said[before:]
    assert guest.said == (["hung", "alive"] * len(lives))[: len(guest.said)]
