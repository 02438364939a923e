# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/sim: fault injection for the simulated cloud; 404 for a real cloud."""

import dataclasses
from typing import Any

from holdfast.api.request import Request, Response
from holdfast.model.errors import InvalidInput, NotFound

_SECONDS = {"type": "number", "minimum": 0, "maximum": 86_400}
_RATE = {"type": "number", "minimum": 0, "maximum": 1}
SETTINGS: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "description": "Any of the settings that GET /holdfast/v1/sim shows.",
    "properties": {
        "latency_s": _SECONDS,
        "latency_jitter": _RATE,
        "lost_reply_rate": _RATE,
        "failure_rate": _RATE,
        "hang_s": _SECONDS,
        "down": {"type": "boolean"},
        "only_calls": {"type": "array", "maxItems": 100, "items": {"type": "string"}},
        "delete_s": _SECONDS,
        "action_s": _SECONDS,
        "service_down_s": _SECONDS,
        "report_s": _SECONDS,
        "fence_lies": {"type": "boolean"},
    },
}
CUT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "network": {
            "type": "string",
            "minLength": 1,
            "maxLength": 32,
            "description": "One of [hostmonitor] networks; without it the host is cut off from "
            "everybody.",
        }
    },
}
SAID: dict[str, Any] = {
    "type": "object",
    "required": ["said"],
    "properties": {"said": {"type": "string"}},
}


def show(request: Request) -> Response:
    return Response({"sim": _sim(request).world()})


def change(request: Request) -> Response:
    return Response({"settings": dataclasses.asdict(_sim(request).change(**request.body))})


def fail_host(request: Request) -> Response:
    _sim(request).fail_host(request.path["name"])
    return _said(f"host {request.path['name']} lost power; its servers are dead")


def recover_host(request: Request) -> Response:
    _sim(request).recover_host(request.path["name"])
    return _said(f"host {request.path['name']} is powered on again")


def cut_host(request: Request) -> Response:
    name, network = request.path["name"], _network(request)
    if network is None:
        _sim(request).cut_host(name)
        return _said(f"host {name} is cut off from all networks; its servers run on")
    _sim(request).cut_network(name, network)
    return _said(f"host {name} is cut off on the network {network}")


def reconnect_host(request: Request) -> Response:
    name, network = request.path["name"], _network(request)
    if network is None:
        _sim(request).repair_host(name)
        return _said(f"host {name} is heard again")
    _sim(request).repair_network(name, network)
    return _said(f"host {name} is heard again on the network {network}")


def crash_server(request: Request) -> Response:
    _sim(request).crash_server(request.path["ref"])
    return _said(f"server {request.path['ref']} crashed")


def _network(request: Request) -> str | None:
    """Return the named network, which must be in `[hostmonitor] networks`; None: all networks."""
    network: str | None = (request.body or {}).get("network")
    known = request.services.conf.hostmonitor.networks
    if network is not None and network not in known:
        raise InvalidInput(
            f"there is no network {network}; [hostmonitor] networks has {', '.join(known)}",
            field="network",
        )
    return network


def _said(sentence: str) -> Response:
    return Response({"said": sentence}, status=202)


def _sim(request: Request) -> Any:
    if request.services.sim is None:
        raise NotFound("the cloud of this deployment is not simulated ([cloud] driver)")
    return request.services.sim()
