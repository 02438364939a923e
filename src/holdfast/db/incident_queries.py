# SPDX-License-Identifier: Apache-2.0
"""Incidents for people: lists, and a single incident with all its related rows (its case)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.engine import Database
from holdfast.db.incident_rows import domain_of, incident_of
from holdfast.db.tables import (
    hosts,
    incidents,
    notifications,
    observations,
    operations,
    segments,
    steps,
    verdicts,
    vmoves,
)
from holdfast.db.timeline import events_of
from holdfast.db.vmoves import moves_of
from holdfast.model import incident as model
from holdfast.model import observation
from holdfast.model.errors import NotFound
from holdfast.model.host import same, short
from holdfast.model.incident import Incident
from holdfast.ports.recovery import ServerMove
from holdfast.recovery.timeline import Event

h, i, n, o, v = hosts.c, incidents.c, notifications.c, operations.c, vmoves.c
Row = Mapping[str, Any]
#: Most agent reports shown per incident.
MOST_REPORTS = 50
#: An agent's report that a guest runs again belongs to an incident closed at most this long
#: before.
RUNS_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True)
class Wanted:
    """Filter of incidents; None means any."""

    status: str | None = None
    kind: str | None = None
    host: str | None = None  # short or full
    segment: str | None = None  # uuid
    is_open: bool | None = None
    since: datetime | None = None
    marker: str | None = None  # id of the last incident seen; older incidents follow
    limit: int = 100


@dataclass(frozen=True)
class Listed:
    """An incident with the name of its segment and the number of moves per status."""

    incident: Incident
    segment_name: str | None = None
    moves: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case(Listed):
    """An incident and all rows about the incident, oldest first."""

    work: Row | None = None  # its operation; None: deleted by retention
    done: Sequence[Row] = ()  # steps
    verdicts: Sequence[Row] = ()
    servers: Sequence[ServerMove] = ()
    reports: Sequence[Row] = ()
    observations: Sequence[Row] = ()  # agents' reports about its guests and processes
    timeline: Sequence[Event] = ()


class IncidentQueryStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def segment_uuid(self, ref: str) -> str:
        """Return the uuid of the segment with this uuid or name; NotFound."""
        s = segments.c
        query = sa.select(s.uuid).where(sa.or_(s.uuid == ref, s.name == ref))
        with self._db.read() as conn:
            segment = conn.execute(query.order_by(s.uuid != ref)).scalar()
        if segment is None:
            raise NotFound(f"no segment has the name or id {ref[:80]!r}: openstack segment list")
        return str(segment)

    def segment_names(self) -> Mapping[str, str]:
        with self._db.read() as conn:
            return _segment_names(conn)

    def domain(self, host: str) -> str:
        """Return the failure domain of a host (rack, or else zone); empty if unknown.

        The mass-failure guard uses this domain.
        """
        alike = sa.func.lower(h.name).startswith(short(host), autoescape=True)
        query = sa.select(h.name, h.rack, h.zone).where(alike)
        with self._db.read() as conn:
            return str(domain_of(host, conn.execute(query).all()))

    def list_all(self, wanted: Wanted) -> Sequence[Listed]:
        """Return incidents, newest first."""
        query = sa.select(incidents).where(*_where(wanted)).order_by(i.opened_at.desc(), i.id)
        with self._db.read() as conn:
            if wanted.marker is not None:
                query = query.where(_after(conn, wanted.marker))
            if wanted.host is None:
                query = query.limit(wanted.limit)
            rows = conn.execute(query).mappings()
            matching = [
                incident for incident in map(incident_of, rows) if _is_on(incident, wanted.host)
            ]
            matching = matching[: wanted.limit]
            counts = _counts(conn, [incident.id for incident in matching])
            names = _segment_names(conn)
        return [
            Listed(incident, names.get(incident.segment), counts.get(incident.id, {}))
            for incident in matching
        ]

    def observations(self, incident_id: str) -> Sequence[Row]:
        """Return the incident's observations of monitors and agents, in the order of receipt."""
        b = observations.c
        query = sa.select(observations).where(b.incident_id == incident_id)
        with self._db.read() as conn:
            return _rows(conn, query.order_by(b.created_at, b.id))

    def case(self, incident_id: str) -> Case:
        """Return an incident with all its related rows; NotFound."""
        with self._db.read() as conn:
            row = conn.execute(sa.select(incidents).where(i.id == incident_id)).mappings().first()
            if row is None:
                raise NotFound(f"no incident {incident_id[:80]}: holdfast incident list")
            incident = incident_of(row)
            work = _work(conn, incident_id)
            return Case(
                incident,
                _segment_names(conn).get(incident.segment),
                _counts(conn, [incident_id]).get(incident_id, {}),
                work=work,
                done=_steps(conn, work["id"]) if work else (),
                verdicts=_rows(
                    conn,
                    sa.select(verdicts)
                    .where(verdicts.c.incident_id == incident_id)
                    .order_by(verdicts.c.id),
                ),
                servers=moves_of(conn, incident_id),  # takes no second connection
                reports=_rows(
                    conn,
                    sa.select(notifications).where(n.incident_id == incident_id).order_by(n.id),
                ),
                observations=_agents_reports(conn, incident),
                timeline=events_of(conn, incident_id),
            )


