# SPDX-License-Identifier: Apache-2.0
"""Alarms of hosts whose agents do not come back: nobody else would ever say that they are over."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import alarm as model
from holdfast.model.host import same, short
from holdfast.store import audit
from holdfast.store.alarm_taking import end, locked, name
from holdfast.store.database import Database
from holdfast.store.tables import agents, alarms

a, g = alarms.c, agents.c


def end_orphans(database: Database, before: datetime, most: int) -> int:
    """End up to `most` alarms of agents that were not heard of since then, each by itself; how many
    that were."""
    lives = sa.exists().where(g.host == a.host, g.seen_at >= before)
    old = sa.func.coalesce(a.updated_at, a.created_at) < before
    query = sa.select(a.id).where(a.state != model.OK, old, ~lives).limit(most)
    with database.read() as conn:
        ids = conn.execute(query).scalars().all()
    return sum(_end(database, alarm_id, before) for alarm_id in ids)


def _end(database: Database, alarm_id: str, before: datetime) -> bool:
    """Whether it was still so: its agent may be back, or somebody may have answered it."""

    def action(conn: Connection) -> bool:
        row = locked(conn, a.id == alarm_id)
        if row is None or row["state"] == model.OK:
            return False
        heard = _heard_at(conn, row)
        if heard >= before:
            return False
        now = database.now(conn)
        why = f"its agent has not been heard of since {heard:%Y-%m-%d %H:%M:%S} UTC"
        said = f"{name(row)} is over: {why}"
        audit.write(conn, now, f"alarm:{alarm_id}", row["project_id"] or None, said)
        end(conn, database.herald, row, why, now)
        return True

    return database.retry(action)


def _heard_at(conn: Connection, row: Mapping[str, Any]) -> datetime:
    """When something was last heard of the agent, or of the alarm; by our clock."""
    alike = g.host.startswith(short(row["host"]), autoescape=True)
    found = conn.execute(sa.select(g.host, g.seen_at).where(alike)).all()
    beats: list[datetime] = [one.seen_at for one in found if same(one.host, row["host"])]
    said: datetime = row["updated_at"] or row["created_at"]
    return max([said, *beats])
