# SPDX-License-Identifier: Apache-2.0
"""Booking of hosts, slots and lockable resources, within the transaction of a lease write.

Concurrent bookings queue at row locks of hosts and lockable resources. The transaction that has
the locks reads all other holds and continues only if all holds together fit. A slower booking
gets StaleWrite and plans again. The module also keeps spare hosts of segments free and counts
quotas of projects.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection

from holdfast.db import audit
from holdfast.db.engine import Database
from holdfast.db.host_rows import USABLE, capacity
from holdfast.db.tables import (
    allocations,
    floatingips,
    hosts,
    leases,
    projects,
    reservations,
    resource_locks,
    segment_hosts,
    segments,
)
from holdfast.model import floatingip
from holdfast.model.capacity import Hold, hold_of, too_much
from holdfast.model.errors import NotFound, QuotaExceeded, StaleWrite
from holdfast.model.lease import Allocation, Lease, Window
from holdfast.model.segment import Capacity, Span, Spare, first_short, free_over, least
from holdfast.ports.ledger import Limits

# Spare hosts: segments keep hosts free in case others fail. This part reads which hosts belong
# to such segments, checks within the transaction whether a booking leaves enough, and reports
# the capacity of the days ahead. `model/segment.py` holds the rule.


a, h, s, sh = allocations.c, hosts.c, segments.c, segment_hosts.c
#: How far ahead the report looks.
AHEAD = timedelta(days=30)
_CAN_BE_RESERVED = sa.and_(h.enrolled.is_(True), h.reservable.is_(True), USABLE)

#: Hosts, each joined with its segment if that segment keeps hosts free.
HOSTS = hosts.outerjoin(segment_hosts, sh.host_id == h.id).outerjoin(
    segments, sa.and_(s.id == sh.segment_id, s.spare_hosts > 0)
)
SEGMENT = s.uuid.label("segment")

_SPARES = (
    sa.select(s.uuid, s.name, s.spare_hosts, sh.host_id)
    .select_from(segments.outerjoin(segment_hosts, sh.segment_id == s.id))
    .where(s.spare_hosts > 0, sa.or_(sh.id.is_(None), sh.on_maintenance.is_(False)))
    .order_by(s.uuid)
)
_OF_SOME = (
    sa.select(s.uuid, s.name, s.spare_hosts, sh.host_id)
    .join(segment_hosts, sh.segment_id == s.id)
    .join(hosts, h.id == sh.host_id)
    .where(
        s.uuid.in_(sa.bindparam("ids", expanding=True)),
        sh.on_maintenance.is_(False),
        _CAN_BE_RESERVED,
    )
)
_HELD = (
    sa.select(a.host_id, a.held_from, a.held_until)
    .join(segment_hosts, sh.host_id == a.host_id)
    .join(segments, s.id == sh.segment_id)
    .where(
        s.uuid == sa.bindparam("segment"),
        a.held_from < sa.bindparam("end"),
        a.held_until > sa.bindparam("start"),
        a.reservation_id.not_in(sa.bindparam("own", expanding=True)),
    )
)
_BUSY = _HELD.with_only_columns(a.host_id).distinct()
_SEGMENTS = (
    sa.select(
        s.uuid,
        s.name,
        s.spare_hosts,
        sh.host_id,
        h.enrolled,
        sa.and_(_CAN_BE_RESERVED, sh.on_maintenance.is_(False)).label("usable"),
    )
    .select_from(
        segments.outerjoin(segment_hosts, sh.segment_id == s.id).outerjoin(
            hosts, h.id == sh.host_id
        )
    )
    .order_by(s.id)
)


def key(segment_id: str) -> str:
    """Return the key of the row lock at which bookings in the segment queue."""
    return f"segment:{segment_id}"


def spares(conn: Connection) -> tuple[Spare, ...]:
    """Return all segments that keep hosts free, for the capacity snapshot."""
    return tuple(_spares(conn.execute(_SPARES)))


def _spares(rows: Iterable[Any]) -> Iterable[Spare]:
    by_segment: dict[tuple[str, str, int], set[int]] = {}
    for uuid, name, kept, host_id in rows:
        members = by_segment.setdefault((uuid, name, kept), set())
        if host_id is not None:
            members.add(host_id)
    return [Spare(*about, frozenset(members)) for about, members in by_segment.items()]


@dataclass(frozen=True)
class Booking:
    """Holds of some leases before and after a booking, and the ids of their reservations."""

    before: Sequence[Allocation]
    after: Sequence[Allocation]
    own: Sequence[str]


def eaten(conn: Connection, ids: Collection[str], booking: Booking, now: datetime) -> set[str]:
    """Return, in words, the segments in which the booking leaves too few free hosts.

    The caller holds the row locks of these segments.
    """
    segments: set[str] = set()
    for spare in _spares(conn.execute(_OF_SOME, {"ids": sorted(ids)})):
        windows = [
            allocation.held for allocation in booking.after if allocation.host_id in spare.hosts
        ]
        if not windows:
            continue
        start = max(now, min(window.start for window in windows))
        end = max(window.end for window in windows)
        if start < end and _leaves_too_few(conn, spare, booking, start, end):
            segments.add(
                f"what segment {spare.name} may give beside the {spare.kept} it keeps free"
            )
    return segments


def _leaves_too_few(
    conn: Connection, spare: Spare, booking: Booking, start: datetime, end: datetime
) -> bool:
    bound = {"segment": spare.segment_id, "start": start, "end": end, "own": booking.own}
    busy = set(conn.execute(_BUSY, bound).scalars())
    busy |= {allocation.host_id for allocation in booking.after if allocation.host_id is not None}
    if len(spare.hosts - busy) >= spare.kept:
        return False  # enough hosts are free all the time
    others: dict[int, list[Span]] = {}
    for host_id, since, until in conn.execute(_HELD, bound):
        if host_id in spare.hosts:
            others.setdefault(host_id, []).append((since.timestamp(), until.timestamp()))
    span = start.timestamp(), end.timestamp()
    before, after = (
        free_over(len(spare.hosts), _with(others, spare, own).values(), *span)
        for own in (booking.before, booking.after)
    )
    return first_short(spare.kept, before, after) is not None


def _with(
    others: Mapping[int, Sequence[Span]], spare: Spare, own: Iterable[Allocation]
) -> Mapping[int, Sequence[Span]]:
    spans_of = {host_id: list(spans) for host_id, spans in others.items()}
    for allocation in own:
        if allocation.host_id is not None and allocation.host_id in spare.hosts:
            span = allocation.held.start.timestamp(), allocation.held.end.timestamp()
            spans_of.setdefault(allocation.host_id, []).append(span)
    return spans_of


class FailoverStore:
    """The failover report, and the number of hosts that a segment keeps free."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def report(self) -> Sequence[Capacity]:
        """Return the capacity of every segment, in the order of creation."""
        with self._db.read() as conn:
            now = self._db.now(conn)
            rows: dict[str, list[Any]] = {}
            for row in conn.execute(_SEGMENTS):
                rows.setdefault(row.uuid, []).append(row)
            return [_capacity(conn, some, now) for some in rows.values()]

    def keep(self, ref: str, kept: int) -> str:
        """Set how many hosts the segment (uuid or id) keeps free; return its uuid.

        Raises NotFound.
        """
        is_number = ref.isascii() and ref.isdigit() and len(ref) < 10
        named = s.id == int(ref) if is_number else s.uuid == ref

        def action(conn: Connection) -> str:
            now = self._db.now(conn)
            row = conn.execute(sa.select(s.uuid, s.name, s.spare_hosts).where(named)).first()
            if row is None:
                raise NotFound(f"no segment {ref}: `holdfast failover` shows them")
            values = {"spare_hosts": kept, "updated_at": now}
            conn.execute(sa.update(segments).where(s.uuid == row.uuid).values(**values))
            sentence = f"segment {row.name} keeps {kept} hosts free instead of {row.spare_hosts}"
            audit.write(conn, now, key(row.uuid), None, sentence)
            return str(row.uuid)

        return self._db.retry(action)


