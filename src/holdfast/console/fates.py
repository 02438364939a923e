# SPDX-License-Identifier: Apache-2.0
"""What recovery would do about the servers of hosts that are thought dead, and why not. Pure; the
rungs are those that recovery itself asks (`model/ladder`).

    fates(known, dead, report["moves"])     # [Fate("cmp-1", 3, "recovery is paused by ann: storm")]

What only the cloud knows then is left open: whether there is room, whether the power of a host can
be proven to be off, which servers their owners want to be left alone."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from holdfast.console.tiles import FREE, Tile
from holdfast.model import ladder, mass_failure
from holdfast.model.host import normalise
from holdfast.model.incident import HOST, OPEN, Incident, Verdict, matches
from holdfast.model.segment import RESERVED_HOST, SegmentHost
from holdfast.model.standing import USABLE
from holdfast.ports.recovery import Switch

Move = Mapping[str, Any]


@dataclass(frozen=True)
class Fate:
    """Of the servers of one host. `why` they stay down; without it they move, and `how` says what
    is to be known of that."""

    host: str
    guests: int | None  # None: nobody knows
    segment: str = ""
    why: str = ""
    how: str = ""


@dataclass(frozen=True)
class Known:
    """What recovery would look at. Pauses by their scope, silences with their matchers."""

    now: datetime
    tiles: Sequence[Tile]
    members: Mapping[int, SegmentHost]  # by the id of the host
    pauses: Mapping[str, Switch] = field(default_factory=dict)  # by segment; empty: everywhere
    silences: Sequence[tuple[Mapping[str, Any], Switch]] = ()
    approved: Collection[str] = ()  # racks and zones; empty: everywhere
    rule: mass_failure.Rule = field(default_factory=mass_failure.Rule)
    dry_run: bool = False
    repairs: bool = True


def fates(known: Known, dead: Collection[str], moves: Sequence[Move]) -> list[Fate]:
    """Of those of the dead that have servers, or may have."""
    case = _Case(known, frozenset(dead), moves)
    return [case.fate(one) for one in known.tiles if one.name in dead and one.guests != 0]


@dataclass(frozen=True)
class Sums:
    """How many servers move and how many stay, and of how many hosts nobody has counted them."""

    move: int
    stay: int
    uncounted: int


def sums(some: Sequence[Fate]) -> Sums:
    return Sums(
        sum(one.guests or 0 for one in some if not one.why),
        sum(one.guests or 0 for one in some if one.why),
        sum(one.guests is None for one in some),
    )


@dataclass(frozen=True)
class _Case:
    known: Known
    dead: frozenset[str]
    moves: Sequence[Move]

    def fate(self, tile: Tile) -> Fate:
        member = self.known.members.get(tile.id)
        if member is None:
            return Fate(tile.name, tile.guests, why="it is in no segment")
        segment = member.segment.name
        crowd = self._mass(tile)
        asked = [*self._switches(tile, member), crowd]
        no = ladder.blocked(asked)
        why = no.sentence if no is not None else self._nowhere(tile, member)
        if not why and self.known.dry_run:
            why = "[recovery] dry_run is on: it is decided and recorded, and nothing is touched"
        slowly = crowd.sentence if self._found(tile, self._fleet) is not None else ""
        return Fate(tile.name, tile.guests, segment, why, "" if why else slowly)

    # what recovery asks first

    def _switches(self, tile: Tile, member: SegmentHost) -> Sequence[Verdict]:
        known, segment = self.known, member.segment.uuid
        about = {"host": tile.name, "segment": segment}
        subject = f"host:{normalise(tile.name)}"
        draft = Incident("", subject, HOST, "it is thought dead", OPEN, known.now, details=about)
        pauses = [known.pauses[one] for one in ("", segment) if one in known.pauses]
        silences = [switch for matcher, switch in known.silences if matches(matcher, draft)]
        return (
            ladder.paused(pauses),
            ladder.silenced(silences),
            ladder.segment(member),
            ladder.maintenance(tile.name, member.on_maintenance),
        )

    def _mass(self, tile: Tile) -> Verdict:
        return ladder.mass(self._found(tile, self._fleet), _domain(tile), self._approved(tile))

    def _found(
        self, tile: Tile, judged: Mapping[str, mass_failure.Verdict]
    ) -> mass_failure.Verdict | None:
        found = judged.get(_domain(tile))
        return None if found is None or found.what == mass_failure.GO else found

    def _approved(self, tile: Tile) -> bool:
        return bool({"", _domain(tile)} & {*self.known.approved})

    def _is_down(self, tile: Tile) -> bool:
        hit = any(one.kind == HOST for one in tile.incidents)
        return hit or tile.state not in USABLE or tile.name in self.dead

    @cached_property
    def _fleet(self) -> Mapping[str, mass_failure.Verdict]:
        """Recovery counts all hosts."""
        seen = [mass_failure.Seen(_domain(one), self._is_down(one)) for one in self.known.tiles]
        return mass_failure.judge(seen, self.known.rule)

    @cached_property
    def _enrolled(self) -> Mapping[str, mass_failure.Verdict]:
        """The repair of reservations counts those that it may give."""
        seen = [
            mass_failure.Seen(_domain(one), one.state not in USABLE or one.name in self.dead)
            for one in self.known.tiles
            if one.enrolled
        ]
        return mass_failure.judge(seen, self.known.rule)

    # where they could go

    @cached_property
    def _alive(self) -> Sequence[Tile]:
        return [one for one in self.known.tiles if not self._is_down(one)]

    @cached_property
    def _homes(self) -> Mapping[str, set[str]]:
        """Hosts that leases have and keep."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self._alive:
            for held in one.held:
                found[held.lease_id].add(one.name)
        return found

    @cached_property
    def _given(self) -> Mapping[str, set[str]]:
        """Hosts that leases would get instead."""
        found: dict[str, set[str]] = defaultdict(set)
        for move in self.moves:
            if move["active"]:
                found[move["lease_id"]].update(move["joins"])
        return found

    def _nowhere(self, tile: Tile, member: SegmentHost) -> str:
        """Why no host would take them; empty: there is one."""
        if not tile.held:
            return self._no_target(tile, member)
        said = [self._no_home(tile, one.lease_id, one.lease) for one in tile.held]
        return said[0] if all(said) else ""

    def _no_home(self, tile: Tile, lease: str, name: str) -> str:
        """Servers of a reservation stay inside it."""
        if not lease or self._homes.get(lease):  # whose name is not told: nor is what it has
            return ""
        if not self._given.get(lease):
            return f"its lease {name} has no other host"
        if not self.known.repairs:
            return f"its lease {name} gets no other host: [reservation] repair is off"
        verdict = ladder.mass(self._found(tile, self._enrolled), "", self._approved(tile))
        if not verdict.passed:
            return f"its lease {name} gets no other host before somebody approves"
        return ""

    def _no_target(self, tile: Tile, member: SegmentHost) -> str:
        """Hosts that are enrolled take reserved servers, and such that give way; others the rest.
        Spares are there for all."""
        spares = [one for one in self._alive if _is_spare(one, tile)]
        if member.segment.recovery_method == RESERVED_HOST:
            return "" if spares else f"no spare host of segment {member.segment.name} is left"
        taken = {name for names in self._given.values() for name in names}
        others = [
            one
            for one in self._alive
            if one.enrolled == tile.enrolled
            and not one.maintenance
            and (not one.enrolled or (one.use == FREE and one.name not in taken))
        ]
        return "" if others or spares else "no other host is up that would take them"


def _domain(tile: Tile) -> str:
    return tile.rack or tile.zone


def _is_spare(one: Tile, of: Tile) -> bool:
    return one.spare and one.segment == of.segment and not one.maintenance
