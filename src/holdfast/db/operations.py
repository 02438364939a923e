# SPDX-License-Identifier: Apache-2.0
"""Durable work (table `operations`): claimed by compare-and-set, resumed after any crash."""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.alarms.central import ALARM_MUTE
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.rows import Mapper
from holdfast.db.tables import operations, steps
from holdfast.model.errors import ClaimLost, NotFound
from holdfast.model.lease import BEFORE_END, END, START
from holdfast.model.operation import (
    CANCELLED,
    DONE,
    OPEN,
    RUNNING,
    SKIPPED,
    Claim,
    Operation,
    Skipped,
)
from holdfast.ports.ledger import Work
from holdfast.ports.publishers import ANNOUNCE

# Adding, re-arming and cancelling work, within the transaction of the change that requests it.


o = operations.c
_OPERATION = Mapper(Operation, operations)
#: Columns that re-armed work keeps; `claim_until` too, because a call may still be under way.
_FIXED = {"id", "key", "epoch", "created_at", "claim_until"}
# Built once, because building costs more than running.
_ADD = sa.insert(operations)
_ARM_AGAIN = sa.update(operations).where(o.key == sa.bindparam("its_key")).values(epoch=o.epoch + 1)
_FORGET_STEPS = sa.delete(steps).where(
    steps.c.operation_id
    == sa.select(o.id).where(o.key == sa.bindparam("its_key")).scalar_subquery()
)
_CANCEL = (
    sa.update(operations)
    .where(
        o.subject == sa.bindparam("of"),
        o.kind.in_(sa.bindparam("kinds", expanding=True)),
        o.is_open.is_(True),
    )
    .values(
        status=CANCELLED,
        is_open=False,
        epoch=o.epoch + 1,
        sentence="no longer wanted",
        updated_at=sa.bindparam("at"),
    )
)
#: Kinds of work with a date of its own; all other work is due when it is written.
_DATED = (START, BEFORE_END, END, ALARM_MUTE)
#: Work that was written this much later than now was written by a clock ahead of time.
SURELY_AHEAD = timedelta(seconds=60)
_LAST = sa.select(sa.func.max(o.sequence)).where(o.subject == sa.bindparam("of"))
_BUSY = sa.select(sa.func.max(o.claim_until)).where(
    o.subject == sa.bindparam("of"), o.claim_until > sa.bindparam("now")
)


def apply_work(
    conn: Connection, subject: str, work: Work, now: datetime, *, is_new: bool = False
) -> None:
    """Add, cancel and re-arm work of a subject, within the caller's transaction.

    With `is_new` the subject has no work yet.
    """
    # A call of cancelled or moved work may still be under way: new work waits for the end of
    # its claim. The rows are locked from here on: no manager claims or renews between this read
    # and the writes.
    busy = now
    ours = work.cancel or any(added.subject == subject for added in (*work.add, *work.put))
    if ours and not is_new:
        if conn.dialect.name != "sqlite":
            conn.execute(sa.select(o.id).where(o.subject == subject).with_for_update())
        busy = busy_until(conn, subject, now) or now
    if work.cancel:
        conn.execute(_CANCEL, {"of": subject, "kinds": list(work.cancel), "at": now})

    def row(operation: Operation) -> dict[str, Any]:
        """Build the row; work about another subject need not wait."""
        first = max(operation.next_try_at, busy if operation.subject == subject else now)
        return {**_values(operation, now), "next_try_at": first}

    fresh = [row(operation) for operation in work.add]
    for operation in work.put:
        values = {k: v for k, v in row(operation).items() if k not in _FIXED}
        its = {"its_key": operation.key}
        if conn.execute(_ARM_AGAIN, values | its).rowcount == 0:
            fresh.append(row(operation))
            continue
        conn.execute(_FORGET_STEPS, its)
    if fresh:
        conn.execute(_ADD, fresh)


