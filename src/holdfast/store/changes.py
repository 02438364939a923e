# SPDX-License-Identifier: Apache-2.0
"""Whether anything that people look at has changed: a mark for each topic, which differs when the
topic does, over columns that every writer of the topic touches. It is asked once a second: each of
the greatest is looked up by itself, which an index answers without reading all rows."""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from holdfast.model.incident import LIVING
from holdfast.store.database import Database
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


MARKS: Final[Mapping[str, tuple[Any, ...]]] = {
    HOSTS: (
        sa.select(_count(hosts.c.id), _sum(hosts.c.generation), _max(hosts.c.state_since)),
        sa.select(_count(segment_hosts.c.id), _max(segment_hosts.c.updated_at)),
        sa.select(_count(segments.c.id), _max(segments.c.updated_at)),
        sa.select(_sum(agents.c.details["guests"].as_integer())),
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
    RULES: (sa.select(_count(alarm_rules.c.id), _max(alarm_rules.c.created_at)),),
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
_NETWORKS = sa.select(monitors.c.observer, monitors.c.digest).order_by(monitors.c.observer)


class ChangeStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def look(self) -> Mapping[str, str]:
        """The mark of each topic."""
        with self._db.read() as conn:
            now = {"now": self._db.now(conn)}
            marks = {
                topic: " ".join(
                    str(part) for query in queries for part in conn.execute(query, now).one()
                )
                for topic, queries in MARKS.items()
            }
            seen = conn.execute(_NETWORKS).all()
        return marks | {NETWORKS: " ".join(f"{one.observer} {one.digest}" for one in seen)}
