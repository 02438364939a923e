# SPDX-License-Identifier: Apache-2.0
"""Who holds hosts when, in memory: one line of holds per host, questions answered by bisection.

It proposes; the transaction that books decides. Times are seconds since 1970, so that a million
holds are a few dozen megabytes. A line is replaced as a whole, so readers need no lock.

>>> line = Line([Hold(10.0, 20.0), Hold(30.0, 40.0)])
>>> line.is_free(20.0, 30.0), line.around(21.0, 29.0)
(True, (20.0, 30.0))
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

FOREVER = float("inf")


class Hold(NamedTuple):
    """[start, end) of one host; `takes` is None when the whole host is held."""

    start: float
    end: float
    takes: Mapping[str, int] | None = None


_Hold = tuple[float, float, Mapping[str, int] | None]  # as those who read very many have them


class Line:
    """The holds of one host, in the order of their starts."""

    __slots__ = ("_ends", "_latest", "_starts", "_takes")

    def __init__(self, holds: Iterable[_Hold] = ()) -> None:
        in_order = sorted(holds, key=itemgetter(0, 1))
        self._starts = array("d", [hold[0] for hold in in_order])
        self._ends = array("d", [hold[1] for hold in in_order])
        #: The latest end so far. Whole hosts are held one after the other: it is the end itself.
        latest = array("d", accumulate(self._ends, max))
        self._latest = self._ends if latest == self._ends else latest
        takes = [hold[2] for hold in in_order]
        self._takes = takes if any(one is not None for one in takes) else None

    def __iter__(self) -> Iterator[Hold]:
        for index in range(len(self._starts)):
            yield self._hold(index)

    def __len__(self) -> int:
        return len(self._starts)

    def _hold(self, index: int) -> Hold:
        takes = self._takes[index] if self._takes is not None else None
        return Hold(self._starts[index], self._ends[index], takes)

    def edges(self) -> tuple["array[float]", "array[float]"]:
        """When each hold begins, and the latest end up to each."""
        return self._starts, self._latest

    @property
    def is_tangled(self) -> bool:
        """Whether there are holds that do not end in the order in which they begin."""
        return self._latest is not self._ends

    def gap(self, start: float, end: float) -> tuple[float, float] | None:
        """Since when and until when nobody holds any of it around the window; None when somebody
        does within it."""
        following = bisect_left(self._starts, end)
        before = self._latest[following - 1] if following else -FOREVER
        if before > start:
            return None
        return before, self._starts[following] if following < len(self._starts) else FOREVER

    def is_free(self, start: float, end: float) -> bool:
        """Whether nobody holds any of it in the window."""
        following = bisect_left(self._starts, end)
        return not following or self._latest[following - 1] <= start

    def around(self, start: float, end: float) -> tuple[float, float]:
        """Of a free window: since when the host is free before it, and until when after it."""
        gap = self.gap(start, end)
        if gap is None:
            raise ValueError("the window is not free")
        return gap

    def within(self, start: float, end: float) -> Iterator[Hold]:
        """The holds that touch the window."""
        first = bisect_right(self._latest, start)
        for index in range(first, bisect_left(self._starts, end)):
            if self._ends[index] > start:
                yield self._hold(index)

    def busy_until(self, start: float, end: float) -> float | None:
        """When the first who holds some of it in the window gives it back."""
        first, following = bisect_right(self._latest, start), bisect_left(self._starts, end)
        if self._latest is self._ends:
            return self._ends[first] if first < following else None
        return min((e for e in self._ends[first:following] if e > start), default=None)

    def peak(self, start: float, end: float) -> Mapping[str, int] | None:
        """The most that is taken of each class at any moment of the window; None when the host is
        held as a whole at some moment of it."""
        holds = list(self.within(start, end))
        if any(hold.takes is None for hold in holds):
            return None
        return peak(holds)


EMPTY = Line()


def peak(holds: Iterable[Hold]) -> dict[str, int]:
    """The most that is taken of each class at any one moment."""
    changes: list[tuple[float, int, Mapping[str, int]]] = []
    for hold in holds:
        taken = hold.takes or {}
        changes += [(hold.start, 1, taken), (hold.end, -1, taken)]
    changes.sort(key=lambda change: change[:2])  # what ends at a moment makes room at it
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _at, sign, taken in changes:
        for name, amount in taken.items():
            now[name] = now.get(name, 0) + sign * amount
            most[name] = max(most.get(name, 0), now[name])
    return most


def too_much(capacity: Mapping[str, int], holds: Iterable[Hold]) -> bool:
    """Whether these holds of one host cannot all be: the rule that every booking keeps."""
    together = list(holds)
    whole = sorted((hold for hold in together if hold.takes is None), key=lambda hold: hold.start)
    for one, following in pairwise(whole):
        if following.start < one.end:
            return True
    parts = [hold for hold in together if hold.takes is not None]
    for one in whole:
        if any(part.start < one.end and one.start < part.end for part in parts):
            return True
    return any(amount > capacity.get(name, 0) for name, amount in peak(parts).items())
