# SPDX-License-Identifier: Apache-2.0
"""Standings on every database: one of many decides, and what follows is written with it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db import host_status as host_status_store
from holdfast.db.tables import audit
from holdfast.hoststatus.status import DOWN, RETURNING, SUSPECT, UP, HostStatus, Memory
from holdfast.jobs.job import never_ending
from holdfast.model.errors import StaleWrite
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.model.operation import OPEN, Claim, Operation
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.ports.recovery import ParkedMessage, StatusChange

NOON = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
BAD = Memory(DOWN, NOON, 2, NOON - timedelta(seconds=3), False, "does not report")
FAILED = HostStatus(DOWN, NOON, "says so", decided_at=NOON, sources={"nova:service": BAD})


def repair(now: datetime) -> Operation:
    return never_ending("repair", now)


def enrolled(store: Store, *names: str) -> list[Host]:
    return [_enrol(store, name) for name in names]


def _enrol(store: Store, name: str) -> Host:
    cloud_host = CloudHost(str(uuid.uuid4()), name, name, vcpus=4, memory_mb=512, local_gb=8)
    host = store.ledger.enrol(cloud_host, "", {}, Work())
    open_it(store, host)
    return store.ledger.host(str(host.id))


def open_it(store: Store, host: Host) -> None:
    """As the last step of an enrolment does."""
    work = never_ending(f"enrol-{host.id}-{uuid.uuid4().hex[:6]}", store.database.now())
    store.operations.ensure(work)
    (mine,) = store.operations.claim_due("m", 1, timedelta(minutes=10), [work.kind])
    store.ledger.set_reservable(host.id, True, claim=Claim(mine.id, "m", mine.epoch))


def lease_on(store: Store, host: Host) -> Lease:
    now = store.database.now()
    held = Window(now, now + timedelta(hours=1))
    allocation = Allocation(host_id=host.id, held=held)
    reservation = Reservation(
        id=str(uuid.uuid4()), resource_type="physical:host", allocations=(allocation,)
    )
    return Lease(
        str(uuid.uuid4()), "l", "u", "p", held.start, held.end, reservations=(reservation,)
    )


def said(store: Store, *sentences: str) -> list[str]:
    """Those of the sentences that are in the audit, in its order and number."""
    query = sa.select(audit.c.sentence).where(audit.c.sentence.in_(sentences))
    with store.database.read() as conn:
        return list(conn.execute(query.order_by(audit.c.id)).scalars())


def test_a_host_status_is_read_as_it_was_written(store: Store) -> None:
    (host,) = enrolled(store, "a")
    assert [one.status for one in store.host_status.watched()] == [HostStatus()]
    assert store.host_status.change([StatusChange(host.id, HostStatus(), FAILED)], None) == set()
    assert [one.status for one in store.host_status.watched()] == [FAILED]
    assert store.host_status.by_state() == {DOWN: 1}


def test_a_failed_host_is_out_of_every_stock_and_cannot_be_booked(store: Store) -> None:
    good, bad = enrolled(store, "a", "b")
    assert set(store.ledger.capacity().hosts) == {good.id, bad.id}
    store.host_status.change([StatusChange(bad.id, HostStatus(), FAILED, "b failed")], repair)
    assert set(store.ledger.capacity().hosts) == {good.id}
    assert not store.ledger.host("b").usable
    store.ledger.book(lease_on(store, good), Work())
    with pytest.raises(StaleWrite):
        store.ledger.book(lease_on(store, bad), Work())
    back = HostStatus(UP, NOON, "well")
    store.host_status.change([StatusChange(bad.id, FAILED, back, "b is back")], repair)
    assert set(store.ledger.capacity().hosts) == {good.id, bad.id}
    store.ledger.book(lease_on(store, bad), Work())
    assert said(store, "b failed", "b is back") == ["b failed", "b is back"]


def test_the_slower_writer_gets_a_conflict_and_writes_nothing(store: Store) -> None:
    one, other = enrolled(store, "a", "b")
    store.host_status.change([StatusChange(one.id, HostStatus(), FAILED)], None)
    again = [
        StatusChange(host.id, HostStatus(), replace(FAILED, why="mine")) for host in (one, other)
    ]
    assert store.host_status.change(again, None) == {one.id}
    assert [found.status.why for found in store.host_status.watched()] == ["says so", "mine"]
    assert store.host_status.change([StatusChange(999, HostStatus(), FAILED)], None) == {999}


def test_of_many_who_decide_at_once_one_does_and_repair_is_armed_once(store: Store) -> None:
    hosts = enrolled(store, "a", "b", "c")
    changes = [StatusChange(host.id, HostStatus(), FAILED, "it failed") for host in hosts]
    with ThreadPoolExecutor(6) as pool:
        left = list(pool.map(lambda _: store.host_status.change(changes, repair), range(6)))
    assert sorted(len(one) for one in left) == [0, 3, 3, 3, 3, 3]
    assert said(store, "it failed") == ["it failed"] * 3
    assert len(store.operations.list_all(subject="repair")) == 1


def test_repair_is_armed_when_a_host_goes_and_when_it_returns_and_not_between(
    store: Store,
) -> None:
    (host,) = enrolled(store, "a")
    steps = [HostStatus(), HostStatus(SUSPECT, NOON), FAILED, replace(FAILED, state=RETURNING)]
    due = []
    for old, new in zip(steps, [*steps[1:], HostStatus(UP, NOON)], strict=True):
        assert store.host_status.change([StatusChange(host.id, old, new)], repair) == set()
        armed = store.operations.list_all(subject="repair")
        due.append(armed[0].due_at if armed else None)
    suspected, failed, returning, back = due
    assert suspected is None
    assert failed == returning
    assert failed is not None
    assert back is not None
    assert back > failed
    assert store.operations.by_key("repair").status in OPEN


def test_only_what_changes_its_use_makes_others_plan_anew(store: Store) -> None:
    (host,) = enrolled(store, "a")
    suspect = HostStatus(SUSPECT, NOON)
    store.host_status.change([StatusChange(host.id, HostStatus(), suspect)], repair)
    assert store.ledger.host("a").generation == host.generation
    store.host_status.change([StatusChange(host.id, suspect, FAILED)], repair)
    assert store.ledger.host("a").generation == host.generation + 1


def test_an_enrolment_does_not_make_a_failed_host_reservable(store: Store) -> None:
    (host,) = enrolled(store, "a")
    store.host_status.change([StatusChange(host.id, HostStatus(), FAILED)], None)
    store.ledger.withdraw(host.id, Work())
    again = CloudHost(host.uuid, "a", "a", vcpus=4, memory_mb=512, local_gb=8)
    store.ledger.enrol(again, "", {}, Work())
    open_it(store, host)
    assert store.ledger.host("a").reservable
    assert store.ledger.capacity().hosts == {}


def test_a_host_that_is_withdrawn_does_not_come_back_by_being_well(store: Store) -> None:
    (host,) = enrolled(store, "a")
    store.host_status.change([StatusChange(host.id, HostStatus(), FAILED)], None)
    store.ledger.withdraw(host.id, Work())
    store.host_status.change([StatusChange(host.id, FAILED, HostStatus(UP, NOON))], None)
    assert store.ledger.capacity(sure=True).hosts == {}


def test_work_can_be_hastened_unless_somebody_is_at_it(store: Store) -> None:
    assert not store.host_status.expedite("chore")
    store.operations.ensure(never_ending("chore", store.database.now() + timedelta(hours=1)))
    assert store.operations.claim_due("m", 1, timedelta(minutes=10), ["chore"]) == []
    assert store.host_status.expedite("chore")
    assert store.host_status.expedite("chore")
    (mine,) = store.operations.claim_due("m", 1, timedelta(minutes=10), ["chore"])
    assert not store.host_status.expedite("chore")
    later = store.database.now() + timedelta(hours=1)
    store.operations.put_off(Claim(mine.id, "m", mine.epoch), "retrying", later, "later")
    assert store.host_status.expedite("chore")
    assert store.operations.by_key("chore").next_try_at <= store.database.now()


def test_a_chore_that_is_asked_for_while_somebody_is_at_it_is_done_again_at_once(
    store: Store,
) -> None:
    """Also in the last moment, when he has looked and only has to say until when he rests."""
    hosts = enrolled(store, "a", "b")
    store.host_status.change([StatusChange(hosts[0].id, HostStatus(), FAILED)], repair)
    ttl, hour = timedelta(minutes=10), timedelta(hours=1)
    for again in (True, False):
        (mine,) = store.operations.claim_due("m", 1, ttl, ["repair"])
        if again:
            store.host_status.change([StatusChange(hosts[1].id, HostStatus(), FAILED)], repair)
        claim, later = Claim(mine.id, "m", mine.epoch), store.database.now() + hour
        store.operations.put_off(claim, "retrying", later, "rests", due_at=mine.due_at)
        due = store.operations.by_key("repair").next_try_at
        assert (due <= store.database.now()) is again
        assert again or abs(due - later) < timedelta(milliseconds=1)


def test_messages_set_aside_are_kept_up_to_a_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_status_store, "MOST_PARKED", 3)
    for number in range(5):
        message = {"host": "cmp1", "at": NOON} if number < 4 else {"big": "x" * 50_000}
        store.host_status.park(
            ParkedMessage(NOON, "compute", f"m{number}", "service.update", "ValueError: x", message)
        )
    kept = store.host_status.parked(10)
    assert [one.message_id for one in kept] == ["m4", "m3", "m2"]
    assert set(kept[0].message) == {"cut"}
    assert kept[1].message == {"host": "cmp1", "at": str(NOON)}
    assert len(store.host_status.parked(1)) == 1


def test_a_host_is_found_by_name_and_by_uuid(store: Store) -> None:
    first, second = enrolled(store, "cmp-1", "cmp-2")
    for host in (first, second):
        shown = store.host_status.of(host.service_host)
        assert shown is not None and shown.id == host.id
        assert store.host_status.of(shown.uuid) == shown
    assert store.host_status.of(str(uuid.uuid4())) is None
