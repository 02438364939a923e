# SPDX-License-Identifier: Apache-2.0
"""The last hour of a host laid out as people look at it: the host, then each guest with its disks
and interfaces, every number with its picture. Values in, values out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.console import marks as marking
from holdfast.console import sparks
from holdfast.console.marks import Marks
from holdfast.console.sparks import Mark, Spark
from holdfast.model.samples import FIELDS, Hour, Line

#: Guests on one page: each has about ten pictures.
MOST_GUESTS: Final = 12
_KINDS: Final = {"guest": "guest", "disk": "disk", "nic": "interface"}


@dataclass(frozen=True)
class Part:
    """A guest itself, a disk or an interface of it."""

    kind: str
    name: str
    sparks: Sequence[Spark]
    marks: Sequence[Mark] = ()


@dataclass
class Guest:
    id: str
    name: str = ""
    project: str = ""
    flavor: str = ""
    parts: list[Part] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return sparks.anchor("guest", self.id)

    @property
    def marks(self) -> Sequence[Mark]:
        return [mark for part in self.parts for mark in part.marks]


@dataclass(frozen=True)
class Laid:
    host: Part | None
    guests: Sequence[Guest]
    found: int  # guests in all that were asked for
    page: int
    pages: int


def laid(hour: Hour, marks: Marks, wanted: str = "", page: int = 1) -> Laid:
    """`wanted`: what is in a guest's name, id or project. Those with alarms come first."""
    host = next((one for one in hour.lines if one.kind == "host"), None)
    groups = _grouped(hour.lines)
    chosen = [(whose, lines) for whose, lines in groups.items() if _is_wanted(whose, lines, wanted)]
    chosen.sort(key=lambda one: (not _alarms(one[1], marks), _name(one[1]).lower(), one[0]))
    pages = max(1, -(-len(chosen) // MOST_GUESTS))
    page = max(1, min(page, pages))
    here = chosen[(page - 1) * MOST_GUESTS : page * MOST_GUESTS]
    guests = [_guest(whose, lines, hour, marks) for whose, lines in here]
    return Laid(_part(host, hour, marks) if host else None, guests, len(chosen), page, pages)


def _grouped(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for one in lines:
        if one.kind != "host":
            whose = one.id if one.kind == "guest" else one.guest or one.id
            groups.setdefault(whose, []).append(one)
    return groups


def _is_wanted(whose: str, lines: Sequence[Line], wanted: str) -> bool:
    words = [whose, *(word for one in lines for word in (one.name, one.project, one.project_name))]
    return not wanted or any(wanted.lower() in word.lower() for word in words)


def _alarms(lines: Sequence[Line], marks: Marks) -> bool:
    return any(marking.of(marks, one.kind, one.id) for one in lines)


def _name(lines: Sequence[Line]) -> str:
    return lines[0].name or lines[0].id


def _guest(whose: str, lines: Sequence[Line], hour: Hour, marks: Marks) -> Guest:
    first = lines[0]
    name = first.name if first.kind == "guest" and first.name else whose
    made = Guest(whose, name, first.project_name or first.project, first.flavor)
    for one in lines:
        made.parts.append(_part(one, hour, marks, name))
    return made


def _part(line: Line, hour: Hour, marks: Marks, guest: str = "") -> Part:
    placed = marking.of(marks, line.kind, line.id)
    drawn = [
        sparks.drawn(
            sparks.anchor(line.kind, line.id, name),
            name,
            line.values[name],
            hour,
            [one.mark for one in placed if one.is_on(name)],
        )
        for name in FIELDS[line.kind]
        if name in line.values
    ]
    called = line.name.removeprefix(f"{guest}/") if guest else line.name
    kind = _KINDS.get(line.kind, line.kind)
    return Part(kind, called or line.id, drawn, [one.mark for one in placed])
