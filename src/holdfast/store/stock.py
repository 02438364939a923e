# SPDX-License-Identifier: Apache-2.0
"""Keeps the stock fresh: hosts and holds in memory, of which only what changed is read again.

Every change of a host or of who holds it raises the host's generation and says when. A look reads
what was touched since the look before, and a little earlier: a transaction is seen when it commits,
not when it wrote its time. A writer that was frozen for longer than that is found by a `sure` look,
which compares the generations of all hosts.
"""

import functools
import threading
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.host import Host
from holdfast.model.stock import Stock
from holdfast.model.timeline import Hold, Line
from holdfast.store.booking import portions
from holdfast.store.database import Database
from holdfast.store.host_rows import load
from holdfast.store.tables import allocations, hosts

h, a = hosts.c, allocations.c
#: How long a transaction may take from its write to its commit and still be seen by every look.
OVERLAP = timedelta(seconds=15)
_EPOCH = datetime(1970, 1, 1)


class StockKeeper:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._lock = threading.Lock()
        # How many looks were begun; which was the last that ended well, and the last sure one.
        self._looks = self._seen = self._seen_surely = 0
        self._known: dict[int, tuple[int, datetime | None]] = {}
        self._since: datetime | None = None
        self._lines: dict[int, Line] = {}
        self._stock = Stock(lines=self._lines)

    def stock(self, *, sure: bool = False) -> Stock:
        """The stock as it is now. Who waited while somebody looked has what that one saw, if that
        look began after the question."""
        asked = self._looks
        with self._lock:
            if (self._seen_surely if sure else self._seen) <= asked:
                self._looks += 1
                self._look(sure)
                self._seen = self._looks
                if sure:
                    self._seen_surely = self._looks
            return self._stock

    def _look(self, sure: bool) -> None:
        with self._db.read() as conn:
            now = self._db.now(conn)
            query = sa.select(h.id, h.generation, h.updated_at)
            if self._since is not None and not sure:
                query = query.where(h.touched_at > self._since - OVERLAP)
            rows = conn.execute(query).all()
            stale = {i: (gen, at) for i, gen, at in rows if self._known.get(i) != (gen, at)}
            told = [i for i, (_gen, at) in stale.items() if self._facts_at(i) != at]
            if told:
                self._renew_facts(conn, told)
            if stale:
                self._renew_lines(conn, stale, now)
            self._known.update(stale)
            self._since = now

    def _facts_at(self, host_id: int) -> datetime | str | None:
        known = self._known.get(host_id)
        return "never" if known is None else known[1]

    def _renew_facts(self, conn: Connection, ids: Collection[int]) -> None:
        """A new stock: who plans with the old one goes on with it."""
        now: dict[int, Host] = dict(self._stock.hosts)
        for host_id in ids:
            now.pop(host_id, None)
        for some in portions(ids):
            for host in load(conn, h.id.in_(some), h.enrolled.is_(True), h.reservable.is_(True)):
                now[host.id] = host
        in_order = dict(sorted(now.items()))
        self._stock = self._stock.renewed(in_order)

    def _renew_lines(self, conn: Connection, ids: Collection[int], now: datetime) -> None:
        for some in portions(ids):
            holds: dict[int, list[Hold]] = {host_id: [] for host_id in some}
            bound = {"ids": list(some), "now": now}
            for host_id, start, end, slots, takes in conn.execute(_HOLDS, bound):
                part = None if slots is None else _shared(takes)
                holds[host_id].append(Hold(_seconds(start), _seconds(end), part))
            for host_id, mine in holds.items():
                self._lines[host_id] = Line(mine)


#: Times as the driver gives them: a million rows pass here at a cold start.
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


def _seconds(when: datetime) -> float:
    return (when - _EPOCH).total_seconds()


def _shared(takes: Mapping[str, Any] | None) -> Mapping[str, int]:
    """One dictionary for all slots of one size."""
    return _one_of(tuple(sorted((takes or {}).items())))


@functools.lru_cache(maxsize=10_000)
def _one_of(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)
