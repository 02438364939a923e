# SPDX-License-Identifier: Apache-2.0
"""The one door through which anything becomes somebody's: within the transaction of a booking.

Hosts and things are rows at which bookings queue. Whoever has the rows looks who else holds them,
and goes on only if all holds together can be; whoever was slower gets StaleWrite and looks again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import floatingip
from holdfast.model.errors import StaleWrite
from holdfast.model.lease import Allocation, Lease, Window
from holdfast.model.stock import hold_of
from holdfast.model.timeline import Hold, too_much
from holdfast.store import failover
from holdfast.store.host_rows import USABLE
from holdfast.store.inventories import capacity
from holdfast.store.tables import allocations, floatingips, hosts, things

T = TypeVar("T")
h, a = hosts.c, allocations.c
#: As many at a time as every database takes in one statement.
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
    patient: bool = True,
    spared: bool = False,
) -> None:
    """Take what the new leases hold, less what the old ones held already; StaleWrite when that
    cannot be. `spared`: also of what segments keep free for this case."""
    wanted = [more for old, new in steps for more in _more(old, new)]
    changed = {host_id for old, new in steps for host_id in _changed(old, new)}
    take(conn, changed, now, patient=patient)
    own = [reservation.id for _old, new in steps for reservation in new.reservations]
    held = [allocation for _old, new in steps for allocation in new.allocations()]
    lost, guarded = _lost_hosts(conn, wanted, held, own, now)
    if guarded and not spared:
        before = [allocation for old, _new in steps if old for allocation in old.allocations()]
        for segment in sorted(guarded):
            take_thing(conn, failover.key(segment))
        booking = failover.Booking(before, held, own)
        lost |= failover.eaten(conn, guarded, booking, now)
    lost |= _lost_things(conn, wanted, own)
    if lost:
        raise StaleWrite(f"{', '.join(sorted(lost))}: taken by another booking meanwhile")


def take(conn: Connection, ids: Collection[int], now: datetime, *, patient: bool = True) -> None:
    """Own the rows of these hosts until the commit: the queue in which bookings stand. Who is not
    patient does not stand in it: StaleWrite at once, there may be other hosts."""
    for some in portions(sorted(ids)):
        if conn.dialect.name != "sqlite":  # in one order for all, or two of us wait for each other
            conn.execute(_QUEUE if patient else _QUEUE_OR_GO, {"ids": some})
        conn.execute(_TOUCH, {"its_ids": some, "now": now})


# Every booking goes through these: they are built once, building costs more than running.
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
    sa.select(h.id, failover.SEGMENT, h.inventories, h.vcpus, h.memory_mb, h.local_gb)
    .select_from(failover.HOSTS)
    .where(
        h.id.in_(sa.bindparam("ids", expanding=True)),
        h.enrolled.is_(True),
        h.reservable.is_(True),
        USABLE,
    )
)


def _changed(old: Lease | None, new: Lease) -> set[int]:
    """Hosts of which somebody holds more or less than before: all who plan must hear of it."""

    def facts(lease: Lease | None) -> set[Any]:
        if lease is None:
            return set()
        return {
            (one.host_id, one.held, one.slots, *sorted(one.takes.items()))
            for one in lease.allocations()
        }

    return {host_id for host_id, *_ in facts(old) ^ facts(new) if host_id is not None}


def _more(old: Lease | None, new: Lease) -> list[Allocation]:
    """What must be looked at: holds that are new, longer or larger than before."""
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
    as_long = was.held.start <= now.held.start and now.held.end <= was.held.end
    if was.slots is None or now.slots is None:
        return as_long and was.slots == now.slots
    fewer = all(amount <= was.takes.get(name, 0) for name, amount in now.takes.items())
    return as_long and now.slots <= was.slots and fewer


def _hosts(some: Iterable[Allocation]) -> set[int]:
    return {one.host_id for one in some if one.host_id is not None}


def _lost_hosts(
    conn: Connection,
    wanted: Sequence[Allocation],
    held: Sequence[Allocation],
    own: Sequence[str],
    now: datetime,
) -> tuple[set[str], set[str]]:
    """Hosts that cannot be had; segments of which some must be kept free."""
    ids = _hosts(wanted)
    if not ids:
        return set(), set()
    mine: dict[int, list[Hold]] = {}
    for allocation in held:
        if allocation.host_id in ids:
            mine.setdefault(allocation.host_id, []).append(hold_of(allocation))
    span = _span(one for one in held if one.host_id in ids)
    others = _others(conn, ids, Window(max(span.start, now), span.end), own)
    room, guarded = _room(conn, ids)
    lost = {
        f"host {host_id}"
        for host_id in ids
        if host_id not in room
        or too_much(room[host_id], _ahead([*mine[host_id], *others.get(host_id, ())], now))
    }
    return lost, guarded


def _ahead(holds: Iterable[Hold], now: datetime) -> list[Hold]:
    """What is over is nobody's any more: who grows now, or on a host that has become smaller, is
    not judged by what was there before."""
    since = now.timestamp()
    return [one._replace(start=max(one.start, since)) for one in holds if one.end > since]


def _span(some: Iterable[Allocation]) -> Window:
    held = [one.held for one in some]
    return Window(min(one.start for one in held), max(one.end for one in held))


def _others(
    conn: Connection, ids: Collection[int], span: Window, own: Sequence[str]
) -> dict[int, list[Hold]]:
    found: dict[int, list[Hold]] = {}
    for some in portions(ids):
        bound = {"ids": some, "start": span.start, "end": span.end, "own": own}
        for host_id, start, end, slots, takes in conn.execute(_OTHERS, bound):
            part = None if slots is None else takes or {}
            hold = Hold(start.timestamp(), end.timestamp(), part)
            found.setdefault(host_id, []).append(hold)
    return found


def _room(conn: Connection, ids: Collection[int]) -> tuple[dict[int, Mapping[str, int]], set[str]]:
    """Capacity by host, of those that can be reserved at all; their segments that keep some."""
    found: dict[int, Mapping[str, int]] = {}
    guarded: set[str] = set()
    for some in portions(ids):
        for host_id, segment, *about in conn.execute(_ROOM, {"ids": some}):
            found[host_id] = capacity(*about)
            if segment is not None:
                guarded.add(segment)
    return found, guarded


def _lost_things(conn: Connection, wanted: Sequence[Allocation], own: Sequence[str]) -> set[str]:
    asked = {one.thing: one.held for one in wanted if one.thing is not None}
    lost: set[str] = set()
    for key, window in sorted(asked.items()):
        take_thing(conn, key)
        query = sa.select(a.id).where(
            a.thing == key,
            a.held_from < window.end,
            a.held_until > window.start,
            a.reservation_id.not_in(own),
        )
        if conn.execute(query).first() is not None:
            lost.add(key)
    return lost | _withdrawn(conn, asked)


def _withdrawn(conn: Connection, keys: Collection[str]) -> set[str]:
    """Those of the keys that mean a floating IP which is not enrolled any more."""
    ids = {floatingip.id_of(key): key for key in keys if floatingip.is_key(key)}
    found: set[str] = set()
    for some in portions(ids):
        query = sa.select(floatingips.c.id).where(floatingips.c.id.in_(some))
        found.update(conn.execute(query).scalars())
    return {key for one, key in ids.items() if one not in found}


def take_thing(conn: Connection, key: str) -> None:
    """Own the row of that thing until the commit."""
    mine = sa.update(things).where(things.c.key == key)
    if conn.execute(mine.values(generation=things.c.generation + 1)).rowcount == 0:
        conn.execute(sa.insert(things).values(key=key, generation=1))
