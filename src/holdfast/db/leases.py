# SPDX-License-Identifier: Apache-2.0
"""Leases in the database: filters, rows and the lease part of the ledger.

Each change is a transaction that checks and writes, or does nothing.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import audit, booking
from holdfast.db.audit import whose
from holdfast.db.booking import Step, hold, lock_hosts, portions
from holdfast.db.engine import Database, continued
from holdfast.db.operations import apply_work, update_claimed
from holdfast.db.rows import Mapper
from holdfast.db.tables import allocations, hosts, leases, operations, reservations
from holdfast.db.tables import audit as audit_table
from holdfast.model.errors import InvalidInput, NotFound, StaleWrite
from holdfast.model.lease import EVENT_TYPES, Allocation, Event, Lease, Reservation, Window
from holdfast.model.operation import Claim
from holdfast.ports.ledger import Change, Limits, Work

# Lists of leases: conditions, order, and a page that begins after a lease.
#
# A page is found by the values of the lease before it, not by counting rows. Therefore every
# page costs the same, and a lease added or deleted meanwhile neither doubles nor hides another.


#: Sort keys of a list.
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
    """A list request: conditions in `where`, sort order, and the page after `marker`.

    `where` holds values by the name of their condition.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    sort: str = "created_at"
    descending: bool = False
    marker: str | None = None
    limit: int | None = None


def narrowed(
    conn: Connection, query: sa.Select[Any], listing: Listing, project_id: str | None = None
) -> sa.Select[Any]:
    """Add the conditions, the order and the page of the listing to a query of leases."""
    query = query.where(*(_CONDITIONS[name](value) for name, value in listing.where.items()))
    keys = [(leases.c[name], listing.descending) for name in (listing.sort, "id")]
    seen = None
    if listing.marker is not None:
        seen = _value(conn, listing, project_id), listing.marker
    return continued(query, keys, seen, listing.limit)


def _value(conn: Connection, listing: Listing, project_id: str | None) -> Any:
    """Return the sort value of the marker's lease."""
    its = sa.select(leases.c[listing.sort]).where(leases.c.id == listing.marker)
    if project_id is not None:
        its = its.where(leases.c.project_id == project_id)
    row = conn.execute(its).first()
    if row is None:
        raise InvalidInput(
            f"marker: there is no lease {listing.marker} any more; begin the list anew"
        )
    return row[0]


# Conversion of rows of leases, reservations, holds and events to values and back, within a
# transaction.


_DATES = {"start": "start_date", "end": "end_date", "before_end": "before_end_date"}
_FIXED = ("id", "version", "created_at", "updated_at")
LEASE = Mapper(Lease, leases, renamed=_DATES)
RESERVATION = Mapper(Reservation, reservations)
EVENT = Mapper(Event, operations)
#: Columns that every save writes.
LEASE_WRITTEN = Mapper(Lease, leases, renamed=_DATES, without=_FIXED)
RESERVATION_WRITTEN = Mapper(Reservation, reservations, without=_FIXED)

#: Statements that every lease uses are built once, because building costs more than running.
_RESERVATIONS = (
    sa.select(reservations.c.lease_id, *RESERVATION.columns)
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
_WHOLE = (
    sa.select(*LEASE.columns, *(column.label(f"its_{column.name}") for column in _HELD))
    .select_from(leases.outerjoin(reservations).outerjoin(allocations).outerjoin(hosts))
    .where(leases.c.id == sa.bindparam("lease"))
    .order_by(reservations.c.position, allocations.c.id)
)
_EVENTS = (
    sa.select(operations.c.subject, *EVENT.columns)
    .where(
        operations.c.subject.in_(sa.bindparam("ids", expanding=True)),
        operations.c.kind.in_(list(EVENT_TYPES)),
        operations.c.status != "cancelled",
    )
    .order_by(operations.c.sequence)
)


def lease(row: sa.Row[Any], parts: Mapping[str, Sequence[Reservation]]) -> Lease:
    return LEASE.value(row, reservations=tuple(parts.get(row.id, ())))


def whole(conn: Connection, lease_id: str) -> Lease | None:
    """Return a lease with all its holds, read in a single query."""
    rows = conn.execute(_WHOLE, {"lease": lease_id}).all()
    if not rows:
        return None
    width = len(LEASE.columns)
    parts = _parts(row[width:] for row in rows)
    return LEASE.value(rows[0][:width], reservations=tuple(parts.get(lease_id, ())))


def without_holds(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Reservation]]:
    """Return reservations by lease id, without their holds."""
    reservationses: dict[str, list[Reservation]] = {}
    for lease_id, *values in conn.execute(_RESERVATIONS, {"ids": lease_ids}):
        reservationses.setdefault(lease_id, []).append(RESERVATION.value(values))
    return reservationses


