# SPDX-License-Identifier: Apache-2.0
"""Carries what the spool holds to Holdfast, for as long as it takes, and tells it how we are.

Two threads, so that a report that nobody takes holds up neither the decision nor the next sign of
life.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.ports.clock import Clock
from holdfast.ports.reports import Reports
from holdfast.watch.spool import Item, Spool

LOG = logging.getLogger(__name__)

PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: What waits is looked for so often even if nobody rings.
IDLE_S = 5.0


class _Errand:
    """A thread that comes round for ever, sooner when somebody rings."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15)

    def ring(self) -> None:
        """There is something to do."""
        self._bell.set()

    def _forever(self) -> None:
        raise NotImplementedError


class Courier(_Errand):
    def __init__(self, spool: Spool, reports: Reports, clock: Clock) -> None:
        super().__init__("courier", clock)
        self._spool = spool
        self._reports = reports
        self._complained = ""

    def _forever(self) -> None:
        pause_s = PAUSE_S
        while not self._stop.is_set():
            self._bell.clear()
            try:
                stuck = self.round()
            except HoldfastError as error:
                stuck = error.message
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("courier: unforeseen")
                stuck = "something unforeseen, see the log"
            self._complain(stuck)
            if stuck:
                self._clock.wait(self._stop, pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                pause_s = PAUSE_S
                self._clock.wait(self._bell, IDLE_S)

    def round(self) -> str:
        """Deliver all that can be; why the rest could not be, or ""."""
        stuck = ""
        while not self._stop.is_set() and not stuck:
            heads = self._spool.heads()
            if not heads:
                break
            for item in heads:
                stuck = self._deliver(item) or stuck
        return stuck

    def _deliver(self, item: Item) -> str:
        try:
            self._reports.report(item.body)
        except InvalidInput as refused:
            LOG.error(
                "the report about %s is not taken and put aside: %s", item.subject, refused.message
            )
            self._spool.park(item, refused.message)
            return ""
        except HoldfastError as later:
            return f"{item.subject}: {later.message}"
        self._spool.done(item)
        LOG.info("reported: %s %s", item.subject, item.body.get("state", ""))
        return ""

    def _complain(self, why: str) -> None:
        """Once, not at every try."""
        if why and not self._complained:
            LOG.error("reports cannot be delivered and wait on disk: %s", why)
        elif self._complained and not why:
            LOG.info("reports are delivered again")
        self._complained = why


class Heartbeat(_Errand):
    """Says how we are and what we see: every few seconds, and soon after a change."""

    def __init__(
        self,
        reports: Reports,
        observer: str,
        view: Callable[[], Mapping[str, Any]],
        every_s: float,
        clock: Clock,
    ) -> None:
        super().__init__("heartbeat", clock)
        self._reports = reports
        self._observer = observer
        self._view = view
        self._every_s = every_s
        self._complained = False

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            try:
                self._reports.view(self._observer, self._view())
                self._complained = False
            except HoldfastError as error:
                if not self._complained:
                    LOG.warning("Holdfast does not hear how we are: %s", error.message)
                self._complained = True
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("heartbeat: unforeseen")
            if self._complained:
                self._clock.wait(self._stop, min(1.0, self._every_s))
            else:
                self._clock.wait(self._bell, self._every_s)
