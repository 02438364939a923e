# SPDX-License-Identifier: Apache-2.0
"""Stamps: what the API keeps of a lease is right for as long as its stamp, whoever writes."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.api.concurrency import JsonCache
from holdfast.api.reservation_v1.leases import view
from holdfast.db import Store, booking
from holdfast.db.leases import Seen, Stamp
from holdfast.model.errors import ClaimLost, StaleWrite
from holdfast.model.lease import BEFORE_END, END, SEQUENCE, START, Lease, Reservation
from holdfast.model.operation import DONE, ERROR, RETRYING, WAITING, Claim, Operation
from holdfast.ports.ledger import Work
from holdfast.runtime.clock import SystemClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KINDS = (START, BEFORE_END, END)
TTL = timedelta(minutes=5)


@pytest.fixture
def other(store: Store, store_url: str) -> Iterator[Store]:
    """The same database as another process has it."""
    made = Store(store_url, SystemClock())
    yield made
    made.close()


def work(lease_id: str, kinds: Sequence[str] = KINDS) -> tuple[Operation, ...]:
    past = datetime(2026, 1, 1, tzinfo=UTC)
    return tuple(
        Operation(
            id=str(uuid.uuid4()),
            kind=kind,
            subject=lease_id,
            key=f"{kind}/{lease_id}",
            due_at=past,
            next_try_at=past,
            sequence=SEQUENCE[kind],
        )
        for kind in kinds
    )


def book(store: Store, project: str = "p") -> Lease:
    id_ = str(uuid.uuid4())
    part = Reservation(str(uuid.uuid4()), "physical:host", spec={"min": 1, "max": 1})
    end = NOW + timedelta(hours=1)
    lease = Lease(id_, "one", "u", project, NOW, end, reservations=(part,))
    store.ledger.book(lease, Work(add=work(id_)))
    return store.ledger.lease(id_)


def write(seen: Seen) -> bytes:
    return json.dumps(view(*seen, NOW)).encode()


def stamps(store: Store) -> Sequence[Stamp]:
    return store.ledger.stamped(lambda _: ())[0]


class Walk:
    """Random writes to one lease, each through one of two stores."""

    def __init__(self, seed: int, stores: Sequence[Store], lease_id: str) -> None:
        self._random = random.Random(seed)
        self._stores = stores
        self._id = lease_id
        self._claims: list[Claim] = []

    def step(self) -> str:
        store = self._random.choice(self._stores)
        names = ["claim", "claim", "rename", "move", "again", "cancel"]
        if self._claims:
            names += ["renew", "put_off", "finish", "save"] * 2
        name = self._random.choice(names)
        try:
            getattr(self, f"_{name}")(store)
        except (ClaimLost, StaleWrite) as lost:
            return f"{name}: {type(lost).__name__}"
        return name

    def _claim(self, store: Store) -> None:
        for operation in store.operations.claim_due("me", 1, TTL, KINDS):
            self._claims.append(Claim(operation.id, "me", operation.epoch))

    def _some(self) -> Claim:
        return self._claims.pop(self._random.randrange(len(self._claims)))

    def _renew(self, store: Store) -> None:
        store.operations.renew(self._claims[-1], TTL)

    def _put_off(self, store: Store) -> None:
        soon = store.database.now() - timedelta(seconds=1)
        status = self._random.choice([WAITING, RETRYING])
        store.operations.put_off(self._some(), status, soon, "later")

    def _finish(self, store: Store) -> None:
        store.operations.finish(self._some(), self._random.choice([DONE, ERROR]), "over")

    def _save(self, store: Store) -> None:
        lease = store.ledger.lease(self._id)
        (part,) = lease.reservations
        changed = replace(part, missing_resources=not part.missing_resources)
        new = replace(lease, degraded=not lease.degraded, reservations=(changed,))
        store.ledger.save(lease, new, claim=self._claims[-1])

    def _rename(self, store: Store) -> None:
        lease = store.ledger.lease(self._id)
        store.ledger.save(lease, replace(lease, name=str(self._random.random())))

    def _move(self, store: Store) -> None:
        lease = store.ledger.lease(self._id)
        status = self._random.choice(["PENDING", "STARTING", "ACTIVE", "ERROR"])
        store.ledger.save(lease, replace(lease, status=status))

    def _again(self, store: Store) -> None:
        lease = store.ledger.lease(self._id)
        kind = self._random.choice(KINDS)
        store.ledger.save(lease, lease, work=Work(put=work(lease.id, [kind])))

    def _cancel(self, store: Store) -> None:
        lease = store.ledger.lease(self._id)
        store.ledger.save(lease, lease, work=Work(cancel=frozenset({BEFORE_END})))


@pytest.mark.parametrize("seed", range(2))
def test_after_every_write_every_process_shows_what_the_database_has(
    store: Store, other: Store, seed: int
) -> None:
    lease = book(store)
    for _ in range(3):
        book(other)
    kept = {store: JsonCache(), other: JsonCache()}
    walk = Walk(seed, [store, other], lease.id)
    done: list[str] = []
    for _ in range(80):
        done.append(walk.step())
        for each, rendered in kept.items():
            shown = rendered.texts(each.ledger.stamped, write)
            assert shown == [write(seen) for seen in each.ledger.with_events()], done
    assert {"claim", "put_off", "finish", "save", "rename", "move", "again", "cancel"} <= {*done}


def test_a_lease_that_nobody_wrote_is_read_in_full_once(store: Store) -> None:
    book(store)
    rendered = JsonCache()
    written: list[str] = []

    def count(seen: Seen) -> bytes:
        written.append(seen[0].id)
        return write(seen)

    for _ in range(3):
        assert len(rendered.texts(store.ledger.stamped, count)) == 1
    assert len(written) == 1
    new = book(store)
    assert len(rendered.texts(store.ledger.stamped, count)) == 2
    assert new.id in written
    known = len(written)
    for _ in range(3):
        assert len(rendered.texts(store.ledger.stamped, count)) == 2
    assert len(written) == known


def test_stamps_are_of_the_leases_asked_for_in_the_order_they_were_made(store: Store) -> None:
    mine = [book(store).id for _ in range(3)]
    theirs = book(store, "other").id
    made = [lease.id for lease, _ in store.ledger.with_events()]
    assert [id_ for id_, *_ in stamps(store)] == made
    assert sorted(made) == sorted([*mine, theirs])

    def asked(**which: str) -> set[str]:
        return {id_ for id_, *_ in store.ledger.stamped(lambda _: (), **which)[0]}

    assert asked(project_id="p") == {*mine}
    assert asked(lease_id=theirs) == {theirs}
    assert asked(lease_id=theirs, project_id="p") == set()


def test_a_lease_that_went_between_its_stamp_and_its_reading_is_not_shown(store: Store) -> None:
    book(store)
    found = stamps(store)

    def look(missing: object) -> tuple[Sequence[Stamp], dict[str, Seen]]:
        return found, {}

    assert JsonCache().texts(look, write) == []


def test_more_leases_than_fit_in_one_statement_are_all_read(store: Store) -> None:
    ids = {book(store).id for _ in range(7)}
    whole = booking.PORTION
    booking.PORTION = 3
    try:
        assert {lease.id for lease, _ in store.ledger.with_events()} == ids
        assert store.ledger.stamped(lambda _: sorted(ids))[1].keys() == ids
    finally:
        booking.PORTION = whole


def test_texts_are_bounded_and_the_longest_unused_goes_first() -> None:
    rendered = JsonCache(most=3)
    read: list[str] = []

    def ask(*ids: str) -> None:
        found = [(id_,) for id_ in ids]
        rendered.texts(lambda missing: (found, {id_: id_ for id_ in missing(found)}), note)

    def note(id_: str) -> bytes:
        read.append(id_)
        return id_.encode()

    ask("a", "b", "c")
    ask("a")
    ask("d")  # takes the place of b
    ask("a", "c", "d")
    assert read == ["a", "b", "c", "d"]
    ask("b")
    assert read == ["a", "b", "c", "d", "b"]
