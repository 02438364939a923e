# SPDX-License-Identifier: Apache-2.0
"""/console/hosts/NAME: the page of a host; /console/what-if: if hosts failed.

The page shows the host status and the reason, the view of each monitor, current and next
holders, incidents, alarms and audit lines. In a simulated cloud the page also offers fault
injection.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.api.holdfast_v1 import hosts, repair
from holdfast.api.holdfast_v1 import what_if as what_if_api
from holdfast.api.request import Request, Response
from holdfast.console import api_calls, sim
from holdfast.console.pages import page, part, project_scope
from holdfast.console.wall import HOLDERS, MOST_TILES, Tile, all_tiles, build_tiles, snapshot_of
from holdfast.db import alarms, audit, incident_queries
from holdfast.db.host_status import HostStatusRow
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.host import normalise
from holdfast.model.votes import FRESH_BEATS

MOST_HOLDS, MOST_INCIDENTS, MOST_LINES = 50, 20, 30
ALARMS, AUDIT, INCIDENTS = "holdfast:alarm:list", "holdfast:audit:list", "holdfast:incident:list"


def show(request: Request) -> Response:
    shown = _shown(request, request.path["host"])
    return page(request, "host.html", title=f"Host {shown['host'].name}", **shown)


def body(request: Request) -> Response:
    """Render only the changing part, for the refresh of an open page."""
    return part(request, "host_body.html", **_shown(request, request.path["host"]))


def _shown(request: Request, name: str) -> dict[str, Any]:
    store = request.services.store
    host = store.host_status.of(name)
    if host is None:
        raise NotFound(f"no host has the name {name[:80]!r}, or the short name is ambiguous")
    health, world = _health(request, host), sim.world_of(request, host.name)
    return {
        "host": host,
        "tile": _tile(request, host, health),
        "health": health,
        "holds": store.wall.ahead(host.id, MOST_HOLDS) if request.allowed(HOLDERS) else (),
        "incidents": _incidents(request, host),
        "alarms": _alarms(request, host),
        "agent": agent(request, host.name),
        "lines": _lines(request, host),
        "world": world,
        "healing": sim.heal_commands(world) if world else (),
        "networks": request.services.conf.hostmonitor.networks,
    }


def _health(request: Request, host: HostStatusRow) -> Mapping[str, Any] | None:
    """Return the health of the host as the API shows it; None if no monitor knows the host."""
    try:
        answer = api_calls.call(request, hosts.show_health, path={"host": host.name})
    except NotFound:
        return None
    health: Mapping[str, Any] = answer["health"]
    return health


def _tile(request: Request, host: HostStatusRow, health: Mapping[str, Any] | None) -> Tile:
    reports = health["networks"] if health else {}
    networks = {name: report["state"] for name, report in reports.items()}
    (tile,) = build_tiles(snapshot_of(request, host.id), {}, networks, {})
    return tile


def _incidents(request: Request, host: HostStatusRow) -> Any:
    if not request.allowed(INCIDENTS):
        return ()
    wanted = incident_queries.Wanted(host=host.name, limit=MOST_INCIDENTS)
    return request.services.store.incident_queries.list_all(wanted)


def _alarms(request: Request, host: HostStatusRow) -> Any:
    if not request.allowed(ALARMS):
        return ()
    wanted = alarms.Wanted(host=normalise(host.name), project=project_scope(request))
    return request.services.store.alarms.list_all(wanted)


def _lines(request: Request, host: HostStatusRow) -> Any:
    if not request.allowed(AUDIT) or not request.caller.is_admin:
        return ()
    wanted = audit.Wanted(subject=f"host:{host.uuid}", limit=MOST_LINES)
    return request.services.store.audit.list_all(wanted)


def agent(request: Request, name: str) -> Mapping[str, Any] | None:
    """Return the agent of a host and whether it is alive; None if no agent ever reported."""
    row = request.services.store.wall.agent(normalise(name))
    if row is None:
        return None
    age = request.services.store.database.now() - row["seen_at"]
    is_alive = age <= timedelta(seconds=FRESH_BEATS * row["heartbeat_s"])
    return {**row, "is_alive": is_alive, "details": row["details"] or {}}


# /console/what-if: the effects of an assumed failure of hosts or racks. The page shows the servers
# that would move, the reservations that would lose hosts, and the capacity left, as the API says
# (`api/holdfast_v1/what_if.py`). The URL names the assumed failures.


def what_if(request: Request) -> Response:
    tiles = all_tiles(request)
    enrolled, sizes = {tile.name for tile in tiles}, _racks(tiles)
    names, racks = (set(request.every.get(name, ())) for name in ("fail", "rack"))
    racks &= sizes.keys()
    dead = [tile for tile in tiles if tile.name in names or tile.rack in racks]
    answer, why = _effects(request, sorted(names & enrolled), sorted(racks)) if dead else (None, "")
    return page(
        request,
        "what_if.html",
        title="What if",
        tiles=tiles if len(tiles) <= MOST_TILES else dead,
        many=len(tiles) > MOST_TILES,
        names=[tile.name for tile in tiles],
        racks=sizes,
        chosen={tile.name for tile in dead},
        chosen_racks=sorted(racks),
        unknown=sorted(names - enrolled - {""}),
        dead=dead,
        why=why,
        command=what_if_command(dead, racks),
        found=answer,
    )


def what_if_command(dead: Sequence[Tile], racks: Collection[str]) -> list[str]:
    """Return the equivalent command."""
    whole = sorted({tile.rack for tile in dead if tile.rack in racks})
    alone = [tile.name for tile in dead if tile.rack not in whole]
    words = ["holdfast", "what-if"]
    words += ["--fail-rack", *whole] if whole else []
    return words + (["--fail", *alone] if alone else [])


def _effects(
    request: Request, names: Sequence[str], racks: Sequence[str]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the answer of the API, or the reason why there is none."""
    body = {"hosts": names[: repair.MOST_NAMED], "racks": racks}
    try:
        answer: Mapping[str, Any] = api_calls.call(request, what_if_api.ask, body=body)["what_if"]
    except HoldfastError as error:
        return None, error.message
    return answer, ""


def _racks(tiles: Sequence[Tile]) -> Mapping[str, int]:
    """Return the number of hosts in each rack."""
    return dict(sorted(Counter(tile.rack for tile in tiles if tile.rack).items()))
