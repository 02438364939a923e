# SPDX-License-Identifier: Apache-2.0
"""Which leases a list shows: conditions, order, and a page of it that begins after a lease.

A page is found by the values of the lease before it, not by counting rows: it costs the same
wherever it is, and a lease that comes or goes meanwhile neither doubles nor hides another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.errors import InvalidInput
from holdfast.store.tables import leases, reservations

#: What a list can be sorted by.
SORTS = ("created_at", "end_date", "name", "start_date", "status")


def _has_type(resource_type: str) -> sa.ColumnElement[bool]:
    its = sa.select(reservations.c.id).where(
        reservations.c.lease_id == leases.c.id, reservations.c.resource_type == resource_type
    )
    return its.exists()


_CONDITIONS: Mapping[str, Callable[[Any], sa.ColumnElement[bool]]] = {
    "status": lambda value: leases.c.status == value,
    "name": lambda value: leases.c.name == value,
    "resource_type": _has_type,
    "start_after": lambda value: leases.c.start_date >= value,
    "start_before": lambda value: leases.c.start_date < value,
    "end_after": lambda value: leases.c.end_date >= value,
    "end_before": lambda value: leases.c.end_date < value,
}


@dataclass(frozen=True)
class Listing:
    """`where` holds values by the name of their condition; the page begins after `marker`."""

    where: Mapping[str, Any] = field(default_factory=dict)
    sort: str = "created_at"
    descending: bool = False
    marker: str | None = None
    limit: int | None = None


def narrowed(
    conn: Connection, query: sa.Select[Any], listing: Listing, project_id: str | None = None
) -> sa.Select[Any]:
    """The same query of leases, less what the listing leaves out, in its order."""
    key, id_ = leases.c[listing.sort], leases.c.id
    query = query.where(*(_CONDITIONS[name](value) for name, value in listing.where.items()))
    order = (key.desc(), id_.desc()) if listing.descending else (key, id_)
    query = query.order_by(None).order_by(*order)
    if listing.marker is not None:
        last = _value(conn, listing, project_id)
        beyond = key < last if listing.descending else key > last
        next_id = id_ < listing.marker if listing.descending else id_ > listing.marker
        query = query.where(sa.or_(beyond, sa.and_(key == last, next_id)))
    return query if listing.limit is None else query.limit(listing.limit)


def _value(conn: Connection, listing: Listing, project_id: str | None) -> Any:
    """What the marker's lease has in the column that the list is sorted by."""
    its = sa.select(leases.c[listing.sort]).where(leases.c.id == listing.marker)
    if project_id is not None:
        its = its.where(leases.c.project_id == project_id)
    row = conn.execute(its).first()
    if row is None:
        raise InvalidInput(
            f"marker: there is no lease {listing.marker} any more; begin the list anew"
        )
    return row[0]
