# SPDX-License-Identifier: Apache-2.0
"""Agents of hosts as rows: that each lives, and which rules it goes by. Written by the API."""

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


# The last hour of hosts that somebody looks at: wanted by whoever looks, brought by their agents
# for as long as it is wanted. Nobody's decision rests on it: what is lost is sent again.
#
#     store.samples.want("cmp-7")          # by a POST; said again while somebody looks
#     store.samples.look("cmp-7").hour     # changes nothing


s = samples.c
#: For so long numbers are wanted after somebody said so.
WANTED = timedelta(minutes=5)
#: A page that says so again and again is written down after this much of it.
AGAIN = WANTED / 5
#: Hosts that are looked at; of more, those that were wanted last stay.
MOST_HOSTS = 200
#: Numbers that came longer ago are not of now.
FRESH = timedelta(seconds=4 * model.EVERY_S)


@dataclass(frozen=True)
class WatchedHost:
    """What is there of a host."""

    host: str
    hour: Hour  # model.samples.NOTHING, if nothing came yet
    at: datetime | None  # when numbers came last
    wanted_until: datetime | None  # None: nobody ever looked
    now: datetime

    @property
    def fresh(self) -> bool:
        """Whether they come in just now."""
        return self.at is not None and self.now - self.at < FRESH

    @property
    def wanted(self) -> bool:
        return self.wanted_until is not None and self.wanted_until > self.now


class SampleStore:
    """Hosts by their names, however they are spelt."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def want(self, host: str) -> datetime:
        """Somebody looks at that host; until when its numbers are wanted now."""
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
        """What there is. To read it changes nothing, and wants nothing."""
        name = normalise(host)
        with self._db.read() as conn:
            now = self._db.now(conn)
            row = conn.execute(sa.select(samples).where(s.host == name)).first()
        if row is None:
            return WatchedHost(name, model.NOTHING, None, None, now)
        return WatchedHost(name, _hour(row), row.at, row.wanted_until, now)

    def there(self, most: int) -> Sequence[str]:
        """Hosts whose numbers came within the hour, those that came last first."""
        with self._db.read() as conn:
            since = self._db.now(conn) - timedelta(seconds=model.POINTS * model.EVERY_S)
            found = sa.select(s.host).where(s.at > since).order_by(s.at.desc(), s.host)
            return list(conn.execute(found.limit(most)).scalars())

    def wanted(self) -> dict[str, int]:
        """Hosts whose numbers are wanted now, and the last slot that is known of each; -1: none."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            query = sa.select(s.host, s.last_slot).where(s.wanted_until > now)
            return {row.host: _last(row) for row in conn.execute(query)}

    def wanted_of(self, host: str) -> int | None:
        """The last slot that is known, -1 if none is; None: nothing is wanted of that host."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            mine = sa.select(s.last_slot).where(s.host == normalise(host), s.wanted_until > now)
            row = conn.execute(mine).first()
        return None if row is None else _last(row)

    def put(self, host: str, new: Hour) -> bool:
        """Whether it was wanted at all: what nobody asked for is not kept. InvalidInput if it is of
        a time that is yet to come."""
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
    """For one more."""
    found = sa.select(s.host).order_by(s.wanted_until.desc(), s.host).offset(MOST_HOSTS - 1)
    over = conn.execute(found.limit(10 * MOST_HOSTS)).scalars().all()
    if over:
        conn.execute(sa.delete(samples).where(s.host.in_(over)))


def _hour(row: Any) -> Hour:
    return model.NOTHING if row.at is None else model.read(row.body)


def _last(row: Any) -> int:
    return -1 if row.last_slot is None else int(row.last_slot)


def _date(value: Any) -> datetime:
    assert isinstance(value, datetime)
    return value
