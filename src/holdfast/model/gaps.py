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

from holdfast.model.timeline import FOREVER, Line

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
        self._places = {line: place for place, line in enumerate(dict.fromkeys(lines))}
        self._sizes = np.fromiter(map(len, self._places), np.intp) + 1
        self._lasts = np.cumsum(self._sizes) - 1
        self._gaps = lay_out(self._places)
        self._is_tangled = np.fromiter((line.is_tangled for line in self._places), bool)

    def unknown(self, lines: Sequence[Line]) -> int:
        """How many of these it does not know."""
        return len(lines) - sum(map(self._places.__contains__, lines))

    def of(self, lines: Sequence[Line]) -> Iterator[Gaps]:
        """The gaps of these lines, portion by portion."""
        places = list(map(self._places.get, lines))
        unknown = [line for line, place in zip(lines, places, strict=True) if place is None]
        is_wanted = np.zeros(len(self._places), bool)
        is_wanted[[place for place in places if place is not None]] = True
        if np.count_nonzero(is_wanted) < len(lines) - len(unknown):
            yield lay_out(lines)  # some are there twice
            return
        yield lay_out(unknown)
        row_is_wanted = np.repeat(is_wanted, self._sizes)
        for at in range(0, len(row_is_wanted), PORTION):
            portion = slice(at, at + PORTION)
            some = Gaps(self._gaps.begins[portion], self._gaps.ends[portion])
            yield _where(some, row_is_wanted[portion])

    def busy_until(self, lines: Sequence[Line], start: float, end: float) -> Sequence[float | None]:
        """Of each of these lines what it would say itself."""
        if not self._places:
            return [line.busy_until(start, end) for line in lines]
        begins, ends = self._gaps
        has_begun = begins <= start
        is_over = np.append(has_begun[1:], False)
        is_over[self._lasts] = False
        now = np.flatnonzero(has_begun & ~is_over)  # of each line one: it lasts, or is held since
        is_held = ends.take(now) < end
        until = begins.take(now + 1, mode="clip")
        until[~is_held] = -FOREVER
        known = list(self._places)
        for place in np.flatnonzero(is_held & self._is_tangled):
            until[place] = known[place].busy_until(start, end)
        said = [at if at > start else None for at in until.tolist()]
        return [
            said[place] if place is not None else line.busy_until(start, end)
            for line, place in zip(lines, map(self._places.get, lines), strict=True)
        ]


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
