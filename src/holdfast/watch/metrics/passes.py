# SPDX-License-Identifier: Apache-2.0
"""A pass every second: a snapshot is taken and handed to whoever wants it, on one thread.

    passes = Passes(collector, 1.0, clock)
    passes.receivers.append(engine.take)
    passes.start()

Passes are a second apart by the clock, however long one takes; one that is late is not made up
for. Who receives must not wait: what takes time (plugins, sinks) has a queue of its own.
"""

import gc
import logging
from collections.abc import Callable
from typing import Final

from holdfast.ports.clock import Clock
from holdfast.ports.metrics import Snapshot
from holdfast.watch.errand import Errand
from holdfast.watch.metrics.collect import Collector
from holdfast.watch.metrics.turns import Turns

LOG = logging.getLogger(__name__)
EVERY_S: Final = 1.0

Receiver = Callable[[Snapshot], None]


class Passes(Errand):
    def __init__(
        self, collector: Collector, every_s: float, clock: Clock, turns: Turns | None = None
    ) -> None:
        super().__init__("metrics", clock)
        self._turns = turns or Turns(clock)
        self._collector = collector
        self._every_s = every_s
        self.receivers: list[Receiver] = []
        self.last: Snapshot | None = None
        self.skipped = 0  # passes for which there was no time

    def _forever(self) -> None:
        due, first = self._clock.monotonic(), True
        self._turns.expect(due)
        while not self._stop.is_set():
            self._clock.wait(self._bell, max(0.0, due - self._clock.monotonic()))
            self._bell.clear()
            if self._stop.is_set():
                return
            with self._turns:
                self.turn()
                if first:
                    first = False
                    # what lives now lives on: to look through it for garbage each time would cost
                    # several times what a pass does
                    gc.collect()
                    gc.freeze()
                late = int((self._clock.monotonic() - due) / self._every_s)
                self.skipped += late
                due += self._every_s * (late + 1)
                self._turns.expect(due)  # before others have their turn: they go by it

    def turn(self) -> None:
        """One pass."""
        try:
            snapshot = self._collector.snapshot()
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("a pass of the metrics failed; the next is made all the same")
            return
        self.last = snapshot
        for receive in self.receivers:
            try:
                receive(snapshot)
            except Exception:  # nobody else shall notice
                LOG.exception("%r did not take the snapshot", receive)
