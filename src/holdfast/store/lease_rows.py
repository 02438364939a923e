# SPDX-License-Identifier: Apache-2.0
"""Rows of leases, reservations, holds and events to values and back, within a transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.lease import EVENT_TYPES, Allocation, Event, Lease, Reservation, Window
from holdfast.store.tables import allocations, hosts, leases, operations, reservations

#: Statements that every lease goes through are built once: building costs more than running.
_RESERVATIONS = (
    sa.select(
        *(
            reservations.c[name]
            for name in [
                "lease_id",
                "id",
                "resource_type",
                "status",
                "missing_resources",
                "resources_changed",
                "spec",
                "made",
                "created_at",
                "updated_at",
            ]
        )
    )
    .where(reservations.c.lease_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(reservations.c.lease_id, reservations.c.position)
)
_HELD = (
    *_RESERVATIONS.selected_columns,
    *(
        allocations.c[name].label(f"held_{name}")
        for name in ("id", "host_id", "held_from", "held_until", "slots", "takes", "thing")
    ),
    hosts.c.service_host,
)
_HELD_OF = (
    sa.select(*_HELD)
    .select_from(reservations.outerjoin(allocations).outerjoin(hosts))
    .where(reservations.c.lease_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(reservations.c.lease_id, reservations.c.position, allocations.c.id)
)
#: In the order of the dataclass.
LEASE = (
    leases.c.id,
    leases.c.name,
    leases.c.user_id,
    leases.c.project_id,
    leases.c.start_date,
    leases.c.end_date,
    leases.c.before_end_date,
    leases.c.status,
    leases.c.degraded,
    leases.c.version,
    leases.c.created_at,
    leases.c.updated_at,
)
_WHOLE = (
    sa.select(*LEASE, *(column.label(f"its_{column.name}") for column in _HELD))
    .select_from(leases.outerjoin(reservations).outerjoin(allocations).outerjoin(hosts))
    .where(leases.c.id == sa.bindparam("lease"))
    .order_by(reservations.c.position, allocations.c.id)
)
_EVENTS = (
    sa.select(
        operations.c.subject,
        *(
            operations.c[name]
            for name in ["id", "kind", "due_at", "status", "created_at", "updated_at"]
        ),
    )
    .where(
        operations.c.subject.in_(sa.bindparam("ids", expanding=True)),
        operations.c.kind.in_(list(EVENT_TYPES)),
        operations.c.status != "cancelled",
    )
    .order_by(operations.c.sequence)
)


LEASE_COLUMNS = (
    "name",
    "user_id",
    "project_id",
    "start_date",
    "end_date",
    "before_end_date",
    "status",
    "degraded",
)


def columns(lease: Lease) -> dict[str, Any]:
    return {
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "start_date": lease.start,
        "end_date": lease.end,
        "before_end_date": lease.before_end,
        "status": lease.status,
        "degraded": lease.degraded,
    }


RESERVATION_COLUMNS = (
    "resource_type",
    "status",
    "missing_resources",
    "resources_changed",
    "spec",
    "made",
)


def reservation_columns(reservation: Reservation) -> dict[str, Any]:
    return {
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "spec": dict(reservation.spec),
        "made": dict(reservation.made),
    }


def lease(row: sa.Row[Any], parts: Mapping[str, Sequence[Reservation]]) -> Lease:
    values: tuple[Any, ...] = (*row, tuple(parts.get(row.id, ())))
    return Lease(*values)


def whole(conn: Connection, lease_id: str) -> Lease | None:
    """A lease with all that it holds, as one look finds it."""
    rows = conn.execute(_WHOLE, {"lease": lease_id}).all()
    if not rows:
        return None
    parts = _parts(row[len(LEASE) :] for row in rows)
    values: tuple[Any, ...] = (*rows[0][: len(LEASE)], tuple(parts.get(lease_id, ())))
    return Lease(*values)


def without_holds(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Reservation]]:
    """Reservations by lease, without what they hold."""
    found: dict[str, list[Reservation]] = {}
    for lease_id, *values in conn.execute(_RESERVATIONS, {"ids": lease_ids}):
        found.setdefault(lease_id, []).append(_reservation(values))
    return found


def with_holds(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Reservation]]:
    """Reservations by lease, with what they hold."""
    return _parts(conn.execute(_HELD_OF, {"ids": lease_ids}))


def _parts(found_rows: Iterable[Sequence[Any]]) -> dict[str, list[Reservation]]:
    rows: dict[tuple[str, str], list[Any]] = {}
    held: dict[str, list[Allocation]] = {}
    for row in found_rows:
        lease_id, *values, id_, host_id, start, end, slots, takes, thing, host = row
        if lease_id is None:
            continue  # a lease without any
        rows[lease_id, values[0]] = values
        if id_ is not None:
            mine = held.setdefault(values[0], [])
            window = Window(start, end)
            mine.append(Allocation(host_id, window, slots, takes or {}, thing, host or ""))
    found: dict[str, list[Reservation]] = {}
    for (lease_id, id_), values in rows.items():
        found.setdefault(lease_id, []).append(_reservation(values, held.get(id_, ())))
    return found


def _reservation(values: Sequence[Any], held: Sequence[Allocation] = ()) -> Reservation:
    id_, type_, status, missing, changed, spec, made, created, updated = values
    return Reservation(
        id_, type_, status, missing, changed, spec, made, tuple(held), created, updated
    )


def events(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for subject, *values in conn.execute(_EVENTS, {"ids": lease_ids}):
        found.setdefault(subject, []).append(Event(*values))
    return found
