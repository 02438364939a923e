# SPDX-License-Identifier: Apache-2.0
"""Failover segments and their hosts in the database.

A transaction that changes a segment or its hosts first locks the rows of the hosts concerned,
in the order of their ids. The admission of a notification does the same. Therefore "in use"
stays valid until the commit.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.db import audit
from holdfast.db.engine import Columns, Database, Page, fetch
from holdfast.db.host_rows import by_name, columns, write_traits
from holdfast.db.operations import put
from holdfast.db.rows import Mapper
from holdfast.db.tables import hosts, incidents, notifications, segment_hosts, segments
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.model.host import normalise
from holdfast.model.notification import ERROR, NEW, RUNNING
from holdfast.model.segment import Segment, SegmentHost
from holdfast.ports.cloud import CloudHost
from holdfast.ports.publishers import (
    END,
    SEGMENT,
    SEGMENT_HOST,
    START,
    Event,
    EventPublisher,
    Fault,
    Values,
)
from holdfast.ports.publishers import ERROR as ERROR_EVENT

# Shared with the list of hosts and with notifications, within a transaction.


h, m, n, i = hosts.c, segment_hosts.c, notifications.c, incidents.c


def know(conn: Connection, host: CloudHost, region: str, now: datetime) -> int:
    """Return the host's id in table `hosts`, adding or updating the row.

    A row that is not enrolled is updated with the cloud's data; reservation itself keeps
    enrolled rows up to date.
    """
    name = normalise(host.service_host)
    query = sa.select(h.id, h.uuid, h.name, h.enrolled)
    query = query.where(sa.or_(h.uuid == host.uuid, by_name(host.service_host)))
    rows = conn.execute(query.order_by(h.id)).all()
    same = [row for row in rows if row.uuid == host.uuid] or [r for r in rows if r.name == name]
    known = next(iter(same or (rows if len(rows) == 1 else [])), None)
    if known is not None and known.enrolled:
        return int(known.id)
    values = {**columns(host), "uuid": host.uuid, "region": region, "touched_at": now}
    if known is not None:
        changed = sa.update(hosts).where(h.id == known.id, h.enrolled.is_(False))
        conn.execute(changed.values(**values, updated_at=now, generation=h.generation + 1))
        host_id = int(known.id)
    else:
        (host_id,) = conn.execute(
            sa.insert(hosts).values(**values, created_at=now)
        ).inserted_primary_key or (0,)
    write_traits(conn, host_id, host.traits)
    return host_id


def in_use(conn: Connection, segment_id: int) -> bool:
    """Tell whether a notification about a host of the segment is being processed.

    A notification in error whose incident is closed is history.
    """
    mine = sa.select(m.uuid).where(m.segment_id == segment_id)
    over = sa.select(i.id).where(i.id == n.incident_id, i.closed_at.is_not(None)).exists()
    busy = sa.or_(n.status.in_([NEW, RUNNING]), sa.and_(n.status == ERROR, ~over))
    query = sa.select(n.id).where(n.segment_host_uuid.in_(mine), busy).limit(1)
    return conn.execute(query).first() is not None


# Changes of segments, their hosts and reports are published in the transaction of the change: a
# start event and an end event. A refused change is published in a transaction of its own.


def done(
    conn: Connection,
    publisher: EventPublisher,
    what: tuple[str, str],
    values: tuple[Values, Values],
    now: datetime,
) -> None:
    """Publish the start and the end of an action.

    `what` is noun and action; `values` are the fields before and after.
    """
    before, after = values
    put(conn, publisher.contract(Event(*what, START, before), now), now)
    put(conn, publisher.contract(Event(*what, END, after), now), now)


def refused(
    database: Database, what: tuple[str, str], values: Values, error: HoldfastError
) -> None:
    now, publisher = database.now(), database.publisher
    fault = Fault(type(error).__name__, error.message)
    news = (
        *publisher.contract(Event(*what, START, values), now),
        *publisher.contract(Event(*what, ERROR_EVENT, values, fault), now),
    )
    if news:
        database.retry(lambda conn: put(conn, news, now))


s, m, h = segments.c, segment_hosts.c, hosts.c
T = TypeVar("T")
SEGMENT_KEYS: Columns = {
    "id": s.id,
    "uuid": s.uuid,
    "name": s.name,
    "description": s.description,
    "service_type": s.service_type,
    "recovery_method": s.recovery_method,
    "enabled": s.enabled,
    "created_at": s.created_at,
    "updated_at": s.updated_at,
    "deleted": None,
    "deleted_at": None,
}
HOST_KEYS: Columns = {
    "id": m.id,
    "uuid": m.uuid,
    "name": h.service_host,
    "type": m.type,
    "control_attributes": m.control_attributes,
    "reserved": m.reserved,
    "on_maintenance": m.on_maintenance,
    "created_at": m.created_at,
    "updated_at": m.updated_at,
    "failover_segment_id": None,
    "deleted": None,
    "deleted_at": None,
}
_FREE = ("description", "control_attributes")
#: Defaults of a segment and of a segment host.
_AS_NEW = {"description": None, "enabled": True}
_AS_JOINED = {"reserved": False, "on_maintenance": False}
_MEMBER = Mapper(SegmentHost, segment_hosts)
_OF_SEGMENT = tuple(column.label(f"segment_{column.name}") for column in segments.columns)
_MEMBERS = (
    sa.select(*_MEMBER.columns, h.service_host.label("name"), *_OF_SEGMENT)
    .select_from(segment_hosts)
    .join(hosts, h.id == m.host_id)
    .join(segments, s.id == m.segment_id)
)


class SegmentStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    # reads

    def list_all(self, where: Mapping[str, Any], page: Page) -> Sequence[Segment]:
        """Return segments with these column values."""
        query = sa.select(segments).where(*(s[name] == value for name, value in where.items()))
        with self._db.read() as conn:
            return [Segment(**row) for row in fetch(conn, query, page, SEGMENT_KEYS)]

    def segment(self, ref: str) -> Segment:
        """Return a segment by uuid or integer id; NotFound."""
        with self._db.read() as conn:
            return _segment(conn, ref)

    def hosts(self, ref: str, where: Mapping[str, Any], page: Page) -> Sequence[SegmentHost]:
        """Return hosts of a segment with these values; `name` matches short and full names."""
        wanted = [
            by_name(value) if name == "name" else m[name] == value for name, value in where.items()
        ]
        with self._db.read() as conn:
            query = _MEMBERS.where(m.segment_id == _segment(conn, ref).id, *wanted)
            return [_member(row) for row in fetch(conn, query, page, HOST_KEYS)]

    def host(self, ref: str, host_ref: str) -> SegmentHost:
        """Return a host of a segment; NotFound if the segment or the host does not exist."""
        with self._db.read() as conn:
            return _host(conn, _segment(conn, ref), host_ref)

    def member(self, name: str) -> SegmentHost | None:
        """Return a segment host by short or full name; Conflict if the name is ambiguous."""
        with self._db.read() as conn:
            return find(conn, name)

    def by_uuid(self, host_uuid: str) -> SegmentHost | None:
        with self._db.read() as conn:
            row = conn.execute(_MEMBERS.where(m.uuid == host_uuid)).mappings().first()
        return None if row is None else _member(row)

    def members(self, segment_uuid: str) -> Sequence[SegmentHost]:
        return self._members(s.uuid == segment_uuid)

    def all_members(self) -> Sequence[SegmentHost]:
        return self._members()

    def _members(self, *where: Any) -> Sequence[SegmentHost]:
        with self._db.read() as conn:
            rows = conn.execute(_MEMBERS.where(*where).order_by(m.id)).mappings()
            return [_member(row) for row in rows]

    # writes

    def create(self, uuid: str, values: Mapping[str, Any]) -> Segment:
        what, asked = (SEGMENT, "create"), {**_AS_NEW, **values, "uuid": uuid}

        def action(conn: Connection) -> Segment:
            now = self._db.now(conn)
            _check_name(conn, values["name"], besides=0)
            conn.execute(sa.insert(segments).values(uuid=uuid, created_at=now, **values))
            audit.write(conn, now, f"segment:{uuid}", None, f"segment {values['name']} made")
            segment = _segment(conn, uuid)
            done(conn, self._db.publisher, what, (asked, vars(segment)), now)
            return segment

        return self._try(action, what, asked)

    def change(self, ref: str, values: Mapping[str, Any]) -> Segment:
        what, asked = (SEGMENT, "update"), {**vars(self.segment(ref)), **values}

        def action(conn: Connection) -> Segment:
            now = self._db.now(conn)
            segment = self._ours(conn, ref)
            if "name" in values:
                _check_name(conn, values["name"], besides=segment.id)
            new = {**values, "updated_at": now}
            conn.execute(sa.update(segments).where(s.id == segment.id).values(**new))
            sentence = f"segment {segment.name}: {_told(values)}"
            audit.write(conn, now, f"segment:{segment.uuid}", None, sentence)
            changed = _segment(conn, segment.uuid)
            done(conn, self._db.publisher, what, (asked, vars(changed)), now)
            return changed

        return self._try(action, what, asked)

    def delete(self, ref: str) -> None:
        """Delete a segment; its hosts leave the segment."""
        what, asked = (SEGMENT, "delete"), vars(self.segment(ref))

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            segment = self._ours(conn, ref)
            conn.execute(sa.delete(segment_hosts).where(m.segment_id == segment.id))
            conn.execute(sa.delete(segments).where(s.id == segment.id))
            sentence = f"segment {segment.name} deleted"
            audit.write(conn, now, f"segment:{segment.uuid}", None, sentence)
            done(conn, self._db.publisher, what, (asked, vars(segment)), now)

        self._try(action, what, asked)

    def know(self, host: CloudHost, region: str) -> int:
        """Implement `ports.recovery.KnownHosts`."""
        return self._db.retry(lambda conn: know(conn, host, region, self._db.now(conn)))

    def add_host(self, uuid: str, ref: str, host_id: int, values: Mapping[str, Any]) -> SegmentHost:
        what, asked = (SEGMENT_HOST, "create"), self._asked(uuid, ref, host_id, values)

        def action(conn: Connection) -> SegmentHost:
            now = self._db.now(conn)
            segment = _segment(conn, ref)
            _check_alone(conn, host_id, besides=0)
            row = {**values, "host_id": host_id, "segment_id": segment.id, "created_at": now}
            conn.execute(sa.insert(segment_hosts).values(uuid=uuid, **row))
            segment_host = _host(conn, segment, uuid)
            sentence = f"host {segment_host.name} joined segment {segment.name}"
            audit.write(conn, now, f"segment:{segment.uuid}", None, sentence)
            done(conn, self._db.publisher, what, (asked, vars(segment_host)), now)
            return segment_host

        return self._try(action, what, asked)

    def change_host(self, ref: str, host_ref: str, values: Mapping[str, Any]) -> SegmentHost:
        """Change a segment host; `host_id` among the values replaces the host by another."""
        what, asked = (SEGMENT_HOST, "update"), {**vars(self.host(ref, host_ref)), **values}

        def action(conn: Connection) -> SegmentHost:
            now = self._db.now(conn)
            segment, host = self._our_host(conn, ref, host_ref)
            if "host_id" in values:
                _check_alone(conn, values["host_id"], besides=host.id)
            new = {**values, "updated_at": now}
            conn.execute(sa.update(segment_hosts).where(m.id == host.id).values(**new))
            changed = _host(conn, segment, host.uuid)
            sentence = f"host {host.name} of segment {segment.name}: {_told(values, changed.name)}"
            audit.write(conn, now, f"segment:{segment.uuid}", None, sentence)
            done(conn, self._db.publisher, what, (asked, vars(changed)), now)
            return changed

        return self._try(action, what, asked)

    def delete_host(self, ref: str, host_ref: str) -> None:
        what, asked = (SEGMENT_HOST, "delete"), vars(self.host(ref, host_ref))

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            segment, host = self._our_host(conn, ref, host_ref)
            conn.execute(sa.delete(segment_hosts).where(m.id == host.id))
            sentence = f"host {host.name} left segment {segment.name}"
            audit.write(conn, now, f"segment:{segment.uuid}", None, sentence)
            done(conn, self._db.publisher, what, (asked, vars(host)), now)

        self._try(action, what, asked)

    def _try(self, action: Callable[[Connection], T], what: tuple[str, str], asked: Values) -> T:
        """Run the action, and publish a refused action too."""
        try:
            return self._db.retry(action)
        except (Conflict, InvalidInput) as error:
            refused(self._db, what, asked, error)
            raise

    def _asked(self, uuid: str, ref: str, host_id: int, values: Values) -> Values:
        """Return the known fields of a host that is to join a segment."""
        with self._db.read() as conn:
            segment = _segment(conn, ref)
            name = conn.execute(sa.select(h.service_host).where(h.id == host_id)).scalar()
        return {**_AS_JOINED, **values, "uuid": uuid, "segment": segment, "name": name or ""}

    def _ours(self, conn: Connection, ref: str) -> Segment:
        """Lock the rows of the segment and its hosts until the commit; Conflict while in use."""
        segment = _segment(conn, ref, lock=True)
        mine = m.segment_id == segment.id
        conn.execute(sa.select(m.id).where(mine).order_by(m.id).with_for_update()).all()
        if in_use(conn, segment.id):
            raise Conflict(
                f"Failover segment {segment.uuid} is in-use to process notifications; wait until"
                " they have ended"
            )
        return segment

    def _our_host(self, conn: Connection, ref: str, host_ref: str) -> tuple[Segment, SegmentHost]:
        segment = _segment(conn, ref)
        host = _host(conn, segment, host_ref)
        mine = sa.select(m.id).where(m.segment_id == segment.id).order_by(m.id).with_for_update()
        if host.id not in conn.execute(mine).scalars().all():
            raise _no_host(host_ref)
        if in_use(conn, segment.id):
            raise Conflict(
                f"Host {host.uuid} can't be changed: it is in-use to process notifications of its"
                " segment; wait until they have ended"
            )
        return segment, host


def find(conn: Connection, name: str) -> SegmentHost | None:
    """Return the segment host with this host name, within the caller's transaction."""
    rows = conn.execute(_MEMBERS.where(by_name(name)).order_by(m.id)).mappings().all()
    members = [_member(row) for row in rows]
    exact = [segment_host for segment_host in members if segment_host.key == normalise(name)]
    if len(exact or members) > 1:
        names = ", ".join(segment_host.name for segment_host in members)
        raise Conflict(f"{name} means several hosts ({names}): use the full name")
    return next(iter(exact or members), None)


