# SPDX-License-Identifier: Apache-2.0
"""Where monitors and agents send what they saw."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.alarms.scopes import Held
from holdfast.model.errors import DriverError, HoldfastError, StaleWrite, Unavailable
from holdfast.model.nova_notification import Notice
from holdfast.model.observation import Expectation, Heard


class Reports(Protocol):
    """Errors: `Unavailable`, it is to be sent again later; `InvalidInput`, it never will be taken;
    anything else of ours is a matter of set-up, and is tried again too."""

    def report(self, body: Mapping[str, Any]) -> None:
        """One observation; it has been stored, now or before, when this returns."""
        ...

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        """All that this monitor sees now; a later one replaces it."""
        ...


# Where the agent of a host says that it lives, and learns which alarm rules hold for it and
# whether somebody looks at its numbers.


class Centre(Protocol):
    """Unavailable if it cannot be asked now, InvalidInput if it will never listen to that."""

    def beat(self, host: str, body: Mapping[str, Any]) -> Heard:
        """Say how the agent is."""
        ...

    def rules(self, host: str) -> Held: ...

    def samples(self, host: str, body: Mapping[str, Any]) -> None:
        """What was wanted (metrics/history.plain)."""
        ...


# Who knows what should run on a host.


#: So many guests can be asked about beside those of the host, at a time.
MOST_ALSO = 50


class ExpectedGuests(Protocol):
    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        """What the cloud says of the servers of that host, and of these (ids), MOST_ALSO at most.
        Unavailable, NotFound or InvalidInput if it cannot be said: then nothing is known."""
        ...


# Questions that people on its own machine put to a running program, and their answers.


class Answers(Protocol):
    def answer(self, line: bytes) -> Generator[bytes | None, None, None]:
        """Lines to be sent, one after the other; None: nothing just now, is anybody there still?
        Close it when nobody is. What is wrong with the question is an answer too."""
        ...

    def refusal(self, error: HoldfastError) -> bytes:
        """The line that says why there is no answer."""
        ...


# News from the cloud, as it happens. The driver is `drivers/rabbit/nova_notifications.py`.
#
# What a hearer can count on, and what not:
#
# - At least once. A notice is acknowledged after `hear` returned; whoever dies in between gets it
#   again, with the same `message_id`.
# - Not in order: several managers share the news. `at` says which is newer.
# - Not complete: nothing comes while the broker is away, before our queue exists, beyond its
# length.
#   So a monitor that hears also looks, now and then: news makes it fast, looking makes it right.


LOG = logging.getLogger(__name__)

Hear = Callable[[Notice], None]


class Notices(Protocol):
    def listen(self, hear: Hear) -> None:
        """Begin; returns at once, whether or not the broker is there.

        `hear` is called on one thread, one notice at a time. What it raises decides:
        an error by which `later` is true: the same notice again after a pause, as long as it takes;
        anything else: logged, counted, and the notice is let go, for a defect does not mend itself.
        """
        ...

    def stop(self) -> None:
        """End within seconds, in whatever state the broker is. What was not heard stays with it."""
        ...


class Tally(Protocol):
    """Whoever counts; all methods must be quick and must not raise."""

    def heard(self, notice: Notice) -> None: ...

    def not_understood(self) -> None:
        """A message was let go because it made no sense to us."""
        ...

    def failed(self, notice: Notice) -> None:
        """`hear` raised what cannot be mended by waiting."""
        ...

    def put_off(self, notice: Notice) -> None:
        """`hear` could not take it now; it comes again."""
        ...

    def broker(self, there: bool) -> None:
        """We are connected and listening now, or no longer."""
        ...


class NoTally:
    """Nobody counts."""

    def heard(self, notice: Notice) -> None: ...

    def not_understood(self) -> None: ...

    def failed(self, notice: Notice) -> None: ...

    def put_off(self, notice: Notice) -> None: ...

    def broker(self, there: bool) -> None: ...


def later(error: Exception) -> bool:
    """Whether the same notice may be taken if we only wait."""
    if isinstance(error, DriverError):
        return error.retryable
    return isinstance(error, Unavailable | StaleWrite)


def to_all(hearers: Sequence[Hear]) -> Hear:
    """One hearer in front of several: each hears, whatever befalls the others.

    If one could not take it now, all hear it again: to hear twice must do no harm anyway.
    """

    def hear(notice: Notice) -> None:
        put_off: HoldfastError | None = None
        for one in hearers:
            try:
                one(notice)
            except HoldfastError as error:
                if later(error):
                    put_off = error
                else:
                    LOG.error("%s: a monitor failed: %s", notice.event_type, error.message)
            except Exception:  # the top of a monitor: the others must hear all the same
                LOG.exception("%s: a monitor failed", notice.event_type)
        if put_off is not None:
            raise put_off

    return hear
