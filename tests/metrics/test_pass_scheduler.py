# SPDX-License-Identifier: Apache-2.0
"""Passes go first: whoever has something to compute does it between two of them, and is not kept
from it for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.metrics.passes import MOST_PASSES, MOST_S, Passes, PassScheduler
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock


def waited_s(scheduler: PassScheduler, clock: SimClock, needs_s: float) -> float:
    began = clock.monotonic()
    scheduler.room(needs_s)
    return clock.monotonic() - began


def test_without_passes_no_thread_waits() -> None:
    clock = SimClock()
    assert waited_s(PassScheduler(clock), clock, 60) == 0
    assert clock.waits == []


def test_work_shorter_than_the_gap_begins_at_once() -> None:
    clock = SimClock()
    scheduler = PassScheduler(clock)
    scheduler.expect(clock.monotonic() + 1.0)
    assert waited_s(scheduler, clock, 0.01) == 0


def test_an_overdue_pass_is_not_waited_for() -> None:
    clock = SimClock()
    scheduler = PassScheduler(clock)
    scheduler.expect(clock.monotonic() + 0.005)
    assert waited_s(scheduler, clock, 0.01) <= MOST_PASSES * (MOST_S + 0.01)
    scheduler.expect(clock.monotonic() - 2 * MOST_S)
    assert waited_s(scheduler, clock, 0.01) == 0


def test_an_endless_pass_is_not_waited_for() -> None:
    clock = SimClock()
    scheduler = PassScheduler(clock)
    scheduler.expect(clock.monotonic())
    with scheduler:
        assert waited_s(scheduler, clock, 0.01) <= MOST_PASSES * 2 * MOST_S


@contextmanager
def asking(scheduler: PassScheduler, needs_s: float) -> Iterator[threading.Event]:
    """Somebody wants room; whether it has it."""
    has = threading.Event()

    def ask() -> None:
        scheduler.room(needs_s)
        has.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield has
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_work_longer_than_the_gap_waits_for_the_pass() -> None:
    clock = SimClock(by_hand=True)
    scheduler = PassScheduler(clock)
    scheduler.expect(clock.monotonic() + 0.005)
    with asking(scheduler, 0.01) as has:
        clock.settle()
        clock.advance(0.005)
        with scheduler:
            clock.settle()
            assert not has.is_set()
            scheduler.expect(clock.monotonic() + 1.0)
        assert has.wait(PATIENCE_S)


def test_a_thread_that_asks_during_a_pass_waits_for_the_end_of_the_pass() -> None:
    clock = SimClock(by_hand=True)
    scheduler = PassScheduler(clock)
    with asking_during(scheduler, clock) as has:
        assert not has.is_set()
        scheduler.expect(clock.monotonic() + 1.0)
    assert has.wait(PATIENCE_S)


@contextmanager
def asking_during(scheduler: PassScheduler, clock: SimClock) -> Iterator[threading.Event]:
    scheduler.expect(clock.monotonic())
    with scheduler:
        has = threading.Event()
        threading.Thread(target=lambda: (scheduler.room(0.01), has.set()), daemon=True).start()
        clock.settle()
        yield has


@pytest.mark.parametrize("needs_s", [0.3, 10.0])
def test_work_longer_than_a_pass_interval_runs_after_some_passes(needs_s: float) -> None:
    clock = SimClock(by_hand=True)
    scheduler = PassScheduler(clock)
    scheduler.expect(clock.monotonic() + 0.2)
    passes = 0
    with asking(scheduler, needs_s) as has:
        while not has.is_set() and passes < 2 * MOST_PASSES:
            clock.settle()
            clock.advance(0.2)
            with scheduler:
                passes += 1
                scheduler.expect(clock.monotonic() + 0.2)
                waits = len(clock.waits)
            # who sleeps has seen it: he has his turn, or waits for the next pass
            eventually(lambda waits=waits: has.is_set() or len(clock.waits) > waits, every=0.001)
    assert passes == MOST_PASSES


class Noting(SystemClock):
    """Remembers when each thread looked at it last."""

    def __init__(self) -> None:
        self.looked: dict[int, float] = {}

    def monotonic(self) -> float:
        now = self.looked[threading.get_ident()] = super().monotonic()
        return now


class Slow:
    """A collector whose passes take a while, and who may not meet anybody."""

    def __init__(self) -> None:
        self.began: float | None = None  # the pass that is under way

    def snapshot(self) -> None:
        self.began = time.monotonic()
        threading.Event().wait(0.01)
        self.began = None


def test_beside_real_passes_no_thread_begins_during_a_pass() -> None:
    clock, slow, met = Noting(), Slow(), 0
    scheduler = PassScheduler(clock)
    passes = Passes(slow, 0.1, clock, scheduler)  # type: ignore[arg-type]
    passes.start()
    try:
        for _ in range(20):
            scheduler.room(0.01)
            began = slow.began
            # one that began since then is met only because a busy machine left us no processor
            met += began is not None and began <= clock.looked[threading.get_ident()]
    finally:
        passes.stop()
    assert met == 0