def put(conn: Connection, operations_: Sequence[Operation], now: datetime) -> None:
    """Write the work that follows from a change, each for its own subject, and notifications."""
    for operation in operations_:
        if operation.kind == ANNOUNCE:
            _queue_notice(conn, operation, now)
        else:
            apply_work(conn, operation.subject, Work(put=(operation,)), now)


def _queue_notice(conn: Connection, notice: Operation, now: datetime) -> None:
    """Add a notification after all earlier notifications about the same subject.

    The notification waits for the earlier ones to be sent, but not for the end of the claim on
    them: nothing is lost if both are sent at once.
    """
    last = conn.execute(_LAST, {"of": notice.subject}).scalar()
    following = replace(notice, sequence=(last or 0) + 1)
    apply_work(conn, "", Work(put=(following,)), now)


def reschedule_now(conn: Connection, operation: Operation, now: datetime) -> None:
    """Make the single row of a periodic job due, within the caller's transaction.

    A manager that runs the job is not disturbed: only `due_at` moves, and that manager runs the
    job once more when it finishes.
    """
    rows = o.key == operation.key, o.is_open.is_(True)
    known = conn.execute(sa.update(operations).where(*rows).values(due_at=now, updated_at=now))
    if known.rowcount == 0:
        apply_work(conn, operation.subject, Work(put=(operation,)), now)
        return
    resting = sa.update(operations).where(*rows, o.status != RUNNING)
    conn.execute(resting.values(next_try_at=now))


def _due_again(conn: Connection, row: Any, now: datetime) -> None:
    """Make put-off work due now; not before its date, nor during a call of its subject."""
    due = row.due_at if row.kind in _DATED else min(row.due_at, now)
    first = max(due, busy_until(conn, row.subject, now) or now, now)
    mended = sa.update(operations).where(o.id == row.id)
    conn.execute(mended.values(due_at=due, next_try_at=first, updated_at=now))


def busy_until(conn: Connection, subject: str, now: datetime) -> datetime | None:
    """Return until when a call for this subject may still be under way."""
    when: datetime | None = conn.execute(_BUSY, {"of": subject, "now": now}).scalar_one()
    return when


def _values(operation: Operation, now: datetime) -> dict[str, Any]:
    row = _OPERATION.row(operation)
    row |= {"is_open": operation.status in OPEN, "created_at": now, "updated_at": now}
    return row


