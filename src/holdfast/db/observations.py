# SPDX-License-Identifier: Apache-2.0
"""Observations as rows: observer, subject, state and time. The API writes them itself.

No manager is needed to write them. A monitor's report about a host's health is a vote: the same
transaction makes the host's single operation due that counts the votes. An agent's report of a
failure gets its own operation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.alarms import central
from holdfast.alarms.central import AlarmReport
from holdfast.db.alarms import ingest, stands
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.host_rows import by_name
from holdfast.db.operations import apply_work, put
from holdfast.db.tables import hosts, observations, operations, registered_monitors
from holdfast.model import observation as observations_model
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise, short
from holdfast.model.incident import PROCESS
from holdfast.model.operation import WAITING
from holdfast.model.votes import ALERTED, FAILED, HOST_HEALTH, MonitorReport, work_of
from holdfast.ports.ledger import Work
from holdfast.ports.publishers import EventPublisher
from holdfast.recovery.liveness import FailureReport

b, h, o, r = observations.c, hosts.c, operations.c, registered_monitors.c
HOST, SERVER = "host:", "server:"
#: Reports read to find a guest's state: few observers report about a guest.
LATELY = 50
#: Time of the observation: by the monitor's clock, or the database's if the monitor's is ahead.
_AT = sa.case((b.observed_at > b.created_at, b.created_at), else_=b.observed_at)
_LATEST = (
    sa.func.row_number()
    .over(partition_by=(b.subject, b.observer), order_by=(_AT.desc(), b.created_at.desc(), b.id))
    .label("place")
)
#: Reports of registered monitors since their registration: before that any client may have used
#: their names.
_WORDS = (
    sa.select(observations, _AT.label("at"), _LATEST)
    .join(registered_monitors, r.observer == b.observer)
    .where(b.kind == HOST_HEALTH, b.created_at >= r.created_at)
)


class ObservationStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(
        self, id_: str, values: Mapping[str, Any], *, ask_cloud: bool = False
    ) -> tuple[Mapping[str, Any], bool]:
        """Write an observation; return the row, and whether it is new.

        The same key of the same observer is the same report. InvalidInput for an alarm without
        content.

        `ask_cloud`: an alarm about a server counts only if the cloud has the server on the
        reporting host. An operation asks the cloud and ingests the alarm.
        """
        report = _alarm(values)

        def action(conn: Connection) -> tuple[Mapping[str, Any], bool]:
            now = self._db.now(conn)
            known = conn.execute(
                sa.select(observations).where(
                    b.observer == values["observer"], b.key == values["key"]
                )
            )
            row = known.mappings().first()
            if row is None:
                made = {"observed_at": now, **values, "id": id_, "created_at": now}
                conn.execute(sa.insert(observations).values(**made))
            if is_vote(values) and is_registered(conn, values["observer"]):
                _count(conn, values, now)
            elif (
                row is None
                and values["kind"] in observations_model.STATES
                and values["state"] == FAILED
            ):
                work = observations_model.work_of(id_, now)
                apply_work(conn, work.subject, Work(add=(work,)), now, is_new=True)
            elif row is None and report is not None and ask_cloud and not _may_follow(conn, report):
                _queue(conn, id_, report, now)
            elif row is None and report is not None:
                ingest_alarm(conn, self._db.publisher, id_, report, now)
            stored = (
                row or conn.execute(sa.select(observations).where(b.id == id_)).mappings().one()
            )
            if row is None and (
                event := observations_model.announced(values["kind"], values["state"])
            ):
                put(conn, self._db.publisher.observation(event, dict(stored), now), now)
            return dict(stored), row is None

        return self._db.retry(action)

    def list_all(
        self,
        *,
        subject: str | None = None,
        host: str | None = None,
        kind: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> Sequence[Mapping[str, Any]]:
        """Return observations, newest first; with `host` those about the host or made there."""
        query = sa.select(observations).order_by(b.observed_at.desc())
        for column, value in ((b.subject, subject), (b.kind, kind), (b.state, state)):
            if value:
                query = query.where(column == value)
        if host:
            own = normalise(host)
            there = b.evidence["host"].as_string() == own
            query = query.where(sa.or_(b.subject == f"{HOST}{own}", there))
        if since:
            query = query.where(b.observed_at >= since)
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(limit)).mappings()]

    def words(self, names: Iterable[str]) -> Mapping[str, Sequence[MonitorReport]]:
        """Return the last report of each registered monitor about the hosts, by host name."""
        with self._db.read() as conn:
            return words(conn, names)


def _alarm(values: Mapping[str, Any]) -> AlarmReport | None:
    """Parse the alarm of a report; None for other reports, InvalidInput without content."""
    if values["kind"] != observations_model.ALARM:
        return None
    evidence = values["evidence"]
    host = normalise(str(evidence.get("host", "")))
    return central.read(evidence, host, values["subject"], values["state"])


def is_vote(values: Mapping[str, Any]) -> bool:
    return bool(values["kind"] == HOST_HEALTH and values["subject"].startswith(HOST))


# within the caller's transaction


def is_registered(conn: Connection, observer: str) -> bool:
    """Tell whether the host monitor is registered and therefore votes."""
    mine = sa.select(r.observer).where(r.observer == observer)
    return conn.execute(mine).first() is not None


def observation(conn: Connection, id_: str) -> observations_model.Observed:
    """Return an observation; NotFound."""
    row = conn.execute(sa.select(observations).where(b.id == id_)).first()
    if row is None:
        raise NotFound(f"no observation {id_}")
    about = row.id, row.observer, row.subject, row.kind, row.state, row.since
    return observations_model.Observed(*about, row.evidence or {})


def guest_recovered_since(
    conn: Connection,
    subject: str,
    reported: Iterable[datetime] = (),
    *,
    host: str,
    observers: Sequence[str] = (),
) -> str:
    """Return which observer reports the guest running again, and since when; else empty.

    Empty if a later report says that the guest failed. Among reports of the same observer the
    last received counts, because an observer reports in order. Among several observers, and
    notifications (`reported`), the later date counts.

    Only reports from `host`, where the cloud has the guest, and from `observers`, whose failure
    reports were accepted, count: an agent's token permits no reports about guests of other
    hosts.
    """
    states = b.state.in_((observations_model.FAILED, observations_model.WELL))
    heard = sa.or_(b.observer.in_(observers), _seen_on(host))
    query = sa.select(b.observer, b.state, b.since, b.created_at)
    query = query.where(b.subject == subject, states, heard)
    last: dict[str, Any] = {}
    query = query.where(b.kind == observations_model.GUEST).order_by(
        b.created_at.desc(), b.since.desc()
    )
    for row in conn.execute(query.limit(LATELY)):
        last.setdefault(row.observer, row)
    at = {who: min(row.since, row.created_at) for who, row in last.items()}
    up = [who for who in last if last[who].state == observations_model.WELL]
    best = max(up, key=at.__getitem__, default=None)
    failed = [*reported, *(at[who] for who in last if who not in up)]
    if best is None or any(when > at[best] for when in failed):
        return ""
    return f"it runs again since {at[best]:%Y-%m-%d %H:%M:%S} UTC, says {best}"


def ingest_alarm(
    conn: Connection, publisher: EventPublisher, id_: str, report: AlarmReport, now: datetime
) -> None:
    """Ingest the alarm of a report, and attach the report to the alarm's incident."""
    incident_id = ingest(conn, publisher, report, now)
    belong(conn, [id_] if incident_id else [], incident_id or "", now)


