# SPDX-License-Identifier: Apache-2.0
"""When a request could be had: the earliest starts at which enough hosts are free for its length.

Nothing is tried. Each host says from when until when a lease of that length could begin on it;
swept in the order of time, the number of hosts that could take it is known at every moment. The
sweep goes stretch by stretch, each longer than the one before, and ends with the last opening asked
for. Of very many holds not all are looked at: it ends when all that was asked for can be had, or
when there is an opening and many gaps were seen.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from holdfast.model.stock import Stock
from holdfast.model.timeline import FOREVER, Line
from holdfast.reserve.plan import HostRequest, matching

#: Leases begin on whole minutes.
MINUTE_S = 60.0
#: The least first stretch of time that is swept, and how much longer each is than that before.
STRETCH_S = 6 * 3600.0
GROWTH = 4
#: Up to so many holds all are looked at; of more, once there is an opening, so many gaps.
ALL = 10_000

#: A moment, and how many hosts more (or less) could take it from then on.
_Change = tuple[float, int]


def openings(
    request: HostRequest, until: float, stock: Stock, most: int
) -> Sequence[tuple[float, int]]:
    """Starts up to `until` with the number of hosts that could be had, at best `request.high`.

    Offered is when enough are free first, when so many are again after a time of too few, and when
    all that were asked for, or twice as many as in any offer before, are.
    """
    lines = [stock.line(host.id) for host in matching(request, stock)]
    if len(lines) < request.low:
        return ()
    large = sum(map(len, lines)) > ALL
    if large and _at_once(request, lines):
        return ((request.start, request.high),)
    offers, sweep = _Offers(request), _Sweep(request, until, lines)
    for changes in sweep:
        offers.take(changes)
        if len(offers.found) >= most:
            break
        if large and offers.found and (offers.best == request.high or sweep.gaps > ALL):
            break
    return offers.found[:most]


def _at_once(request: HostRequest, lines: Sequence[Line]) -> bool:
    """Whether all that was asked for can be had when it was asked for; when that is soon seen."""
    soon = islice(lines, 4 * request.high + 1000)
    free = (line for line in soon if line.is_free(request.start, request.end))
    return sum(1 for _line in islice(free, request.high)) == request.high


class _Offers:
    """What is worth telling of how many hosts could take it."""

    def __init__(self, request: HostRequest) -> None:
        self._low, self._high = request.low, request.high
        self._count = self.best = 0
        self._enough = False
        self.found: list[tuple[float, int]] = []

    def take(self, changes: Sequence[_Change]) -> None:
        for position, change in enumerate(changes):
            self._count += change[1]
            if position + 1 == len(changes) or changes[position + 1][0] != change[0]:
                self._look(change[0])

    def _look(self, at: float) -> None:
        amount = min(self._count, self._high)
        was, self._enough = self._enough, amount >= self._low
        grown = amount > self.best and amount >= min(self._high, 2 * self.best)
        if self._enough and (grown or not was):
            self.best = max(self.best, amount)
            self.found.append((at, amount))


class _Sweep:
    """All changes in the order of time, a stretch of it at a time."""

    def __init__(self, request: HostRequest, until: float, lines: Sequence[Line]) -> None:
        self.gaps = 0  # seen so far
        self._since, self._until = request.start, until
        self._length = request.end - request.start
        self._lines = lines

    def __iter__(self) -> Iterator[Sequence[_Change]]:
        # Where no gap between two holds is long enough there is little to see: it is seen at once.
        wide = [line for line in self._lines if line.widest >= self._length]
        tight = (line for line in self._lines if line.widest < self._length)
        ahead = self._changes(tight, self._since, FOREVER)
        begin, stretch = self._since, max(STRETCH_S, self._length)
        while begin <= self._until:
            end = begin + stretch if begin + stretch <= self._until else FOREVER
            ahead += self._changes(wide, begin, end)
            ahead.sort()
            now = bisect_left(ahead, (end,))
            yield ahead[:now]
            ahead = ahead[now:]
            begin, stretch = end, stretch * GROWTH

    def _changes(self, lines: Iterable[Line], begin: float, end: float) -> list[_Change]:
        """Of the gaps that begin in the stretch."""
        since, until, length = self._since, self._until, self._length
        later = begin > since  # gaps under way were seen in the stretch they began in
        found: list[_Change] = []
        for line in lines:
            for gap_begin, gap_end in line.gaps(begin, end, length, fresh=later):
                first, last = gap_begin, min(gap_end - length, until)
                if first != since:
                    first = -(-first // MINUTE_S) * MINUTE_S
                if first <= last:
                    found += ((first, 1), (last // MINUTE_S * MINUTE_S + MINUTE_S, -1))
        self.gaps += len(found) // 2
        return found
