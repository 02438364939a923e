# SPDX-License-Identifier: Apache-2.0
"""Conditions of alarm rules, evaluated on columns of metric values.

    judge = Judge(condition)
    judge.evaluate(view)        # -> {3: True, 17: None}

The result maps a row of the column to True if the condition holds, or None if the value is
unknown. Rows that are left out do not hold. Nearly all rows are left out nearly always; no
state is kept and no work is done for them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from operator import eq, ge, gt, le, lt, mul, ne
from typing import Final, Protocol

from holdfast.alarms.rules import RATE, TIME_TO_FULL, Condition
from holdfast.ports.metrics import NAN, Entity, Table

Places = list[int]
Results = dict[int, bool | None]

#: Functions that return the rows that hold or are unknown; every comparison with NaN is false.
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
    """A column of values in a pass, with the rows whose alarm is raised."""

    values: Sequence[float]
    ids: Sequence[str]  # entity of each row
    places: Mapping[str, int]
    raised: Collection[int]  # rows whose alarm is raised, and ends only beyond `clear`
    now: float
    step_s: float  # since the pass before
    fresh: bool = True  # whether the values were read in this pass


class Judge:
    """Evaluates a condition and keeps its state per entity (burst, N of M samples)."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.hits: dict[str, int] = {}  # last samples, a bit for each sample that held
        self.spent: dict[str, float] = {}  # used part of the burst allowance
        self._read_at: float | None = None

    def take_over(self, old: "Judge") -> None:
        """Take the state of a judge on the same series."""
        self.hits, self.spent, self._read_at = old.hits, old.spent, old._read_at

    def forget(self) -> None:
        """Drop all state: outside a rule's hours, bursts neither grow nor recover."""
        self.hits, self.spent, self._read_at = {}, {}, None

    def evaluate(self, view: ColumnView) -> Results:
        """Return the rows for which the condition holds (True) or is unknown (None)."""
        condition, values = self.condition, view.values
        odd = _ODD[condition.compare](values, condition.level)
        results: Results = dict.fromkeys(odd, True)
        for place in odd:
            if isnan(values[place]):
                results[place] = None
        if view.raised and condition.clear != condition.level:
            holds, clear = _HOLDS[condition.compare], condition.clear
            for place in view.raised:
                if place not in results and holds(values[place], clear):
                    results[place] = True
        if condition.burst_s:
            results = self._burst(view, results)
        if condition.of > 1 and (results or self.hits):
            results = self._count(view, results)
        return results

    def keep(self, ids: Collection[str]) -> None:
        """Keep the state of the given entities and drop all other state."""
        self.hits = {key: bits for key, bits in self.hits.items() if key in ids}
        self.spent = {key: spent for key, spent in self.spent.items() if key in ids}

    def _burst(self, view: ColumnView, results: Results) -> Results:
        """Apply the burst allowance.

        Values above the level use up the allowance; values below the level refill it.
        """
        level = self.condition.level
        allowance = level * self.condition.burst_s
        judged: Results = {}
        step_s = view.step_s if self._read_at is None else view.now - self._read_at
        if view.fresh:
            self._read_at = view.now
        for place in results.keys() | _rows_with_state(view, self.spent):
            value, key = view.values[place], view.ids[place]
            if isnan(value):
                judged[place] = None
                continue
            spent = self.spent.get(key, 0.0)
            if view.fresh:
                spent = min(allowance, max(0.0, spent + (value - level) * step_s))
            if spent > 0:
                self.spent[key] = spent
            else:
                self.spent.pop(key, None)
            if place in results and (spent >= allowance or place in view.raised):
                judged[place] = True
        return judged

    def _count(self, view: ColumnView, results: Results) -> Results:
        """Apply N of M: a condition holds if enough of the last samples hold.

        A value that was not read in this pass is no sample.
        """
        mask = (1 << self.condition.of) - 1
        judged: Results = {}
        for place in results.keys() | _rows_with_state(view, self.hits):
            held, key = results.get(place, False), view.ids[place]
            if held is None:
                judged[place] = None
                continue
            bits = self.hits.get(key, 0)
            if view.fresh:
                bits = (bits << 1 | held) & mask
            if bits:
                self.hits[key] = bits
            else:
                self.hits.pop(key, None)
            if bits.bit_count() >= self.condition.hits:
                judged[place] = True
        return judged


