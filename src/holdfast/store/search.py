# SPDX-License-Identifier: Apache-2.0
"""What people look for by a few letters: hosts, leases and incidents, by name or id."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from holdfast.store.database import Database
from holdfast.store.tables import hosts, incidents, leases

h, i, le = hosts.c, incidents.c, leases.c
#: Letters of an id that are worth a look: fewer are in every one.
LEAST_OF_AN_ID: Final = 4
Row = Mapping[str, Any]


class SearchStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def hosts(self, text: str, most: int) -> Sequence[Row]:
        query = (
            sa.select(h.service_host.label("name"), h.state, h.rack, h.zone)
            .where(h.service_host.icontains(text, autoescape=True))
            .order_by(sa.func.length(h.service_host), h.name)
        )
        return self._rows(query, most)

    def leases(self, text: str, project_id: str | None, most: int) -> Sequence[Row]:
        """Of a project, or of all; those that end last come first."""
        said = [le.name.icontains(text, autoescape=True)]
        if len(text) >= LEAST_OF_AN_ID:
            said.append(le.id.startswith(text.lower(), autoescape=True))
        query = sa.select(le.id, le.name, le.status, le.project_id, le.start_date, le.end_date)
        if project_id is not None:
            query = query.where(le.project_id == project_id)
        query = query.where(sa.or_(*said)).order_by(le.end_date.desc(), le.id)
        return self._rows(query, most)

    def incidents(self, text: str, most: int) -> Sequence[Row]:
        """By what they are about, too; the newest first."""
        said = [i.subject.icontains(text, autoescape=True)]
        said.append(i.details["host"].as_string().icontains(text, autoescape=True))
        if len(text) >= LEAST_OF_AN_ID:
            said.append(i.id.startswith(text.lower(), autoescape=True))
        query = (
            sa.select(i.id, i.subject, i.status, i.sentence, i.opened_at)
            .where(sa.or_(*said))
            .order_by(i.opened_at.desc(), i.id)
        )
        return self._rows(query, most)

    def _rows(self, query: sa.Select[Any], most: int) -> Sequence[Row]:
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(most)).mappings()]