def _capacity(conn: Connection, rows: Sequence[Any], now: datetime) -> Capacity:
    first = rows[0]
    usable = {row.host_id for row in rows if row.usable}
    bound = {"segment": first.uuid, "start": now, "end": now + AHEAD, "own": []}
    busy: dict[int, list[Span]] = {}
    if usable:
        for host_id, since, until in conn.execute(_HELD, bound):
            if host_id in usable:
                busy.setdefault(host_id, []).append((since.timestamp(), until.timestamp()))
    since, until = now.timestamp(), (now + AHEAD).timestamp()
    steps = free_over(len(usable), busy.values(), since, until)
    at, fewest = least(steps)
    return Capacity(
        segment_id=first.uuid,
        name=first.name,
        kept=first.spare_hosts,
        members=sum(row.host_id is not None for row in rows),
        enrolled=sum(bool(row.enrolled) for row in rows),
        usable=len(usable),
        free=steps[0][1],
        least_free=fewest,
        least_free_at=now + timedelta(seconds=at - since),
    )


T = TypeVar("T")
h, a = hosts.c, allocations.c
#: As many ids as every database accepts in one statement.
PORTION = 500


def portions(some: Iterable[T]) -> Iterator[Sequence[T]]:
    every = list(some)
    return (every[at : at + PORTION] for at in range(0, len(every), PORTION))


