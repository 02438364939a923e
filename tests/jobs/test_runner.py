# SPDX-License-Identifier: Apache-2.0
"""The runner: steps once, failures with patience, and no call without a claim."""

import logging
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.jobs.job import MARGIN_S, NotYet, Run, guarded
from holdfast.model.errors import (
    ClaimLost,
    Conflict,
    DriverError,
    NotFound,
    StaleWrite,
    Unavailable,
)
from holdfast.model.operation import Claim
from holdfast.ports.cloud import Cloud
from tests.jobs.conftest import TTL, Shop, Toy
from tests.processes import PATIENCE_S
from tests.simclock import EPOCH


def say(text: str, into: list[str] | None = None) -> Any:
    def step(_run: Run) -> str:
        if into is not None:
            into.append(text)
        return text

    return step


def fail(*errors: Exception, then: str = "done") -> Any:
    """A step that raises these in turn, then succeeds."""
    left = iter(errors)

    def step(_run: Run) -> str:
        for error in left:
            raise error
        return then

    return step


AWAY = DriverError("cloud", "is away", retryable=True)


def test_steps_run_in_order_and_the_last_sentence_stays(shop: Shop) -> None:
    ran: list[str] = []
    key = shop.add()
    shop.turn(Toy("toy", {"a": say("one", ran), "b": say("two", ran)}))
    done = shop.get(key)
    assert (ran, done.status, done.sentence) == (["one", "two"], "done", "two")
    assert shop.operations.next_due() is None


def test_a_recorded_step_is_not_run_again(shop: Shop) -> None:
    ran: list[str] = []
    shop.add()
    actions = {"a": say("one", ran), "b": fail(AWAY)}
    shop.turn(Toy("toy", actions))
    shop.clock.advance(1)
    shop.turn(Toy("toy", actions))
    assert ran == ["one"]


def test_not_yet_is_no_failed_attempt(shop: Shop) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": fail(NotYet("still at it", 3.0), AWAY)})
    shop.turn(toy)
    waiting = shop.get(key)
    assert (waiting.attempts, waiting.status, waiting.sentence) == (0, "retrying", "still at it")
    assert waiting.next_try_at == shop.clock.now() + timedelta(seconds=3)
    shop.clock.advance(3)
    shop.turn(toy)
    assert shop.get(key).attempts == 1


def test_a_waiting_operation_ends_at_the_give_up_time(shop: Shop) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": fail(*[NotYet("still at it", 3.0)] * 9)}, until=EPOCH + 2 * TTL)
    for _ in range(3):
        shop.turn(toy)
        shop.clock.advance(3)
    assert shop.get(key).status == "retrying"
    shop.clock.advance(50)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("error", ["still at it"])


def test_the_back_off_doubles_up_to_its_most_and_obeys_a_reload(shop: Shop) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": fail(*[AWAY] * 20)})
    pauses = []
    for _ in range(7):
        shop.turn(toy)
        pauses.append((shop.get(key).next_try_at - shop.clock.now()).total_seconds())
        shop.clock.advance(pauses[-1])
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15]
    shop.settings.retry_most_s = 3.0
    shop.turn(toy)
    assert (shop.get(key).next_try_at - shop.clock.now()).total_seconds() == 3
    assert shop.get(key).attempts == 8


@pytest.mark.parametrize("error", [AWAY, StaleWrite("somebody was faster")])
def test_a_transient_failure_is_retried(shop: Shop, error: Exception) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": fail(error)})
    shop.turn(toy)
    assert shop.get(key).status == "retrying"
    shop.clock.advance(1)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("done", [])


@pytest.mark.parametrize(
    "error",
    [DriverError("cloud", "says no", retryable=False), Conflict("no"), NotFound("no"), KeyError(1)],
)
def test_a_permanent_failure_ends_the_operation_at_once(shop: Shop, error: Exception) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": fail(error)})
    shop.turn(toy)
    assert shop.get(key).status == "error"
    assert len(toy.failures) == 1


def test_retries_end_at_the_give_up_time(shop: Shop) -> None:
    """Not a moment later: the next try would come too late."""
    key = shop.add()
    toy = Toy("toy", {"a": fail(*[AWAY] * 9)}, until=EPOCH + timedelta(seconds=2))
    shop.turn(toy)
    shop.clock.advance(0.5)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("retrying", [])
    shop.clock.advance(1)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("error", ["cloud: is away"])


