# SPDX-License-Identifier: Apache-2.0
"""Operator switches: pauses, maintenance windows (table `maintenance_windows`) and approvals.

The API writes them itself, without a manager, so that they work during a mass failure too.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import audit
from holdfast.db.engine import Database
from holdfast.db.tables import maintenance_windows, operations, pauses
from holdfast.model.errors import NotFound
from holdfast.model.incident import Incident, matches
from holdfast.model.operation import RUNNING
from holdfast.ports.recovery import Switch

o, p, s = operations.c, pauses.c, maintenance_windows.c
#: Scopes of pauses.
EVERYWHERE = "recovery"
APPROVED = "approved:repair"


def segment_scope(segment: str) -> str:
    return f"{EVERYWHERE}:{segment}"


class SwitchStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def pause(
        self, segment: str, author: str, reason: str, expires_at: datetime | None
    ) -> Mapping[str, Any]:
        """Pause recovery of a segment, or of all segments if `segment` is empty.

        The new pause replaces an earlier pause of the same scope.
        """
        scope = segment_scope(segment) if segment else EVERYWHERE

        def action(conn: Connection) -> Mapping[str, Any]:
            now = self._db.now(conn)
            conn.execute(sa.delete(pauses).where(p.scope == scope))
            row = {
                "id": str(uuid.uuid4()),
                "scope": scope,
                "author": author,
                "reason": reason,
                "expires_at": expires_at,
                "created_at": now,
            }
            conn.execute(sa.insert(pauses).values(**row))
            audit.write(conn, now, scope, None, f"recovery is paused by {author}: {reason}")
            return row

        return self._db.retry(action)

    def resume(self, segment: str, author: str) -> bool:
        """Delete the pause; tell whether there was a pause."""
        scope = segment_scope(segment) if segment else EVERYWHERE

        def action(conn: Connection) -> bool:
            gone = conn.execute(sa.delete(pauses).where(p.scope == scope)).rowcount
            if gone:
                now = self._db.now(conn)
                expedite(conn, now)
                audit.write(conn, now, scope, None, f"recovery goes on, says {author}")
            return bool(gone)

        return self._db.retry(action)

    def all_pauses(self) -> Sequence[Mapping[str, Any]]:
        with self._db.read() as conn:
            now = self._db.now(conn)
            ours = sa.or_(p.scope == EVERYWHERE, p.scope.like(f"{EVERYWHERE}:%"))
            return [dict(row) for row in _in_force(conn, pauses, now, ours)]

    def all_approvals(self) -> Sequence[Mapping[str, Any]]:
        """Return the approvals in force; an empty `domain` means everywhere."""
        with self._db.read() as conn:
            ours = sa.or_(p.scope == APPROVED, p.scope.like(f"{APPROVED}:%"))
            rows = _in_force(conn, pauses, self._db.now(conn), ours)
        return [{**row, "domain": row["scope"].removeprefix(APPROVED)[1:]} for row in rows]

    def add_window(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        def action(conn: Connection) -> Mapping[str, Any]:
            now = self._db.now(conn)
            row = {"id": str(uuid.uuid4()), "created_at": now, "starts_at": now, **values}
            conn.execute(sa.insert(maintenance_windows).values(**row))
            sentence = (
                f"maintenance window by {row['author']} until {row['expires_at']}: {row['reason']}"
            )
            audit.write(conn, now, "maintenance", None, sentence)
            return row

        return self._db.retry(action)

    def delete_window(self, window_id: str) -> None:
        def action(conn: Connection) -> None:
            if not conn.execute(sa.delete(maintenance_windows).where(s.id == window_id)).rowcount:
                raise NotFound(f"no maintenance window {window_id}")

        self._db.retry(action)

    def all_windows(self) -> Sequence[Mapping[str, Any]]:
        with self._db.read() as conn:
            return [dict(row) for row in _in_force(conn, maintenance_windows, self._db.now(conn))]


def expedite(conn: Connection, now: datetime) -> None:
    """Make waiting recovery operations due now, because a switch changed."""
    waiting = o.is_open.is_(True), o.kind.like("recovery_%"), o.status != RUNNING
    conn.execute(sa.update(operations).where(*waiting, o.next_try_at > now).values(next_try_at=now))


def pauses_for(conn: Connection, segment: str, now: datetime) -> list[Switch]:
    ours = p.scope.in_([EVERYWHERE, segment_scope(segment)])
    return [_switch(row, row["scope"]) for row in _in_force(conn, pauses, now, ours)]


def windows_for(conn: Connection, incident: Incident, now: datetime) -> list[Switch]:
    rows = _in_force(conn, maintenance_windows, now, s.starts_at <= now)
    return [_switch(row, row["id"]) for row in rows if matches(row["matcher"], incident)]


def approved(conn: Connection, domain: str, now: datetime) -> bool:
    """Tell whether an operator confirmed a mass failure in the domain, or everywhere."""
    ours = p.scope.in_([APPROVED, f"{APPROVED}:{domain}"])
    return bool(_in_force(conn, pauses, now, ours))


def _in_force(conn: Connection, table: sa.Table, now: datetime, *more: Any) -> Sequence[Any]:
    lasts = sa.or_(table.c.expires_at.is_(None), table.c.expires_at > now)
    query = sa.select(table).where(lasts, *more).order_by(table.c.created_at)
    return conn.execute(query).mappings().all()


def _switch(row: Mapping[str, Any], scope: str) -> Switch:
    return Switch(scope, row["author"], row["reason"], row["expires_at"])
