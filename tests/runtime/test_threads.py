# SPDX-License-Identifier: Apache-2.0
"""Threads that loop, on simulated time: when turns run, what is logged, how a thread stops."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

import pytest
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock

from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import PeriodicTask, Worker, start_call


class CountedTurns:
    """Counts turns; raises while told so."""

    def __init__(self, pause_s: float | None) -> None:
        self.count = 0
        self.error: Exception | None = None
        self._pause_s = pause_s

    def turn(self) -> float | None:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self._pause_s

    def turn_quietly(self) -> None:
        self.turn()

    def reach(self, count: int) -> None:
        eventually(lambda: self.count >= count)


def advance(clock: SimClock, seconds: float, reached: Callable[[], bool]) -> None:
    """Advance the clock in steps until something has happened."""

    def step() -> bool:
        clock.advance(seconds)
        return reached()

    eventually(step)


def test_a_turn_sets_the_time_of_the_next_turn_and_a_wake_comes_first() -> None:
    turns = CountedTurns(None)
    worker = Worker("test", SystemClock(), turns.turn)
    worker.start()
    for count in (1, 2, 3):
        turns.reach(count)
        worker.wake()
    turns.reach(4)
    assert worker.alive
    worker.stop()
    assert not worker.alive


def test_a_wake_during_a_turn_is_not_lost() -> None:
    began, go_on = threading.Event(), threading.Event()
    turns = CountedTurns(None)

    def turn() -> float | None:
        began.set()
        go_on.wait(PATIENCE_S)
        return turns.turn()

    worker = Worker("test", SystemClock(), turn)
    worker.start()
    began.wait(PATIENCE_S)
    worker.wake()
    go_on.set()
    turns.reach(2)
    worker.stop()


def test_an_expected_error_is_logged_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    turns = CountedTurns(0.01)
    turns.error = DriverError("broker", "away", retryable=True)
    worker = Worker("test", SystemClock(), turns.turn, retry_s=0.01)
    worker.start()
    turns.reach(3)
    turns.error = None
    eventually(lambda: "all is well again" in caplog.text)
    worker.stop()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["test: broker: away; it is tried again", "test: all is well again"]


def test_any_other_error_is_logged_with_its_traceback_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns, failed = CountedTurns(0.01), list[Exception]()
    turns.error = ZeroDivisionError("what?")
    worker = Worker("test", SystemClock(), turns.turn, retry_s=0.01, failed=failed.append)
    worker.start()
    turns.reach(2)
    worker.stop()
    assert "ZeroDivisionError: what?" in caplog.text
    assert failed[0] is turns.error


def test_the_pause_after_failures_grows_up_to_a_limit_and_begins_anew() -> None:
    clock, turns, at = SimClock(by_hand=True), CountedTurns(100.0), list[float]()

    def turn() -> float | None:
        at.append(clock.monotonic())
        return turns.turn()

    turns.error = DriverError("broker", "away", retryable=True)
    worker = Worker("test", clock, turn, retry_s=1.0, longest_retry_s=4.0)
    worker.start()
    advance(clock, 0.25, lambda: len(at) >= 5)
    worker.stop()
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    for pause, least in zip(pauses, (1.0, 2.0, 4.0, 4.0), strict=False):
        assert pause >= least


def test_a_periodic_task_waits_first_and_asks_for_its_interval_each_time() -> None:
    clock, turns, interval = SimClock(by_hand=True), CountedTurns(None), [10.0]
    task = PeriodicTask("test", lambda: interval[0], turns.turn_quietly, clock)
    task.start()
    clock.advance(5.0)
    assert turns.count == 0
    advance(clock, 1.0, lambda: turns.count == 1)
    interval[0] = 1.0
    advance(clock, 1.0, lambda: turns.count >= 3)
    task.stop()


def test_a_call_on_a_thread_gives_a_result_or_an_error() -> None:
    assert start_call("test", lambda: 7).result(PATIENCE_S) == 7
    with pytest.raises(ZeroDivisionError):
        start_call("test", lambda: 1 // 0).result(PATIENCE_S)