class OperationStore:
    """The SQL implementation of `ports.ledger.Operations`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        """Return the database's time: the clock shared by all managers."""
        return self._db.now()

    def claim_due(
        self, owner: str, limit: int, ttl: timedelta, kinds: Collection[str]
    ) -> Sequence[Operation]:
        """Claim up to `limit` due operations of these kinds, oldest first."""
        if limit <= 0:
            return []
        if self._db.dialect != "postgresql" and not self._any_due(kinds):
            return []  # on these databases an empty claim costs a write transaction

        def action(conn: Connection) -> Sequence[Operation]:
            now = self._db.now(conn)
            bound = {"now": now, "kinds": list(kinds), "most": limit}
            until = {"by": owner, "until": now + ttl, "at": now}
            if conn.dialect.update_returning:  # PostgreSQL, and SQLite since 3.35
                rows = conn.execute(_CLAIM_DUE, bound | until).mappings().all()
                begun = [
                    row["id"] for row in rows if row["epoch"] > 1
                ]  # a first claim has no steps
                return _with_steps(conn, sorted(rows, key=lambda row: row["due_at"]), begun)
            ids = conn.execute(_CLAIMABLE, bound).scalars().all()
            if not ids:
                return []
            conn.execute(_CLAIM, {"its_ids": ids, **until})  # locked by the query above
            return load(conn, o.id.in_(ids))

        return self._db.retry(action, single=True)

    def _any_due(self, kinds: Collection[str]) -> bool:
        """Tell whether work is due, without a write transaction; mostly none is."""
        with self._db.read() as conn:
            first: datetime | None = conn.execute(_FIRST, {"kinds": list(kinds)}).scalar_one()
            return first is not None and first <= self._db.now(conn)

    def next_due(self, after: datetime | None = None) -> datetime | None:
        """Return the earliest time at which an open operation is due, later than `after`.

        Without `after`: later than now.
        """
        with self._db.read() as conn:
            bound = {"after": after or self._db.now(conn)}
            when: datetime | None = conn.execute(_NEXT_LOOK, bound).scalar_one()
            return when

    def mend_future(self, ttl: timedelta) -> int:
        """Make work due now that a clock ahead of time put off; return the number of rows.

        Claims that end later than `ttl` from now end then. Work with a date of its own (start
        and end of a lease) keeps the date.
        """

        def action(conn: Connection) -> int:
            now = self._db.now(conn)
            bound = {"now": now, "until": now + ttl, "later": now + 2 * ttl}
            ended = conn.execute(_END_CLAIMS, bound).rowcount
            rows = conn.execute(_PUT_OFF_ROWS.with_for_update(), {"soon": now + SURELY_AHEAD}).all()
            for row in rows:
                _due_again(conn, row, now)
            return ended + len(rows)

        with self._db.read() as conn:
            now = self._db.now(conn)
            bound = {"later": now + 2 * ttl, "soon": now + SURELY_AHEAD}
            is_ahead = conn.execute(_AHEAD, bound).first() is not None
        return self._db.retry(action) if is_ahead else 0

    def renew(self, claim: Claim, ttl: timedelta) -> None:
        """Extend the claim by `ttl`; ClaimLost if another owner has the claim."""
        self._db.retry(lambda conn: self._keep(conn, claim, ttl), single=True)

    def renew_many(self, claims: Sequence[Claim], ttl: timedelta) -> set[str]:
        """Extend several claims of the same owner; return the ids still owned."""
        epochs = {claim.operation_id: claim.epoch for claim in claims}
        kept: set[str] = set()
        for ids in portions(sorted(epochs)):
            kept |= self._db.retry(
                functools.partial(self._keep_some, claims[0].owner, ids, epochs, ttl)
            )
        return kept

    def _keep_some(
        self,
        owner: str,
        ids: Sequence[str],
        epochs: Mapping[str, int],
        ttl: timedelta,
        conn: Connection,
    ) -> set[str]:
        now = self._db.now(conn)
        ours = sa.select(o.id, o.epoch).where(o.id.in_(ids), o.owner == owner, o.is_open.is_(True))
        if conn.dialect.name != "sqlite":
            ours = ours.with_for_update(skip_locked=True)
        kept = [row.id for row in conn.execute(ours) if epochs[row.id] == row.epoch]
        until = {"claim_until": now + ttl, "next_try_at": now + ttl}
        conn.execute(sa.update(operations).where(o.id.in_(kept)).values(**until))
        return set(kept)

    def step_done(
        self, claim: Claim, position: int, name: str, sentence: str, ttl: timedelta
    ) -> None:
        """Record a finished step and renew the claim in a single transaction."""

        def action(conn: Connection) -> None:
            # The sentence of the wait belongs to this step; the next step has none yet.
            now = self._keep(conn, claim, ttl, sentence="")
            # The step is recorded already if the answer to the first try got lost.
            conn.execute(_FORGET_STEP, {"its_id": claim.operation_id, "its_name": name})
            row = {
                "operation_id": claim.operation_id,
                "name": name,
                "position": position,
                "status": SKIPPED if isinstance(sentence, Skipped) else DONE,
                "finished_at": now,
                "sentence": sentence,
            }
            conn.execute(_ADD_STEP, row)

        self._db.retry(action)

    def put_off(
        self,
        claim: Claim,
        status: str,
        next_try_at: datetime,
        sentence: str,
        failures: int = 0,
        *,
        due_at: datetime | None = None,
    ) -> None:
        """Release the claim and retry at `next_try_at`; `failures` adds to the attempts.

        With the `due_at` that was claimed: retry at once if another request moved `due_at`
        since.
        """

        def action(conn: Connection) -> None:
            values = {
                "status": status,
                "owner": None,
                "claim_until": None,
                "next_try_at": next_try_at,
                "failures": failures,
                "sentence": sentence,
                "updated_at": self._db.now(conn),
            }
            if due_at is not None:
                values["claimed_due"] = due_at
            update_claimed(conn, claim, **values)

        self._db.retry(action, single=True)

    def release(self, claim: Claim) -> None:
        """End the wait for a cancelled or moved operation: its manager makes no more calls.

        Only while the claim has not expired: later the operation may have another owner.
        """

        def action(conn: Connection) -> None:
            now, lost = self._db.now(conn), o.id == claim.operation_id
            lost &= sa.and_(o.epoch > claim.epoch, o.status != RUNNING, o.claim_until > now)
            row = conn.execute(sa.select(o.subject, o.claim_until).where(lost)).first()
            if row is None:
                return
            conn.execute(sa.select(o.id).where(o.subject == row.subject).with_for_update())
            conn.execute(sa.update(operations).where(lost).values(claim_until=None))
            waiting = sa.and_(o.subject == row.subject, o.is_open.is_(True), o.status != RUNNING)
            waiting &= o.next_try_at == row.claim_until
            first = busy_until(conn, row.subject, now) or now
            conn.execute(sa.update(operations).where(waiting).values(next_try_at=first))

        self._db.retry(action)

    def finish(self, claim: Claim, status: str, sentence: str) -> bool:
        """Close the operation as done or error; tell whether the subject's next is due."""

        def action(conn: Connection) -> bool:
            now = self._db.now(conn)
            values = {
                "status": status,
                "is_open": False,
                "claim_until": None,
                "sentence": sentence,
                "updated_at": now,
            }
            if self._db.dialect == "postgresql":
                bound = _claimed(claim, values) | {"now": now}
                row = conn.execute(_finished(tuple(values)), bound).first()
                if row is None:
                    raise _lost(claim)
                return bool(row[0])
            update_claimed(conn, claim, **values)
            bound = {"its_id": claim.operation_id, "now": now}
            return conn.execute(_FOLLOWING_IT, bound).first() is not None

        return self._db.retry(action, single=True)

    def _keep(self, conn: Connection, claim: Claim, ttl: timedelta, **more: Any) -> datetime:
        now = self._db.now(conn)
        update_claimed(conn, claim, claim_until=now + ttl, next_try_at=now + ttl, **more)
        return now

    def ensure(self, operation: Operation) -> None:
        """Add this work unless work of the same key is open; open work stays unchanged."""

        def action(conn: Connection) -> None:
            known = sa.select(o.id).where(o.key == operation.key, o.is_open.is_(True))
            if conn.execute(known).first() is None:
                work = Work(put=(operation,))
                apply_work(conn, operation.subject, work, self._db.now(conn))

        self._db.retry(action)

    def by_key(self, key: str) -> Operation:
        with self._db.read() as conn:
            for operation in load(conn, o.key == key):
                return operation
        raise NotFound(f"no operation {key}")

    def take_over_all(self) -> int:
        """Release every claim; only if no other process works on this database."""

        def action(conn: Connection) -> int:
            now = self._db.now(conn)
            done = conn.execute(
                sa.update(operations)
                .where(o.status == RUNNING)
                .values(owner=None, claim_until=None, next_try_at=now, epoch=o.epoch + 1)
            )
            return done.rowcount

        return self._db.retry(action)

    # for people

    def find(self, ref: str) -> Operation:
        """Return the operation with this id or key; NotFound."""
        with self._db.read() as conn:
            for operation in load(conn, sa.or_(o.id == ref, o.key == ref)):
                return operation
        raise NotFound(f"no operation {ref[:80]}: holdfast operation list")

    def list_all(
        self, *, subject: str | None = None, status: str | None = None, limit: int = 100
    ) -> Sequence[Operation]:
        conditions: list[sa.ColumnElement[bool]] = []
        if subject:
            conditions.append(o.subject == subject)
        if status:
            conditions.append(o.status == status)
        with self._db.read() as conn:
            return load(conn, *conditions, order=o.updated_at.desc(), limit=limit)

    def open_by_kind(self) -> Mapping[str, int]:
        query = sa.select(o.kind, sa.func.count()).where(o.is_open.is_(True)).group_by(o.kind)
        with self._db.read() as conn:
            return {kind: count for kind, count in conn.execute(query)}


