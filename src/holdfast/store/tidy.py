# SPDX-License-Identifier: Apache-2.0
"""Old rows leave in portions: found without a lock, removed by key in short transactions."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.store.database import Database
from holdfast.store.tables import (
    audit,
    incidents,
    leases,
    notifications,
    operations,
    verdicts,
    vmoves,
)

n, o = notifications.c, operations.c
_OLD_OPERATIONS = sa.select(o.id).where(
    o.is_open.is_(False),
    o.updated_at < sa.bindparam("before"),
    ~sa.exists().where(leases.c.id == o.subject),  # its events are shown as long as it is there
)
_OLD_AUDIT = sa.select(audit.c.id).where(audit.c.at < sa.bindparam("before")).order_by(audit.c.at)


class TidyStore:
    """The `ports.tidy.Tidy` of SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        return self._db.now()

    def operations(self, before: datetime, most: int) -> int:
        # Asked again in the delete: work that was armed anew meanwhile stays.
        still = o.is_open.is_(False), o.updated_at < before
        return self._remove(_OLD_OPERATIONS, operations, before, most, *still)

    def audit(self, before: datetime, most: int) -> int:
        return self._remove(_OLD_AUDIT, audit, before, most)

    def reports(self, before: datetime, most: int) -> int:
        ended = n.status.in_(["finished", "ignored", "failed", "error"]), n.updated_at < before
        closed = sa.select(incidents.c.id).where(
            incidents.c.id == n.incident_id, incidents.c.closed_at.is_(None)
        )
        query = sa.select(n.uuid, n.incident_id).where(*ended, ~closed.exists()).limit(most)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
        if not rows:
            return 0

        def action(conn: Connection) -> int:
            uuids = [row.uuid for row in rows]
            gone = conn.execute(sa.delete(notifications).where(n.uuid.in_(uuids), *ended))
            ids = {row.incident_id for row in rows if row.incident_id}
            left = sa.select(n.incident_id).where(n.incident_id.in_(ids))
            alone = ids - set(conn.execute(left).scalars())
            conn.execute(sa.delete(vmoves).where(vmoves.c.incident_id.in_(alone)))
            conn.execute(sa.delete(verdicts).where(verdicts.c.incident_id.in_(alone)))
            conn.execute(sa.delete(incidents).where(incidents.c.id.in_(alone)))
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
