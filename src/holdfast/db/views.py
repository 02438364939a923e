# SPDX-License-Identifier: Apache-2.0
"""Read-only views for the console: host wall, search, change marks and calendar.

Each view runs one statement per table, however many hosts there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.alarms.central import FIRING
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.incident_rows import incident_of
from holdfast.db.monitors import is_fresh
from holdfast.db.tables import (
    UtcDateTime,
    agents,
    alarm_rules,
    alarms,
    allocations,
    audit,
    hosts,
    incidents,
    leases,
    maintenance_windows,
    monitors,
    operations,
    pauses,
    registered_monitors,
    reservations,
    samples,
    segment_hosts,
    segments,
    steps,
    vmoves,
)
from holdfast.hoststatus.status import UP, USABLE
from holdfast.model import incident as model
from holdfast.model.incident import LIVING, Incident
from holdfast.model.votes import FRESH_BEATS

h, i, a, r = hosts.c, incidents.c, allocations.c, reservations.c
le, sh = leases.c, segment_hosts.c
_HOSTS = (
    sa.select(h.id, h.name, h.service_host, h.zone, h.rack, h.state, h.enrolled, h.reservable)
    .add_columns(segments.c.name.label("segment"), segments.c.uuid.label("segment_id"))
    .add_columns(sh.on_maintenance, sh.reserved.label("spare"))
    .select_from(
        hosts.outerjoin(segment_hosts, sh.host_id == h.id).outerjoin(
            segments, segments.c.id == sh.segment_id
        )
    )
    .order_by(h.name)
)
_BAD = sa.select(h.id, h.name, h.state_since, h.status).where(h.state != UP)
_HELD = (
    sa.select(a.host_id, le.id, le.name, le.project_id, a.slots, r.resource_type)
    .add_columns(r.missing_resources, r.resources_changed)
    .select_from(
        allocations.join(reservations, r.id == a.reservation_id).join(leases, le.id == r.lease_id)
    )
    .where(
        a.held_until > sa.bindparam("now"),
        a.held_from <= sa.bindparam("now"),
        a.host_id.is_not(None),
    )
    .order_by(a.host_id, le.name, le.id)
)
_AHEAD = (
    sa.select(le.id, le.name, le.project_id, le.status, a.held_from, a.held_until, a.slots)
    .select_from(
        allocations.join(reservations, r.id == a.reservation_id).join(leases, le.id == r.lease_id)
    )
    .where(a.held_until > sa.bindparam("now"))
    .order_by(a.held_from, le.id)
)
_OPEN = sa.select(incidents).where(i.status.in_(model.LIVING))
_of_hosts = i.kind == model.HOST, i.subject.in_(sa.bindparam("subjects", expanding=True))
_newest = (
    sa.select(i.subject, sa.func.max(i.opened_at).label("at"))
    .where(*_of_hosts)
    .group_by(i.subject)
    .subquery()
)
_LAST = (
    sa.select(incidents)
    .join(_newest, sa.and_(i.subject == _newest.c.subject, i.opened_at == _newest.c.at))
    .where(i.kind == model.HOST)
    .order_by(i.id)
)
_WINDOWS = sa.select(maintenance_windows.c.matcher, maintenance_windows.c.expires_at).where(
    maintenance_windows.c.starts_at <= sa.bindparam("now"),
    maintenance_windows.c.expires_at > sa.bindparam("now"),
)
_ALARMS = (
    sa.select(alarms.c.host, sa.func.count())
    .where(alarms.c.state == FIRING, alarms.c.resolved_at.is_(None))
    .group_by(alarms.c.host)
)
#: Nova, too, shows only administrators the host of a server.
_HIDDEN = "virtual:server"


@dataclass(frozen=True, slots=True)
class Held:
    """A present hold of a reservation on a host."""

    lease_id: str
    lease: str
    project_id: str
    slots: int | None = None  # None: the whole host
    missing: bool = False
    changed: bool = False


@dataclass(frozen=True)
class WallSnapshot:
    """All hosts with the data of their tiles.

    `hosts` are rows; the other fields hold data of some hosts, by id or by (normalised) name.
    """

    now: datetime
    hosts: Sequence[Any] = ()
    held: Mapping[int, Sequence[Held]] = field(default_factory=dict)
    bad: Mapping[int, tuple[datetime | None, str]] = field(default_factory=dict)  # since, why
    open: Sequence[Incident] = ()
    last: Mapping[str, Incident] = field(default_factory=dict)  # of hosts not up, by subject
    alarms: Mapping[str, int] = field(default_factory=dict)
    maintenance_windows: Sequence[Any] = ()  # rows: maintenance windows in force, and their end


class WallStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def snapshot(self, only: int | None = None) -> WallSnapshot:
        """Return all hosts, or a single host, for callers that may see all hosts."""
        mine = [] if only is None else [h.id == only]
        holds = _HELD if only is None else _HELD.where(a.host_id == only)
        with self._db.read() as conn:
            now = self._db.now(conn)
            bad = conn.execute(_BAD.where(*mine)).all()
            return WallSnapshot(
                now,
                conn.execute(_HOSTS.where(*mine)).all(),
                _held(conn.execute(holds, {"now": now})),
                {down.id: (down.state_since, (down.status or {}).get("why", "")) for down in bad},
                [incident_of(row) for row in conn.execute(_OPEN).mappings()],
                _last(conn, [f"host:{down.name}" for down in bad]),
                {host: count for host, count in conn.execute(_ALARMS)},
                conn.execute(_WINDOWS, {"now": now}).all(),
            )

    def ahead(self, host_id: int, most: int) -> Sequence[Mapping[str, Any]]:
        """Return the leases that hold the host, now and later."""
        query = _AHEAD.where(a.host_id == host_id).limit(most)
        with self._db.read() as conn:
            rows = conn.execute(query, {"now": self._db.now(conn)})
            return [dict(row) for row in rows.mappings()]

    def agent(self, host: str) -> Mapping[str, Any] | None:
        """Return the agent's row of the host with this (normalised) name, if any."""
        with self._db.read() as conn:
            row = conn.execute(sa.select(agents).where(agents.c.host == host)).mappings().first()
        return None if row is None else dict(row)

    def own(self, project_id: str) -> WallSnapshot:
        """Return the hosts that reservations of a project hold now, without other data."""
        mine = _HELD.where(le.project_id == project_id, r.resource_type != _HIDDEN)
        with self._db.read() as conn:
            now = self._db.now(conn)
            held = _held(conn.execute(mine, {"now": now}))
            rows = [
                row
                for some in portions(sorted(held))
                for row in conn.execute(_HOSTS.where(h.id.in_(some)))
            ]
        return WallSnapshot(now, rows, held)