def _claimable(due: sa.FromClause) -> sa.Select[Any]:
    """Select due rows, but none before an earlier operation of the same subject has ended."""
    earlier = operations.alias("earlier")
    return (
        sa.select(due.c.id)
        .where(
            due.c.is_open.is_(True),
            due.c.next_try_at <= sa.bindparam("now"),
            due.c.kind.in_(sa.bindparam("kinds", expanding=True)),
            ~sa.exists().where(
                earlier.c.subject == due.c.subject,
                earlier.c.is_open.is_(True),
                earlier.c.sequence < due.c.sequence,
            ),
        )
        .order_by(due.c.next_try_at)
        .limit(sa.bindparam("most"))
    )


# Statements of the loop are built once, because building costs more than running.
_CLAIMABLE = _claimable(operations).with_for_update(skip_locked=True)
_TAKE = sa.update(operations).values(
    status=RUNNING,
    owner=sa.bindparam("by"),
    epoch=o.epoch + 1,
    claim_until=sa.bindparam("until"),
    next_try_at=sa.bindparam("until"),
    updated_at=sa.bindparam("at"),
)
_CLAIM = _TAKE.where(o.id.in_(sa.bindparam("its_ids", expanding=True)))
#: MATERIALIZED chooses the rows once, before any write: otherwise PostgreSQL may run the choice
#: again.
_chosen = _claimable(operations.alias("due")).with_for_update(skip_locked=True)
_CLAIM_DUE = _TAKE.where(
    o.id.in_(sa.select(_chosen.cte("chosen").prefix_with("MATERIALIZED").c.id))
).returning(operations)
_ended, _next = operations.alias("ended").c, operations.alias("following").c
_SUBJECT = sa.select(_ended.subject).where(_ended.id == sa.bindparam("its_id")).scalar_subquery()
_FOLLOWING = sa.select(_next.id).where(
    _next.is_open.is_(True), _next.next_try_at <= sa.bindparam("now")
)
_FOLLOWING_IT = _FOLLOWING.where(_next.subject == _SUBJECT)
_FIRST = sa.select(sa.func.min(o.next_try_at)).where(
    o.is_open.is_(True), o.kind.in_(sa.bindparam("kinds", expanding=True))
)
_NEXT_LOOK = sa.select(sa.func.min(o.next_try_at)).where(
    o.is_open.is_(True), o.next_try_at > sa.bindparam("after")
)
#: Work that a clock ahead of time put off; dated work that only waits for its date is not.
_PUT_OFF = sa.and_(
    o.is_open.is_(True),
    o.status != RUNNING,
    o.next_try_at > sa.bindparam("soon"),
    o.updated_at > sa.bindparam("soon"),
    sa.or_(o.kind.not_in(_DATED), o.next_try_at > o.due_at),
)
_PUT_OFF_ROWS = sa.select(o.id, o.subject, o.kind, o.due_at).where(_PUT_OFF)
#: Claims that no manager renewed since; cancelled work has one while its call is under way.
_CLAIMED_AHEAD = o.claim_until > sa.bindparam("later")
_AHEAD = sa.select(o.id).where(sa.or_(_CLAIMED_AHEAD, _PUT_OFF)).limit(1)
_now, _until = (sa.bindparam(name, type_=o.next_try_at.type) for name in ("now", "until"))
_END_CLAIMS = (
    sa.update(operations)
    .where(_CLAIMED_AHEAD)
    .values(
        claim_until=_until,
        next_try_at=sa.case((o.status == RUNNING, _until), else_=o.next_try_at),
        due_at=sa.case((sa.and_(o.kind.not_in(_DATED), o.due_at > _now), _now), else_=o.due_at),
    )
)
_ADD_STEP = sa.insert(steps)
_FORGET_STEP = sa.delete(steps).where(
    steps.c.operation_id == sa.bindparam("its_id"), steps.c.name == sa.bindparam("its_name")
)
_STEPS = sa.select(steps.c.operation_id, steps.c.name).where(
    steps.c.operation_id.in_(sa.bindparam("its_ids", expanding=True))
)


