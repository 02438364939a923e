# SPDX-License-Identifier: Apache-2.0
"""Alarms as rows: ingest of agents' alarm reports, operator actions, incidents, effects."""

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.alarms import central as memory
from holdfast.alarms import central as model
from holdfast.alarms.central import CENTRAL, AlarmReport, Memory
from holdfast.db import audit, timeline
from holdfast.db.booking import lock_resource
from holdfast.db.engine import Database
from holdfast.db.incident_rows import incident_of, row_of
from holdfast.db.operations import apply_work, put
from holdfast.db.switches import pauses_for
from holdfast.db.tables import agents, alarms, incidents, observations, operations
from holdfast.model import state_machines
from holdfast.model.errors import NotFound
from holdfast.model.host import same, short
from holdfast.model.incident import OPEN, RECOVERED, Incident
from holdfast.model.incident_progress import plain
from holdfast.model.observation import ALARM
from holdfast.model.operation import ERROR, Operation
from holdfast.ports.ledger import Work
from holdfast.ports.publishers import EventPublisher
from holdfast.ports.recovery import Moved
from holdfast.recovery.timeline import AlarmEvidence, Opened, StatusChanged

# The incident of an alarm whose rule requests one. The transaction of an alarm report opens,
# updates and closes the incident. The incident has no operation, therefore it triggers no
# recovery.
#
# The incident has the alarm's id: however often and by however many agents the alarm is
# reported, there is one incident. An incident that an operator closed before the alarm ended is
# not opened again.


i, b = incidents.c, observations.c


def follow(
    conn: Connection,
    publisher: EventPublisher,
    alarm_id: str,
    report: AlarmReport,
    now: datetime,
    *,
    silent: bool,
) -> str | None:
    """Open, update or close the incident of an alarm after a report; return the incident id.

    None if there is no incident. The caller holds the lock of the alarm's row.
    """
    query = sa.select(incidents).where(i.id == alarm_id)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    row = conn.execute(query).mappings().first()
    if row is not None:
        old = incident_of(row)
        if old.is_open:
            _update(conn, publisher, old, report, now)
        return old.id
    if silent or report.event != model.RAISED or model.INCIDENT not in report.actions:
        return None
    _open(conn, publisher, model.incident_of(alarm_id, report, now), report, now)
    return alarm_id


def adopt(conn: Connection, incident_id: str, row: Mapping[str, Any], now: datetime) -> None:
    """Attach earlier reports of the alarm to the incident.

    Retention keeps these reports as long as the incident's other observations, and deletes the
    incident with the last of them.
    """
    about_alarm = b.subject == row["subject"], b.kind == ALARM, b.observed_at >= row["fired_at"]
    query = sa.select(b.id, b.evidence).where(*about_alarm, b.incident_id.is_(None))
    key = row["details"]["key"]
    ids = [
        observation.id
        for observation in conn.execute(query)
        if observation.evidence.get("key") == key
    ]
    if ids:
        mine = sa.update(observations).where(b.id.in_(ids))
        conn.execute(mine.values(incident_id=incident_id, updated_at=now))


def _open(
    conn: Connection, publisher: EventPublisher, new: Incident, report: AlarmReport, now: datetime
) -> None:
    conn.execute(sa.insert(incidents).values(**row_of(new), created_at=now))
    put(conn, publisher.incident("incident.opened", new, now), now)
    timeline.write(conn, now, new.id, Opened(new.cause), AlarmEvidence(model.evidence(report)))


def _update(
    conn: Connection, publisher: EventPublisher, old: Incident, report: AlarmReport, now: datetime
) -> None:
    is_over = report.state == model.OK
    status = RECOVERED if is_over else OPEN
    state_machines.check(f"incident {old.id}", state_machines.INCIDENT, old.status, status)
    sentence = model.sentence(report)
    new = {
        "status": status,
        "sentence": sentence,
        "details": plain(model.facts(old.id, report)),
        **({"key": f"{old.subject}#{old.id}", "closed_at": now} if is_over else {}),
    }
    mine = sa.update(incidents).where(i.id == old.id)
    conn.execute(mine.values(**new, updated_at=now))
    if sentence != old.sentence:
        timeline.write(conn, now, old.id, StatusChanged(status, sentence))
    if is_over:
        row = conn.execute(sa.select(incidents).where(i.id == old.id)).mappings().one()
        put(conn, publisher.incident("incident.recovered", incident_of(row), now), now)


