# SPDX-License-Identifier: Apache-2.0
"""The last hour of a host's numbers, coarse: one point for ten seconds, a line for each of the
host, its guests, their disks and interfaces, of a few fields each.

    hour = samples.read(body)                    # InvalidInput if it is none
    hour = samples.merged(hour, more)            # what came since; an hour of it stays
    hour.lines[0].values["util_ratio"][-1]       # 0.97, or NaN: not known then

Points are numbered since 1970 (`slot`). On the wire and in rows the points of a field are one word:
little-endian floats of four bytes, in base64. As numbers they would be a quarter million to read
for fifty guests, each time.
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
#: What is kept, by what it is of. Counters are not: of a number in ten the last bits would be lost.
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
#: Of one host; of more the number is told.
MOST_LINES: Final = 1_000
#: Of a body with all of that.
MOST_BYTES: Final = 12 * 1024 * 1024
_WORDS: Final = ("name", "project", "project_name", "flavor", "guest")
#: Of a word in characters.
LONGEST: Final = 255
_MOST_CONTRACTS: Final = 32
#: Some thousand years from now.
LAST_SLOT: Final = 2**33


@dataclass(frozen=True)
class Line:
    """One of which something is known; the same words as of an `Entity` of ports/metrics."""

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
    begin: int  # the slot of the first point
    points: int
    lines: tuple[Line, ...] = ()
    left_out: int = 0  # so many there was no room for
    simulated: bool = False

    @property
    def end(self) -> int:
        """The slot after the last."""
        return self.begin + self.points


NOTHING: Final = Hour(0, 0)


def slot_of(at_s: float) -> int:
    return int(at_s // EVERY_S)


def after(hour: Hour, last: int) -> Hour:
    """What of it is later than that slot."""
    cut = min(max(0, last + 1 - hour.begin), hour.points)
    if not cut:
        return hour
    lines = [
        replace(one, values={name: points[cut:] for name, points in one.values.items()})
        for one in hour.lines
    ]
    return replace(hour, begin=hour.begin + cut, points=hour.points - cut, lines=tuple(lines))


def merged(old: Hour, new: Hour) -> Hour:
    """What the new one says of its time counts, and it ends where that does: what is later in the
    old one is of a clock that was set back. Who is not known in the last hour is left out."""
    if not new.points:
        return old
    if not old.points or old.begin >= new.end or new.end - old.end >= POINTS:
        return _kept(new)
    end = new.end
    begin = max(min(old.begin, new.begin), end - POINTS)
    was = {(one.kind, one.id): one for one in old.lines}
    lines = []
    for one in new.lines:
        before = was.pop((one.kind, one.id), None)
        parts = [(old.begin, before.values)] if before is not None else []
        lines.append(replace(one, values=_laid([*parts, (new.begin, one.values)], begin, end)))
    for one in was.values():
        lines.append(replace(one, values=_laid([(old.begin, one.values)], begin, end)))
    return _kept(replace(new, begin=begin, points=end - begin, lines=tuple(lines)))


def _laid(
    parts: Sequence[tuple[int, Mapping[str, "array[float]"]]], begin: int, end: int
) -> dict[str, "array[float]"]:
    names = {name: None for _, values in parts for name in values}
    made = {name: unknown(end - begin) for name in names}
    for first, values in parts:
        for name, points in values.items():
            some = points[max(0, begin - first) : max(0, end - first)]
            place = max(0, first - begin)
            made[name][place : place + len(some)] = some
    return made


def _kept(hour: Hour) -> Hour:
    """Whoever has one point; the last hour of it."""
    if hour.points > POINTS:
        hour = after(hour, hour.end - POINTS - 1)
    lines = [one for one in hour.lines if any(map(is_known, one.values.values()))]
    left_out = hour.left_out + max(0, len(lines) - MOST_LINES)
    return replace(hour, lines=tuple(lines[:MOST_LINES]), left_out=left_out)


def is_known(points: "array[float]") -> bool:
    """Whether one of them is."""
    return not all(map(math.isnan, points))


def unknown(count: int) -> "array[float]":
    return array("f", (math.nan,)) * count


# as JSON


def plain(hour: Hour) -> dict[str, Any]:
    return {
        "begin": hour.begin,
        "points": hour.points,
        "lines": [_plain_line(one) for one in hour.lines],
        **({"left_out": hour.left_out} if hour.left_out else {}),
        **({"simulated": True} if hour.simulated else {}),
    }


def _plain_line(line: Line) -> dict[str, Any]:
    words = {name: value for name in _WORDS if (value := getattr(line, name))}
    contracts = {"contracts": dict(line.contracts)} if line.contracts else {}
    values = {name: _packed(points) for name, points in line.values.items()}
    return {"kind": line.kind, "id": line.id, **words, **contracts, "values": values}


def read(said: Any) -> Hour:
    """InvalidInput says what is wrong with it."""
    if not isinstance(said, Mapping):
        raise InvalidInput("samples: an object is wanted")
    begin, points = (_count(said, name) for name in ("begin", "points"))
    lines = said.get("lines")
    if points > POINTS or begin > LAST_SLOT:
        raise InvalidInput(f"samples: at most {POINTS} points are taken")
    if not isinstance(lines, list) or len(lines) > MOST_LINES:
        raise InvalidInput(f"samples.lines: a list of up to {MOST_LINES} is wanted")
    found = tuple(_line(one, points, f"samples.lines[{n}]") for n, one in enumerate(lines))
    if len({(one.kind, one.id) for one in found}) < len(found):
        raise InvalidInput("samples.lines: somebody is there twice")
    left_out, simulated = _count(said, "left_out"), said.get("simulated") is True
    return Hour(begin, points, found, left_out, simulated)


def _line(said: Any, points: int, where: str) -> Line:
    if not isinstance(said, Mapping):
        raise InvalidInput(f"{where}: an object is wanted")
    kind = said.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise InvalidInput(f"{where}.kind: it is one of {', '.join(FIELDS)}")
    words = {name: said.get(name, "") for name in ("id", *_WORDS)}
    for name, word in words.items():
        if not isinstance(word, str) or len(word) > LONGEST:
            raise InvalidInput(f"{where}.{name}: a text of up to {LONGEST} characters is wanted")
    if not words["id"]:
        raise InvalidInput(f"{where}.id: whose numbers they are is wanted")
    values = said.get("values")
    if not isinstance(values, Mapping) or not values.keys() <= set(FIELDS[kind]):
        raise InvalidInput(f"{where}.values: of a {kind} there are {', '.join(FIELDS[kind])}")
    read_values = {name: _unpacked(word, points, where) for name, word in values.items()}
    return Line(kind, **words, contracts=_contracts(said, where), values=read_values)


def _contracts(said: Mapping[str, Any], where: str) -> dict[str, float]:
    found = said.get("contracts", {})
    good = isinstance(found, Mapping) and len(found) <= _MOST_CONTRACTS
    if not good or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e30
        for one in found.values()
    ):
        raise InvalidInput(f"{where}.contracts: a few numbers by name are wanted")
    return {str(name)[:LONGEST]: float(one) for name, one in found.items()}


def _count(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"samples.{name}: a whole number is wanted")
    return value


def _packed(points: "array[float]") -> str:
    if sys.byteorder == "big":
        points = points[:]
        points.byteswap()
    return base64.b64encode(points.tobytes()).decode()


def _unpacked(word: Any, points: int, where: str) -> "array[float]":
    made = array("f")
    try:
        made.frombytes(base64.b64decode(word, validate=True))
    except (TypeError, ValueError, binascii.Error):
        raise InvalidInput(f"{where}.values: floats of four bytes in base64 are wanted") from None
    if len(made) != points:
        raise InvalidInput(f"{where}.values: {len(made)} points are there, {points} were said")
    if sys.byteorder == "big":
        made.byteswap()
    return made


# The last hour of this host in memory, coarse, for whoever looks at it from the centre. It leaves
# the host only while somebody does.
#
#     recent = Recent()                  # one of the sinks of MetricsPart
#     recent.hour(178_945_002)           # from any thread: what is later than that slot
#
# Of every ten seconds one pass is kept, as it was: the first. That costs the other nine nothing,
# and
# this one about a millisecond for a thousand lines.


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
        slot = slot_of(snapshot.at.timestamp())
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
            return NOTHING
        end = points[-1].slot + 1
        begin = max(end - POINTS, 0 if after >= end else after + 1)
        points = [one for one in points if one.slot >= begin]
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
        found = {name: row for name, row in values[key].items() if is_known(row)}
        if found:
            yield _recent_line(entity, found)


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
