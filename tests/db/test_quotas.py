# SPDX-License-Identifier: Apache-2.0
"""Quotas on every database: never above, whoever comes at once; nothing stays counted."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.booking import Figures, figures, of_lease
from holdfast.db.tables import hosts
from holdfast.model.errors import QuotaExceeded, StaleWrite
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Limits, Work

RED, BLUE = "red", "blue"


def enrol(store: Store, count: int) -> list[int]:
    ids = []
    for number in range(count):
        name = f"h{number:02d}"
        host = CloudHost(str(uuid.uuid4()), name, name, vcpus=8, memory_mb=1024, local_gb=10)
        ids.append(store.ledger.enrol(host, "", {}, Work()).id)
    with store.database.write() as conn:
        conn.execute(sa.update(hosts).values(reservable=True))
    return ids


def lease(
    store: Store,
    host_ids: Sequence[int],
    *,
    project: str = RED,
    after_h: float = 1.0,
    hours: float = 2.0,
    slots: int | None = None,
    cleaning_h: float = 0.0,
) -> Lease:
    start = store.database.now() + timedelta(hours=after_h)
    end = start + timedelta(hours=hours)
    held = Window(start, end + timedelta(hours=cleaning_h))
    takes = {} if slots is None else {"VCPU": slots}
    allocations = tuple(Allocation(one, held, slots, takes) for one in host_ids)
    reservation = Reservation(str(uuid.uuid4()), "physical:host", allocations=allocations)
    return Lease(str(uuid.uuid4()), "l", "u", project, start, end, reservations=(reservation,))


def booked(store: Store, wanted: Lease, limits: Limits | None) -> bool:
    """Whether the lease came about; a lost race is tried again, as the commands do."""
    while True:
        try:
            store.ledger.book(wanted, Work(), limits=limits)
        except StaleWrite:
            continue
        except QuotaExceeded:
            return False
        return True


def has(store: Store, project: str = RED, now: datetime | None = None) -> Figures:
    with store.database.read() as conn:
        return figures(conn, project, now or store.database.now())


def test_whatever_comes_at_once_no_project_is_ever_above_its_quota(store: Store) -> None:
    ids = enrol(store, 32)
    kinds = [Limits(leases=5), Limits(hosts=5), Limits(host_hours=10)]
    for round_, limits in enumerate(kinds):
        gate = threading.Barrier(16)

        def try_one(
            number: int,
            round_: int = round_,
            limits: Limits = limits,
            gate: threading.Barrier = gate,
        ) -> bool:
            gate.wait()
            project = f"{(RED, BLUE)[number % 2]}-{round_}"
            wanted = lease(store, [ids[number]], project=project, after_h=1 + 3 * round_)
            return booked(store, wanted, limits)

        with ThreadPoolExecutor(16) as pool:
            first = list(pool.map(try_one, range(16)))
            second = list(pool.map(try_one, range(16, 32)))
        assert sum(first) == 10  # of each project's eight, five
        assert not any(second)
        for project in (RED, BLUE):
            found = has(store, f"{project}-{round_}")
            assert (found.leases, found.hosts) == (5, 5)
            assert 9.9 < found.host_hours <= 10


def test_the_refusal_names_the_figure_the_limit_and_what_to_do(store: Store) -> None:
    ids = enrol(store, 3)
    store.ledger.book(lease(store, ids[:1]), Work(), limits=Limits(hosts=2))
    with pytest.raises(QuotaExceeded) as refused:
        store.ledger.book(lease(store, ids[1:]), Work(), limits=Limits(hosts=2))
    assert "project red may have 2 hosts in its leases and would have 3" in refused.value.message
    assert "shorten" in refused.value.message
    assert refused.value.details == {"figure": "hosts", "limit": 2, "wanted": 3}
    assert has(store).leases == 1  # nothing of the second was written
    # one project does not count for another, and without limits nobody counts
    assert booked(store, lease(store, ids[1:2], project=BLUE), Limits(leases=1))
    assert booked(store, lease(store, ids[2:]), None)
    assert (has(store).leases, has(store, BLUE).leases) == (2, 1)


def test_only_whole_hosts_count_as_hosts_and_only_hours_ahead_as_hours(store: Store) -> None:
    ids = enrol(store, 3)
    wanted = lease(store, ids[:2], hours=3, cleaning_h=5)
    store.ledger.book(wanted, Work(), limits=Limits(host_hours=6))
    assert has(store).host_hours == pytest.approx(6, abs=0.01)
    in_the_middle = wanted.start + timedelta(hours=1)
    then = has(store, now=in_the_middle)
    assert (then.leases, then.hosts) == (1, 2)
    assert then.host_hours == pytest.approx(4, abs=0.01)
    assert has(store, now=wanted.end) == Figures()
    assert of_lease(wanted, in_the_middle) == then
    assert of_lease(wanted, wanted.end) == Figures()
    for _ in range(2):
        slots = lease(store, ids[2:], project=BLUE, slots=2)
        store.ledger.book(slots, Work(), limits=Limits(leases=2, hosts=0, host_hours=0))
    assert has(store, BLUE) == Figures(leases=2)
    assert not booked(store, lease(store, ids[2:], project=BLUE, slots=2), Limits(leases=2))


def test_what_was_deleted_or_is_over_is_free_again(store: Store) -> None:
    (host_id,) = enrol(store, 1)
    limits = Limits(leases=1, hosts=1, host_hours=2)
    for _ in range(3):
        wanted = lease(store, [host_id])
        assert booked(store, wanted, limits)
        assert not booked(store, lease(store, [host_id], after_h=9), limits)
        kept = store.ledger.lease(wanted.id)
        store.ledger.save(kept, kept.move("DELETING"))
        assert has(store) == Figures()
        erase(store, wanted.id)
    ended = lease(store, [host_id])
    assert booked(store, ended, limits)
    kept = store.ledger.lease(ended.id)
    over = replace(kept, status="TERMINATED").move_reservations("deleted")
    store.ledger.save(kept, over)
    assert has(store) == Figures()


def test_extensions_at_once_stay_below_the_quota_and_less_is_always_possible(store: Store) -> None:
    ids = enrol(store, 8)
    made = [lease(store, [one], hours=1) for one in ids]
    for one in made:
        assert booked(store, one, None)
    gate = threading.Barrier(8)

    def extend(one: Lease) -> bool:
        gate.wait()
        while True:
            kept = store.ledger.lease(one.id)
            longer = until(kept, kept.end + timedelta(hours=1))
            try:
                store.ledger.save(kept, longer, limits=Limits(host_hours=11))
            except StaleWrite:
                continue
            except QuotaExceeded:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(extend, made)) == 3
    assert has(store).host_hours == pytest.approx(11, abs=0.01)
    # a limit that came after the leases: giving back is possible, taking more is not
    tight = Limits(leases=0, hosts=1, host_hours=5)
    kept = store.ledger.lease(made[0].id)
    shorter = until(kept, kept.end - timedelta(minutes=30))
    kept = store.ledger.save(kept, shorter, limits=tight)
    assert has(store).host_hours == pytest.approx(10.5, abs=0.01)
    with pytest.raises(QuotaExceeded, match="host hours"):
        store.ledger.save(kept, until(kept, kept.end + timedelta(hours=1)), limits=tight)
    assert store.ledger.lease(made[0].id).end == shorter.end


def until(kept: Lease, end: datetime) -> Lease:
    reservations = tuple(
        replace(
            reservation,
            allocations=tuple(
                replace(held, held=Window(held.held.start, end)) for held in reservation.allocations
            ),
        )
        for reservation in kept.reservations
    )
    return replace(kept, end=end, reservations=reservations)


def erase(store: Store, lease_id: str) -> None:
    """As the work of a delete does it."""
    now = store.database.now()
    work = Operation(str(uuid.uuid4()), "k", lease_id, f"k/{uuid.uuid4()}", now, now)
    kept = store.ledger.lease(lease_id)
    store.ledger.save(kept, kept, work=Work(add=(work,)))
    (claimed,) = store.operations.claim_due("me", 1, timedelta(minutes=10), ["k"])
    store.ledger.erase(
        store.ledger.lease(lease_id), claim=Claim(claimed.id, "me", claimed.epoch), say="gone"
    )
