# SPDX-License-Identifier: Apache-2.0
"""Retention: old rows are found without a lock and deleted by key in short transactions."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.alarms import end_orphans
from holdfast.db.engine import Database
from holdfast.db.tables import (
    audit,
    incidents,
    leases,
    notifications,
    observations,
    operations,
    samples,
    timeline,
    verdicts,
    vmoves,
)

n, o, b, i = notifications.c, operations.c, observations.c, incidents.c
_OLD_OPERATIONS = sa.select(o.id).where(
    o.is_open.is_(False),
    o.updated_at < sa.bindparam("before"),
    ~sa.exists().where(leases.c.id == o.subject),  # a lease shows its events as long as it exists
)
_OLD_AUDIT = sa.select(audit.c.id).where(audit.c.at < sa.bindparam("before")).order_by(audit.c.at)


class TidyStore:
    """The SQL implementation of `ports.ledger.Tidy`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        return self._db.now()

    def operations(self, before: datetime, most: int) -> int:
        # Checked again in the delete: work re-armed meanwhile stays.
        """Delete up to `most` operations that ended before `before`; return the number deleted.

        Operations of a lease that still exists stay.
        """
        still = o.is_open.is_(False), o.updated_at < before
        return self._remove(_OLD_OPERATIONS, operations, before, most, *still)

    def audit(self, before: datetime, most: int) -> int:
        """Delete up to `most` audit sentences older than `before`; return the number deleted."""
        return self._remove(_OLD_AUDIT, audit, before, most)

    def samples(self, before: datetime, most: int) -> int:
        """Delete the metrics of up to `most` hosts not requested since then; return the number."""
        old = samples.c.wanted_until < before
        with self._db.read() as conn:
            hosts = conn.execute(sa.select(samples.c.host).where(old).limit(most)).scalars().all()
        if not hosts:
            return 0

        def action(conn: Connection) -> int:
            # checked again: a user may watch the host again by now
            return conn.execute(sa.delete(samples).where(samples.c.host.in_(hosts), old)).rowcount

        return self._db.retry(action)

    def alarms(self, before: datetime, most: int) -> int:
        """End up to `most` firing alarms of agents not heard since `before`; return the number.

        Retention deletes the rows of ended alarms later.
        """
        return end_orphans(self._db, before, most)

    def reports(self, before: datetime, most: int) -> int:
        """Delete up to `most` notifications ended before `before`; return the number deleted.

        With the last notification of an incident the incident, its verdicts and its moves are
        deleted.
        """
        ended = n.status.in_(["finished", "ignored", "failed", "error"]), n.updated_at < before
        query = sa.select(n.uuid, n.incident_id).where(*ended, ~_is_open(n.incident_id))
        query = query.limit(most)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
        if not rows:
            return 0

        def action(conn: Connection) -> int:
            uuids = [row.uuid for row in rows]
            gone = conn.execute(sa.delete(notifications).where(n.uuid.in_(uuids), *ended))
            _leave(conn, {row.incident_id for row in rows if row.incident_id})
            return gone.rowcount

        return self._db.retry(action)

    def observations(self, before: datetime, most: int) -> int:
        """Delete up to `most` observations older than `before`; return the number deleted.

        Observations of an open incident and of a host whose votes are being counted stay. With
        the last observation of an incident the incident is deleted, as in `reports`.
        """
        counting = o.key == sa.literal("host_votes/").concat(sa.func.substr(b.subject, 6))
        query = sa.select(b.id, b.incident_id).where(
            b.created_at < before,
            ~_is_open(b.incident_id),
            ~sa.exists().where(counting, o.is_open.is_(True)),
        )
        with self._db.read() as conn:
            rows = conn.execute(query.limit(most)).all()
        if not rows:
            return 0

        def action(conn: Connection) -> int:
            gone = conn.execute(sa.delete(observations).where(b.id.in_([row.id for row in rows])))
            _leave(conn, {row.incident_id for row in rows if row.incident_id})
            return gone.rowcount

        return self._db.retry(action)

    def _remove(
        self, old: sa.Select[Any], table: sa.Table, before: datetime, most: int, *still: Any
    ) -> int:
        with self._db.read() as conn:
            ids = conn.execute(old.limit(most), {"before": before}).scalars().all()
        if not ids:
            return 0

        def action(conn: Connection) -> int:
            return conn.execute(sa.delete(table).where(table.c.id.in_(ids), *still)).rowcount

        return self._db.retry(action)


def _is_open(incident_id: sa.ColumnElement[Any]) -> sa.Exists:
    """Build the condition that the incident is open."""
    return sa.select(i.id).where(i.id == incident_id, i.closed_at.is_(None)).exists()


def _leave(conn: Connection, ids: set[str]) -> None:
    """Delete the incidents without any remaining report and observation."""
    for left in (n.incident_id, b.incident_id):
        ids = ids - set(conn.execute(sa.select(left).where(left.in_(ids))).scalars())
    conn.execute(sa.delete(vmoves).where(vmoves.c.incident_id.in_(ids)))
    conn.execute(sa.delete(verdicts).where(verdicts.c.incident_id.in_(ids)))
    conn.execute(sa.delete(timeline).where(timeline.c.incident_id.in_(ids)))
    conn.execute(sa.delete(incidents).where(i.id.in_(ids)))
