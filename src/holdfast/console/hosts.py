# SPDX-License-Identifier: Apache-2.0
"""/console/hosts/NAME: the page of a host.

The page shows the host status and the reason, the view of each monitor, current and next
holders, incidents, alarms and audit lines. In a simulated cloud the page also offers fault
injection.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.api.holdfast_v1 import hosts
from holdfast.api.request import Request, Response
from holdfast.console import api_calls, sim
from holdfast.console.pages import page, part
from holdfast.console.wall import HOLDERS, Tile, furnish, snapshot_of
from holdfast.db import alarms, audit, incident_queries
from holdfast.db.host_status import Seen
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise
from holdfast.model.votes import FRESH_BEATS

MOST_HOLDS, MOST_INCIDENTS, MOST_LINES = 50, 20, 30
ALARMS, AUDIT, INCIDENTS = "holdfast:alarm:list", "holdfast:audit:list", "holdfast:incident:list"


def show(request: Request) -> Response:
    shown = _shown(request, request.path["host"])
    return page(request, "host.html", title=f"Host {shown['seen'].name}", **shown)


def body(request: Request) -> Response:
    """Render only the changing part, for the refresh of an open page."""
    return part(request, "host_body.html", **_shown(request, request.path["host"]))


def _shown(request: Request, name: str) -> dict[str, Any]:
    store = request.services.store
    seen = store.standings.of(name)
    if seen is None:
        raise NotFound(f"no host has the name {name[:80]!r}, or several could be meant")
    health, world = _health(request, seen), sim.world_of(request, seen.name)
    return {
        "seen": seen,
        "tile": _tile(request, seen, health),
        "health": health,
        "holds": store.wall.ahead(seen.id, MOST_HOLDS) if request.allowed(HOLDERS) else (),
        "incidents": _incidents(request, seen),
        "alarms": _alarms(request, seen),
        "agent": agent(request, seen.name),
        "lines": _lines(request, seen),
        "world": world,
        "healing": sim.heal_commands(world) if world else (),
        "networks": request.services.conf.hostmonitor.networks,
    }


def _health(request: Request, seen: Seen) -> Mapping[str, Any] | None:
    """Return the health of the host as the API shows it; None if no monitor knows the host."""
    try:
        found = api_calls.call(request, hosts.show_health, path={"host": seen.name})
    except NotFound:
        return None
    health: Mapping[str, Any] = found["health"]
    return health


def _tile(request: Request, seen: Seen, health: Mapping[str, Any] | None) -> Tile:
    look = snapshot_of(request, seen.id)
    networks = {name: one["state"] for name, one in health["networks"].items()} if health else {}
    (tile,) = furnish(look, {}, networks, {})
    return tile


def _incidents(request: Request, seen: Seen) -> Any:
    if not request.allowed(INCIDENTS):
        return ()
    wanted = incident_queries.Wanted(host=seen.name, limit=MOST_INCIDENTS)
    return request.services.store.cases.list_all(wanted)


def _alarms(request: Request, seen: Seen) -> Any:
    if not request.allowed(ALARMS):
        return ()
    own = None if request.caller.is_admin else request.caller.project_id
    wanted = alarms.Wanted(host=normalise(seen.name), project=own)
    return request.services.store.alarms.list_all(wanted)


def _lines(request: Request, seen: Seen) -> Any:
    if not request.allowed(AUDIT) or not request.caller.is_admin:
        return ()
    wanted = audit.Wanted(subject=f"host:{seen.uuid}", limit=MOST_LINES)
    return request.services.store.audit.list_all(wanted)


def agent(request: Request, name: str) -> Mapping[str, Any] | None:
    """Return the agent of a host and whether it is alive; None if no agent ever reported."""
    found = request.services.store.wall.agent(normalise(name))
    if found is None:
        return None
    silent = request.services.store.database.now() - found["seen_at"]
    lives = silent <= timedelta(seconds=FRESH_BEATS * found["heartbeat_s"])
    return {**found, "lives": lives, "details": found["details"] or {}}