# Alarm reports, within the caller's transaction: the alarm's row, its notifications and its
# effects.
#
#     ingest(conn, publisher, said, now)        # an agent reports the alarm
#     catch_up(conn, publisher, row, now)       # the mute ended: send what was held back
#     end(conn, publisher, row, "ended by ann", now)
#
# A muted alarm is only written. The row keeps the state that people were last notified about
# (`alarms.central.Memory`). At the end of a mute the present state is compared with that state:
# people are not notified twice about a known state, however often the work runs.


a = alarms.c
Row = Mapping[str, Any]
#: An alarm that ended this long ago is deleted, some rows at a time.
KEPT = timedelta(days=30)
MOST_FORGOTTEN = 100
_NAMED = ("kind", "entity", "name")
_OF_DETAILS = (*_NAMED, "threshold", "summary")


def ingest(
    conn: Connection, publisher: EventPublisher, report: model.AlarmReport, now: datetime
) -> str | None:
    """Store an agent's report of an alarm, notify, and request effects; return the incident id.

    None if the alarm has no incident. A date in the future counts as now: otherwise all later
    reports would be outdated.
    """
    report = replace(report, at=min(report.at, now), first_at=min(report.first_at, now))
    old = locked(conn, a.key == report.key)
    if old is not None and _is_outdated(old, report):
        return None
    return _heed(conn, publisher, _written(conn, old, report, now), report, now)


def catch_up(conn: Connection, publisher: EventPublisher, row: Row, now: datetime) -> str:
    """Notify people about an alarm whose mute ended, and request the effects held back.

    Returns a sentence about the alarm. The caller holds the lock of the alarm's row.
    """
    what = name(row)
    if row["state"] == model.OK:
        return f"{what} is over: nothing is published"
    if is_silent(row, now):
        return f"{what} is muted until {row['muted_until'].isoformat()}"
    is_news = memory.recall(row).notified != row["state"]
    event = model.RAISED if row["state"] == model.FIRING else model.NO_DATA
    report = model.read(row["details"], row["host"], row["subject"], event)
    # also if people know the state: the rule may have begun to request an effect meanwhile
    incident_id = _heed(conn, publisher, row, report, now, tell=is_news)
    if incident_id:
        adopt(conn, incident_id, row, now)
    if not is_news:
        return f"{what} was published already"
    sentence = (
        f"the mute of {what} is over and the alarm still fires: withheld notifications and"
        " actions follow"
    )
    audit.write(conn, now, f"alarm:{row['id']}", row["project_id"] or None, sentence)
    return sentence


def end(conn: Connection, publisher: EventPublisher, row: Row, why: str, now: datetime) -> None:
    """End an alarm as if its agent had reported the end.

    Notifications, the incident and effects follow in the same way. The caller holds the lock of
    the alarm's row.
    """
    changes = {"reason": why, "event": model.CLEARED, "state": model.OK, "at": now.isoformat()}
    details = {**row["details"], **changes}
    over = model.read(details, row["host"], row["subject"], model.CLEARED)
    ingest(conn, publisher, over, now)


def locked(conn: Connection, *where: Any) -> dict[str, Any] | None:
    """Return the alarm's row, locked until the commit."""
    query = sa.select(alarms).where(*where)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    row = conn.execute(query).mappings().first()
    return None if row is None else dict(row)


def stands(conn: Connection, report: model.AlarmReport) -> bool:
    """Tell whether the alarm was raised and is not over."""
    state = conn.execute(sa.select(a.state).where(a.key == report.key)).scalar()
    return state is not None and state != model.OK


def is_silent(row: Row, now: datetime) -> bool:
    return row["muted_until"] is not None and row["muted_until"] > now


def name(row: Row) -> str:
    return f"alarm {row['rule']} of {row['subject']} on {row['host']}"


def quiet_ones(conn: Connection, like: Row, now: datetime) -> list[Row]:
    """Return muted alarms of the same rule and the same entity, longest mute first.

    The entity is compared too, because a server is the subject of all its disks and interfaces.
    """
    same = (a[name] == like[name] for name in ("host", "rule", "subject"))
    query = sa.select(alarms).where(*same, a.muted_until > now).order_by(a.muted_until.desc())
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
    publisher: EventPublisher,
    row: Row,
    report: model.AlarmReport,
    now: datetime,
    *,
    tell: bool = True,
) -> str | None:
    """Notify people and request effects after a report; return the incident id."""
    silent, known = is_silent(row, now), memory.recall(row)
    if silent and report.event != model.CLEARED:
        put(conn, [model.end_of_mute(row["id"], row["muted_until"])], now)
        return follow(conn, publisher, row["id"], report, now, silent=True)
    report = memory.as_heard(report, known)
    if (new := memory.after(report, known)) != known:
        row = remember(conn, row, new, now)
    # a muted alarm's end is sent too: some sink may display the alarm since before the mute
    if tell and not _is_taken_care_of(row, report, known):
        notice = {**payload(row), "silent": silent}
        put(conn, publisher.alarm(f"alarm.{report.event}", notice, now), now)
    for action in memory.actions_of(report, known):
        _have_done(conn, model.action_of(row["id"], report.host, action, now), now)
    return follow(conn, publisher, row["id"], report, now, silent=silent)