def with_holds(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Reservation]]:
    """Return reservations by lease id, with their holds."""
    return _parts(conn.execute(_HELD_OF, {"ids": lease_ids}))


def _parts(found_rows: Iterable[Sequence[Any]]) -> dict[str, list[Reservation]]:
    rows: dict[tuple[str, str], list[Any]] = {}
    allocationses: dict[str, list[Allocation]] = {}
    for row in found_rows:
        lease_id, *values, id_, host_id, start, end, slots, takes, thing, host = row
        if lease_id is None:
            continue  # a lease without reservations
        rows[lease_id, values[0]] = values
        if id_ is not None:
            mine = allocationses.setdefault(values[0], [])
            window = Window(start, end)
            mine.append(Allocation(host_id, window, slots, takes or {}, thing, host or ""))
    reservationses: dict[str, list[Reservation]] = {}
    for (lease_id, id_), values in rows.items():
        holds = tuple(allocationses.get(id_, ()))
        reservationses.setdefault(lease_id, []).append(RESERVATION.value(values, allocations=holds))
    return reservationses


def lease_events(conn: Connection, lease_ids: Sequence[str]) -> dict[str, list[Event]]:
    eventses: dict[str, list[Event]] = {}
    for subject, *values in conn.execute(_EVENTS, {"ids": lease_ids}):
        eventses.setdefault(subject, []).append(EVENT.value(values))
    return eventses


# A step of a lease that changes only states and no holds, as one PostgreSQL statement.
#
# Most steps of durable work are of this kind, and a transaction of five statements costs seven
# round trips. The statement locks the rows of the lease and of the claim, in this order as
# everywhere. If one of the rows has changed, nothing is written, and the caller finds out why.


#: Leases with more changed reservations use a transaction: one SQL text per number is kept.
MOST_PARTS = 4
_SAID = ("at", "subject", "project_id", "kind", "sentence", "actor", "request_id")
_bind = sa.bindparam


def fits(old: Lease, new: Lease, work: Work | None) -> bool:
    """Tell whether the step changes neither the holds of the lease nor its work."""
    if work is not None and work != Work():
        return False
    holds = [(reservation.id, reservation.allocations) for reservation in old.reservations]
    same = holds == [(reservation.id, reservation.allocations) for reservation in new.reservations]
    return same and len(_changed(old, new)) <= MOST_PARTS


def write(
    conn: Connection,
    old: Lease,
    new: Lease,
    *,
    claim: Claim,
    say: str,
    is_repair: bool,
    now: datetime,
) -> bool:
    """Write the step; False, without writing, if the lease or the claim has changed."""
    parts = _changed(old, new)
    row = {**LEASE_WRITTEN.row(new), "updated_at": now, "version": old.version + 1}
    bound: dict[str, Any] = {f"new_{name}": value for name, value in row.items()}
    bound |= {"its_id": old.id, "its_version": old.version, "now": now}
    bound |= {
        "claim_id": claim.operation_id,
        "claim_epoch": claim.epoch,
        "claim_owner": claim.owner,
    }
    for number, part in enumerate(parts):
        values = {**RESERVATION_WRITTEN.row(part), "id": part.id}
        bound |= {f"part{number}_{name}": value for name, value in values.items()}
    if say:
        line = {"at": now, "subject": new.id, "project_id": new.project_id, "sentence": say}
        line |= {"kind": _line_kind(old, new, is_repair), **whose()}
        bound |= {f"said_{name}": value for name, value in line.items()}
    return conn.execute(_statement(len(parts), bool(say)), bound).first() is not None


def _line_kind(old: Lease, new: Lease, is_repair: bool) -> str:
    """Return the kind of the audit line about this step."""
    if new.status != old.status:
        return new.status
    return audit.REPAIR if is_repair else ""


