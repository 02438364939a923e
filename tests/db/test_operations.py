# SPDX-License-Identifier: Apache-2.0
"""Claims on durable work: one owner at a time, by the database's clock, on every database."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from holdfast.db import Store
from holdfast.db import engine as database_module
from holdfast.db.operations import apply_work
from holdfast.model.errors import ClaimLost
from holdfast.model.operation import DONE, RETRYING, Claim, Operation
from holdfast.ports.ledger import Work
from tests.processes import eventually

TTL = timedelta(minutes=10)  # longer than any test takes
KINDS = ("kind",)


def add(store: Store, *operations: Operation) -> None:
    with store.database.write() as conn:
        for operation in operations:
            now = store.database.now(conn)
            apply_work(conn, operation.subject, Work(add=(operation,)), now)


def work(name: str, due: datetime, subject: str = "", sequence: int = 0) -> Operation:
    return Operation(name, "kind", subject or name, name, due, due, sequence)


def claim(operation: Operation) -> Claim:
    assert operation.owner is not None
    return Claim(operation.id, operation.owner, operation.epoch)


def test_four_managers_at_once_never_claim_the_same_work(store: Store) -> None:
    now = store.database.now()
    add(store, *(work(f"w{number}", now) for number in range(60)))

    def take(owner: str) -> list[str]:
        found: list[str] = []
        while batch := store.operations.claim_due(owner, 7, TTL, KINDS):
            found += [operation.id for operation in batch]
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, ["a", "b", "c", "d"]))
    everything = [name for names in taken for name in names]
    assert len(everything) == len(set(everything)) == 60


def test_future_work_waits_and_the_next_due_time_is_known(store: Store) -> None:
    later = store.database.now() + timedelta(minutes=5)
    add(store, work("later", later))
    assert store.operations.claim_due("a", 10, TTL, KINDS) == []
    assert store.operations.next_due() == later


def test_an_expired_claim_is_taken_over_and_the_old_owner_is_refused(store: Store) -> None:
    add(store, work("w", store.database.now()))
    (first,) = store.operations.claim_due("slow", 1, TTL, KINDS)
    assert store.operations.claim_due("quick", 1, TTL, KINDS) == []
    store.operations.renew(claim(first), timedelta(seconds=0.1))  # and is not heard of again
    (second,) = eventually(lambda: store.operations.claim_due("quick", 1, TTL, KINDS))
    assert (second.owner, second.epoch) == ("quick", first.epoch + 1)
    for write in (
        lambda: store.operations.renew(claim(first), TTL),
        lambda: store.operations.step_done(claim(first), 0, "s", "said", TTL),
        lambda: store.operations.put_off(claim(first), RETRYING, store.database.now(), "x"),
        lambda: store.operations.finish(claim(first), DONE, "x"),
    ):
        with pytest.raises(ClaimLost):
            write()
    store.operations.finish(claim(second), DONE, "done by the second")
    assert store.operations.by_key("w").sentence == "done by the second"


def test_work_that_waits_for_a_cancelled_claim_begins_when_its_manager_lets_go(
    store: Store,
) -> None:
    now = store.database.now()
    add(store, work("start", now, "lease"))
    (start,) = store.operations.claim_due("a", 1, TTL, KINDS)
    with store.database.write() as conn:
        more = Work(cancel=frozenset(KINDS), put=(work("delete", now, "lease", 5),))
        apply_work(conn, "lease", more, store.database.now(conn))
    assert store.operations.claim_due("b", 1, TTL, KINDS) == []
    store.operations.release(claim(start))
    (delete,) = store.operations.claim_due("b", 1, TTL, KINDS)
    assert delete.id == "delete"
    store.operations.release(claim(start))  # nothing is left to release
    assert store.operations.by_key("delete").claim_until == delete.claim_until


def test_work_of_one_subject_runs_in_order(store: Store) -> None:
    now = store.database.now()
    add(store, work("end", now, "lease", 30), work("start", now, "lease", 10))
    (start,) = store.operations.claim_due("a", 10, TTL, KINDS)
    assert start.id == "start"
    assert store.operations.claim_due("b", 10, TTL, KINDS) == []
    store.operations.finish(claim(start), DONE, "")
    assert [o.id for o in store.operations.claim_due("b", 10, TTL, KINDS)] == ["end"]


def test_kinds_that_a_manager_does_not_know_are_left_to_others(store: Store) -> None:
    add(store, work("w", store.database.now()))
    assert store.operations.claim_due("old version", 10, TTL, ("another",)) == []
    assert len(store.operations.claim_due("new version", 10, TTL, KINDS)) == 1


def test_steps_are_remembered_for_the_next_owner(store: Store) -> None:
    add(store, work("w", store.database.now()))
    (mine,) = store.operations.claim_due("a", 1, TTL, KINDS)
    store.operations.step_done(claim(mine), 0, "first", "said", TTL)
    store.operations.step_done(claim(mine), 0, "first", "said again", TTL)
    store.operations.put_off(claim(mine), RETRYING, store.database.now(), "tired", failures=1)
    (next_,) = store.operations.claim_due("b", 1, TTL, KINDS)
    assert next_.done_steps == {"first"}
    assert next_.attempts == 1


def test_times_come_back_as_they_went(store: Store) -> None:
    due = store.database.now().replace(microsecond=123456) + timedelta(days=1)
    add(store, work("w", due))
    assert store.operations.by_key("w").due_at == due


def test_the_clock_is_the_databases_and_moves_on(store: Store) -> None:
    first = store.database.now()
    eventually(lambda: store.database.now() > first)
    skew = abs(store.database.clock.now() - store.database.now())
    assert skew < timedelta(minutes=1)


def test_the_clock_does_not_go_back_when_it_is_read_anew_unless_the_databases_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = store.database
    if database.dialect == "sqlite":
        return  # it has no clock of its own
    first = database.now()
    monkeypatch.setattr(database_module, "CLOCK_AGE_S", math.inf)  # it is not read by itself
    # as a busy machine reads it, a little late
    database._clock_read = (database.clock.monotonic(), first - timedelta(seconds=0.5))
    assert database.now() >= first
    # and as it is once somebody has set it back
    database._clock_read = (database.clock.monotonic(), first - timedelta(hours=1))
    assert database.now() < first - timedelta(minutes=30)