#: A lease before and after.
Step = tuple[Lease | None, Lease]


def hold(
    conn: Connection,
    steps: Sequence[Step],
    now: datetime,
    *,
    wait_for_lock: bool = True,
    may_use_spares: bool = False,
) -> None:
    """Hold the resources of the new leases, minus those the old leases held; or StaleWrite.

    With `may_use_spares` the booking may use hosts that segments keep free for this case.
    """
    wanted = [more for old, new in steps for more in _more(old, new)]
    changed = {host_id for old, new in steps for host_id in _changed(old, new)}
    lock_hosts(conn, changed, now, wait_for_lock=wait_for_lock)
    own = [reservation.id for _old, new in steps for reservation in new.reservations]
    held = [allocation for _old, new in steps for allocation in new.allocations()]
    lost, guarded = _lost_hosts(conn, wanted, held, own, now)
    if guarded and not may_use_spares:
        before = [allocation for old, _new in steps if old for allocation in old.allocations()]
        for segment in sorted(guarded):
            lock_resource(conn, key(segment))
        booking = Booking(before, held, own)
        lost |= eaten(conn, guarded, booking, now)
    lost |= _lost_things(conn, wanted, own)
    if lost:
        raise StaleWrite(f"{', '.join(sorted(lost))}: taken by another booking meanwhile")


def lock_hosts(
    conn: Connection, ids: Collection[int], now: datetime, *, wait_for_lock: bool = True
) -> None:
    """Lock the rows of these hosts until the commit: the queue of bookings.

    Without `wait_for_lock` the call does not wait: StaleWrite at once, because there may be other
    hosts.
    """
    for some in portions(sorted(ids)):
        if conn.dialect.name != "sqlite":  # the same order for all, against deadlocks
            conn.execute(_QUEUE if wait_for_lock else _QUEUE_OR_GO, {"ids": some})
        conn.execute(_TOUCH, {"its_ids": some, "now": now})