def _changed(old: Lease, new: Lease) -> list[Reservation]:
    return [is_ for was, is_ in zip(old.reservations, new.reservations, strict=True) if was != is_]


@functools.cache
def _statement(parts: int, say: bool) -> sa.Select[Any]:
    """Build the statement; each CTE reads the result of the CTE before, which fixes the order."""
    here = sa.and_(leases.c.id == _bind("its_id"), leases.c.version == _bind("its_version"))
    lease = sa.select(leases.c.id).where(here).with_for_update(key_share=True).cte("lease")
    claim = (
        sa.update(operations)
        .where(
            operations.c.id == _bind("claim_id"),
            operations.c.epoch == _bind("claim_epoch"),
            operations.c.owner == _bind("claim_owner"),
            operations.c.is_open.is_(True),
            sa.exists(sa.select(lease.c.id)),
        )
        .values(updated_at=_bind("now"))
        .returning(operations.c.id)
        .cte("claim")
    )
    ours = sa.exists(sa.select(claim.c.id))
    names = (*LEASE_WRITTEN.names, "updated_at", "version")
    step = (
        sa.update(leases)
        .where(leases.c.id == _bind("its_id"), ours)
        .values({name: _bind(f"new_{name}") for name in names})
        .returning(leases.c.id)
        .cte("step")
    )
    query = sa.select(step.c.id)
    for number in range(parts):
        columns = RESERVATION_WRITTEN.names
        values: dict[str, Any] = {name: _bind(f"part{number}_{name}") for name in columns}
        part = (
            sa.update(reservations)
            .where(reservations.c.id == _bind(f"part{number}_id"), ours)
            .values(updated_at=_bind("now"), **values)
            .returning(reservations.c.id)
        )
        query = query.add_cte(part.cte(f"part{number}"))
    if say:
        words = (_bind(f"said_{name}", type_=audit_table.c[name].type) for name in _SAID)
        insert = sa.insert(audit_table).from_select(_SAID, sa.select(*words).where(ours))
        query = query.add_cte(insert.returning(audit_table.c.id).cte("said"))
    return query


T = TypeVar("T")
#: A lease as its owner sees it: without its holds, with the progress of its work.
Seen = tuple[Lease, Sequence[Event]]
#: A lease's id, its version and the state of its work: every state of a lease has its own
#: stamp.
Stamp = tuple[str, int, str | None]


