# SPDX-License-Identifier: Apache-2.0
"""Work comes to be: added, armed again and cancelled within the transaction of what asks for it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.operation import CANCELLED, OPEN, RUNNING, Operation
from holdfast.ports.ledger import Work
from holdfast.ports.sinks import ANNOUNCE
from holdfast.store.tables import operations, steps

o = operations.c

#: What work that is armed again keeps; of the claim its end, for a call may be on its way.
_FIXED = {"id", "key", "epoch", "created_at", "claim_until"}
# Built once: building costs more than running them.
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
_LAST = sa.select(sa.func.max(o.sequence)).where(o.subject == sa.bindparam("of"))
_BUSY = sa.select(sa.func.max(o.claim_until)).where(
    o.subject == sa.bindparam("of"), o.claim_until > sa.bindparam("now")
)


def apply_work(
    conn: Connection, subject: str, work: Work, now: datetime, *, is_new: bool = False
) -> None:
    """Add, cancel and re-arm the work of a subject, within somebody's transaction; one that
    `is_new` has none yet."""
    # A call of work that we cancel or move may still be on its way: what is new waits for its end.
    # The rows are ours from here on: nobody claims or renews between this look and our writes.
    busy = now
    ours = work.cancel or any(one.subject == subject for one in (*work.add, *work.put))
    if ours and not is_new:
        if conn.dialect.name != "sqlite":
            conn.execute(sa.select(o.id).where(o.subject == subject).with_for_update())
        busy = busy_until(conn, subject, now) or now
    if work.cancel:
        conn.execute(_CANCEL, {"of": subject, "kinds": list(work.cancel), "at": now})

    def row(operation: Operation) -> dict[str, Any]:
        """Work that is about something else, and only comes along, need not wait."""
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
    """What comes of somebody's change: work, each for its own subject, and news of it."""
    for operation in operations_:
        if operation.kind == ANNOUNCE:
            _tell(conn, operation, now)
        else:
            apply_work(conn, operation.subject, Work(put=(operation,)), now)


def _tell(conn: Connection, news: Operation, now: datetime) -> None:
    """After all that was written before about the same. It waits until that has been told, and not
    for the end of the claim of whoever is telling it: nothing is lost if both are told at once."""
    last = conn.execute(_LAST, {"of": news.subject}).scalar()
    following = replace(news, sequence=(last or 0) + 1)
    apply_work(conn, "", Work(put=(following,)), now)


def nudge(conn: Connection, operation: Operation, now: datetime) -> None:
    """Make the one row of a chore due, within somebody's transaction. Whoever is at it is not
    disturbed: its `due_at` tells that it was asked for again meanwhile."""
    rows = o.key == operation.key, o.is_open.is_(True)
    known = conn.execute(sa.update(operations).where(*rows).values(due_at=now, updated_at=now))
    if known.rowcount == 0:
        apply_work(conn, operation.subject, Work(put=(operation,)), now)
        return
    resting = sa.update(operations).where(*rows, o.status != RUNNING)
    conn.execute(resting.values(next_try_at=now))


def busy_until(conn: Connection, subject: str, now: datetime) -> datetime | None:
    """Until when somebody's call for this subject may still be on its way."""
    when: datetime | None = conn.execute(_BUSY, {"of": subject, "now": now}).scalar_one()
    return when


def _values(operation: Operation, now: datetime) -> dict[str, Any]:
    return {
        "id": operation.id,
        "kind": operation.kind,
        "subject": operation.subject,
        "key": operation.key,
        "sequence": operation.sequence,
        "due_at": operation.due_at,
        "status": operation.status,
        "is_open": operation.status in OPEN,
        "owner": operation.owner,
        "epoch": operation.epoch,
        "claim_until": operation.claim_until,
        "attempts": operation.attempts,
        "next_try_at": operation.next_try_at,
        "sentence": operation.sentence,
        "payload": dict(operation.payload),
        "created_at": now,
        "updated_at": now,
    }
