# SPDX-License-Identifier: Apache-2.0
"""What segments keep free, on every database: many at once who each leave enough, and together
would not; and the report."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.tables import audit, hosts, segment_hosts, segments
from holdfast.leases.booking import Leases
from holdfast.model.errors import HoldfastError, NotEnoughHosts, NotFound
from holdfast.model.lease import Allocation, Lease, LeaseChange, Reservation, Window
from holdfast.ports.ledger import Work
from tests.db.test_owners import CALLER, desks, enrol, wanted

__all__ = ["desks"]  # a fixture
HOUR = timedelta(hours=1)


def segment(store: Store, name: str, kept: int, host_ids: Sequence[int]) -> str:
    now, made = store.database.now(), str(uuid.uuid4())
    about = {"service_type": "compute", "recovery_method": "auto", "created_at": now}
    with store.database.write() as conn:
        conn.execute(sa.insert(segments).values(uuid=made, name=name, spare_hosts=kept, **about))
        number = conn.execute(sa.select(segments.c.id).where(segments.c.uuid == made)).scalar_one()
        for host_id in host_ids:
            conn.execute(
                sa.insert(segment_hosts).values(
                    uuid=str(uuid.uuid4()),
                    segment_id=number,
                    host_id=host_id,
                    type="x",
                    control_attributes="x",
                    created_at=now,
                )
            )
    return made


def ids(store: Store) -> list[int]:
    with store.database.read() as conn:
        return list(conn.execute(sa.select(hosts.c.id).order_by(hosts.c.id)).scalars())


def least_free(store: Store, host_ids: Sequence[int]) -> int:
    """By counting at every moment at which somebody begins."""
    query = sa.text("SELECT host_id, held_from, held_until FROM allocations")
    with store.database.read() as conn:
        rows = [row for row in conn.execute(query) if row[0] in host_ids]
    return min(
        (
            len(host_ids) - len({i for i, since, until in rows if since <= moment < until})
            for _, moment, _ in rows
        ),
        default=len(host_ids),
    )


def test_who_each_leave_enough_do_so_together(store: Store, desks: list[Leases]) -> None:
    enrol(store, 6)
    mine = ids(store)
    segment(store, "north", 2, mine[:4])
    segment(store, "south", 1, mine[4:])
    for round_ in range(4):
        start = store.database.now() + timedelta(days=1 + round_)
        gate = threading.Barrier(8)

        def book(number: int, start: datetime = start, gate: threading.Barrier = gate) -> bool:
            gate.wait()
            try:
                desks[number % 4].create(CALLER, wanted(1, start, 1))
            except NotEnoughHosts as refused:
                assert refused.details["failover"]
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(book, range(8))) == [False] * 5 + [True] * 3
    assert (least_free(store, mine[:4]), least_free(store, mine[4:])) == (2, 1)


def test_creates_extends_and_deletes_at_once_never_eat_into_it(
    store: Store, desks: list[Leases]
) -> None:
    enrol(store, 8)
    mine = ids(store)
    segment(store, "north", 2, mine[:5])
    segment(store, "south", 1, mine[5:])
    base = store.database.now() + timedelta(days=1)
    made: list[str] = []
    said: list[str] = []

    def act(number: int) -> None:
        context = desks[number % 4]
        try:
            if number % 5 < 3 or not made:
                lease = wanted(1 + number % 2, base + (number % 7) * HOUR, 2)
                context.create(CALLER, lease)
                made.append(lease.id)
            elif number % 5 == 3:
                end = base + (9 + number % 4) * HOUR
                context.update(CALLER, made[number % len(made)], LeaseChange(end=end))
            else:
                context.delete(CALLER, made[number % len(made)])
        except HoldfastError as error:
            said.append(type(error).__name__)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(act, range(100)))
    assert least_free(store, mine[:5]) >= 2
    assert least_free(store, mine[5:]) >= 1
    assert len(made) > 5
    assert set(said) <= {"NotEnoughHosts", "Conflict", "InvalidInput"}


def booked(store: Store, start: datetime, *host_ids: int) -> None:
    held = tuple(Allocation(i, Window(start, start + HOUR)) for i in host_ids)
    reservation = Reservation(str(uuid.uuid4()), "physical:host", allocations=held)
    lease = Lease(
        str(uuid.uuid4()), "l", "u", "p", start, start + HOUR, None, reservations=(reservation,)
    )
    store.ledger.book(lease, Work())


def test_the_report_counts_now_and_ahead(store: Store) -> None:
    enrol(store, 6)
    mine = ids(store)
    with store.database.write() as conn:
        conn.execute(sa.update(hosts).where(hosts.c.id == mine[4]).values(enrolled=False))
        conn.execute(sa.update(hosts).where(hosts.c.id == mine[3]).values(state="down"))
    now = store.database.now()
    booked(store, now, mine[0])
    soon = now + timedelta(days=3)
    booked(store, soon, mine[0], mine[1])
    booked(store, soon + HOUR / 2, mine[2])
    booked(store, now + timedelta(days=31), mine[0], mine[1], mine[2])
    north = segment(store, "north", 1, mine[:5])
    segment(store, "empty", 3, [])
    segment(store, "south", 0, mine[5:])
    one, empty, south = store.failover.report()
    assert (one.segment_id, one.name, one.kept) == (north, "north", 1)
    assert (one.members, one.enrolled, one.usable) == (5, 4, 3)
    assert (one.free, one.least_free, one.short) == (2, 0, 1)
    assert abs(one.least_free_at - (soon + HOUR / 2)) < timedelta(milliseconds=1)
    assert str(one).startswith("1 are to be kept free and 0 will be at")
    assert (empty.members, empty.free, empty.short) == (0, 0, 3)
    assert str(empty) == "3 are to be kept free and 0 can be used at all"
    assert (south.usable, south.free, south.short, str(south)) == (1, 1, 0, "")


def test_the_number_of_spare_hosts_is_set_and_audited(store: Store) -> None:
    enrol(store, 2)
    north = segment(store, "north", 0, ids(store))
    assert store.ledger.capacity(sure=True).spares == ()
    store.failover.keep(north, 1)
    (spare,) = store.ledger.capacity(sure=True).spares
    assert (spare.name, spare.kept, spare.hosts) == ("north", 1, frozenset(ids(store)))
    with store.database.read() as conn:
        told = conn.execute(sa.select(audit.c.sentence, audit.c.subject)).all()
    assert told[-1] == ("segment north keeps 1 hosts free instead of 0", f"segment:{north}")
    with pytest.raises(NotFound, match="holdfast failover"):
        store.failover.keep(str(uuid.uuid4()), 1)


def test_a_host_on_maintenance_is_nobodys_spare(store: Store, desks: list[Leases]) -> None:
    enrol(store, 2)
    mine = ids(store)
    segment(store, "north", 1, mine)
    with store.database.write() as conn:
        at = segment_hosts.c.host_id == mine[1]
        conn.execute(sa.update(segment_hosts).where(at).values(on_maintenance=True))
    assert store.failover.report()[0].usable == 1
    start = store.database.now() + HOUR
    desks[0].create(CALLER, wanted(1, start, 1))  # the one on maintenance
    with pytest.raises(NotEnoughHosts, match="nothing there can be booked"):
        desks[0].create(CALLER, wanted(1, start, 1))
