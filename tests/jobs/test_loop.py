# SPDX-License-Identifier: Apache-2.0
"""The loop: asleep until something is due, awake when the bell rings, never by a tick."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobs.job import NotYet, Run
from holdfast.jobs.loop import BREATH_S, Loop
from holdfast.model.errors import Unavailable
from tests.jobs.conftest import TTL, Shop, Toy
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


def test_an_operation_waiting_for_another_of_the_subject_lets_the_loop_sleep(
    shop: Shop,
) -> None:
    shop.add("first", subject="s", sequence=1, after_s=50)
    shop.add("second", subject="s", sequence=2)
    assert shop.turn(ONE_STEP) == 50


def test_an_operation_due_between_two_cycles_is_not_overslept(
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


def test_several_batches_are_claimed_in_a_cycle(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_manager_with_busy_workers_claims_only_the_rest_of_a_first_claim(
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


def test_operations_claimed_before_a_database_outage_are_run(
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


# a clock that was ahead

YEAR_AHEAD = timedelta(days=400)


def move_clock(shop: Shop, by: timedelta) -> None:
    """The clock jumps; monotonic time does not."""
    shop.clock._start += by


def test_what_a_clock_ahead_put_off_runs_within_its_interval_after_it_is_back(shop: Shop) -> None:
    runs: list[str] = []
    toys = [
        Toy("chore", {"a": periodic(runs, "chore")}),
        Toy("lease_start", {"a": lambda _run: runs.append("start") or "started"}),
        Toy("held", {"a": lambda _run: runs.append("held") or "done"}),
    ]
    loop = shop.loop(shop.runner(*toys))
    dated = shop.add("lease_start", after_s=3600)
    move_clock(shop, YEAR_AHEAD)
    chore, ahead = shop.add("chore"), shop.add("lease_start", after_s=3600)
    claimed = shop.add("held")
    shop.operations.claim_due("gone", 9, TTL, ["held"])
    loop.cycle()
    assert runs == ["start", "chore"]  # due by the clock, as everybody saw it
    move_clock(shop, -YEAR_AHEAD)
    loop.cycle()
    assert runs == ["start", "chore", "chore"]
    for _ in range(5):
        shop.clock.advance(20)
        loop.cycle()
    assert (runs.count("start"), runs.count("held")) == (1, 1)
    assert runs.count("chore") == 2 + 5
    assert [shop.get(key).status for key in (dated, claimed)] == ["done", "done"]
    assert shop.get(chore).next_try_at <= shop.clock.now() + timedelta(seconds=20)
    later = shop.get(ahead)  # a date of its own stays
    assert later.next_try_at == later.due_at > shop.clock.now() + YEAR_AHEAD - timedelta(hours=1)


def test_a_manager_that_starts_after_the_clock_went_back_runs_everything(shop: Shop) -> None:
    runs: list[str] = []
    chore = Toy("chore", {"a": periodic(runs, "chore")})
    move_clock(shop, YEAR_AHEAD)
    shop.add("chore")
    shop.turn(chore)
    move_clock(shop, -YEAR_AHEAD)
    shop.turn(chore)
    assert runs == ["chore", "chore"]


def test_a_clock_that_goes_ahead_and_back_soon_after_the_start_is_noticed_at_once(
    shop: Shop,
) -> None:
    runs: list[str] = []
    loop = shop.loop(shop.runner(Toy("chore", {"a": periodic(runs, "chore")})))
    shop.add("chore")
    for by in (timedelta(), YEAR_AHEAD, -YEAR_AHEAD):
        move_clock(shop, by)
        loop.cycle()
    assert runs == ["chore"] * 3


def periodic(runs: list[str], name: str) -> Callable[[Run], str]:
    def run(_run: Run) -> str:
        runs.append(name)
        raise NotYet("again", 20)

    return run


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


def test_the_end_of_an_operation_wakes_the_loop_for_the_next_of_the_subject(
    threaded: ThreadedShop,
) -> None:
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

    def next_due(self, after: datetime | None = None) -> datetime | None:
        return self._target.next_due(after)  # type: ignore[no-any-return]


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


def test_constant_wakes_do_not_make_the_loop_cycle_constantly(shop: Shop) -> None:
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
