# SPDX-License-Identifier: Apache-2.0
"""The loop: asleep until something is due, awake when the bell rings, never by a tick."""

import itertools
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobs.loop import BREATH_S, Loop
from holdfast.model.errors import Unavailable
from tests.jobs.conftest import Shop, Toy
from tests.leases.house import copy
from tests.processes import eventually
from tests.simclock import SimClock

ONE_STEP = Toy("toy", {"a": lambda _run: "done"})


def test_the_loop_sleeps_exactly_until_the_next_is_due(shop: Shop) -> None:
    shop.add(after_s=77.25)
    shop.add(after_s=500)
    assert shop.turn(ONE_STEP) == 77.25


def test_the_poll_interval_bounds_the_sleep(shop: Shop) -> None:
    assert shop.turn(ONE_STEP) == 1000
    shop.add(after_s=5000)
    assert shop.turn(ONE_STEP) == 1000
    shop.settings.poll_interval_s = 2.5
    assert shop.turn(ONE_STEP) == 2.5


def test_work_that_waits_for_another_of_its_subject_does_not_keep_the_loop_awake(
    shop: Shop,
) -> None:
    shop.add("first", subject="s", sequence=1, after_s=50)
    shop.add("second", subject="s", sequence=2)
    assert shop.turn(ONE_STEP) == 50


