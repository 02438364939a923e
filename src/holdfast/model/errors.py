# SPDX-License-Identifier: Apache-2.0
"""Every error Holdfast raises on purpose, as one tree.

    HoldfastError
    ├── InvalidInput        400  the request cannot mean anything we can do
    │   └── EnforcementRefused   a rule of the site says no
    ├── Unauthorized        401
    ├── Forbidden           403
    ├── NotFound            404  not there, or not yours
    ├── Conflict            409  fine in itself, impossible right now
    │   ├── IllegalMove          a state machine says no
    │   ├── NotEnoughHosts       the plan found too few
    │   │   ├── NotEnoughAddresses   400, by the reservation contract
    │   │   └── ServerLeased
    │   ├── QuotaExceeded        more than the project may have
    │   ├── HostInUse            reserved, or servers on it
    │   └── StaleWrite           somebody else wrote first (retried inside, seldom seen)
    ├── TooLarge            413
    ├── TooMany             429  later again, not now
    ├── Unavailable         503  a part we need is away; the sentence says what that means
    ├── DriverError         502  a cloud, fence or membership call failed
    └── ClaimLost                durable work now belongs to another manager

`code` values are public and frozen: clients match on them. Add, never change.
"""

from typing import Any, ClassVar


class HoldfastError(Exception):
    """What went wrong, to what, and what to do now, in one sentence."""

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
    """A call to an outside part failed; `retryable` says whether a later one may succeed."""

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
    """All error classes by public code, to raise again what another process raised."""
    found: dict[str, type[HoldfastError]] = {}
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        cls = todo.pop()
        found[cls.code] = cls
        todo.extend(cls.__subclasses__())
    return found
