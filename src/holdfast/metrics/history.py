# SPDX-License-Identifier: Apache-2.0
"""Coarse history: the last hour of a host's metrics, a point every 10 seconds.

The history has a line each for the host, its guests, their disks and interfaces, with a few
fields per line.

    hour = history.read(body)                    # InvalidInput if the body is malformed
    hour = history.merged(hour, newer)           # adds newer points, keeps the last hour
    hour.lines[0].values["util_ratio"][-1]       # 0.97, or NaN: unknown at that time

Points are numbered since 1970 (`slot`). On the wire and in database rows, the points of a field
are one base64 string of little-endian 4-byte floats. As JSON numbers, 50 guests would be a
quarter of a million values to parse each time.

`Recent` records the history of this host in the agent's memory.
"""

import base64
import binascii
import math
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from holdfast.alarms.tracks import Change
from holdfast.model.errors import InvalidInput
from holdfast.ports.metrics import Entity, Snapshot

EVERY_S: Final = 10
POINTS: Final = 360
#: Recorded fields per kind. Counters are not recorded: a 4-byte float would lose the last
#: digits of a number in ten.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "host": (
        "cpu_util_ratio",
        "cpu_iowait_ratio",
        "cpu_steal_ratio",
        "load1",
        "mem_available_bytes",
        "swap_used_bytes",
        "psi_cpu_some_avg10",
        "psi_mem_some_avg10",
        "psi_io_some_avg10",
    ),
    "guest": ("util_ratio", "steal_ratio", "used_ratio", "rss_kib"),
    "disk": (
        "iops",
        "bytes_per_s",
        "mean_latency_ns",
        "fill_ratio",
        "allocation_bytes",
        "capacity_bytes",
    ),
    "nic": ("rx_bps", "tx_bps", "over_contract_ratio"),
}
#: Largest number of lines per host; `Hour.left_out` counts the others.
MOST_LINES: Final = 1_000
#: Largest size of a request body with a full history.
MOST_BYTES: Final = 12 * 1024 * 1024
_TEXTS: Final = ("name", "project", "project_name", "flavor", "guest")
#: Longest text in characters.
LONGEST: Final = 255
_MOST_CONTRACTS: Final = 32
#: A slot some thousand years from now.
LAST_SLOT: Final = 2**33


@dataclass(frozen=True)
class Line:
    """Points of an entity; the attributes have the names of `Entity` in ports/metrics."""

    kind: str
    id: str
    name: str = ""
    project: str = ""
    project_name: str = ""
    flavor: str = ""
    guest: str = ""
    contracts: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, "array[float]"] = field(default_factory=dict)


@dataclass(frozen=True)
class Hour:
    """Up to an hour of points, for all lines of a host."""

    begin: int  # the slot of the first point
    points: int
    lines: tuple[Line, ...] = ()
    left_out: int = 0  # lines beyond MOST_LINES
    simulated: bool = False

    @property
    def end(self) -> int:
        """The slot after the last point."""
        return self.begin + self.points


NOTHING: Final = Hour(0, 0)