def set_member(
    conn: Connection,
    host_uuid: str,
    publisher: EventPublisher,
    *,
    reserved: bool | None = None,
    on_maintenance: bool | None = None,
    now: datetime,
) -> None:
    """Change the flags of a segment host within the caller's transaction; None keeps a flag.

    A host that has left its segment is ignored.
    """
    given = {"reserved": reserved, "on_maintenance": on_maintenance}
    values = {name: value for name, value in given.items() if value is not None}
    update = sa.update(segment_hosts).where(m.uuid == host_uuid)
    if conn.execute(update.values(**values, updated_at=now)).rowcount == 0:
        return
    changed = conn.execute(_MEMBERS.where(m.uuid == host_uuid)).mappings().one()
    its = vars(_member(changed))
    done(conn, publisher, (SEGMENT_HOST, "update"), (its, its), now)


def _segment(conn: Connection, ref: str, *, lock: bool = False) -> Segment:
    query = sa.select(segments).where(_named(ref, segments))
    row = conn.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise NotFound(f"No failover segment with uuid {ref[:80]}")
    return Segment(**row)


def _host(conn: Connection, segment: Segment, ref: str) -> SegmentHost:
    query = _MEMBERS.where(m.segment_id == segment.id, _named(ref, segment_hosts))
    row = conn.execute(query).mappings().first()
    if row is None:
        raise _no_host(ref)
    return _member(row)