class LeaseStore:
    """The lease part of the ledger, and the API's reads of leases."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        return self._db.now()

    # reads

    def lease(self, lease_id: str) -> Lease:
        with self._db.read() as conn:
            lease = whole(conn, lease_id)
        if lease is not None:
            return lease
        raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")

    def with_events(
        self, *, lease_id: str | None = None, project_id: str | None = None
    ) -> Sequence[Seen]:
        """Return leases with their events, without holds: all, a single lease, or a project's."""
        asked, bound = _asked(lease_id, project_id)
        with self._db.read() as conn:
            return list(_seen(conn, conn.execute(lease_query(asked), bound).all()))

    def stamped(
        self,
        missing: Callable[[Sequence[Stamp]], Collection[str]],
        *,
        lease_id: str | None = None,
        project_id: str | None = None,
        listing: Listing | None = None,
        holding: bool = False,
    ) -> tuple[Sequence[Stamp], Mapping[str, Seen]]:
        """Return stamps of the leases, and in full the leases whose ids `missing` returns.

        `listing` filters and sorts, `holding` includes the holds of full leases. A full lease
        is never older than its stamp: the store reads it after the stamp, on the same
        connection.
        """
        asked, bound = _asked(lease_id, project_id)
        query = _stamps(asked)
        with self._db.read() as conn:
            if listing is not None:
                query = narrowed(conn, query, listing, project_id)
            stamps: list[Stamp] = [tuple(row) for row in conn.execute(query, bound)]
            full: dict[str, Seen] = {}
            for ids in portions(list(missing(stamps))):
                rows = conn.execute(lease_query(("ids",)), {"ids": ids}).all()
                full |= {seen[0].id: seen for seen in _seen(conn, rows, holding)}
            return stamps, full

    def pool_changes(self, since: datetime) -> Mapping[str, datetime]:
        """Return the pools changed since then, and when: by reservation id, '' for hosts."""
        with self._db.read() as conn:
            changes = {name: at for name, at in conn.execute(_NEWS, {"since": since})}
            at = conn.execute(_NEWS_OF_HOSTS, {"since": since}).scalar_one()
            return {**changes, "": at} if at else changes

    # writes

    def book(
        self, lease: Lease, work: Work, *, limits: Limits | None = None, wait_for_lock: bool = True
    ) -> None:
        """Write a new lease with its allocations and its work; QuotaExceeded.

        Without `wait_for_lock` the call raises StaleWrite if another booking has locked a host,
        instead of waiting for the lock.
        """

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            hold(conn, [(None, lease)], now, wait_for_lock=wait_for_lock)
            conn.execute(
                sa.insert(leases).values(id=lease.id, created_at=now, **LEASE_WRITTEN.row(lease))
            )
            for position, reservation in enumerate(lease.reservations):
                conn.execute(
                    sa.insert(reservations).values(
                        id=reservation.id,
                        lease_id=lease.id,
                        position=position,
                        created_at=now,
                        **RESERVATION_WRITTEN.row(reservation),
                    )
                )
            _rewrite_allocations(conn, [(None, lease)])
            if limits is not None:
                booking.check(conn, lease.project_id, limits, now, new=lease)
            apply_work(conn, lease.id, work, now, is_new=True)
            sentence = f"lease {lease.name} booked"
            audit.write(conn, now, lease.id, lease.project_id, sentence, lease.status)

        with _no_twins(f"lease {lease.id}"), self._db.write() as conn:
            action(conn)

    def save(
        self,
        old: Lease,
        new: Lease,
        *,
        work: Work | None = None,
        claim: Claim | None = None,
        say: str = "",
        limits: Limits | None = None,
        wait_for_lock: bool = True,
        may_use_spares: bool = False,
        is_repair: bool = False,
    ) -> Lease:
        """Write the step of a lease from `old` to `new`.

        With a claim the write is refused unless the claim is still valid. With `may_use_spares` the
        step may use hosts that segments keep free for host failures. With `is_repair` the audit
        line `say` is marked as a repair.
        """
        if claim is not None and limits is None and self._db.dialect == "postgresql":
            saved = self._save_state(old, new, work, claim, say, is_repair)
            if saved is not None:
                return saved
        with _no_twins(f"lease {old.id}"), self._db.write() as conn:
            now = self._db.now(conn)
            # Always in this order, against deadlocks: lease, hosts, lockable resources,
            # project, work.
            _update_lease(conn, old, new, now)
            hold(
                conn, [(old, new)], now, wait_for_lock=wait_for_lock, may_use_spares=may_use_spares
            )
            if claim is not None:
                update_claimed(conn, claim, updated_at=now)
            _rewrite_reservations(conn, [(old, new)], now)
            if limits is not None:
                booking.check(conn, new.project_id, limits, now, old=old, new=new)
            if work is not None:
                apply_work(conn, new.id, work, now)
            if say:
                kind = _line_kind(old, new, is_repair)
                audit.write(conn, now, new.id, new.project_id, say, kind)
        return replace(new, version=old.version + 1, updated_at=now)

    def _save_state(
        self, old: Lease, new: Lease, work: Work | None, claim: Claim, say: str, is_repair: bool
    ) -> Lease | None:
        """Write a step in one statement instead of a transaction, if only states change.

        Returns None if more changes, or if another writer was faster; the caller's transaction
        finds out.
        """
        if not fits(old, new, work):
            return None
        with self._db.write_one() as conn:
            now = self._db.now(conn)
            if not write(conn, old, new, claim=claim, say=say, is_repair=is_repair, now=now):
                return None
        return replace(new, version=old.version + 1, updated_at=now)

    def save_many(self, steps: Sequence[Change]) -> None:
        """Write all steps in a single transaction, or none: StaleWrite.

        Repair uses this call: neither quotas nor the hosts that segments keep free limit it.
        """
        with self._db.write() as conn:
            now = self._db.now(conn)
            pairs: list[Step] = [(change.old, change.new) for change in steps]
            _take_leases(conn, [change.old for change in steps])
            _update_leases(conn, [(change.old, change.new) for change in steps], now)
            hold(conn, pairs, now, may_use_spares=True)
            _rewrite_reservations(conn, pairs, now)
            for step in steps:
                if step.work is not None:
                    apply_work(conn, step.new.id, step.work, now)
            lines = [
                (change.new.id, change.new.project_id, change.say) for change in steps if change.say
            ]
            audit.write_many(conn, now, lines, audit.REPAIR)

    def foresee(self, old: Lease | None, new: Lease, limits: Limits) -> None:
        """Raise QuotaExceeded if writing this step would exceed the project's quota."""
        with self._db.read() as conn:
            booking.foresee(conn, limits, self._db.now(conn), old=old, new=new)

    def erase(self, lease: Lease, *, claim: Claim, say: str, work: Work | None = None) -> None:
        """Delete a lease and all its allocations; the audit log keeps its history."""
        with self._db.write() as conn:
            now = self._db.now(conn)
            if conn.dialect.name != "sqlite":  # in the lock order of `save`
                conn.execute(_LOCK_LEASE, {"lease": lease.id})
            lock_hosts(conn, {a.host_id for a in lease.allocations() if a.host_id is not None}, now)
            # By ids, because MariaDB would run a subquery here for each row of the table.
            mine = [reservation.id for reservation in lease.reservations]
            conn.execute(sa.delete(allocations).where(allocations.c.reservation_id.in_(mine)))
            conn.execute(sa.delete(leases).where(leases.c.id == lease.id))
            update_claimed(conn, claim, updated_at=now)
            if work is not None:
                apply_work(conn, lease.id, work, now)
            audit.write(conn, now, lease.id, lease.project_id, say)


