# SPDX-License-Identifier: Apache-2.0
"""Old rows leave in portions: found without a lock, removed by key in short transactions."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.store.database import Database
from holdfast.store.tables import audit, leases, operations

o = operations.c
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
