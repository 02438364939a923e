# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on the client's side of the wire, as one tree.

    ClientError
    ├── NotReachable         no connection, or no answer in time
    ├── BadRequest      400  and every other 4xx that has no name here
    ├── Unauthorized    401
    ├── Forbidden       403
    ├── NotFound        404
    ├── Conflict        409
    │   └── NotUnique        a name that several objects carry; made here, not by the server
    └── ServerError     5xx
        └── Unavailable 503  a part is away; the sentence says what became of the request

`message` is the server's own sentence; `str(error)` adds what to do next, in one line, unless the
sentence says so itself.
"""

from collections.abc import Mapping
from typing import Any

REQUEST_ID = "x-openstack-request-id"
#: The code of what was never sent, because JSON has no words for it.
UNSAYABLE = "client.request.unsayable"


class ClientError(Exception):
    """One request that failed: what the server said, and how to find it in its log."""

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
        """The parts of a refusal: conditions, obstacles, the earliest window that would fit."""
        body = self.body if isinstance(self.body, dict) else {}
        first = next(iter(body.get("errors") or ()), body)
        found = first.get("details") if isinstance(first, dict) else None
        return found if isinstance(found, dict) else {}

    def __str__(self) -> str:
        said = " ".join(self.message.split())
        if not self.advice or self.advice in said:
            return said
        return f"{said.rstrip('.')}: {self.advice}"


class NotReachable(ClientError):
    """No answer; `in_doubt` if a write went out and may have been carried out."""

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
        """Say something better, for credentials that were given."""
        self.advice = advice or self.advice


class Forbidden(ClientError):
    advice = "use an account with the role for it, or ask an administrator"


class NotFound(ClientError):
    pass


class Conflict(ClientError):
    pass


class NotUnique(Conflict):
    """A name that means several objects; `ids` are theirs."""

    advice = "use one of the ids"

    def __init__(self, noun: str, name: str, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} {noun}s are called {name!r}: {', '.join(ids)}")
        self.ids = ids


class ServerError(ClientError):
    """The server's own fault; without a request id it was hardly Holdfast that answered."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        if self.request_id:
            self.advice = f"look for {self.request_id} in the server's log"


class Unavailable(ServerError):
    """Whether anything was changed only the server's sentence can tell."""

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
    """The error for an answer of 300 or more; `body` is parsed JSON, or None."""
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
    """Message and public code, from whichever of the known shapes this is."""
    if not isinstance(body, dict):
        return "", None
    if isinstance(body.get("error_message"), str):
        return body["error_message"], _text(body.get("code"))
    errors = body.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        first = errors[0]
        said = first.get("detail") or first.get("title") or ""
        return str(said), _text(first.get("code"))
    for fault in body.values():
        if isinstance(fault, dict) and isinstance(fault.get("message"), str):
            return fault["message"], None
    for key in ("description", "message", "title"):
        if isinstance(body.get(key), str):
            return body[key], None
    return "", None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
