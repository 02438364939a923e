# SPDX-License-Identifier: Apache-2.0
"""The last hour of hosts that somebody looks at: wanted by whoever looks, brought by their agents
for as long as it is wanted. Nobody's decision rests on it: what is lost is sent again.

    store.samples.want("cmp-7")          # by a POST; said again while somebody looks
    store.samples.look("cmp-7").hour     # changes nothing
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import samples as model
from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise
from holdfast.model.samples import Hour
from holdfast.store.database import Database
from holdfast.store.tables import samples

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
class Looked:
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

    def look(self, host: str) -> Looked:
        """What there is. To read it changes nothing, and wants nothing."""
        name = normalise(host)
        with self._db.read() as conn:
            now = self._db.now(conn)
            row = conn.execute(sa.select(samples).where(s.host == name)).first()
        if row is None:
            return Looked(name, model.NOTHING, None, None, now)
        return Looked(name, _hour(row), row.at, row.wanted_until, now)

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
            if new.end > model.slot(now.timestamp()) + model.POINTS:
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
