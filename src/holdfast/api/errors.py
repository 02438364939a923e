# SPDX-License-Identifier: Apache-2.0
"""Error responses, in the format of the contract that the request path belongs to.

/reservation   {"error_code", "error_message", "error_name"}, or {"error", "error_message"} when
               the API refuses before it checks any field: no such path, version, not JSON;
               from 1.1 on also "details" if the error has any
/instance-ha   {"<faultName>": {"code", "message"}}
/console and / pages of the console (console/pages.py)
others         {"errors": [{"request_id", "code", "status", "title", "detail", "links"}]},
               each with "details" if the error has any
"""

import json
import logging
from typing import Any

import falcon

from holdfast import console
from holdfast.alarms.rules import BadRules
from holdfast.api import request, versions
from holdfast.model.errors import (
    Conflict,
    DriverError,
    HoldfastError,
    InvalidInput,
    TooLarge,
    Unauthorized,
    Unavailable,
)

LOG = logging.getLogger(__name__)


class NoSuchPath(HoldfastError):
    """Nothing is served at this address, whatever the method."""

    code = "holdfast.request.nopath"
    status = 404
    title = "No such address"
    advice = "Compare the URL with docs/reference/routes.md."


class NoSuchMethod(HoldfastError):
    """The address exists, but not with this method; the Allow header names the possible methods."""

    code = "holdfast.request.nomethod"
    status = 405
    title = "Method not possible"
    advice = "Use a method from the header Allow."


#: Holdfast errors for the status codes that falcon itself raises.
_ROUTER: dict[int, type[HoldfastError]] = {404: NoSuchPath, 405: NoSuchMethod, 413: TooLarge}
_BEFORE = (
    NoSuchPath,
    NoSuchMethod,
    request.Malformed,
    versions.Malformed,
    versions.NotAcceptable,
)

_FAULTS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    413: "overLimit",
    415: "badMediaType",
    429: "overLimit",
    501: "notImplemented",
    503: "serviceUnavailable",
}


def install(app: falcon.App[Any, Any]) -> None:
    app.add_error_handler(Exception, _unforeseen)
    app.add_error_handler(falcon.HTTPError, _router)
    app.add_error_handler(HoldfastError, _ours)


def _ours(req: falcon.Request, resp: falcon.Response, error: Any, _params: Any) -> None:
    if isinstance(error, DriverError):
        error = Unavailable(f"{error.message}; nothing was changed, try again")
    if error.status >= 500:
        LOG.warning("%s %s: %s", req.method, req.uri_template, error.message)
    _write(req, resp, error)
    if isinstance(error, Unauthorized) and (scheme := error.details.get("scheme")):
        resp.set_header("WWW-Authenticate", scheme)
    if error.status in (429, 503):
        resp.set_header("Retry-After", str(error.details.get("wait_s", 2)))


def _router(req: falcon.Request, resp: falcon.Response, error: Any, _params: Any) -> None:
    """Handle errors that falcon raises: unknown path, unknown method, malformed headers."""
    message = error.description or error.title or "not possible"
    if error.status_code == 404:
        message = f"there is nothing at {req.path}"
    elif error.status_code == 405:
        message = f"{req.method} is not possible at {req.path}"
    if error.headers:
        resp.set_headers(error.headers)
    _write(req, resp, _ROUTER.get(error.status_code, InvalidInput)(message))


def _unforeseen(req: falcon.Request, resp: falcon.Response, error: Any, _params: Any) -> None:
    LOG.error("%s %s: unforeseen", req.method, req.uri_template, exc_info=error)
    message = "Internal Server Error: a defect of ours; the log has it under this request id"
    _write(req, resp, HoldfastError(message))


def _write(req: falcon.Request, resp: falcon.Response, error: HoldfastError) -> None:
    if getattr(req.context, "page", False) or req.path.startswith(console.PREFIX):
        console.refuse(req, resp, error)
        return
    resp.status = falcon.code_to_http_status(error.status)
    resp.content_type = "application/json"
    resp.data = json.dumps(body_for(req, error), default=str).encode()


def body_for(req: falcon.Request, error: HoldfastError) -> dict[str, Any]:
    status, message = error.status, error.message
    if req.path.startswith("/reservation"):
        if isinstance(error, _BEFORE):
            return {"error": status, "error_message": message}
        name: int | str = "INTERNAL_SERVER_ERROR" if status == 500 else status
        body = {"error_code": status, "error_message": message, "error_name": name}
        later = getattr(req.context, "microversion", (1, 0)) >= (1, 1)
        return body | _details(error) if later else body
    if req.path.startswith("/instance-ha"):
        return {_FAULTS.get(status, "masakariFault"): {"code": status, "message": message}}
    fault = {
        "request_id": getattr(req.context, "request_id", ""),
        "code": error.code,
        "status": status,
        "title": error.title,
        "detail": message,
        "links": [{"rel": "help", "href": f"/holdfast/v1/errors/{error.code}"}],
    }
    return {"errors": [fault | _details(error)]}


def _details(error: HoldfastError) -> dict[str, Any]:
    """Return the machine-readable details of an error.

    Conflicts name the obstacles and the window that would fit; invalid alarm rules list each
    problem with its line.
    """
    has_details = isinstance(error, Conflict | BadRules) and error.details
    return {"details": error.details} if has_details else {}
