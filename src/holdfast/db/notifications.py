# SPDX-License-Identifier: Apache-2.0
"""Notifications of the instance HA contract: admission, processing and end.

One transaction admits a report and locks the row of its host in the segment. Therefore, of
several identical reports at once, one is kept. The same transaction writes the operation that
handles the report, and any manager can claim that operation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.db import segments
from holdfast.db.engine import Columns, Database, Page, fetch
from holdfast.db.incident_rows import incident_of
from holdfast.db.operations import apply_work, put
from holdfast.db.segments import find
from holdfast.db.tables import (
    hosts,
    incidents,
    notifications,
    operations,
    segment_hosts,
    steps,
    vmoves,
)
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.model.incident import NOVA_COMPUTE, PROCESS, PROCESS_REPORT, RECOVERED, RUNNING
from holdfast.model.notification import COMPUTE_HOST, NEW, OPEN, VM, NewNotification, Notification
from holdfast.model.operation import Operation
from holdfast.model.segment import SegmentHost
from holdfast.ports.ledger import Work
from holdfast.ports.publishers import END, ERROR, REPORT, START, Event, EventPublisher, Fault
from holdfast.recovery.liveness import FailureReport

n, v, m, i, o, t = (
    notifications.c,
    vmoves.c,
    segment_hosts.c,
    incidents.c,
    operations.c,
    steps.c,
)
KIND = "notification"
#: Status of a report whose recovery failed.
IN_ERROR = "error"
NOTIFICATION_KEYS: Columns = {
    "id": n.id,
    "notification_uuid": n.uuid,
    "type": n.type,
    "source_host_uuid": n.segment_host_uuid,
    "failover_segment_uuid": n.segment_uuid,
    "generated_time": n.generated_time,
    "status": n.status,
    "message": n.message,
    "created_at": n.created_at,
    "updated_at": n.updated_at,
    "deleted": None,
    "deleted_at": None,
}
VMOVE_KEYS: Columns = {
    "id": v.id,
    "uuid": v.uuid,
    "instance_uuid": v.server_id,
    "instance_name": v.server_name,
    "source_host": v.source_host,
    "dest_host": v.dest_host,
    "start_time": v.started_at,
    "end_time": v.ended_at,
    "type": v.type,
    "status": v.status,
    "message": v.message,
    "created_at": v.created_at,
    "updated_at": v.updated_at,
    "notification_uuid": None,
    "deleted": None,
    "deleted_at": None,
}
_VMOVES = sa.select(
    *(column for column in VMOVE_KEYS.values() if column is not None), v.attempts
).select_from(vmoves)


@dataclass(frozen=True)
class Progress:
    """Progress of a notification's recovery: its operation and the finished steps."""

    kind: str
    status: str
    sentence: str
    at: datetime | None
    steps: Sequence[Mapping[str, Any]]


class NotificationStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    # reads

    def list_all(
        self, where: Mapping[str, Any], page: Page, *, since: datetime | None = None
    ) -> Sequence[Notification]:
        """Return notifications with these column values, generated at or after `since`."""
        wanted = [n[name] == value for name, value in where.items()]
        if since is not None:
            wanted.append(n.generated_time >= since)
        with self._db.read() as conn:
            rows = fetch(conn, sa.select(notifications).where(*wanted), page, NOTIFICATION_KEYS)
            return [Notification(**row) for row in rows]

    def notification(self, ref: str) -> Notification:
        """Return a notification by uuid or integer id; NotFound."""
        with self._db.read() as conn:
            return _notification(conn, ref)

    def hostnames(self, host_uuids: Sequence[str]) -> Mapping[str, str]:
        """Return host names by uuid, for hosts still in a segment."""
        query = sa.select(m.uuid, hosts.c.service_host).join(hosts, hosts.c.id == m.host_id)
        with self._db.read() as conn:
            rows = conn.execute(query.where(m.uuid.in_(set(host_uuids))))
            return {uuid: name for uuid, name in rows}

    def progress(self, notification: Notification) -> Progress | None:
        """Return the progress of the recovery; None if there is no recovery."""
        if notification.incident_id is None:
            return None
        key = f"recovery/{notification.incident_id}"
        query = sa.select(o.id, o.kind, o.status, o.sentence, o.updated_at).where(o.key == key)
        with self._db.read() as conn:
            row = conn.execute(query).first()
            if row is None:
                return None
            its = sa.select(t.name, t.status, t.finished_at, t.sentence)
            its = its.where(t.operation_id == row.id).order_by(t.position)
            done = [dict(step) for step in conn.execute(its).mappings()]
        return Progress(row.kind, row.status, row.sentence, row.updated_at, done)

    def vmoves(
        self, notification: Notification, where: Mapping[str, Any], page: Page
    ) -> Sequence[Mapping[str, Any]]:
        wanted = [v[name] == value for name, value in where.items()]
        query = _VMOVES.where(_of(notification), *wanted)
        with self._db.read() as conn:
            return [dict(row) for row in fetch(conn, query, page, VMOVE_KEYS)]

    def vmove(self, notification: Notification, ref: str) -> Mapping[str, Any]:
        """Return a move of the notification; NotFound."""
        own = v.id == int(ref) if _is_number(ref) else v.uuid == ref
        with self._db.read() as conn:
            row = conn.execute(_VMOVES.where(_of(notification), own)).mappings().first()
        if row is None:
            raise NotFound(f"No vmove with uuid {ref[:80]} of notification {notification.uuid}")
        return dict(row)

    # writes

    def admit(self, id_: str, new: NewNotification, *, interval: timedelta) -> Notification:
        """Store a report and its operation.

        InvalidInput if the host is in no segment; Conflict if the host is on maintenance, or if
        the report is a duplicate.
        """

        def action(conn: Connection) -> Notification:
            now = self._db.now(conn)
            member = _taken(conn, new)
            _check_new(conn, member, new, interval, now)
            conn.execute(
                sa.insert(notifications).values(
                    uuid=id_,
                    type=new.type,
                    segment_host_uuid=member.uuid,
                    segment_uuid=member.segment.uuid,
                    generated_time=new.generated_time,
                    payload=dict(new.payload),
                    status=NEW,
                    reporter=new.reporter[:255],
                    created_at=now,
                )
            )
            work = _work(id_, now)
            apply_work(conn, work.subject, Work(add=(work,)), now, is_new=True)
            notification = _notification(conn, id_)
            shown = {
                name: value for name, value in vars(notification).items() if name != "reporter"
            }
            asked = {name: value for name, value in shown.items() if name != "id"}
            segments.done(conn, self._db.publisher, (REPORT, "create"), (asked, shown), now)
            return notification

        return self._db.retry(action)


# within the caller's transaction


def attach(
    conn: Connection,
    publisher: EventPublisher,
    uuid: str,
    incident_id: str | None,
    status: str,
    message: str,
    now: datetime,
) -> None:
    """Set incident, status and message of a notification.

    The notification is then being processed, or has ended with this status.
    """
    values = {"incident_id": incident_id, "status": status, "message": message, "updated_at": now}
    its = n.uuid == uuid
    conn.execute(sa.update(notifications).where(its).values(**values))
    _publish(conn, publisher, START, its, now)
    if status not in OPEN:
        _publish(conn, publisher, _PHASES.get(status, END), its, now)


def end(
    conn: Connection,
    publisher: EventPublisher,
    incident_id: str,
    status: str,
    message: str,
    now: datetime,
) -> None:
    """End all open notifications of an incident with this status."""
    open_ = sa.select(n.id).where(n.incident_id == incident_id, n.status.in_(OPEN))
    its = n.id.in_(conn.execute(open_).scalars().all())
    values = {"status": status, "message": message, "updated_at": now}
    conn.execute(sa.update(notifications).where(its).values(**values))
    _publish(conn, publisher, _PHASES.get(status, END), its, now)


def again(
    conn: Connection, publisher: EventPublisher, incident_id: str, message: str, now: datetime
) -> None:
    """Set failed notifications of an incident to running again."""
    badly = sa.select(n.id).where(n.incident_id == incident_id, n.status.in_(_PHASES))
    its = n.id.in_(conn.execute(badly).scalars().all())
    values = {"status": "running", "message": message, "updated_at": now}
    conn.execute(sa.update(notifications).where(its).values(**values))
    _publish(conn, publisher, START, its, now)


