# SPDX-License-Identifier: Apache-2.0
"""Threads that loop, wake and stop, and calls that may hang, each with a deadline."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from holdfast.model.errors import HoldfastError
from holdfast.runtime.clock import Clock

# Looping threads: `Worker` repeats a turn, `PeriodicTask` runs at an interval.
#
#     PeriodicTask("heartbeats", 10.0, poll, clock).start()


LOG = logging.getLogger(__name__)
#: A thread that is late by more seconds than this hangs.
HUNG_S = 120.0
_pulses: "weakref.WeakSet[Pulse]" = weakref.WeakSet()
_pulses_lock = threading.Lock()
#: Seconds that a worker without a next time waits for `wake`.
_IDLE_S = 3600.0


class Pulse:
    """Progress of a thread that the program cannot do without.

    The thread calls `beat` in each turn of its loop; `hung` names the threads that are late.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._due: float | None = None
        with _pulses_lock:
            _pulses.add(self)

    def beat(self, pause_s: float = 0.0) -> None:
        """Record that the thread runs, and that its next beat comes within `pause_s` seconds."""
        self._due = time.monotonic() + pause_s

    def rest(self) -> None:
        """Record that the thread has ended."""
        self._due = None

    @property
    def late_s(self) -> float:
        due = self._due
        return 0.0 if due is None else time.monotonic() - due


def hung() -> str:
    """Name the threads of this process that are late by more than HUNG_S seconds; "" if none."""
    with _pulses_lock:
        late = [(pulse.name, pulse.late_s) for pulse in _pulses if pulse.late_s > HUNG_S]
    return ", ".join(sorted(f"thread {name} hangs for {late_s:.0f} s" for name, late_s in late))


class Worker:
    """A thread that repeats `turn` until `stop`.

    `turn` returns the seconds until the next turn, or None to wait for `wake`. After a turn that
    raised, the next one comes after `retry_s`; this pause doubles up to `longest_retry_s` while
    turns fail. The worker logs an expected error once until a turn succeeds, and any other error
    with its traceback. With `failed` the worker calls `failed` for every error, which then logs the
    expected ones. Setting `wake_event` wakes the worker. If an essential worker hangs in a turn,
    `hung` names it; a turn that may take longer than HUNG_S calls `beat`.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        turn: Callable[[], float | None] | None = None,
        *,
        retry_s: float = 1.0,
        longest_retry_s: float = 0.0,
        expected: tuple[type[Exception], ...] = (HoldfastError,),
        failed: Callable[[Exception], None] | None = None,
        stop_s: float | None = 15.0,
        wake_event: threading.Event | None = None,
    ) -> None:
        self._name = name
        self._pulse: Pulse | None = None
        self._clock = clock
        self._repeated = turn
        self._retry_s = retry_s
        self._longest_retry_s = max(retry_s, longest_retry_s)
        self._expected = expected
        self._failed = failed
        self._stop_s = stop_s
        self._failures = 0
        self._wake_event = wake_event or threading.Event()
        self._stop = threading.Event()
        self._turned = clock.monotonic()
        self._thread = threading.Thread(target=self._forever, name=name, daemon=True)

    @property
    def stopping(self) -> threading.Event:
        """The event that `stop` sets; a long turn watches it."""
        return self._stop

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def age_s(self) -> float:
        """Return the seconds since the last turn ended."""
        return self._clock.monotonic() - self._turned

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def make_essential(self) -> None:
        """Let `hung` name this worker when it hangs; before the start."""
        self._pulse = Pulse(self._name)

    def beat(self, pause_s: float = 0.0) -> None:
        """Record progress: the thread runs, and goes on within `pause_s` seconds."""
        if self._pulse is not None:
            self._pulse.beat(pause_s)

    def stop(self) -> None:
        """End the loop; wait at most `stop_s` for the turn under way, None: until it ends."""
        self._stop.set()
        self._wake_event.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_s)
        if self._pulse is not None:
            self._pulse.rest()

    def wake(self) -> None:
        """Start the next turn at once."""
        self._wake_event.set()

    def _forever(self) -> None:
        pause_s = self._delay()
        while not self._stop.is_set():
            if pause_s > 0:
                self.beat(pause_s)
                self._clock.wait(self._wake_event, pause_s)
            self._wake_event.clear()
            if not self._stop.is_set():
                self.beat()
                pause_s = self._try_turn()
                self._turned = self._clock.monotonic()

    def _try_turn(self) -> float:
        """Run a turn; return the seconds until the next one."""
        try:
            pause_s = self._turn()
        except Exception as error:  # the top of the thread: the loop must go on
            self._failures += 1
            self._complain(error)
            return self._retry()
        if self._failures and self._failed is None:
            LOG.info("%s: all is well again", self._name)
        self._failures = 0
        return _IDLE_S if pause_s is None else pause_s

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, self._expected):
            LOG.error("%s: unforeseen", self._name, exc_info=error)
        elif self._failed is None and self._failures == 1:
            text = error.message if isinstance(error, HoldfastError) else str(error)
            LOG.error("%s: %s; it is tried again", self._name, text)
        if self._failed is not None:
            self._failed(error)

    def _turn(self) -> float | None:
        if self._repeated is None:
            raise NotImplementedError
        return self._repeated()

    def _delay(self) -> float:
        """Return the seconds until the first turn."""
        return 0.0

    def _retry(self) -> float:
        """Return the seconds until the next turn after a failed one."""
        return min(self._retry_s * 2.0 ** min(self._failures - 1, 16), self._longest_retry_s)


class PeriodicTask(Worker):
    """Calls `run` every `interval_s` seconds and at each wake, the first time after a wait.

    `interval_s` may be a function: the task calls it before each wait, so the interval can change.
    """

    def __init__(
        self,
        name: str,
        interval_s: float | Callable[[], float],
        run: Callable[[], None],
        clock: Clock,
        *,
        expected: tuple[type[Exception], ...] = (HoldfastError,),
        stop_s: float = 15.0,
    ) -> None:
        super().__init__(name, clock, expected=expected, stop_s=stop_s)
        self._every_s = interval_s
        self._run = run

    def _turn(self) -> float:
        self._run()
        return self._delay()

    def _delay(self) -> float:
        return self._every_s() if callable(self._every_s) else self._every_s

    def _retry(self) -> float:
        return self._delay()


T = TypeVar("T")


def start_call(name: str, call: Callable[[], T]) -> Future[T]:
    """Run the call on a daemon thread; the future has the result or the error."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:  # the top of the thread: the future carries the error
            made.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return made


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

        def work() -> T:
            try:
                return call()
            finally:
                self._slots.release()

        made = start_call(self._name, work)
        if not wait([made], seconds).done:
            abort()
            raise TimeoutError(f"no answer within {seconds:g} s")
        return made.result()
