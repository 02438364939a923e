# SPDX-License-Identifier: Apache-2.0
"""Planning that leaves free what segments keep for the case that hosts fail (`model/failover`).

A type plans as ever. If that would eat into what a segment keeps, as much of it stays as may be,
hosts that would eat on are taken out of the stock, and the type plans again: on other segments, on
hosts of which others have a part already, or with fewer hosts. Where no segment keeps anything this
costs one look at an empty tuple. Repair does not come here: it is what the hosts are kept for.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from holdfast.model.errors import NotEnoughHosts
from holdfast.model.failover import Short, Spare, Steps, compared, first_short, free_over
from holdfast.model.lease import Allocation, Window
from holdfast.model.stock import Stock
from holdfast.model.timeline import FOREVER
from holdfast.ports.ledger import Ledger
from holdfast.reserve.resource import Opening, Resource, Wish

#: So often a type plans anew; then nothing more of such a segment is taken than stays anyway.
MOST_PLANS = 8
#: At so many moments openings are looked for, gathered so many days further on at a time.
MOST_TRIES = 200
FURTHER_DAYS = (1, 4, 16, 64, 256, 1024)
DAY_S = 86_400.0
#: Leases begin on whole minutes.
MINUTE_S = 60.0
_REFUSED = "Not enough hosts available: "


def plan(resource: Resource, wish: Wish, stock: Stock, ledger: Ledger) -> tuple[Allocation, ...]:
    """What to hold, leaving free what is kept; NotEnoughHosts says which segment keeps it."""
    if not stock.spares:
        return resource.plan(wish, stock, ledger)
    left, shorts = stock, dict[str, Short]()
    for tries in range(MOST_PLANS + len(stock.spares)):
        try:
            holds = resource.plan(wish, left, ledger)
        except NotEnoughHosts as refused:
            if not shorts:
                raise
            raise _refused(refused, shorts.values()) from None
        courses = [_Course(spare, stock, wish.kept, holds) for spare in stock.spares]
        eaten = [(course, short) for course in courses if (short := course.short(holds))]
        if not eaten:
            return holds
        for course, short in eaten:
            shorts.setdefault(short.spare.segment_id, short)
            left = left.less(course.barred(holds, everything=tries >= MOST_PLANS))
    raise _refused(NotEnoughHosts(_REFUSED + "too many plans in vain"), shorts.values())


class _Course:
    """How many hosts of one segment are free while a plan lasts: before it, and by parts of it."""

    def __init__(
        self, spare: Spare, stock: Stock, kept: Sequence[Allocation], holds: Sequence[Allocation]
    ) -> None:
        self._spare = spare
        self._stock = stock
        self._kept = kept
        mine = [a.held for a in holds if a.host_id in spare.hosts]
        self._start = min((held.start.timestamp() for held in mine), default=0.0)
        self._end = max((held.end.timestamp() for held in mine), default=0.0)
        self._touched = bool(mine)

    def short(self, holds: Sequence[Allocation]) -> Short | None:
        """Whether that would eat into what is kept, and when first."""
        if not self._touched:
            return None
        after, ids = self._stock.plus(holds), self._members()
        hosts = [self._stock.hosts[host_id] for host_id in ids]
        if len(after.free(hosts, self._start, self._end)) >= self._spare.kept:
            return None  # so many are free all the time
        found = first_short(self._spare.kept, self._before(ids), self._steps(after, ids))
        if found is None:
            return None
        at, free = found
        return Short(self._spare, len(ids), free, datetime.fromtimestamp(at, UTC))

    def barred(self, holds: Sequence[Allocation], *, everything: bool) -> set[int]:
        """Hosts that nothing more may be taken of, if as much as possible of the plan stays; with
        `everything`, all that are not part of it."""
        ids = self._members()
        before = self._before(ids)
        stays = self._stays(holds, ids, before)
        after = self._stock.plus(stays)
        rest = ids - {a.host_id for a in stays}
        if everything:
            return rest
        kept = self._spare.kept
        critical = [
            at
            for at, was, now in compared(before, self._steps(after, ids))
            if now <= kept and now <= was
        ]
        return {host_id for host_id in rest if self._is_free(after, host_id, critical)}

    def _stays(
        self, holds: Sequence[Allocation], ids: Collection[int], before: Steps
    ) -> Sequence[Allocation]:
        """As many of the plan's as may be: those first that take no host that was free."""
        had = {a.host_id for a in self._kept}
        mine = [a for a in holds if a.host_id in ids]
        mine.sort(key=lambda a: (a.host_id not in had, self._was_free(a), -(a.slots or 0)))
        low, high = 0, len(mine)
        while low < high:
            middle = (low + high + 1) // 2
            after = self._steps(self._stock.plus(mine[:middle]), ids)
            if first_short(self._spare.kept, before, after):
                high = middle - 1
            else:
                low = middle
        return mine[:low]

    def _was_free(self, allocation: Allocation) -> bool:
        return self._stock.line(allocation.host_id or 0).is_free(self._start, self._end)

    def _members(self) -> set[int]:
        return {host_id for host_id in self._spare.hosts if host_id in self._stock.hosts}

    def _before(self, ids: Collection[int]) -> Steps:
        return self._steps(self._stock.plus(self._kept), ids)

    def _steps(self, stock: Stock, ids: Collection[int]) -> Steps:
        start, end = self._start, self._end
        spans = ((hold[:2] for hold in stock.line(i).within(start, end)) for i in ids)
        return free_over(len(ids), spans, start, end)

    def _is_free(self, stock: Stock, host_id: int, moments: Sequence[float]) -> bool:
        line = stock.line(host_id)
        return any(line.is_free(at, math.nextafter(at, FOREVER)) for at in moments)


