# SPDX-License-Identifier: Apache-2.0
"""Hosts and leases over the coming year, written into a Holdfast database of any kind."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from holdfast.db import migrations
from holdfast.db.engine import Database
from holdfast.db.tables import allocations, hosts, leases, operations, reservations
from holdfast.model.lease import BEFORE_END, END, SEQUENCE, START
from holdfast.model.operation import WAITING
from holdfast.runtime.clock import SystemClock

DAYS = 365
#: Nothing of it falls due while something is measured.
AHEAD = timedelta(days=2)
ANY = {"before_end": "", "hypervisor_properties": "", "resource_properties": ""}
Row = dict[str, Any]


@dataclass(frozen=True)
class Owner:
    """Whose leases they are, and the token that requests carry."""

    user: str
    project: str
    token: str = ""


@dataclass(frozen=True)
class Booking:
    """A lease that is to be there before anything is measured, of these hosts or of none."""

    name: str
    start: datetime
    before_end: datetime
    end: datetime
    hosts: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many hosts were asked for."""
        return max(1, len(self.hosts))


def host_name(number: int) -> str:
    return f"filled-{number:05d}"


def bookings(groups: Sequence[tuple[int, ...]], count: int) -> Iterator[Booking]:
    """So many, one after the other on each group of hosts, with pauses; the same in every run."""
    dice = random.Random(20)
    first = datetime.now(UTC).replace(second=0, microsecond=0) + AHEAD
    span = timedelta(days=DAYS) / -(-count // len(groups))
    phases = [0.3 + dice.random() for _ in groups]
    for number in range(count):
        turn, group = divmod(number, len(groups))
        start = first + span * (turn + phases[group] + 0.3 * (dice.random() - 1))
        end = start + span * (0.2 + 0.4 * dice.random())
        yield Booking(f"filled-{number}", start, end - timedelta(hours=1), end, groups[group])


def fill(url: str, owner: Owner, booked: Sequence[Booking], count_of_hosts: int) -> None:
    """These leases and hosts, in an empty database."""
    database = Database(url, SystemClock())
    try:
        migrations.sync(database)
    finally:
        database.close()
    engine = sa.create_engine(url)
    now = datetime.now(UTC)
    found: dict[sa.Table, list[Row]] = {
        hosts: [_host(number, now) for number in range(count_of_hosts)],
        **{table: [] for table in (leases, reservations, allocations, operations)},
    }
    for booking in booked:
        _add(found, booking, owner, now)
    try:
        with engine.begin() as conn:
            for table, rows in found.items():
                for at in range(0, len(rows), 1000):
                    conn.execute(sa.insert(table), rows[at : at + 1000])
    finally:
        engine.dispose()


def _host(number: int, now: datetime) -> Row:
    name = host_name(number)
    named = {"id": number + 1, "uuid": str(uuid.uuid4()), "name": name}
    where = {"hypervisor_hostname": name, "service_host": name, "zone": f"az{number % 3}"}
    about = {"hypervisor_type": "QEMU", "hypervisor_version": 8, "cpu_info": "{}"}
    size = {"vcpus": 64, "memory_mb": 262144, "local_gb": 2000}
    flags = {"enrolled": True, "reservable": True, "generation": 1}
    return {**named, **where, **about, **size, **flags, "touched_at": now, "created_at": now}


def _add(found: dict[sa.Table, list[Row]], booking: Booking, owner: Owner, now: datetime) -> None:
    """What one lease is in each table."""
    lease, reservation, born = str(uuid.uuid4()), str(uuid.uuid4()), {"created_at": now}
    who = {"user_id": owner.user, "project_id": owner.project}
    dates = {
        "start_date": booking.start,
        "end_date": booking.end,
        "before_end_date": booking.before_end,
    }
    found[leases].append(
        {"id": lease, "name": booking.name, **who, **dates, "status": "PENDING", **born}
    )
    spec = {"min": booking.count, "max": booking.count, **ANY}
    kind = {"resource_type": "physical:host", "status": "pending", "spec": spec, "made": {}}
    found[reservations].append({"id": reservation, "lease_id": lease, **kind, **born})
    held = {"held_from": booking.start, "held_until": booking.end}
    found[allocations] += [
        {"reservation_id": reservation, "host_id": number + 1, **held} for number in booking.hosts
    ]
    due = {START: booking.start, BEFORE_END: booking.before_end, END: booking.end}
    found[operations] += [{**_work(lease, kind, at), **born} for kind, at in due.items()]


def _work(lease: str, kind: str, due: datetime) -> Row:
    named = {"id": str(uuid.uuid4()), "kind": kind, "subject": lease, "key": f"{kind}/{lease}"}
    when = {"due_at": due, "next_try_at": due, "sequence": SEQUENCE[kind]}
    return {**named, **when, "status": WAITING, "sentence": "", "payload": {}}
