# SPDX-License-Identifier: Apache-2.0
"""Agents of hosts (heartbeats, rule versions) and requested host metrics; the API writes both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.engine import Database
from holdfast.db.tables import agents, samples
from holdfast.metrics import history as model
from holdfast.metrics.history import Hour
from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise, same, short
from holdfast.ports.recovery import AgentBeat

a = agents.c
#: An agent without a heartbeat for this long is deleted.
FORGOTTEN = timedelta(days=7)


def beat_of(conn: Connection, host: str) -> AgentBeat | None:
    """Return the last heartbeat of a host's agent, found by short or full host name."""
    like = sa.select(a.host, a.seen_at, a.heartbeat_s, a.boot_id, a.rebooted_at, a.details)
    like = like.where(a.host.startswith(short(normalise(host)), autoescape=True))
    rows = [row for row in conn.execute(like) if same(row.host, host)]
    if not rows:
        return None
    row = max(rows, key=lambda agent: agent.seen_at)
    details = row.details or {}
    guests = frozenset(details["running"]) if "running" in details else None
    ran = frozenset(details.get("ran", ()))
    return AgentBeat(row.seen_at, row.heartbeat_s, bool(row.boot_id), row.rebooted_at, guests, ran)


def all_beat_since(conn: Connection, hosts: Sequence[str], since: datetime) -> bool:
    """Tell whether the agents of all these hosts sent a heartbeat since; False for no host."""
    names = {normalise(host) for host in hosts}
    alive = sa.select(sa.func.count()).where(a.host.in_(names), a.seen_at > since)
    return bool(names) and conn.execute(alive).scalar_one() == len(names)


class AgentStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def beat(self, host: str, values: Mapping[str, Any]) -> None:
        """Store a heartbeat of an agent and its values.

        Without a `boot_id` the known boot id stays.
        """
        boot_id = values.get("boot_id")

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            mine = sa.update(agents).where(a.host == host)
            changed: list[tuple[Any, Any]] = []
            if boot_id is not None:
                # before boot_id itself: MariaDB assigns from left to right
                same_boot = sa.func.coalesce(a.boot_id, boot_id) == boot_id
                changed = [(a.rebooted_at, sa.case((same_boot, a.rebooted_at), else_=now))]
            changes = {**values, "seen_at": now, "updated_at": now}
            changed += [(agents.c[name], value) for name, value in changes.items()]
            if conn.execute(mine.ordered_values(*changed)).rowcount:
                return
            conn.execute(sa.insert(agents).values(host=host, created_at=now, seen_at=now, **values))
            gone = sa.select(a.host).where(a.seen_at < now - FORGOTTEN)
            for name in conn.execute(gone).scalars().all():
                conn.execute(sa.delete(agents).where(a.host == name))

        self._db.retry(action)

    def groups(self, host: str) -> Sequence[str]:
        """Return the rule groups that the host's agent reports."""
        with self._db.read() as conn:
            details = conn.execute(sa.select(a.details).where(a.host == host)).scalar()
        return list((details or {}).get("groups", ()))

    def all(self) -> tuple[datetime, Sequence[Mapping[str, Any]]]:
        """Return the current time, to judge freshness, and all agents."""
        with self._db.read() as conn:
            rows = conn.execute(sa.select(agents).order_by(a.host)).mappings().all()
            return self._db.now(conn), [dict(row) for row in rows]


# Live metrics: the last hour of hosts that a user watches. A viewer requests a host's metrics,
# and the agent sends them as long as they are requested. No decision depends on them: lost
# samples are sent again.
#
#     store.samples.want("cmp-7")                 # by a POST; repeated while a user watches
#     store.samples.samples_of("cmp-7").hour      # changes nothing


s = samples.c
#: How long a request for a host's metrics lasts.
WANTED = timedelta(minutes=5)
#: A repeated request is written only after this time, so that a page's polls cause few writes.
AGAIN = WANTED / 5
#: Most hosts with live metrics; above this the latest requested stay.
MOST_HOSTS = 200
#: Metrics received earlier than this are not current.
FRESH = timedelta(seconds=4 * model.EVERY_S)


