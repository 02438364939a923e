# SPDX-License-Identifier: Apache-2.0
"""Pages ask and tell what a client would, by the API's own handlers: same rights, same checks, same
answers, without the way over the network.

    inside.call(ask, leases.show, path={"lease_id": "4f2c…"})["lease"]
    inside.call(ask, leases.create, body={"name": "blue", …})      # HoldfastError as for a client
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from holdfast.api import body as bodies
from holdfast.api.ask import Ask, Handler, Route
from holdfast.api.routes import ROUTES
from holdfast.model.errors import Forbidden


def call(
    ask: Ask,
    handler: Handler,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
) -> Any:
    """What it answers, as data."""
    route = _routes()[handler]
    if route.rule is not None and not ask.may(route.rule):
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
        ask, path=path or {}, query=asked, body=content, every=every, microversion=(1, 99)
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