def _no_host(ref: str) -> NotFound:
    return NotFound(f"No host with uuid {ref[:80]} in this segment")


def _named(ref: str, table: sa.Table) -> sa.ColumnElement[bool]:
    """Match a row by uuid or integer id.

    openstacksdk's objects carry the integer id and send it back.
    """
    if ref.isascii() and ref.isdigit() and len(ref) < 10:
        return table.c.id == int(ref)
    return table.c.uuid == ref


def _member(row: RowMapping) -> SegmentHost:
    its = {column.name: row[f"segment_{column.name}"] for column in segments.columns}
    return _MEMBER.named(row, name=row["name"], segment=Segment(**its))


def _check_name(conn: Connection, name: str, *, besides: int) -> None:
    taken = sa.select(s.id).where(s.name == name, s.id != besides)
    if conn.execute(taken).first() is not None:
        raise Conflict(f"A failover segment with name {name} already exists; choose another name")


def _check_alone(conn: Connection, host_id: int, *, besides: int) -> None:
    name = conn.execute(sa.select(h.service_host).where(h.id == host_id)).scalar()
    if name is None:
        raise InvalidInput(f"host {host_id} is not in the list of hosts")
    taken = sa.select(s.name).join(segment_hosts, m.segment_id == s.id)
    where = conn.execute(taken.where(m.host_id == host_id, m.id != besides)).scalar()
    if where is not None:
        raise Conflict(f"A host with name {name} already exists in segment {where}")


def _told(values: Mapping[str, Any], name: str = "") -> str:
    """Describe the changed fields; values of free text are left out: long, or possibly secret."""
    changes = [
        f"{key} = {value}" for key, value in values.items() if key not in (*_FREE, "host_id")
    ]
    changes += [f"{key} changed" for key in _FREE if key in values]
    return ", ".join([*changes, *([f"name = {name}"] if "host_id" in values else [])])
