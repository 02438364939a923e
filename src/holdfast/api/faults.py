# SPDX-License-Identifier: Apache-2.0
"""Errors on the wire, in the shape of the contract whose path was asked for.

/reservation   {"error_code", "error_message", "error_name"}, router level {"error", "error_message"}
/instance-ha   {"<faultName>": {"code", "message"}}
others         {"errors": [{"request_id", "code", "status", "title", "detail", "links"}]}
"""

import json
import logging
from typing import Any

import falcon

from holdfast.model.errors import DriverError, HoldfastError, Unauthorized, Unavailable

LOG = logging.getLogger(__name__)

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
    status = error.status
    if isinstance(error, DriverError):
        error = Unavailable(f"{error.message}; nothing was changed, try again")
        status = 503
    if status >= 500:
        LOG.warning("%s %s: %s", req.method, req.path, error.message)
    _write(req, resp, status, error.message, code=error.code, title=error.title)
    if isinstance(error, Unauthorized) and (scheme := error.details.get("scheme")):
        resp.set_header("WWW-Authenticate", scheme)
    if status == 503:
        resp.set_header("Retry-After", "2")


def _router(req: falcon.Request, resp: falcon.Response, error: Any, _params: Any) -> None:
    """What falcon itself refuses: no such path, no such method."""
    message = error.description or error.title or "not possible"
    if error.status_code == 404:
        message = f"there is nothing at {req.path}"
    elif error.status_code == 405:
        message = f"{req.method} is not possible at {req.path}"
    if error.headers:
        resp.set_headers(error.headers)
    code = f"holdfast.request.{error.status_code}"
    _write(req, resp, error.status_code, message, code=code, title=error.title, router=True)


def _unforeseen(req: falcon.Request, resp: falcon.Response, error: Any, _params: Any) -> None:
    LOG.error("%s %s: unforeseen", req.method, req.path, exc_info=error)
    _write(
        req,
        resp,
        500,
        "Internal Server Error: a defect of ours; the log has it under this request id",
        code=HoldfastError.code,
        title=HoldfastError.title,
    )


def _write(
    req: falcon.Request,
    resp: falcon.Response,
    status: int,
    message: str,
    *,
    code: str,
    title: str,
    router: bool = False,
) -> None:
    resp.status = falcon.code_to_http_status(status)
    resp.content_type = "application/json"
    resp.data = json.dumps(body_for(req, status, message, code, title, router)).encode()


def body_for(
    req: falcon.Request, status: int, message: str, code: str, title: str, router: bool
) -> dict[str, Any]:
    if req.path.startswith("/reservation"):
        if router:
            return {"error": status, "error_message": message}
        name: int | str = "INTERNAL_SERVER_ERROR" if status == 500 else status
        return {"error_code": status, "error_message": message, "error_name": name}
    if req.path.startswith("/instance-ha"):
        return {_FAULTS.get(status, "masakariFault"): {"code": status, "message": message}}
    fault = {
        "request_id": getattr(req.context, "request_id", ""),
        "code": code,
        "status": status,
        "title": title,
        "detail": message,
        "links": [{"rel": "help", "href": f"/holdfast/v1/errors/{code}"}],
    }
    return {"errors": [fault]}