def test_what_becomes_due_between_two_looks_is_not_overslept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due just after the claim looked and just before we ask for the next: at once, not later."""
    key = shop.add(after_s=0.001)
    claim_due = shop.operations.claim_due

    def slow(*args: Any) -> Any:
        taken = claim_due(*args)
        shop.clock.advance(0.002)
        return taken

    monkeypatch.setattr(shop.operations, "claim_due", slow)
    loop = shop.loop(shop.runner(ONE_STEP))
    assert loop.cycle() == 0
    loop.cycle()
    assert shop.get(key).status == "done"


def test_more_than_one_batch_is_taken_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.jobs.loop.FIRST", 4)
    monkeypatch.setattr("holdfast.jobs.loop.MOST", 6)
    keys = [shop.add() for _ in range(13)]
    asked: list[int] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(shop.operations, name)

        def claim_due(self, owner: str, limit: int, *rest: Any) -> Any:
            asked.append(limit)
            return shop.operations.claim_due(owner, limit, *rest)

    loop = shop.loop(shop.runner(ONE_STEP, workers=20), Counted())
    loop.cycle()
    assert asked == [4, 6, 6]
    assert {shop.get(key).status for key in keys} == {"done"}


def test_beyond_its_workers_a_manager_takes_only_what_a_first_claim_left(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.jobs.loop.FIRST", 4)
    shop.settings.claim_ahead = 7
    keys = [shop.add() for _ in range(20)]
    begun: list[int] = []

    class Held(Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            begun.append(len([o for o in shop.operations.list_all() if o.status == "running"]))

    few = shop.loop(shop.runner(ONE_STEP, workers=6, pool=Held()))
    few.cycle()
    taken = [key for key in keys if shop.get(key).status == "running"]
    assert len(taken) == 6 + 7
    assert begun == [13] * 13  # nothing began before all was claimed
    few.cycle()
    assert len(begun) == 13  # no worker is free: what is left, others may take


def test_what_was_claimed_before_the_database_went_away_is_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.jobs.loop.FIRST", 2)
    keys = [shop.add() for _ in range(5)]
    claims = count()

    class Flaky:
        def __getattr__(self, name: str) -> Any:
            return getattr(shop.operations, name)

        def claim_due(self, *args: Any) -> Any:
            if next(claims) == 1:
                raise Unavailable("the database is away")
            return shop.operations.claim_due(*args)

    with pytest.raises(Unavailable):
        shop.loop(shop.runner(ONE_STEP, workers=9), Flaky()).cycle()
    assert sorted(shop.get(key).status for key in keys) == ["done"] * 2 + ["waiting"] * 3


# on a thread of its own


class ThreadedShop(Shop):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.clock = SimClock(by_hand=True)
        self.store.database.clock = self.clock

    @contextmanager
    def running(self, *kinds: Toy, operations: Any = None) -> Iterator[Loop]:
        with ThreadPoolExecutor(2) as pool:
            runner = self.runner(*kinds, operations=operations, pool=pool, workers=2)
            loop = self.loop(runner, operations)
            loop.start()
            try:
                yield loop
            finally:
                loop.stop()

    def until(self, key: str, status: str) -> None:
        """Until the row is in that state and the loop at rest."""
        eventually(lambda: self.get(key).status == status, every=0.001)
        self.clock.settle()


@pytest.fixture
def threaded(empty: Path, yard: Path) -> Iterator[ThreadedShop]:
    made = ThreadedShop(copy(empty, yard))
    yield made
    made.store.close()


def test_a_sleeping_loop_wakes_when_the_next_is_due_and_not_before(threaded: ThreadedShop) -> None:
    key = threaded.add(after_s=300)
    with threaded.running(ONE_STEP) as loop:
        assert threaded.clock.settle() == 300
        threaded.clock.advance(299)
        assert threaded.clock.settle() == 1
        assert threaded.get(key).status == "waiting"
        threaded.clock.advance(1)
        threaded.until(key, "done")
        assert loop.age_s() == 0
    assert threaded.clock.waits[0] == 300


def test_the_bell_wakes_a_sleeping_loop(threaded: ThreadedShop) -> None:
    with threaded.running(ONE_STEP) as loop:
        assert threaded.clock.settle() == 1000
        key = threaded.add()
        loop.wake()
        threaded.until(key, "done")
        assert threaded.clock.monotonic() == 0


def test_the_end_of_one_wakes_the_loop_for_the_next_of_its_subject(threaded: ThreadedShop) -> None:
    threaded.add("toy", subject="s", sequence=1)
    last = threaded.add("toy", subject="s", sequence=2)
    with threaded.running(ONE_STEP):
        threaded.until(last, "done")
        assert threaded.clock.monotonic() == 0


class Away:
    """Operations that cannot be looked for a while."""

    def __init__(self, target: Any, error: Exception, times: int) -> None:
        self._target, self._error, self._left = target, error, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def claim_due(self, *args: Any) -> Any:
        self._left -= 1
        if self._left >= 0:
            raise self._error
        return self._target.claim_due(*args)

    def next_look(self, after: datetime | None = None) -> datetime | None:
        return self._target.next_look(after)  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [Unavailable("no database"), ZeroDivisionError("a defect")])
def test_the_loop_comes_round_again_whatever_happens(
    threaded: ThreadedShop, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    key = threaded.add()
    away = Away(threaded.operations, error, times=3)
    with caplog.at_level(logging.WARNING), threaded.running(ONE_STEP, operations=away):
        for _ in range(3):
            assert threaded.clock.settle() == pytest.approx(1.0)
            threaded.clock.advance(1)
            _awake(threaded)
        threaded.until(key, "done")
    assert "looking for due work" in caplog.text


def _awake(shop: ThreadedShop) -> None:
    """Until the sleeper has noticed that its time is over."""
    eventually(lambda: not shop.clock.overslept(), every=0.0005)


def test_a_stopped_loop_takes_nothing_more(threaded: ThreadedShop) -> None:
    with threaded.running(ONE_STEP) as loop:
        threaded.clock.settle()
    key = threaded.add()
    loop.wake()
    assert threaded.get(key).status == "waiting"


def test_age_is_the_time_since_the_loop_came_round(shop: Shop) -> None:
    loop = shop.loop(shop.runner(ONE_STEP))
    shop.clock.advance(12)
    assert loop.age_s() == 12
    assert timedelta(seconds=loop.age_s()) == timedelta(seconds=12)


def test_who_rings_all_the_time_does_not_make_the_loop_look_all_the_time(shop: Shop) -> None:
    """What falls due within a breath is taken in one go: a look costs more than what it finds."""
    loop = shop.loop(shop.runner(ONE_STEP))
    looked: list[float] = []
    keep_waiting = loop._runner.keep_waiting

    def look() -> None:
        looked.append(time.monotonic())
        keep_waiting()

    loop._runner.keep_waiting = look  # type: ignore[method-assign]
    loop.start()
    until = time.monotonic() + 10 * BREATH_S
    while time.monotonic() < until or len(looked) < 3:
        loop.wake()
        time.sleep(0.001)
    loop.stop()
    pauses = [after - before for before, after in itertools.pairwise(looked)]
    assert all(pause >= BREATH_S for pause in pauses)
