# SPDX-License-Identifier: Apache-2.0
"""Hosts in the database: rows, capabilities, properties and holds."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.db import audit, host_rows
from holdfast.db.booking import lock_hosts, portions
from holdfast.db.capacity import CapacityCache
from holdfast.db.engine import Database
from holdfast.db.host_rows import HOST, USABLE, by_name, columns, load, named, write_traits
from holdfast.db.operations import apply_work, update_claimed
from holdfast.db.tables import (
    allocations,
    host_capabilities,
    hosts,
    leases,
    operations,
    properties,
    reservations,
    resource_locks,
)
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, HostInUse, NotFound
from holdfast.model.host import Host, Size
from holdfast.model.lease import DELETE, END, Window
from holdfast.model.operation import Claim
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Obstacle, Work

h = hosts.c


class HostStore:
    """The host part of the ledger, and the API's reads of hosts."""

    _cache: CapacityCache

    def __init__(self, database: Database) -> None:
        self._db = database

    # reads

    def host(self, ref: str) -> Host:
        """Return an enrolled host by id, uuid or name; NotFound."""
        with self._db.read() as conn:
            hosts = load(conn, h.enrolled.is_(True), named(ref))
        if len(hosts) > 1:
            names = ", ".join(host.hypervisor_hostname for host in hosts)
            raise Conflict(f"{ref} means several hosts ({names}): use the id or the full name")
        if not hosts:
            raise NotFound(f"Object with {{'host_id': {ref!r}}} not found")
        return hosts[0]

    def enrolled(self, *, after: int = 0, most: int | None = None) -> Sequence[Host]:
        """Return enrolled hosts by id: all, or at most `most` hosts after id `after`."""
        with self._db.read() as conn:
            return load(conn, h.enrolled.is_(True), h.id > after, most=most)

    def sizes(self) -> Mapping[int, Size]:
        """Return the sizes of all known hosts, enrolled or not, by id."""
        query = sa.select(h.id, h.vcpus, h.memory_mb, h.local_gb)
        with self._db.read() as conn:
            return {own: Size(*amounts) for own, *amounts in conn.execute(query)}

    def capacity(self, *, sure: bool = False) -> CapacitySnapshot:
        """Return a capacity snapshot: reservable hosts and their holds, for planning.

        The snapshot can miss the commit of a writer that was frozen for long. `sure` reads
        every host, so that the manager never refuses a lease because of outdated data.
        """
        return self._cache.snapshot(sure=sure)

    def busy_things(self, keys: Collection[str], window: Window, *, besides: str) -> set[str]:
        """Return the lockable resources that a lease other than `besides` holds in the window."""
        busy: set[str] = set()
        with self._db.read() as conn:
            for some in portions(keys):
                bound = {
                    "keys": list(some),
                    "start": window.start,
                    "end": window.end,
                    "besides": besides,
                }
                busy.update(conn.execute(_BUSY_THINGS, bound).scalars())
        return busy

    def known_things(self, keys: Collection[str]) -> set[str]:
        """Return the lockable resources that were ever booked, also by a lease that is deleted."""
        known: set[str] = set()
        with self._db.read() as conn:
            for some in portions(keys):
                query = sa.select(resource_locks.c.key).where(resource_locks.c.key.in_(list(some)))
                known.update(conn.execute(query).scalars())
        return known

    def obstacles(
        self,
        hosts: Collection[int],
        window: Window,
        project_id: str,
        *,
        besides: str = "",
        most: int = 10,
    ) -> Sequence[Obstacle]:
        """Return leases other than `besides` that hold these hosts in the window, by end time."""
        rows_of: list[Any] = []
        with self._db.read() as conn:
            for some in portions(hosts):
                bound = {
                    "ids": list(some),
                    "start": window.start,
                    "end": window.end,
                    "most": most + 1,
                }
                rows = conn.execute(_OBSTACLES, bound).all()
                rows_of += [row for row in rows if row.id != besides]
        rows_of.sort(key=lambda row: row.until)
        return [
            Obstacle(row.until, row.hosts, row.id, row.name)
            if row.project_id == project_id
            else Obstacle(row.until, row.hosts)
            for row in rows_of[:most]
        ]

    def late_hosts(self) -> set[int]:
        """Return hosts of leases whose end or deletion is due and not done."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            bound = {"now": now, "soon": now + _LOOKED_AT_WITHIN}
            return set(conn.execute(_LATE, bound).scalars())

    def not_given_back(
        self, ids: Collection[int], *, besides: str, whole: bool = False
    ) -> Collection[str]:
        """Return, in words, the ended leases that have not returned these hosts yet.

        With `whole` only leases that held whole hosts. The result also names those of these
        hosts that are on their way back.
        """
        query = _NOT_GIVEN_BACK_WHOLE if whole else _NOT_GIVEN_BACK
        with self._db.read() as conn:
            bound = {"ids": list(ids), "now": self._db.now(conn), "besides": besides}
            return set(conn.execute(query, bound).scalars())

    def allocations(
        self,
        *,
        host_id: int | None = None,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Sequence[RowMapping]:
        """Return enrolled hosts, or a single host, with a row per reservation."""
        mine = [allocations.c.host_id == h.id]
        if lease_id is not None:
            of_lease = sa.select(reservations.c.id).where(reservations.c.lease_id == lease_id)
            mine.append(allocations.c.reservation_id.in_(of_lease))
        if reservation_id is not None:
            mine.append(allocations.c.reservation_id == reservation_id)
        query = (
            sa.select(
                h.id.label("host_id"),
                reservations.c.id.label("reservation_id"),
                leases.c.id.label("lease_id"),
                leases.c.start_date,
                leases.c.end_date,
            )
            .select_from(
                hosts.outerjoin(allocations, sa.and_(*mine))
                .outerjoin(reservations, allocations.c.reservation_id == reservations.c.id)
                .outerjoin(leases, reservations.c.lease_id == leases.c.id)
            )
            .where(h.enrolled.is_(True))
            .order_by(h.id, leases.c.start_date)
        )
        if host_id is not None:
            query = query.where(h.id == host_id)
        with self._db.read() as conn:
            return conn.execute(query).mappings().all()

    def properties(self) -> Sequence[RowMapping]:
        """Return property names with their values on enrolled hosts, a row per value."""
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

    def private_properties(self) -> frozenset[str]:
        """Return the names of the properties of hosts that only administrators may see."""
        query = sa.select(properties.c.name).where(
            properties.c.resource_type == HOST, properties.c.private.is_(True)
        )
        with self._db.read() as conn:
            return frozenset(conn.execute(query).scalars())

    def property(self, name: str) -> RowMapping:
        query = sa.select(properties).where(
            properties.c.resource_type == HOST, properties.c.name == name
        )
        with self._db.read() as conn:
            row = conn.execute(query).mappings().first()
        if row is None:
            raise NotFound(f"Object with {{'property': {name!r}}} not found")
        return row

    # writes

    def enrol(self, host: CloudHost, region: str, extras: Mapping[str, str], work: Work) -> Host:
        def action(conn: Connection) -> Host:
            now = self._db.now(conn)
            known = load(conn, sa.or_(h.uuid == host.uuid, by_name(host.service_host)))
            if any(row.reservable or (row.enrolled and not row.usable) for row in known):
                raise Conflict(f"host {host.hypervisor_hostname} is enrolled already")
            returns = operations.c.key.in_([f"host_return/{row.uuid}" for row in known])
            open_ = sa.select(operations.c.id).where(returns, operations.c.is_open.is_(True))
            if conn.execute(open_).first() is not None:
                raise Conflict(
                    f"host {host.hypervisor_hostname} is enrolled already, failed and is coming"
                    f" back: holdfast operation list"
                )
            values = {
                **columns(host),
                "region": region,
                "enrolled": True,
                "reservable": False,
                "updated_at": now,
                "touched_at": now,
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
            host_rows.write(conn, host_id, extras, now)
            write_traits(conn, host_id, host.traits)
            apply_work(conn, f"host:{host.uuid}", work, now)
            return load(conn, h.id == host_id)[0]

        return self._db.retry(action)

    def refresh(self, host_id: int, host: CloudHost, region: str) -> bool:
        """Write the cloud's present data of a host; tell whether anything changed."""

        def action(conn: Connection) -> bool:
            now = self._db.now(conn)
            present = load(conn, h.id == host_id, h.enrolled.is_(True))
            new = {**columns(host), "region": region}
            query = sa.select(*(h[name] for name in new)).where(h.id == host_id)
            old = conn.execute(query).mappings().first()
            if not present or old is None:
                return False  # withdrawn meanwhile
            if dict(old) == new and present[0].traits == host.traits:
                return False
            _change(conn, host_id, now, **new)
            write_traits(conn, host_id, host.traits)
            return True

        return self._db.retry(action)

    def describe(self, host_id: int, extras: Mapping[str, str | None]) -> None:
        """Set extra capabilities and remove those set to None.

        Conflict if a capability is in use.
        """

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            lock_hosts(conn, [host_id], now)
            used = host_rows.used(conn, host_id, now) & set(extras)
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
            host_rows.write(conn, host_id, kept, now)
            _change(conn, host_id, now)

        self._db.retry(action)

    def set_reservable(self, host_id: int, reservable: bool, *, claim: Claim) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            # lock order: hosts before work
            _change(conn, host_id, now, reservable=reservable, pools_changed_at=now)
            update_claimed(conn, claim, updated_at=now)
            can = "can" if reservable else "cannot"
            audit.write(conn, now, audit.HOSTS, None, f"host {host_id} {can} be reserved")

        self._db.retry(action)

    def withdraw(self, host_id: int, work: Work) -> None:
        """Remove a host from reservation; HostInUse while a lease holds or will hold the host."""

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            lock_hosts(conn, [host_id], now)
            (host,) = load(conn, h.id == host_id)
            held = (  # also after the end of the hold, until the host is returned
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
            gone = {"enrolled": False, "reservable": False, "pools_changed_at": now}
            _change(conn, host_id, now, **gone)
            apply_work(conn, f"host:{host.uuid}", work, now)
            sentence = f"host {host.hypervisor_hostname} withdrawn"
            audit.write(conn, now, audit.HOSTS, None, sentence)

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


# Statements of every lease start are built once, because building costs more than running.
#: A host that failed and is healthy again may have servers of a reservation that has moved.
_COMING_BACK = sa.select(sa.literal("host ") + h.name).where(
    h.id.in_(sa.bindparam("ids", expanding=True)), h.reservable.is_(False), USABLE
)
_OVERDUE = (
    sa.select(sa.literal("lease ") + leases.c.name)
    .join(reservations, reservations.c.lease_id == leases.c.id)
    .join(allocations, allocations.c.reservation_id == reservations.c.id)
    .where(
        allocations.c.host_id.in_(sa.bindparam("ids", expanding=True)),
        allocations.c.held_until <= sa.bindparam("now"),
        reservations.c.status != "deleted",
        leases.c.id != sa.bindparam("besides"),
    )
)
_NOT_GIVEN_BACK = _OVERDUE.union_all(_COMING_BACK)
_NOT_GIVEN_BACK_WHOLE = _OVERDUE.where(allocations.c.slots.is_(None)).union_all(_COMING_BACK)

#: Due work is tried again within this time; this condition lets the query use an index.
_LOOKED_AT_WITHIN = timedelta(hours=1)
_LATE = (
    sa.select(allocations.c.host_id)
    .join(reservations, reservations.c.id == allocations.c.reservation_id)
    .join(operations, operations.c.subject == reservations.c.lease_id)
    .where(
        operations.c.is_open.is_(True),
        operations.c.kind.in_([END, DELETE]),
        operations.c.next_try_at <= sa.bindparam("soon"),
        operations.c.due_at <= sa.bindparam("now"),
        allocations.c.host_id.is_not(None),
    )
)

_BUSY_THINGS = (
    sa.select(allocations.c.thing)
    .join(reservations, reservations.c.id == allocations.c.reservation_id)
    .where(
        allocations.c.thing.in_(sa.bindparam("keys", expanding=True)),
        allocations.c.held_from < sa.bindparam("end"),
        allocations.c.held_until > sa.bindparam("start"),
        reservations.c.lease_id != sa.bindparam("besides"),
    )
)

#: The reservations that end first, before any join: many hosts have thousands of holds.
_FIRST_TO_GO = (
    sa.select(
        allocations.c.reservation_id,
        sa.func.max(allocations.c.held_until).label("until"),
        sa.func.count(sa.distinct(allocations.c.host_id)).label("hosts"),
    )
    .where(
        allocations.c.host_id.in_(sa.bindparam("ids", expanding=True)),
        allocations.c.held_from < sa.bindparam("end"),
        allocations.c.held_until > sa.bindparam("start"),
    )
    .group_by(allocations.c.reservation_id)
    .order_by(sa.func.max(allocations.c.held_until))
    .limit(sa.bindparam("most"))
    .subquery()
)
_OBSTACLES = (
    sa.select(
        leases.c.id,
        leases.c.name,
        leases.c.project_id,
        sa.func.max(_FIRST_TO_GO.c.until).label("until"),
        sa.cast(sa.func.sum(_FIRST_TO_GO.c.hosts), sa.Integer).label("hosts"),
    )
    .join(reservations, reservations.c.lease_id == leases.c.id)
    .join(_FIRST_TO_GO, _FIRST_TO_GO.c.reservation_id == reservations.c.id)
    .group_by(leases.c.id, leases.c.name, leases.c.project_id)
    .order_by(sa.func.max(_FIRST_TO_GO.c.until))
)


def _change(conn: Connection, host_id: int, now: datetime, **values: Any) -> None:
    """Write to an enrolled host and mark the row changed for every capacity snapshot."""
    conn.execute(
        sa.update(hosts)
        .where(h.id == host_id, h.enrolled.is_(True))
        .values(**values, updated_at=now, touched_at=now, generation=h.generation + 1)
    )
