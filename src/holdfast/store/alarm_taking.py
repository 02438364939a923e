# SPDX-License-Identifier: Apache-2.0
"""What is said of an alarm, within somebody's transaction: kept in its row, and with it who is told
and what is to be done.

    take(conn, herald, said, now)          # an agent says so
    catch_up(conn, herald, row, now)       # its silence is over: what it kept back
    end(conn, herald, row, "ended by ann", now)

An alarm that is silent is only written down. What people were told last is remembered with it
(`model.alarm_memory`), so that at the end of a silence how it is can be compared with that: what
they know already is not told twice, however often somebody looks.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import alarm as model
from holdfast.model import alarm_memory as memory
from holdfast.model.alarm_memory import CENTRAL, Memory
from holdfast.model.operation import Operation
from holdfast.ports.herald import Herald
from holdfast.ports.ledger import Work
from holdfast.store import audit
from holdfast.store.alarm_incidents import adopt, follow
from holdfast.store.booking import take_thing
from holdfast.store.tables import alarms, operations
from holdfast.store.work import apply_work, put

a = alarms.c
Row = Mapping[str, Any]
#: One that is over for so long is forgotten, some at a time.
KEPT = timedelta(days=30)
MOST_FORGOTTEN = 100
_NAMED = ("kind", "entity", "name")
_OF_DETAILS = (*_NAMED, "threshold", "summary")


def take(conn: Connection, herald: Herald, said: model.Said, now: datetime) -> str | None:
    """Keep what an agent says of an alarm, and follow it. The id of its incident, if it has one. A
    date in the future counts as now: else all that is said later would be outdated."""
    said = replace(said, at=min(said.at, now), first_at=min(said.first_at, now))
    old = locked(conn, a.key == said.key)
    if old is not None and _is_outdated(old, said):
        return None
    return _heed(conn, herald, _written(conn, old, said, now), said, now)


def catch_up(conn: Connection, herald: Herald, row: Row, now: datetime) -> str:
    """Tell of one that is not silent any more what people have not heard, and have done what it
    asks for; the sentence about it. The row is ours until the commit."""
    what = name(row)
    if row["state"] == model.OK:
        return f"{what} is over: nothing is told"
    if is_silent(row, now):
        return f"{what} is silent until {row['silent_until'].isoformat()}"
    is_news = memory.recall(row).told != row["state"]
    event = model.RAISED if row["state"] == model.FIRING else model.NO_DATA
    said = model.read(row["details"], row["host"], row["subject"], event)
    # of one that was told too: its rule may have begun to ask for something meanwhile
    incident_id = _heed(conn, herald, row, said, now, tell=is_news)
    if incident_id:
        adopt(conn, incident_id, row, now)
    if not is_news:
        return f"{what} was told already"
    sentence = f"the silence of {what} is over and it stands: what was kept back is told and done"
    audit.write(conn, now, f"alarm:{row['id']}", row["project_id"] or None, sentence)
    return sentence


def end(conn: Connection, herald: Herald, row: Row, why: str, now: datetime) -> None:
    """As if its agent had said so: who is told, its incident and its deeds follow in the same way.
    The row is ours until the commit."""
    said = {"reason": why, "event": model.CLEARED, "state": model.OK, "at": now.isoformat()}
    details = {**row["details"], **said}
    over = model.read(details, row["host"], row["subject"], model.CLEARED)
    take(conn, herald, over, now)


def locked(conn: Connection, *where: Any) -> dict[str, Any] | None:
    """The row, ours until the commit."""
    query = sa.select(alarms).where(*where)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    found = conn.execute(query).mappings().first()
    return None if found is None else dict(found)


def stands(conn: Connection, said: model.Said) -> bool:
    """Whether that alarm was raised and is not over."""
    state = conn.execute(sa.select(a.state).where(a.key == said.key)).scalar()
    return state is not None and state != model.OK


def is_silent(row: Row, now: datetime) -> bool:
    return row["silent_until"] is not None and row["silent_until"] > now


def name(row: Row) -> str:
    return f"alarm {row['rule']} of {row['subject']} on {row['host']}"


def quiet_ones(conn: Connection, like: Row, now: datetime) -> list[Row]:
    """Alarms of the same rule about the same whose silence is in force, the longest first: a server
    is the subject of all its disks and interfaces."""
    same = (a[one] == like[one] for one in ("host", "rule", "subject"))
    query = sa.select(alarms).where(*same, a.silent_until > now).order_by(a.silent_until.desc())
    entity = like["details"]["entity"]
    rows = conn.execute(query).mappings()
    return [dict(row) for row in rows if row["details"]["entity"] == entity]


def write(conn: Connection, alarm_id: str, now: datetime, **values: Any) -> None:
    mine = sa.update(alarms).where(a.id == alarm_id)
    conn.execute(mine.values(**values, updated_at=now))


def remember(conn: Connection, row: Row, new: Memory, now: datetime) -> dict[str, Any]:
    details = {**row["details"], CENTRAL: memory.plain(new)}
    write(conn, row["id"], now, details=details)
    return {**row, "details": details}


def _heed(
    conn: Connection,
    herald: Herald,
    row: Row,
    said: model.Said,
    now: datetime,
    *,
    tell: bool = True,
) -> str | None:
    """Who is told and what is to be done, now that this was said."""
    silent, known = is_silent(row, now), memory.recall(row)
    if silent and said.event != model.CLEARED:
        put(conn, [model.end_of_silence(row["id"], row["silent_until"])], now)
        return follow(conn, herald, row["id"], said, now, silent=True)
    said = memory.as_heard(said, known)
    if (new := memory.after(said, known)) != known:
        row = remember(conn, row, new, now)
    # the end of one that is silent too: somewhere it may stand since before the silence
    if tell and not _is_taken_care_of(row, said, known):
        told = {**_told(row), "silent": silent}
        put(conn, herald.alarm(f"alarm.{said.event}", told, now), now)
    for action in memory.deeds(said, known):
        _have_done(conn, model.action_of(row["id"], said.host, action, now), now)
    return follow(conn, herald, row["id"], said, now, silent=silent)


def _is_taken_care_of(row: Row, said: model.Said, known: Memory) -> bool:
    """Whether somebody does, who need not be told of it: again, or for the first time."""
    is_known = said.event == model.AGAIN or (said.event != model.CLEARED and not known.told)
    return is_known and row["acked_at"] is not None


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
    known = Memory() if old is None else memory.recall(old)
    values: dict[str, Any] = {
        "rules_version": said.version,
        "severity": said.severity,
        "state": said.state,
        "value": said.value,
        "told_at": at,
        "resolved_at": at if said.state == model.OK else None,
        "details": {**said.details, CENTRAL: memory.plain(known)},
    }
    if old is not None:
        # called as when it began: whoever shows it by its name has to find it at its end
        values["details"] |= {k: v for k, v in old["details"].items() if k in _NAMED}
        write(conn, old["id"], now, **values)
        return {**old, **values}
    _forget(conn, now)
    row = {
        **{"id": str(uuid.uuid4()), "key": said.key, "host": said.host, "subject": said.subject},
        **{"project_id": said.project, "rule": said.rule, "fired_at": said.first_at},
        **{"acked_at": None, "acked_by": None, "created_at": now},
        **values,
    }
    row |= _silence(conn, row, now)
    conn.execute(sa.insert(alarms).values(**row))
    return row


def _silence(conn: Connection, row: Row, now: datetime) -> dict[str, Any]:
    """One that is in force for an earlier alarm of the same rule about the same."""
    longest = next(iter(quiet_ones(conn, row, now)), None)
    return {one: longest[one] if longest else None for one in ("silent_until", "silent_by")}


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
        **{one: row[one] for one in (*names, "value")},
        **{one: row[one].isoformat() if row[one] else None for one in dates},
        **{one: details.get(one) for one in _OF_DETAILS},
    }
