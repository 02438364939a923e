# SPDX-License-Identifier: Apache-2.0
"""Claims: one owner at a time, taken over when they expire, worth nothing afterwards."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from holdfast.model.errors import ClaimLost
from holdfast.model.lease import BEFORE_END, DELETE, END, SEQUENCE, START
from holdfast.model.operation import Claim, Operation
from holdfast.ports.ledger import Operations, Work
from tests.jobs.conftest import TTL, Shop
from tests.processes import PATIENCE_S

KINDS = ("toy", *SEQUENCE)

WRITES: dict[str, Callable[[Operations, Claim, Shop], None]] = {
    "renew": lambda ops, claim, _: ops.renew(claim, TTL),
    "step_done": lambda ops, claim, _: ops.step_done(claim, 0, "step", "said", TTL),
    "put_off": lambda ops, claim, shop: ops.put_off(claim, "retrying", shop.clock.now(), "said"),
    "finish": lambda ops, claim, _: ops.finish(claim, "done", "said"),
}


def claim(shop: Shop, owner: str = "m1") -> tuple[Operation, Claim]:
    (taken,) = shop.operations.claim_due(owner, 10, TTL, KINDS)
    return taken, Claim(taken.id, owner, taken.epoch)


def test_a_claimed_operation_is_not_claimed_by_another_manager(shop: Shop) -> None:
    key = shop.add()
    taken, _ = claim(shop)
    assert (taken.key, taken.owner, taken.status) == (key, "m1", "running")
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    assert shop.operations.claim_due("m1", 10, TTL, KINDS) == []


def test_nothing_is_claimed_before_its_time_or_beyond_the_limit(shop: Shop) -> None:
    shop.add(after_s=1)
    assert shop.operations.claim_due("m1", 10, TTL, KINDS) == []
    for _ in range(3):
        shop.add()
    assert shop.operations.claim_due("m1", 0, TTL, KINDS) == []
    assert len(shop.operations.claim_due("m1", 2, TTL, KINDS)) == 2


def test_an_expired_claim_is_taken_over_with_a_new_epoch(shop: Shop) -> None:
    shop.add()
    first, _ = claim(shop)
    shop.clock.advance(TTL.total_seconds() - 0.001)
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    shop.clock.advance(0.001)
    second, _ = claim(shop, "m2")
    assert (second.owner, second.epoch) == ("m2", first.epoch + 1)


@pytest.mark.parametrize("write", WRITES)
def test_the_old_owner_of_a_claim_cannot_write_any_more(shop: Shop, write: str) -> None:
    key = shop.add()
    _, old = claim(shop)
    shop.clock.advance(TTL.total_seconds())
    claim(shop, "m2")
    before = shop.get(key)
    with pytest.raises(ClaimLost):
        WRITES[write](shop.operations, old, shop)
    assert shop.get(key) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_manager_of_the_same_name_cannot_write_for_its_former_self(
    shop: Shop, write: str
) -> None:
    """Restarted under a fixed name: the epoch tells them apart."""
    shop.add()
    _, old = claim(shop)
    shop.clock.advance(TTL.total_seconds())
    claim(shop)
    with pytest.raises(ClaimLost):
        WRITES[write](shop.operations, old, shop)


@pytest.mark.parametrize("write", WRITES)
def test_no_manager_writes_to_a_closed_operation(shop: Shop, write: str) -> None:
    shop.add()
    _, mine = claim(shop)
    shop.operations.finish(mine, "done", "said")
    with pytest.raises(ClaimLost):
        WRITES[write](shop.operations, mine, shop)


def test_a_claim_that_expired_unnoticed_can_still_be_renewed(shop: Shop) -> None:
    shop.add()
    _, mine = claim(shop)
    shop.clock.advance(TTL.total_seconds() + 5)
    shop.operations.renew(mine, TTL)
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []


def test_a_step_recorded_twice_is_recorded_once(shop: Shop) -> None:
    """The answer to the first may have been lost."""
    key = shop.add()
    _, mine = claim(shop)
    for _ in range(2):
        shop.operations.step_done(mine, 0, "step", "said", TTL)
    assert shop.get(key).done_steps == {"step"}


def test_a_step_renews_the_claim(shop: Shop) -> None:
    shop.add()
    _, mine = claim(shop)
    shop.clock.advance(20)
    shop.operations.step_done(mine, 0, "step", "said", TTL)
    shop.clock.advance(20)
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []


def test_a_postponed_operation_is_free_for_all_managers_when_due(shop: Shop) -> None:
    shop.add()
    _, mine = claim(shop)
    when = shop.clock.now() + timedelta(seconds=7)
    shop.operations.put_off(mine, "retrying", when, "said", failures=1)
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    shop.clock.advance(7)
    taken, _ = claim(shop, "m2")
    assert (taken.attempts, taken.sentence) == (1, "said")


def test_the_work_of_a_subject_is_done_in_its_order(shop: Shop) -> None:
    """All three are overdue; the later ones wait for the end of the earlier."""
    for kind in (END, START, BEFORE_END):
        shop.add(kind, subject="lease", sequence=SEQUENCE[kind])
    shop.add(END, subject="other", sequence=SEQUENCE[END])
    taken = shop.operations.claim_due("m1", 10, TTL, KINDS)
    assert sorted((o.subject, o.kind) for o in taken) == [("lease", START), ("other", END)]
    for wanted in (BEFORE_END, END):
        (mine,) = (o for o in taken if o.subject == "lease")
        assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
        shop.operations.finish(Claim(mine.id, "m1", mine.epoch), "error", "even so")
        taken = shop.operations.claim_due("m1", 10, TTL, KINDS)
        assert [o.kind for o in taken] == [wanted]


def test_cancelled_work_is_lost_to_its_owner_and_no_obstacle(shop: Shop) -> None:
    shop.add(START, subject="lease", sequence=10)
    end = shop.add(END, subject="lease", sequence=30)
    _, mine = claim(shop)
    shop.apply("lease", Work(cancel=frozenset({START})))
    with pytest.raises(ClaimLost):
        shop.operations.finish(mine, "done", "said")
    taken, _ = claim(shop)
    assert taken.key == end


def test_a_rearmed_operation_loses_steps_and_owner(shop: Shop) -> None:
    key = shop.add()
    taken, mine = claim(shop)
    shop.operations.step_done(mine, 0, "step", "said", TTL)
    again = Operation("other-id", taken.kind, taken.subject, key, *(shop.clock.now(),) * 2)
    shop.apply(taken.subject, Work(put=(again,)))
    with pytest.raises(ClaimLost):
        shop.operations.step_done(mine, 1, "next", "said", TTL)
    found = shop.get(key)
    assert (found.id, found.status, found.done_steps) == (taken.id, "waiting", frozenset())


def test_a_rearmed_operation_waits_for_a_call_still_under_way(shop: Shop) -> None:
    key = shop.add()
    taken, _ = claim(shop)
    again = Operation("x", taken.kind, taken.subject, key, *(shop.clock.now(),) * 2)
    for _ in range(2):  # arming it twice makes it no safer
        shop.clock.advance(1)
        shop.apply(taken.subject, Work(put=(again,)))
        assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    shop.clock.advance(TTL.total_seconds())
    claim(shop, "m2")


def test_a_new_operation_waits_for_the_calls_of_the_replaced_operation(shop: Shop) -> None:
    shop.add(START, subject="lease", sequence=10)
    claim(shop)
    now = shop.clock.now()
    delete = Operation("d", "lease_delete", "lease", "lease_delete/1", now, now, sequence=40)
    shop.apply("lease", Work(add=(delete,), cancel=frozenset({START})))
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    shop.clock.advance(TTL.total_seconds())
    taken, _ = claim(shop, "m2")
    assert taken.kind == "lease_delete"


def test_the_next_due_time_is_the_earliest_row_after_the_given_time(shop: Shop) -> None:
    now = shop.clock.now()
    assert shop.operations.next_due() is None
    shop.add(after_s=5)
    shop.add(after_s=3)
    shop.add(after_s=1)
    shop.clock.advance(2)
    assert shop.operations.next_due() == now + timedelta(seconds=3)
    assert shop.operations.next_due(now + timedelta(seconds=4)) == now + timedelta(seconds=5)
    assert shop.operations.next_due(now) == now + timedelta(seconds=1)


def test_many_managers_at_once_claim_every_row_once(shop: Shop) -> None:
    keys = [shop.add() for _ in range(60)]
    barrier = threading.Barrier(4)

    def take(owner: str) -> list[str]:
        barrier.wait(PATIENCE_S)
        found: list[str] = []
        while taken := shop.operations.claim_due(owner, 3, TTL, KINDS):
            found += [operation.key for operation in taken]
        return found

    with ThreadPoolExecutor(4) as pool:
        claimed = Counter(key for part in pool.map(take, "abcd") for key in part)
    assert claimed == Counter(keys)


def test_a_manager_that_lets_cancelled_work_go_ends_the_wait_for_it(shop: Shop) -> None:
    key = shop.add(START, subject="lease")
    _, mine = claim(shop)
    delete = Operation("d", DELETE, "lease", "delete/lease", shop.clock.now(), shop.clock.now())
    shop.apply("lease", Work(cancel=frozenset({START}), put=(delete,)))
    assert shop.get("delete/lease").next_try_at == shop.clock.now() + TTL
    shop.operations.release(mine)
    assert claim(shop, "m2")[0].kind == DELETE
    assert shop.get(key).status == "cancelled"


def test_only_a_claim_that_was_lost_to_a_request_is_released(shop: Shop) -> None:
    shop.add()
    _, mine = claim(shop)
    shop.operations.release(mine)
    assert shop.operations.claim_due("m2", 10, TTL, KINDS) == []
    shop.clock.advance(TTL.total_seconds())
    claim(shop, "m2")
    shop.operations.release(mine)
    assert shop.operations.claim_due("m3", 10, TTL, KINDS) == []
