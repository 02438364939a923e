# SPDX-License-Identifier: Apache-2.0
"""Console login sessions, keyed by the hash of a cookie; each row has an expiry time."""

from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.engine import Database
from holdfast.db.tables import sessions

s = sessions.c


@dataclass(frozen=True)
class Session:
    user_id: str
    proof: str  # derived from the password used at login


class SessionStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, session_id: str, user: str, proof: str, lasts: timedelta) -> None:
        """Store a session, and delete expired sessions."""

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            conn.execute(sa.delete(sessions).where(s.expires_at <= now))
            row = {"id": session_id, "user_id": user, "proof": proof}
            conn.execute(sa.insert(sessions).values(**row, created_at=now, expires_at=now + lasts))

        self._db.retry(action)

    def get(self, session_id: str) -> Session | None:
        with self._db.read() as conn:
            now = self._db.now(conn)
            mine = sa.select(s.user_id, s.proof).where(s.id == session_id, s.expires_at > now)
            row = conn.execute(mine).first()
        return None if row is None else Session(row.user_id, row.proof)

    def remove(self, session_id: str) -> bool:
        """Delete a session; tell whether the session existed.

        The store reads first, so that invented session ids cause no write.
        """

        def action(conn: Connection) -> bool:
            return conn.execute(sa.delete(sessions).where(s.id == session_id)).rowcount > 0

        with self._db.read() as conn:
            row = conn.execute(sa.select(s.id).where(s.id == session_id)).first()
        return row is not None and self._db.retry(action)
