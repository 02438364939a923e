# SPDX-License-Identifier: Apache-2.0
"""Clouds of any size, written straight into a PostgreSQL database."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import sqlalchemy as sa

from holdfast.db import migrations
from holdfast.db.engine import Database
from holdfast.runtime.clock import SystemClock

#: How many hosts one of the leases holds.
HOSTS_OF_A_LEASE = 10
#: What the reservations of the bench are told to ask for.
SPEC = json.dumps(
    {"min": 1, "max": 10, "before_end": "", "hypervisor_properties": "", "resource_properties": ""}
)


def fill(
    url: str, hosts: int, holds: int, days: int = 365, together: int = HOSTS_OF_A_LEASE
) -> float:
    """That many hosts, each held that often within the coming days, so many `together` by one
    lease; how long it took."""
    began = time.perf_counter()
    database = Database(url, SystemClock())
    try:
        migrations.sync(database)
    finally:
        database.close()
    parsed = sa.engine.make_url(url).set(drivername="postgresql")
    with psycopg.connect(parsed.render_as_string(hide_password=False)) as conn:
        rule = "ex_allocations_one_owner"
        conn.execute(f"ALTER TABLE allocations DROP CONSTRAINT {rule}")
        _copy(conn, "hosts", _HOST, _hosts(hosts))
        _book(conn, hosts, holds, days, together)
        conn.execute(
            f"ALTER TABLE allocations ADD CONSTRAINT {rule} EXCLUDE USING gist"
            " (host_id WITH =, tsrange(held_from, held_until) WITH &&) WHERE (slots IS NULL)"
        )
        conn.execute("SELECT setval('hosts_id_seq', (SELECT max(id) FROM hosts))")
    with psycopg.connect(parsed.render_as_string(hide_password=False), autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE")
    return time.perf_counter() - began


_HOST = (
    "id uuid name hypervisor_hostname service_host hypervisor_type hypervisor_version cpu_info"
    " region zone rack vcpus memory_mb local_gb inventories state enrolled reservable generation"
    " touched_at created_at"
)


def _hosts(count: int) -> Iterator[tuple[Any, ...]]:
    now = datetime.now(UTC).replace(tzinfo=None)
    for number in range(1, count + 1):
        name = f"host-{number:05d}"
        about = ("QEMU", 8, "{}", "", f"az{number % 3}", f"rack-{number % 200}", 64, 262144, 2000)
        state = ("{}", "up", True, True, 1, now, now)
        yield (number, str(uuid.uuid4()), name, name, name, *about, *state)


def _book(conn: psycopg.Connection[Any], hosts: int, holds: int, days: int, together: int) -> None:
    """Groups of hosts that are leased together, one lease after the other with pauses between."""
    dice = random.Random(20)
    now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
    span = days * 86_400 / holds
    leases, reservations, allocations = [], [], []
    for first in range(1, hosts + 1, together):
        group = range(first, min(first + together, hosts + 1))
        phase = dice.random() * span
        for number in range(holds):
            start = now + timedelta(seconds=phase + number * span + dice.random() * span * 0.3)
            end = start + timedelta(seconds=span * (0.2 + dice.random() * 0.5))
            lease, reservation = str(uuid.uuid4()), str(uuid.uuid4())
            dates = (start, end, "PENDING", False, 0, now)
            leases.append((lease, "bench", "user", f"p{number % 50}", *dates))
            flags = ("physical:host", "pending", False, False)
            reservations.append((reservation, lease, 0, *flags, SPEC, "{}", now))
            allocations += [(reservation, host, start, end) for host in group]
    dated = "start_date end_date status degraded version created_at"
    _copy(conn, "leases", f"id name user_id project_id {dated}", leases)
    typed = "resource_type status missing_resources resources_changed spec made created_at"
    _copy(conn, "reservations", f"id lease_id position {typed}", reservations)
    _copy(conn, "allocations", "reservation_id host_id held_from held_until", allocations)


def _copy(conn: psycopg.Connection[Any], table: str, columns: str, rows: Any) -> None:
    names = ", ".join(columns.split())
    with conn.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