#: Event phase of a failed notification's end; END for any other status.
_PHASES = {"error": ERROR, "failed": ERROR}


def _publish(
    conn: Connection,
    publisher: EventPublisher,
    phase: str,
    its: sa.ColumnElement[bool],
    now: datetime,
) -> None:
    for row in conn.execute(sa.select(notifications).where(its)).mappings():
        fault = Fault("RecoveryFailed", row["message"] or "") if phase == ERROR else None
        stands = {"status": "running"} if phase == START else {}
        event = Event(REPORT, "process", phase, {**row, **stands}, fault)
        put(conn, publisher.contract(event, now), now)


def failure_reports(conn: Connection, incident_id: str, type_: str) -> list[FailureReport]:
    """Return the notifications that report the failure of an incident's subject."""
    mine = sa.select(notifications).where(n.incident_id == incident_id, n.type == type_)
    return [
        FailureReport(
            source=row["reporter"] or "a notification",
            received_at=row["created_at"],
            withdrawn_at=_withdrawn_at(conn, row["segment_host_uuid"], type_, row),
        )
        for row in conn.execute(mine.order_by(n.id)).mappings()
    ]


def runs_again(conn: Connection, host_uuid: str, process: str, since: datetime) -> bool:
    """Tell whether any source reported since then that the process of the host runs."""
    query = sa.select(n.payload).where(
        n.segment_host_uuid == host_uuid, n.type == PROCESS_REPORT, n.created_at >= since
    )
    payloads = conn.execute(query).scalars().all()
    return any((p.get("event"), p.get("process_name")) == ("STARTED", process) for p in payloads)


def _withdrawn_at(conn: Connection, host_uuid: str, type_: str, row: RowMapping) -> datetime | None:
    """Return when the same source reported, after this report, that the subject runs.

    The order of receipt decides, whatever the dates say.
    """
    later = sa.select(n.payload, n.created_at).where(
        n.segment_host_uuid == host_uuid,
        n.type == type_,
        n.id > row["id"],
        n.reporter.is_not_distinct_from(row["reporter"]),
    )
    process = row["payload"].get("process_name")
    for payload, at in conn.execute(later.order_by(n.id)):
        if payload.get("event") == "STARTED" and payload.get("process_name") == process:
            return at  # type: ignore[no-any-return]
    return None


def superseded(conn: Connection, row: RowMapping) -> bool:
    """Tell whether the same source reported earlier, with a later date, that the host runs.

    The report is then probably old and arrived late.
    """
    before = sa.select(n.payload).where(
        n.segment_host_uuid == row["segment_host_uuid"],
        n.type == row["type"],
        n.id < row["id"],
        n.generated_time > row["generated_time"],
        n.reporter.is_not_distinct_from(row["reporter"]),
    )
    return any(payload.get("event") == "STARTED" for payload in conn.execute(before).scalars())


def lost_compute(conn: Connection, member: SegmentHost) -> bool:
    """Tell whether the host is on maintenance because its nova-compute died.

    Such a host may still die altogether, and its guests may die too. While the nova-compute
    incident is running or recovered, no operator can have set the maintenance: that incident would
    have left the host alone.
    """
    subject = f"{PROCESS}:{member.key}:{NOVA_COMPUTE}"
    query = sa.select(incidents).where(i.subject == subject)
    row = conn.execute(query.order_by(i.opened_at.desc()).limit(1)).mappings().first()
    if row is None or row["status"] not in (RUNNING, RECOVERED):
        return False
    return not incident_of(row).host_progress.back_at


def _taken(conn: Connection, new: NewNotification) -> SegmentHost:
    """Return the segment host of the report, its row locked until the commit."""
    hostname = new.hostname
    member = find(conn, hostname)
    if member is not None:
        query = sa.select(m.on_maintenance).where(m.id == member.id).with_for_update()
        row = conn.execute(query).first()
        counts = new.type in (COMPUTE_HOST, VM) or new.payload.get("event") == "STARTED"
        if row is not None and row.on_maintenance and not (counts and lost_compute(conn, member)):
            raise Conflict(
                f"Host {member.name} is on maintenance: notifications about it are not taken;"
                " end the maintenance first"
            )
        if row is not None:
            return member
    raise InvalidInput(
        f"Host with name {hostname} could not be found: it is in no segment; add it to one first"
    )


