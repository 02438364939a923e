# SPDX-License-Identifier: Apache-2.0
"""The stock in memory is what the database says, whoever wrote it, on every database."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.db import Store, migrations
from holdfast.db.capacity import OVERLAP
from holdfast.db.tables import hosts
from holdfast.model.errors import StaleWrite, Unavailable
from holdfast.model.host import Inventory
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock


@pytest.fixture
def other(store: Store, store_url: str) -> Iterator[Store]:
    """Another manager on the same database."""
    second = Store(store_url, SystemClock())
    yield second
    second.close()


def enrol(store: Store, name: str, **about: object) -> int:
    sizes = {"vcpus": 8, "memory_mb": 4096, "local_gb": 100} | about
    host = CloudHost(str(uuid.uuid4()), name, name, **sizes)  # type: ignore[arg-type]
    host_id = store.ledger.enrol(host, "", {}, Work()).id
    open_(store, host_id)
    return host_id


def open_(store: Store, host_id: int) -> None:
    """As the last step of an enrolment does, without its claim."""
    with store.database.write() as conn:
        now = store.database.now(conn)
        values = {"reservable": True, "updated_at": now, "touched_at": now}
        row = sa.update(hosts).where(hosts.c.id == host_id)
        conn.execute(row.values(**values, generation=hosts.c.generation + 1))


#: So that windows of leases made one after the other meet.
BASE = datetime.now(UTC)


@pytest.fixture(autouse=True)
def recently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each test: hours may have passed since all of them were collected."""
    monkeypatch.setitem(globals(), "BASE", datetime.now(UTC))


def window(start: float, end: float) -> Window:
    return Window(BASE + timedelta(hours=start), BASE + timedelta(hours=end))


def lease(store: Store, *holds: tuple[int, float, float], slots: int | None = None) -> Lease:
    takes = {} if slots is None else {"VCPU": slots}
    mine = tuple(Allocation(i, window(a, b), slots, takes) for i, a, b in holds)
    reservation = Reservation(str(uuid.uuid4()), "physical:host", allocations=mine)
    whole = window(1, 2)
    return Lease(
        str(uuid.uuid4()), "l", "u", "p", whole.start, whole.end, reservations=(reservation,)
    )


def is_free(store: Store, host_id: int, start: float, end: float, *, sure: bool = False) -> bool:
    asked = window(start, end)
    line = store.ledger.capacity(sure=sure).line(host_id)
    return line.is_free(asked.start.timestamp(), asked.end.timestamp())


def test_what_one_manager_books_the_other_sees_at_once(store: Store, other: Store) -> None:
    one = enrol(store, "one")
    assert is_free(other, one, 1, 2)
    store.ledger.book(lease(store, (one, 1, 2)), Work())
    assert not is_free(other, one, 1, 2)
    assert is_free(other, one, 3, 4)


def test_what_is_given_back_is_free_again(store: Store, other: Store) -> None:
    one = enrol(store, "one")
    booked = lease(store, (one, 1, 3))
    store.ledger.book(booked, Work())
    assert not is_free(other, one, 2.1, 2.5)
    (reservation,) = booked.reservations
    (hold,) = reservation.allocations
    shorter = replace(hold, held=Window(hold.held.start, hold.held.end - timedelta(hours=1)))
    new = replace(booked, reservations=(replace(reservation, allocations=(shorter,)),))
    saved = store.ledger.save(booked, new)
    assert is_free(other, one, 2.1, 2.5)
    assert not is_free(other, one, 1.1, 1.5)
    erase(store, saved)
    assert is_free(other, one, 1.1, 1.5)


def erase(store: Store, gone: Lease) -> None:
    now = store.database.now()
    work = Operation(str(uuid.uuid4()), "k", gone.id, str(uuid.uuid4()), now, now)
    store.operations.ensure(work)
    (claimed,) = store.operations.claim_due("me", 10, timedelta(minutes=10), ["k"])
    claim = Claim(claimed.id, "me", claimed.epoch)
    store.ledger.erase(gone, claim=claim, say="gone")


def test_hosts_come_and_go_and_change(store: Store, other: Store) -> None:
    one = enrol(store, "one")
    assert set(other.ledger.capacity().hosts) == {one}
    two = enrol(store, "two", inventories={"VCPU": Inventory(10, 2, 4.0)}, traits=frozenset({"T"}))
    stock = other.ledger.capacity()
    assert set(stock.hosts) == {one, two}
    assert stock.hosts[two].capacity() == {"VCPU": 32}
    assert stock.hosts[two].traits == {"T"}
    store.ledger.describe(one, {"gpu": "yes"})
    assert other.ledger.capacity().hosts[one].capabilities == {"gpu": "yes"}
    store.ledger.withdraw(two, Work())
    assert set(other.ledger.capacity().hosts) == {one}