def test_a_failed_record_of_a_failure_is_retried(shop: Shop) -> None:
    """A user wrote the lease in that moment: the work must not hang until its claim expires."""
    key = shop.add()
    beaten = iter([True])

    def once() -> None:
        if next(beaten, False):
            raise StaleWrite("somebody was faster")

    toy = Toy("toy", {"a": fail(Conflict("no"), Conflict("no"))}, on_failed=once)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("retrying", [])
    shop.clock.advance(1)
    shop.turn(toy)
    assert (shop.get(key).status, toy.failures) == ("error", ["no"])


def test_an_operation_of_an_unknown_kind_is_left_to_other_managers(shop: Shop) -> None:
    key = shop.add("newer")
    shop.turn(Toy("toy", {}))
    left = shop.get(key)
    assert (left.status, left.attempts, left.owner) == ("waiting", 0, None)
    shop.clock.advance(60)
    shop.turn(Toy("newer", {"a": say("known")}), owner="m2")
    assert shop.get(key).status == "done"


# early steps


def test_early_steps_run_ahead_and_the_rest_at_the_very_time(shop: Shop) -> None:
    ran: list[str] = []
    toy = Toy("toy", {"prepare": say("p", ran), "act": say("a", ran)}, early=frozenset({"prepare"}))
    key = shop.add(after_s=60, next_try_at=shop.clock.now())
    assert shop.turn(toy) == 60
    assert (ran, shop.get(key).status) == (["p"], "waiting")
    assert shop.get(key).next_try_at == shop.get(key).due_at
    shop.clock.advance(60)
    shop.turn(toy)
    assert (ran, shop.get(key).status) == (["p", "a"], "done")


def test_early_steps_are_skipped_once_the_operation_is_due(shop: Shop) -> None:
    ran: list[str] = []
    toy = Toy("toy", {"prepare": say("p", ran), "act": say("a", ran)}, early=frozenset({"prepare"}))
    shop.add()
    shop.turn(toy)
    assert ran == ["a"]


def test_failed_early_steps_make_nothing_late(shop: Shop) -> None:
    ran: list[str] = []
    toy = Toy(
        "toy",
        {"prepare": fail(*[AWAY] * 99), "act": say("a", ran)},
        early=frozenset({"prepare"}),
    )
    key = shop.add(after_s=60, next_try_at=shop.clock.now())
    while shop.get(key).status != "done":
        shop.clock.advance(shop.turn(toy))
    assert (ran, shop.ended[-1].lag_s) == (["a"], 0.0)


# claims


def _lost(shop: Shop) -> None:
    """Another manager takes everything whose claim has expired."""
    shop.clock.advance(TTL.total_seconds() + 1)
    assert shop.operations.claim_due("rival", 10, TTL, ["toy"])


