# SPDX-License-Identifier: Apache-2.0
"""The incident of an alarm whose rule asks for one: opened, kept up to date and closed with what
is said of the alarm, in its transaction. It has no work, so nothing is ever recovered by it.

Its id is the alarm's: however often and by however many that is told, there is one, and who ended
it before the alarm was over is not asked again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import alarm as model
from holdfast.model import moves
from holdfast.model.alarm import Said
from holdfast.model.incident import OPEN, RECOVERED, Incident
from holdfast.model.observed import ALARM
from holdfast.ports.herald import Herald
from holdfast.store import audit
from holdfast.store.incident_rows import incident_of, row_of
from holdfast.store.tables import incidents, observations
from holdfast.store.work import put

i, b = incidents.c, observations.c


def follow(
    conn: Connection, herald: Herald, alarm_id: str, said: Said, now: datetime, *, silent: bool
) -> str | None:
    """What becomes of the incident, now that this was said of its alarm; its id, if there is one.
    The alarm's row is ours until the commit."""
    query = sa.select(incidents).where(i.id == alarm_id)
    if conn.dialect.name != "sqlite":
        query = query.with_for_update()
    row = conn.execute(query).mappings().first()
    if row is not None:
        old = incident_of(row)
        if old.is_open:
            _update(conn, herald, old, said, now)
        return old.id
    if silent or said.event != model.RAISED or model.INCIDENT not in said.actions:
        return None
    _open(conn, herald, model.incident_of(alarm_id, said, now), said, now)
    return alarm_id


def adopt(conn: Connection, incident_id: str, row: Mapping[str, Any], now: datetime) -> None:
    """What was said of the alarm before it had an incident belongs to that: it is kept as long as
    those are, and goes with the last of them."""
    said = b.subject == row["subject"], b.kind == ALARM, b.observed_at >= row["fired_at"]
    query = sa.select(b.id, b.evidence).where(*said, b.incident_id.is_(None))
    key = row["details"]["key"]
    ids = [one.id for one in conn.execute(query) if one.evidence.get("key") == key]
    if ids:
        mine = sa.update(observations).where(b.id.in_(ids))
        conn.execute(mine.values(incident_id=incident_id, updated_at=now))


def _open(conn: Connection, herald: Herald, new: Incident, said: Said, now: datetime) -> None:
    conn.execute(sa.insert(incidents).values(**row_of(new), created_at=now))
    put(conn, herald.incident("incident.opened", new, now), now)
    audit.write(conn, now, f"incident:{new.id}", None, f"opened: {new.cause}")
    audit.write(conn, now, f"incident:{new.id}", None, f"evidence: {model.evidence(said)}")


def _update(conn: Connection, herald: Herald, old: Incident, said: Said, now: datetime) -> None:
    is_over = said.state == model.OK
    status = RECOVERED if is_over else OPEN
    moves.check(f"incident {old.id}", moves.INCIDENT, old.status, status)
    new = {
        "status": status,
        "sentence": model.sentence(said),
        "details": {**old.details, **model.details(said)},
        **({"key": f"{old.subject}#{old.id}", "closed_at": now} if is_over else {}),
    }
    mine = sa.update(incidents).where(i.id == old.id)
    conn.execute(mine.values(**new, updated_at=now))
    if new["sentence"] != old.sentence:
        audit.write(conn, now, f"incident:{old.id}", None, f"{status}: {new['sentence']}")
    if is_over:
        row = conn.execute(sa.select(incidents).where(i.id == old.id)).mappings().one()
        put(conn, herald.incident("incident.recovered", incident_of(row), now), now)
