# SPDX-License-Identifier: Apache-2.0
"""Tells a listener one thing after the other, on a thread of its own, so that whoever hears never
waits for whoever listens. What waits is bounded: more is not kept, and all guests are read again
instead, because where it ended shows in their states. Of readings only the latest waits.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from holdfast.ports.guests import Listener

LOG = logging.getLogger(__name__)
MOST = 10_000

Telling = Callable[[Listener], None]


class Teller:
    def __init__(self, listener: Listener, full: Callable[[], None], *, most: int = MOST) -> None:
        self._listener = listener
        self._full = full
        self._most = most
        self._waiting: deque[Telling] = deque()
        self._reading: Telling | None = None  # that waits
        self._ring = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._forever, name="guests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, telling: Telling, *, always: bool = False) -> None:
        """`always` for what is few and must not be missed."""
        with self._ring:
            room = always or len(self._waiting) < self._most
            if room:
                self._waiting.append(telling)
                self._ring.notify()
        if not room:
            self._full()

    def put_reading(self, telling: Telling) -> None:
        """What was read of all guests: it must not be missed, and says more than one before it."""
        with self._ring:
            if self._reading is not None:
                self._waiting.remove(self._reading)
            self._reading = telling
            self._waiting.append(telling)
            self._ring.notify()

    def close(self) -> None:
        with self._ring:
            self._closed = True
            self._waiting.clear()
            self._reading = None
            self._ring.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _forever(self) -> None:
        while (telling := self._next()) is not None:
            try:
                telling(self._listener)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("something that was heard of a guest was not understood")

    def _next(self) -> Telling | None:
        with self._ring:
            while not self._waiting and not self._closed:
                self._ring.wait()
            if self._closed:
                return None
            telling = self._waiting.popleft()
            if telling is self._reading:
                self._reading = None
            return telling
