# SPDX-License-Identifier: Apache-2.0
"""What each monitor sees now, as rows: written by the API every few seconds, read by who counts.

Most often a monitor sees what it saw before: then only the time is written, and nobody reads again
what may be the names of thousands of hosts.
"""

import hashlib
import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.host import short
from holdfast.model.votes import FRESH_BEATS, HOST_VOTES, Picture, View, picture, work_of
from holdfast.ports.ledger import Work
from holdfast.store.database import Database
from holdfast.store.observations import known_name
from holdfast.store.tables import monitors, operations
from holdfast.store.work import apply_work

m, o = monitors.c, operations.c
_WHEN = (m.observer, m.kind, m.at, m.seen_at, m.heartbeat_s, m.digest)
#: A monitor that was not heard of for so long is forgotten.
FORGOTTEN = timedelta(days=7)
#: For so many more hosts the votes are counted after one view; the next one has the rest.
MOST_AT_ONCE = 200


class MonitorStore:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._pictures: dict[str, tuple[str, Picture]] = {}  # by observer, with their digests
        self._lock = threading.Lock()

    def put(self, observer: str, at: datetime, body: Mapping[str, Any]) -> None:
        """Keep what it sees; what is older than what is kept changes nothing. BadStrategy."""
        seen = picture(body)
        digest = _digest(body)

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            old = conn.execute(sa.select(*_WHEN).where(m.observer == observer)).first()
            was_heard = old is not None and is_fresh(old, now)
            said = min(at, now)  # a clock that is ahead must not silence what comes after
            if old is not None and was_heard and said < old.at:
                return  # of one that was silent, it is the clock that was set back
            _write(conn, old, observer, {"at": said, "seen_at": now}, (digest, body))
            gone = sa.select(m.observer).where(m.seen_at < now - FORGOTTEN)
            for name in conn.execute(gone).scalars().all():
                conn.execute(sa.delete(monitors).where(m.observer == name))
            _have_counted(conn, seen, now)

        self._db.retry(action)

    def views(self) -> tuple[datetime, Sequence[View]]:
        """What all monitors see, and the time by which they are fresh or not."""
        with self._db.read() as conn:
            rows = conn.execute(sa.select(*_WHEN).order_by(m.observer)).all()
            pictures = {row.observer: self._picture(conn, row) for row in rows}
            now = self._db.now(conn)
        times = [(row.observer, row.kind, row.at, row.seen_at, row.heartbeat_s) for row in rows]
        return now, [View(*about, pictures[about[0]]) for about in times]

    def _picture(self, conn: Connection, row: Any) -> Picture:
        with self._lock:
            known = self._pictures.get(row.observer)
        if known is not None and known[0] == row.digest:
            return known[1]
        query = sa.select(m.digest, m.body).where(m.observer == row.observer)
        found = conn.execute(query).one()
        read = picture(found.body)
        with self._lock:
            self._pictures[row.observer] = found.digest, read
        return read


def _write(
    conn: Connection,
    old: Any,
    observer: str,
    times: Mapping[str, datetime],
    seen: tuple[str, Mapping[str, Any]],
) -> None:
    digest, body = seen
    values: dict[str, Any] = dict(times)
    if old is None or old.digest != digest:
        about = {"kind": body["kind"], "heartbeat_s": body["heartbeat_s"]}
        values |= {**about, "digest": digest, "body": dict(body)}
    if old is None:
        made = {"observer": observer, "created_at": times["seen_at"]}
        conn.execute(sa.insert(monitors).values(**made, **values))
    else:
        values["updated_at"] = times["seen_at"]
        conn.execute(sa.update(monitors).where(m.observer == observer).values(**values))


def _have_counted(conn: Connection, seen: Picture, now: datetime) -> None:
    """A report has the votes counted; should it have come to nothing, because the one who made it
    was silent for long, or the others saw otherwise then, what it still sees does."""
    bad = seen.bad()
    if not bad:
        return
    counting = sa.select(o.key).where(o.kind == HOST_VOTES, o.is_open.is_(True))
    known = {short(key.removeprefix(f"{HOST_VOTES}/")) for key in conn.execute(counting).scalars()}
    new = (host for host in sorted(bad) if short(host) not in known)
    for host in itertools.islice(new, MOST_AT_ONCE):
        work = work_of(known_name(conn, host), now)
        apply_work(conn, work.subject, Work(put=(work,)), now)


def is_fresh(row: Any, now: datetime) -> bool:
    """Whether who beats like that was heard of lately."""
    return bool(now - row.seen_at <= timedelta(seconds=FRESH_BEATS * row.heartbeat_s))


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
