# SPDX-License-Identifier: Apache-2.0
"""Alarms as rows: what is known of them, what people answer, and what those who work on them ask.
What agents say of them is taken in by `alarm_taking`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import alarm as model
from holdfast.model import alarm_memory as memory
from holdfast.model.errors import NotFound
from holdfast.model.operation import ERROR
from holdfast.ports.alarms import Moved
from holdfast.store import audit
from holdfast.store.alarm_taking import catch_up, end, locked, name, quiet_ones, remember, write
from holdfast.store.database import Database
from holdfast.store.switches import pauses_for
from holdfast.store.tables import alarms, operations
from holdfast.store.work import put

a, o = alarms.c, operations.c
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which alarms; `project` None: of all."""

    project: str | None = None
    host: str | None = None
    rule: str | None = None
    state: str | None = None
    standing: bool = True  # only those that are not over
    limit: int = 100


class AlarmStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def list_all(self, wanted: Wanted) -> Sequence[Row]:
        """The newest first."""
        query = sa.select(alarms).order_by(a.fired_at.desc(), a.id)
        exact = {"project_id": wanted.project, "host": wanted.host, "rule": wanted.rule}
        exact["state"] = wanted.state
        for column, value in exact.items():
            if value is not None:
                query = query.where(a[column] == value)
        if wanted.standing and wanted.state is None:
            query = query.where(a.state != model.OK)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(wanted.limit)).mappings()]

    def counts(self, project: str | None = None) -> Mapping[str, int]:
        """Of each host that has any, how many stand there; None: of all projects."""
        query = sa.select(a.host, sa.func.count()).where(a.state != model.OK).group_by(a.host)
        if project is not None:
            query = query.where(a.project_id == project)
        with self._db.read() as conn:
            return {host: count for host, count in conn.execute(query)}

    def show(self, alarm_id: str) -> Row:
        """NotFound."""
        with self._db.read() as conn:
            row = conn.execute(sa.select(alarms).where(a.id == alarm_id)).mappings().first()
        return _found(dict(row) if row else None, alarm_id)

    # what people answer

    def acknowledge(self, alarm_id: str, author: str) -> Row:
        """Somebody takes care of it: it is not told again until it is over."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            if known["acked_at"] is None:
                said = f"{author} takes care of alarm {known['rule']} of {known['subject']}"
                write(conn, alarm_id, now, acked_at=now, acked_by=author)
                _audit(conn, known, said, now)

        return self._answer(alarm_id, action)

    def silence(self, alarm_id: str, author: str, lasts: timedelta) -> Row:
        """Nothing is told of it, nor of the next ones of the same rule about the same, until then;
        no time at all ends a silence, and what it kept back is told and done."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            until = now + lasts if lasts else None
            what = f"silent until {until.isoformat()}" if until else "not silent any more"
            said = f"alarm {known['rule']} of {known['subject']} is {what}, by {author}"
            _audit(conn, known, said, now)
            # those before it, whose silence it has: the next one must not get theirs
            others = [one["id"] for one in quiet_ones(conn, known, now) if one["id"] != alarm_id]
            for row in (known, *filter(None, (locked(conn, a.id == one) for one in others))):
                quiet = {"silent_until": until, "silent_by": author if until else None}
                write(conn, row["id"], now, **quiet)
                if until is None:
                    catch_up(conn, self._db.herald, {**row, **quiet}, now)
                elif row["state"] != model.OK:
                    put(conn, [model.end_of_silence(row["id"], until)], now)

        return self._answer(alarm_id, action)

    def end(self, alarm_id: str, author: str) -> Row:
        """Somebody knows that it is over, though its agent does not say so; of one that is over
        already nothing changes."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            if known["state"] != model.OK:
                _audit(conn, known, f"{author} ended {name(known)}", now)
                end(conn, self._db.herald, known, f"ended by {author}", now)

        return self._answer(alarm_id, action)

    # what those ask who do what alarms ask for

    def speak_up(self, alarm_id: str) -> str:
        """Its silence is over: tell and have done what was kept back; the sentence about it.
        NotFound."""

        def action(conn: Connection) -> str:
            row = _found(locked(conn, a.id == alarm_id), alarm_id)
            return catch_up(conn, self._db.herald, row, self._db.now(conn))

        return self._db.retry(action)

    def paused(self) -> str:
        """Why recovery is paused everywhere."""
        with self._db.read() as conn:
            found = pauses_for(conn, "", self._db.now(conn))
        return found[0].reason if found else ""

    def moves(self, alarm_id: str) -> None:
        """Its server is about to be moved off the host; written before it is."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            new = replace(memory.recall(known), moved_at=now.isoformat())
            remember(conn, known, new, now)

        self._answer(alarm_id, action)

    def moved(self, alarm_id: str, since: datetime) -> Moved | None:
        """The last time since then that another alarm moved the server of this one."""
        own = self.show(alarm_id)
        others = sa.select(alarms).where(a.subject == own["subject"], a.id != alarm_id)
        with self._db.read() as conn:
            rows = [dict(row) for row in conn.execute(others).mappings()]
            asked = [row for row in rows if memory.recall(row).moved_at]
            ended = _ended(conn, [row["id"] for row in asked], since)
        moved = (Moved(row["host"], row["rule"], ended.get(row["id"], since)) for row in asked)
        return max((one for one in moved if one.at > since), key=lambda one: one.at, default=None)

    def others_ahead(self, alarm_id: str) -> str:
        """Another alarm of the same rule that stands there, and for which the host is kept out of
        use too; empty: none."""
        own = self.show(alarm_id)
        rows = self.list_all(Wanted(host=own["host"], rule=own["rule"]))
        others = (row for row in rows if row["id"] != alarm_id)
        return next((row["id"] for row in others if "repair_ahead" in memory.recall(row).asked), "")

    def _answer(self, alarm_id: str, action: Callable[[Connection, Row, datetime], None]) -> Row:
        """Do it with the row, which is ours until the commit; how it is after that. NotFound."""

        def whole(conn: Connection) -> Row:
            known = _found(locked(conn, a.id == alarm_id), alarm_id)
            action(conn, known, self._db.now(conn))
            return _found(locked(conn, a.id == alarm_id), alarm_id)

        return self._db.retry(whole)


def _found(row: Row | None, alarm_id: str) -> Row:
    if row is None:
        raise NotFound(f"no alarm {alarm_id[:80]}")
    return row


def _audit(conn: Connection, row: Row, said: str, now: datetime) -> None:
    audit.write(conn, now, f"alarm:{row['id']}", row["project_id"] or None, said)


def _ended(conn: Connection, ids: Sequence[str], since: datetime) -> dict[str, datetime]:
    """Of these alarms whose servers were to be moved, when that ended; not of those that failed."""
    keys = {model.action_of(one, "", "migrate_away", since).key: one for one in ids}
    query = sa.select(o.key, o.updated_at).where(o.key.in_(keys), o.updated_at >= since)
    rows = conn.execute(query.where(o.status != ERROR)).all() if keys else []
    return {keys[row.key]: row.updated_at for row in rows}
