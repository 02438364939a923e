# SPDX-License-Identifier: Apache-2.0
"""When a request could be had: the earliest starts at which enough hosts are free for its length.

Nothing is tried. Each gap between two holds says from which minute until which a lease of that
length could begin in it; counted for all hosts at once, the number of those that could take it is
known at every minute.

Imported where openings are asked for and nowhere else: who never asks need not load numpy.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.leases.placement import HostRequest, matching
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.gaps import Gaps

#: Leases begin on whole minutes.
MINUTE_S = 60.0
#: So many minutes are counted at a time: half a year.
STRETCH = 1 << 18
#: Minutes further ahead than that are all the same: two thousand years.
FAR = 1 << 30

_Minutes = NDArray[np.int32]
_Counts = NDArray[np.intp]


def openings(
    request: HostRequest, until: float, stock: CapacitySnapshot, most: int
) -> Sequence[tuple[float, int]]:
    """Starts up to `until` with the number of hosts that could be had, at best `request.high`.

    Offered is when enough are free first, when so many are again after a time of too few, and when
    all that were asked for, or twice as many as in any offer before, are.
    """
    hosts = matching(request, stock)
    if len(hosts) < request.low:
        return ()
    offers = _Offers(request)
    for begin, counts in _counted(*_stays(request, until, stock.gaps(hosts))):
        offers.take(begin, counts, most)
        if len(offers.found) >= most:
            break
    return offers.found


def _stays(request: HostRequest, until: float, gaps: Iterable[Gaps]) -> tuple[_Minutes, _Minutes]:
    """Of each gap that is long enough, in which minute a lease could begin first and in which not
    any more. They are counted from the start asked for, which need not be on a whole one."""
    since, length = request.start, request.end - request.start
    zero = since // MINUTE_S
    firsts, overs = [], []
    for begins, ends in gaps:
        lasts = np.minimum(ends - length, until)
        rows = np.flatnonzero((begins <= lasts) & (lasts >= since))
        begin, last = begins.take(rows), np.floor(lasts.take(rows) / MINUTE_S)
        first = np.where(begin <= since, zero, np.ceil(begin / MINUTE_S))
        rows = np.flatnonzero(first <= last)
        firsts.append(np.minimum(first.take(rows) - zero, FAR).astype(np.int32))
        overs.append(np.minimum(last.take(rows) - zero, FAR).astype(np.int32) + np.int32(1))
    return np.concatenate(firsts), np.concatenate(overs)


def _counted(firsts: _Minutes, overs: _Minutes) -> Iterator[tuple[int, _Counts]]:
    """How many hosts could take it at every minute: a minute, the number just before it, and the
    numbers from it on. Where none is added for long, minutes are left out."""
    rest = firsts
    while rest.size:
        begin = int(rest.min())
        size = min(int(rest.max()) + 1 - begin, STRETCH)
        come, go = (
            np.bincount(np.clip(minutes - (begin - 1), 0, size + 1), minlength=size + 2)
            for minutes in (firsts, overs)
        )
        yield begin, np.cumsum(come - go)[:-1]
        rest = rest[rest >= begin + size]


class _Offers:
    """What is worth telling of how many hosts could take it."""

    def __init__(self, request: HostRequest) -> None:
        self._since = request.start
        self._low, self._high = max(request.low, 1), request.high
        self._best = 0
        self.found: list[tuple[float, int]] = []

    def take(self, begin: int, counts: _Counts, most: int) -> None:
        enough = counts >= self._low
        again = np.flatnonzero(enough[1:] & ~enough[:-1])
        amounts = np.minimum(counts[1:], self._high)
        top = np.maximum.accumulate(amounts)
        position = 0
        while len(self.found) < most:
            place = int(np.searchsorted(again, position))
            position = int(again[place]) if place < len(again) else len(amounts)
            if self._best < self._high:
                worth = max(self._low, min(self._high, 2 * self._best))
                position = min(position, int(np.searchsorted(top, worth)))
            if position == len(amounts):
                return
            self._offer(begin + position, int(amounts[position]))
            position += 1

    def _offer(self, minute: int, amount: int) -> None:
        at = (self._since // MINUTE_S + minute) * MINUTE_S if minute else self._since
        self._best = max(self._best, amount)
        self.found.append((at, amount))
