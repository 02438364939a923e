# SPDX-License-Identifier: Apache-2.0
"""Queries of reservation repair: affected leases, holders of a host, approvals."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import audit, leases
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.host_rows import USABLE
from holdfast.db.leases import lease_query
from holdfast.db.operations import apply_work, reschedule_now
from holdfast.db.tables import allocations, hosts, operations, pauses, reservations, steps
from holdfast.db.tables import leases as leases_table
from holdfast.model.host import normalise
from holdfast.model.lease import START, Lease
from holdfast.model.operation import RUNNING, WAITING, Operation
from holdfast.ports.ledger import Rightful, RightfulPool, Work

a, h, o, r = allocations.c, hosts.c, operations.c, reservations.c
_LIVING = leases_table.c.status.in_(["PENDING", "ACTIVE"])
_MISSING = (
    sa.select(leases_table.c.id)
    .join(reservations, r.lease_id == leases_table.c.id)
    .where(r.missing_resources.is_(True), _LIVING)
)
_FAILED = sa.select(h.id).where(h.enrolled.is_(True), sa.or_(~USABLE, h.reservable.is_(False)))
_HIT = (
    sa.select(leases_table.c.id)
    .join(reservations, r.lease_id == leases_table.c.id)
    .join(allocations, a.reservation_id == r.id)
    .where(
        a.host_id.in_(sa.bindparam("ids", expanding=True)),
        a.held_until > sa.bindparam("now"),
        _LIVING,
    )
    .distinct()
)
_HOLDERS = (
    sa.select(r.id, a.slots.is_(None))
    .join(allocations, a.reservation_id == r.id)
    .where(
        a.host_id == sa.bindparam("host"),
        a.held_from <= sa.bindparam("now"),
        a.held_until > sa.bindparam("now"),
        r.status != "deleted",
    )
)
#: Subjects of open, due work that changes pools.
_UNDER_WAY = sa.select(o.subject).where(
    o.is_open.is_(True),
    o.due_at <= sa.bindparam("now"),
    sa.or_(o.kind.like("lease_%"), o.kind.like("host_%")),
)
_RUNNING = (
    sa.select(r.id, r.lease_id, leases_table.c.project_id, r.resource_type, h.service_host)
    .join(leases_table, leases_table.c.id == r.lease_id)
    .join(allocations, a.reservation_id == r.id)
    .join(hosts, h.id == a.host_id)
    .where(
        leases_table.c.status == "ACTIVE",
        a.held_from <= sa.bindparam("now"),
        a.held_until > sa.bindparam("now"),
    )
)
_WHOLE = (
    sa.select(r.lease_id)
    .join(leases_table, leases_table.c.id == r.lease_id)
    .where(
        leases_table.c.status == "ACTIVE",
        r.missing_resources.is_(False),
        r.resource_type.in_(sa.bindparam("kinds", expanding=True)),
    )
)
_UNPREPARED = (
    sa.select(r.id, r.lease_id, leases_table.c.project_id, r.resource_type)
    .join(leases_table, leases_table.c.id == r.lease_id)
    .join(operations, o.subject == r.lease_id)
    .where(
        r.id.in_(sa.bindparam("names", expanding=True)),
        leases_table.c.status == "PENDING",
        o.kind == START,
        o.status == WAITING,
        ~sa.exists().where(steps.c.operation_id == o.id),
    )
)
#: Also after the end of the hold, until the host was returned.
_HELD_WHOLE = (
    sa.select(h.service_host)
    .join(allocations, a.host_id == h.id)
    .join(reservations, r.id == a.reservation_id)
    .where(
        a.slots.is_(None),
        a.held_from <= sa.bindparam("now"),
        sa.or_(a.held_until > sa.bindparam("now"), r.status == "active"),
        r.status != "deleted",
    )
)
_HOSTS = sa.select(h.uuid, h.service_host, h.enrolled, h.reservable, USABLE.label("usable"))


class RepairStore:
    """The repair part of the ledger."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def needs_repair(self) -> bool:
        """Tell whether there is work for repair.

        True if an enrolled host has failed or is on its way back, or a live reservation misses
        resources.
        """
        with self._db.read() as conn:
            return any(conn.execute(query.limit(1)).first() for query in (_FAILED, _MISSING))

    def leases_on(self, host_ids: Collection[int], *, flagged: bool = False) -> Sequence[Lease]:
        """Return pending and running leases that hold any of the hosts now or later.

        With `flagged` also leases that miss resources.
        """
        with self._db.read() as conn:
            now = self._db.now(conn)
            ids: set[str] = set()
            for some in portions(host_ids):
                ids.update(conn.execute(_HIT, {"ids": some, "now": now}).scalars())
            if flagged:
                ids.update(conn.execute(_MISSING).scalars())
            return [lease for some in portions(sorted(ids)) for lease in _leases(conn, some)]

    def holders(self, host_id: int) -> Mapping[str, bool]:
        """Return ids of the reservations that hold the host now; True for the whole host."""
        with self._db.read() as conn:
            bound = {"host": host_id, "now": self._db.now(conn)}
            return {name: bool(whole) for name, whole in conn.execute(_HOLDERS, bound)}

    def rightful(self, kinds: Collection[str], names: Collection[str] = ()) -> Rightful:
        """Return the expected aggregates, with reservations of these resource types only.

        Aggregates in `names` whose reservation is not prepared yet are expected to be empty.
        """
        with self._db.read() as conn:
            bound = {"now": self._db.now(conn)}
            busy = set(conn.execute(_UNDER_WAY, bound).scalars())
            members: dict[str, set[str]] = {}
            whose: dict[str, tuple[str, str]] = {}
            for name, lease_id, project, kind, host in conn.execute(_RUNNING, bound):
                if lease_id not in busy and kind in kinds:
                    whose[name] = lease_id, project
                    members.setdefault(name, set()).add(host)
            for some in portions(sorted(names)):
                for name, lease_id, project, kind in conn.execute(_UNPREPARED, {"names": some}):
                    if lease_id not in busy and kind in kinds:
                        whose[name], members[name] = (lease_id, project), set()
            held = set(conn.execute(_HELD_WHOLE, bound).scalars())
            rows = [row for row in conn.execute(_HOSTS) if f"host:{row.uuid}" not in busy]
        resting = {row.service_host for row in rows}
        enrolled = frozenset(row.service_host for row in rows if row.enrolled)
        free = {row.service_host for row in rows if row.reservable and row.usable}
        return Rightful(
            {name: RightfulPool(*whose[name], frozenset(hosts)) for name, hosts in members.items()},
            frozenset(free & enrolled - held),
            enrolled,
            frozenset(normalise(row.service_host) for row in rows if row.service_host not in held)
            | {normalise(kept) for some in members.values() for kept in some if kept in resting},
        )

    def running(self, kinds: Collection[str]) -> Sequence[Lease]:
        """Return running leases with no work under way and a reservation of these resource types.

        Leases that miss resources are left out.
        """
        with self._db.read() as conn:
            busy = set(conn.execute(_UNDER_WAY, {"now": self._db.now(conn)}).scalars())
            ids = set(conn.execute(_WHOLE, {"kinds": list(kinds)}).scalars()) - busy
            return [lease for some in portions(sorted(ids)) for lease in _leases(conn, some)]

    def note(self, subject: str, sentence: str) -> None:
        """Write a sentence to the audit log that belongs to no other change."""

        def action(conn: Connection) -> None:
            audit.write(conn, self._db.now(conn), subject, None, sentence)

        self._db.retry(action)

    def keep_back(self, host_id: int, work: Work) -> None:
        """Block a failed host for bookings until `work` returns the host."""

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            kept = conn.execute(
                sa.update(hosts)
                .where(h.id == host_id, h.enrolled.is_(True), h.reservable.is_(True), ~USABLE)
                .values(
                    reservable=False,
                    generation=h.generation + 1,
                    touched_at=now,
                    pools_changed_at=now,
                    updated_at=now,
                )
            )
            if kept.rowcount:
                (operation,) = work.put
                apply_work(conn, operation.subject, work, now)
                sentence = f"host {operation.payload['service_host']} failed and is kept back"
                audit.write(conn, now, audit.HOSTS, None, sentence)

        self._db.retry(action)

    def arm(self, operation: Operation) -> None:
        """Make the single row of a periodic job due.

        A manager that runs the job now is not disturbed.
        """

        def action(conn: Connection) -> None:
            reschedule_now(conn, operation, self._db.now(conn))

        self._db.retry(action)

    def expedite(self, key: str) -> None:
        """Make waiting open work due now; do nothing if there is none."""

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            resting = o.key == key, o.is_open.is_(True), o.status != RUNNING, o.next_try_at > now
            conn.execute(sa.update(operations).where(*resting).values(next_try_at=now))

        self._db.retry(action)

    def approve(self, what: str, author: str, reason: str, until: datetime) -> None:
        """Record an operator's approval that lifts a hold.

        `scope` is a kind of work (`repair`), or that kind in one failure domain
        (`repair:rack-a`).
        """

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            scope = _scope(what)
            conn.execute(sa.delete(pauses).where(pauses.c.scope == scope))
            conn.execute(
                sa.insert(pauses).values(
                    id=str(uuid.uuid4()),
                    scope=scope,
                    author=author,
                    reason=reason,
                    expires_at=until,
                    created_at=now,
                )
            )
            kind, _, where = what.partition(":")
            of = f"{kind} in {where}" if where else kind
            audit.write(conn, now, kind, None, f"the hold of {of} was lifted: {reason}")

        self._db.retry(action)

    def approved(self, kind: str) -> Collection[str]:
        """Return the failure domains where the hold of this work is lifted; "" stands for all."""
        scope = _scope(kind)
        query = sa.select(pauses.c.scope).where(
            sa.or_(
                pauses.c.scope == scope,
                pauses.c.scope.startswith(f"{scope}:", autoescape=True),
            ),
            pauses.c.expires_at > sa.bindparam("now"),
        )
        with self._db.read() as conn:
            scopes = conn.execute(query, {"now": self._db.now(conn)}).scalars()
            return {name.removeprefix(scope).removeprefix(":") for name in scopes}


def _scope(what: str) -> str:
    return f"approved:{what}"


def _leases(conn: Connection, ids: Sequence[str]) -> Sequence[Lease]:
    rows = conn.execute(lease_query(("ids",)), {"ids": ids}).all()
    parts = leases.with_holds(conn, ids)
    return [leases.lease(row, parts) for row in rows]