def test_a_host_that_changes_twice_within_one_instant_is_seen_as_it_is(
    tmp_path: Path,
) -> None:
    """Time stands still, as it may for a clock that is coarse."""
    store = Store(f"sqlite:///{tmp_path / 'db'}", SimClock(BASE))
    migrations.sync(store.database)
    host_id = enrol(store, "cmp-1")

    def say(reservable: bool) -> bool:
        with store.database.write() as conn:
            now = store.database.now(conn)
            values = {"reservable": reservable, "updated_at": now, "touched_at": now}
            row = sa.update(hosts).where(hosts.c.id == host_id)
            conn.execute(row.values(**values, generation=hosts.c.generation + 1))
        return host_id in store.ledger.capacity().hosts

    assert [say(False), say(True), say(False)] == [False, True, False]
    store.close()


def test_a_booking_does_not_make_anybody_read_facts_again(store: Store, other: Store) -> None:
    one = enrol(store, "one")
    before = other.ledger.capacity()
    store.ledger.book(lease(store, (one, 1, 2)), Work())
    assert other.ledger.capacity() is before
    store.ledger.describe(one, {"gpu": "yes"})
    assert other.ledger.capacity() is not before


def test_a_commit_of_a_frozen_writer_is_found_by_a_sure_refresh(store: Store, other: Store) -> None:
    one = enrol(store, "one")
    assert is_free(other, one, 1, 2)
    store.ledger.book(lease(store, (one, 1, 2)), Work())
    with store.database.write() as conn:  # as if it had written its time long before its commit
        row = sa.update(hosts).where(hosts.c.id == one)
        conn.execute(row.values(touched_at=BASE - OVERLAP * 2))
    assert is_free(other, one, 1, 2), "the look that is not sure can miss it"
    assert not is_free(other, one, 1, 2, sure=True)


def test_slots_are_sold_up_to_the_peak_and_not_beyond(store: Store) -> None:
    one = enrol(store, "one")  # 8 vCPUs
    store.ledger.book(lease(store, (one, 1, 3), slots=5), Work())
    store.ledger.book(lease(store, (one, 3, 5), slots=8), Work())
    store.ledger.book(lease(store, (one, 2, 3), slots=3), Work())
    with pytest.raises(StaleWrite):
        store.ledger.book(lease(store, (one, 2.5, 4), slots=1), Work())
    with pytest.raises(StaleWrite):  # nor is a host of which slots are sold a whole one
        store.ledger.book(lease(store, (one, 2.9, 3)), Work())
    store.ledger.book(lease(store, (one, 5, 6)), Work())
    with pytest.raises(StaleWrite):
        store.ledger.book(lease(store, (one, 5.5, 7), slots=1), Work())


def test_one_thing_has_one_owner_at_a_time(store: Store) -> None:
    def of(start: float, end: float) -> Lease:
        made = lease(store, (0, start, end))
        (reservation,) = made.reservations
        (hold,) = reservation.allocations
        thing = replace(hold, host_id=None, thing="server:1")
        return replace(made, reservations=(replace(reservation, allocations=(thing,)),))

    store.ledger.book(of(1, 2), Work())
    store.ledger.book(of(2, 3), Work())
    with pytest.raises(StaleWrite):
        store.ledger.book(of(1.5, 2.5), Work())
    keys = ["server:1", "x"]
    assert store.ledger.busy_things(keys, window(1, 1.5), besides="") == {"server:1"}
    assert store.ledger.known_things(keys) == {"server:1"}


def test_what_is_over_is_in_nobodys_way(store: Store) -> None:
    one = enrol(store, "one")  # 8 vCPUs
    store.ledger.book(lease(store, (one, -3, -1), slots=8), Work())
    running = lease(store, (one, -3, 5), slots=2)
    store.ledger.book(running, Work())
    (reservation,) = running.reservations
    (hold,) = reservation.allocations
    larger = replace(hold, slots=4, takes={"VCPU": 4})
    grown = replace(running, reservations=(replace(reservation, allocations=(larger,)),))
    store.ledger.save(running, grown)
    with pytest.raises(StaleWrite):
        store.ledger.book(lease(store, (one, 4, 6), slots=5), Work())


class Counted:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.came: list[int] = []

    def __enter__(self) -> None:
        self.came.append(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_caller_that_waited_for_a_failed_refresh_refreshes_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(store, "one")
    keeper = store.ledger._cache
    looks = keeper._refresh

    def fails(sure: bool) -> None:
        monkeypatch.setattr(keeper, "_refresh", looks)
        raise Unavailable("the database is away")

    monkeypatch.setattr(keeper, "_refresh", fails)
    counted = Counted()
    monkeypatch.setattr(keeper, "_lock", counted)
    with ThreadPoolExecutor(3) as pool:
        with counted.lock:  # all three ask before the first of them looks
            asked = [pool.submit(store.ledger.capacity) for _ in range(3)]
            eventually(lambda: len(counted.came) == 3)
        failed = [one for one in asked if one.exception(PATIENCE_S)]
    assert len(failed) == 1
    assert all(len(one.result().hosts) == 1 for one in asked if one not in failed)
