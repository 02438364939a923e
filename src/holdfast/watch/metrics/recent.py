# SPDX-License-Identifier: Apache-2.0
"""The last hour of this host in memory, coarse, for whoever looks at it from the centre. It leaves
the host only while somebody does.

    recent = Recent()                  # one of the sinks of MetricsPart
    recent.hour(178_945_002)           # from any thread: what is later than that slot

Of every ten seconds one pass is kept, as it was: the first. That costs the other nine nothing, and
this one about a millisecond for a thousand lines.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from holdfast.model import samples
from holdfast.model.samples import FIELDS, LONGEST, MOST_LINES, POINTS, Hour, Line
from holdfast.ports.metrics import Entity, Snapshot
from holdfast.watch.alarms.change import Change


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of one kind in one pass: columns, as long as there are entities."""

    entities: tuple[Entity, ...]
    columns: Mapping[str, "array[float]"]


@dataclass(frozen=True, slots=True)
class _Point:
    slot: int
    kinds: Mapping[str, _Kept]
    left_out: int


class Recent:
    """`offer` is called on the thread of the passes; nobody ever waits for anybody."""

    name = "recent"

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=POINTS)

    def offer(self, snapshot: Snapshot, _changes: Sequence[Change] = ()) -> None:
        slot = samples.slot(snapshot.at.timestamp())
        last = self._points[-1] if self._points else None
        if last is not None and slot < last.slot:  # the clock was set back: what was, is not known
            self._points.clear()
            last = None
        if last is None or slot > last.slot:
            self._points.append(_point(slot, snapshot, last))

    def close(self) -> None:
        """Nothing is kept: the next agent begins anew."""

    def hour(self, after: int = -1) -> Hour:
        """What is later than that slot; all there is, if that is yet to come: somebody goes by a
        clock that was wrong."""
        points = list(self._points)  # at once: the interpreter does not change threads meanwhile
        if not points:
            return samples.NOTHING
        end = points[-1].slot + 1
        begin = max(end - POINTS, 0 if after >= end else after + 1)
        points = [one for one in points if one.slot >= begin]
        if not points:
            return samples.NOTHING
        begin = points[0].slot
        lines = [line for kind in FIELDS for line in _lines(kind, points, begin, end)]
        return Hour(begin, end - begin, tuple(lines[:MOST_LINES]), points[-1].left_out)


def _point(slot: int, snapshot: Snapshot, last: _Point | None) -> _Point:
    kinds, room, left_out = {}, MOST_LINES, 0
    for kind, fields in FIELDS.items():
        table = snapshot.tables.get(kind)
        if table is None:
            continue
        table.prepare(fields)
        entities = table.entities[:room]
        left_out += len(table.entities) - len(entities)
        room -= len(entities)
        before = last.kinds.get(kind) if last is not None else None
        if before is not None and before.entities == entities:
            entities = before.entities  # the same object: less to keep, and found at once below
        columns = {name: array("f", table.column(name)[: len(entities)]) for name in fields}
        kinds[kind] = _Kept(entities, columns)
    return _Point(slot, kinds, left_out)


def _lines(kind: str, points: Sequence[_Point], begin: int, end: int) -> Iterable[Line]:
    """Passes in which the same were there are laid side by side at once."""
    values: dict[str, dict[str, array[float]]] = {}
    known: dict[str, Entity] = {}
    there = [(one.slot, one.kinds[kind]) for one in points if kind in one.kinds]
    for _, run in groupby(there, key=lambda one: id(one[1].entities)):
        some = list(run)
        places = [slot - begin for slot, _ in some]
        entities = some[0][1].entities
        known |= {one.id: one for one in entities}
        for name in FIELDS[kind]:
            joined = array("f")
            for _, kept in some:
                joined.extend(kept.columns[name])
            _lay(values, name, (entities, places, joined), end - begin)
    for key, entity in known.items():
        found = {name: row for name, row in values[key].items() if samples.is_known(row)}
        if found:
            yield _line(entity, found)


def _lay(
    values: dict[str, dict[str, "array[float]"]],
    name: str,
    run: tuple[tuple[Entity, ...], Sequence[int], "array[float]"],
    length: int,
) -> None:
    entities, places, joined = run
    first, count = places[0], len(places)
    whole = places[-1] - first + 1 == count
    for row, entity in enumerate(entities):
        line = values.setdefault(entity.id, {})
        points = line.get(name)
        if points is None:
            points = line[name] = samples.unknown(length)
        mine = joined[row :: len(entities)]
        if whole:
            points[first : first + count] = mine
        else:
            for place, value in zip(places, mine, strict=True):
                points[place] = value


def _line(entity: Entity, values: Mapping[str, "array[float]"]) -> Line:
    words = (entity.name, entity.project, entity.project_name, entity.flavor, entity.guest)
    name, project, project_name, flavor, guest = map(_kept_word, words)
    return Line(
        *(entity.kind, entity.id, name, project, project_name, flavor, guest),
        contracts=dict(entity.contracts),
        values=values,
    )


def _kept_word(word: str) -> str:
    """Owners choose names: one that cannot be kept is not to keep the whole hour back."""
    return word.encode(errors="replace").decode().replace("\0", "")[:LONGEST]
