# SPDX-License-Identifier: Apache-2.0
"""In-memory capacity cache: hosts and holds, refreshed with only the changed rows.

Every change of a host or of its holds raises the host's generation and sets `touched_at`. A
refresh reads the rows touched since the previous refresh, minus an overlap of 15 s (OVERLAP),
because a transaction becomes visible at its commit, not when it wrote `touched_at`. A `sure`
refresh also finds a writer that was frozen for longer: generations only grow and host rows are
never deleted. Therefore, if the host count and the sum of generations equal the cached values,
every host is unchanged.
"""

import functools
import threading
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import booking
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.host_rows import USABLE, load
from holdfast.db.tables import allocations, hosts
from holdfast.model.capacity import CapacitySnapshot, Line
from holdfast.model.host import Host

h, a = hosts.c, allocations.c
#: How long a transaction may take from its write to its commit so that every refresh sees it.
OVERLAP = timedelta(seconds=15)
#: How often the spare hosts of segments are read; they are also read before every refusal.
SPARES_AGE = timedelta(seconds=5)
#: Holds read at a time: fewer rows than trigger Python's garbage collector.
ROWS = 500
_EPOCH = datetime(1970, 1, 1)
#: Holds of a host as columns, also to avoid garbage collection: a cold start reads a million.
_Holds = tuple[list[float], list[float], list[Mapping[str, int] | None]]
_CAN_BE_RESERVED = (h.enrolled.is_(True), h.reservable.is_(True), USABLE)


class CapacityCache:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._lock = threading.Lock()
        # Refreshes begun; the last refresh that succeeded; the last `sure` refresh that
        # succeeded.
        self._refreshes = self._seen = self._seen_surely = 0
        self._known: dict[int, tuple[int, datetime | None]] = {}
        self._since: datetime | None = None
        self._spares_at: datetime | None = None
        self._lines: dict[int, Line] = {}
        self._snapshot = CapacitySnapshot(lines=self._lines)

    def snapshot(self, *, sure: bool = False) -> CapacitySnapshot:
        """Return the current capacity snapshot.

        A caller that waited for another caller's refresh gets that result, if the refresh began
        after the call.
        """
        asked = self._refreshes
        with self._lock:
            if (self._seen_surely if sure else self._seen) <= asked:
                self._refreshes += 1
                self._refresh(sure)
                self._seen = self._refreshes
                if sure:
                    self._seen_surely = self._refreshes
            return self._snapshot

    def _refresh(self, sure: bool) -> None:
        with self._db.read() as conn:
            now = self._db.now(conn)
            if self._since is None:
                self._read_again(conn, now)
            else:
                self._read_again(conn, now, h.touched_at > self._since - OVERLAP)
                if sure and not self._knows_all(conn):
                    self._read_again(conn, now)
            self._since = now
            if sure or self._spares_at is None or now - self._spares_at > SPARES_AGE:
                self._renew_spares(conn, now)

    def _knows_all(self, conn: Connection) -> bool:
        count, generations = conn.execute(_ALL).one()
        known = sum(generation for generation, _at in self._known.values())
        return bool(count == len(self._known) and (generations or 0) == known)

    def _read_again(self, conn: Connection, now: datetime, *where: sa.ColumnElement[bool]) -> None:
        """Reload the changed hosts among these hosts."""
        rows = conn.execute(sa.select(h.id, h.generation, h.updated_at).where(*where)).all()
        stale = {i: (gen, at) for i, gen, at in rows if self._known.get(i) != (gen, at)}
        differing = [i for i, (_gen, at) in stale.items() if self._facts_differ(i, at)]
        if differing:
            self._renew_facts(conn, differing)
        if stale:
            self._renew_lines(conn, stale, now)
            self._snapshot.changes += 1
        self._known.update(stale)

    def _facts_differ(self, host_id: int, at: datetime | None) -> bool:
        """Tell whether the host itself may have changed, not only its holds.

        Two changes at the same instant have the same time: a row that was new at the last
        refresh may have changed again.
        """
        known = self._known.get(host_id)
        if known is None or known[1] != at:
            return True
        return at is not None and self._since is not None and at >= self._since

    def _renew_facts(self, conn: Connection, ids: Collection[int]) -> None:
        """Build a new snapshot; callers that plan with the old snapshot continue with it."""
        now: dict[int, Host] = dict(self._snapshot.hosts)
        for host_id in ids:
            now.pop(host_id, None)
        for some in portions(ids):
            for host in load(conn, h.id.in_(some), *_CAN_BE_RESERVED):
                now[host.id] = host
        in_order = dict(sorted(now.items()))
        self._snapshot = self._snapshot.renewed(in_order)

    def _renew_spares(self, conn: Connection, now: datetime) -> None:
        spares = booking.spares(conn)
        if spares != self._snapshot.spares:
            self._snapshot = self._snapshot.ignoring_spares(spares)
        self._spares_at = now

    def _renew_lines(self, conn: Connection, ids: Collection[int], now: datetime) -> None:
        for some in portions(ids):
            holds: dict[int, _Holds] = {host_id: ([], [], []) for host_id in some}
            result = conn.execute(_HOLDS, {"ids": list(some), "now": now})
            for rows in result.partitions(ROWS):
                for host_id, start, end, slots, takes in rows:
                    starts, ends, parts = holds[host_id]
                    starts.append((start - _EPOCH).total_seconds())
                    ends.append((end - _EPOCH).total_seconds())
                    parts.append(None if slots is None else _shared(takes))
            for host_id, mine in holds.items():
                self._lines[host_id] = Line(zip(*mine, strict=True))


_ALL = sa.select(sa.func.count(), sa.func.sum(h.generation)).select_from(hosts)

#: Times as the driver returns them, also because a cold start reads a million holds.
_HOLDS = sa.select(
    a.host_id,
    sa.type_coerce(a.held_from, sa.DateTime()),
    sa.type_coerce(a.held_until, sa.DateTime()),
    a.slots,
    a.takes,
).where(
    a.host_id.in_(sa.bindparam("ids", expanding=True)),
    a.held_until > sa.bindparam("now", type_=a.held_until.type),
)


def _shared(takes: Mapping[str, Any] | None) -> Mapping[str, int]:
    """Return a shared dictionary for all slots of the same size."""
    return _one_of(tuple(sorted((takes or {}).items())))


@functools.lru_cache(maxsize=10_000)
def _one_of(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)
