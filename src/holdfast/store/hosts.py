# SPDX-License-Identifier: Apache-2.0
"""Hosts in the database: rows, capabilities, properties, and who holds them when."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.model.errors import Conflict, HostInUse, NotFound
from holdfast.model.host import Host, normalise, short
from holdfast.model.lease import Window
from holdfast.model.operation import Claim
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.store import capabilities
from holdfast.store.capabilities import HOST
from holdfast.store.database import Database
from holdfast.store.operations import apply_work, update_claimed
from holdfast.store.tables import (
    allocations,
    host_capabilities,
    hosts,
    leases,
    properties,
    reservations,
)

h = hosts.c
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIELDS = [
    "id",
    "uuid",
    "name",
    "hypervisor_hostname",
    "service_host",
    "hypervisor_type",
    "hypervisor_version",
    "cpu_info",
    "region",
    "zone",
    "rack",
    "vcpus",
    "memory_mb",
    "local_gb",
    "enrolled",
    "reservable",
    "generation",
    "created_at",
    "updated_at",
]


class HostStore:
    """The host half of the ledger, and what the API reads about hosts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # look

    def host(self, ref: str) -> Host:
        with self._db.read() as conn:
            found = _load(conn, h.enrolled.is_(True), _named(ref))
        if len(found) > 1:
            names = ", ".join(host.hypervisor_hostname for host in found)
            raise Conflict(f"{ref} means several hosts ({names}): use the id or the full name")
        if not found:
            raise NotFound(f"Object with {{'host_id': {ref!r}}} not found")
        return found[0]

    def enrolled(self) -> Sequence[Host]:
        with self._db.read() as conn:
            return _load(conn, h.enrolled.is_(True))

    def free_hosts(
        self,
        window: Window,
        *,
        besides: str | None = None,
        keys: Collection[str] = (),
    ) -> Sequence[tuple[Host, bool]]:
        with self._db.read() as conn:
            # Hosts first, then who holds them: what is booked in between is seen as held. What is
            # booked after this look is found by the booking itself.
            found = _load(conn, h.enrolled.is_(True), h.reservable.is_(True), keys=keys)
            busy = set(conn.execute(_busy(window, besides)).scalars())
        return [(host, host.id not in busy) for host in found]

    def not_given_back(self, ids: Collection[int], *, besides: str) -> Collection[str]:
        with self._db.read() as conn:
            bound = {"ids": list(ids), "now": self._db.now(conn), "besides": besides}
            return set(conn.execute(_NOT_GIVEN_BACK, bound).scalars())

    def allocations(self) -> Sequence[RowMapping]:
        """Every enrolled host with its reservations in time, one row each."""
        query = (
            sa.select(
                h.id.label("host_id"),
                reservations.c.id.label("reservation_id"),
                leases.c.id.label("lease_id"),
                leases.c.start_date,
                leases.c.end_date,
            )
            .select_from(
                hosts.outerjoin(allocations, allocations.c.host_id == h.id)
                .outerjoin(reservations, allocations.c.reservation_id == reservations.c.id)
                .outerjoin(leases, reservations.c.lease_id == leases.c.id)
            )
            .where(h.enrolled.is_(True))
            .order_by(h.id, leases.c.start_date)
        )
        with self._db.read() as conn:
            return conn.execute(query).mappings().all()

    def properties(self) -> Sequence[RowMapping]:
        """Property names with their values on enrolled hosts, one row per value."""
        query = (
            sa.select(properties.c.name, properties.c.private, host_capabilities.c.text)
            .select_from(
                properties.outerjoin(
                    host_capabilities.join(
                        hosts,
                        sa.and_(host_capabilities.c.host_id == h.id, h.enrolled.is_(True)),
                    ),
                    host_capabilities.c.name == properties.c.name,
                )
            )
            .where(properties.c.resource_type == HOST)
            .distinct()
            .order_by(properties.c.name)
        )
        with self._db.read() as conn:
            return conn.execute(query).mappings().all()

    def property(self, name: str) -> RowMapping:
        query = sa.select(properties).where(
            properties.c.resource_type == HOST, properties.c.name == name
        )
        with self._db.read() as conn:
            row = conn.execute(query).mappings().first()
        if row is None:
            raise NotFound(f"Object with {{'property': {name!r}}} not found")
        return row

    # act

    def enrol(self, host: CloudHost, region: str, extras: Mapping[str, str], work: Work) -> Host:
        def action(conn: Connection) -> Host:
            now = self._db.now(conn)
            known = _load(conn, sa.or_(h.uuid == host.uuid, _by_name(host.service_host)))
            if any(row.reservable for row in known):
                raise Conflict(f"host {host.hypervisor_hostname} is enrolled already")
            values = {
                **_columns(host, region),
                "enrolled": True,
                "reservable": False,
                "updated_at": now,
            }
            if known:
                host_id = known[0].id
                conn.execute(
                    sa.update(hosts)
                    .where(h.id == host_id)
                    .values(**values, uuid=host.uuid, generation=h.generation + 1)
                )
            else:
                inserted = conn.execute(
                    sa.insert(hosts).values(**values, uuid=host.uuid, created_at=now)
                )
                (host_id,) = inserted.inserted_primary_key or (0,)
            conn.execute(sa.delete(host_capabilities).where(host_capabilities.c.host_id == host_id))
            capabilities.write(conn, host_id, extras, now)
            apply_work(conn, f"host:{host.uuid}", work, now)
            return _load(conn, h.id == host_id)[0]

        return self._db.retry(action)

    def describe(self, host_id: int, extras: Mapping[str, str | None]) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            _take(conn, [host_id])
            used = capabilities.used(conn, host_id, now) & set(extras)
            if used:
                raise Conflict(
                    f"host {host_id}: a live reservation asks for {', '.join(sorted(used))};"
                    " it can change when that lease has ended"
                )
            conn.execute(
                sa.delete(host_capabilities).where(
                    host_capabilities.c.host_id == host_id,
                    host_capabilities.c.name.in_(extras.keys()),
                )
            )
            kept = {key: text for key, text in extras.items() if text is not None}
            capabilities.write(conn, host_id, kept, now)
            conn.execute(sa.update(hosts).where(h.id == host_id).values(updated_at=now))

        self._db.retry(action)

    def set_reservable(self, host_id: int, reservable: bool, *, claim: Claim) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            update_claimed(conn, claim, updated_at=now)
            conn.execute(
                sa.update(hosts)
                .where(h.id == host_id, h.enrolled.is_(True))
                .values(reservable=reservable, updated_at=now)
            )

        self._db.retry(action)

    def withdraw(self, host_id: int, work: Work) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            _take(conn, [host_id])
            (host,) = _load(conn, h.id == host_id)
            held = (  # beyond its time as well, until the host was given back
                sa.select(sa.func.min(allocations.c.held_until))
                .join(reservations, reservations.c.id == allocations.c.reservation_id)
                .where(allocations.c.host_id == host_id)
                .where(sa.or_(allocations.c.held_until > now, reservations.c.status != "deleted"))
            )
            until = conn.execute(held).scalar_one()
            if until is not None:
                raise HostInUse(
                    f"host {host.hypervisor_hostname} is reserved (first lease ends"
                    f" {until:%Y-%m-%d %H:%M} UTC); delete its leases or wait"
                )
            conn.execute(
                sa.update(hosts)
                .where(h.id == host_id)
                .values(enrolled=False, reservable=False, updated_at=now)
            )
            apply_work(conn, f"host:{host.uuid}", work, now)

        self._db.retry(action)

    def set_property(self, name: str, private: bool) -> None:
        def action(conn: Connection) -> None:
            done = conn.execute(
                sa.update(properties)
                .where(properties.c.resource_type == HOST, properties.c.name == name)
                .values(private=private, updated_at=self._db.now(conn))
            )
            if done.rowcount != 1:
                raise NotFound(f"Object with {{'property': {name!r}}} not found")

        self._db.retry(action)


