# SPDX-License-Identifier: Apache-2.0
"""Every error that Holdfast raises on purpose, as a class tree.

    HoldfastError
    ├── InvalidInput        400  the request is malformed or cannot be carried out
    │   ├── EnforcementRefused   a rule of the site refuses the request
    │   └── InvalidDocument      a file of rules, filters, plugins or the HA matrix has problems
    ├── Unauthorized        401
    ├── Forbidden           403
    ├── NotFound            404  the object does not exist, or belongs to another project
    ├── Conflict            409  the request is valid, but impossible in the current state
    │   ├── IllegalMove          the state machine has no such transition
    │   ├── NotEnoughHosts       the plan found too few hosts
    │   │   ├── NotEnoughAddresses   400, by the reservation contract
    │   │   └── ServerLeased
    │   ├── QuotaExceeded        more than the quota of the project
    │   ├── HostInUse            the host is reserved, or has servers
    │   └── StaleWrite           another writer was first (retried inside, seldom seen)
    ├── TooLarge            413
    ├── TooMany             429  try again later
    ├── Unavailable         503  a required service is unreachable; the message says which
    ├── DriverError         502  a cloud, fence or membership call failed
    └── ClaimLost                another manager owns the operation now

`code` values are public and frozen: clients match on them. Add, never change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

#: Most problems in one sentence; `InvalidDocument.problems` has all of them.
MOST_NAMED = 20


class HoldfastError(Exception):
    """A defect of Holdfast, or an error without a class of its own.

    The message says in a sentence which action failed, on which object, and the next step.
    """

    code: ClassVar[str] = "holdfast.internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    #: The next action of the caller or the operator; docs/reference/errors.md lists all.
    advice: ClassVar[str] = "Search the log for the request id, and report the defect."

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message or self.title)
        self.message = message or self.title
        self.details = details


class InvalidInput(HoldfastError):
    """The request is malformed or cannot be carried out."""

    code = "holdfast.request.invalid"
    status = 400
    title = "Bad request"
    advice = "Correct the field or value in the message, then repeat the request."


class EnforcementRefused(InvalidInput):
    """An enforcement filter or the external service refuses the lease."""

    code = "reservation.enforcement.refused"
    title = "Not allowed by a rule of this site"
    advice = (
        "Change the lease as the message says, or ask the operator of the site for an exception."
    )


@dataclass(frozen=True)
class Problem:
    """A problem of a document; line 0 means the whole document."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class InvalidDocument(InvalidInput):
    """A document that cannot be used; `problems` lists every problem by line."""

    code = "holdfast.document.invalid"
    title = "The document cannot be used"
    advice = "Correct the lines in the message, then load the document again."

    def __init__(self, message: str = "", problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        shown = [{"line": problem.line, "text": problem.text} for problem in self.problems]
        super().__init__(message, **({"problems": shown} if shown else {}))

    @classmethod
    def because(cls, source: str, problems: Sequence[Problem]) -> Self:
        """Name every problem of the document, those after `MOST_NAMED` by their number."""
        in_order = sorted(set(problems), key=lambda problem: (problem.line, problem.text))
        many = "a problem" if len(in_order) == 1 else f"{len(in_order)} problems"
        more = f"; and {len(in_order) - MOST_NAMED} more" if len(in_order) > MOST_NAMED else ""
        return cls(
            f"{source} has {many}: {'; '.join(map(str, in_order[:MOST_NAMED]))}{more}", in_order
        )


class Unauthorized(HoldfastError):
    """The request has no valid credentials."""

    code = "holdfast.auth.required"
    status = 401
    title = "Authentication required"
    advice = "Set the credentials in the environment, or request a new token."


class Forbidden(HoldfastError):
    """The policy does not allow the call to the roles of the caller."""

    code = "holdfast.auth.forbidden"
    status = 403
    title = "Forbidden"
    advice = "Use a user with a role from docs/reference/routes.md, or change policy.yaml."


class NotFound(HoldfastError):
    """The object does not exist, or belongs to another project."""

    code = "holdfast.object.notfound"
    status = 404
    title = "Not found"
    advice = "List the objects of your project and use an id from the list."


class Conflict(HoldfastError):
    """The request is valid, but impossible in the current state."""

    code = "holdfast.state.conflict"
    status = 409
    title = "Conflict"
    advice = (
        "Read the state of the object in the message; repeat the request after the state changed."
    )


class IllegalMove(Conflict):
    """The state machine has no such transition (docs/reference/states.md)."""

    code = "holdfast.state.illegal"
    title = "Not possible in this state"
    advice = "Wait until the object leaves the state in the message, then repeat the request."


class NotEnoughHosts(Conflict):
    """Too few hosts match the request and are free in the wanted time."""

    code = "reservation.hosts.notenough"
    title = "Not enough hosts available"
    advice = "Use the earliest window in the message, or request fewer hosts or weaker conditions."


class NotEnoughAddresses(NotEnoughHosts):
    """Too few floating IPs are free in the wanted time."""

    code = "reservation.addresses.notenough"
    status = 400
    title = "Not enough floating IPs available"
    advice = "Use other dates, fewer addresses, or enrol more addresses."


class ServerLeased(NotEnoughHosts):
    """Another lease holds the server in the wanted time."""

    code = "reservation.server.leased"
    title = "The server is leased already"
    advice = "Use the other lease, or dates outside the other lease."


class QuotaExceeded(Conflict):
    """The lease would exceed the quota of the project."""

    code = "reservation.quota.exceeded"
    title = "Quota exceeded"
    advice = "End other leases of the project, or ask the operator for a larger quota."


class HostInUse(Conflict):
    """The host is reserved, or has servers."""

    code = "reservation.host.inuse"
    title = "Host in use"
    advice = "End the leases and move the servers of the host, then repeat the request."


class StaleWrite(Conflict):
    """Another writer changed the object first; the manager retries by itself."""

    code = "holdfast.state.stale"
    title = "Changed by another request"
    advice = "Read the object again and repeat the change."


class TooLarge(HoldfastError):
    """The request body exceeds the limit."""

    code = "holdfast.request.toolarge"
    status = 413
    title = "Request too large"
    advice = "Send a smaller body, or raise `[api] max_body`."


class TooMany(HoldfastError):
    """The API received too many requests or failed logins."""

    code = "holdfast.request.toomany"
    status = 429
    title = "Too many tries"
    advice = "Wait for the seconds in the header Retry-After, then repeat the request."


class Unavailable(HoldfastError):
    """A required service is unreachable; the message names the service."""

    code = "holdfast.service.unavailable"
    status = 503
    title = "Service unavailable"
    advice = "Run `holdfast status`; repeat the request when the service answers again."


class DriverError(HoldfastError):
    """A call to an external service failed; `retryable` says whether a later call may succeed."""

    code = "holdfast.driver.failed"
    status = 502
    title = "An outside part failed"
    advice = "Check the service in the message; the manager retries its own calls."

    def __init__(self, port: str, message: str, *, retryable: bool, **details: Any) -> None:
        super().__init__(f"{port}: {message}", **details)
        self.port = port
        self.retryable = retryable


class ClaimLost(HoldfastError):
    """Another manager owns the operation now; the new owner finishes the operation."""

    code = "holdfast.claim.lost"
    title = "The work belongs to another manager now"
    advice = "Nothing."


def by_code() -> dict[str, type[HoldfastError]]:
    """Map public codes to error classes, to raise again an error of another process."""
    classes: dict[str, type[HoldfastError]] = {}
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        classes[cls.code] = cls
        todo.extend(cls.__subclasses__())
    return classes