# Every booking uses these statements. They are built once, because building costs more than
# running.
_QUEUE = (
    sa.select(h.id)
    .where(h.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(h.id)
    .with_for_update()
)
_QUEUE_OR_GO = _QUEUE.with_for_update(nowait=True)
_TOUCH = (
    sa.update(hosts)
    .where(h.id.in_(sa.bindparam("its_ids", expanding=True)))
    .values(generation=h.generation + 1, touched_at=sa.bindparam("now"))
)
_OTHERS = sa.select(a.host_id, a.held_from, a.held_until, a.slots, a.takes).where(
    a.host_id.in_(sa.bindparam("ids", expanding=True)),
    a.held_from < sa.bindparam("end"),
    a.held_until > sa.bindparam("start"),
    a.reservation_id.not_in(sa.bindparam("own", expanding=True)),
)
_ROOM = (
    sa.select(h.id, SEGMENT, h.inventories, h.vcpus, h.memory_mb, h.local_gb)
    .select_from(HOSTS)
    .where(
        h.id.in_(sa.bindparam("ids", expanding=True)),
        h.enrolled.is_(True),
        h.reservable.is_(True),
        USABLE,
    )
)


def _changed(old: Lease | None, new: Lease) -> set[int]:
    """Return hosts whose holds change; all planners have to learn of the change."""

    def facts(lease: Lease | None) -> set[Any]:
        if lease is None:
            return set()
        return {
            (
                allocation.host_id,
                allocation.held,
                allocation.slots,
                *sorted(allocation.takes.items()),
            )
            for allocation in lease.allocations()
        }

    return {host_id for host_id, *_ in facts(old) ^ facts(new) if host_id is not None}


def _more(old: Lease | None, new: Lease) -> list[Allocation]:
    """Return the holds to check: those that are new, longer or larger than before."""
    before: dict[tuple[str, Any], list[Allocation]] = {}
    for reservation in old.reservations if old else ():
        for allocation in reservation.allocations:
            before.setdefault((reservation.id, _place(allocation)), []).append(allocation)
    return [
        allocation
        for reservation in new.reservations
        for allocation in reservation.allocations
        if not any(
            _covers(was, allocation) for was in before.get((reservation.id, _place(allocation)), ())
        )
    ]


def _place(allocation: Allocation) -> tuple[int | None, str | None]:
    return allocation.host_id, allocation.thing


def _covers(was: Allocation, now: Allocation) -> bool:
    as_long = was.held.contains(now.held)
    if was.slots is None or now.slots is None:
        return as_long and was.slots == now.slots
    fewer = all(amount <= was.takes.get(name, 0) for name, amount in now.takes.items())
    return as_long and now.slots <= was.slots and fewer


def _hosts(some: Iterable[Allocation]) -> set[int]:
    return {allocation.host_id for allocation in some if allocation.host_id is not None}


def _lost_hosts(
    conn: Connection,
    wanted: Sequence[Allocation],
    held: Sequence[Allocation],
    own: Sequence[str],
    now: datetime,
) -> tuple[set[str], set[str]]:
    """Return hosts that cannot be booked, and segments that must keep hosts free."""
    ids = _hosts(wanted)
    if not ids:
        return set(), set()
    holdses: dict[int, list[Hold]] = {}
    for allocation in held:
        if allocation.host_id in ids:
            holdses.setdefault(allocation.host_id, []).append(hold_of(allocation))
    span = _span(allocated for allocated in held if allocated.host_id in ids)
    others = _others(conn, ids, Window(max(span.start, now), span.end), own)
    room, guarded = _room(conn, ids)
    lost = {
        f"host {host_id}"
        for host_id in ids
        if host_id not in room
        or too_much(room[host_id], _ahead([*holdses[host_id], *others.get(host_id, ())], now))
    }
    return lost, guarded


def _ahead(holds: Iterable[Hold], now: datetime) -> list[Hold]:
    """Drop ended holds and cut the past off the others.

    A reservation that grows now, or on a host that became smaller, must not be judged by past
    holds.
    """
    since = now.timestamp()
    return [hold._replace(start=max(hold.start, since)) for hold in holds if hold.end > since]


def _span(some: Iterable[Allocation]) -> Window:
    windows = [allocation.held for allocation in some]
    return Window(min(window.start for window in windows), max(window.end for window in windows))


def _others(
    conn: Connection, ids: Collection[int], span: Window, own: Sequence[str]
) -> dict[int, list[Hold]]:
    holdses: dict[int, list[Hold]] = {}
    for some in portions(ids):
        bound = {"ids": some, "start": span.start, "end": span.end, "own": own}
        for host_id, start, end, slots, takes in conn.execute(_OTHERS, bound):
            part = None if slots is None else takes or {}
            hold = Hold(start.timestamp(), end.timestamp(), part)
            holdses.setdefault(host_id, []).append(hold)
    return holdses


def _room(conn: Connection, ids: Collection[int]) -> tuple[dict[int, Mapping[str, int]], set[str]]:
    """Return the capacity of reservable hosts by id, and their segments with spare hosts."""
    capacities: dict[int, Mapping[str, int]] = {}
    guarded: set[str] = set()
    for some in portions(ids):
        for host_id, segment, *about in conn.execute(_ROOM, {"ids": some}):
            capacities[host_id] = capacity(*about)
            if segment is not None:
                guarded.add(segment)
    return capacities, guarded


def _lost_things(conn: Connection, wanted: Sequence[Allocation], own: Sequence[str]) -> set[str]:
    windows = {
        allocation.thing: allocation.held for allocation in wanted if allocation.thing is not None
    }
    lost: set[str] = set()
    for key, window in sorted(windows.items()):
        lock_resource(conn, key)
        query = sa.select(a.id).where(
            a.thing == key,
            a.held_from < window.end,
            a.held_until > window.start,
            a.reservation_id.not_in(own),
        )
        if conn.execute(query).first() is not None:
            lost.add(key)
    return lost | _withdrawn(conn, windows)


def _withdrawn(conn: Connection, keys: Collection[str]) -> set[str]:
    """Return the keys of floating IPs that are not enrolled any more."""
    ids = {floatingip.id_of(key): key for key in keys if floatingip.is_key(key)}
    present: set[str] = set()
    for some in portions(ids):
        query = sa.select(floatingips.c.id).where(floatingips.c.id.in_(some))
        present.update(conn.execute(query).scalars())
    return {key for address, key in ids.items() if address not in present}


def lock_resource(conn: Connection, key: str) -> None:
    """Lock the row of this key until the commit."""
    mine = sa.update(resource_locks).where(resource_locks.c.key == key)
    if conn.execute(mine.values(generation=resource_locks.c.generation + 1)).rowcount == 0:
        conn.execute(sa.insert(resource_locks).values(key=key, generation=1))


# Quotas of projects, counted within the transaction of a booking.
#
# Bookings of a project queue at the project's row. Each therefore counts everything written
# before, and two bookings of which only one fits are never both accepted. No stored sum can go
# wrong: the usage is counted from the leases, so that ended or deleted leases free their quota
# at once.


#: States of leases without future usage.
OVER = ("TERMINATED", "DELETING")
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Figures:
    """Present and future usage of a project or a lease.

    Slots and lockable resources count as leases only.
    """

    leases: int = 0
    hosts: int = 0  # whole hosts of all leases together
    host_hours: float = 0.0  # of whole hosts, from now on


def check(
    conn: Connection,
    project_id: str,
    limits: Limits,
    now: datetime,
    *,
    old: Lease | None = None,
    new: Lease | None = None,
) -> None:
    """Raise QuotaExceeded if the project is above a limit; call this after all writes.

    Given the step from `old` to `new`, only growing figures are judged: a project above a limit
    that was set later can always give resources back. The call locks the project's row: after
    the rows of the lease, the hosts and the lockable resources, before the rows of the work.
    """
    _count(conn, project_id)
    has = figures(conn, project_id, now, hosts=_counts_hosts(limits))
    before = of_lease(old, now) if old else Figures()
    _judge(project_id, limits, has, before, of_lease(new, now) if new else None)


def foresee(
    conn: Connection, limits: Limits, now: datetime, *, old: Lease | None, new: Lease
) -> None:
    """Raise QuotaExceeded before anything is written, as far as a dry run can know."""
    has = figures(conn, new.project_id, now, hosts=_counts_hosts(limits))
    before, after = of_lease(old, now) if old else Figures(), of_lease(new, now)
    would = Figures(
        has.leases - before.leases + after.leases,
        has.hosts - before.hosts + after.hosts,
        has.host_hours - before.host_hours + after.host_hours,
    )
    _judge(new.project_id, limits, would, before, after)


def _counts_hosts(limits: Limits) -> bool:
    return (limits.hosts, limits.host_hours) != (None, None)


def _judge(
    project_id: str, limits: Limits, has: Figures, before: Figures, after: Figures | None
) -> None:
    for name, what in _WORDS.items():
        most, count = getattr(limits, name), getattr(has, name)
        grows = after is None or getattr(after, name) > getattr(before, name)
        if most is not None and count > most and grows:
            raise QuotaExceeded(
                f"project {project_id} may have {most} {what} and would have {_said(count)}:"
                " delete or shorten one of its leases, ask for less, or have an administrator"
                f" raise [enforcement] max_{name} or the project's own quota",
                figure=name,
                limit=most,
                wanted=count,
            )


def figures(conn: Connection, project_id: str, now: datetime, *, hosts: bool = True) -> Figures:
    """Return the project's usage as this transaction sees it; without `hosts` leases only."""
    bound = {"project": project_id, "now": now}
    count = conn.execute(_LEASES, bound).scalar_one()
    rows = conn.execute(_HOSTS, bound).all() if hosts else ()
    return Figures(
        leases=count,
        hosts=sum(row.hosts for row in rows),
        host_hours=sum(
            row.hosts * _hours(row.held_from, row.held_until, row.end_date, now) for row in rows
        ),
    )


def of_lease(lease: Lease, now: datetime) -> Figures:
    """Return the usage that a lease adds to the project."""
    if lease.status in OVER or lease.end <= now:
        return Figures()
    windows = [
        allocation.held
        for reservation in lease.reservations
        if reservation.status != "deleted"
        for allocation in reservation.allocations
        if allocation.host_id is not None and allocation.slots is None and allocation.held.end > now
    ]
    hours: Iterable[float] = (
        _hours(window.start, window.end, lease.end, now) for window in windows
    )
    return Figures(1, len(windows), sum(hours))


def _hours(start: datetime, until: datetime, end: datetime, now: datetime) -> float:
    """Return the hours from now on, without the time to clean the host after the lease."""
    return max(timedelta(0), min(until, end) - max(start, now)) / HOUR


def _count(conn: Connection, project_id: str) -> None:
    """Lock the project's row until the commit: the queue of the project's bookings."""
    mine = sa.update(projects).where(projects.c.id == project_id)
    mine = mine.values(generation=projects.c.generation + 1)
    if conn.execute(mine).rowcount == 0:
        conn.execute(_new(conn.dialect.name), {"id": project_id, "generation": 0})
        conn.execute(mine)  # if another booking inserted the row, this waits for that booking


def _new(dialect: str) -> Any:
    """Return an insert that ignores an existing row; a concurrent insert waits for the first."""
    if dialect == "postgresql":
        return postgresql.insert(projects).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(projects).on_conflict_do_nothing()
    return mysql.insert(projects).prefix_with("IGNORE")


_WORDS = {
    "leases": "leases that are not over",
    "hosts": "hosts in its leases",
    "host_hours": "host hours ahead",
}

_AHEAD = (
    leases.c.project_id == sa.bindparam("project"),
    leases.c.end_date > sa.bindparam("now"),
    leases.c.status.not_in(OVER),
)
_LEASES = sa.select(sa.func.count()).select_from(leases).where(*_AHEAD)
_HOSTS = (
    sa.select(
        allocations.c.held_from,
        allocations.c.held_until,
        leases.c.end_date,
        sa.func.count().label("hosts"),
    )
    .select_from(leases.join(reservations).join(allocations))
    .where(
        *_AHEAD,
        reservations.c.status != "deleted",
        allocations.c.host_id.is_not(None),
        allocations.c.slots.is_(None),
        allocations.c.held_until > sa.bindparam("now"),
    )
    .group_by(allocations.c.held_from, allocations.c.held_until, leases.c.end_date)
)


def _said(count: float) -> str:
    """Format a number rounded up: a value above the limit must look above the limit."""
    return f"{math.ceil(count * 10) / 10:g}"
