# SPDX-License-Identifier: Apache-2.0
"""Agents of hosts as rows: that each lives, and which rules it goes by. Written by the API."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.store.database import Database
from holdfast.store.tables import agents

a = agents.c
#: An agent that was not heard of for so long is forgotten.
FORGOTTEN = timedelta(days=7)


class AgentStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def beat(self, host: str, values: Mapping[str, Any]) -> None:
        """It lives, and is like that."""

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            mine = sa.update(agents).where(a.host == host)
            if conn.execute(mine.values(**values, seen_at=now, updated_at=now)).rowcount:
                return
            conn.execute(sa.insert(agents).values(host=host, created_at=now, seen_at=now, **values))
            gone = sa.select(a.host).where(a.seen_at < now - FORGOTTEN)
            for name in conn.execute(gone).scalars().all():
                conn.execute(sa.delete(agents).where(a.host == name))

        self._db.retry(action)

    def groups(self, host: str) -> Sequence[str]:
        """Those that it says it is in."""
        with self._db.read() as conn:
            found = conn.execute(sa.select(a.details).where(a.host == host)).scalar()
        return list((found or {}).get("groups", ()))

    def all(self) -> tuple[datetime, Sequence[Mapping[str, Any]]]:
        """And the time by which they are fresh or not."""
        with self._db.read() as conn:
            rows = conn.execute(sa.select(agents).order_by(a.host)).mappings().all()
            return self._db.now(conn), [dict(row) for row in rows]
