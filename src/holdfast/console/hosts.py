# SPDX-License-Identifier: Apache-2.0
"""/console/hosts/NAME: how a host stands and why, who sees what of it, who holds it now and next,
what happened to it; where the cloud is simulated, it can be broken here."""

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


def show(ask: Request) -> Response:
    shown = _shown(ask, ask.path["host"])
    return page(ask, "host.html", title=f"Host {shown['seen'].name}", **shown)


def body(ask: Request) -> Response:
    """What changes of it."""
    return part(ask, "host_body.html", **_shown(ask, ask.path["host"]))


def _shown(ask: Request, name: str) -> dict[str, Any]:
    store = ask.services.store
    seen = store.standings.of(name)
    if seen is None:
        raise NotFound(f"no host has the name {name[:80]!r}, or several could be meant")
    health, world = _health(ask, seen), sim.world_of(ask, seen.name)
    return {
        "seen": seen,
        "tile": _tile(ask, seen, health),
        "health": health,
        "holds": store.wall.ahead(seen.id, MOST_HOLDS) if ask.may(HOLDERS) else (),
        "incidents": _incidents(ask, seen),
        "alarms": _alarms(ask, seen),
        "agent": agent(ask, seen.name),
        "lines": _lines(ask, seen),
        "world": world,
        "healing": sim.heal_commands(world) if world else (),
        "networks": ask.services.conf.hostmonitor.networks,
    }


def _health(ask: Request, seen: Seen) -> Mapping[str, Any] | None:
    """None if no monitor knows it."""
    try:
        found = api_calls.call(ask, hosts.show_health, path={"host": seen.name})
    except NotFound:
        return None
    health: Mapping[str, Any] = found["health"]
    return health


def _tile(ask: Request, seen: Seen, health: Mapping[str, Any] | None) -> Tile:
    look = snapshot_of(ask, seen.id)
    networks = {name: one["state"] for name, one in health["networks"].items()} if health else {}
    (tile,) = furnish(look, {}, networks, {})
    return tile


def _incidents(ask: Request, seen: Seen) -> Any:
    if not ask.may(INCIDENTS):
        return ()
    wanted = incident_queries.Wanted(host=seen.name, limit=MOST_INCIDENTS)
    return ask.services.store.cases.list_all(wanted)


def _alarms(ask: Request, seen: Seen) -> Any:
    if not ask.may(ALARMS):
        return ()
    own = None if ask.caller.is_admin else ask.caller.project_id
    wanted = alarms.Wanted(host=normalise(seen.name), project=own)
    return ask.services.store.alarms.list_all(wanted)


def _lines(ask: Request, seen: Seen) -> Any:
    if not ask.may(AUDIT) or not ask.caller.is_admin:
        return ()
    wanted = audit.Wanted(subject=f"host:{seen.uuid}", limit=MOST_LINES)
    return ask.services.store.audit.list_all(wanted)


def agent(ask: Request, name: str) -> Mapping[str, Any] | None:
    """That of the host, and whether it lives; None: none was ever heard of."""
    found = ask.services.store.wall.agent(normalise(name))
    if found is None:
        return None
    silent = ask.services.store.database.now() - found["seen_at"]
    lives = silent <= timedelta(seconds=FRESH_BEATS * found["heartbeat_s"])
    return {**found, "lives": lives, "details": found["details"] or {}}
