# SPDX-License-Identifier: Apache-2.0
"""A processor of a guest that wants to run and gets no time; and a host that has none to give."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent import guest_filters
from holdfast.agent.guest_state import GuestWatch
from holdfast.agent.hangs import StallWatch
from holdfast.ports.guests import Vcpu

EVERY_S = 10.0
#: What a processor does between two looks: share that it ran, share that it waited, wants now.
RUNS, SLEEPS, STARVES, CRAWLS = (
    (0.9, 0.0, True),
    (0.0, 0.0, False),
    (0.0, 0.0, True),
    (0.4, 0.6, True),
)
#: The lowest priority there is: now and then it gets a little, and is not always caught waiting.
IDLE_PRIORITY, CAUGHT_ASLEEP = (0.003, 0.9, True), (0.003, 0.9, False)
At = tuple[float, float, bool]


@dataclass
class Host:
    """Guests g0, g1, … with as many processors as are said."""

    guests: int = 1
    watch: StallWatch = field(default_factory=StallWatch)
    now: float = 100.0
    said: list[str] = field(default_factory=list)
    vcpus: dict[tuple[int, int], Vcpu] = field(default_factory=dict)

    def live(self, seconds: float, *lives: At | tuple[At, ...]) -> None:
        """One life for each guest, or one for each of its processors."""
        for _ in range(int(seconds / EVERY_S)):
            self.now += EVERY_S
            for number, life in enumerate(lives):
                each = life if isinstance(life[0], tuple) else (life,)
                for cpu, (ran, waited, wants) in enumerate(each):
                    self._go_on(number, cpu, ran, waited, wants)
            self.look()

    def _go_on(self, guest: int, cpu: int, ran: float, waited: float, wants: bool) -> None:
        old = self.vcpus.get((guest, cpu)) or Vcpu(f"u{guest}", f"g{guest}", cpu, cpu, 0, 0, False)
        ran_ns = old.ran_ns + int(ran * EVERY_S * 1e9)
        waited_ns = old.waited_ns + int(waited * EVERY_S * 1e9)
        self.vcpus[guest, cpu] = replace(old, ran_ns=ran_ns, waited_ns=waited_ns, wants=wants)

    def look(self) -> None:
        known = {one.uuid: one.name for one in self.vcpus.values()}
        found = self.watch.check(self.vcpus.values(), known, datetime.now(UTC), self.now)
        self.said += [f"{one.name} {one.detail} {one.reason}".strip() for one in found]


@pytest.mark.parametrize("life", [STARVES, IDLE_PRIORITY, CAUGHT_ASLEEP])
def test_a_processor_that_gets_nothing_though_it_wants_to_is_stalled_until_it_runs(
    life: At,
) -> None:
    host = Host()
    host.live(60, RUNS)
    host.live(20, life)
    assert host.said == []
    host.live(100, life)
    assert host.said == ["g0 stalled vcpu 0"]
    host.live(10, RUNS)
    assert host.said == ["g0 stalled vcpu 0", "g0 running"]


@pytest.mark.parametrize("life", [RUNS, SLEEPS, CRAWLS])
def test_one_that_runs_sleeps_or_shares_is_not(life: At) -> None:
    host = Host()
    host.live(600, life)
    assert host.said == []


def test_the_stalled_one_of_several_processors_is_named() -> None:
    host = Host()
    host.live(30, (RUNS, RUNS, SLEEPS, RUNS))
    host.live(60, (RUNS, STARVES, SLEEPS, STARVES))
    assert host.said == ["g0 stalled vcpu 1, 3"]


def test_if_most_guests_starve_the_host_is_named_once_and_none_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    host = Host()
    host.live(30, RUNS, RUNS, RUNS, SLEEPS, SLEEPS)
    host.live(300, STARVES, STARVES, RUNS, SLEEPS, SLEEPS)
    assert host.said == []
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "2 of the 3 guests that want to run" in said
    host.live(10, STARVES, RUNS, RUNS, SLEEPS, SLEEPS)
    assert "get processors again" in caplog.text
    assert host.said == ["g0 stalled vcpu 0"]


def test_one_guest_that_starves_among_those_that_run_is_blamed_on_nobody_else() -> None:
    host = Host()
    host.live(30, RUNS, RUNS)
    host.live(60, STARVES, RUNS)
    assert host.said == ["g0 stalled vcpu 0"]


def test_a_guest_that_was_started_anew_begins_anew() -> None:
    host = Host()
    host.live(30, RUNS)
    host.live(20, STARVES)
    host.vcpus[0, 0] = replace(host.vcpus[0, 0], thread=77, ran_ns=0)
    host.live(20, STARVES)
    assert host.said == []


def test_a_stalled_guest_is_noted_and_not_recovered() -> None:
    watch, host = GuestWatch(guest_filters.default()), Host()
    host.live(30, RUNS)
    host.now += 60
    host._go_on(0, 0, *STARVES)
    known = {"u0": "g0"}
    (event,) = host.watch.check(host.vcpus.values(), known, datetime.now(UTC), host.now)
    (told,) = watch.hear(event, host.now)
    assert (told.state, told.evidence["reason"]) == ("noted", "vcpu 0")
    assert watch.check_timers(host.now + 3600) == []


LIVES = st.sampled_from([RUNS, SLEEPS, STARVES, CRAWLS, IDLE_PRIORITY])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(1, 6), LIVES), max_size=20))
def test_stalled_and_running_take_turns_and_nobody_is_stalled_who_just_ran(
    lives: list[tuple[int, At]],
) -> None:
    host = Host()
    for looks, life in lives:
        before = len(host.said)
        host.live(looks * EVERY_S, life)
        if life in (RUNS, SLEEPS, CRAWLS):
            assert "g0 stalled vcpu 0" not in host.said[before:]
    wanted = ["g0 stalled vcpu 0", "g0 running"] * len(lives)
    assert host.said == wanted[: len(host.said)]
