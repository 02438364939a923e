# SPDX-License-Identifier: Apache-2.0
"""Ports of reports: monitors and agents to the manager, and Nova notifications to monitors.

`Reports` sends observations, `Centre` serves heartbeats and alarm rules, `ExpectedGuests`
returns the guests that should run on a host, `Notices` receives Nova notifications.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.alarms.scopes import Held
from holdfast.model.errors import DriverError, StaleWrite, Unavailable
from holdfast.model.nova_notification import Notice
from holdfast.model.observation import Expectation, Heard


class Reports(Protocol):
    """The manager's intake of observations.

    Errors: after `Unavailable` the monitor sends again later; after `InvalidInput` it never
    sends again. Any other HoldfastError is a matter of set-up, and the monitor retries too.
    """

    def report(self, body: Mapping[str, Any]) -> None:
        """Send an observation; the manager has stored it, now or before, when this returns."""
        ...

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        """Send everything this monitor sees now; a later view replaces the present view."""
        ...


# The agent's heartbeat; the answer says which alarm rules apply to the host and whether a user
# watches its live metrics.


class Centre(Protocol):
    """The API as an agent sees it.

    Unavailable if the API cannot answer now, InvalidInput if it will never accept the request.
    """

    def beat(self, host: str, body: Mapping[str, Any]) -> Heard:
        """Send the agent's heartbeat."""
        ...

    def rules(self, host: str) -> Held: ...

    def samples(self, host: str, body: Mapping[str, Any]) -> None:
        """Send the requested metrics (see `metrics/history.py`)."""
        ...


# The guests that should run on a host.


#: How many guests a request may name beside those of the host.
MOST_ALSO = 50


class ExpectedGuests(Protocol):
    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        """Return the cloud's records of the host's servers and of the ids in `also` (MOST_ALSO).

        Unavailable, NotFound or InvalidInput if there is no answer: then the caller knows
        nothing.
        """
        ...


# Nova notifications. The driver is `drivers/nova_notifications.py`.
#
# A hearer can rely on this, and must not rely on more:
#
# - At least once. The driver acknowledges a notice after `hear` returned; a manager that dies
#   in between gets the notice again, with the same `message_id`.
# - Not in order: several managers share the notifications. `at` says which notice is newer.
# - Not complete: none arrives while the broker is away, before our queue exists, or beyond the
#   queue's length limit. Therefore a monitor also polls now and then: notifications make it fast,
#   polling makes it right.


Hear = Callable[[Notice], None]


class Notices(Protocol):
    def listen(self, hear: Hear) -> None:
        """Start listening; return at once, whether or not the broker is reachable.

        The driver calls `hear` on one thread, one notice at a time. The exception decides: if
        `later(error)` is true, the driver delivers the same notice again after a pause, as long
        as needed. Any other exception is logged and counted, and the notice is dropped, because
        a defect does not repair itself.
        """
        ...

    def stop(self) -> None:
        """Stop within seconds in any broker state; unheard notices stay in the queue."""
        ...


class Tally(Protocol):
    """Counters of Nova notifications; all methods must be quick and must not raise."""

    def heard(self, notice: Notice) -> None: ...

    def not_understood(self) -> None:
        """Count a message that was dropped because it could not be parsed."""
        ...

    def failed(self, notice: Notice) -> None:
        """Count a notice for which `hear` raised an error that waiting cannot repair."""
        ...

    def put_off(self, notice: Notice) -> None:
        """Count a notice that `hear` could not process now; the driver delivers it again."""
        ...

    def broker(self, there: bool) -> None:
        """Record whether the driver is connected to the broker and listening."""
        ...


class NoTally:
    """A Tally that counts nothing."""

    def heard(self, notice: Notice) -> None: ...

    def not_understood(self) -> None: ...

    def failed(self, notice: Notice) -> None: ...

    def put_off(self, notice: Notice) -> None: ...

    def broker(self, there: bool) -> None: ...


def later(error: Exception) -> bool:
    """Tell whether a later delivery of the same notice may succeed."""
    if isinstance(error, DriverError):
        return error.retryable
    return isinstance(error, Unavailable | StaleWrite)
