# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the client library.

    ClientError
    ├── NotReachable         no connection, or no answer in time
    ├── BadRequest      400  and every other 4xx that has no name here
    ├── Unauthorized    401
    ├── Forbidden       403
    ├── NotFound        404
    ├── Conflict        409
    │   └── NotUnique        a name that several objects have; raised by the client itself
    └── ServerError     5xx
        └── Unavailable 503  a component is down; the message says what happened to the request

`message` is the server's message; `str(error)` adds advice in the same line, unless the message
contains the advice already.
"""

from collections.abc import Mapping
from typing import Any

REQUEST_ID = "x-openstack-request-id"
#: Error code of a request that was never sent, because JSON cannot represent the body.
UNSAYABLE = "client.request.unsayable"
#: Error code of a report from a host whose clock is wrong by more than a day: the report waits.
WRONG_CLOCK = "holdfast.report.clock"


class ClientError(Exception):
    """A failed request: the server's message, and the request id for the server's log."""

    advice = ""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        code: str | None = None,
        body: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.request_id = request_id
        self.code = code
        self.body = body

    @property
    def details(self) -> dict[str, Any]:
        """Return the details of an error: conditions, obstacles, the earliest window with room."""
        body = self.body if isinstance(self.body, dict) else {}
        first = next(iter(body.get("errors") or ()), body)
        details = first.get("details") if isinstance(first, dict) else None
        return details if isinstance(details, dict) else {}

    def __str__(self) -> str:
        message = " ".join(self.message.split())
        if not self.advice or self.advice in message:
            return message
        return f"{message.rstrip('.')}: {self.advice}"


class NotReachable(ClientError):
    """No response; `in_doubt` if the server may have carried out a write."""

    def __init__(self, message: str, *, in_doubt: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt
        self.timed_out = timed_out


class BadRequest(ClientError):
    pass


class Unauthorized(ClientError):
    advice = (
        "set HOLDFAST_USER and HOLDFAST_PASSWORD (or HOLDFAST_PASSWORD_FILE),"
        " HOLDFAST_TOKEN, or the OS_* variables"
    )

    def advise(self, advice: str) -> None:
        """Replace the advice, for credentials from another source."""
        self.advice = advice or self.advice


class Forbidden(ClientError):
    advice = "use an account with the role for it, or ask an administrator"


class NotFound(ClientError):
    pass


class Conflict(ClientError):
    pass


class NotUnique(Conflict):
    """A name with several matching objects; `ids` lists the object ids."""

    advice = "use one of the ids"

    def __init__(self, noun: str, name: str, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} {noun}s are called {name!r}: {', '.join(ids)}")
        self.ids = ids


class ServerError(ClientError):
    """A 5xx response; without a request id the response probably came from a proxy."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        if self.request_id:
            self.advice = f"look for {self.request_id} in the server's log"


class Unavailable(ServerError):
    """A 503 response. Only the server's message tells whether anything changed."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        advised = any(word in message.lower() for word in ("try again", "repeat"))
        self.advice = "" if advised else "try again in a moment"


_BY_STATUS: dict[int, type[ClientError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    503: Unavailable,
}


def from_answer(status: int, headers: Mapping[str, str], body: Any, reason: str) -> ClientError:
    """Return the error for a response with status 300 or above; `body` is parsed JSON, or None."""
    message, code = _said(body)
    if status < 400:
        where = headers.get("location", "another address")
        message = f"the server redirects to {where}: set HOLDFAST_URL to where it really is"
    cls = _BY_STATUS.get(status, ServerError if status >= 500 else BadRequest)
    return cls(
        message or f"the server answered {status} {reason}".rstrip(),
        status=status,
        request_id=headers.get(REQUEST_ID),
        code=code,
        body=body,
    )


def _said(body: Any) -> tuple[str, str | None]:
    """Return message and error code from a body in any of the known error formats."""
    if not isinstance(body, dict):
        return "", None
    if isinstance(body.get("error_message"), str):
        return body["error_message"], _text(body.get("code"))
    errors = body.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        first = errors[0]
        message = first.get("detail") or first.get("title") or ""
        return str(message), _text(first.get("code"))
    for fault in body.values():
        if isinstance(fault, dict) and isinstance(fault.get("message"), str):
            return fault["message"], None
    for key in ("description", "message", "title"):
        if isinstance(body.get(key), str):
            return body[key], None
    return "", None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
