# SPDX-License-Identifier: Apache-2.0
"""Threads that loop, wake and stop, and calls that may hang, each with a deadline."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from holdfast.model.errors import HoldfastError
from holdfast.runtime.clock import Clock

# Looping threads: `Worker` waits to be woken, `PeriodicTask` runs at an interval.
#
#     PeriodicTask("heartbeats", 10.0, look, clock).start()
#
# A failing pass is logged once, until a pass succeeds again.


LOG = logging.getLogger(__name__)


class Worker:
    """A thread with a loop that `wake` starts at once; subclasses implement `_forever`."""

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

    def wake(self) -> None:
        """Run the next pass of the loop at once."""
        self._bell.set()

    def _forever(self) -> None:
        raise NotImplementedError


class PeriodicTask(Worker):
    """Calls `look` every `interval_s` seconds and at each wake, the first time after a wait.

    `interval_s` may be a function: the task calls it before each wait, so the interval can change.
    """

    def __init__(
        self,
        name: str,
        interval_s: float | Callable[[], float],
        look: Callable[[], None],
        clock: Clock,
    ) -> None:
        super().__init__(name, clock)
        self._name = name
        self._every_s = interval_s
        self._look = look
        self._complained = False

    def _forever(self) -> None:
        while not self._stop.is_set():
            interval_s = self._every_s() if callable(self._every_s) else self._every_s
            self._clock.wait(self._bell, interval_s)
            self._bell.clear()
            if not self._stop.is_set():
                self._round()

    def _round(self) -> None:
        try:
            self._look()
        except HoldfastError as error:
            if not self._complained:
                LOG.error("%s: %s; it is tried again", self._name, error.message)
            self._complained = True
        except Exception:  # the top of the thread: the loop must go on
            LOG.exception("%s: unforeseen", self._name)
        else:
            if self._complained:
                LOG.info("%s: all is well again", self._name)
            self._complained = False


T = TypeVar("T")


class BoundedCall:
    """Runs calls that may hang in foreign code on threads, each with a deadline.

    A call that hangs keeps its thread. At most `most` calls run at once; further calls fail at
    once.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._slots = threading.BoundedSemaphore(most)

    def run(
        self, seconds: float, call: Callable[[], T], abort: Callable[[], None] = lambda: None
    ) -> T:
        """Run a call with a deadline; on timeout call `abort` and raise TimeoutError."""
        if not self._slots.acquire(blocking=False):
            raise TimeoutError("too many calls hang")
        ended: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put((call(), None))
            except Exception as error:  # raised again below, on the caller's thread
                ended.put((None, error))
            finally:
                self._slots.release()

        threading.Thread(target=work, name=self._name, daemon=True).start()
        try:
            answer, error = ended.get(timeout=seconds)
        except queue.Empty:
            abort()
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        if error is not None:
            raise error
        return cast(T, answer)
