# SPDX-License-Identifier: Apache-2.0
"""Views of host monitors as rows, registrations of monitors, and votes about hosts.

The API writes a monitor's view every few seconds; the vote count reads the views. The
registration is a row of another table, which stays when a monitor falls silent. Only registered
monitors count; views of others appear only in the list of monitors.

Mostly a monitor sees the same as before. Then the API writes only the time, and no process
reads the view again, which may name thousands of hosts.
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

from holdfast.db import audit
from holdfast.db.engine import Database
from holdfast.db.host_rows import by_name
from holdfast.db.observations import HOST, is_registered, known_name, words
from holdfast.db.operations import apply_work, put, update_claimed
from holdfast.db.tables import hosts, monitors, operations, registered_monitors
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise, short
from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import (
    FRESH_BEATS,
    HOST_VOTES,
    Ballot,
    Listed,
    MonitorReport,
    Picture,
    Registration,
    View,
    picture,
    work_of,
)
from holdfast.ports.ledger import Work

m, o, r = monitors.c, operations.c, registered_monitors.c
_WHEN = (m.observer, m.kind, m.at, m.seen_at, m.heartbeat_s, m.digest)
#: A monitor without a view for this long is deleted.
FORGOTTEN = timedelta(days=7)
#: Most hosts for which one view starts a vote count; the next view starts the rest.
MOST_AT_ONCE = 200


class MonitorStore:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._pictures: dict[str, tuple[str, Picture]] = {}  # by observer, with their digests
        self._lock = threading.Lock()

    def put(self, observer: str, at: datetime, body: Mapping[str, Any]) -> None:
        """Store a monitor's view; a view older than the stored view changes nothing.

        Raises InvalidMatrix if the HA matrix in the view is invalid.
        """
        seen = picture(body)
        digest = _digest(body)

        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            old = conn.execute(sa.select(*_WHEN).where(m.observer == observer)).first()
            was_heard = old is not None and is_fresh(old, now)
            observed_at = min(at, now)  # a clock that is ahead must not outdate later views
            if old is not None and was_heard and observed_at < old.at:
                return  # if the monitor was silent, its clock was set back instead
            _write(conn, old, observer, {"at": observed_at, "seen_at": now}, (digest, body))
            gone = sa.select(m.observer).where(m.seen_at < now - FORGOTTEN)
            for name in conn.execute(gone).scalars().all():
                conn.execute(sa.delete(monitors).where(m.observer == name))
            if is_registered(conn, observer):
                _have_counted(conn, seen, now)

        self._db.retry(action)

    def views(self) -> tuple[datetime, Sequence[View]]:
        """Return the current time, to judge freshness, and the views of registered monitors."""
        now, listed = self.listed(registered=True)
        return now, [monitor.view for monitor in listed if monitor.view is not None]

    def listed(self, *, registered: bool = False) -> tuple[datetime, Sequence[Listed]]:
        """Return all monitors with a registration or a view; with `registered` only registered."""
        query = sa.select(*_WHEN)
        if registered:
            query = query.join(registered_monitors, r.observer == m.observer)
        with self._db.read() as conn:
            rows = conn.execute(query).all()
            views = {row.observer: self._view(conn, row) for row in rows}
            made = conn.execute(sa.select(r.observer, r.registered_by, r.created_at)).all()
            now = self._db.now(conn)
        registrations = {observer: Registration(observer, by, at) for observer, by, at in made}
        names = sorted({*views, *registrations})
        return now, [Listed(name, registrations.get(name), views.get(name)) for name in names]

    def _view(self, conn: Connection, row: Any) -> View:
        about = row.observer, row.kind, row.at, row.seen_at, row.heartbeat_s
        return View(*about, self._picture(conn, row))

    # registration

    def is_registered(self, observer: str) -> bool:
        with self._db.read() as conn:
            return is_registered(conn, observer)

    def register(self, observer: str, by: str) -> Registration:
        """Register a monitor: its reports are votes from now on.

        Views stored under its name are deleted, because another client may have sent them. A
        repeated call changes nothing.
        """

        def action(conn: Connection) -> Registration:
            mine = sa.select(r.registered_by, r.created_at).where(r.observer == observer)
            if (row := conn.execute(mine).first()) is not None:
                return Registration(observer, *row)
            now = self._db.now(conn)
            made = {"observer": observer, "registered_by": by[:255], "created_at": now}
            conn.execute(sa.insert(registered_monitors).values(**made))
            conn.execute(sa.delete(monitors).where(m.observer == observer))
            _say(conn, observer, "is registered: it votes", now)
            return Registration(observer, by[:255], now)

        return self._db.retry(action)

    def unregister(self, observer: str) -> None:
        """Unregister a monitor: its reports are no votes any more; NotFound.

        The monitor is listed only if it continues to send views.
        """

        def action(conn: Connection) -> None:
            gone = sa.delete(registered_monitors).where(r.observer == observer)
            if not conn.execute(gone).rowcount:
                raise NotFound(f"no host monitor {observer[:80]} is registered")
            conn.execute(sa.delete(monitors).where(m.observer == observer))
            _say(conn, observer, "is unregistered: it votes no more", self._db.now(conn))

        self._db.retry(action)

    def _picture(self, conn: Connection, row: Any) -> Picture:
        with self._lock:
            known = self._pictures.get(row.observer)
        if known is not None and known[0] == row.digest:
            return known[1]
        query = sa.select(m.digest, m.body).where(m.observer == row.observer)
        stored = conn.execute(query).one()
        read = picture(stored.body)
        with self._lock:
            self._pictures[row.observer] = stored.digest, read
        return read


def _say(conn: Connection, observer: str, what: str, now: datetime) -> None:
    subject = f"monitor:{observer}"[:128]
    audit.write(conn, now, subject, None, f"host monitor {observer} {what}")


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
    """Start vote counts for hosts that the view shows as failed and that are not counted now.

    A report already starts a count. If that count had no result, because its monitor was silent
    for long or the other monitors saw otherwise, the view starts another count.
    """
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
    """Tell whether the row's monitor or agent sent a heartbeat lately."""
    return bool(now - row.seen_at <= timedelta(seconds=FRESH_BEATS * row.heartbeat_s))


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# All views and reports about a host: `ports.recovery.Votes` in SQL.