def _is_taken_care_of(row: Row, report: model.AlarmReport, known: Memory) -> bool:
    """Tell whether an operator has acknowledged the alarm and needs no notification.

    This holds for a repeated alarm, and for the first notification of an acknowledged alarm.
    """
    is_known = report.event == model.AGAIN or (report.event != model.CLEARED and not known.notified)
    return is_known and row["acked_at"] is not None


def _is_outdated(old: Row, report: model.AlarmReport) -> bool:
    """Tell whether the report is older than the stored state.

    The end of a firing alarm always counts: reports about a subject arrive in order, and the
    host's clock may have been wrong when the alarm began.
    """
    is_its_end = report.event == model.CLEARED and old["state"] != model.OK
    return bool(old["reported_at"] > report.at) and not is_its_end


def _have_done(conn: Connection, work: Operation, now: datetime) -> None:
    """Add the effect's operation once per alarm, after earlier operations of the same subject.

    An operation is not repeated if the alarm fires again after NO_DATA. Operations of the
    subject count whichever alarm requested them.
    """
    o = operations.c
    if conn.execute(sa.select(o.id).where(o.key == work.key)).first() is not None:
        return
    # without this lock two concurrent counts would return the same number, and both operations
    # would run at the same time
    lock_resource(conn, f"alarm:{hashlib.sha256(work.subject.encode()).hexdigest()[:32]}")
    query = sa.select(sa.func.max(o.sequence)).where(o.subject == work.subject)
    last = conn.execute(query).scalar() or 0
    following = replace(work, sequence=last + 1)
    apply_work(conn, work.subject, Work(add=(following,)), now, is_new=True)


def _written(
    conn: Connection, old: Row | None, report: model.AlarmReport, now: datetime
) -> dict[str, Any]:
    at = report.at if old is None else max(report.at, old["reported_at"])
    known = Memory() if old is None else memory.recall(old)
    values: dict[str, Any] = {
        "rules_version": report.version,
        "severity": report.severity,
        "state": report.state,
        "value": report.value,
        "reported_at": at,
        "resolved_at": at if report.state == model.OK else None,
        "details": {**report.details, CENTRAL: memory.plain(known)},
    }
    if old is not None:
        # the alarm keeps the names of its start: a sink that shows it by name must find it at
        # its end
        values["details"] |= {k: v for k, v in old["details"].items() if k in _NAMED}
        write(conn, old["id"], now, **values)
        return {**old, **values}
    _forget(conn, now)
    row = {
        **{
            "id": str(uuid.uuid4()),
            "key": report.key,
            "host": report.host,
            "subject": report.subject,
        },
        **{"project_id": report.project, "rule": report.rule, "fired_at": report.first_at},
        **{"acked_at": None, "acked_by": None, "created_at": now},
        **values,
    }
    row |= _mute(conn, row, now)
    conn.execute(sa.insert(alarms).values(**row))
    return row


def _mute(conn: Connection, row: Row, now: datetime) -> dict[str, Any]:
    """Return the mute in force for an earlier alarm of the same rule and entity."""
    longest = next(iter(quiet_ones(conn, row, now)), None)
    return {name: longest[name] if longest else None for name in ("muted_until", "muted_by")}


def _forget(conn: Connection, now: datetime) -> None:
    old = sa.select(a.id).where(a.resolved_at < now - KEPT).limit(MOST_FORGOTTEN)
    ids = conn.execute(old).scalars().all()
    if ids:
        conn.execute(sa.delete(alarms).where(a.id.in_(ids)))


def payload(row: Row) -> dict[str, Any]:
    """Return the fields of an alarm that sinks receive."""
    names = ("id", "host", "subject", "project_id", "rule", "rules_version", "severity", "state")
    dates = ("fired_at", "reported_at", "resolved_at")
    details = row["details"]
    return {
        **{name: row[name] for name in (*names, "value")},
        **{date: row[date].isoformat() if row[date] else None for date in dates},
        **{name: details.get(name) for name in _OF_DETAILS},
    }


