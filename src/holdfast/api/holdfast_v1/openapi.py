# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of /holdfast/v1, from the route table and the schemas that validate."""

import re
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.api.ask import Route

_ERROR = {
    "type": "object",
    "required": ["errors"],
    "properties": {
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["code", "status", "title", "detail"],
                "properties": {
                    "request_id": {"type": "string"},
                    "code": {"type": "string"},
                    "status": {"type": "integer"},
                    "title": {"type": "string"},
                    "detail": {"type": "string"},
                    "details": {"type": "object"},
                    "links": {"type": "array", "items": {"type": "object"}},
                },
            },
        }
    },
}


def one(name: str, schema: Any) -> dict[str, Any]:
    """An answer that holds one thing under its name."""
    return {"type": "object", "required": [name], "properties": {name: schema}}


def many(name: str, schema: Any) -> dict[str, Any]:
    return one(name, {"type": "array", "items": schema})


def document(routes: Sequence[Route]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if f"{route.path}/".startswith("/holdfast/v1/"):
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": holdfast.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(route: Route) -> dict[str, Any]:
    said: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "responses": {
            str(route.status): _content("As asked", route.reply or {"type": "object"}),
            "default": _content("Refused", {"$ref": "#/components/schemas/Error"}),
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ] + [
        {"name": name, "in": "query", "required": name in route.needs, "schema": schema}
        for name, schema in (route.query or {}).items()
    ]
    if parameters:
        said["parameters"] = parameters
    if route.schema is not None:
        said["requestBody"] = {
            "required": bool(route.schema.get("required") or route.schema.get("minProperties")),
            "content": {"application/json": {"schema": route.schema}},
        }
    return said


def _operation_id(route: Route) -> str:
    """`get_observations`: a name that generated clients can use."""
    words = re.findall(r"\w+", route.path.removeprefix("/holdfast/v1"))
    return "_".join([route.method.lower(), *(words or ["version"])])


def _content(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
