# SPDX-License-Identifier: Apache-2.0
"""Openings: the earliest starts at which enough hosts are free for the length of a request.

No start is tried by planning. Each gap between two holds gives the first and the last minute at
which a lease of that length could begin in it. Counted over all hosts, this gives the number of
available hosts at every minute.

Import this module only where openings are needed: it loads numpy.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.leases.placement import HostRequest, matching
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.gaps import Gaps

#: Leases begin on whole minutes.
MINUTE_S = 60.0
#: Minutes counted at a time: half a year.
STRETCH = 1 << 18
#: Minutes further ahead than this are treated as equal: two thousand years.
FAR = 1 << 30

_Minutes = NDArray[np.int32]
_Counts = NDArray[np.intp]


def openings(
    request: HostRequest, until: float, snapshot: CapacitySnapshot, most: int
) -> Sequence[tuple[float, int]]:
    """Return starts up to `until` with the number of available hosts, at most `request.high`.

    An opening is offered when enough hosts are free for the first time, when enough are free
    again after a shortage, and when the full number, or twice the number of any offer before,
    is free.
    """
    hosts = matching(request, snapshot)
    if len(hosts) < request.low:
        return ()
    offers = _Offers(request)
    for begin, counts in _counted(*_stays(request, until, snapshot.gaps(hosts))):
        offers.add(begin, counts, most)
        if len(offers.starts) >= most:
            break
    return offers.starts


def _stays(request: HostRequest, until: float, gaps: Iterable[Gaps]) -> tuple[_Minutes, _Minutes]:
    """Return for each long enough gap the first possible minute, and the minute after the last.

    Minutes count from the requested start, which need not be on a whole minute.
    """
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
    """Count the available hosts per minute: yield a minute, the count before it and the counts
    from it.

    Long stretches without a new gap are skipped.
    """
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
    """The openings worth offering, from the counts of available hosts."""

    def __init__(self, request: HostRequest) -> None:
        self._since = request.start
        self._low, self._high = max(request.low, 1), request.high
        self._best = 0
        self.starts: list[tuple[float, int]] = []

    def add(self, begin: int, counts: _Counts, most: int) -> None:
        enough = counts >= self._low
        again = np.flatnonzero(enough[1:] & ~enough[:-1])
        amounts = np.minimum(counts[1:], self._high)
        top = np.maximum.accumulate(amounts)
        position = 0
        while len(self.starts) < most:
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
        self.starts.append((at, amount))
