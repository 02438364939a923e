# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/extensions: the extensions of the contract; project ids in instance HA URLs."""

import re
from typing import Any

import falcon

from holdfast.api.request import Request, Response
from holdfast.model.errors import InvalidInput, NotFound

_PARTS = {
    "extensions": ("Extensions", "What is served here."),
    "notifications": ("Notifications", "Reports of failures."),
    "os-hosts": ("Hosts", "Hosts of segments."),
    "segments": ("Segments", "Groups of hosts that stand in for each other."),
    "versions": ("Versions", "Version documents."),
    "vmoves": ("VMoves", "Servers on their way off a dead host."),
}


def index(_ask: Request) -> Response:
    return Response({"extensions": [_view(alias) for alias in _PARTS]})


def show(request: Request) -> Response:
    if request.path["alias"] not in _PARTS:
        raise NotFound(f"No extension {request.path['alias'][:80]}; there are {', '.join(_PARTS)}")
    return Response({"extension": _view(request.path["alias"])})


def _view(alias: str) -> dict[str, Any]:
    name, description = _PARTS[alias]
    return {
        "name": name,
        "alias": alias,
        "description": description,
        "namespace": "",
        "updated": "",
        "links": [],
    }


_NAMED = re.compile(r"(/instance-ha/v1)/([0-9a-f-]+)(?=/|$)")


class Middleware:
    """falcon middleware: accepts URLs with the caller's project, /instance-ha/v1/PROJECT/segments.

    The middleware removes the project from the path before routing, and compares it with the
    caller's project after authentication. A project id consists of hexadecimal digits and dashes;
    no resource name of the contract does.
    """

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        named = _NAMED.match(req.path)
        if named is not None:
            req.context.named_project = named[2]
            req.path = named[1] + req.path[named.end() :]

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, _resource: Any, _params: Any
    ) -> None:
        named = getattr(req.context, "named_project", None)
        caller = getattr(req.context, "caller", None)
        if named is not None and caller is not None and named != caller.project_id:
            raise InvalidInput(
                f"Malformed request URL: URL's project_id '{named[:64]}' doesn't match"
                f" Context's project_id '{caller.project_id}'"
            )
