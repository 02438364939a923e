# SPDX-License-Identifier: Apache-2.0
"""All hosts at one look, with all that a tile says of each: one statement for each table, however
many hosts there are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import incident as model
from holdfast.model.alarm import FIRING
from holdfast.model.incident import Incident
from holdfast.model.standing import UP
from holdfast.store.booking import portions
from holdfast.store.database import Database
from holdfast.store.incident_rows import incident_of
from holdfast.store.tables import (
    agents,
    alarms,
    allocations,
    hosts,
    incidents,
    leases,
    reservations,
    segment_hosts,
    segments,
    silences,
)

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
_BAD = sa.select(h.id, h.name, h.state_since, h.standing).where(h.state != UP)
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
_SILENCED = sa.select(silences.c.matcher, silences.c.expires_at).where(
    silences.c.starts_at <= sa.bindparam("now"), silences.c.expires_at > sa.bindparam("now")
)
_ALARMS = (
    sa.select(alarms.c.host, sa.func.count())
    .where(alarms.c.state == FIRING, alarms.c.resolved_at.is_(None))
    .group_by(alarms.c.host)
)
#: Nova, too, tells only administrators where a server is.
_HIDDEN = "virtual:server"


@dataclass(frozen=True, slots=True)
class Held:
    """That a reservation holds a host now."""

    lease_id: str
    lease: str
    project_id: str
    slots: int | None = None  # None: all of it
    missing: bool = False
    changed: bool = False


@dataclass(frozen=True)
class Look:
    """`hosts` are rows; all else is of some of them, by id, or by (normalised) name."""

    now: datetime
    hosts: Sequence[Any] = ()
    held: Mapping[int, Sequence[Held]] = field(default_factory=dict)
    bad: Mapping[int, tuple[datetime | None, str]] = field(default_factory=dict)  # since, why
    open: Sequence[Incident] = ()
    last: Mapping[str, Incident] = field(default_factory=dict)  # of those not up, by subject
    alarms: Mapping[str, int] = field(default_factory=dict)
    silences: Sequence[Any] = ()  # rows: what is left alone now, and until when


class WallStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def look(self, only: int | None = None) -> Look:
        """Everything, or one host: for who may see all of them."""
        mine = [] if only is None else [h.id == only]
        holds = _HELD if only is None else _HELD.where(a.host_id == only)
        with self._db.read() as conn:
            now = self._db.now(conn)
            bad = conn.execute(_BAD.where(*mine)).all()
            return Look(
                now,
                conn.execute(_HOSTS.where(*mine)).all(),
                _held(conn.execute(holds, {"now": now})),
                {one.id: (one.state_since, (one.standing or {}).get("why", "")) for one in bad},
                [incident_of(row) for row in conn.execute(_OPEN).mappings()],
                _last(conn, [f"host:{one.name}" for one in bad]),
                {host: count for host, count in conn.execute(_ALARMS)},
                conn.execute(_SILENCED, {"now": now}).all(),
            )

    def ahead(self, host_id: int, most: int) -> Sequence[Mapping[str, Any]]:
        """Who holds a host, now and next."""
        query = _AHEAD.where(a.host_id == host_id).limit(most)
        with self._db.read() as conn:
            rows = conn.execute(query, {"now": self._db.now(conn)})
            return [dict(row) for row in rows.mappings()]

    def agent(self, host: str) -> Mapping[str, Any] | None:
        """That of a host of that (normalised) name, if it was ever heard of."""
        with self._db.read() as conn:
            found = conn.execute(sa.select(agents).where(agents.c.host == host)).mappings().first()
        return None if found is None else dict(found)

    def own(self, project_id: str) -> Look:
        """The hosts that reservations of a project hold now, and nothing more of them."""
        mine = _HELD.where(le.project_id == project_id, r.resource_type != _HIDDEN)
        with self._db.read() as conn:
            now = self._db.now(conn)
            held = _held(conn.execute(mine, {"now": now}))
            rows = [
                row
                for some in portions(sorted(held))
                for row in conn.execute(_HOSTS.where(h.id.in_(some)))
            ]
        return Look(now, rows, held)


def _held(rows: Iterable[Any]) -> dict[int, list[Held]]:
    found: dict[int, list[Held]] = {}
    for host_id, lease_id, name, project, slots, _type, missing, changed in rows:
        one = Held(lease_id, name, project, slots, missing, changed)
        if one not in found.setdefault(host_id, []):
            found[host_id].append(one)
    return found


def _last(conn: Connection, subjects: Sequence[str]) -> dict[str, Incident]:
    """What was last done about hosts that are not up: they may be fenced though that is over."""
    found = {}
    for some in portions(subjects):
        for row in conn.execute(_LAST, {"subjects": list(some)}).mappings():
            found[str(row["subject"])] = incident_of(row)
    return found