def _held(rows: Iterable[Any]) -> dict[int, list[Held]]:
    holds: dict[int, list[Held]] = {}
    for host_id, lease_id, name, project, slots, _type, missing, changed in rows:
        hold = Held(lease_id, name, project, slots, missing, changed)
        if hold not in holds.setdefault(host_id, []):
            holds[host_id].append(hold)
    return holds


def _last(conn: Connection, subjects: Sequence[str]) -> dict[str, Incident]:
    """Return the last incident of each host not up: a host may stay fenced after its incident."""
    incidents = {}
    for some in portions(subjects):
        for row in conn.execute(_LAST, {"subjects": list(some)}).mappings():
            incidents[str(row["subject"])] = incident_of(row)
    return incidents


# Search of hosts, leases and incidents by part of a name or id.


h, i, le = hosts.c, incidents.c, leases.c
#: Letters of an id that are worth a search: fewer letters match every id.
LEAST_OF_AN_ID: Final = 4
SearchRow = Mapping[str, Any]


class SearchStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def hosts(self, text: str, most: int) -> Sequence[SearchRow]:
        query = (
            sa.select(h.service_host.label("name"), h.state, h.rack, h.zone)
            .where(h.service_host.icontains(text, autoescape=True))
            .order_by(sa.func.length(h.service_host), h.name)
        )
        return self._rows(query, most)

    def leases(self, text: str, project_id: str | None, most: int) -> Sequence[SearchRow]:
        """Return leases of a project, or of all projects, latest end first."""
        matches = [le.name.icontains(text, autoescape=True)]
        if len(text) >= LEAST_OF_AN_ID:
            matches.append(le.id.startswith(text.lower(), autoescape=True))
        query = sa.select(le.id, le.name, le.status, le.project_id, le.start_date, le.end_date)
        if project_id is not None:
            query = query.where(le.project_id == project_id)
        query = query.where(sa.or_(*matches)).order_by(le.end_date.desc(), le.id)
        return self._rows(query, most)

    def incidents(self, text: str, most: int) -> Sequence[SearchRow]:
        """Return incidents by id, subject or host, newest first."""
        matches = [i.subject.icontains(text, autoescape=True)]
        matches.append(i.details["host"].as_string().icontains(text, autoescape=True))
        if len(text) >= LEAST_OF_AN_ID:
            matches.append(i.id.startswith(text.lower(), autoescape=True))
        query = (
            sa.select(i.id, i.subject, i.status, i.sentence, i.opened_at)
            .where(sa.or_(*matches))
            .order_by(i.opened_at.desc(), i.id)
        )
        return self._rows(query, most)

    def _rows(self, query: sa.Select[Any], most: int) -> Sequence[SearchRow]:
        with self._db.read() as conn:
            return [dict(row) for row in conn.execute(query.limit(most)).mappings()]


