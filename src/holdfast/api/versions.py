# SPDX-License-Identifier: Apache-2.0
"""API versions: microversion header, version documents, OpenAPI documents of the three contracts.

The middleware negotiates `OpenStack-API-Version: <service> X.Y`. Each contract has its own service
type and version range; the middleware ignores headers for other services.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import falcon

import holdfast
from holdfast.api.request import Request, Response, Route
from holdfast.model.errors import HoldfastError
from holdfast.model.observation import AGENT_HEADER

HEADER = "OpenStack-API-Version"
#: Characters of the header: enough for a version of every OpenStack service.
HEADER_LENGTH = 1024
Version = tuple[int, int]


class NotAcceptable(HoldfastError):
    """The requested version is outside the range in the version document."""

    code = "holdfast.microversion.range"
    status = 406
    title = "Version not supported"
    advice = "Request a version between min_version and max_version of the version document."


class Malformed(HoldfastError):
    """The version header is not of the form `OpenStack-API-Version: <service> X.Y`, or `latest`."""

    code = "holdfast.microversion.malformed"
    status = 400
    title = "Malformed version"
    advice = "Correct the header OpenStack-API-Version, or omit the header."


@dataclass(frozen=True)
class Contract:
    """An API contract: URL prefix, service type and supported version range."""

    prefix: str
    service: str
    lowest: Version
    highest: Version

    def negotiate(self, header: str | None) -> Version:
        """Return the requested version; the lowest version if the header requests none."""
        if header and len(header) > HEADER_LENGTH:
            raise Malformed(f"{HEADER} is longer than {HEADER_LENGTH} characters")
        for part in (header or "").split(","):
            service, _, asked = part.strip().partition(" ")
            if service.lower() != self.service:
                continue
            if asked.lower() == "latest":
                return self.highest
            if not re.fullmatch(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})", asked):
                raise Malformed(f"{HEADER}: {asked[:40]!r} is not of the form X.Y")
            major, minor = (int(number) for number in asked.split("."))
            if not self.lowest <= (major, minor) <= self.highest:
                raise NotAcceptable(
                    f"Version {major}.{minor} is not supported; the minimum is"
                    f" {text(self.lowest)} and the maximum {text(self.highest)}"
                )
            return major, minor
        return self.lowest


CONTRACTS = (
    Contract("/reservation/v1", "reservation", (1, 0), (1, 1)),
    Contract("/instance-ha/v1", "instance-ha", (1, 0), (1, 4)),
    Contract("/holdfast/v1", "holdfast", (1, 0), (1, 0)),
)


def text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def contract_of(path: str) -> Contract | None:
    return next((c for c in CONTRACTS if path.startswith(c.prefix)), None)


class Middleware:
    """falcon middleware: negotiates the microversion and returns the version in the response."""

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, _resource: object, _params: object
    ) -> None:
        contract = contract_of(req.path)
        if contract is None:
            return
        resp.append_header("Vary", HEADER)
        version = contract.negotiate(req.get_header(HEADER))
        req.context.microversion = version
        resp.set_header(HEADER, f"{contract.service} {text(version)}")


# Version documents, which clients read first to discover the endpoints.


_UPDATED = "2026-11-15T00:00:00Z"
_MEDIA = {
    "base": "application/json",
    "type": "application/vnd.openstack.masakari+json;version=1",
}


def _contract(service: str) -> Contract:
    return next(c for c in CONTRACTS if c.service == service)


def _entry(request: Request, contract: Contract) -> dict[str, Any]:
    return {
        "id": "v1.0",
        "status": "CURRENT",
        "links": [{"href": f"{request.base_url}{contract.prefix}", "rel": "self"}],
        "min_version": text(contract.lowest),
        "max_version": text(contract.highest),
    }


def reservation_root(request: Request) -> Response:
    return Response({"versions": [_entry(request, _contract("reservation"))]}, status=300)


def reservation_v1(request: Request) -> Response:
    return Response({"version": _entry(request, _contract("reservation"))})


def _instance_ha(request: Request) -> dict[str, Any]:
    contract = _contract("instance-ha")
    entry = {**_entry(request, contract), "updated": _UPDATED}
    entry["version"] = entry.pop("max_version")
    return entry


def instance_ha_root(request: Request) -> Response:
    return Response({"versions": [_instance_ha(request)]})


def instance_ha_choices(request: Request) -> Response:
    """Return the choices (300) for a URL without a version."""
    entry = {name: _instance_ha(request)[name] for name in ("id", "status", "links")}
    choice = {**entry, "media-types": [_MEDIA]}
    choice["links"] = [
        {**link, "href": f"{link['href']}/{quote(request.path['other'])}"}
        for link in entry["links"]
    ]
    return Response({"choices": [choice]}, status=300)


def instance_ha_v1(request: Request) -> Response:
    return Response({"version": {**_instance_ha(request), "media-types": [_MEDIA]}})


def holdfast_root(request: Request) -> Response:
    return Response({"versions": [_entry(request, _contract("holdfast"))]})


def holdfast_v1(request: Request) -> Response:
    links = [
        {"rel": "self", "href": f"{request.base_url}/holdfast/v1"},
        {"rel": "service-desc", "href": f"{request.base_url}/holdfast/v1/openapi.json"},
    ]
    return Response({"version": {**_entry(request, _contract("holdfast")), "links": links}})


# The OpenAPI documents, made from the route table and the validation schemas.


_TEXT = {"type": "string"}
_OWN_ERROR = {
    "type": "object",
    "required": ["errors"],
    "properties": {
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["code", "status", "title", "detail"],
                "properties": {
                    "request_id": _TEXT,
                    "code": _TEXT,
                    "status": {"type": "integer"},
                    "title": _TEXT,
                    "detail": _TEXT,
                    "details": {"type": "object"},
                    "links": {"type": "array", "items": {"type": "object"}},
                },
            },
        }
    },
}
_RESERVATION_ERROR = {
    "type": "object",
    "required": ["error_message"],
    "properties": {
        "error": {"type": "integer"},
        "error_code": {"type": "integer"},
        "error_name": {"type": ["integer", "string"]},
        "error_message": _TEXT,
        "details": {"type": "object"},
    },
    "additionalProperties": False,
}
_INSTANCE_HA_ERROR = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": {"type": "integer"}, "message": _TEXT},
        "additionalProperties": False,
    },
}
#: Error schema by service type; `errors.body_for` writes the bodies.
_ERRORS = {
    "reservation": _RESERVATION_ERROR,
    "instance-ha": _INSTANCE_HA_ERROR,
    "holdfast": _OWN_ERROR,
}
_SCHEMES = {
    "basic": {"type": "http", "scheme": "basic", "description": "auth_strategy = http_basic"},
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Auth-Token",
        "description": "auth_strategy = keystone: a token of Keystone",
    },
    "agent": {
        "type": "apiKey",
        "in": "header",
        "name": AGENT_HEADER,
        "description": "The token of an agent or host monitor; `holdfast agent token` prints it",
    },
}
#: Security scheme by `auth_strategy`; noauth asks for nothing.
_ASKED_BY = {"http_basic": "basic", "keystone": "token"}


def one(name: str, schema: Any) -> dict[str, Any]:
    """Return the schema of a response with a single object under `name`."""
    return {"type": "object", "required": [name], "properties": {name: schema}}


def many(name: str, schema: Any) -> dict[str, Any]:
    return one(name, {"type": "array", "items": schema})


def document(contract: Contract, routes: Sequence[Route], login: str) -> dict[str, Any]:
    """Return the OpenAPI document of a contract, on a server with this `auth_strategy`."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if f"{route.path}/".startswith(f"{contract.prefix}/"):
            operation = _operation(contract, route)
            if route.rule is None:
                operation["security"] = []
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    asked = _ASKED_BY.get(login)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Holdfast: {contract.service}", "version": holdfast.__version__},
        "security": [{asked: []}, {"agent": []}] if asked else [],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERRORS[contract.service]},
            "securitySchemes": _SCHEMES,
        },
    }


def _operation(contract: Contract, route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(contract, route),
        "responses": {
            **{str(status): _as_asked(route) for status in (route.status, *route.also)},
            "default": _content("Refused", {"$ref": "#/components/schemas/Error"}),
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in re.findall(r"{(\w+)}", route.path)
    ] + [
        {"name": name, "in": "query", "required": name in route.needs, "schema": schema}
        for name, schema in (route.query or {}).items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.schema is not None:
        operation["requestBody"] = {
            "required": bool(route.schema.get("required") or route.schema.get("minProperties")),
            "content": {"application/json": {"schema": route.schema}},
        }
    return operation


def _operation_id(contract: Contract, route: Route) -> str:
    """Return a function name for generated clients, for example `get_observations`."""
    words = re.findall(r"\w+", route.path.removeprefix(contract.prefix))
    return "_".join([route.method.lower(), *(words or ["version"])])


def _as_asked(route: Route) -> dict[str, Any]:
    if route.status == 204:
        return {"description": "Done; without a body"}
    return _content("As asked", route.reply or {"type": "object"})


def _content(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