a, o = alarms.c, operations.c


@dataclass(frozen=True)
class Wanted:
    """Filter of alarms; `project` None means all projects."""

    project: str | None = None
    host: str | None = None
    rule: str | None = None
    state: str | None = None
    active: bool = True  # only alarms that are not over
    limit: int = 100


class AlarmStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def list_all(self, wanted: Wanted) -> Sequence[Row]:
        """Return the selected alarms, newest first."""
        query = sa.select(alarms).order_by(a.fired_at.desc(), a.id)
        exact = {"project_id": wanted.project, "host": wanted.host, "rule": wanted.rule}
        exact["state"] = wanted.state
        for column, value in exact.items():
            if value is not None:
                query = query.where(a[column] == value)
        if wanted.active and wanted.state is None:
            query = query.where(a.state != model.OK)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(wanted.limit)).mappings()]

    def counts(self, project: str | None = None) -> Mapping[str, int]:
        """Return the number of firing alarms per host; `project` None means all projects."""
        query = sa.select(a.host, sa.func.count()).where(a.state != model.OK).group_by(a.host)
        if project is not None:
            query = query.where(a.project_id == project)
        with self._db.read() as conn:
            return {host: count for host, count in conn.execute(query)}

    def show(self, alarm_id: str) -> Row:
        """Return an alarm; NotFound."""
        with self._db.read() as conn:
            row = conn.execute(sa.select(alarms).where(a.id == alarm_id)).mappings().first()
        return _found(dict(row) if row else None, alarm_id)

    # operator actions

    def acknowledge(self, alarm_id: str, author: str) -> Row:
        """Acknowledge an alarm: no repeated notifications until the alarm is over."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            if known["acked_at"] is None:
                sentence = f"{author} takes care of alarm {known['rule']} of {known['subject']}"
                write(conn, alarm_id, now, acked_at=now, acked_by=author)
                _audit(conn, known, sentence, now)

        return self._answer(alarm_id, action)

    def mute(self, alarm_id: str, author: str, lasts: timedelta) -> Row:
        """Mute an alarm, and later alarms of the same rule and entity, for a time.

        A time of 0 ends a mute, and notifications and effects held back are sent and started.
        """

        def action(conn: Connection, known: Row, now: datetime) -> None:
            until = now + lasts if lasts else None
            what = f"silent until {until.isoformat()}" if until else "not silent any more"
            sentence = f"alarm {known['rule']} of {known['subject']} is {what}, by {author}"
            _audit(conn, known, sentence, now)
            # earlier muted alarms of the same entity: otherwise the next alarm would inherit
            # their mute
            others = [
                alarm["id"] for alarm in quiet_ones(conn, known, now) if alarm["id"] != alarm_id
            ]
            for row in (known, *filter(None, (locked(conn, a.id == other) for other in others))):
                quiet = {"muted_until": until, "muted_by": author if until else None}
                write(conn, row["id"], now, **quiet)
                if until is None:
                    catch_up(conn, self._db.publisher, {**row, **quiet}, now)
                elif row["state"] != model.OK:
                    put(conn, [model.end_of_mute(row["id"], until)], now)

        return self._answer(alarm_id, action)

    def end(self, alarm_id: str, author: str) -> Row:
        """End an alarm whose end the agent does not report; an ended alarm stays unchanged."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            if known["state"] != model.OK:
                _audit(conn, known, f"{author} ended {name(known)}", now)
                end(conn, self._db.publisher, known, f"ended by {author}", now)

        return self._answer(alarm_id, action)

    # used by the effects that alarms request

    def end_mute(self, alarm_id: str) -> str:
        """End the mute: send notifications and start effects held back; return a sentence.

        Raises NotFound.
        """

        def action(conn: Connection) -> str:
            row = _found(locked(conn, a.id == alarm_id), alarm_id)
            return catch_up(conn, self._db.publisher, row, self._db.now(conn))

        return self._db.retry(action)

    def paused(self) -> str:
        """Return why recovery is paused everywhere; empty if it is not."""
        with self._db.read() as conn:
            switches = pauses_for(conn, "", self._db.now(conn))
        return switches[0].reason if switches else ""

    def moves(self, alarm_id: str) -> None:
        """Record, before the move, that the alarm's server is to be moved off the host."""

        def action(conn: Connection, known: Row, now: datetime) -> None:
            new = replace(memory.recall(known), moved_at=now.isoformat())
            remember(conn, known, new, now)

        self._answer(alarm_id, action)

    def moved(self, alarm_id: str, since: datetime) -> Moved | None:
        """Return the last move of the alarm's server since then, caused by another alarm."""
        own = self.show(alarm_id)
        others = sa.select(alarms).where(a.subject == own["subject"], a.id != alarm_id)
        with self._db.read() as conn:
            rows = [dict(row) for row in conn.execute(others).mappings()]
            asked = [row for row in rows if memory.recall(row).moved_at]
            ended = _ended(conn, [row["id"] for row in asked], since)
        moved = (Moved(row["host"], row["rule"], ended.get(row["id"], since)) for row in asked)
        return max(
            (move for move in moved if move.at > since), key=lambda move: move.at, default=None
        )

    def others_ahead(self, alarm_id: str) -> str:
        """Return another firing alarm of the rule on the host that also keeps the host disabled.

        Empty if there is none.
        """
        own = self.show(alarm_id)
        rows = self.list_all(Wanted(host=own["host"], rule=own["rule"]))
        others = (row for row in rows if row["id"] != alarm_id)
        return next((row["id"] for row in others if "repair_ahead" in memory.recall(row).asked), "")

    def _answer(self, alarm_id: str, action: Callable[[Connection, Row, datetime], None]) -> Row:
        """Run the action with the alarm's locked row; return the row afterwards, or NotFound."""

        def whole(conn: Connection) -> Row:
            known = _found(locked(conn, a.id == alarm_id), alarm_id)
            action(conn, known, self._db.now(conn))
            return _found(locked(conn, a.id == alarm_id), alarm_id)

        return self._db.retry(whole)


