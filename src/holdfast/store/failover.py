# SPDX-License-Identifier: Apache-2.0
"""Segments that keep hosts free in case others fail: who belongs to them, whether a booking leaves
enough within its transaction, and what they have for the days ahead. The rule is model/failover's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.errors import NotFound
from holdfast.model.failover import Capacity, Span, Spare, first_short, free_over, least
from holdfast.model.lease import Allocation
from holdfast.store import audit
from holdfast.store.database import Database
from holdfast.store.host_rows import USABLE
from holdfast.store.tables import allocations, hosts, segment_hosts, segments

a, h, s, sh = allocations.c, hosts.c, segments.c, segment_hosts.c
#: How far ahead the report looks.
AHEAD = timedelta(days=30)
_CAN_BE_RESERVED = sa.and_(h.enrolled.is_(True), h.reservable.is_(True), USABLE)

#: Hosts, each with the segment of which some must be kept free, where there is one.
HOSTS = hosts.outerjoin(segment_hosts, sh.host_id == h.id).outerjoin(
    segments, sa.and_(s.id == sh.segment_id, s.spare_hosts > 0)
)
SEGMENT = s.uuid.label("segment")

_SPARES = (
    sa.select(s.uuid, s.name, s.spare_hosts, sh.host_id)
    .select_from(segments.outerjoin(segment_hosts, sh.segment_id == s.id))
    .where(s.spare_hosts > 0, sa.or_(sh.id.is_(None), sh.on_maintenance.is_(False)))
    .order_by(s.uuid)
)
_OF_SOME = (
    sa.select(s.uuid, s.name, s.spare_hosts, sh.host_id)
    .join(segment_hosts, sh.segment_id == s.id)
    .join(hosts, h.id == sh.host_id)
    .where(
        s.uuid.in_(sa.bindparam("ids", expanding=True)),
        sh.on_maintenance.is_(False),
        _CAN_BE_RESERVED,
    )
)
_HELD = (
    sa.select(a.host_id, a.held_from, a.held_until)
    .join(segment_hosts, sh.host_id == a.host_id)
    .join(segments, s.id == sh.segment_id)
    .where(
        s.uuid == sa.bindparam("segment"),
        a.held_from < sa.bindparam("end"),
        a.held_until > sa.bindparam("start"),
        a.reservation_id.not_in(sa.bindparam("own", expanding=True)),
    )
)
_BUSY = _HELD.with_only_columns(a.host_id).distinct()
_SEGMENTS = (
    sa.select(
        s.uuid,
        s.name,
        s.spare_hosts,
        sh.host_id,
        h.enrolled,
        sa.and_(_CAN_BE_RESERVED, sh.on_maintenance.is_(False)).label("usable"),
    )
    .select_from(
        segments.outerjoin(segment_hosts, sh.segment_id == s.id).outerjoin(
            hosts, h.id == sh.host_id
        )
    )
    .order_by(s.id)
)


def key(segment_id: str) -> str:
    """The row at which bookings in that segment queue."""
    return f"segment:{segment_id}"


def spares(conn: Connection) -> tuple[Spare, ...]:
    """All segments that keep something, for the stock."""
    return tuple(_spares(conn.execute(_SPARES)))


def _spares(rows: Iterable[Any]) -> Iterable[Spare]:
    found: dict[tuple[str, str, int], set[int]] = {}
    for uuid, name, kept, host_id in rows:
        members = found.setdefault((uuid, name, kept), set())
        if host_id is not None:
            members.add(host_id)
    return [Spare(*about, frozenset(members)) for about, members in found.items()]


@dataclass(frozen=True)
class Booking:
    """What some leases held, and what they would hold; their reservations' ids."""

    before: Sequence[Allocation]
    after: Sequence[Allocation]
    own: Sequence[str]


