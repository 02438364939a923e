# SPDX-License-Identifier: Apache-2.0
"""A step of a lease that changes states and nothing that it holds, as one statement of PostgreSQL.

Most steps of durable work are of that kind, and a transaction of five statements costs seven round
trips. All of it hangs on the rows of the lease and of the claim, taken in that order as everywhere:
if one of them is not what it was, nothing is written, and the caller finds out why.
"""

import functools
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.lease import Lease, Reservation
from holdfast.model.operation import Claim
from holdfast.ports.ledger import Work
from holdfast.store import lease_rows
from holdfast.store.audit import whose
from holdfast.store.tables import audit, leases, operations, reservations

#: Leases with more reservations that change go the long way: one text per number is kept.
MOST_PARTS = 4
_SAID = ("at", "subject", "project_id", "sentence", "actor", "request_id")
_bind = sa.bindparam


def fits(old: Lease, new: Lease, work: Work | None) -> bool:
    """Whether the step neither changes what the lease holds nor its work."""
    if work is not None and work != Work():
        return False
    holds = [(one.id, one.allocations) for one in old.reservations]
    same = holds == [(one.id, one.allocations) for one in new.reservations]
    return same and len(_changed(old, new)) <= MOST_PARTS


def write(
    conn: Connection, old: Lease, new: Lease, *, claim: Claim, say: str, now: datetime
) -> bool:
    """Write the step; False, and nothing is written, if lease or claim are not what they were."""
    parts = _changed(old, new)
    row = {**lease_rows.columns(new), "updated_at": now, "version": old.version + 1}
    bound: dict[str, Any] = {f"new_{name}": value for name, value in row.items()}
    bound |= {"its_id": old.id, "its_version": old.version, "now": now}
    bound |= {
        "claim_id": claim.operation_id,
        "claim_epoch": claim.epoch,
        "claim_owner": claim.owner,
    }
    for number, part in enumerate(parts):
        values = {**lease_rows.reservation_columns(part), "id": part.id}
        bound |= {f"part{number}_{name}": value for name, value in values.items()}
    if say:
        said = {"at": now, "subject": new.id, "project_id": new.project_id, "sentence": say}
        bound |= {f"said_{name}": value for name, value in {**said, **whose()}.items()}
    return conn.execute(_statement(len(parts), bool(say)), bound).first() is not None


def _changed(old: Lease, new: Lease) -> list[Reservation]:
    return [is_ for was, is_ in zip(old.reservations, new.reservations, strict=True) if was != is_]


@functools.cache
def _statement(parts: int, say: bool) -> sa.Select[Any]:
    """Each part looks at what the one before it found, which also says in which order they run."""
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
    names = (*lease_rows.LEASE_COLUMNS, "updated_at", "version")
    step = (
        sa.update(leases)
        .where(leases.c.id == _bind("its_id"), ours)
        .values({name: _bind(f"new_{name}") for name in names})
        .returning(leases.c.id)
        .cte("step")
    )
    query = sa.select(step.c.id)
    for number in range(parts):
        columns = lease_rows.RESERVATION_COLUMNS
        values: dict[str, Any] = {name: _bind(f"part{number}_{name}") for name in columns}
        part = (
            sa.update(reservations)
            .where(reservations.c.id == _bind(f"part{number}_id"), ours)
            .values(updated_at=_bind("now"), **values)
            .returning(reservations.c.id)
        )
        query = query.add_cte(part.cte(f"part{number}"))
    if say:
        words = (_bind(f"said_{name}", type_=audit.c[name].type) for name in _SAID)
        said = sa.insert(audit).from_select(_SAID, sa.select(*words).where(ours))
        query = query.add_cte(said.returning(audit.c.id).cte("said"))
    return query
