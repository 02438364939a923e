# SPDX-License-Identifier: Apache-2.0
"""The timelines of incidents in SQL: each event in the transaction of the change.

The same transaction writes the event's sentence to the audit log.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import audit
from holdfast.db.tables import timeline
from holdfast.recovery.timeline import Data, Event, fields, read

_INSERT = sa.insert(timeline)
_OF = (
    sa.select(timeline)
    .where(timeline.c.incident_id == sa.bindparam("its_incident"))
    .order_by(timeline.c.id)
)


def write(conn: Connection, now: datetime, incident_id: str, *events: Data) -> None:
    """Write events of the incident, in this order."""
    common = {"incident_id": incident_id, "at": now, "actor": audit.whose()["actor"]}
    rows = [
        {**common, "kind": event.kind, "data": fields(event), "sentence": event.sentence}
        for event in events
    ]
    conn.execute(_INSERT, rows)
    subject = f"incident:{incident_id}"
    audit.write_many(conn, now, [(subject, None, event.sentence) for event in events])


def events_of(conn: Connection, incident_id: str) -> list[Event]:
    """Return the events of the incident, oldest first."""
    rows = conn.execute(_OF, {"its_incident": incident_id})
    return [Event(row.at, row.actor, read(row.kind, row.data), row.sentence) for row in rows]
