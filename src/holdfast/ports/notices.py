# SPDX-License-Identifier: Apache-2.0
"""News from the cloud, as it happens. The driver is `drivers/notices/nova.py`.

What a hearer can count on, and what not:

- At least once. A notice is acknowledged after `hear` returned; whoever dies in between gets it
  again, with the same `message_id`.
- Not in order: several managers share the news. `at` says which is newer.
- Not complete: nothing comes while the broker is away, before our queue exists, beyond its length.
  So a monitor that hears also looks, now and then: news makes it fast, looking makes it right.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.model.errors import DriverError, HoldfastError, StaleWrite, Unavailable
from holdfast.model.notice import Notice

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