class VoteStore:
    def __init__(self, database: Database, monitors: MonitorStore) -> None:
        self._db = database
        self._monitors = monitors

    def ballot(self, host: str) -> Ballot:
        now, listed = self._monitors.listed(registered=True)
        views = [monitor.view for monitor in listed if monitor.view is not None]
        with self._db.read() as conn:
            name = known_name(conn, host)
            called = {view.picture.name(name) for view in views}
            reportses = words(conn, {normalise(host), name, *(own for own in called if own)})
        latest: dict[str, MonitorReport] = {}
        for word in (monitor_report for some in reportses.values() for monitor_report in some):
            before = latest.get(word.observer)
            if before is None or word.at > before.at:
                latest[word.observer] = word
        return Ballot(name, now, len(listed), views, latest)

    def is_known(self, host: str) -> bool:
        query = sa.select(hosts.c.name).where(by_name(host))
        with self._db.read() as conn:
            names = conn.execute(query).scalars().all()
        return normalise(host) in names or len(names) == 1

    def remember(
        self, claim: Claim, payload: Mapping[str, Any], say: str, then: Sequence[Operation] = ()
    ) -> None:
        def action(conn: Connection) -> None:
            now = self._db.now(conn)
            update_claimed(conn, claim, payload=dict(payload), updated_at=now)
            put(conn, then, now)
            if say:
                audit.write(conn, now, f"{HOST}{payload['host']}", None, say)

        self._db.retry(action)
