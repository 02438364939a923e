# SPDX-License-Identifier: Apache-2.0
"""/console/what-if: the effects of an assumed failure of hosts or racks.

The page shows the servers that would move, the reservations that would lose hosts, and the
capacity left. It uses the repair planner and the guards of recovery, and changes nothing. The
URL names the assumed failures. The first section previews recovery, the second computes the
capacity left, and the last builds the page.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from holdfast.api.holdfast_v1 import failover, repair
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.pages import page
from holdfast.console.wall import CLOSED, FREE, MOST_TILES, Tile, all_tiles
from holdfast.hoststatus.status import USABLE
from holdfast.model.errors import HoldfastError
from holdfast.model.host import Size, normalise
from holdfast.model.incident import HOST, OPEN, Incident, Verdict, matches
from holdfast.model.segment import RESERVED_HOST, SegmentHost
from holdfast.ports.recovery import Switch
from holdfast.recovery import guards, mass_failure

# The recovery preview: whether the servers of failed hosts would move, and if not, why. Pure.
# The guards are the guards of recovery itself (`recovery/guards`).
#
#     recovery_preview(known, dead, report["moves"])
#     # [RecoveryPreview("cmp-1", 3, "north", "recovery is paused by ann: storm")]
#
# The preview leaves open what only the cloud knows at that time: whether there is capacity,
# whether fencing can prove the host off, and which servers their owners exclude from recovery.


Move = Mapping[str, Any]


@dataclass(frozen=True)
class RecoveryPreview:
    """The preview for the servers of a host.

    `why` says why the servers stay down. If empty, they move, and `how` adds a remark.
    """

    host: str
    guests: int | None  # None: unknown
    segment: str = ""
    why: str = ""
    how: str = ""


@dataclass(frozen=True)
class Known:
    """The inputs of recovery: pauses by scope, maintenance windows by matcher, approvals, rules."""

    now: datetime
    tiles: Sequence[Tile]
    members: Mapping[int, SegmentHost]  # by host id
    pauses: Mapping[str, Switch] = field(default_factory=dict)  # by segment; empty: everywhere
    silences: Sequence[tuple[Mapping[str, Any], Switch]] = ()
    approved: Collection[str] = ()  # racks and zones; empty: everywhere
    limits: mass_failure.MassFailureLimits = field(default_factory=mass_failure.DefaultLimits)
    dry_run: bool = False
    repairs: bool = True


def recovery_preview(
    known: Known, dead: Collection[str], moves: Sequence[Move]
) -> list[RecoveryPreview]:
    """Return the preview of each failed host with servers, or with an unknown number of servers."""
    case = _Case(known, frozenset(dead), moves)
    return [case.fate(one) for one in known.tiles if one.name in dead and one.guests != 0]


@dataclass(frozen=True)
class Sums:
    """The servers that move, the servers that stay, and the hosts with an unknown count."""

    move: int
    stay: int
    uncounted: int


def sums(some: Sequence[RecoveryPreview]) -> Sums:
    return Sums(
        sum(one.guests or 0 for one in some if not one.why),
        sum(one.guests or 0 for one in some if one.why),
        sum(one.guests is None for one in some),
    )


@dataclass(frozen=True)
class _Case:
    """An assumed failure, with the moves of reservations that the planner computed."""

    known: Known
    dead: frozenset[str]
    moves: Sequence[Move]

    def fate(self, tile: Tile) -> RecoveryPreview:
        member = self.known.members.get(tile.id)
        if member is None:
            return RecoveryPreview(tile.name, tile.guests, why="it is in no segment")
        segment = member.segment.name
        crowd = self._mass(tile)
        asked = [*self._switches(tile, member), crowd]
        no = guards.first_denial(asked)
        why = no.sentence if no is not None else self._nowhere(tile, member)
        if not why and self.known.dry_run:
            why = "[recovery] dry_run is on: it is decided and recorded, and nothing is touched"
        slowly = crowd.sentence if self._found(tile, self._fleet) is not None else ""
        return RecoveryPreview(tile.name, tile.guests, segment, why, "" if why else slowly)

    # Guards

    def _switches(self, tile: Tile, member: SegmentHost) -> Sequence[Verdict]:
        known, segment = self.known, member.segment.uuid
        about = {"host": tile.name, "segment": segment}
        subject = f"host:{normalise(tile.name)}"
        draft = Incident("", subject, HOST, "it is thought dead", OPEN, known.now, details=about)
        pauses = [known.pauses[one] for one in ("", segment) if one in known.pauses]
        silences = [switch for matcher, switch in known.silences if matches(matcher, draft)]
        return (
            guards.paused_verdict(pauses),
            guards.silenced_verdict(silences),
            guards.segment_verdict(member),
            guards.maintenance_verdict(tile.name, member.on_maintenance),
        )

    def _mass(self, tile: Tile) -> Verdict:
        return guards.mass_failure_verdict(
            self._found(tile, self._fleet), _domain(tile), self._approved(tile)
        )

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
        """Return the mass-failure verdicts of recovery; all hosts count."""
        seen = [mass_failure.Seen(_domain(one), self._is_down(one)) for one in self.known.tiles]
        return mass_failure.judge(seen, self.known.limits)

    @cached_property
    def _enrolled(self) -> Mapping[str, mass_failure.Verdict]:
        """Return the mass-failure verdicts of reservation repair; only enrolled hosts count."""
        seen = [
            mass_failure.Seen(_domain(one), one.state not in USABLE or one.name in self.dead)
            for one in self.known.tiles
            if one.enrolled
        ]
        return mass_failure.judge(seen, self.known.limits)

    # Targets

    @cached_property
    def _alive(self) -> Sequence[Tile]:
        return [one for one in self.known.tiles if not self._is_down(one)]

    @cached_property
    def _homes(self) -> Mapping[str, set[str]]:
        """Return the hosts that each lease holds and keeps."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self._alive:
            for held in one.held:
                found[held.lease_id].add(one.name)
        return found

    @cached_property
    def _given(self) -> Mapping[str, set[str]]:
        """Return the replacement hosts of each lease."""
        found: dict[str, set[str]] = defaultdict(set)
        for move in self.moves:
            if move["active"]:
                found[move["lease_id"]].update(move["joins"])
        return found

    def _nowhere(self, tile: Tile, member: SegmentHost) -> str:
        """Return why no host can take the servers; empty if a host can."""
        if not tile.held:
            return self._no_target(tile, member)
        said = [self._no_home(tile, one.lease_id, one.lease) for one in tile.held]
        return said[0] if all(said) else ""

    def _no_home(self, tile: Tile, lease: str, name: str) -> str:
        """Return why the lease has no host for the servers.

        Reserved servers stay on the hosts of their lease.
        """
        if not lease or self._homes.get(lease):  # hidden holder: its hosts are hidden too
            return ""
        if not self._given.get(lease):
            return f"its lease {name} has no other host"
        if not self.known.repairs:
            return f"its lease {name} gets no other host: [reservation] repair is off"
        verdict = guards.mass_failure_verdict(
            self._found(tile, self._enrolled), "", self._approved(tile)
        )
        if not verdict.passed:
            return f"its lease {name} gets no other host before somebody approves"
        return ""

    def _no_target(self, tile: Tile, member: SegmentHost) -> str:
        """Return why no host can take servers without a reservation.

        Servers stay among enrolled or among other hosts, like their failed host. An enrolled
        target must be free and not taken by a lease. Spares are for all.
        """
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