def _refused(refused: NotEnoughHosts, shorts: Collection[Short]) -> NotEnoughHosts:
    """The type's own refusal, of what is left beside the hosts that are kept."""
    why = "; ".join(map(str, shorts))
    rest = refused.message.removeprefix(_REFUSED)
    kept = [
        {
            "segment_id": short.spare.segment_id,
            "segment": short.spare.name,
            "kept": short.spare.kept,
            "usable": short.usable,
            "free": short.free,
            "at": f"{short.at:%Y-%m-%dT%H:%M:%S.%f}",
        }
        for short in shorts
    ]
    message = f"{_REFUSED}{why}; beside what is kept: {rest}"
    return type(refused)(message, **{**refused.details, "failover": kept})


# when it could be had


def openings(
    resource: Resource, wish: Wish, until: datetime, stock: Stock, ledger: Ledger, most: int
) -> Sequence[Opening]:
    """The type's own, where they leave free what is kept; else by trying, from the first of them
    on: at every moment at which a host is given back."""
    found = resource.openings(wish, until, stock, ledger, most)
    if not stock.spares or not found:
        return found

    def amount(window: Window) -> int:
        """How many could be had then, 0 for none; a thing that is not a host counts as one."""
        try:
            holds = plan(resource, replace(wish, held=window), stock, ledger)
        except NotEnoughHosts:
            return 0
        return sum(a.slots or 1 for a in holds if a.host_id is not None) or len(holds)

    if all(amount(one.window) >= one.amount for one in found):
        return found
    offered: list[Opening] = []
    best = before = 0
    for start in _moments(found[0].window.start, until, stock):
        window = Window(start, start + (wish.held.end - wish.held.start))
        now = amount(window)
        if now and (not before or now >= 2 * best):
            offered.append(replace(found[0], window=window, amount=now))
            best = max(best, now)
        before = now
        if len(offered) >= most:
            break
    return offered


def _moments(first: datetime, until: datetime, stock: Stock) -> Iterator[datetime]:
    """The first, and the minutes from which on somebody has given something back."""
    yield first
    since = told = first.timestamp()
    tries = 0
    for days in FURTHER_DAYS:
        horizon = min(since + days * DAY_S, until.timestamp())
        ends = {
            math.ceil(hold.end / MINUTE_S) * MINUTE_S - since
            for host_id in stock.hosts
            for hold in stock.line(host_id).within(told, horizon)
            if told < hold.end <= horizon
        }
        for later in sorted(ends)[: MOST_TRIES - tries]:
            if since + later <= until.timestamp():
                yield first + timedelta(seconds=later)
        tries += len(ends)
        told = horizon
        if tries >= MOST_TRIES or told >= until.timestamp():
            return