def slot_of(at_s: float) -> int:
    """Return the slot of a time in seconds since 1970."""
    return int(at_s // EVERY_S)


def after(hour: Hour, last: int) -> Hour:
    """Return the points later than slot `last`."""
    cut = min(max(0, last + 1 - hour.begin), hour.points)
    if not cut:
        return hour
    lines = [
        replace(line, values={name: points[cut:] for name, points in line.values.items()})
        for line in hour.lines
    ]
    return replace(hour, begin=hour.begin + cut, points=hour.points - cut, lines=tuple(lines))


def merged(old: Hour, new: Hour) -> Hour:
    """Merge a newer history into an older history.

    The new points replace old points of the same slots, and the result ends where the new
    history ends. Old points after that end are dropped: they come from a clock that was set
    back. Lines with no known point in the last hour are left out.
    """
    if not new.points:
        return old
    if not old.points or old.begin >= new.end or new.end - old.end >= POINTS:
        return _trimmed(new)
    end = new.end
    begin = max(min(old.begin, new.begin), end - POINTS)
    was = {(line.kind, line.id): line for line in old.lines}
    lines = []
    for line in new.lines:
        before = was.pop((line.kind, line.id), None)
        parts = [(old.begin, before.values)] if before is not None else []
        values = _arranged([*parts, (new.begin, line.values)], begin, end)
        lines.append(replace(line, values=values))
    for line in was.values():
        lines.append(replace(line, values=_arranged([(old.begin, line.values)], begin, end)))
    return _trimmed(replace(new, begin=begin, points=end - begin, lines=tuple(lines)))


def _arranged(
    parts: Sequence[tuple[int, Mapping[str, "array[float]"]]], begin: int, end: int
) -> dict[str, "array[float]"]:
    """Place the points of several histories into arrays from slot `begin` to `end`."""
    names = {name: None for _, values in parts for name in values}
    made = {name: unknown(end - begin) for name in names}
    for first, values in parts:
        for name, points in values.items():
            some = points[max(0, begin - first) : max(0, end - first)]
            place = max(0, first - begin)
            made[name][place : place + len(some)] = some
    return made


def _trimmed(hour: Hour) -> Hour:
    """Keep the last hour, and the first `MOST_LINES` lines that have a known point."""
    if hour.points > POINTS:
        hour = after(hour, hour.end - POINTS - 1)
    lines = [line for line in hour.lines if any(map(is_known, line.values.values()))]
    left_out = hour.left_out + max(0, len(lines) - MOST_LINES)
    return replace(hour, lines=tuple(lines[:MOST_LINES]), left_out=left_out)


def is_known(points: "array[float]") -> bool:
    """Tell whether any point is known."""
    return not all(map(math.isnan, points))


def unknown(count: int) -> "array[float]":
    """Return an array of `count` unknown points (NaN)."""
    return array("f", (math.nan,)) * count


# JSON


def plain(hour: Hour) -> dict[str, Any]:
    """Return the history as a JSON object."""
    return {
        "begin": hour.begin,
        "points": hour.points,
        "lines": [_plain_line(line) for line in hour.lines],
        **({"left_out": hour.left_out} if hour.left_out else {}),
        **({"simulated": True} if hour.simulated else {}),
    }


def _plain_line(line: Line) -> dict[str, Any]:
    texts = {name: value for name in _TEXTS if (value := getattr(line, name))}
    contracts = {"contracts": dict(line.contracts)} if line.contracts else {}
    values = {name: _packed(points) for name, points in line.values.items()}
    return {"kind": line.kind, "id": line.id, **texts, **contracts, "values": values}


def read(body: Any) -> Hour:
    """Parse a history from JSON. InvalidInput says what is wrong."""
    if not isinstance(body, Mapping):
        raise InvalidInput("samples: an object is wanted")
    begin, points = (_count(body, name) for name in ("begin", "points"))
    lines = body.get("lines")
    if points > POINTS or begin > LAST_SLOT:
        raise InvalidInput(f"samples: at most {POINTS} points are taken")
    if not isinstance(lines, list) or len(lines) > MOST_LINES:
        raise InvalidInput(f"samples.lines: a list of up to {MOST_LINES} is wanted")
    parsed = tuple(_line(line, points, f"samples.lines[{n}]") for n, line in enumerate(lines))
    if len({(line.kind, line.id) for line in parsed}) < len(parsed):
        raise InvalidInput("samples.lines: an entity is there twice")
    left_out, simulated = _count(body, "left_out"), body.get("simulated") is True
    return Hour(begin, points, parsed, left_out, simulated)


def _line(body: Any, points: int, where: str) -> Line:
    if not isinstance(body, Mapping):
        raise InvalidInput(f"{where}: an object is wanted")
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidInput(f"{where}.kind: write one of {', '.join(FIELDS)}")
    texts = {name: body.get(name, "") for name in ("id", *_TEXTS)}
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > LONGEST:
            raise InvalidInput(f"{where}.{name}: a text of up to {LONGEST} characters is wanted")
    if not texts["id"]:
        raise InvalidInput(f"{where}.id: the id of the entity is wanted")
    values = body.get("values")
    if not isinstance(values, Mapping) or not values.keys() <= set(FIELDS[kind]):
        raise InvalidInput(f"{where}.values: of a {kind} there are {', '.join(FIELDS[kind])}")
    read_values = {name: _unpacked(data, points, where) for name, data in values.items()}
    return Line(kind, **texts, contracts=_contracts(body, where), values=read_values)


def _contracts(body: Mapping[str, Any], where: str) -> dict[str, float]:
    contracts = body.get("contracts", {})
    good = isinstance(contracts, Mapping) and len(contracts) <= _MOST_CONTRACTS
    if not good or not all(
        isinstance(limit, int | float) and not isinstance(limit, bool) and abs(limit) < 1e30
        for limit in contracts.values()
    ):
        raise InvalidInput(f"{where}.contracts: a few numbers by name are wanted")
    return {str(name)[:LONGEST]: float(limit) for name, limit in contracts.items()}


def _count(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"samples.{name}: a whole number is wanted")
    return value


def _packed(points: "array[float]") -> str:
    if sys.byteorder == "big":
        points = points[:]
        points.byteswap()
    return base64.b64encode(points.tobytes()).decode()


def _unpacked(data: Any, points: int, where: str) -> "array[float]":
    made = array("f")
    try:
        made.frombytes(base64.b64decode(data, validate=True))
    except (TypeError, ValueError, binascii.Error):
        raise InvalidInput(f"{where}.values: floats of four bytes in base64 are wanted") from None
    if len(made) != points:
        raise InvalidInput(f"{where}.values: {len(made)} points are there, {points} were announced")
    if sys.byteorder == "big":
        made.byteswap()
    return made


# Recorder of this host's history.


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a kind in a single pass; each column is as long as `entities`."""

    entities: tuple[Entity, ...]
    columns: Mapping[str, "array[float]"]


@dataclass(frozen=True, slots=True)
class _Point:
    slot: int
    kinds: Mapping[str, _Columns]
    left_out: int


class Recent:
    """Keeps the last hour of this host in memory, as a metric sink of `MetricsPart`.

        recent = Recent()
        recent.hour(178_945_002)           # from any thread: points later than that slot

    The history leaves the host only while somebody views its metrics through the manager.

    The first pass of every 10 seconds is kept unchanged. The other nine passes cost nothing;
    the kept pass costs about 1 ms for 1000 lines. The pass thread calls `offer`; no thread ever
    waits for another.
    """

    name = "recent"

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=POINTS)

    def offer(self, snapshot: Snapshot, _changes: Sequence[Change] = ()) -> None:
        slot = slot_of(snapshot.at.timestamp())
        last = self._points[-1] if self._points else None
        if last is not None and slot < last.slot:  # the clock was set back: drop the history
            self._points.clear()
            last = None
        if last is None or slot > last.slot:
            self._points.append(_point(slot, snapshot, last))

    def close(self) -> None:
        """Do nothing: history is not saved, and the next agent starts with an empty history."""

    def hour(self, after: int = -1) -> Hour:
        """Return the points later than slot `after`.

        If `after` lies in the future, return all points: the caller's clock was wrong.
        """
        points = list(self._points)  # atomic: the interpreter does not switch threads in list()
        if not points:
            return NOTHING
        end = points[-1].slot + 1
        begin = max(end - POINTS, 0 if after >= end else after + 1)
        points = [point for point in points if point.slot >= begin]
        if not points:
            return NOTHING
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
            entities = before.entities  # same object: less memory, and `_lines` groups by identity
        columns = {name: array("f", table.column(name)[: len(entities)]) for name in fields}
        kinds[kind] = _Columns(entities, columns)
    return _Point(slot, kinds, left_out)


def _lines(kind: str, points: Sequence[_Point], begin: int, end: int) -> Iterable[Line]:
    """Yield the lines of a kind.

    Consecutive passes with the same entities are combined in a single step.
    """
    values: dict[str, dict[str, array[float]]] = {}
    known_entities: dict[str, Entity] = {}
    there = [(point.slot, point.kinds[kind]) for point in points if kind in point.kinds]
    for _, run in groupby(there, key=lambda point: id(point[1].entities)):
        some = list(run)
        places = [slot - begin for slot, _ in some]
        entities = some[0][1].entities
        known_entities |= {entity.id: entity for entity in entities}
        for name in FIELDS[kind]:
            joined = array("f")
            for _, columns in some:
                joined.extend(columns.columns[name])
            _lay(values, name, (entities, places, joined), end - begin)
    for key, entity in known_entities.items():
        rows = {name: row for name, row in values[key].items() if is_known(row)}
        if rows:
            yield _recent_line(entity, rows)


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
            points = line[name] = unknown(length)
        mine = joined[row :: len(entities)]
        if whole:
            points[first : first + count] = mine
        else:
            for place, value in zip(places, mine, strict=True):
                points[place] = value


def _recent_line(entity: Entity, values: Mapping[str, "array[float]"]) -> Line:
    texts = (entity.name, entity.project, entity.project_name, entity.flavor, entity.guest)
    name, project, project_name, flavor, guest = map(_storable, texts)
    return Line(
        *(entity.kind, entity.id, name, project, project_name, flavor, guest),
        contracts=dict(entity.contracts),
        values=values,
    )


def _storable(text: str) -> str:
    """Make a name storable.

    Owners choose names, and a bad name must not block the whole history.
    """
    return text.encode(errors="replace").decode().replace("\0", "")[:LONGEST]