def test_a_manager_without_a_claim_writes_nothing(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    key = shop.add()
    ran: list[str] = []

    def slow(_run: Run) -> str:
        _lost(shop)
        return "too late"

    toy = Toy("toy", {"a": slow, "b": say("b", ran)})
    with caplog.at_level(logging.WARNING):
        shop.turn(toy)
    found = shop.get(key)
    assert (found.owner, found.status, found.done_steps) == ("rival", "running", frozenset())
    assert (ran, toy.failures, shop.ended) == ([], [], [])
    assert "the claim of m1 ended" in caplog.text


def test_a_failure_after_the_claim_was_lost_is_nobodys_business(shop: Shop) -> None:
    key = shop.add()

    def slow(_run: Run) -> str:
        _lost(shop)
        raise AWAY

    toy = Toy("toy", {"a": slow})
    shop.turn(toy)
    assert (shop.get(key).owner, shop.get(key).attempts, toy.failures) == ("rival", 0, [])


def test_hold_renews_the_claim_when_needed_and_once_a_second(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second, so that a manager notices soon that its work was cancelled."""
    shop.add()
    renewed: list[float] = []
    renew = shop.operations.renew

    def counted(claim: Claim, ttl: timedelta) -> None:
        renewed.append(shop.clock.monotonic())
        renew(claim, ttl)

    monkeypatch.setattr(shop.operations, "renew", counted)

    def step(run: Run) -> str:
        for _ in range(6):
            run.hold(11.0)
            shop.clock.advance(0.4)
        run.hold(29.9)
        return "held"

    shop.turn(Toy("toy", {"a": step}))
    assert renewed == pytest.approx([1.2, 2.4])
    assert shop.ended[-1].status == "done"


def test_hold_raises_when_the_claim_is_gone(shop: Shop) -> None:
    shop.add()
    seen: list[str] = []

    def step(run: Run) -> str:
        _lost(shop)
        try:
            run.hold(1.0)
        except ClaimLost:
            seen.append("lost")
            raise
        return "never"

    shop.turn(Toy("toy", {"a": step}))
    assert seen == ["lost"]


def test_no_call_goes_to_the_cloud_once_the_claim_is_lost(shop: Shop, tmp_path: Any) -> None:
    cloud = SimCloud(str(tmp_path / "cloud.db"), shop.clock)
    shop.add()

    def step(run: Run) -> str:
        mine = guarded(cloud, run.hold)
        mine.pools.create("one", {})
        _lost(shop)
        mine.pools.create("two", {})
        return "never"

    shop.turn(Toy("toy", {"a": step}))
    assert [pool.name for pool in cloud.pools.list()] == ["one"]
    cloud.close()


def test_the_guard_asks_for_the_calls_whole_length_and_passes_values_on(
    shop: Shop, tmp_path: Any
) -> None:
    cloud = SimCloud(str(tmp_path / "cloud.db"), shop.clock, call_timeout_s=7.0)
    asked: list[float] = []
    mine = guarded(cloud, asked.append)
    assert mine.call_timeout_s == 7.0
    assert asked == []
    mine.pools.list()
    mine.servers.list(host=None)
    assert asked == [7.0 + MARGIN_S] * 2
    cloud.close()


@pytest.mark.parametrize("port", [p for p in vars(Cloud) if isinstance(vars(Cloud)[p], property)])
def test_every_method_of_every_cloud_port_renews_the_claim_first(
    shop: Shop, tmp_path: Any, port: str
) -> None:
    class Lost(Exception):
        pass

    def hold(_seconds: float) -> None:
        raise Lost

    cloud = SimCloud(str(tmp_path / "cloud.db"), shop.clock)
    protocol = get_type_hints(vars(Cloud)[port].fget)["return"]
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    assert methods
    for name in methods:
        with pytest.raises(Lost):
            getattr(getattr(guarded(cloud, hold), port), name)()
    cloud.close()


# a database that is away


class Flaky:
    """Operations behind a line that breaks: before the write, or after it (the answer is lost)."""

    def __init__(self, target: Any, name: str, *, times: int = 1, heard: bool = False) -> None:
        self._target, self._name, self._times, self._heard = target, name, times, heard

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name != self._name or self._times <= 0:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self._times -= 1
            if self._heard:
                value(*args, **kwargs)
            raise Unavailable("the database is away")

        return call


@pytest.mark.parametrize("heard", [False, True], ids=["before", "answer lost"])
@pytest.mark.parametrize("name", ["step_done", "finish", "put_off", "now"])
def test_a_database_that_goes_away_is_ridden_out(shop: Shop, name: str, heard: bool) -> None:
    key = shop.add()
    toy = Toy("toy", {"a": say("one"), "b": fail(NotYet("wait", 1.0))})
    flaky = Flaky(shop.operations, name, times=1 if heard else 3, heard=heard)
    shop.turn(toy, operations=flaky)
    for _ in range(3):
        shop.clock.advance(1)
        shop.turn(toy)
    found = shop.get(key)
    assert (found.status, found.done_steps, toy.failures) == ("done", frozenset(), [])


def test_after_a_lost_answer_the_claim_is_made_sure_of_before_the_next_call(shop: Shop) -> None:
    """The work was put off, the answer lost: somebody else may have it by now."""
    key = shop.add()
    calls: list[str] = []

    def step(run: Run) -> str:
        run.hold(5.0)
        calls.append("called")
        raise NotYet("wait", 9.0)

    flaky = Flaky(shop.operations, "put_off", heard=True)
    shop.turn(Toy("toy", {"a": step}), operations=flaky)
    assert calls == ["called"]
    assert shop.get(key).status == "retrying"


def test_a_manager_that_stops_does_not_wait_for_the_database(shop: Shop) -> None:
    """Its claim expires, and another goes on."""
    key = shop.add()
    runner = shop.runner(
        Toy("toy", {"a": lambda _run: runner.stop() or "one"}),
        operations=Flaky(shop.operations, "step_done", times=99),
    )
    shop.loop(runner).cycle()
    assert (runner.free(), shop.get(key).status) == (0, "running")
    shop.clock.advance(TTL.total_seconds())
    shop.turn(Toy("toy", {"a": say("one")}), owner="m2")
    assert shop.get(key).status == "done"


# one for all


def test_an_unforeseen_error_of_an_operation_does_not_stop_the_others(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    bad = shop.add("bad")
    good = [shop.add("good") for _ in range(3)]
    with caplog.at_level(logging.ERROR):
        shop.turn(
            Toy("bad", {"a": fail(ZeroDivisionError("oops"))}), Toy("good", {"a": say("fine")})
        )
    assert shop.get(bad).status == "error"
    assert {shop.get(key).status for key in good} == {"done"}
    assert "a defect of ours" in caplog.text


def test_a_listener_that_raises_does_not_stop_the_others(shop: Shop) -> None:
    keys = [shop.add() for _ in range(3)]

    def deaf(_ended: object) -> None:
        raise RuntimeError("metrics are broken")

    toy = Toy("toy", {"a": say("fine")})
    runner = shop.runner(toy)
    runner._on_ended = deaf
    shop.loop(runner).cycle()
    assert {shop.get(key).status for key in keys} == {"done"}
    assert toy.failures == []
    assert runner.free() == 64


def test_a_stopping_manager_hands_over_between_steps_and_finishes_what_is_done(
    shop: Shop,
) -> None:
    ran: list[str] = []
    unfinished, whole = shop.add("two"), shop.add("one")
    runner = shop.runner(
        Toy("two", {"a": lambda _run: runner._stop.set() or "a", "b": say("b", ran)}),
        Toy("one", {"a": lambda _run: runner._stop.set() or "a"}),
    )
    for taken in shop.operations.claim_due("m1", 10, TTL, ["one", "two"]):
        runner._stop.clear()
        runner.submit(taken, shop.clock.monotonic())
    assert shop.get(unfinished).status == "waiting"
    assert shop.get(unfinished).done_steps == {"a"}
    assert shop.get(whole).status == "done"
    assert ran == []
    shop.turn(Toy("two", {"b": say("b", ran)}), owner="m2")
    assert (ran, shop.get(unfinished).status) == (["b"], "done")


def test_the_runner_accepts_no_more_operations_than_free_workers(shop: Shop) -> None:
    for _ in range(5):
        shop.add()
    gate = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        runner = shop.runner(
            Toy("toy", {"a": lambda _run: str(gate.wait(PATIENCE_S))}), workers=2, pool=pool
        )
        loop = shop.loop(runner)
        assert loop.cycle() == shop.settings.poll_interval_s
        assert runner.free() == 0
        running = [o for o in shop.operations.list_all() if o.status == "running"]
        assert len(running) == 2
        gate.set()
    assert runner.free() == 2
    assert runner.freed.is_set()


def test_an_operation_claimed_ahead_too_long_is_left_to_other_managers(shop: Shop) -> None:
    key = shop.add()
    ran: list[str] = []
    shop.settings.claim_ahead = 2
    runner = shop.runner(Toy("toy", {"a": say("fine", ran)}), workers=1)
    assert (runner.free(), runner.free(ahead=True)) == (1, 3)
    (taken,) = shop.operations.claim_due("m1", 10, TTL, ["toy"])
    claimed_at = shop.clock.monotonic()
    shop.clock.advance(TTL.total_seconds() + 1)
    (again,) = shop.operations.claim_due("m2", 10, TTL, ["toy"])
    runner.submit(taken, claimed_at)
    assert ran == []
    assert (shop.get(key).status, shop.get(key).epoch) == ("running", again.epoch)


def test_an_operation_waiting_for_a_worker_keeps_the_claim(shop: Shop) -> None:
    keys = [shop.add() for _ in range(3)]
    ran: list[str] = []
    held: list[Any] = []

    class Later(Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            held.append(args)

    runner = shop.runner(Toy("toy", {"a": say("fine", ran)}), workers=1, pool=Later())
    before = shop.clock.monotonic()
    for operation in shop.operations.claim_due("m1", 3, TTL, ["toy"]):
        runner.submit(operation, before)
    for _ in range(5):
        shop.clock.advance(TTL.total_seconds() / 2)
        runner.keep_waiting()
        assert shop.operations.claim_due("m2", 3, TTL, ["toy"]) == []
    shop.clock.advance(TTL.total_seconds() + 1)  # frozen for too long: others take it
    assert len(shop.operations.claim_due("m2", 1, TTL, ["toy"])) == 1
    runner.keep_waiting()
    for act, *args in held:
        act(*args)
    assert len(ran) == 2
    assert sorted(shop.get(key).status for key in keys) == ["done", "done", "running"]


def test_a_failure_that_cannot_be_recorded_is_a_warning_and_an_error_once_recorded(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    key = shop.add()
    refusals: list[Exception] = [AWAY] * 5

    def written() -> None:
        if refusals:
            raise refusals.pop()

    toy = Toy("toy", {"a": fail(*[Conflict("no")] * 4, *[Conflict("never")] * 2)})
    toy.on_failed = written
    for _ in range(6):
        shop.turn(toy)
        shop.clock.advance(20)
    assert [record.getMessage() for record in caplog.records] == [
        *[f"{key}: no; then: cloud: is away"] * 4,
        f"{key}: never; then: cloud: is away",
        f"{key} failed for good: never",
    ]
    assert (shop.get(key).status, shop.get(key).sentence) == ("error", "never")