_WRITTEN = (*LEASE_WRITTEN.names, "updated_at", "version")
#: Statements that every lease uses are built once, because building costs more than running.
_UPDATE = (
    sa.update(leases)
    .where(leases.c.id == sa.bindparam("its_id"))
    .where(leases.c.version == sa.bindparam("its_version"))
    .values({name: sa.bindparam(f"new_{name}") for name in _WRITTEN})
)
_UPDATE_RESERVATION = (
    sa.update(reservations)
    .where(reservations.c.id == sa.bindparam("its_id"))
    .values(
        {name: sa.bindparam(f"new_{name}") for name in ("updated_at", *RESERVATION_WRITTEN.names)}
    )
)
_NEWS = (
    sa.select(reservations.c.id, leases.c.updated_at)
    .join(leases, leases.c.id == reservations.c.lease_id)
    .where(leases.c.updated_at > sa.bindparam("since"), leases.c.status != "PENDING")
)
_NEWS_OF_HOSTS = sa.select(sa.func.max(hosts.c.pools_changed_at)).where(
    hosts.c.pools_changed_at > sa.bindparam("since")
)
_LOCK_LEASE = sa.select(leases.c.id).where(leases.c.id == sa.bindparam("lease")).with_for_update()
_leases_CONDITIONS: Mapping[str, sa.ColumnElement[bool]] = {
    "lease": leases.c.id == sa.bindparam("lease"),
    "project": leases.c.project_id == sa.bindparam("project"),
    "ids": leases.c.id.in_(sa.bindparam("ids", expanding=True)),
}


@functools.cache
def lease_query(asked: tuple[str, ...]) -> sa.Select[Any]:
    """Build the query of lease rows, for `lease`."""
    return _ordered(sa.select(*LEASE.columns), asked)


@functools.cache
def _stamps(asked: tuple[str, ...]) -> sa.Select[Any]:
    """Build the query of stamps: a row per lease with its version and the state of its work.

    The version grows with every save. Work proceeds between saves, therefore the stamp contains
    everything that can change in each operation. The row of each kind of work is reused, so
    that the text stays short. The database chooses the order of operations; if that order
    changes, a lease is read once more than needed.
    """
    o = operations.c
    nothing: Any = sa.literal_column("''")  # a str would be bound again at every call
    state = o.id + o.status
    for date in (o.due_at, o.updated_at):
        state = state + sa.func.coalesce(sa.cast(date, sa.String(32)), nothing)
    whole = sa.select(sa.func.aggregate_strings(state, nothing)).where(o.subject == leases.c.id)
    return _ordered(sa.select(leases.c.id, leases.c.version, whole.scalar_subquery()), asked)


