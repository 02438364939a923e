# SPDX-License-Identifier: Apache-2.0
"""Floating IPs in the database, and the holds of floating IPs and other lockable resources."""

import ipaddress
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.booking import lock_resource, portions
from holdfast.db.engine import Database
from holdfast.db.rows import Mapper
from holdfast.db.tables import allocations, floatingips, leases, reservations
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.floatingip import FloatingIp
from holdfast.model.lease import Window

f, a = floatingips.c, allocations.c
_IP = Mapper(FloatingIp, floatingips)


class FloatingIpStore:
    """The floating IP part of the ledger."""

    _db: Database

    # reads

    def floatingips(self, network_id: str | None = None) -> Sequence[FloatingIp]:
        """Return the reservable floating IPs, of a network or of all networks."""
        with self._db.read() as conn:
            return _load(conn, *([] if network_id is None else [f.network_id == network_id]))

    def floatingip(self, floatingip_id: str) -> FloatingIp:
        """Return a floating IP; NotFound."""
        with self._db.read() as conn:
            return _one(conn, floatingip_id)

    def thing_holds(self, keys: Collection[str], window: Window) -> Sequence[tuple[str, Window]]:
        """Return the holds of these lockable resources that overlap the window."""
        held: list[tuple[str, Window]] = []
        with self._db.read() as conn:
            for some in portions(keys):
                query = sa.select(a.thing, a.held_from, a.held_until).where(
                    a.thing.in_(some), a.held_until > window.start, a.held_from < window.end
                )
                held += [(key, Window(start, end)) for key, start, end in conn.execute(query)]
        return held

    def hold_ends(self, resource_type: str, window: Window) -> set[datetime]:
        """Return the ends, in the window, of all holds of reservations of this type."""
        inside = a.held_until > window.start, a.held_until <= window.end
        query = sa.select(a.held_until).join(reservations, reservations.c.id == a.reservation_id)
        with self._db.read() as conn:
            ends = query.where(*inside, reservations.c.resource_type == resource_type).distinct()
            return set(conn.execute(ends).scalars())

    def things_not_given_back(self, keys: Collection[str], *, besides: str) -> Collection[str]:
        """Return names of ended leases that have not returned these lockable resources yet."""
        late: set[str] = set()
        with self._db.read() as conn:
            for some in portions(keys):
                bound = {"keys": list(some), "now": self._db.now(conn), "besides": besides}
                late.update(conn.execute(_NOT_GIVEN_BACK, bound).scalars())
        return late

    # writes

    def enrol_floatingip(self, wanted: FloatingIp) -> None:
        """Enrol a floating IP; Conflict if the address is enrolled."""

        def action(conn: Connection) -> None:
            lock_resource(conn, wanted.thing)
            if _load(conn, f.id == wanted.id):
                raise Conflict(
                    f"floating IP {wanted.address} of network {wanted.network_id} is enrolled"
                    " already"
                )
            row = {**_IP.row(wanted), "reservable": True, "created_at": self._db.now(conn)}
            conn.execute(sa.insert(floatingips).values(**row))

        self._db.retry(action)

    def withdraw_floatingip(self, floatingip_id: str) -> None:
        """Withdraw a floating IP; NotFound, or Conflict while a lease holds or will hold it."""

        def action(conn: Connection) -> None:
            floating_ip = _one(conn, floatingip_id)
            lock_resource(conn, floating_ip.thing)
            until = conn.execute(_IN_USE, {"key": floating_ip.thing}).scalar_one()
            if until is not None:
                raise Conflict(
                    f"floating IP {floating_ip.address} is reserved (first lease ends"
                    f" {until:%Y-%m-%d %H:%M} UTC); delete its leases or wait"
                )
            conn.execute(sa.delete(floatingips).where(f.id == floating_ip.id))

        self._db.retry(action)


# In use from the booking on, and after the end of the hold until the address is returned.
_IN_USE = (
    sa.select(sa.func.min(a.held_until))
    .join(reservations, reservations.c.id == a.reservation_id)
    .where(a.thing == sa.bindparam("key"), reservations.c.status != "deleted")
)

_NOT_GIVEN_BACK = (
    sa.select(leases.c.name)
    .join(reservations, reservations.c.lease_id == leases.c.id)
    .join(allocations, a.reservation_id == reservations.c.id)
    .where(
        a.thing.in_(sa.bindparam("keys", expanding=True)),
        a.held_until <= sa.bindparam("now"),
        reservations.c.status != "deleted",
        leases.c.id != sa.bindparam("besides"),
    )
)


def _one(conn: Connection, floatingip_id: str) -> FloatingIp:
    floating_ips = _load(conn, f.id == floatingip_id)
    if not floating_ips:
        raise NotFound(f"Object with {{'floatingip_id': {floatingip_id!r}}} not found")
    return floating_ips[0]


def _load(conn: Connection, *where: Any) -> list[FloatingIp]:
    query = sa.select(*_IP.columns).where(*where)
    return sorted((_IP.value(row) for row in conn.execute(query)), key=_in_order)


def _in_order(floatingip: FloatingIp) -> tuple[str, int, int]:
    """Return the sort key of an address in numeric order, which differs from text order."""
    address = ipaddress.ip_address(floatingip.address)
    return floatingip.network_id, address.version, int(address)
