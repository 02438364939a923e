# SPDX-License-Identifier: Apache-2.0
"""Never two owners: many at once want the same hosts, on every database."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.app.service import new_id, resources
from holdfast.db import Store
from holdfast.db.capacity import OVERLAP
from holdfast.db.tables import hosts
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.leases.booking import Leases
from holdfast.leases.lifecycle import LeaseContext
from holdfast.model.errors import Conflict, HoldfastError, NotEnoughHosts
from holdfast.model.lease import LeaseChange, NewLease, NewReservation
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.ports.manager import Caller
from holdfast.runtime.clock import SystemClock

CALLER = Caller("user", "project", ("member",))


class Settings:
    minutes_before_end_lease = 60
    cleaning_time = 0
    prepare_s = 0.0
    before_end = ""


@pytest.fixture
def desks(store: Store, tmp_path: Path) -> Iterator[list[Leases]]:
    """Four booking desks, as four managers would have them, on one database."""
    cloud = SimCloud(str(tmp_path / "sim.db"), SystemClock())
    with ThreadPoolExecutor(4) as calls:
        yield [
            Leases(
                LeaseContext(store.ledger, cloud, calls, resources(), Settings()),
                SystemClock(),
                new_id,
            )
            for _ in range(4)
        ]
    cloud.close()


def enrol(store: Store, count: int) -> None:
    for number in range(count):
        name = f"h{number:02d}"
        host = CloudHost(str(uuid.uuid4()), name, name, vcpus=8, memory_mb=1024, local_gb=10)
        store.ledger.enrol(host, "", {}, Work())
    with store.database.write() as conn:
        conn.execute(sa.update(hosts).values(reservable=True))


def wanted(low: int, start: datetime, hours: float) -> NewLease:
    spec = {"min": low, "max": low, "hypervisor_properties": "", "resource_properties": ""}
    return NewLease(
        str(uuid.uuid4()),
        "rival",
        start,
        start + timedelta(hours=hours),
        None,
        (NewReservation("physical:host", spec),),
    )


def overlaps(store: Store) -> int:
    """By plain SQL: pairs of holds of one host that meet in time."""
    query = sa.text(
        "SELECT count(*) FROM allocations a JOIN allocations b ON a.host_id = b.host_id"
        " AND a.id < b.id AND a.held_from < b.held_until AND b.held_from < a.held_until"
    )
    with store.database.read() as conn:
        return int(conn.execute(query).scalar_one())


def count(store: Store, table: str) -> int:
    with store.database.read() as conn:
        return int(conn.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_eight_at_once_want_the_one_free_host_and_one_gets_it(
    store: Store, desks: list[Leases]
) -> None:
    enrol(store, 1)
    for round_ in range(5):
        start = store.database.now() + timedelta(days=1 + round_)
        gate = threading.Barrier(8)

        def book(number: int, start: datetime = start, gate: threading.Barrier = gate) -> bool:
            gate.wait()
            try:
                desks[number % 4].create(CALLER, wanted(1, start, 1))
            except NotEnoughHosts:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(book, range(8))) == [False] * 7 + [True]
    assert overlaps(store) == 0
    assert (count(store, "leases"), count(store, "allocations")) == (5, 5)


def test_creates_extends_and_deletes_at_once_never_give_a_host_two_owners(
    store: Store, desks: list[Leases]
) -> None:
    enrol(store, 6)
    base = store.database.now() + timedelta(days=1)
    made: list[str] = []
    said: list[str] = []

    def act(number: int) -> None:
        context = desks[number % 4]
        try:
            if number % 5 < 3 or not made:
                lease = wanted(1 + number % 2, base + timedelta(hours=number % 7), 2)
                context.create(CALLER, lease)
                made.append(lease.id)
            elif number % 5 == 3:
                end = base + timedelta(hours=9 + number % 4)
                context.update(CALLER, made[number % len(made)], LeaseChange(end=end))
            else:
                context.delete(CALLER, made[number % len(made)])
        except (Conflict, HoldfastError) as error:
            said.append(type(error).__name__)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(act, range(160)))
    assert overlaps(store) == 0
    assert len(made) > 5
    assert set(said) <= {"NotEnoughHosts", "Conflict", "IllegalMove", "InvalidInput"}
    # a lease holds as many hosts as it asked for, or is gone
    for lease_id in made:
        for reservation in store.ledger.lease(lease_id).reservations:
            assert len(reservation.allocations) == reservation.spec["min"]


def test_a_lost_race_writes_nothing(store: Store, desks: list[Leases]) -> None:
    enrol(store, 1)
    start = store.database.now() + timedelta(days=1)
    desks[0].create(CALLER, wanted(1, start, 2))
    before = {table: count(store, table) for table in ("leases", "reservations", "operations")}
    with pytest.raises(NotEnoughHosts) as refused:
        desks[1].create(CALLER, wanted(1, start + timedelta(hours=1), 2))
    assert "1 hosts 1 match and 0 of those are free" in refused.value.message
    assert before == {table: count(store, table) for table in before}


def test_the_same_command_twice_is_one_lease(store: Store, desks: list[Leases]) -> None:
    enrol(store, 2)
    lease = wanted(1, store.database.now() + timedelta(days=1), 2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda context: context.create(CALLER, lease), desks))
    assert (count(store, "leases"), count(store, "allocations")) == (1, 1)


def test_a_stock_that_missed_a_writer_is_found_out(store: Store, tmp_path: Path) -> None:
    """A host that it holds free by mistake is not proposed for ever while another one is."""
    enrol(store, 2)
    cloud, start = SimCloud(str(tmp_path / "sim.db"), SystemClock()), datetime.now(UTC)
    other = Store(store.database.engine.url.render_as_string(hide_password=False), SystemClock())
    with ThreadPoolExecutor(1) as calls, contextlib.closing(cloud), contextlib.closing(other):

        def context(of: Store) -> Leases:
            whole = LeaseContext(of.ledger, cloud, calls, resources(), Settings())
            return Leases(whole, SystemClock(), new_id)

        other.ledger.capacity()
        context(store).create(CALLER, wanted(2, start + timedelta(hours=1), 1))
        with store.database.write() as conn:  # as if it had written its time long before its commit
            conn.execute(sa.update(hosts).values(touched_at=start - OVERLAP * 2))
        with pytest.raises(NotEnoughHosts):
            context(other).create(CALLER, wanted(1, start + timedelta(hours=1), 1))