def together(results: Sequence[Results], every: bool) -> Results:
    """Combine conditions by `all` (`every`) or `any`.

    An unknown condition decides only if the others do not.
    """
    if len(results) == 1:
        return results[0]
    if every:
        places = set(results[0])
        for rows in results[1:]:
            places &= rows.keys()
        return {n: None if any(result[n] is None for result in results) else True for n in places}
    either: Results = {}
    for rows in results:
        for place, held in rows.items():
            either[place] = either.get(place) or held
    return either


def which(results: Sequence[Results]) -> dict[int, int]:
    """Return, per row, the first condition that holds; for rules with `any`."""
    held: dict[int, int] = {}
    for number, rows in enumerate(results):
        for place, holds in rows.items():
            if holds:
                held.setdefault(place, number)
    return held


def _rows_with_state(view: ColumnView, remembered: Mapping[str, object]) -> set[int]:
    """Return the rows of entities that have state."""
    return {view.places[key] for key in remembered if key in view.places}


# Series: the values that conditions compare, a column for all entities of a kind.
#
# A rate and a time to full keep about 30 earlier columns per window, whatever the pass
# interval, so memory is bounded. The code is plain Python on purpose: building columns from the
# dicts that plugins get takes longer than comparing them, so NumPy would gain nothing and cost
# 15 MiB.


#: Number of columns kept per window.
POINTS: Final = 30
_NEAR: Final = 1e-6

Column = Sequence[float]


class Series(Protocol):
    """Source of the values for a condition: a column for all entities, built in each pass."""

    def column(self, table: Table, now: float) -> Column | None:
        """Return the values in the order of the table's entities; NaN where unknown.

        None means that the series has just begun and no value can be known yet.
        """
        ...

    def move(self, rows: Sequence[int]) -> None:
        """Reorder the history for new entities: `rows` has each entity's old row, or -1 if new."""
        ...


def series_of(condition: Condition) -> Series:
    """Build the series for a condition's measure."""
    made: Series
    if condition.measure == RATE:
        made = _Rates(condition.field, condition.over_s)
    elif condition.measure == TIME_TO_FULL:
        made = _TimesToFull(condition.field, condition.over_s, condition.full)
    else:
        made = _Values(condition.field)
    return _Shares(made, condition.contract) if condition.contract else made


def moved(column: Column, rows: Sequence[int]) -> list[float]:
    """Reorder a column; a new entity gets NaN."""
    return [column[row] if row >= 0 else NAN for row in rows]


def _masked(column: Column | None, read: Column) -> Column | None:
    """Return the earlier values, with NaN for entities that are unknown now."""
    if column is None:
        return None
    return [NAN if isnan(value) else made for made, value in zip(column, read, strict=True)]


class _Values:
    """Series of values as read."""

    def __init__(self, field: str) -> None:
        self._field = field

    def column(self, table: Table, now: float) -> Column | None:
        return table.column(self._field)

    def move(self, rows: Sequence[int]) -> None:
        pass


class _Shares:
    """Series of values divided by a contract; NaN for an entity without the contract."""

    def __init__(self, whole: Series, contract: str) -> None:
        self._whole = whole
        self._contract = contract
        self._entities: Sequence[Entity] = ()
        self._limits: list[float] = []

    def column(self, table: Table, now: float) -> Column | None:
        column = self._whole.column(table, now)
        if table.entities != self._entities:
            self._entities = table.entities
            limits = (entity.contracts.get(self._contract, NAN) for entity in table.entities)
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
    counted: Column | None = None  # growth of counters since the first read


