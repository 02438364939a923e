# SPDX-License-Identifier: Apache-2.0
"""Agents of hosts as rows: that each lives, and which rules it goes by. Written by the API."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.host import normalise, same, short
from holdfast.ports.recovery import AgentBeat
from holdfast.store.database import Database
from holdfast.store.tables import agents

a = agents.c
#: An agent that was not heard of for so long is forgotten.
FORGOTTEN = timedelta(days=7)


def beat_of(conn: Connection, host: str) -> AgentBeat | None:
    """The last heartbeat of a host's agent, by whichever name, short or full, it goes."""
    like = sa.select(a.host, a.seen_at, a.heartbeat_s, a.boot_id, a.rebooted_at, a.details)
    like = like.where(a.host.startswith(short(normalise(host)), autoescape=True))
    found = [row for row in conn.execute(like) if same(row.host, host)]
    if not found:
        return None
    row = max(found, key=lambda one: one.seen_at)
    running = (row.details or {}).get("running")
    guests = None if running is None else frozenset(running)
    return AgentBeat(row.seen_at, row.heartbeat_s, bool(row.boot_id), row.rebooted_at, guests)


def all_beat_since(conn: Connection, hosts: Sequence[str], since: datetime) -> bool:
    """Whether the agent of each of these hosts was heard of after that; False of no host."""
    names = {normalise(host) for host in hosts}
    alive = sa.select(sa.func.count()).where(a.host.in_(names), a.seen_at > since)
    return bool(names) and conn.execute(alive).scalar_one() == len(names)


class AgentStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def beat(self, host: str, values: Mapping[str, Any]) -> None:
        """Keep a heartbeat: that the agent lives, and what it says. Without a `boot_id` the one
        that is known stays."""
        boot_id = values.get("boot_id")

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            mine = sa.update(agents).where(a.host == host)
            changed: list[tuple[Any, Any]] = []
            if boot_id is not None:
                # before boot_id itself: MariaDB assigns from left to right
                same_boot = sa.func.coalesce(a.boot_id, boot_id) == boot_id
                changed = [(a.rebooted_at, sa.case((same_boot, a.rebooted_at), else_=now))]
            said = {**values, "seen_at": now, "updated_at": now}
            changed += [(agents.c[name], value) for name, value in said.items()]
            if conn.execute(mine.ordered_values(*changed)).rowcount:
                return
            conn.execute(sa.insert(agents).values(host=host, created_at=now, seen_at=now, **values))
            gone = sa.select(a.host).where(a.seen_at < now - FORGOTTEN)
            for name in conn.execute(gone).scalars().all():
                conn.execute(sa.delete(agents).where(a.host == name))

        self._db.retry(action)

    def groups(self, host: str) -> Sequence[str]:
        """Those that it says it is in."""
        with self._db.read() as conn:
            found = conn.execute(sa.select(a.details).where(a.host == host)).scalar()
        return list((found or {}).get("groups", ()))

    def all(self) -> tuple[datetime, Sequence[Mapping[str, Any]]]:
        """And the time by which they are fresh or not."""
        with self._db.read() as conn:
            rows = conn.execute(sa.select(agents).order_by(a.host)).mappings().all()
            return self._db.now(conn), [dict(row) for row in rows]
