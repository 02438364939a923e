# SPDX-License-Identifier: Apache-2.0
"""Whom a condition holds for, of a column of numbers.

    judge = Judge(condition)
    judge.look(look)            # -> {3: True, 17: None}

By place in the column: True if it holds, None if it cannot be known. Who is not named is quiet,
which nearly all are nearly always: of them nothing is remembered, and nothing more is done.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from operator import eq, ge, gt, le, lt, mul, ne
from typing import Final, Protocol

from holdfast.alarms.rules import RATE, TIME_TO_FULL, Condition
from holdfast.ports.metrics import NAN, Entity, Table

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
class ColumnView:
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

    def evaluate(self, look: ColumnView) -> Found:
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

    def _burst(self, look: ColumnView, found: Found) -> Found:
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

    def _count(self, look: ColumnView, found: Found) -> Found:
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


def _known(look: ColumnView, remembered: Mapping[str, object]) -> set[int]:
    return {look.places[one] for one in remembered if one in look.places}


# The numbers that conditions look at, made of those of a pass: one column for all entities.
#
# A rate and a time to full remember columns of the passes before, about thirty over their window
# whatever the pace of the passes, so that memory is bounded. Plain Python on purpose: columns are
# made from the dicts that plugins get, which alone takes longer than comparing them, so that
# NumPy
# would gain nothing and cost 15 MiB.


#: How many columns are remembered over a window.
POINTS: Final = 30
_NEAR: Final = 1e-6

Column = Sequence[float]


class Series(Protocol):
    def column(self, table: Table, now: float) -> Column | None:
        """For the entities of the table, in their order; NaN where it is not known. None: it has
        just begun, and nothing can be known of anybody."""
        ...

    def move(self, rows: Sequence[int]) -> None:
        """Other entities: of each in which row it was before, -1 if it was not there."""
        ...


def series_of(condition: Condition) -> Series:
    made: Series
    if condition.measure == RATE:
        made = _Rates(condition.field, condition.over_s)
    elif condition.measure == TIME_TO_FULL:
        made = _TimesToFull(condition.field, condition.over_s, condition.full)
    else:
        made = _Values(condition.field)
    return _Shares(made, condition.contract) if condition.contract else made


def moved(column: Column, rows: Sequence[int]) -> list[float]:
    return [column[row] if row >= 0 else NAN for row in rows]


def _series_known(column: Column | None, read: Column) -> Column | None:
    """Of numbers made before, those of whom something is known still."""
    if column is None:
        return None
    return [NAN if isnan(one) else made for made, one in zip(column, read, strict=True)]


class _Values:
    def __init__(self, field: str) -> None:
        self._field = field

    def column(self, table: Table, now: float) -> Column | None:
        return table.column(self._field)

    def move(self, rows: Sequence[int]) -> None:
        pass


class _Shares:
    """Of what is in the contract; who has none has no share."""

    def __init__(self, whole: Series, contract: str) -> None:
        self._whole = whole
        self._contract = contract
        self._entities: Sequence[Entity] = ()
        self._limits: list[float] = []

    def column(self, table: Table, now: float) -> Column | None:
        column = self._whole.column(table, now)
        if table.entities != self._entities:
            self._entities = table.entities
            limits = (one.contracts.get(self._contract, NAN) for one in table.entities)
            self._limits = [limit if limit > 0 else NAN for limit in limits]
        if column is None:
            return None
        return [value / limit for value, limit in zip(column, self._limits, strict=True)]

    def move(self, rows: Sequence[int]) -> None:
        self._whole.move(rows)


@dataclass(slots=True)
class _Point:
    at: float
    column: Column  # as it was read
    counted: Column | None = None  # of counters, what was added to them since the first look


def _counted(point: _Point) -> Column:
    return point.column if point.counted is None else point.counted


class _History:
    """Columns of a window, the newest last; those between are thinned out."""

    def __init__(self, over_s: float) -> None:
        self.over_s = over_s
        self._step_s = over_s / POINTS
        self.points: list[_Point] = []
        self.gaps: list[float] = []  # when each was not known the last time

    def add(self, point: _Point) -> None:
        points = self.points
        if len(points) > 1 and points[-1].at - points[-2].at < self._step_s - _NEAR:
            points.pop()
        points.append(point)
        start = point.at - self.over_s - _NEAR
        while points[0].at < start:
            del points[0]
        if len(self.gaps) != len(point.column):
            self.gaps = [-inf] * len(point.column)
        if isnan(sum(point.column)):
            for row in [row for row, value in enumerate(point.column) if isnan(value)]:
                self.gaps[row] = point.at

    def move(self, rows: Sequence[int]) -> None:
        if not self.points:
            return
        last = self.points[-1].at
        self.gaps = [self.gaps[row] if row >= 0 else last for row in rows]
        for point in self.points:
            point.column = moved(point.column, rows)
            point.counted = None if point.counted is None else moved(point.counted, rows)

    def of(self, row: int) -> list[_Point]:
        """What is known of one."""
        if self.gaps[row] < self.points[0].at:
            return self.points
        return [point for point in self.points if not isnan(point.column[row])]


class _Rates:
    """How fast counters grow, in units per second; one that steps back began anew at zero."""

    def __init__(self, field: str, over_s: float) -> None:
        self._field = field
        self._history = _History(over_s)
        self._seen: list[float] = []  # what the counters were last
        self._total: list[float] = []
        self._last: Column | None = None

    def column(self, table: Table, now: float) -> Column | None:
        if not table.is_fresh(self._field):
            return _series_known(self._last, table.column(self._field))
        raw = table.column(self._field)
        if len(self._seen) != len(raw):
            self._seen, self._total = [NAN] * len(raw), [0.0] * len(raw)
        self._history.add(_Point(now, raw, self._count(raw)))
        if len(self._history.points) < 2:
            return None
        self._last = self._rates(raw)
        return self._last

    def move(self, rows: Sequence[int]) -> None:
        if self._seen:
            self._seen, total = moved(self._seen, rows), moved(self._total, rows)
            self._total = [0.0 if isnan(value) else value for value in total]
        self._history.move(rows)
        self._last = None if self._last is None else moved(self._last, rows)

    def _count(self, raw: Column) -> list[float]:
        seen, total = self._seen, self._total
        if not isnan(sum(seen) + sum(raw)):  # nobody is missing, nobody is new
            self._seen = list(raw)
            self._total = [
                had + (value - before if value >= before else value)
                for had, before, value in zip(total, seen, raw, strict=True)
            ]
            return list(self._total)  # which goes on, while what is remembered does not
        for row, value in enumerate(raw):
            if not isnan(value):
                before = seen[row]
                if not isnan(before):
                    total[row] += value - before if value >= before else value
                seen[row] = value
        return list(total)

    def _rates(self, raw: Column) -> list[float]:
        """Of all who were known all the time at once; the others one by one."""
        first, last = self._history.points[0], self._history.points[-1]
        seen_s, over_s = last.at - first.at, self._history.over_s
        before_s = first.at - (last.at - over_s)
        factor = self._share(before_s) / seen_s / over_s
        zipped = zip(
            _counted(first), _counted(last), first.column, self._history.gaps, raw, strict=True
        )
        return [
            (now - then) * factor
            if gap < first.at and begin * seen_s >= before_s * (now - then)
            else self._rate(row, value)
            for row, (then, now, begin, gap, value) in enumerate(zipped)
        ]

    def _share(self, before_s: float) -> float:
        points = self._history.points
        seen_s = points[-1].at - points[0].at
        mean_s = seen_s / (len(points) - 1)
        return seen_s + (before_s if before_s < mean_s * 1.1 else mean_s / 2)

    def _rate(self, row: int, value: float) -> float:
        """As Prometheus has it: carried on to the begin of the window, unless that is far."""
        if isnan(value):
            return NAN
        points = self._history.of(row)
        if len(points) < 2:
            return NAN
        first, last = points[0], points[-1]
        more = _counted(last)[row] - _counted(first)[row]
        seen_s, over_s = last.at - first.at, self._history.over_s
        before_s = first.at - (last.at - over_s)
        if more > 0 and first.column[row] * seen_s < before_s * more:
            before_s = max(0.0, first.column[row] / more * seen_s)  # when it was zero
        mean_s = seen_s / (len(points) - 1)
        if before_s >= mean_s * 1.1:
            before_s = mean_s / 2
        return more * (seen_s + before_s) / seen_s / over_s


class _TimesToFull:
    """Seconds until something is full if it goes on like this: a straight line through the window.
    For ever if it does not grow."""

    def __init__(self, field: str, over_s: float, full: str | float) -> None:
        self._field = field
        self._full = full
        self._history = _History(over_s)
        self._last: Column | None = None

    def column(self, table: Table, now: float) -> Column | None:
        if not table.is_fresh(self._field):
            return _series_known(self._last, table.column(self._field))
        self._history.add(_Point(now, table.column(self._field)))
        points = self._history.points
        if len(points) < 2:
            return None
        full = self._full
        fulls = table.column(full) if isinstance(full, str) else [full] * len(table.entities)
        line = _Line([point.at for point in points], now)
        columns = zip(*(point.column for point in points), strict=True)
        self._last = [
            self._left(line, values, full, row)
            for row, (values, full) in enumerate(zip(columns, fulls, strict=True))
        ]
        return self._last

    def move(self, rows: Sequence[int]) -> None:
        self._history.move(rows)
        self._last = None if self._last is None else moved(self._last, rows)

    def _left(self, line: "_Line", values: Sequence[float], full: float, row: int) -> float:
        if isnan(values[-1]) or isnan(full):
            return NAN
        points = self._history.of(row)
        if len(points) < 2:
            return NAN
        if len(points) < len(values):
            line = _Line([point.at for point in points], line.now)
            values = [point.column[row] for point in points]
        return line.until(full, values)


class _Line:
    """Through values at these times, by least squares."""

    def __init__(self, times: Sequence[float], now: float) -> None:
        self.now = now
        self._mean = sum(times) / len(times)
        from_mean = [at - self._mean for at in times]
        square = sum(one * one for one in from_mean)
        self._weights = [one / square for one in from_mean]

    def until(self, full: float, values: Sequence[float]) -> float:
        slope = sum(map(mul, self._weights, values))
        here = sum(values) / len(values) + slope * (self.now - self._mean)
        if here >= full:
            return 0.0
        return (full - here) / slope if slope > 0 else inf