def eaten(conn: Connection, ids: Collection[str], booking: Booking, now: datetime) -> set[str]:
    """In words, those of the segments of which the booking would not leave enough; whoever asks has
    their rows."""
    found: set[str] = set()
    for spare in _spares(conn.execute(_OF_SOME, {"ids": sorted(ids)})):
        mine = [one.held for one in booking.after if one.host_id in spare.hosts]
        if not mine:
            continue
        start = max(now, min(held.start for held in mine))
        end = max(held.end for held in mine)
        if start < end and _leaves_too_few(conn, spare, booking, start, end):
            found.add(f"what segment {spare.name} may give beside the {spare.kept} it keeps free")
    return found


def _leaves_too_few(
    conn: Connection, spare: Spare, booking: Booking, start: datetime, end: datetime
) -> bool:
    bound = {"segment": spare.segment_id, "start": start, "end": end, "own": booking.own}
    busy = set(conn.execute(_BUSY, bound).scalars())
    busy |= {one.host_id for one in booking.after if one.host_id is not None}
    if len(spare.hosts - busy) >= spare.kept:
        return False  # so many are free all the time
    others: dict[int, list[Span]] = {}
    for host_id, since, until in conn.execute(_HELD, bound):
        if host_id in spare.hosts:
            others.setdefault(host_id, []).append((since.timestamp(), until.timestamp()))
    span = start.timestamp(), end.timestamp()
    before, after = (
        free_over(len(spare.hosts), _with(others, spare, own).values(), *span)
        for own in (booking.before, booking.after)
    )
    return first_short(spare.kept, before, after) is not None


def _with(
    others: Mapping[int, Sequence[Span]], spare: Spare, own: Iterable[Allocation]
) -> Mapping[int, Sequence[Span]]:
    found = {host_id: list(spans) for host_id, spans in others.items()}
    for one in own:
        if one.host_id is not None and one.host_id in spare.hosts:
            span = one.held.start.timestamp(), one.held.end.timestamp()
            found.setdefault(one.host_id, []).append(span)
    return found


class FailoverStore:
    """What the report shows, and how many a segment keeps."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def report(self) -> Sequence[Capacity]:
        """Every segment, in the order in which they were made."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            rows: dict[str, list[Any]] = {}
            for row in conn.execute(_SEGMENTS):
                rows.setdefault(row.uuid, []).append(row)
            return [_capacity(conn, some, now) for some in rows.values()]

    def keep(self, ref: str, kept: int) -> str:
        """So many hosts of that segment, by uuid or id, are to be kept free from now on; its uuid.
        NotFound."""
        is_number = ref.isascii() and ref.isdigit() and len(ref) < 10
        named = s.id == int(ref) if is_number else s.uuid == ref

        def action(conn: Connection) -> str:
            now = self._db.now(conn)
            row = conn.execute(sa.select(s.uuid, s.name, s.spare_hosts).where(named)).first()
            if row is None:
                raise NotFound(f"no segment {ref}: `holdfast failover` shows them")
            values = {"spare_hosts": kept, "updated_at": now}
            conn.execute(sa.update(segments).where(s.uuid == row.uuid).values(**values))
            said = f"segment {row.name} keeps {kept} hosts free instead of {row.spare_hosts}"
            audit.write(conn, now, key(row.uuid), None, said)
            return str(row.uuid)

        return self._db.retry(action)


def _capacity(conn: Connection, rows: Sequence[Any], now: datetime) -> Capacity:
    first = rows[0]
    usable = {row.host_id for row in rows if row.usable}
    bound = {"segment": first.uuid, "start": now, "end": now + AHEAD, "own": []}
    busy: dict[int, list[Span]] = {}
    if usable:
        for host_id, since, until in conn.execute(_HELD, bound):
            if host_id in usable:
                busy.setdefault(host_id, []).append((since.timestamp(), until.timestamp()))
    since, until = now.timestamp(), (now + AHEAD).timestamp()
    steps = free_over(len(usable), busy.values(), since, until)
    at, fewest = least(steps)
    return Capacity(
        segment_id=first.uuid,
        name=first.name,
        kept=first.spare_hosts,
        members=sum(row.host_id is not None for row in rows),
        enrolled=sum(bool(row.enrolled) for row in rows),
        usable=len(usable),
        free=steps[0][1],
        least_free=fewest,
        least_free_at=now + timedelta(seconds=at - since),
    )