def _check_new(
    conn: Connection,
    member: SegmentHost,
    new: NewNotification,
    interval: timedelta,
    now: datetime,
) -> None:
    """Raise Conflict if the report is a duplicate.

    A date in the future counts as the time of receipt. A report dated before a recovery of its
    subject is no duplicate: the sender's clock may be behind, and the intake asks other sources.
    """
    generated_at, at = new.generated_time, min(new.generated_time, now)
    dated = sa.case((n.generated_time > n.created_at, n.created_at), else_=n.generated_time)
    lately = sa.and_(n.status.in_(OPEN), dated >= at - interval)
    columns = n.id, n.uuid, n.payload, n.generated_time, n.incident_id, n.reporter, n.status
    like = sa.select(*columns).where(
        n.segment_host_uuid == member.uuid,
        n.type == new.type,
        sa.or_(n.generated_time == generated_at, lately),
    )
    for row in conn.execute(like.order_by(n.id)).mappings():
        if row["payload"] != dict(new.payload):
            continue
        if new.type != VM and (row["reporter"] or "") != new.reporter[:255]:
            continue  # each source withdraws its own report only
        if row["generated_time"] != generated_at and _withdrawn_at(
            conn, member.uuid, new.type, row
        ):
            continue  # that failure is over, and the same happened again
        again = row["generated_time"] != generated_at and new.type == VM
        if again and row["status"] == IN_ERROR and _ended_before(conn, row, at):
            continue  # its recovery failed and is over: this is a new crash
        if row["generated_time"] == generated_at or not _ordered_again(
            conn, row["incident_id"], at
        ):
            raise _duplicate(member, new, f"notification {row['uuid']} says the same")


def _ended_before(conn: Connection, row: RowMapping, at: datetime) -> bool:
    """Tell whether the incident of the report was closed before `at`."""
    closed = conn.execute(sa.select(i.closed_at).where(i.id == row["incident_id"])).scalar()
    return closed is not None and closed < at


def _ordered_again(conn: Connection, incident_id: str | None, at: datetime) -> bool:
    """Tell whether the incident had the subject running before `at`: then it died again."""
    row = conn.execute(sa.select(incidents).where(i.id == incident_id)).mappings().first()
    if row is None:
        return False
    incident = incident_of(row)
    when = incident.verified_at or incident.guest_progress.down_at
    return when is not None and when < at


def recovered_since(conn: Connection, subject: str, at: datetime) -> tuple[str, str] | None:
    """Return the incident that recovered the subject after `at`, and a sentence."""
    # An incident is verified before it is closed.
    later = sa.select(incidents).where(i.subject == subject, i.closed_at >= at)
    for incident in map(incident_of, conn.execute(later).mappings()):
        if incident.verified_at and incident.verified_at >= at:
            when = incident.verified_at.isoformat()
            return incident.id, f"incident {incident.id} has recovered it since, {when}"
    return None


def _duplicate(member: SegmentHost, new: NewNotification, why: str) -> Conflict:
    return Conflict(
        f"Notification received from host {member.name} of type '{new.type}' is a duplicate: {why}"
    )


def _work(uuid: str, now: datetime) -> Operation:
    subject = f"{KIND}:{uuid}"
    return Operation(uuid, KIND, subject, f"{KIND}/{uuid}", due_at=now, next_try_at=now)


def _notification(conn: Connection, ref: str) -> Notification:
    own = n.id == int(ref) if _is_number(ref) else n.uuid == ref
    row = conn.execute(sa.select(notifications).where(own)).mappings().first()
    if row is None:
        raise NotFound(f"No notification with uuid {ref[:80]}")
    return Notification(**row)


def _is_number(ref: str) -> bool:
    return ref.isascii() and ref.isdigit() and len(ref) < 10


def _of(notification: Notification) -> sa.ColumnElement[bool]:
    """Select the moves of a notification; moves of a host belong to all its notifications."""
    own = v.notification_uuid == notification.uuid
    if notification.incident_id is None:
        return own
    return sa.or_(own, v.incident_id == notification.incident_id)