@dataclass(frozen=True)
class WatchedHost:
    """The stored metrics of a host and their request state."""

    host: str
    hour: Hour  # metrics.history.NOTHING if no samples came yet
    at: datetime | None  # when the last samples came
    wanted_until: datetime | None  # None: never requested
    now: datetime

    @property
    def fresh(self) -> bool:
        """Tell whether samples are arriving now."""
        return self.at is not None and self.now - self.at < FRESH

    @property
    def wanted(self) -> bool:
        return self.wanted_until is not None and self.wanted_until > self.now


class SampleStore:
    """Live metrics of hosts; host names may be spelt in any way."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def want(self, host: str) -> datetime:
        """Request the host's metrics; return the time until which they are requested."""
        name = normalise(host)

        def action(conn: Connection) -> datetime:
            now = self._db.now(conn)
            until = now + WANTED
            row = conn.execute(sa.select(s.wanted_until).where(s.host == name)).first()
            if row is None:
                _make_room(conn)
                conn.execute(sa.insert(samples).values(host=name, wanted_until=until, body={}))
            elif row.wanted_until < until - AGAIN:
                mine = sa.update(samples).where(s.host == name)
                conn.execute(mine.values(wanted_until=until))
            else:
                return _date(row.wanted_until)
            return until

        return self._db.retry(action)

    def samples_of(self, host: str) -> WatchedHost:
        """Return the stored metrics of the host, without changing or requesting anything."""
        name = normalise(host)
        with self._db.read() as conn:
            now = self._db.now(conn)
            row = conn.execute(sa.select(samples).where(s.host == name)).first()
        if row is None:
            return WatchedHost(name, model.NOTHING, None, None, now)
        return WatchedHost(name, _hour(row), row.at, row.wanted_until, now)

    def there(self, most: int) -> Sequence[str]:
        """Return hosts with samples received within the last hour, latest first."""
        with self._db.read() as conn:
            since = self._db.now(conn) - timedelta(seconds=model.POINTS * model.EVERY_S)
            reported = sa.select(s.host).where(s.at > since).order_by(s.at.desc(), s.host)
            return list(conn.execute(reported.limit(most)).scalars())

    def wanted(self) -> dict[str, int]:
        """Return the hosts with requested metrics and the last known slot of each; -1: none."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            query = sa.select(s.host, s.last_slot).where(s.wanted_until > now)
            return {row.host: _last(row) for row in conn.execute(query)}

    def wanted_of(self, host: str) -> int | None:
        """Return the last known slot of the host, -1 if none; None if not requested."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            mine = sa.select(s.last_slot).where(s.host == normalise(host), s.wanted_until > now)
            row = conn.execute(mine).first()
        return None if row is None else _last(row)

    def put(self, host: str, new: Hour) -> bool:
        """Store samples of a host; tell whether a request for the host's metrics existed.

        Samples that no user requested are dropped. InvalidInput if the samples lie in the
        future.
        """
        name = normalise(host)

        def action(conn: Connection) -> bool:
            now = self._db.now(conn)
            if new.end > model.slot_of(now.timestamp()) + model.POINTS:
                raise InvalidInput(f"samples: the clock of {name} is more than an hour ahead")
            query = sa.select(samples).where(s.host == name)
            if conn.dialect.name != "sqlite":
                query = query.with_for_update()
            row = conn.execute(query).first()
            if row is None:
                return False
            hour = model.merged(_hour(row), new)
            values = {"at": now, "last_slot": hour.end - 1, "body": model.plain(hour)}
            conn.execute(sa.update(samples).where(s.host == name).values(**values))
            return True

        return bool(new.points) and self._db.retry(action)


def _make_room(conn: Connection) -> None:
    """Delete the hosts with the oldest requests to make room for a new host."""
    oldest = sa.select(s.host).order_by(s.wanted_until.desc(), s.host).offset(MOST_HOSTS - 1)
    over = conn.execute(oldest.limit(10 * MOST_HOSTS)).scalars().all()
    if over:
        conn.execute(sa.delete(samples).where(s.host.in_(over)))


def _hour(row: Any) -> Hour:
    return model.NOTHING if row.at is None else model.read(row.body)


def _last(row: Any) -> int:
    return -1 if row.last_slot is None else int(row.last_slot)


def _date(value: Any) -> datetime:
    assert isinstance(value, datetime)
    return value