# Change marks: a mark per topic that differs when the topic changes. It covers columns that
# every writer of the topic touches, and the agents and monitors that fell silent. All processes
# compute the same mark.
#
# The marks are read once a second. Each maximum is a query of its own, which an index answers
# without reading all rows. Counts and sums do read all: of leases, incidents and alarms only an
# index; of hosts and agents the rows, which are as many as there are hosts.


HOSTS, NETWORKS, LEASES, INCIDENTS = "hosts", "networks", "leases", "incidents"
ALARMS, RULES, SWITCHES, AUDIT, SAMPLES = "alarms", "rules", "switches", "audit", "samples"
TOPICS: Final = (HOSTS, NETWORKS, LEASES, INCIDENTS, ALARMS, RULES, SWITCHES, AUDIT, SAMPLES)

_NOW = sa.bindparam("now", type_=UtcDateTime)
_count, _max, _sum = sa.func.count, sa.func.max, sa.func.sum


def _last_change(column: Any) -> Any:
    return sa.select(_max(column))


def _said(name: str) -> Any:
    """Build the count of agents with a non-empty value of this name in their details."""
    return _sum(sa.case((agents.c.details[name].as_string() != "", 1), else_=0))


MARKS: Final[Mapping[str, tuple[Any, ...]]] = {
    HOSTS: (
        sa.select(_count(hosts.c.id), _sum(hosts.c.generation), _max(hosts.c.state_since)),
        sa.select(_count(segment_hosts.c.id), _max(segment_hosts.c.updated_at)),
        sa.select(_count(segments.c.id), _max(segments.c.updated_at)),
        sa.select(_count(agents.c.host), _said("deaf")),
    ),
    LEASES: (sa.select(_count(), _sum(leases.c.version)), _last_change(leases.c.created_at)),
    INCIDENTS: (
        sa.select(_count()).select_from(incidents),
        _last_change(incidents.c.opened_at),
        _last_change(incidents.c.updated_at),
        _last_change(vmoves.c.id),
        _last_change(vmoves.c.updated_at),
        _last_change(steps.c.finished_at),
        # of open incidents alone: leases have far more waiting work
        sa.select(_max(operations.c.updated_at)).where(
            operations.c.key == sa.literal("recovery/").concat(incidents.c.id),
            incidents.c.status.in_(LIVING),
        ),
    ),
    ALARMS: (
        sa.select(_count()).select_from(alarms),
        _last_change(alarms.c.updated_at),
        _last_change(alarms.c.reported_at),
    ),
    RULES: (
        sa.select(_count(alarm_rules.c.id), _max(alarm_rules.c.created_at)),
        sa.select(_said("error")),
    ),
    # switches start and expire by time, without a write
    SWITCHES: (
        sa.select(_count(pauses.c.id), _max(pauses.c.created_at)).where(
            sa.or_(pauses.c.expires_at.is_(None), pauses.c.expires_at > _NOW)
        ),
        sa.select(_count(maintenance_windows.c.id), _max(maintenance_windows.c.created_at)).where(
            maintenance_windows.c.expires_at > _NOW
        ),
        sa.select(_count(maintenance_windows.c.id)).where(
            maintenance_windows.c.starts_at <= _NOW, maintenance_windows.c.expires_at > _NOW
        ),
    ),
    AUDIT: (sa.select(_max(audit.c.id)),),
    SAMPLES: (sa.select(_count(samples.c.host), _max(samples.c.at)),),
}
_MONITORS = (
    sa.select(monitors.c.observer, monitors.c.digest, monitors.c.seen_at, monitors.c.heartbeat_s)
    .join(registered_monitors, registered_monitors.c.observer == monitors.c.observer)
    .order_by(monitors.c.observer)
)
_versions = agents.c.rules_version, agents.c.central_version
#: The number of agents per rule version.
_FOLLOWED = sa.select(*_versions, _count(agents.c.host)).group_by(*_versions).order_by(*_versions)
#: The number of agents per guest count and number of alarms, as text: old rows hold any number.
_counts = sa.select(
    agents.c.details["guests"].as_string().label("guests"),
    agents.c.details["firing"].as_string().label("firing"),
).subquery()
_COUNTED = (
    sa.select(_counts, _count())
    .group_by(_counts.c.guests, _counts.c.firing)
    .order_by(_counts.c.guests, _counts.c.firing)
)
_BEAT = sa.select(sa.func.min(agents.c.heartbeat_s))
_QUIET = (
    sa.select(agents.c.host, agents.c.seen_at, agents.c.heartbeat_s)
    .where(agents.c.seen_at < sa.bindparam("since", type_=UtcDateTime))
    .order_by(agents.c.host)
)


class ChangeStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def marks(self) -> Mapping[str, str]:
        """Return the mark of each topic."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            marks = {topic: _mark(conn, queries, now) for topic, queries in MARKS.items()}
            marks[HOSTS] += f" {conn.execute(_COUNTED).all()} {_silent(conn, now)}"
            marks[RULES] += f" {conn.execute(_FOLLOWED).all()}"
            return marks | {NETWORKS: _networks(conn, now)}


def _mark(conn: Connection, queries: tuple[Any, ...], now: datetime) -> str:
    rows = (conn.execute(query, {"now": now}).one() for query in queries)
    return " ".join(str(part) for row in rows for part in row)


def _networks(conn: Connection, now: datetime) -> str:
    """Return the views' digests per monitor; the view of a silent monitor does not count."""
    rows = conn.execute(_MONITORS).all()
    return " ".join(f"{row.observer} {row.digest} {is_fresh(row, now)}" for row in rows)


def _silent(conn: Connection, now: datetime) -> str:
    """Return the hosts with silent agents.

    If all agents have the same heartbeat interval, as usual, the query reads only silent
    agents.
    """
    beat = conn.execute(_BEAT).scalar()
    since = now - timedelta(seconds=FRESH_BEATS * (beat or 0.0))
    quiet = conn.execute(_QUIET, {"since": since}).all()
    return " ".join(row.host for row in quiet if not is_fresh(row, now))


# Calendar: a page of hosts, their holds in a time span, and why they could not be used. One
# query per table, whatever the number of hosts and leases.
#
#     hosts, total = store.calendar.hosts(Which(rack="rack-a"), offset=0, limit=100)
#     store.calendar.holds([host.id for host in hosts], start, end)