def _counted(point: _Point) -> Column:
    return point.column if point.counted is None else point.counted


class _History:
    """Columns of a window, the newest last, thinned to about `POINTS` columns."""

    def __init__(self, over_s: float) -> None:
        self.over_s = over_s
        self._step_s = over_s / POINTS
        self.points: list[_Point] = []
        self.gaps: list[float] = []  # last time at which each row was unknown

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
        """Return the points at which the entity in `row` is known."""
        if self.gaps[row] < self.points[0].at:
            return self.points
        return [point for point in self.points if not isnan(point.column[row])]


class _Rates:
    """Growth of counters in units per second; a counter that stepped back restarted at zero."""

    def __init__(self, field: str, over_s: float) -> None:
        self._field = field
        self._history = _History(over_s)
        self._last_values: list[float] = []  # last counter values
        self._total: list[float] = []
        self._last: Column | None = None

    def column(self, table: Table, now: float) -> Column | None:
        if not table.is_fresh(self._field):
            return _masked(self._last, table.column(self._field))
        raw = table.column(self._field)
        if len(self._last_values) != len(raw):
            self._last_values, self._total = [NAN] * len(raw), [0.0] * len(raw)
        self._history.add(_Point(now, raw, self._count(raw)))
        if len(self._history.points) < 2:
            return None
        self._last = self._rates(raw)
        return self._last

    def move(self, rows: Sequence[int]) -> None:
        if self._last_values:
            self._last_values, total = moved(self._last_values, rows), moved(self._total, rows)
            self._total = [0.0 if isnan(value) else value for value in total]
        self._history.move(rows)
        self._last = None if self._last is None else moved(self._last, rows)

    def _count(self, raw: Column) -> list[float]:
        last_values, total = self._last_values, self._total
        if not isnan(sum(last_values) + sum(raw)):  # no row is missing or new
            self._last_values = list(raw)
            self._total = [
                had + (value - before if value >= before else value)
                for had, before, value in zip(total, last_values, raw, strict=True)
            ]
            return list(self._total)  # a copy for the history: `_total` changes later
        for row, value in enumerate(raw):
            if not isnan(value):
                before = last_values[row]
                if not isnan(before):
                    total[row] += value - before if value >= before else value
                last_values[row] = value
        return list(total)

    def _rates(self, raw: Column) -> list[float]:
        """Compute rates for all entities known throughout at once, for the others individually."""
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
        """Compute the rate of an entity like Prometheus.

        The growth is extrapolated to the start of the window, unless the first point is far
        from it.
        """
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
            before_s = max(
                0.0, first.column[row] / more * seen_s
            )  # time since the counter was zero
        mean_s = seen_s / (len(points) - 1)
        if before_s >= mean_s * 1.1:
            before_s = mean_s / 2
        return more * (seen_s + before_s) / seen_s / over_s


class _TimesToFull:
    """Seconds until a value reaches its limit, by a straight line through the window.

    The time is infinite if the value does not grow.
    """

    def __init__(self, field: str, over_s: float, full: str | float) -> None:
        self._field = field
        self._full = full
        self._history = _History(over_s)
        self._last: Column | None = None

    def column(self, table: Table, now: float) -> Column | None:
        if not table.is_fresh(self._field):
            return _masked(self._last, table.column(self._field))
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
    """Least-squares line through values at given times."""

    def __init__(self, times: Sequence[float], now: float) -> None:
        self.now = now
        self._mean = sum(times) / len(times)
        from_mean = [at - self._mean for at in times]
        square = sum(distance * distance for distance in from_mean)
        self._weights = [distance / square for distance in from_mean]

    def until(self, full: float, values: Sequence[float]) -> float:
        """Return the seconds from now until the line reaches `full`."""
        slope = sum(map(mul, self._weights, values))
        here = sum(values) / len(values) + slope * (self.now - self._mean)
        if here >= full:
            return 0.0
        return (full - here) / slope if slope > 0 else inf
