# SPDX-License-Identifier: Apache-2.0
"""A monitor's calls on a thread of their own: one that hangs or raises harms nobody else.

A lane takes one call at a time. A call that is not back in time is left behind; until it returns,
the lane takes no other. Trouble is said once, when it begins, and once when it is over.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from holdfast.model.errors import HoldfastError
from holdfast.watch.monitor import BUSY, HUNG, RAISED, Monitor, Seen, Tally, checked

LOG = logging.getLogger(__name__)

Sightings = Sequence[Seen]


class Lane:
    """`what` is what it is used for, for the log: one lane to look, one to hear."""

    def __init__(self, monitor: Monitor, what: str, tally: Tally) -> None:
        self.monitor = monitor
        self.what = what
        self._tally = tally
        self._under_way: Future[Sightings] | None = None
        self._trouble = ""

    @property
    def is_free(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def begin(self, call: Callable[[], Any]) -> "Future[Sightings] | None":
        """Start it; None while an earlier call has not returned."""
        if not self.is_free:
            self._tally.failed(self.monitor.name, BUSY)
            return None
        made: Future[Sightings] = Future()
        self._under_way = made
        name = f"{self.what} {self.monitor.name}"
        threading.Thread(target=_run, args=(made, call), name=name, daemon=True).start()
        return made

    def late(self, patience_s: float) -> None:
        """What was begun is not back in time."""
        why = f"has not returned within {patience_s:g} s; it is not called until it has"
        self._trouble_is(HUNG, HUNG, why)

    def raised(self, error: BaseException) -> None:
        kind = type(error).__name__
        if isinstance(error, HoldfastError):
            self._trouble_is(RAISED, kind, error.message)
        else:
            self._trouble_is(RAISED, kind, f"{kind}: {error}", error)

    def fine(self) -> None:
        if self._trouble:
            LOG.info("monitor %s, %s: well again", self.monitor.name, self.what)
        self._trouble = ""

    def _trouble_is(
        self, how: str, kind: str, why: str, error: BaseException | None = None
    ) -> None:
        """Counted each time; said once until all is well again, or something else is wrong."""
        self._tally.failed(self.monitor.name, how)
        if kind != self._trouble:
            LOG.error("monitor %s, %s: %s", self.monitor.name, self.what, why, exc_info=error)
        self._trouble = kind


def _run(made: "Future[Sightings]", call: Callable[[], Any]) -> None:
    try:
        made.set_result(checked(call()))
    except BaseException as error:  # the top of a stranger's thread: whoever waits hears of it
        made.set_exception(error)