def _found(row: Row | None, alarm_id: str) -> Row:
    if row is None:
        raise NotFound(f"no alarm {alarm_id[:80]}")
    return row


def _audit(conn: Connection, row: Row, sentence: str, now: datetime) -> None:
    audit.write(conn, now, f"alarm:{row['id']}", row["project_id"] or None, sentence)


def _ended(conn: Connection, ids: Sequence[str], since: datetime) -> dict[str, datetime]:
    """Return when the moves of these alarms ended, without failed moves."""
    keys = {model.action_of(alarm_id, "", "migrate_away", since).key: alarm_id for alarm_id in ids}
    query = sa.select(o.key, o.updated_at).where(o.key.in_(keys), o.updated_at >= since)
    rows = conn.execute(query.where(o.status != ERROR)).all() if keys else []
    return {keys[row.key]: row.updated_at for row in rows}


# Alarms of hosts whose agents do not come back: no agent would ever report their end.


a, g = alarms.c, agents.c


def end_orphans(database: Database, before: datetime, most: int) -> int:
    """End up to `most` alarms of agents silent since `before`; return the number ended.

    Each alarm is ended in its own transaction.
    """
    lives = sa.exists().where(g.host == a.host, g.seen_at >= before)
    old = sa.func.coalesce(a.updated_at, a.created_at) < before
    query = sa.select(a.id).where(a.state != model.OK, old, ~lives).limit(most)
    with database.read() as conn:
        ids = conn.execute(query).scalars().all()
    return sum(_end(database, alarm_id, before) for alarm_id in ids)


def _end(database: Database, alarm_id: str, before: datetime) -> bool:
    """End an orphaned alarm; False if its agent is back or the alarm is over."""

    def action(conn: Connection) -> bool:
        row = locked(conn, a.id == alarm_id)
        if row is None or row["state"] == model.OK:
            return False
        heard = _heard_at(conn, row)
        if heard >= before:
            return False
        now = database.now(conn)
        why = f"its agent has not been heard of since {heard:%Y-%m-%d %H:%M:%S} UTC"
        sentence = f"{name(row)} is over: {why}"
        audit.write(conn, now, f"alarm:{alarm_id}", row["project_id"] or None, sentence)
        end(conn, database.publisher, row, why, now)
        return True

    return database.retry(action)


def _heard_at(conn: Connection, row: Mapping[str, Any]) -> datetime:
    """Return the time of the agent's last heartbeat or of the alarm's last update, if later.

    Both are times of the database's clock.
    """
    alike = g.host.startswith(short(row["host"]), autoescape=True)
    rows = conn.execute(sa.select(g.host, g.seen_at).where(alike)).all()
    beats: list[datetime] = [agent.seen_at for agent in rows if same(agent.host, row["host"])]
    heard_at: datetime = row["updated_at"] or row["created_at"]
    return max([heard_at, *beats])