def _ordered(query: sa.Select[Any], asked: tuple[str, ...]) -> sa.Select[Any]:
    conditions = (_leases_CONDITIONS[name] for name in asked)
    return query.where(*conditions).order_by(leases.c.created_at, leases.c.id)


def _asked(
    lease_id: str | None, project_id: str | None
) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    bound = {"lease": lease_id, "project": project_id}
    return tuple(name for name, value in bound.items() if value is not None), bound


@contextlib.contextmanager
def _no_twins(what: str) -> Iterator[None]:
    """Turn an IntegrityError (the same row written concurrently) into StaleWrite."""
    try:
        yield
    except sa.exc.IntegrityError as error:
        raise StaleWrite(f"{what} was changed by another request meanwhile") from error


def _update_lease(conn: Connection, old: Lease, new: Lease, now: datetime) -> None:
    if conn.execute(_UPDATE, _bound(old, new, now)).rowcount != 1:
        raise StaleWrite(f"lease {old.id} was changed by another request meanwhile")


def _bound(old: Lease, new: Lease, now: datetime) -> dict[str, Any]:
    values = {**LEASE_WRITTEN.row(new), "updated_at": now, "version": old.version + 1}
    bound = {f"new_{name}": value for name, value in values.items()}
    return {**bound, "its_id": old.id, "its_version": old.version}


def _take_leases(conn: Connection, olds: Sequence[Lease]) -> None:
    """Lock the rows of the leases until the commit; StaleWrite if a lease has changed."""
    query = sa.select(leases.c.id, leases.c.version).order_by(leases.c.id)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    now: dict[str, int] = {}
    for ids in portions(old.id for old in olds):
        now |= {row.id: row.version for row in conn.execute(query.where(leases.c.id.in_(ids)))}
    changed = sorted(old.id for old in olds if now.get(old.id) != old.version)
    if changed:
        raise StaleWrite(f"changed by another request meanwhile: leases {', '.join(changed)}")


def _update_leases(conn: Connection, steps: Sequence[tuple[Lease, Lease]], now: datetime) -> None:
    """Update leases whose rows are locked by this transaction."""
    conn.execute(_UPDATE, [_bound(old, new, now) for old, new in steps])


def _rewrite_reservations(conn: Connection, steps: Sequence[Step], now: datetime) -> None:
    """Update the rows of changed reservations, and their holds."""
    rows: list[dict[str, Any]] = []
    for old, new in steps:
        before = {r.id: r for r in old.reservations} if old else {}
        for reservation in new.reservations:
            if reservation != before[reservation.id]:
                values = {"updated_at": now, **RESERVATION_WRITTEN.row(reservation)}
                bound = {f"new_{name}": value for name, value in values.items()}
                rows.append({**bound, "its_id": reservation.id})
    if rows:
        conn.execute(_UPDATE_RESERVATION, rows)
    _rewrite_allocations(conn, steps)


def _rewrite_allocations(conn: Connection, steps: Sequence[Step]) -> None:
    """Replace the allocations of each reservation whose holds differ."""
    before = {r.id: r.allocations for old, _new in steps if old for r in old.reservations}
    now = [reservation for _old, new in steps for reservation in new.reservations]
    differ = [reserved for reserved in now if before.get(reserved.id) != reserved.allocations]
    for ids in portions(reserved.id for reserved in differ if before.get(reserved.id)):
        conn.execute(sa.delete(allocations).where(allocations.c.reservation_id.in_(ids)))
    rows: list[dict[str, Any]] = []
    for reservation in differ:
        rows += [
            {
                "reservation_id": reservation.id,
                "host_id": a.host_id,
                "held_from": a.held.start,
                "held_until": a.held.end,
                "slots": a.slots,
                "takes": None if a.slots is None else dict(a.takes),
                "thing": a.thing,
            }
            for a in reservation.allocations
        ]
    if rows:
        conn.execute(sa.insert(allocations), rows)


def _seen(conn: Connection, rows: Sequence[sa.Row[Any]], holding: bool = False) -> Iterator[Seen]:
    for some in portions(rows):
        ids = [row.id for row in some]
        read = with_holds if holding else without_holds
        parts, events = read(conn, ids), lease_events(conn, ids)
        yield from ((lease(row, parts), events.get(row.id, ())) for row in some)
