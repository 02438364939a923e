# SPDX-License-Identifier: Apache-2.0
"""Calls from pages to the API's own handlers, without a network round trip.

A page has the same rights, checks and answers as an API client. The functions below `_schema`
read the untrusted JSON of an incident.

    api_calls.call(request, leases.show, path={"lease_id": "4f2c…"})["lease"]
    api_calls.call(request, leases.create, body={"name": "blue", …})    # raises HoldfastError
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
    """Call an API handler as the caller of `request`, and return the answer as data.

    Raises Forbidden if the caller's roles do not allow the route.
    """
    route = _routes()[handler]
    if route.rule is not None and not request.allowed(route.rule):
        raise Forbidden(f"your roles do not allow it ({route.rule})")
    parameters: Any = dict(query or {})
    if route.query is not None:
        texts = {name: str(value) for name, value in parameters.items()}
        parameters = _schema(route, "query").query(texts)
    content = body
    if route.method in ("POST", "PUT", "PATCH"):
        content = {} if body is None else body
        bodies.clean(content, "")
        if route.schema is not None:
            content = _schema(route, "body").body(content)
    every = {name: [str(value)] for name, value in parameters.items()}
    inner = replace(
        request, path=path or {}, query=parameters, body=content, every=every, microversion=(1, 99)
    )
    reply = handler(inner)
    return json.loads(reply.body) if isinstance(reply.body, bytes) and reply.body else reply.body


@cache
def _routes() -> Mapping[Handler, Route]:
    """Map each handler to its route. Only the handlers of version documents have several routes."""
    return {route.handler: route for route in ROUTES}


@cache
def _schemas() -> dict[tuple[str, str, str], bodies.Schema]:
    return {}


def _schema(route: Route, part: str) -> bodies.Schema:
    key = route.method, route.path, part
    if key not in _schemas():
        schema = (
            route.schema if part == "body" else bodies.query_schema(route.query or {}, route.needs)
        )
        _schemas()[key] = bodies.Schema(schema or {})
    return _schemas()[key]


# Monitors and reporters wrote the JSON of an incident, so the functions below do not trust its
# shape. They are pure.


def votes(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the votes as maps, each with a map of evidence.

    Leaves out entries of another type, and the entry that counts votes that were not kept.
    """
    entries = value if isinstance(value, list) else []
    maps = [entry for entry in entries if isinstance(entry, dict) and LEFT_OUT not in entry]
    return [{**vote, "evidence": known(vote.get("evidence"))} for vote in maps]


def networks(vote: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the network entries in the evidence of a vote, by network name."""
    entries = known(vote["evidence"].get("networks"))
    return {str(name): entry for name, entry in entries.items() if isinstance(entry, dict)}


def time(value: Any) -> datetime | None:
    """Parse a time; None if the value is no time."""
    try:
        return read_time(value) if value else None
    except ValueError:
        return None


def known(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a map, otherwise an empty map."""
    return value if isinstance(value, dict) else {}
