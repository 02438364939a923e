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
MOST_SAID = 20


class HoldfastError(Exception):
    """An error whose message says in one sentence what failed, on which object, and what to do
    now."""

    code: ClassVar[str] = "holdfast.internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message or self.title)
        self.message = message or self.title
        self.details = details


class InvalidInput(HoldfastError):
    code = "holdfast.request.invalid"
    status = 400
    title = "Bad request"


class EnforcementRefused(InvalidInput):
    code = "reservation.enforcement.refused"
    title = "Not allowed by a rule of this site"


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

    def __init__(self, message: str = "", problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        shown = [{"line": one.line, "text": one.text} for one in self.problems]
        super().__init__(message, **({"problems": shown} if shown else {}))

    @classmethod
    def because(cls, source: str, problems: Sequence[Problem]) -> Self:
        """Name every problem of the document, those after `MOST_SAID` by their number."""
        found = sorted(set(problems), key=lambda one: (one.line, one.text))
        many = "a problem" if len(found) == 1 else f"{len(found)} problems"
        more = f"; and {len(found) - MOST_SAID} more" if len(found) > MOST_SAID else ""
        return cls(f"{source} has {many}: {'; '.join(map(str, found[:MOST_SAID]))}{more}", found)


class Unauthorized(HoldfastError):
    code = "holdfast.auth.required"
    status = 401
    title = "Authentication required"


class Forbidden(HoldfastError):
    code = "holdfast.auth.forbidden"
    status = 403
    title = "Forbidden"


class NotFound(HoldfastError):
    code = "holdfast.object.notfound"
    status = 404
    title = "Not found"


class Conflict(HoldfastError):
    code = "holdfast.state.conflict"
    status = 409
    title = "Conflict"


class IllegalMove(Conflict):
    code = "holdfast.state.illegal"
    title = "Not possible in this state"


class NotEnoughHosts(Conflict):
    code = "reservation.hosts.notenough"
    title = "Not enough hosts available"


class NotEnoughAddresses(NotEnoughHosts):
    code = "reservation.addresses.notenough"
    status = 400
    title = "Not enough floating IPs available"


class ServerLeased(NotEnoughHosts):
    code = "reservation.server.leased"
    title = "The server is leased already"


class QuotaExceeded(Conflict):
    code = "reservation.quota.exceeded"
    title = "Quota exceeded"


class HostInUse(Conflict):
    code = "reservation.host.inuse"
    title = "Host in use"


class StaleWrite(Conflict):
    code = "holdfast.state.stale"
    title = "Changed by somebody else"


class TooLarge(HoldfastError):
    code = "holdfast.request.toolarge"
    status = 413
    title = "Request too large"


class TooMany(HoldfastError):
    code = "holdfast.request.toomany"
    status = 429
    title = "Too many tries"


class Unavailable(HoldfastError):
    code = "holdfast.service.unavailable"
    status = 503
    title = "Service unavailable"


class DriverError(HoldfastError):
    """A call to an external service failed; `retryable` says whether a later call may succeed."""

    code = "holdfast.driver.failed"
    status = 502
    title = "An outside part failed"

    def __init__(self, port: str, message: str, *, retryable: bool, **details: Any) -> None:
        super().__init__(f"{port}: {message}", **details)
        self.port = port
        self.retryable = retryable


class ClaimLost(HoldfastError):
    code = "holdfast.claim.lost"
    title = "The work belongs to another manager now"


def by_code() -> dict[str, type[HoldfastError]]:
    """Map public codes to error classes, to raise again an error of another process."""
    found: dict[str, type[HoldfastError]] = {}
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        found[cls.code] = cls
        todo.extend(cls.__subclasses__())
    return found
