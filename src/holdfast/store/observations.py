# SPDX-License-Identifier: Apache-2.0
"""Reports as rows: who saw what, since when. Written by the API with or without a manager."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.store.database import Database
from holdfast.store.tables import observations


class ObservationStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, id_: str, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Write a report; the same key of an observer is the same report. The row, and if new."""

        def action(conn: Connection) -> tuple[Mapping[str, Any], bool]:
            known = conn.execute(
                sa.select(observations).where(
                    observations.c.observer == values["observer"],
                    observations.c.key == values["key"],
                )
            )
            if row := known.mappings().first():
                return dict(row), False
            now = self._db.now(conn)
            conn.execute(
                sa.insert(observations).values(
                    id=id_, created_at=now, **{"observed_at": now, **values}
                )
            )
            made = conn.execute(sa.select(observations).where(observations.c.id == id_))
            return dict(made.mappings().one()), True

        return self._db.retry(action)

    def list_all(
        self,
        *,
        subject: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> Sequence[Mapping[str, Any]]:
        query = sa.select(observations).order_by(observations.c.observed_at.desc())
        if subject:
            query = query.where(observations.c.subject == subject)
        if since:
            query = query.where(observations.c.observed_at >= since)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(limit)).mappings()]
