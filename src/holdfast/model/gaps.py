# SPDX-License-Identifier: Apache-2.0
"""The gaps of very many lines as two flat arrays, for questions about all of them at once.

What was laid out flat is kept from one question to the next: a line is never changed, only replaced
by another, so the very same object has the very same gaps. Those that are not known yet (booked
meanwhile, or planned and not booked) are laid out for this one question; when they have become many
all is laid out anew.

Imported where gaps are asked for and nowhere else: who never asks need not load numpy.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.model.capacity import FOREVER, Line

Times = NDArray[np.float64]

#: So many gaps are looked at together: as much as stays in a processor's own memory.
PORTION = 1 << 15

_BEFORE, _AFTER = np.array([-FOREVER]).tobytes(), np.array([FOREVER]).tobytes()


class Gaps(NamedTuple):
    """When nobody holds any of it, of each line those before, between and after its holds. Where
    one hold begins before those before it ended there is none: its end is not after its begin."""

    begins: Times
    ends: Times


class Flat:
    """The gaps of these lines, each of them once."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.places = {line: place for place, line in enumerate(dict.fromkeys(lines))}
        self._sizes = np.fromiter(map(len, self.places), np.intp) + 1
        self._lasts = np.cumsum(self._sizes) - 1
        self._gaps = lay_out(self.places)
        self._is_tangled = np.fromiter((line.is_tangled for line in self.places), bool)
        self._asked: tuple[tuple[float, float], Times] | None = None

    def where(self, is_wanted: NDArray[np.bool_]) -> Iterator[Gaps]:
        """The gaps of the lines at these places, portion by portion."""
        all_are = bool(is_wanted.all())
        row_is_wanted = is_wanted if all_are else np.repeat(is_wanted, self._sizes)
        for at in range(0, len(self._gaps.begins), PORTION):
            portion = slice(at, at + PORTION)
            some = Gaps(self._gaps.begins[portion], self._gaps.ends[portion])
            yield some if all_are else _where(some, row_is_wanted[portion])

    def busy_until(self, start: float, end: float) -> Times:
        """Of all lines, by place, what each would say itself; -FOREVER where nobody holds any.
        A plan asks several times for one window: the last answer is kept."""
        asked = self._asked
        if asked is None or asked[0] != (start, end):
            asked = self._asked = (start, end), self._busy_until(start, end)
        return asked[1]

    def _busy_until(self, start: float, end: float) -> Times:
        if not self.places:
            return np.empty(0)
        begins, ends = self._gaps
        has_begun = begins <= start
        is_over = np.append(has_begun[1:], False)
        is_over[self._lasts] = False
        now = np.flatnonzero(has_begun & ~is_over)  # of each line one: it lasts, or is held since
        is_held = ends.take(now) < end
        until = begins.take(now + 1, mode="clip")
        until[~is_held | (until <= start)] = -FOREVER
        known = list(self.places)
        for place in np.flatnonzero(is_held & self._is_tangled):
            until[place] = _said(known[place], start, end)
        return until


class Some:
    """Questions about some lines, most of which were laid out before."""

    def __init__(self, flat: Flat, lines: Sequence[Line]) -> None:
        self._flat = flat
        self._lines = lines
        place = flat.places.get
        self._places = np.array([place(line, -1) for line in lines], np.intp)
        self._unknown: list[int] = np.flatnonzero(self._places < 0).tolist()

    @property
    def unknown(self) -> int:
        """How many of them were not."""
        return len(self._unknown)

    def gaps(self) -> Iterator[Gaps]:
        """Their gaps, portion by portion."""
        is_wanted = np.zeros(len(self._flat.places), bool)
        is_wanted[self._places[self._places >= 0]] = True
        if np.count_nonzero(is_wanted) < len(self._lines) - self.unknown:
            yield lay_out(self._lines)  # some are there twice
            return
        yield lay_out([self._lines[at] for at in self._unknown])
        yield from self._flat.where(is_wanted)

    def free(self, start: float, end: float) -> Sequence[int]:
        """Which of them nobody holds in the window."""
        found: list[int] = np.flatnonzero(self.busy_until(start, end) == -FOREVER).tolist()
        return found

    def first_back(self, start: float, end: float, most: int) -> Sequence[int]:
        """Which of those that somebody holds in the window are given back first."""
        until = self.busy_until(start, end)
        busy = np.flatnonzero(until > -FOREVER)
        first: list[int] = busy[np.argsort(until[busy], kind="stable")[:most]].tolist()
        return first

    def busy_until(self, start: float, end: float) -> Times:
        """Of each, when the first who holds some of it in the window gives it back."""
        known = self._flat.busy_until(start, end)
        until = known[self._places] if len(known) else np.empty(len(self._lines))
        for at in self._unknown:
            until[at] = _said(self._lines[at], start, end)
        return until


def _said(line: Line, start: float, end: float) -> float:
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
