# SPDX-License-Identifier: Apache-2.0
"""Whether anything that people look at has changed: a mark for each topic, which differs when the
topic does, over columns that every writer of the topic touches, and over who has fallen silent. The
same in every process that asks.

It is asked once a second. Each of the greatest is looked up by itself, which an index answers
without reading all rows. What is counted or summed does read all: of leases, incidents and alarms
an index alone; the rows of hosts and agents, which are as many as there are hosts."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.incident import LIVING
from holdfast.model.votes import FRESH_BEATS
from holdfast.store.database import Database
from holdfast.store.monitors import is_fresh
from holdfast.store.tables import (
    UtcDateTime,
    agents,
    alarm_rules,
    alarms,
    audit,
    hosts,
    incidents,
    leases,
    monitors,
    operations,
    pauses,
    registered_monitors,
    samples,
    segment_hosts,
    segments,
    silences,
    steps,
    vmoves,
)

HOSTS, NETWORKS, LEASES, INCIDENTS = "hosts", "networks", "leases", "incidents"
ALARMS, RULES, SWITCHES, AUDIT, SAMPLES = "alarms", "rules", "switches", "audit", "samples"
TOPICS: Final = (HOSTS, NETWORKS, LEASES, INCIDENTS, ALARMS, RULES, SWITCHES, AUDIT, SAMPLES)

_NOW = sa.bindparam("now", type_=UtcDateTime)
_count, _max, _sum = sa.func.count, sa.func.max, sa.func.sum


def _last(column: Any) -> Any:
    return sa.select(_max(column))


def _said(name: str) -> Any:
    """How many agents have something to say there."""
    return _sum(sa.case((agents.c.details[name].as_string() != "", 1), else_=0))


MARKS: Final[Mapping[str, tuple[Any, ...]]] = {
    HOSTS: (
        sa.select(_count(hosts.c.id), _sum(hosts.c.generation), _max(hosts.c.state_since)),
        sa.select(_count(segment_hosts.c.id), _max(segment_hosts.c.updated_at)),
        sa.select(_count(segments.c.id), _max(segments.c.updated_at)),
        sa.select(_count(agents.c.host), _said("deaf")).add_columns(
            *(_sum(agents.c.details[name].as_integer()) for name in ("guests", "firing"))
        ),
    ),
    LEASES: (sa.select(_count(), _sum(leases.c.version)), _last(leases.c.created_at)),
    INCIDENTS: (
        sa.select(_count()).select_from(incidents),
        _last(incidents.c.opened_at),
        _last(incidents.c.updated_at),
        _last(vmoves.c.id),
        _last(vmoves.c.updated_at),
        _last(steps.c.finished_at),
        # of what is open alone: leases have far more work that waits
        sa.select(_max(operations.c.updated_at)).where(
            operations.c.key == sa.literal("recovery/").concat(incidents.c.id),
            incidents.c.status.in_(LIVING),
        ),
    ),
    ALARMS: (
        sa.select(_count()).select_from(alarms),
        _last(alarms.c.updated_at),
        _last(alarms.c.told_at),
    ),
    RULES: (
        sa.select(_count(alarm_rules.c.id), _max(alarm_rules.c.created_at)),
        sa.select(_said("error")),
    ),
    # what begins and ends by itself, by the time that it does
    SWITCHES: (
        sa.select(_count(pauses.c.id), _max(pauses.c.created_at)).where(
            sa.or_(pauses.c.expires_at.is_(None), pauses.c.expires_at > _NOW)
        ),
        sa.select(_count(silences.c.id), _max(silences.c.created_at)).where(
            silences.c.expires_at > _NOW
        ),
        sa.select(_count(silences.c.id)).where(
            silences.c.starts_at <= _NOW, silences.c.expires_at > _NOW
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
#: How many agents go by which rules.
_FOLLOWED = sa.select(*_versions, _count(agents.c.host)).group_by(*_versions).order_by(*_versions)
_BEAT = sa.select(sa.func.min(agents.c.heartbeat_s))
_QUIET = (
    sa.select(agents.c.host, agents.c.seen_at, agents.c.heartbeat_s)
    .where(agents.c.seen_at < sa.bindparam("since", type_=UtcDateTime))
    .order_by(agents.c.host)
)


class ChangeStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def look(self) -> Mapping[str, str]:
        """The mark of each topic."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            marks = {topic: _mark(conn, queries, now) for topic, queries in MARKS.items()}
            marks[HOSTS] += f" {_silent(conn, now)}"
            marks[RULES] += f" {conn.execute(_FOLLOWED).all()}"
            return marks | {NETWORKS: _networks(conn, now)}


def _mark(conn: Connection, queries: tuple[Any, ...], now: datetime) -> str:
    rows = (conn.execute(query, {"now": now}).one() for query in queries)
    return " ".join(str(part) for row in rows for part in row)


def _networks(conn: Connection, now: datetime) -> str:
    """What is seen, and by whom: of one that is silent nothing counts, whatever it saw."""
    seen = conn.execute(_MONITORS).all()
    return " ".join(f"{one.observer} {one.digest} {is_fresh(one, now)}" for one in seen)


def _silent(conn: Connection, now: datetime) -> str:
    """The hosts whose agents are: nothing is read of all the others where every agent beats alike,
    as they do."""
    beat = conn.execute(_BEAT).scalar()
    since = now - timedelta(seconds=FRESH_BEATS * (beat or 0.0))
    quiet = conn.execute(_QUIET, {"since": since}).all()
    return " ".join(one.host for one in quiet if not is_fresh(one, now))
