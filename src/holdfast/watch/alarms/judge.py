# SPDX-License-Identifier: Apache-2.0
"""Whom a condition holds for, of a column of numbers.

    judge = Judge(condition)
    judge.look(look)            # -> {3: True, 17: None}

By place in the column: True if it holds, None if it cannot be known. Who is not named is quiet,
which nearly all are nearly always: of them nothing is remembered, and nothing more is done.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from holdfast.model.alarm_rules import Condition

Places = list[int]
Found = dict[int, bool | None]

#: Who is not quiet, or not known: NaN is neither more nor less than anything.
_ODD: Final[Mapping[str, Callable[[Sequence[float], float], Places]]] = {
    ">": lambda column, level: [n for n, value in enumerate(column) if not value <= level],
    ">=": lambda column, level: [n for n, value in enumerate(column) if not value < level],
    "<": lambda column, level: [n for n, value in enumerate(column) if not value >= level],
    "<=": lambda column, level: [n for n, value in enumerate(column) if not value > level],
    "==": lambda column, level: [
        n for n, value in enumerate(column) if value == level or isnan(value)
    ],
    "!=": lambda column, level: [n for n, value in enumerate(column) if value != level],
}
_HOLDS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": gt,
    ">=": ge,
    "<": lt,
    "<=": le,
    "==": eq,
    "!=": ne,
}


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked at in a pass."""

    values: Sequence[float]
    ids: Sequence[str]  # whose they are
    places: Mapping[str, int]
    standing: Collection[int]  # for whom the alarm stands: it ends only beyond `clear`
    now: float
    step_s: float  # since the pass before
    fresh: bool = True  # whether the numbers were read in this pass


class Judge:
    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.hits: dict[str, int] = {}  # of the last samples, a bit for each that held
        self.spent: dict[str, float] = {}  # of the allowance for a burst
        self._read_at: float | None = None

    def take_over(self, old: "Judge") -> None:
        """What one of the same numbers remembers."""
        self.hits, self.spent, self._read_at = old.hits, old.spent, old._read_at

    def forget(self) -> None:
        """As if it had not looked before: what is not looked at is neither spent nor saved."""
        self.hits, self.spent, self._read_at = {}, {}, None

    def look(self, look: Look) -> Found:
        condition, values = self.condition, look.values
        odd = _ODD[condition.compare](values, condition.level)
        found: Found = dict.fromkeys(odd, True)
        for place in odd:
            if isnan(values[place]):
                found[place] = None
        if look.standing and condition.clear != condition.level:
            holds, clear = _HOLDS[condition.compare], condition.clear
            for place in look.standing:
                if place not in found and holds(values[place], clear):
                    found[place] = True
        if condition.burst_s:
            found = self._burst(look, found)
        if condition.of > 1 and (found or self.hits):
            found = self._count(look, found)
        return found

    def keep(self, ids: Collection[str]) -> None:
        """Forget everybody else."""
        self.hits = {one: bits for one, bits in self.hits.items() if one in ids}
        self.spent = {one: spent for one, spent in self.spent.items() if one in ids}

    def _burst(self, look: Look, found: Found) -> Found:
        """Who is above the level spends; who is below it saves, until all is there again."""
        level = self.condition.level
        allowance = level * self.condition.burst_s
        judged: Found = {}
        step_s = look.step_s if self._read_at is None else look.now - self._read_at
        if look.fresh:
            self._read_at = look.now
        for place in found.keys() | _known(look, self.spent):
            value, one = look.values[place], look.ids[place]
            if isnan(value):
                judged[place] = None
                continue
            spent = self.spent.get(one, 0.0)
            if look.fresh:
                spent = min(allowance, max(0.0, spent + (value - level) * step_s))
            if spent > 0:
                self.spent[one] = spent
            else:
                self.spent.pop(one, None)
            if place in found and (spent >= allowance or place in look.standing):
                judged[place] = True
        return judged

    def _count(self, look: Look, found: Found) -> Found:
        """So many of the last samples held; what was not read is no sample."""
        mask = (1 << self.condition.of) - 1
        judged: Found = {}
        for place in found.keys() | _known(look, self.hits):
            held, one = found.get(place, False), look.ids[place]
            if held is None:
                judged[place] = None
                continue
            bits = self.hits.get(one, 0)
            if look.fresh:
                bits = (bits << 1 | held) & mask
            if bits:
                self.hits[one] = bits
            else:
                self.hits.pop(one, None)
            if bits.bit_count() >= self.condition.hits:
                judged[place] = True
        return judged


def together(found: Sequence[Found], every: bool) -> Found:
    """Of several conditions: what is not known decides only if the others do not."""
    if len(found) == 1:
        return found[0]
    if every:
        places = set(found[0])
        for one in found[1:]:
            places &= one.keys()
        return {n: None if any(one[n] is None for one in found) else True for n in places}
    either: Found = {}
    for one in found:
        for place, held in one.items():
            either[place] = either.get(place) or held
    return either


def which(found: Sequence[Found]) -> dict[int, int]:
    """Of conditions of which one is enough, the first that holds, by place."""
    held: dict[int, int] = {}
    for number, one in enumerate(found):
        for place, is_so in one.items():
            if is_so:
                held.setdefault(place, number)
    return held


def _known(look: Look, remembered: Mapping[str, object]) -> set[int]:
    return {look.places[one] for one in remembered if one in look.places}