def update_claimed(conn: Connection, claim: Claim, **values: Any) -> None:
    """Write to an operation only while the claim is valid; lock the row until the commit.

    `failures` adds to the attempts. `claimed_due` makes the operation due at once if `due_at`
    has changed, because then another request came meanwhile. Any other name is a column. Raises
    ClaimLost.
    """
    if conn.execute(_guarded_update(tuple(values)), _claimed(claim, values)).rowcount != 1:
        raise _lost(claim)


def _claimed(claim: Claim, values: Mapping[str, Any]) -> dict[str, Any]:
    bound = {f"new_{name}": value for name, value in values.items()}
    whose = {"its_id": claim.operation_id, "its_epoch": claim.epoch, "its_owner": claim.owner}
    return bound | whose


def _lost(claim: Claim) -> ClaimLost:
    return ClaimLost(f"operation {claim.operation_id}: the claim of {claim.owner} ended")


@functools.cache
def _finished(names: tuple[str, ...]) -> sa.UpdateBase:
    """Build the update that closes an operation and returns whether the subject's next is due."""
    following = _FOLLOWING.where(_next.subject == o.subject, _next.id != o.id)
    return _guarded_update(names).returning(sa.exists(following.correlate(operations)))


@functools.cache
def _guarded_update(names: tuple[str, ...]) -> sa.Update:
    """Build the update of a claimed operation; cached, because building costs more than running."""
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in names}
    if "failures" in values:
        values["attempts"] = o.attempts + values.pop("failures")
    if "claimed_due" in values:
        now, later = (
            sa.bindparam(f"new_{name}", type_=o.next_try_at.type)
            for name in ("updated_at", "next_try_at")
        )
        values["next_try_at"] = sa.case((o.due_at != values.pop("claimed_due"), now), else_=later)
    return (
        sa.update(operations)
        .where(
            o.id == sa.bindparam("its_id"),
            o.epoch == sa.bindparam("its_epoch"),
            o.owner == sa.bindparam("its_owner"),
            o.is_open.is_(True),
        )
        .values(**values)
    )


def load(
    conn: Connection,
    *where: Any,
    order: Any = None,
    limit: int | None = None,
) -> list[Operation]:
    query = (
        sa.select(operations).where(*where).order_by(order if order is not None else o.next_try_at)
    )
    rows = conn.execute(query.limit(limit)).mappings().all()
    return _with_steps(conn, rows, [row["id"] for row in rows if row["is_open"]])


def _with_steps(
    conn: Connection, rows: Sequence[RowMapping], begun: Collection[str]
) -> list[Operation]:
    done = _done_steps(conn, begun) if begun else {}
    none: frozenset[str] = frozenset()
    return [_OPERATION.named(row, done_steps=done.get(row["id"], none)) for row in rows]


def _done_steps(conn: Connection, ids: Iterable[str]) -> dict[str, frozenset[str]]:
    steps: dict[str, set[str]] = {}
    for operation_id, name in conn.execute(_STEPS, {"its_ids": list(ids)}):
        steps.setdefault(operation_id, set()).add(name)
    return {key: frozenset(names) for key, names in steps.items()}
