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
DEEDS = ("fail", "cut", "heal")


def world_of(request: Request, host: str) -> Mapping[str, Any] | None:
    """Return the true state of a simulated host.

    None if the caller may not inject faults, or without a simulated host of this name.
    """
    if request.services.sim is None or not request.allowed(CHANGE):
        return None
    hosts = request.services.sim().world()["hosts"]
    return next((one for one in hosts if same(one["name"], host)), None)


def do(request: Request) -> Response:
    """Run a fault injection, then redirect to the page with the form, or to the wall's story."""
    host, deed = request.body.get("host", ""), request.body.get("deed", "")
    if deed == "fail":
        said = api_calls.call(request, sim.fail_host, path={"name": host})["said"]
    elif deed == "cut":
        network = {"network": request.body.get("network", "")}
        said = api_calls.call(request, sim.cut_host, path={"name": host}, body=network)["said"]
    elif deed == "heal":
        said = _heal(request, host)
    else:
        raise InvalidInput(f"there is no deed {deed[:40]!r}: {', '.join(DEEDS)}")
    if deed == "fail" and "story" in request.body:
        return away(_story(request, host))
    page = f"{PREFIX}/hosts/{quote(host, safe='')}"
    return away(local(request.body.get("next", page)), message=said)


def _heal(request: Request, host: str) -> str:
    """Repair the networks of a host and switch its power on."""
    known = world_of(request, host) or {}
    for network in known.get("cut", ()):
        api_calls.call(request, sim.repair_host, path={"name": host}, body={"network": network})
    return str(api_calls.call(request, sim.recover_host, path={"name": host})["said"])


def heal_commands(known: Mapping[str, Any]) -> list[list[str]]:
    """Return the commands equal to `heal` for a simulated host."""
    host = known["name"]
    mends = [["holdfast", "sim", "mend", host, "--network", network] for network in known["cut"]]
    return [*mends, ["holdfast", "sim", "recover-host", host]]


def _story(request: Request, host: str) -> str:
    """Return the URL of the story, with the lease that holds the host, to follow its repair."""
    store = request.services.store
    at, seen = int(store.database.now().timestamp()), store.standings.of(host)
    held = store.wall.snapshot(seen.id).held.get(seen.id, ()) if seen is not None else ()
    lease = next((one.lease_id for one in held if one.slots is None), "")
    return f"/?{urlencode({'story': host, 'lease': lease, 'at': at})}"
