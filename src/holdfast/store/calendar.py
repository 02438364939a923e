# SPDX-License-Identifier: Apache-2.0
"""Who holds which host when, for people who look at a stretch of time: a page of hosts, what is
held of them in it, what kept them from being used. One query for each table, whatever the number of
hosts and leases.

    hosts, total = store.calendar.hosts(Which(rack="rack-a"), offset=0, limit=100)
    store.calendar.holds([host.id for host in hosts], start, end)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from holdfast.model.standing import USABLE
from holdfast.store.database import Database
from holdfast.store.tables import (
    allocations,
    hosts,
    incidents,
    leases,
    reservations,
    segment_hosts,
    segments,
    silences,
)

a, h, i, le, r, s, m = (
    allocations.c,
    hosts.c,
    incidents.c,
    leases.c,
    reservations.c,
    silences.c,
    segment_hosts.c,
)
Row = Any
#: By which hosts are taken together.
GROUPS = {"racks": h.rack, "zones": h.zone}
_HELD = (
    a.host_id,
    a.held_from,
    a.held_until,
    a.slots,
    r.id.label("reservation_id"),
    r.resource_type,
    r.missing_resources,
    r.resources_changed,
    r.spec,
    le.id.label("lease_id"),
    le.name,
    le.project_id,
    le.status,
    le.degraded,
    le.start_date,
    le.end_date,
)
_LEASED = reservations.join(leases, r.lease_id == le.id)


@dataclass(frozen=True)
class Which:
    """Of the enrolled hosts; empty: any. `text` is somewhere in the name."""

    rack: str = ""
    zone: str = ""
    text: str = ""


class CalendarStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def hosts(self, which: Which, offset: int, limit: int) -> tuple[Sequence[Row], int]:
        """A page of them by name, and how many there are."""
        where = _where(which)
        known = hosts.outerjoin(segment_hosts, m.host_id == h.id).outerjoin(
            segments, segments.c.id == m.segment_id
        )
        about = (h.id, h.uuid, h.name, h.service_host, h.hypervisor_hostname, h.rack, h.zone)
        query = (
            sa.select(*about, h.state, h.state_since, h.reservable)
            .add_columns(m.on_maintenance, m.updated_at.label("marked_at"))
            .add_columns(segments.c.uuid.label("segment"))
            .select_from(known)
            .where(*where)
            .order_by(h.name)
            .limit(limit)
            .offset(offset)
        )
        with self._db.read() as conn:
            total = conn.execute(sa.select(sa.func.count(h.id)).where(*where)).scalar_one()
            return conn.execute(query).all(), total

    def places(self) -> tuple[Sequence[str], Sequence[str]]:
        """Racks and zones of enrolled hosts."""
        query = sa.select(h.rack, h.zone).where(h.enrolled.is_(True)).distinct()
        with self._db.read() as conn:
            found = conn.execute(query).all()
        return sorted({row.rack for row in found} - {""}), sorted(
            {row.zone for row in found} - {""}
        )

    def holds(self, host_ids: Sequence[int], start: datetime, end: datetime) -> Sequence[Row]:
        """What is held of these hosts in that time, the earliest first."""
        if not host_ids:
            return ()
        held = allocations.join(_LEASED, a.reservation_id == r.id)
        query = (
            sa.select(*_HELD)
            .select_from(held)
            .where(a.host_id.in_(host_ids), a.held_until > start, a.held_from < end)
            .order_by(le.start_date, le.id)
        )
        with self._db.read() as conn:
            return conn.execute(query).all()

    def dense(
        self, host_ids: Sequence[int], start: datetime, end: datetime, most: int
    ) -> tuple[Sequence[int], Sequence[Row]]:
        """Of these hosts those that more than so many hold in that time, and when they are held."""
        span = (a.host_id.in_(host_ids), a.held_until > start, a.held_from < end)
        count = sa.func.count(a.id)
        many = sa.select(a.host_id).where(*span).group_by(a.host_id).having(count > most)
        with self._db.read() as conn:
            found = conn.execute(many).scalars().all() if host_ids else ()
            if not found:
                return (), ()
            of_them = a.host_id.in_(found), *span[1:]
            when = sa.select(a.host_id, a.held_from, a.held_until).where(*of_them)
            return found, conn.execute(when.order_by(a.held_from)).all()

    def leases(
        self, project_id: str | None, start: datetime, end: datetime, offset: int, limit: int
    ) -> tuple[Sequence[Row], int]:
        """Reservations of a project's leases, or everybody's, in that time; and how many."""
        where = [le.start_date < end, le.end_date > start]
        if project_id is not None:
            where.append(le.project_id == project_id)
        query = sa.select(*_HELD[4:]).select_from(_LEASED).where(*where)
        page = query.order_by(le.start_date, le.id, r.position).limit(limit).offset(offset)
        with self._db.read() as conn:
            count = sa.select(sa.func.count(r.id)).select_from(_LEASED).where(*where)
            return conn.execute(page).all(), conn.execute(count).scalar_one()

    def incidents(self, names: Sequence[str], start: datetime, end: datetime) -> Sequence[Row]:
        """When these hosts (by the names of the list of hosts) had failed."""
        subjects = [f"host:{name}" for name in names]
        query = sa.select(i.id, i.subject, i.status, i.opened_at, i.closed_at, i.sentence).where(
            i.subject.in_(subjects),
            i.opened_at < end,
            sa.or_(i.closed_at.is_(None), i.closed_at > start),
        )
        with self._db.read() as conn:
            return conn.execute(query).all()

    def silences(self, start: datetime, end: datetime) -> Sequence[Row]:
        query = sa.select(silences).where(s.starts_at < end, s.expires_at > start)
        with self._db.read() as conn:
            return conn.execute(query).all()

    def pools(self, group: str, which: Which) -> Sequence[Row]:
        """Of each, how many hosts stand how, and whether they can be reserved."""
        how = (GROUPS[group].label("pool"), h.state, h.reservable)
        query = sa.select(*how, sa.func.count(h.id).label("hosts")).where(*_where(which))
        with self._db.read() as conn:
            return conn.execute(query.group_by(*how)).all()

    def taken(
        self, group: str, which: Which, start: datetime, end: datetime
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        """Of hosts that can be reserved: whole ones of pools that are held in that time, those of
        one lease together; and those of which slots are, one by one."""
        pool = GROUPS[group].label("pool")
        given = (h.state.in_(USABLE), h.reservable.is_(True))
        span = (a.held_until > start, a.held_from < end, *given)
        both = allocations.join(hosts, a.host_id == h.id)
        when = (pool, a.held_from, a.held_until)
        whole = sa.select(*when, sa.func.count(a.id).label("hosts")).select_from(both)
        slots = sa.select(a.host_id, *when).select_from(both)
        with self._db.read() as conn:
            return (
                conn.execute(
                    whole.where(*_where(which), *span, a.slots.is_(None)).group_by(*when)
                ).all(),
                conn.execute(slots.where(*_where(which), *span, a.slots.is_not(None))).all(),
            )


def _where(which: Which) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = [h.enrolled.is_(True)]
    if which.rack:
        found.append(h.rack == which.rack)
    if which.zone:
        found.append(h.zone == which.zone)
    if which.text:
        found.append(h.name.icontains(which.text, autoescape=True))
    return found