# What every start asks is built once: building costs more than running.
_NOT_GIVEN_BACK = (
    sa.select(leases.c.name)
    .join(reservations, reservations.c.lease_id == leases.c.id)
    .join(allocations, allocations.c.reservation_id == reservations.c.id)
    .where(
        allocations.c.host_id.in_(sa.bindparam("ids", expanding=True)),
        allocations.c.held_until <= sa.bindparam("now"),
        reservations.c.status != "deleted",
        leases.c.id != sa.bindparam("besides"),
    )
)


def _take(conn: Connection, ids: Iterable[int]) -> None:
    """Own the rows of these hosts until the commit: the queue in which bookings stand."""
    taken = h.id.in_(sorted(ids))
    if conn.dialect.name != "sqlite":  # in one order for all, or two of us wait for each other
        conn.execute(sa.select(h.id).where(taken).order_by(h.id).with_for_update())
    conn.execute(sa.update(hosts).where(taken).values(generation=h.generation + 1))


def take_free(
    conn: Connection, wanted: Mapping[int, Window], reservation_ids: Collection[str]
) -> set[int]:
    """Take the hosts, then say which of them somebody else holds in the wanted window."""
    if not wanted:
        return set()
    _take(conn, wanted)
    lost: set[int] = set()
    a = allocations.c
    by_window: dict[Window, list[int]] = {}
    for host_id, window in wanted.items():
        by_window.setdefault(window, []).append(host_id)
    for window, ids in by_window.items():
        query = sa.select(a.host_id).where(
            a.host_id.in_(ids),
            a.held_from < window.end,
            a.held_until > window.start,
            a.reservation_id.not_in(list(reservation_ids)),
        )
        lost.update(conn.execute(query).scalars())
    usable = sa.select(h.id).where(
        h.id.in_(list(wanted)), h.enrolled.is_(True), h.reservable.is_(True)
    )
    return lost | (set(wanted) - set(conn.execute(usable).scalars()))


