# SPDX-License-Identifier: Apache-2.0
"""Leases in the database: each change one transaction that checks and writes, or does nothing."""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.errors import NotFound, StaleWrite
from holdfast.model.lease import Event, Lease
from holdfast.model.operation import Claim
from holdfast.ports.ledger import Change, Limits, Work
from holdfast.store import audit, lease_rows, lease_step, quotas
from holdfast.store.booking import Step, hold, portions, take
from holdfast.store.database import Database
from holdfast.store.lease_list import Listing, narrowed
from holdfast.store.lease_rows import RESERVATION_COLUMNS
from holdfast.store.operations import update_claimed
from holdfast.store.tables import allocations, leases, operations, reservations
from holdfast.store.tables import audit as audit_rows
from holdfast.store.work import apply_work

T = TypeVar("T")
#: A lease as its owner sees it: without what it holds, with how far its work is.
Seen = tuple[Lease, Sequence[Event]]
#: A lease's id, its version and the state of its work: no two states of a lease share one.
Stamp = tuple[str, int, str | None]


class LeaseStore:
    """The lease half of the ledger, and what the API reads about leases."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        return self._db.now()

    # look

    def lease(self, lease_id: str) -> Lease:
        with self._db.read() as conn:
            found = lease_rows.whole(conn, lease_id)
        if found is not None:
            return found
        raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")

    def with_events(
        self, *, lease_id: str | None = None, project_id: str | None = None
    ) -> Sequence[Seen]:
        """Leases with their events, without what they hold; all, or one, or a project's."""
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
        """Stamps of the same leases in the same order, and in full those whose ids `missing` says;
        `listing` leaves some out and sorts, `holding` reads in full what they hold too.

        What is in full is never older than its stamp: it is read after it, on the same connection.
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

    def news_of_pools(self, since: datetime) -> Mapping[str, datetime]:
        with self._db.read() as conn:
            found = {name: at for name, at in conn.execute(_NEWS, {"since": since})}
            at = conn.execute(_NEWS_OF_HOSTS, {"since": since}).scalar_one()
            return {**found, "": at} if at else found

    # act

    def book(
        self, lease: Lease, work: Work, *, limits: Limits | None = None, patient: bool = True
    ) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            hold(conn, [(None, lease)], now, patient=patient)
            conn.execute(
                sa.insert(leases).values(id=lease.id, created_at=now, **lease_rows.columns(lease))
            )
            for position, reservation in enumerate(lease.reservations):
                conn.execute(
                    sa.insert(reservations).values(
                        id=reservation.id,
                        lease_id=lease.id,
                        position=position,
                        created_at=now,
                        **lease_rows.reservation_columns(reservation),
                    )
                )
            _rewrite_allocations(conn, [(None, lease)])
            if limits is not None:
                quotas.check(conn, lease.project_id, limits, now, new=lease)
            apply_work(conn, lease.id, work, now, is_new=True)
            audit.write(conn, now, lease.id, lease.project_id, f"lease {lease.name} booked")

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
        patient: bool = True,
        spared: bool = False,
    ) -> Lease:
        if claim is not None and limits is None and self._db.dialect == "postgresql":
            saved = self._save_state(old, new, work, claim, say)
            if saved is not None:
                return saved
        with _no_twins(f"lease {old.id}"), self._db.write() as conn:
            now = self._db.now(conn)
            # Always in this order, or two of us wait for each other: lease, hosts, things,
            # project, work.
            _update_lease(conn, old, new, now)
            hold(conn, [(old, new)], now, patient=patient, spared=spared)
            if claim is not None:
                update_claimed(conn, claim, updated_at=now)
            _rewrite_reservations(conn, [(old, new)], now)
            if limits is not None:
                quotas.check(conn, new.project_id, limits, now, old=old, new=new)
            if work is not None:
                apply_work(conn, new.id, work, now)
            if say:
                audit.write(conn, now, new.id, new.project_id, say)
        return replace(new, version=old.version + 1, updated_at=now)

    def _save_state(
        self, old: Lease, new: Lease, work: Work | None, claim: Claim, say: str
    ) -> Lease | None:
        """One statement instead of a transaction of many, where nothing but states changes; None:
        it does not, or somebody was faster, and a transaction finds out."""
        if not lease_step.fits(old, new, work):
            return None
        with self._db.write_one() as conn:
            now = self._db.now(conn)
            if not lease_step.write(conn, old, new, claim=claim, say=say, now=now):
                return None
        return replace(new, version=old.version + 1, updated_at=now)

    def save_many(self, steps: Sequence[Change]) -> None:
        with self._db.write() as conn:
            now = self._db.now(conn)
            pairs: list[Step] = [(one.old, one.new) for one in steps]
            _take_leases(conn, [one.old for one in steps])
            _update_leases(conn, [(one.old, one.new) for one in steps], now)
            hold(conn, pairs, now, spared=True)
            _rewrite_reservations(conn, pairs, now)
            for one in steps:
                if one.work is not None:
                    apply_work(conn, one.new.id, one.work, now)
            said = [(one.new.id, one.new.project_id, one.say) for one in steps if one.say]
            audit.write_many(conn, now, said)

    def foresee(self, old: Lease | None, new: Lease, limits: Limits) -> None:
        with self._db.read() as conn:
            quotas.foresee(conn, limits, self._db.now(conn), old=old, new=new)

    def erase(self, lease: Lease, *, claim: Claim, say: str, work: Work | None = None) -> None:
        with self._db.write() as conn:
            now = self._db.now(conn)
            if conn.dialect.name != "sqlite":  # in the order in which a save takes them
                conn.execute(_LOCK_LEASE, {"lease": lease.id})
            take(conn, {a.host_id for a in lease.allocations() if a.host_id is not None}, now)
            # By their ids: MariaDB would answer a subquery here for each row of the table.
            mine = [reservation.id for reservation in lease.reservations]
            conn.execute(sa.delete(allocations).where(allocations.c.reservation_id.in_(mine)))
            conn.execute(sa.delete(leases).where(leases.c.id == lease.id))
            update_claimed(conn, claim, updated_at=now)
            if work is not None:
                apply_work(conn, lease.id, work, now)
            audit.write(conn, now, lease.id, lease.project_id, say)


_WRITTEN = (*lease_rows.LEASE_COLUMNS, "updated_at", "version")
#: Statements that every lease goes through are built once: building costs more than running.
_UPDATE = (
    sa.update(leases)
    .where(leases.c.id == sa.bindparam("its_id"))
    .where(leases.c.version == sa.bindparam("its_version"))
    .values({name: sa.bindparam(f"new_{name}") for name in _WRITTEN})
)
_UPDATE_RESERVATION = (
    sa.update(reservations)
    .where(reservations.c.id == sa.bindparam("its_id"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("updated_at", *RESERVATION_COLUMNS)})
)
_NEWS = (
    sa.select(reservations.c.id, sa.func.max(audit_rows.c.at))
    .join(leases, leases.c.id == reservations.c.lease_id)
    .join(audit_rows, audit_rows.c.subject == leases.c.id)
    .where(audit_rows.c.at > sa.bindparam("since"), leases.c.status != "PENDING")
    .group_by(reservations.c.id)
)
_NEWS_OF_HOSTS = sa.select(sa.func.max(audit_rows.c.at)).where(
    audit_rows.c.at > sa.bindparam("since"), audit_rows.c.subject == audit.HOSTS
)
_LOCK_LEASE = sa.select(leases.c.id).where(leases.c.id == sa.bindparam("lease")).with_for_update()
_CONDITIONS: Mapping[str, sa.ColumnElement[bool]] = {
    "lease": leases.c.id == sa.bindparam("lease"),
    "project": leases.c.project_id == sa.bindparam("project"),
    "ids": leases.c.id.in_(sa.bindparam("ids", expanding=True)),
}


@functools.cache
def lease_query(asked: tuple[str, ...]) -> sa.Select[Any]:
    """Lease rows, their columns in the order of the dataclass."""
    return _ordered(sa.select(*lease_rows.LEASE), asked)


@functools.cache
def _stamps(asked: tuple[str, ...]) -> sa.Select[Any]:
    """One row per lease. Its version grows with every save; work goes on between saves, so of
    each piece of work there is all that can change. One row per kind: the text stays short. Their
    order is the database's; where it changes its mind, a lease is read once more than needed.
    """
    o = operations.c
    nothing: Any = sa.literal_column("''")  # a str would be put in anew at every call
    state = o.id + o.status
    for date in (o.due_at, o.updated_at):
        state = state + sa.func.coalesce(sa.cast(date, sa.String(32)), nothing)
    whole = sa.select(sa.func.aggregate_strings(state, nothing)).where(o.subject == leases.c.id)
    return _ordered(sa.select(leases.c.id, leases.c.version, whole.scalar_subquery()), asked)


def _ordered(query: sa.Select[Any], asked: tuple[str, ...]) -> sa.Select[Any]:
    conditions = (_CONDITIONS[name] for name in asked)
    return query.where(*conditions).order_by(leases.c.created_at, leases.c.id)


def _asked(
    lease_id: str | None, project_id: str | None
) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    bound = {"lease": lease_id, "project": project_id}
    return tuple(name for name, value in bound.items() if value is not None), bound


@contextlib.contextmanager
def _no_twins(what: str) -> Iterator[None]:
    """The same row written at the same time by somebody else is a lost race like any other."""
    try:
        yield
    except sa.exc.IntegrityError as error:
        raise StaleWrite(f"{what} was written by somebody else meanwhile") from error


def _update_lease(conn: Connection, old: Lease, new: Lease, now: datetime) -> None:
    if conn.execute(_UPDATE, _bound(old, new, now)).rowcount != 1:
        raise StaleWrite(f"lease {old.id} was changed by somebody else meanwhile")


def _bound(old: Lease, new: Lease, now: datetime) -> dict[str, Any]:
    values = {**lease_rows.columns(new), "updated_at": now, "version": old.version + 1}
    bound = {f"new_{name}": value for name, value in values.items()}
    return {**bound, "its_id": old.id, "its_version": old.version}


def _take_leases(conn: Connection, olds: Sequence[Lease]) -> None:
    """Own their rows until the commit; StaleWrite if somebody changed one."""
    query = sa.select(leases.c.id, leases.c.version).order_by(leases.c.id)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    now: dict[str, int] = {}
    for ids in portions(old.id for old in olds):
        now |= {row.id: row.version for row in conn.execute(query.where(leases.c.id.in_(ids)))}
    changed = sorted(old.id for old in olds if now.get(old.id) != old.version)
    if changed:
        raise StaleWrite(f"changed by somebody else meanwhile: leases {', '.join(changed)}")


def _update_leases(conn: Connection, steps: Sequence[tuple[Lease, Lease]], now: datetime) -> None:
    """Those whose rows are ours."""
    conn.execute(_UPDATE, [_bound(old, new, now) for old, new in steps])


def _rewrite_reservations(conn: Connection, steps: Sequence[Step], now: datetime) -> None:
    """The rows of reservations that changed, and what they hold."""
    rows: list[dict[str, Any]] = []
    for old, new in steps:
        before = {r.id: r for r in old.reservations} if old else {}
        for reservation in new.reservations:
            if reservation != before[reservation.id]:
                values = {"updated_at": now, **lease_rows.reservation_columns(reservation)}
                bound = {f"new_{name}": value for name, value in values.items()}
                rows.append({**bound, "its_id": reservation.id})
    if rows:
        conn.execute(_UPDATE_RESERVATION, rows)
    _rewrite_allocations(conn, steps)


def _rewrite_allocations(conn: Connection, steps: Sequence[Step]) -> None:
    """Replace the allocations of each reservation whose holds differ."""
    before = {r.id: r.allocations for old, _new in steps if old for r in old.reservations}
    now = [reservation for _old, new in steps for reservation in new.reservations]
    differ = [one for one in now if before.get(one.id) != one.allocations]
    for ids in portions(one.id for one in differ if before.get(one.id)):
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
        read = lease_rows.with_holds if holding else lease_rows.without_holds
        parts, events = read(conn, ids), lease_rows.events(conn, ids)
        yield from ((lease_rows.lease(row, parts), events.get(row.id, ())) for row in some)