def _agents_reports(conn: Connection, incident: Incident) -> list[Row]:
    """Return agents' reports about the incident, in the order of receipt.

    For a guest's incident also reports that the guest runs again, received while the incident
    was open or soon after (RUNS_AGAIN).
    """
    b = observations.c
    mine = b.incident_id == incident.id
    if incident.kind == model.GUEST:
        came = b.created_at >= incident.opened_at
        if incident.closed_at is not None:
            came &= b.created_at <= incident.closed_at + RUNS_AGAIN
        well = b.subject == incident.subject, b.state == observation.WELL
        mine = sa.or_(mine, sa.and_(*well, came))
    query = sa.select(observations).where(
        mine, b.kind.in_((observation.GUEST, observation.PROCESS))
    )
    return _rows(conn, query.order_by(b.created_at, b.id).limit(MOST_REPORTS))


def _where(wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    conditions = []
    if wanted.status is not None:
        conditions.append(i.status == wanted.status)
    if wanted.kind is not None:
        conditions.append(i.kind == wanted.kind)
    if wanted.segment is not None:
        conditions.append(i.details["segment"].as_string() == wanted.segment)
    if wanted.host is not None:  # a rough filter: `_is_on` checks the rest
        name = sa.func.lower(i.details["host"].as_string())
        conditions.append(name.startswith(short(wanted.host), autoescape=True))
    if wanted.since is not None:
        conditions.append(i.opened_at >= wanted.since)
    if wanted.is_open is not None:
        living = i.status.in_(model.LIVING)
        conditions.append(living if wanted.is_open else ~living)
    return conditions


def _after(conn: Connection, marker: str) -> sa.ColumnElement[bool]:
    """Select incidents after the marker in the list; NotFound."""
    opened = conn.execute(sa.select(i.opened_at).where(i.id == marker)).scalar()
    if opened is None:
        raise NotFound(f"no incident {marker[:80]}: a marker is the id of the last one seen")
    return sa.or_(i.opened_at < opened, sa.and_(i.opened_at == opened, i.id > marker))


def _is_on(incident: Incident, host: str | None) -> bool:
    return host is None or same(incident.host, host)


def _segment_names(conn: Connection) -> dict[str, str]:
    return {uuid: name for uuid, name in conn.execute(sa.select(segments.c.uuid, segments.c.name))}


def _counts(conn: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    query = (
        sa.select(v.incident_id, v.status, sa.func.count())
        .where(v.incident_id.in_(ids))
        .group_by(v.incident_id, v.status)
    )
    for incident_id, status, count in conn.execute(query):
        counts.setdefault(incident_id, {})[status] = count
    return counts


def _work(conn: Connection, incident_id: str) -> Row | None:
    query = sa.select(operations).where(o.key == f"recovery/{incident_id}")
    row = conn.execute(query).mappings().first()
    return None if row is None else dict(row)


def _steps(conn: Connection, operation_id: str) -> list[Row]:
    t = steps.c
    query = sa.select(t.name, t.status, t.finished_at, t.sentence)
    return _rows(conn, query.where(t.operation_id == operation_id).order_by(t.position))


def _rows(conn: Connection, query: sa.Select[Any]) -> list[Row]:
    return [dict(row) for row in conn.execute(query).mappings()]