# The capacity of racks or segments now and after the failure. Pure.
#
#     left(tiles, After({"cmp-1"}, taken, sizes), "rack")    # [Left("rack-a", up=4, still_up=3, …)]


NOTHING: Final = Size()


@dataclass(frozen=True)
class After:
    """The state after the failure: failed hosts, hosts given to reservations, and host sizes."""

    gone: Collection[str]
    taken: Collection[str]
    sizes: Mapping[int, Size]


@dataclass(frozen=True)
class Left:
    """The capacity of a rack or segment before and after.

    `up` counts hosts that are up, `usable` the hosts of these that leases can get, `free` the
    free hosts of those. `size` is the total size of hosts that are up.
    """

    name: str
    up: int = 0
    still_up: int = 0
    usable: int = 0
    still_usable: int = 0
    free: int = 0
    still_free: int = 0
    size: Size = NOTHING
    still_size: Size = NOTHING
    kept: int = 0

    @property
    def is_short(self) -> bool:
        return self.still_free < self.kept

    def plus(self, tile: Tile, stays: bool, taken: bool, size: Size) -> "Left":
        given, free = tile.use != CLOSED, tile.use == FREE
        return replace(
            self,
            up=self.up + 1,
            still_up=self.still_up + stays,
            usable=self.usable + given,
            still_usable=self.still_usable + (given and stays),
            free=self.free + free,
            still_free=self.still_free + (free and stays and not taken),
            size=self.size + size,
            still_size=self.still_size + (size if stays else NOTHING),
        )


def left(
    tiles: Sequence[Tile], after: After, by: str, kept: Mapping[str, int] | None = None
) -> list[Left]:
    """Return the capacity of each rack or segment now and after the failure."""
    found: dict[str, Left] = {}
    for one in (tile for tile in tiles if tile.state in USABLE):
        name = getattr(one, by)
        known = found.get(name) or Left(name, kept=(kept or {}).get(name, 0))
        size = after.sizes.get(one.id, NOTHING)
        found[name] = known.plus(one, one.name not in after.gone, one.name in after.taken, size)
    return [found[name] for name in sorted(found)]


FAILOVER = "holdfast:failover:list"
MOST_FAILED = repair.MOST_NAMED


