# SPDX-License-Identifier: Apache-2.0
"""Carries what the spool holds to Holdfast, for as long as it takes, and tells it how we are.

Two threads, so that a report that nobody takes holds up neither the decision nor the next sign of
life.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.model.errors import Forbidden, HoldfastError, InvalidInput
from holdfast.ports.clock import Clock
from holdfast.ports.reports import Reports
from holdfast.watch.errand import Errand
from holdfast.watch.spool import Item, Spool

LOG = logging.getLogger(__name__)

PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: What waits is looked for so often even if nobody rings.
IDLE_S = 5.0
AT_A_TIME = 100


class Courier(Errand):
    """`observer`: in whose name its host reports, if it may report in no other one. What is refused
    because it names another, of before a host was renamed, is put aside: it would be for ever."""

    def __init__(
        self, spool: Spool, reports: Reports, clock: Clock, *, observer: str | None = None
    ) -> None:
        super().__init__("courier", clock)
        self._spool = spool
        self._reports = reports
        self._observer = observer
        self._complained = ""
        self._held: dict[str, str] = {}  # subjects that wait for another try, and why

    def _forever(self) -> None:
        pause_s, retry_at = PAUSE_S, 0.0
        while not self._stop.is_set():
            self._bell.clear()
            again = self._clock.monotonic() >= retry_at
            stuck = self._try(self.round if again else self._go_on)
            self._complain(stuck)
            now = self._clock.monotonic()
            if not stuck:
                pause_s, retry_at = PAUSE_S, 0.0
                self._clock.wait(self._bell, IDLE_S)
                continue
            if again:
                retry_at, pause_s = now + pause_s, min(pause_s * 2, LONGEST_PAUSE_S)
            self._clock.wait(self._bell, max(0.0, retry_at - now))

    def _try(self, deliver: Callable[[], str]) -> str:
        try:
            return deliver()
        except HoldfastError as error:
            return error.message
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("courier: unforeseen")
            return "something unforeseen, see the log"

    def round(self) -> str:
        """Deliver all that can be; why the rest could not be, or ""."""
        self._held.clear()
        return self._go_on()

    def _go_on(self) -> str:
        """The same without those that have just been tried: they hold up nobody else."""
        while not self._stop.is_set():
            heads = self._spool.heads(AT_A_TIME + len(self._held))
            fresh = [item for item in heads if item.subject not in self._held]
            if not fresh:
                break
            for item in fresh:
                if why := self._deliver(item):
                    self._held[item.subject] = why
        return next(iter(self._held.values()), "")

    def _deliver(self, item: Item) -> str:
        try:
            self._reports.report(item.body)
        except InvalidInput as refused:
            self._put_aside(item, refused)
            return ""
        except Forbidden as refused:
            if self._is_ours(item):
                return f"{item.subject}: {refused.message}"
            self._put_aside(item, refused)
            return ""
        except HoldfastError as later:
            return f"{item.subject}: {later.message}"
        self._spool.done(item)
        LOG.info("reported: %s %s", item.subject, item.body.get("state", ""))
        return ""

    def _is_ours(self, item: Item) -> bool:
        return self._observer is None or item.body.get("observer") == self._observer

    def _put_aside(self, item: Item, refused: HoldfastError) -> None:
        LOG.error(
            "the report about %s is not taken and put aside: %s", item.subject, refused.message
        )
        self._spool.park(item, refused.message)

    def _complain(self, why: str) -> None:
        """Once, not at every try."""
        if why and not self._complained:
            LOG.error("reports cannot be delivered and wait on disk: %s", why)
        elif self._complained and not why:
            LOG.info("reports are delivered again")
        self._complained = why


class Heartbeat(Errand):
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
