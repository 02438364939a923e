# SPDX-License-Identifier: Apache-2.0
"""Tiles of the wall: what is said of each host, which of them somebody wants to see, and in which
groups. Values in, values out.

    tiles = furnish(look, networks, guests)
    wanted = Wanted.read(query)            # ?by=segment&state=down&is=reserved&q=rack-a
    near = [one for one in tiles if wanted.near(one)]
    groups = grouped([one for one in near if wanted.takes(one)], wanted)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from holdfast.model.host import short
from holdfast.model.incident import Incident, covers
from holdfast.model.standing import DOWN, RETURNING, SUSPECT, UP, USABLE
from holdfast.store.wall import Held, Look

STATES: Final = (DOWN, SUSPECT, RETURNING, UP)
RACK, SEGMENT, LEASE = "rack", "segment", "lease"
RESERVED, FREE, CLOSED = "reserved", "free", "closed"
MAINTENANCE, FENCED, ALARMS, INCIDENT = "maintenance", "fenced", "alarms", "incident"
#: Evidence of a host whose power read off though Holdfast did not cut it.
POWER_OFF = "power_off"
IS: Final = (RESERVED, FREE, MAINTENANCE, FENCED, ALARMS, INCIDENT)
#: With more than that, groups are lines and only what is bad is shown by itself.
MOST_TILES: Final = 400
#: Of a group that was opened, and of what is bad.
MOST_OF_A_GROUP, MOST_BAD = 1000, 200
_LONGEST = 100
Networks = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tile:
    id: int
    name: str
    state: str = UP
    rack: str = ""
    segment: str = ""
    zone: str = ""
    use: str = CLOSED
    held: Sequence[Held] = ()
    networks: Networks = field(default_factory=dict)
    since: datetime | None = None
    why: str = ""
    maintenance: bool = False
    spare: bool = False
    fenced: str = ""  # the sentence that proves it
    guests: int | None = None  # None: nobody knows
    alarms: int = 0
    incidents: Sequence[Incident] = ()
    enrolled: bool = False
    silent_until: datetime | None = None  # left alone by a silence: that is maintenance too
    off: str = ""  # the sentence that says that its power read off and that it was not fenced

    @property
    def is_bad(self) -> bool:
        return self.state != UP or bool(self.incidents) or DOWN in self.networks.values()

    @property
    def ways(self) -> frozenset[str]:
        """Of `IS`, what it is."""
        said = {
            MAINTENANCE: self.maintenance or self.silent_until is not None,
            FENCED: bool(self.fenced),
            ALARMS: self.alarms > 0,
            INCIDENT: bool(self.incidents),
        }
        return frozenset({self.use, *(name for name, so in said.items() if so)})

    @property
    def text(self) -> str:
        """What a search goes through."""
        leases = (f"{one.lease} {one.project_id}" for one in self.held)
        return " ".join((self.name, self.rack, self.zone, self.segment, *leases)).lower()


def furnish(
    look: Look,
    networks: Mapping[str, Networks],
    unseen: Networks,
    guests: Mapping[str, int],
) -> list[Tile]:
    """`networks` by name of host; `unseen` where no monitor knows it."""
    hit: dict[str, list[Incident]] = {}
    for one in look.open:
        hit.setdefault(short(one.host), []).append(one)
    left = _by_host(look.silences)
    return [_tile(row, look, (networks, unseen, guests), hit, left) for row in look.hosts]


def _by_host(silences: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """By the short name that they speak of; those that name no host under no name."""
    found: dict[str, list[Any]] = {}
    for one in silences:
        found.setdefault(short(str(one.matcher.get("host", ""))), []).append(one)
    return found


def _silent(row: Any, left: Mapping[str, Sequence[Any]]) -> datetime | None:
    """Until when it is left alone as a whole, by the longest that means it."""
    known = (*left.get("", ()), *left.get(short(row.name), ())) if left else ()
    ends = [
        one.expires_at for one in known if covers(one.matcher, row.service_host, row.segment_id)
    ]
    return max(ends, default=None)


def _tile(
    row: Any,
    look: Look,
    seen: tuple[Any, Networks, Any],
    hit: Mapping[str, Any],
    left: Mapping[str, Sequence[Any]],
) -> Tile:
    networks, unseen, guests = seen
    held = look.held.get(row.id, ())
    since, why = look.bad.get(row.id, (None, ""))
    last = look.last.get(f"host:{row.name}")
    open_ = row.reservable and row.state in USABLE
    return Tile(
        row.id,
        row.service_host,
        row.state,
        row.rack,
        row.segment or "",
        row.zone,
        RESERVED if held else FREE if row.enrolled and open_ else CLOSED,
        held,
        _of(networks, row.name) or unseen,
        since,
        why,
        bool(row.on_maintenance),
        bool(row.spare),
        _proof(last, FENCED) if last is not None else "",
        _of(guests, row.name),
        look.alarms.get(row.name, 0),
        hit.get(short(row.name), ()) if hit else (),
        row.enrolled,
        _silent(row, left),
        _proof(last, POWER_OFF) if last is not None else "",
    )


def _of(known: Mapping[str, Any], name: str) -> Any:
    """By its name, whole or short."""
    found = known.get(name)
    return known.get(short(name)) if found is None and known else found


def _proof(last: Incident, kind: str) -> str:
    """The sentence of evidence of that kind that a host is off, until the host is back."""
    evidence = last.details.get("evidence") or {}
    is_so = evidence.get("kind") == kind and not last.details.get("back_at")
    return str(evidence.get("sentence", "")) if is_so else ""


# what is wanted


@dataclass(frozen=True)
class Wanted:
    """All of it is in the address of the page."""

    by: str = RACK
    states: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    text: str = ""
    groups: tuple[str, ...] = ()

    @classmethod
    def read(cls, every: Mapping[str, Sequence[str]]) -> "Wanted":
        """What makes no sense is left aside: an address is not worth an error."""
        by = every.get("by", [RACK])[-1]
        return cls(
            by if by in (RACK, SEGMENT) else RACK,
            tuple(one for one in STATES if one in every.get("state", ())),
            tuple(one for one in IS if one in every.get("is", ())),
            every.get("q", [""])[-1].strip()[:_LONGEST],
            tuple(dict.fromkeys(every.get("group", ()))),
        )

    def takes(self, tile: Tile) -> bool:
        """Among those that are `near`."""
        if self.states and tile.state not in self.states:
            return False
        return not self.ways or tile.ways.issuperset(self.ways)

    def near(self, tile: Tile) -> bool:
        """Whether it is meant by text and group, whatever it is like: what is counted."""
        if self.groups and not any(name in self.groups for name in names(tile, self.by)):
            return False
        return not self.text or all(word in tile.text for word in self.text.lower().split())

    @property
    def narrows(self) -> bool:
        return bool(self.states or self.ways or self.text or self.groups)

    def address(self, path: str = "/", **changes: Any) -> str:
        """Where it is to be seen, with these differences."""
        one = replace(self, **changes)
        pairs = [("by", one.by)] if one.by != RACK else []
        pairs += [("state", state) for state in one.states] + [("is", way) for way in one.ways]
        pairs += [("q", one.text)] if one.text else []
        pairs += [("group", group) for group in one.groups]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, *, state: str = "", way: str = "") -> str:
        """The same with one more, or one less."""
        return self.address(states=_toggle(self.states, state), ways=_toggle(self.ways, way))


def _toggle(some: tuple[str, ...], one: str) -> tuple[str, ...]:
    if not one:
        return some
    return tuple(x for x in some if x != one) if one in some else (*some, one)


# groups


@dataclass(frozen=True)
class Group:
    """`tiles` are those that are shown; `states` and `ways` count all."""

    name: str
    size: int
    states: Mapping[str, int]
    ways: Mapping[str, int]
    tiles: Sequence[Tile] = ()
    is_open: bool = True

    @property
    def left_out(self) -> int:
        return self.size - len(self.tiles)

    @property
    def bar(self) -> Sequence[tuple[str, float, float]]:
        """State, from and width in percent."""
        found, at = [], 0.0
        for state in STATES:
            if count := self.states.get(state, 0):
                found.append((state, round(at, 3), round(100 * count / self.size, 3)))
                at += 100 * count / self.size
        return found


def grouped(tiles: Sequence[Tile], wanted: Wanted) -> list[Group]:
    """All of them, unless they are too many: then lines, and what is bad."""
    many = len(tiles) > MOST_TILES
    found: dict[str, list[Tile]] = {}
    for one in tiles:
        for name in names(one, wanted.by):
            found.setdefault(name, []).append(one)
    left, groups = MOST_BAD, []
    for name in sorted(found):
        is_open = not many or name in wanted.groups
        some = found[name] if is_open else [one for one in found[name] if one.is_bad]
        shown = some[: MOST_OF_A_GROUP if is_open else left]
        left -= 0 if is_open else len(shown)
        groups.append(_group(name, found[name], shown, is_open))
    return groups


def names(tile: Tile, by: str) -> Iterable[str]:
    if by == LEASE:
        return dict.fromkeys(one.lease for one in tile.held)
    return (tile.segment if by == SEGMENT else tile.rack or tile.zone,)


def _group(name: str, every: Sequence[Tile], shown: Sequence[Tile], is_open: bool) -> Group:
    states, ways = counts(every)
    return Group(name, len(every), states, ways, shown, is_open)


def counts(tiles: Iterable[Tile]) -> tuple[Counter[str], Counter[str]]:
    states: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    for one in tiles:
        states[one.state] += 1
        ways.update(one.ways)
    return states, ways
