# SPDX-License-Identifier: Apache-2.0
"""Passes go first. Threads share one interpreter, and each read of a pass would wait for whoever
computes meanwhile; so who has something to compute does it between two passes.

    turns.expect(due)          # who makes passes: when the next one begins
    with turns: ...            # and the pass
    turns.room(0.01)           # anybody else, before work of so many seconds
"""

import threading
from typing import Final

from holdfast.ports.clock import Clock

#: A pass that is late by that much does not come; one that takes that long is not waited for.
MOST_S: Final = 0.5
#: How many passes are let by before one begins all the same.
MOST_PASSES: Final = 3


class Turns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()  # of the pass that is under way, or else of the next
        self._under_way = False
        self._due: float | None = None  # nobody makes passes

    def expect(self, due: float) -> None:
        self._due = due

    def __enter__(self) -> None:
        self._under_way = True

    def __exit__(self, *_: object) -> None:
        over, self._over = self._over, threading.Event()
        self._under_way = False
        over.set()

    def room(self, seconds: float) -> None:
        """Wait until no pass is under way and none begins within that time. Not for ever: more
        than fits between two passes has to be done too. Who waits sleeps until a pass is over: one
        that is woken when it begins would want the interpreter in the midst of it."""
        if self._due is None:
            return
        for _ in range(MOST_PASSES):
            over = self._over
            gap_s = self._due - self._clock.monotonic()
            if not self._under_way and (gap_s > seconds or gap_s < -MOST_S):
                return
            self._clock.wait(over, max(0.0, gap_s) + MOST_S)
