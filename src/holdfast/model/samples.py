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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.model.errors import InvalidInput

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


def slot(at_s: float) -> int:
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
