# SPDX-License-Identifier: Apache-2.0
"""Alarms as rows: what agents say of them, what people answer, and what comes of it, each written
with that from which it follows."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import alarm as model
from holdfast.model.errors import NotFound
from holdfast.model.operation import Operation
from holdfast.ports.herald import Herald
from holdfast.ports.ledger import Work
from holdfast.store import audit
from holdfast.store.alarm_incidents import follow
from holdfast.store.booking import take_thing
from holdfast.store.database import Database
from holdfast.store.switches import pauses_for
from holdfast.store.tables import alarms, operations
from holdfast.store.work import apply_work, put

a = alarms.c
Row = Mapping[str, Any]
#: One that is over for so long is forgotten, some at a time.
KEPT = timedelta(days=30)
MOST_FORGOTTEN = 100
_NAMED = ("kind", "entity", "name")
_OF_DETAILS = (*_NAMED, "threshold", "summary")


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
        for name, value in exact.items():
            if value is not None:
                query = query.where(a[name] == value)
        if wanted.standing and wanted.state is None:
            query = query.where(a.state != model.OK)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(wanted.limit)).mappings()]

    def show(self, alarm_id: str) -> Row:
        """NotFound."""
        with self._db.read() as conn:
            return _row(conn, alarm_id)

    def acknowledge(self, alarm_id: str, author: str) -> Row:
        """Somebody takes care of it: it is not told again until it is over."""

        def action(conn: Connection) -> Row:
            now = self._db.now(conn)
            known = _row(conn, alarm_id)
            if known["acked_at"] is None:
                said = f"{author} takes care of alarm {known['rule']} of {known['subject']}"
                _set(conn, alarm_id, now, acked_at=now, acked_by=author)
                audit.write(conn, now, f"alarm:{alarm_id}", known["project_id"] or None, said)
            return _row(conn, alarm_id)

        return self._db.retry(action)

    def silence(self, alarm_id: str, author: str, lasts: timedelta) -> Row:
        """Nothing is told of it, nor of the next ones of the same rule about the same, until then;
        no time at all ends a silence."""

        def action(conn: Connection) -> Row:
            now = self._db.now(conn)
            known = _row(conn, alarm_id)
            until = now + lasts if lasts else None
            _set(conn, alarm_id, now, silent_until=until, silent_by=author if until else None)
            what = f"silent until {until.isoformat()}" if until else "not silent any more"
            said = f"alarm {known['rule']} of {known['subject']} is {what}, by {author}"
            audit.write(conn, now, f"alarm:{alarm_id}", known["project_id"] or None, said)
            return _row(conn, alarm_id)

        return self._db.retry(action)

    def paused(self) -> str:
        """Why recovery is paused everywhere."""
        with self._db.read() as conn:
            found = pauses_for(conn, "", self._db.now(conn))
        return found[0].reason if found else ""


# within somebody's transaction


def take(conn: Connection, herald: Herald, said: model.Said, now: datetime) -> str | None:
    """Keep what an agent says of an alarm; with it who is told, and what is to be done. The id of
    its incident, if it has one."""
    query = sa.select(alarms).where(a.key == said.key)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    found = conn.execute(query).mappings().first()
    old = None if found is None else dict(found)
    if old is not None and _is_outdated(old, said):
        return None
    row = _written(conn, old, said, now)
    silent = row["silent_until"] is not None and row["silent_until"] > now
    # the end of one that is silent too: somewhere it may stand since before the silence
    wanted = not silent or said.event == model.CLEARED
    if wanted and not (said.event == model.AGAIN and row["acked_at"] is not None):
        told = {**_told(row), "silent": silent}
        put(conn, herald.alarm(f"alarm.{said.event}", told, now), now)
    for action in model.deeds(said):
        if not silent or action == model.OVER:
            _have_done(conn, model.action_of(row["id"], said.host, action, now), now)
    return follow(conn, herald, row["id"], said, now, silent=silent)


def _is_outdated(old: Row, said: model.Said) -> bool:
    """Whether it was said before what is known. Of one that stands its end counts always: reports
    of one subject come in order, and the clock of a host may have been wrong when it began."""
    is_its_end = said.event == model.CLEARED and old["state"] != model.OK
    return bool(old["told_at"] > said.at) and not is_its_end


def _have_done(conn: Connection, work: Operation, now: datetime) -> None:
    """Once for an alarm, also if that is told again after nothing was known of it; after all that
    was asked for before of the same subject, by whatever alarm."""
    o = operations.c
    if conn.execute(sa.select(o.id).where(o.key == work.key)).first() is not None:
        return
    # two that count at once would both come next, and be done at the same time
    take_thing(conn, f"alarm:{hashlib.sha256(work.subject.encode()).hexdigest()[:32]}")
    query = sa.select(sa.func.max(o.sequence)).where(o.subject == work.subject)
    last = conn.execute(query).scalar() or 0
    following = replace(work, sequence=last + 1)
    apply_work(conn, work.subject, Work(add=(following,)), now, is_new=True)


def _written(conn: Connection, old: Row | None, said: model.Said, now: datetime) -> dict[str, Any]:
    at = said.at if old is None else max(said.at, old["told_at"])
    values: dict[str, Any] = {
        "rules_version": said.version,
        "severity": said.severity,
        "state": said.state,
        "value": said.value,
        "told_at": at,
        "resolved_at": at if said.state == model.OK else None,
        "details": dict(said.details),
    }
    if old is not None:
        # called as when it began: whoever shows it by its name has to find it at its end
        values["details"] |= {k: v for k, v in old["details"].items() if k in _NAMED}
        _set(conn, old["id"], now, **values)
        return {**old, **values}
    _forget(conn, now)
    row = {
        **{"id": str(uuid.uuid4()), "key": said.key, "host": said.host, "subject": said.subject},
        **{"project_id": said.project, "rule": said.rule, "fired_at": said.first_at},
        **{"acked_at": None, "acked_by": None, "created_at": now},
        **_silence(conn, said, now),
        **values,
    }
    conn.execute(sa.insert(alarms).values(**row))
    return row


def _silence(conn: Connection, said: model.Said, now: datetime) -> dict[str, Any]:
    """One that is in force for an earlier alarm of the same rule about the same: a server is the
    subject of all its disks and interfaces."""
    same = a.host == said.host, a.rule == said.rule, a.subject == said.subject
    query = sa.select(a.silent_until, a.silent_by, a.details).where(*same, a.silent_until > now)
    for row in conn.execute(query.order_by(a.silent_until.desc())):
        if row.details["entity"] == said.details["entity"]:
            return {"silent_until": row.silent_until, "silent_by": row.silent_by}
    return {"silent_until": None, "silent_by": None}


def _forget(conn: Connection, now: datetime) -> None:
    old = sa.select(a.id).where(a.resolved_at < now - KEPT).limit(MOST_FORGOTTEN)
    ids = conn.execute(old).scalars().all()
    if ids:
        conn.execute(sa.delete(alarms).where(a.id.in_(ids)))


def _told(row: Row) -> dict[str, Any]:
    """What sinks hear of it."""
    names = ("id", "host", "subject", "project_id", "rule", "rules_version", "severity", "state")
    dates = ("fired_at", "told_at", "resolved_at")
    details = row["details"]
    return {
        **{name: row[name] for name in (*names, "value")},
        **{name: row[name].isoformat() if row[name] else None for name in dates},
        **{name: details.get(name) for name in _OF_DETAILS},
    }


def _row(conn: Connection, alarm_id: str) -> dict[str, Any]:
    row = conn.execute(sa.select(alarms).where(a.id == alarm_id)).mappings().first()
    if row is None:
        raise NotFound(f"no alarm {alarm_id[:80]}")
    return dict(row)


def _set(conn: Connection, alarm_id: str, now: datetime, **values: Any) -> None:
    mine = sa.update(alarms).where(a.id == alarm_id)
    conn.execute(mine.values(**values, updated_at=now))
