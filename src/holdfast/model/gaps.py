# SPDX-License-Identifier: Apache-2.0
"""The free gaps of very many lines as two flat arrays, for queries over all of them at once.

The arrays are kept from one query to the next: a line is never changed, only replaced by
another, so the same object has the same gaps. Lines that are not in the arrays (booked
meanwhile, or planned and not booked) are added for this query only; when they become many, all
arrays are built anew.

Import this module only where gaps are needed: it loads numpy.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.model.capacity import FOREVER, Line

Times = NDArray[np.float64]

#: Gaps processed together: as many as fit in the processor's cache.
PORTION = 1 << 15

_BEFORE, _AFTER = np.array([-FOREVER]).tobytes(), np.array([FOREVER]).tobytes()


class Gaps(NamedTuple):
    """The free gaps of each line: before, between and after its holds.

    Where a hold begins before an earlier one ended there is no gap: that row ends no later than
    it begins.
    """

    begins: Times
    ends: Times


class Flat:
    """The gaps of these lines, each line once."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.places = {line: place for place, line in enumerate(dict.fromkeys(lines))}
        self._sizes = np.fromiter(map(len, self.places), np.intp) + 1
        self._lasts = np.cumsum(self._sizes) - 1
        self._gaps = lay_out(self.places)
        self._is_tangled = np.fromiter((line.is_tangled for line in self.places), bool)
        self._cached: tuple[tuple[float, float], Times] | None = None

    def where(self, is_wanted: NDArray[np.bool_]) -> Iterator[Gaps]:
        """Yield the gaps of the lines at these places, portion by portion."""
        all_are = bool(is_wanted.all())
        row_is_wanted = is_wanted if all_are else np.repeat(is_wanted, self._sizes)
        for at in range(0, len(self._gaps.begins), PORTION):
            portion = slice(at, at + PORTION)
            some = Gaps(self._gaps.begins[portion], self._gaps.ends[portion])
            yield some if all_are else _where(some, row_is_wanted[portion])

    def busy_until(self, start: float, end: float) -> Times:
        """Return by place when each line becomes free in the window; -FOREVER for a free line.

        A plan asks several times for the same window: the last answer is kept.
        """
        cached = self._cached
        if cached is None or cached[0] != (start, end):
            cached = self._cached = (start, end), self._busy_until(start, end)
        return cached[1]

    def _busy_until(self, start: float, end: float) -> Times:
        if not self.places:
            return np.empty(0)
        begins, ends = self._gaps
        has_begun = begins <= start
        is_over = np.append(has_begun[1:], False)
        is_over[self._lasts] = False
        # One gap per line: it is open at `start`, or the last before the hold.
        now = np.flatnonzero(has_begun & ~is_over)
        is_held = ends.take(now) < end
        until = begins.take(now + 1, mode="clip")
        until[~is_held | (until <= start)] = -FOREVER
        lines = list(self.places)
        for place in np.flatnonzero(is_held & self._is_tangled):
            until[place] = _line_busy_until(lines[place], start, end)
        return until


class Some:
    """Queries over some lines, most of which are in the arrays."""

    def __init__(self, flat: Flat, lines: Sequence[Line]) -> None:
        self._flat = flat
        self._lines = lines
        place = flat.places.get
        self._places = np.array([place(line, -1) for line in lines], np.intp)
        self._unknown: list[int] = np.flatnonzero(self._places < 0).tolist()

    @property
    def unknown(self) -> int:
        """The number of lines that are not in the arrays."""
        return len(self._unknown)

    def gaps(self) -> Iterator[Gaps]:
        """Yield the gaps of these lines, portion by portion."""
        is_wanted = np.zeros(len(self._flat.places), bool)
        is_wanted[self._places[self._places >= 0]] = True
        if np.count_nonzero(is_wanted) < len(self._lines) - self.unknown:
            yield lay_out(self._lines)  # a line occurs twice
            return
        yield lay_out([self._lines[at] for at in self._unknown])
        yield from self._flat.where(is_wanted)

    def free(self, start: float, end: float) -> Sequence[int]:
        """List the lines (by index) without any hold in the window."""
        indexes: list[int] = np.flatnonzero(self.busy_until(start, end) == -FOREVER).tolist()
        return indexes

    def first_back(self, start: float, end: float, most: int) -> Sequence[int]:
        """List the lines held in the window, in the order in which they become free."""
        until = self.busy_until(start, end)
        busy = np.flatnonzero(until > -FOREVER)
        first: list[int] = busy[np.argsort(until[busy], kind="stable")[:most]].tolist()
        return first

    def busy_until(self, start: float, end: float) -> Times:
        """Return for each line the earliest end of its holds in the window; -FOREVER for a free
        line."""
        flat_until = self._flat.busy_until(start, end)
        until = flat_until[self._places] if len(flat_until) else np.empty(len(self._lines))
        for at in self._unknown:
            until[at] = _line_busy_until(self._lines[at], start, end)
        return until


def _line_busy_until(line: Line, start: float, end: float) -> float:
    until = line.busy_until(start, end)
    return -FOREVER if until is None else until


def _where(gaps: Gaps, is_wanted: NDArray[np.bool_]) -> Gaps:
    if is_wanted.all():
        return gaps
    rows = np.flatnonzero(is_wanted)
    return Gaps(gaps.begins.take(rows), gaps.ends.take(rows))


def lay_out(lines: Iterable[Line]) -> Gaps:
    starts: list[array[float] | bytes] = []
    latest: list[array[float] | bytes] = []
    for line in lines:
        begin, end = line.edges()
        starts += (begin, _AFTER)
        latest += (_BEFORE, end)
    return Gaps(np.frombuffer(b"".join(latest)), np.frombuffer(b"".join(starts)))