def show(request: Request) -> Response:
    tiles = all_tiles(request, to_judge=True)
    known, sizes = {one.name for one in tiles}, _racks(tiles)
    hosts, racks = (set(request.every.get(name, ())) for name in ("fail", "rack"))
    racks &= sizes.keys()
    dead = [one for one in tiles if one.name in hosts or one.rack in racks]
    thought = [one.name for one in dead if one.enrolled]
    report, why = _plan(request, thought[:MOST_FAILED]) if dead else (None, "")
    return page(
        request,
        "what_if.html",
        title="What if",
        tiles=tiles if len(tiles) <= MOST_TILES else dead,
        many=len(tiles) > MOST_TILES,
        names=[one.name for one in tiles],
        racks=sizes,
        chosen={one.name for one in dead},
        chosen_racks=sorted(racks),
        unknown=sorted(hosts - known - {""}),
        already=[one.name for one in tiles if one.enrolled and one.state not in USABLE],
        dead=dead,
        left_out=thought[MOST_FAILED:],
        why=why,
        command=command(dead, racks, thought[MOST_FAILED:]),
        **(_follows(request, tiles, dead, report) if report else {"report": None}),
    )


def _follows(
    request: Request, tiles: Sequence[Tile], dead: Sequence[Tile], report: Mapping[str, Any]
) -> dict[str, Any]:
    left_out = {one.name for one in dead if one.enrolled} - set(report["failed"])
    gone = {one.name for one in dead} - left_out
    found = recovery_preview(_known(request, tiles), gone, report["moves"])
    sizes = request.services.store.ledger.sizes()
    after = After(gone | set(report["failed"]), _taken(report), sizes)
    return {
        "report": report,
        "fates": found,
        "sums": sums(found),
        "some_only": not request.services.conf.recovery.evacuate_all,
        "ha_key": request.services.conf.recovery.ha_key,
        "left": left(tiles, after, "rack"),
        "segments": _segments(request, tiles, after),
    }


def command(dead: Sequence[Tile], racks: Collection[str], left_out: Collection[str]) -> list[str]:
    """Return the equivalent command.

    The planner knows only enrolled hosts. Without a failed enrolled host the command plans for
    hosts that have failed already.
    """
    thought = [one for one in dead if one.enrolled and one.name not in left_out]
    if left_out:  # rack names would select the left-out hosts too
        racks = ()
    whole = sorted({one.rack for one in thought if one.rack in racks})
    alone = [one.name for one in thought if one.rack not in whole]
    if not thought:
        return ["holdfast", "repair", "plan"]
    words = ["holdfast", "what-if"]
    words += ["--fail-rack", *whole] if whole else []
    return words + (["--fail", *alone] if alone else [])


def _known(request: Request, tiles: Sequence[Tile]) -> Known:
    store, conf = request.services.store, request.services.conf
    now, given = store.database.now(), conf.reservation
    return Known(
        now,
        tiles,
        {one.host_id: one for one in store.segments.all_members()},
        {_segment_of(row): _switch(row) for row in store.switches.all_pauses()},
        [
            (row["matcher"], _switch(row))
            for row in store.switches.all_silences()
            if row["starts_at"] <= now
        ],
        [row["domain"] for row in store.switches.all_approvals()],
        conf.mass_failure,
        conf.recovery.dry_run,
        given.repair,
    )


def _segment_of(pause: Mapping[str, Any]) -> str:
    """Return the segment of a pause; empty for a pause everywhere."""
    return str(pause["scope"]).partition(":")[2]


def _switch(row: Mapping[str, Any]) -> Switch:
    return Switch(str(row.get("scope", "")), row["author"], row["reason"], row["expires_at"])


def _plan(request: Request, names: Sequence[str]) -> tuple[Mapping[str, Any] | None, str]:
    """Return the planner's report, or the reason why there is none.

    The planner knows only enrolled hosts.
    """
    try:
        found = api_calls.call(request, repair.plan, body={"hosts": names})
    except HoldfastError as error:
        return None, error.message
    report: Mapping[str, Any] = found["repair"]
    return report, ""


def _racks(tiles: Sequence[Tile]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for one in tiles:
        if one.rack:
            found[one.rack] = found.get(one.rack, 0) + 1
    return dict(sorted(found.items()))


def _taken(report: Mapping[str, Any]) -> set[str]:
    return {name for move in report["moves"] if move["active"] for name in move["joins"]}


def _segments(request: Request, tiles: Sequence[Tile], after: After) -> list[Left]:
    """Return the segments that keep hosts free for failures."""
    if not request.allowed(FAILOVER):
        return []
    said = api_calls.call(request, failover.index)["failover"]
    kept = {one["segment"]: one["kept"] for one in said if one["kept"]}
    return [one for one in left(tiles, after, "segment", kept) if one.kept]
