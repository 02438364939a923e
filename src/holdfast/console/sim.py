# SPDX-License-Identifier: Apache-2.0
"""Fault injection in the simulated cloud from pages. With a real cloud there is neither a button
nor a handler."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.api.holdfast_v1 import sim
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.pages import PREFIX, away, local
from holdfast.model.errors import InvalidInput
from holdfast.model.host import same

CHANGE = "holdfast:sim:change"
ACTIONS = ("fail", "cut", "heal")


def world_of(request: Request, host: str) -> Mapping[str, Any] | None:
    """Return the true state of a simulated host.

    None if the caller may not inject faults, or without a simulated host of this name.
    """
    if request.services.sim is None or not request.allowed(CHANGE):
        return None
    hosts = request.services.sim().world()["hosts"]
    return next((row for row in hosts if same(row["name"], host)), None)


def do(request: Request) -> Response:
    """Run a fault injection, then redirect to the page with the form, or to the wall's story."""
    host, action = request.body.get("host", ""), request.body.get("deed", "")
    if action == "fail":
        message = api_calls.call(request, sim.fail_host, path={"name": host})["said"]
    elif action == "cut":
        network = {"network": request.body.get("network", "")}
        message = api_calls.call(request, sim.cut_host, path={"name": host}, body=network)["said"]
    elif action == "heal":
        message = _heal(request, host)
    else:
        raise InvalidInput(f"there is no action {action[:40]!r}: {', '.join(ACTIONS)}")
    if action == "fail" and "story" in request.body:
        return away(_story(request, host))
    page = f"{PREFIX}/hosts/{quote(host, safe='')}"
    return away(local(request.body.get("next", page)), message=message)


def _heal(request: Request, host: str) -> str:
    """Repair the networks of a host and switch its power on."""
    world = world_of(request, host) or {}
    for network in world.get("cut", ()):
        api_calls.call(request, sim.reconnect_host, path={"name": host}, body={"network": network})
    return str(api_calls.call(request, sim.recover_host, path={"name": host})["said"])


def heal_commands(world: Mapping[str, Any]) -> list[list[str]]:
    """Return the commands equal to `heal` for a simulated host."""
    host = world["name"]
    reconnects = [
        ["holdfast", "sim", "reconnect", host, "--network", network] for network in world["cut"]
    ]
    return [*reconnects, ["holdfast", "sim", "recover-host", host]]


def _story(request: Request, host: str) -> str:
    """Return the URL of the story, with the lease that holds the host, to follow its repair."""
    store = request.services.store
    at, row = int(store.database.now().timestamp()), store.host_status.of(host)
    holds = store.wall.snapshot(row.id).held.get(row.id, ()) if row is not None else ()
    lease = next((hold.lease_id for hold in holds if hold.slots is None), "")
    return f"/?{urlencode({'story': host, 'lease': lease, 'at': at})}"
