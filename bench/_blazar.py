# SPDX-License-Identifier: Apache-2.0
"""Blazar in the lab, with as many leases as a figure needs: written as rows, where its own planning
would have put them. What it is asked to make itself goes through its API."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from lab.cloud import Lab

from bench._rows import Booking, Owner, host_name

#: How the names of leases begin that are only rows.
FILLED = ("listed-", "filled-")
#: Children before their parents.
_TABLES = (
    "computehost_allocations",
    "computehost_reservations",
    "events",
    "reservations",
    "leases",
    "computehosts",
)
_NO_TRUST = "0" * 32
Row = dict[str, Any]


def owner_of(lab: Lab) -> Owner:
    """The lab's administrator."""
    session = lab.connect().session
    asked = session.get_user_id(), session.get_project_id(), session.get_token()
    return Owner(*map(str, asked))


def start(lab: Lab) -> str:
    """Bring it up in the lab, unless it runs; the address of its API."""
    command = [sys.executable, "-m", "lab", "peer", "blazar"]
    said = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=lab.folder.parent
    )
    return said.stdout.split()[-1]  # the last line


def make_room(lab: Lab, hosts: Sequence[str]) -> None:
    """Remove what we keep of these hosts in Placement: Blazar wants to make it itself."""
    with contextlib.closing(lab.connect()) as cloud:
        for name in hosts:
            for provider in cloud.placement.resource_providers(name=f"blazar_{name}"):
                cloud.placement.delete_resource_provider(provider)


def fill(lab: Lab, owner: Owner, bookings: Iterable[Booking], hosts: int = 0) -> str:
    """Have these leases and that many hosts instead of those of an earlier fill; the id of the
    last lease."""
    engine = sa.create_engine(lab.place.database_url("blazar"))
    try:
        with engine.begin() as conn:
            tables = _reflected(conn)
            _empty(conn, tables)
            known = [_host_row(number) for number in range(hosts)]
            _insert(conn, tables["computehosts"], known)
            rows = _rows(bookings, owner, [row["id"] for row in known])
            for name in reversed(_TABLES[:-1]):
                _insert(conn, tables[name], rows[name])
        return str(rows["leases"][-1]["id"]) if rows["leases"] else ""
    finally:
        engine.dispose()


def _reflected(conn: sa.Connection) -> Mapping[str, sa.Table]:
    found = sa.MetaData()
    found.reflect(conn, only=_TABLES)
    return found.tables


def _empty(conn: sa.Connection, tables: Mapping[str, sa.Table]) -> None:
    """Only rows go: what it made itself is also in Nova, and goes by its API."""
    lease, host = tables["leases"], tables["computehosts"]
    own = [lease.c.name.like(f"{prefix}%") for prefix in FILLED]
    if conn.execute(sa.select(lease.c.id).where(~sa.or_(*own)).limit(1)).first():
        raise SystemExit("Blazar in the lab has leases of its own: delete them first")
    for name in _TABLES[:-1]:
        conn.execute(sa.delete(tables[name]))
    conn.execute(sa.delete(host).where(host.c.hypervisor_hostname.like("filled-%")))


def _insert(conn: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    now = {"created_at": datetime.now(UTC).replace(tzinfo=None)}
    for first in range(0, len(rows), 1000):
        conn.execute(sa.insert(table), [row | now for row in rows[first : first + 1000]])


def _host_row(number: int) -> Row:
    name = host_name(number)
    about = {"cpu_info": "{}", "hypervisor_type": "QEMU", "hypervisor_version": 8, "status": None}
    size = {"vcpus": 64, "memory_mb": 262144, "local_gb": 2000}
    where = {"hypervisor_hostname": name, "service_name": name, "availability_zone": ""}
    own = {"id": str(uuid.uuid4()), "trust_id": _NO_TRUST, "reservable": True}
    return {**own, **where, **size, **about}


def _rows(bookings: Iterable[Booking], owner: Owner, hosts: Sequence[str]) -> dict[str, list[Row]]:
    """What each lease is in each table."""
    found: dict[str, list[Row]] = {name: [] for name in _TABLES}
    for booking in bookings:
        lease, reservation, wish = (str(uuid.uuid4()) for _ in range(3))
        found["leases"].append(_lease_row(lease, booking, owner))
        fine = {"status": "pending", "missing_resources": False, "resources_changed": False}
        kind = {"resource_type": "physical:host", "resource_id": wish}
        found["reservations"].append({"id": reservation, "lease_id": lease, **kind, **fine})
        any_ = {"resource_properties": "", "hypervisor_properties": "", "before_end": ""}
        many = {"count_range": f"{booking.count}-{booking.count}"}
        row = {"id": wish, "reservation_id": reservation, **many, **any_}
        found["computehost_reservations"].append(row)
        found["events"] += _event_rows(lease, booking)
        for number in booking.hosts:
            row = {"id": str(uuid.uuid4()), "reservation_id": reservation}
            found["computehost_allocations"].append(row | {"compute_host_id": hosts[number]})
    return found


def _lease_row(id_: str, booking: Booking, owner: Owner) -> Row:
    who = {"user_id": owner.user, "project_id": owner.project, "trust_id": _NO_TRUST}
    when = {"start_date": _naive(booking.start), "end_date": _naive(booking.end)}
    return {"id": id_, "name": booking.name, **who, **when, "status": "PENDING", "degraded": False}


def _event_rows(lease: str, booking: Booking) -> Iterator[Row]:
    due = {
        "start_lease": booking.start,
        "before_end_lease": booking.before_end,
        "end_lease": booking.end,
    }
    for type_, at in due.items():
        row = {"id": str(uuid.uuid4()), "lease_id": lease, "event_type": type_}
        yield {**row, "time": _naive(at), "status": "UNDONE"}


def _naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)
