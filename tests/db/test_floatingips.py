# SPDX-License-Identifier: Apache-2.0
"""Floating IPs on every database: enrolled once, one lease's at a time, withdrawn when free."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.model.errors import Conflict, InvalidInput, NotFound, StaleWrite
from holdfast.model.floatingip import FloatingIp
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.ledger import Work

IP = FloatingIp.of("public", "lower", "203.0.113.9")
HOUR = timedelta(hours=1)


def at_once(actions: list[Callable[[], object]]) -> list[object]:
    """What each of them answered or raised, begun at the same moment."""
    gate = threading.Barrier(len(actions))

    def one(action: Callable[[], object]) -> object:
        gate.wait()
        try:
            return action()
        except (Conflict, NotFound, InvalidInput) as refused:
            return type(refused)

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(one, actions))


def lease(start: datetime, hours: float = 1, key: str = IP.thing) -> Lease:
    window = Window(start, start + hours * HOUR)
    held = (Allocation(None, window, thing=key),)
    mine = Reservation(str(uuid.uuid4()), "virtual:floatingip", allocations=held)
    own = str(uuid.uuid4())
    return Lease(own, own[:8], "ann", "alpha", window.start, window.end, reservations=(mine,))


def test_an_address_enrolled_by_many_at_once_is_enrolled_once(store: Store) -> None:
    said = at_once([lambda: store.ledger.enrol_floatingip(IP)] * 6)
    assert sorted(map(str, said)) == sorted(map(str, [None, *[Conflict] * 5]))
    (found,) = store.ledger.floatingips("public")
    assert replace(found, created_at=None) == IP
    assert found.created_at is not None
    assert store.ledger.floatingips("private") == []
    assert store.ledger.floatingip(IP.id) == found
    with pytest.raises(NotFound, match="nobody"):
        store.ledger.floatingip("nobody")
    for subnet, address in (("lower", "203.0.113.100"), ("six", "2001:db8::9")):
        store.ledger.enrol_floatingip(FloatingIp.of("public", subnet, address))
    listed = [floatingip.address for floatingip in store.ledger.floatingips()]
    assert listed == ["203.0.113.9", "203.0.113.100", "2001:db8::9"]  # as people count


def test_many_who_want_one_address_at_once_leave_it_with_one(store: Store) -> None:
    store.ledger.enrol_floatingip(IP)
    now = store.ledger.now()
    wanted = [lease(now) for _ in range(6)]
    said = at_once([lambda one=one: store.ledger.book(one, Work()) for one in wanted])
    assert said.count(None) == 1, said
    assert set(said) == {None, StaleWrite}
    later = lease(now + HOUR)
    store.ledger.book(later, Work())
    holds = store.ledger.thing_holds([IP.thing, "address:x"], Window(now, now + 3 * HOUR))
    assert sorted(holds, key=lambda hold: hold[1].start) == [
        (IP.thing, Window(now, now + HOUR)),
        (IP.thing, Window(now + HOUR, now + 2 * HOUR)),
    ]
    assert store.ledger.thing_holds([IP.thing], Window(now + 2 * HOUR, now + 3 * HOUR)) == []
    (winner,) = (one for one, answer in zip(wanted, said, strict=True) if answer is None)
    with pytest.raises(StaleWrite):
        _prolong(store, winner, now + 2 * HOUR)  # the later lease has it then
    _prolong(store, later, now + 3 * HOUR)
    assert len(store.ledger.thing_holds([IP.thing], Window(now, now + 3 * HOUR))) == 2


def _prolong(store: Store, lease: Lease, end: datetime) -> None:
    old = store.ledger.lease(lease.id)
    (mine,) = old.reservations
    held = tuple(replace(a, held=replace(a.held, end=end)) for a in mine.allocations)
    new = replace(old, end=end, reservations=(replace(mine, allocations=held),))
    store.ledger.save(old, new)


def test_whoever_withdraws_and_whoever_books_do_not_both_win(store: Store) -> None:
    now = store.ledger.now()
    for turn in range(10):
        store.ledger.enrol_floatingip(IP)
        one = lease(now + turn * HOUR)
        booked, withdrawn = at_once(
            [
                lambda one=one: store.ledger.book(one, Work()),
                lambda: store.ledger.withdraw_floatingip(IP.id),
            ]
        )
        assert (booked, withdrawn) in ((None, Conflict), (StaleWrite, None))
        if booked is None:
            _over(store)
            store.ledger.withdraw_floatingip(IP.id)


def test_a_lease_that_is_over_is_in_the_way_until_it_gave_the_address_back(store: Store) -> None:
    store.ledger.enrol_floatingip(IP)
    now = store.ledger.now()
    past = lease(now - 2 * HOUR)
    store.ledger.book(past, Work())
    late = store.ledger.things_not_given_back
    assert late([IP.thing], besides="nobody") == {past.name}
    assert late([IP.thing], besides=past.id) == set()
    with pytest.raises(Conflict, match=r"203\.0\.113\.9 is reserved"):
        store.ledger.withdraw_floatingip(IP.id)
    _over(store)
    assert late([IP.thing], besides="nobody") == set()
    store.ledger.withdraw_floatingip(IP.id)
    assert store.ledger.floatingips() == []


def _over(store: Store) -> None:
    """All ends have happened."""
    with store.database.write() as conn:
        conn.execute(sa.text("UPDATE reservations SET status = 'deleted'"))