a, h, i, le, r, s, m = (
    allocations.c,
    hosts.c,
    incidents.c,
    leases.c,
    reservations.c,
    maintenance_windows.c,
    segment_hosts.c,
)
Row = Any
#: Columns by which hosts are grouped.
GROUPS = {"racks": h.rack, "zones": h.zone}
_CALENDAR_HELD = (
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
    """Filter of enrolled hosts; empty means any. `text` is part of the name."""

    rack: str = ""
    zone: str = ""
    text: str = ""


class CalendarStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def hosts(self, which: Which, offset: int, limit: int) -> tuple[Sequence[Row], int]:
        """Return a page of hosts by name, and the total number of hosts."""
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
            rows = conn.execute(query).all()
        return sorted({row.rack for row in rows} - {""}), sorted({row.zone for row in rows} - {""})

    def holds(self, host_ids: Sequence[int], start: datetime, end: datetime) -> Sequence[Row]:
        """Return the holds of these hosts in the time span, earliest lease first."""
        if not host_ids:
            return ()
        held = allocations.join(_LEASED, a.reservation_id == r.id)
        query = (
            sa.select(*_CALENDAR_HELD)
            .select_from(held)
            .where(a.host_id.in_(host_ids), a.held_until > start, a.held_from < end)
            .order_by(le.start_date, le.id)
        )
        with self._db.read() as conn:
            return conn.execute(query).all()

    def dense(
        self, host_ids: Sequence[int], start: datetime, end: datetime, most: int
    ) -> tuple[Sequence[int], Sequence[Row]]:
        """Return hosts with more than `most` holds in the time span, and the times of the holds."""
        span = (a.host_id.in_(host_ids), a.held_until > start, a.held_from < end)
        count = sa.func.count(a.id)
        many = sa.select(a.host_id).where(*span).group_by(a.host_id).having(count > most)
        with self._db.read() as conn:
            shown = conn.execute(many).scalars().all() if host_ids else ()
            if not shown:
                return (), ()
            of_them = a.host_id.in_(shown), *span[1:]
            when = sa.select(a.host_id, a.held_from, a.held_until).where(*of_them)
            return shown, conn.execute(when.order_by(a.held_from)).all()

    def leases(
        self, project_id: str | None, start: datetime, end: datetime, offset: int, limit: int
    ) -> tuple[Sequence[Row], int]:
        """Return a page of reservations in the time span, of a project or all; and the total."""
        where = [le.start_date < end, le.end_date > start]
        if project_id is not None:
            where.append(le.project_id == project_id)
        query = sa.select(*_CALENDAR_HELD[4:]).select_from(_LEASED).where(*where)
        page = query.order_by(le.start_date, le.id, r.position).limit(limit).offset(offset)
        with self._db.read() as conn:
            count = sa.select(sa.func.count(r.id)).select_from(_LEASED).where(*where)
            return conn.execute(page).all(), conn.execute(count).scalar_one()

    def incidents(self, names: Sequence[str], start: datetime, end: datetime) -> Sequence[Row]:
        """Return the incidents of these hosts in the time span, by names of table `hosts`."""
        subjects = [f"host:{name}" for name in names]
        query = sa.select(i.id, i.subject, i.status, i.opened_at, i.closed_at, i.sentence).where(
            i.subject.in_(subjects),
            i.opened_at < end,
            sa.or_(i.closed_at.is_(None), i.closed_at > start),
        )
        with self._db.read() as conn:
            return conn.execute(query).all()

    def maintenance_windows(self, start: datetime, end: datetime) -> Sequence[Row]:
        query = sa.select(maintenance_windows).where(s.starts_at < end, s.expires_at > start)
        with self._db.read() as conn:
            return conn.execute(query).all()

    def pools(self, group: str, which: Which) -> Sequence[Row]:
        """Return the number of hosts per rack or zone, state and reservability."""
        how = (GROUPS[group].label("pool"), h.state, h.reservable)
        query = sa.select(*how, sa.func.count(h.id).label("hosts")).where(*_where(which))
        with self._db.read() as conn:
            return conn.execute(query.group_by(*how)).all()

    def taken(
        self, group: str, which: Which, start: datetime, end: datetime
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        """Return holds of reservable hosts in the time span: whole hosts, and hosts with slots.

        Whole hosts are counted per rack or zone and time; holds of slots are listed
        individually.
        """
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
    conditions: list[sa.ColumnElement[bool]] = [h.enrolled.is_(True)]
    if which.rack:
        conditions.append(h.rack == which.rack)
    if which.zone:
        conditions.append(h.zone == which.zone)
    if which.text:
        conditions.append(h.name.icontains(which.text, autoescape=True))
    return conditions