def ingest_asked_alarm(
    conn: Connection, publisher: EventPublisher, id_: str, now: datetime, *, is_there: bool
) -> bool:
    """Ingest the alarm of a report after asking the cloud; False if it has no effect.

    A firing alarm is followed to its end, also after its server left the host.
    """
    row = conn.execute(sa.select(observations).where(b.id == id_)).mappings().one()
    report = _alarm(dict(row))
    if report is None or not (is_there or stands(conn, report)):
        return False
    ingest_alarm(conn, publisher, id_, report, now)
    return True


def _may_follow(conn: Connection, report: AlarmReport) -> bool:
    """Tell whether the alarm can be ingested without asking the cloud.

    True if the alarm is firing (the cloud was asked then) and no earlier report waits for the
    cloud's answer.
    """
    if not report.subject.startswith(SERVER):
        return True
    waits = o.subject == observations_model.alarm_queue(report.key), o.is_open.is_(True)
    return stands(conn, report) and conn.execute(sa.select(o.id).where(*waits)).first() is None


def _queue(conn: Connection, id_: str, report: AlarmReport, now: datetime) -> None:
    """Add the operation that asks the cloud; reports of an alarm stay in order."""
    subject = observations_model.alarm_queue(report.key)
    last = conn.execute(sa.select(sa.func.max(o.sequence)).where(o.subject == subject)).scalar()
    work = replace(observations_model.work_of(id_, now), subject=subject, sequence=(last or 0) + 1)
    apply_work(conn, subject, Work(add=(work,)), now, is_new=True)


