# SPDX-License-Identifier: Apache-2.0
"""Pages ask and tell what a client would, by the API's own handlers: same rights, same checks, same
answers, without the way over the network.

    inside.call(ask, leases.show, path={"lease_id": "4f2c…"})["lease"]
    inside.call(ask, leases.create, body={"name": "blue", …})      # HoldfastError as for a client
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

from holdfast.api import request as bodies
from holdfast.api.request import Handler, Request, Route
from holdfast.api.routes import ROUTES
from holdfast.console.format import read_time
from holdfast.model.errors import Forbidden
from holdfast.model.incident import LEFT_OUT


def call(
    request: Request,
    handler: Handler,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
) -> Any:
    """What it answers, as data."""
    route = _routes()[handler]
    if route.rule is not None and not request.allowed(route.rule):
        raise Forbidden(f"your roles do not allow it ({route.rule})")
    asked: Any = dict(query or {})
    if route.query is not None:
        asked = _schema(route, "query").query({k: str(v) for k, v in asked.items()})
    content = body
    if route.method in ("POST", "PUT", "PATCH"):
        content = {} if body is None else body
        bodies.clean(content, "")
        if route.schema is not None:
            content = _schema(route, "body").body(content)
    every = {name: [str(value)] for name, value in asked.items()}
    inner = replace(
        request, path=path or {}, query=asked, body=content, every=every, microversion=(1, 99)
    )
    reply = handler(inner)
    return json.loads(reply.body) if isinstance(reply.body, bytes) and reply.body else reply.body


@cache
def _routes() -> Mapping[Handler, Route]:
    """The same handler stands at one place, but for version documents."""
    return {route.handler: route for route in ROUTES}


@cache
def _schemas() -> dict[tuple[str, str, str], bodies.Schema]:
    return {}


def _schema(route: Route, part: str) -> bodies.Schema:
    key = route.method, route.path, part
    if key not in _schemas():
        wanted = (
            route.schema if part == "body" else bodies.query_schema(route.query or {}, route.needs)
        )
        _schemas()[key] = bodies.Schema(wanted or {})
    return _schemas()[key]


# What monitors and reports said of an incident is theirs: it is read without taking its shape for
# granted. Values in, values out.


def votes(said: Any) -> Sequence[Mapping[str, Any]]:
    """Each a map, with a map of evidence; what is none is left out, and so is the count of votes
    that are not kept."""
    maps = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    found = [one for one in maps if LEFT_OUT not in one]
    return [{**one, "evidence": known(one.get("evidence"))} for one in found]


def networks(vote: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What it says of each network, by name."""
    said = known(vote["evidence"].get("networks"))
    return {str(name): one for name, one in said.items() if isinstance(one, dict)}


def time(said: Any) -> datetime | None:
    """None for what is no time."""
    try:
        return read_time(said) if said else None
    except ValueError:
        return None


def known(said: Any) -> Mapping[str, Any]:
    """An empty one of what is no map."""
    return said if isinstance(said, dict) else {}
