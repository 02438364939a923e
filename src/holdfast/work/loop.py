# SPDX-License-Identifier: Apache-2.0
"""The loop of due work: take what is due, sleep until the next is, wake early when the bell rings.

There is no tick: the sleep ends when the next row of the table wants to be looked at. The poll
interval only bounds it, for rows that other processes wrote and whose bell we did not hear.
"""

import logging
import threading
from typing import Protocol

from holdfast.model.errors import HoldfastError
from holdfast.model.operation import Operation
from holdfast.ports.clock import Clock
from holdfast.ports.operations import Operations
from holdfast.work.runner import Runner

LOG = logging.getLogger(__name__)

#: How much is claimed in one go at first, and at most: as long as there is more, each claim takes
#: twice as much as the one before. So managers share a burst, and thousands cost few queries.
FIRST, MOST = 100, 800
#: Between two looks: what falls due, or is handed back, within that time is taken in one go.
BREATH_S = 0.02


class Pace(Protocol):
    poll_interval_s: float


class Loop:
    def __init__(self, operations: Operations, runner: Runner, clock: Clock, pace: Pace) -> None:
        self._operations = operations
        self._runner = runner
        self._clock = clock
        self._pace = pace
        self._bell = runner.freed  # a worker that more work waits for, or a finished predecessor
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="loop", daemon=True)
        self.last_cycle = clock.monotonic()

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        """There is something new: look now."""
        self._bell.set()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()
        self._runner.stop()

    def age_s(self) -> float:
        """How long ago the loop last came round."""
        return self._clock.monotonic() - self.last_cycle

    def cycle(self) -> float:
        """Take what is due; how many seconds may pass until the next look."""
        looked_at, before = self._operations.now(), self._clock.monotonic()
        self._runner.keep_waiting()
        self._take()
        # What was due before that look is taken, or waits for an earlier one of its subject.
        following = self._operations.next_look(looked_at)
        if following is None or not self._runner.free():
            return self._pace.poll_interval_s
        left = (following - looked_at).total_seconds() - (self._clock.monotonic() - before)
        return min(max(left, 0.0), self._pace.poll_interval_s)

    def _take(self) -> None:
        """Claim what is due. None of it begins before all is claimed: thousands that are under way
        would leave no time for claiming thousands more."""
        taken: list[tuple[Operation, float]] = []
        batch, room = FIRST, self._runner.free()
        try:
            while (wanted := min(batch, room - len(taken))) > 0:
                before = self._clock.monotonic()
                some = self._operations.claim_due(
                    self._runner.owner, wanted, self._runner.ttl, self._runner.kinds
                )
                taken += [(operation, before) for operation in some]
                if len(some) < wanted:
                    break
                batch, room = min(batch * 2, MOST), self._runner.free(ahead=True)
        finally:
            for operation, claimed_at in taken:
                self._runner.submit(operation, claimed_at)

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            try:
                pause = self.cycle()
            except HoldfastError as error:
                LOG.warning("looking for due work: %s", error.message)
                pause = min(1.0, self._pace.poll_interval_s)
            except Exception:  # the top of the loop: it must come round again
                LOG.exception("looking for due work: unforeseen")
                pause = 1.0
            self.last_cycle = self._clock.monotonic()
            self._stop.wait(BREATH_S)  # by no clock: it spares the processor
            self._clock.wait(self._bell, pause - self.age_s())
