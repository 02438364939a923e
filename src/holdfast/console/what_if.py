# SPDX-License-Identifier: Apache-2.0
"""/console/what-if: hosts or racks are thought dead; what moves, what breaks, what is left. By the
planner that repairs and the rungs that recovery asks, and nothing is changed: which hosts are meant
is in the address."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import failover, repair
from holdfast.console import inside
from holdfast.console.fates import Known, fates, sums
from holdfast.console.pages import page
from holdfast.console.remaining import After, Left, left
from holdfast.console.tiles import MOST_TILES, Tile
from holdfast.console.wall import PLAN, all_tiles
from holdfast.model.errors import HoldfastError
from holdfast.model.mass_failure import Rule
from holdfast.model.standing import USABLE
from holdfast.ports.recovery import Switch

__all__ = ["PLAN", "show"]
FAILOVER = "holdfast:failover:list"
MOST_FAILED = repair.MOST_NAMED


def show(ask: Ask) -> Reply:
    tiles = all_tiles(ask, to_judge=True)
    known, sizes = {one.name for one in tiles}, _racks(tiles)
    hosts, racks = (set(ask.every.get(name, ())) for name in ("fail", "rack"))
    racks &= sizes.keys()
    dead = [one for one in tiles if one.name in hosts or one.rack in racks]
    thought = [one.name for one in dead if one.enrolled]
    report, why = _plan(ask, thought[:MOST_FAILED]) if dead else (None, "")
    return page(
        ask,
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
        **(_follows(ask, tiles, dead, report) if report else {"report": None}),
    )


def _follows(
    ask: Ask, tiles: Sequence[Tile], dead: Sequence[Tile], report: Mapping[str, Any]
) -> dict[str, Any]:
    left_out = {one.name for one in dead if one.enrolled} - set(report["failed"])
    gone = {one.name for one in dead} - left_out
    found = fates(_known(ask, tiles), gone, report["moves"])
    sizes = ask.services.store.ledger.sizes()
    after = After(gone | set(report["failed"]), _taken(report), sizes)
    return {
        "report": report,
        "fates": found,
        "sums": sums(found),
        "some_only": not ask.services.conf.recovery.evacuate_all,
        "ha_key": ask.services.conf.recovery.ha_key,
        "left": left(tiles, after, "rack"),
        "segments": _segments(ask, tiles, after),
    }


def command(dead: Sequence[Tile], racks: Collection[str], left_out: Collection[str]) -> list[str]:
    """The planner knows enrolled hosts only; where none dies, it plans what has failed already."""
    thought = [one for one in dead if one.enrolled and one.name not in left_out]
    if left_out:  # by their racks they would all be meant
        racks = ()
    whole = sorted({one.rack for one in thought if one.rack in racks})
    alone = [one.name for one in thought if one.rack not in whole]
    if not thought:
        return ["holdfast", "repair", "plan"]
    words = ["holdfast", "what-if"]
    words += ["--fail-rack", *whole] if whole else []
    return words + (["--fail", *alone] if alone else [])


def _known(ask: Ask, tiles: Sequence[Tile]) -> Known:
    store, conf = ask.services.store, ask.services.conf
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
        Rule(given.mass_failure_few, given.mass_failure_some, given.mass_failure_many),
        conf.recovery.dry_run,
        given.repair,
    )


def _segment_of(pause: Mapping[str, Any]) -> str:
    """Empty: it counts everywhere."""
    return str(pause["scope"]).partition(":")[2]


def _switch(row: Mapping[str, Any]) -> Switch:
    return Switch(str(row.get("scope", "")), row["author"], row["reason"], row["expires_at"])


def _plan(ask: Ask, names: Sequence[str]) -> tuple[Mapping[str, Any] | None, str]:
    """What the planner says, or why it cannot; it knows those that leases get."""
    try:
        found = inside.call(ask, repair.plan, body={"hosts": names})
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


def _segments(ask: Ask, tiles: Sequence[Tile], after: After) -> list[Left]:
    """Those that keep hosts free."""
    if not ask.may(FAILOVER):
        return []
    said = inside.call(ask, failover.index)["failover"]
    kept = {one["segment"]: one["kept"] for one in said if one["kept"]}
    return [one for one in left(tiles, after, "segment", kept) if one.kept]