def _busy(window: Window, besides: str | None) -> sa.Select[Any]:
    a = allocations.c
    query = (
        sa.select(a.host_id)
        .where(a.held_until > window.start, a.held_from < window.end)
        .where(a.host_id.is_not(None))
        .distinct()
    )
    if besides is not None:
        own = sa.select(reservations.c.id).where(reservations.c.lease_id == besides)
        query = query.where(a.reservation_id.not_in(own))
    return query


def _named(ref: str) -> sa.ColumnElement[bool]:
    """By public id, by uuid, or by name: short and full mean the same host."""
    if ref.isascii() and ref.isdigit() and len(ref) < 10:
        return h.id == int(ref)
    if _UUID.fullmatch(ref):
        return h.uuid == ref
    return _by_name(ref)


def _by_name(ref: str) -> sa.ColumnElement[bool]:
    name = normalise(ref)
    if "." in name:
        return h.name.in_([name, short(name)])
    return sa.or_(h.name == name, h.name.startswith(f"{name}.", autoescape=True))


def _load(conn: Connection, *where: Any, keys: Collection[str] | None = None) -> list[Host]:
    columns = [h[name] for name in _FIELDS]
    query = sa.select(*columns).where(*where).order_by(h.id)
    rows = conn.execute(query).mappings().all()
    extras = capabilities.read(conn, [row["id"] for row in rows], keys)
    return [Host(**row, capabilities=extras.get(row["id"], {})) for row in rows]


def _columns(host: CloudHost, region: str) -> dict[str, Any]:
    return {
        "name": normalise(host.service_host),
        "hypervisor_hostname": host.hypervisor_hostname,
        "service_host": host.service_host,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "cpu_info": host.cpu_info,
        "region": region,
        "zone": host.zone,
        "rack": host.rack,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
    }