def failed_by(conn: Connection, incident_id: str) -> Sequence[str]:
    """Return observers whose reports of a guest's failure led to the incident."""
    mine = (
        b.incident_id == incident_id,
        b.kind == observations_model.GUEST,
        b.state == observations_model.FAILED,
    )
    return conn.execute(sa.select(b.observer).where(*mine).distinct()).scalars().all()


def failure_reports(conn: Connection, incident_id: str) -> list[FailureReport]:
    """Return the agents' reports that the process of an incident stopped.

    A later report of the same agent that the process runs withdraws them; order of receipt.
    """
    mine = b.incident_id == incident_id, b.state == observations_model.FAILED
    rows = conn.execute(sa.select(observations).where(*mine, b.kind == PROCESS)).mappings().all()
    return [
        FailureReport(row["observer"], row["created_at"], withdrawn_at=_runs_since(conn, row))
        for row in rows
    ]


def runs_again(conn: Connection, subject: str, since: datetime) -> bool:
    """Tell whether an agent reported since then that the process runs."""
    well = b.subject == subject, b.state == observations_model.WELL, b.created_at >= since
    return conn.execute(sa.select(b.id).where(*well).limit(1)).first() is not None


def _runs_since(conn: Connection, failed: RowMapping) -> datetime | None:
    """Return when the observer reported, after this failure, that the process runs."""
    same_subject = b.observer == failed["observer"], b.subject == failed["subject"]
    later = sa.or_(
        b.created_at > failed["created_at"],
        sa.and_(b.created_at == failed["created_at"], b.since > failed["since"]),
    )
    runs = sa.select(sa.func.min(b.created_at)).where(
        *same_subject, later, b.state == observations_model.WELL
    )
    return conn.execute(runs).scalar()


def _seen_on(host: str) -> sa.ColumnElement[bool]:
    """Build the condition for reports from the host: `model.host.same` in SQL."""
    own, there = normalise(host), sa.func.lower(b.evidence["host"].as_string())
    if not own:
        return sa.false()
    if "." in own:
        return there.in_((own, short(own)))
    return sa.or_(there == own, there.startswith(f"{own}.", autoescape=True))


def words(conn: Connection, names: Iterable[str]) -> Mapping[str, Sequence[MonitorReport]]:
    reportses: dict[str, list[MonitorReport]] = {}
    for some in portions(sorted({f"{HOST}{name}" for name in names})):
        newest = _WORDS.where(b.subject.in_(some)).subquery()
        for row in conn.execute(sa.select(newest).where(newest.c.place == 1)):
            about = row.id, row.observer, row.state, row.at, row.since
            word = MonitorReport(*about, row.evidence or {}, row.incident_id)
            reportses.setdefault(row.subject.removeprefix(HOST), []).append(word)
    return reportses


def known_name(conn: Connection, name: str) -> str:
    """Return our name of the host; the same name if no host or several hosts match."""
    own = normalise(name)
    names = conn.execute(sa.select(h.name).where(by_name(own))).scalars().all()
    return names[0] if len(names) == 1 else own


def belong(conn: Connection, ids: Sequence[str], incident_id: str, now: datetime) -> None:
    """Attach these observations to the incident."""
    mine = sa.update(observations).where(b.id.in_(ids), b.incident_id.is_(None))
    if ids:
        conn.execute(mine.values(incident_id=incident_id, updated_at=now))


def _count(conn: Connection, values: Mapping[str, Any], now: datetime) -> None:
    """Make the operation due that counts the votes about the host.

    A count under way starts again, because its data is old. A report of a healthy host matters
    only to a count under way.
    """
    work = work_of(known_name(conn, values["subject"].removeprefix(HOST)), now)
    again = {
        "status": WAITING,
        "owner": None,
        "claim_until": None,
        "epoch": o.epoch + 1,
        "due_at": now,
        "next_try_at": now,
        "updated_at": now,
    }
    going_on = sa.update(operations).where(o.key == work.key, o.is_open.is_(True))
    if conn.execute(going_on.values(**again)).rowcount:
        return
    if values["state"] in (FAILED, ALERTED):
        apply_work(conn, work.subject, Work(put=(work,)), now)
