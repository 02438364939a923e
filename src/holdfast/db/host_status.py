# SPDX-License-Identifier: Apache-2.0
"""Host status and parked messages: `ports.recovery.HostStatuses` in SQL."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import audit
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.host_rows import by_name
from holdfast.db.operations import reschedule_now
from holdfast.db.rows import Mapper
from holdfast.db.tables import hosts, operations, parked_messages, segment_hosts, segments
from holdfast.hoststatus.status import HostStatus, from_plain, to_plain
from holdfast.model.host import normalise
from holdfast.model.operation import RUNNING
from holdfast.ports.recovery import ParkedMessage, Repair, StatusChange, Watched

h, o = hosts.c, operations.c
_PARKED = Mapper(ParkedMessage, parked_messages)
_STATUS = (h.id, h.uuid, h.state, h.state_since, h.status)
_SHOWN = (
    sa.select(*_STATUS, h.service_host, h.zone, h.rack, h.enrolled, h.reservable)
    .add_columns(segments.c.name.label("segment"))
    .select_from(
        hosts.outerjoin(segment_hosts, segment_hosts.c.host_id == h.id).outerjoin(
            segments, segments.c.id == segment_hosts.c.segment_id
        )
    )
    .order_by(h.id)
)
#: Most parked messages, and the longest message and reason.
MOST_PARKED = 1000
LONGEST_MESSAGE = 20_000
LONGEST_WHY = 2000


@dataclass(frozen=True, slots=True)
class HostStatusRow:
    """A host for people: its status, the reason, and its use."""

    id: int
    uuid: str
    name: str
    zone: str
    rack: str
    status: HostStatus
    enrolled: bool
    reservable: bool
    segment: str | None


class HostStatusStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def now(self) -> datetime:
        return self._db.now()

    def watched(self) -> Sequence[Watched]:
        query = sa.select(*_STATUS, h.name, h.hypervisor_hostname).order_by(h.id)
        with self._db.read() as conn:
            return [
                Watched(row.id, row.name, row.hypervisor_hostname, _status(row))
                for row in conn.execute(query)
            ]

    def change(self, changes: Sequence[StatusChange], repair: Repair | None) -> set[int]:
        def action(conn: Connection) -> set[int]:
            now = self._db.now(conn)
            rows = _taken(conn, [status_change.host_id for status_change in changes])
            fresh = [
                status_change
                for status_change in changes
                if _is_still(rows.get(status_change.host_id), status_change.old)
            ]
            for written in fresh:
                _write(conn, written, rows[written.host_id].uuid, now)
            moved = any(
                status_change.old.usable != status_change.new.usable for status_change in fresh
            )
            if moved and repair is not None:  # lock order: hosts before work
                reschedule_now(conn, repair(now), now)
            return {status_change.host_id for status_change in changes} - {
                status_change.host_id for status_change in fresh
            }

        return self._db.retry(action)

    def shown(self, *, state: str | None = None) -> Sequence[HostStatusRow]:
        """Return all hosts, or hosts in a state, for people."""
        query = _SHOWN if state is None else _SHOWN.where(h.state == state)
        with self._db.read() as conn:
            return [_shown_row(row) for row in conn.execute(query)]

    def of(self, name: str) -> HostStatusRow | None:
        """Return the host with this name or uuid; None if no host or several hosts match."""
        query = _SHOWN.where(sa.or_(by_name(name), h.uuid == name))
        with self._db.read() as conn:
            alike = [_shown_row(row) for row in conn.execute(query)]
        exact = [candidate for candidate in alike if normalise(candidate.name) == normalise(name)]
        return (exact or alike)[0] if len(exact or alike) == 1 else None

    def by_state(self) -> Mapping[str, int]:
        query = sa.select(h.state, sa.func.count()).group_by(h.state)
        with self._db.read() as conn:
            return {state: count for state, count in conn.execute(query)}

    def expedite(self, key: str) -> bool:
        def action(conn: Connection) -> bool:
            now = self._db.now(conn)
            open_ = o.key == key, o.is_open.is_(True)
            conn.execute(
                sa.update(operations)
                .where(*open_, o.status != RUNNING, o.next_try_at > now)
                .values(next_try_at=now, updated_at=now)
            )
            resting = sa.select(o.id).where(*open_, o.status != RUNNING, o.next_try_at <= now)
            return conn.execute(resting).first() is not None

        return self._db.retry(action)

    def park(self, message: ParkedMessage) -> None:
        def action(conn: Connection) -> None:
            conn.execute(sa.insert(parked_messages).values(**_row(message)))
            old = (
                sa.select(parked_messages.c.id)
                .order_by(parked_messages.c.id.desc())
                .offset(MOST_PARKED)
            )
            last = conn.execute(old.limit(1)).scalar()
            if last is not None:
                conn.execute(sa.delete(parked_messages).where(parked_messages.c.id <= last))

        self._db.retry(action)

    def parked(self, most: int) -> Sequence[ParkedMessage]:
        query = sa.select(*_PARKED.columns).order_by(parked_messages.c.id.desc()).limit(most)
        with self._db.read() as conn:
            return [_PARKED.value(row) for row in conn.execute(query)]


def _taken(conn: Connection, ids: Sequence[int]) -> dict[int, Any]:
    """Return the rows of these hosts, locked until the commit, in the same order for all."""
    rows: dict[int, Any] = {}
    for some in portions(sorted(ids)):
        query = sa.select(*_STATUS).where(h.id.in_(some)).order_by(h.id)
        if conn.dialect.name != "sqlite":
            query = query.with_for_update()
        rows |= {row.id: row for row in conn.execute(query)}
    return rows


def _is_still(row: Any, old: HostStatus) -> bool:
    return row is not None and _status(row) == old


def _status(row: Any) -> HostStatus:
    return from_plain(row.state, row.state_since, row.status)


def _shown_row(row: Any) -> HostStatusRow:
    about = row.id, row.uuid, row.service_host, row.zone, row.rack
    return HostStatusRow(*about, _status(row), row.enrolled, row.reservable, row.segment)


def _write(conn: Connection, change: StatusChange, uuid: str, now: datetime) -> None:
    new = change.new
    values: dict[str, Any] = {"state": new.state, "state_since": new.since}
    values["status"] = to_plain(new)
    if change.old.usable != new.usable:  # every capacity snapshot must see the change
        values |= {"updated_at": now, "touched_at": now, "generation": h.generation + 1}
    conn.execute(sa.update(hosts).where(h.id == change.host_id).values(**values))
    if change.say:
        audit.write(conn, now, f"host:{uuid}", None, change.say)


def _row(message: ParkedMessage) -> dict[str, object]:
    """Build a row that fits its columns, whatever a malformed message holds."""
    text = json.dumps(message.message, default=str)
    whole = len(text) <= LONGEST_MESSAGE
    return {
        "at": message.at,
        "monitor": message.monitor[:64],
        "message_id": message.message_id[:255],
        "event_type": message.event_type[:255],
        "why": message.why[:LONGEST_WHY],
        "message": json.loads(text) if whole else {"cut": text[:LONGEST_MESSAGE]},
    }
