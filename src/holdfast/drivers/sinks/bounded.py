# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang in somebody else's code, on threads of their own: we wait so long, no longer.

What hangs goes on hanging there; at most so many at once, after which calls fail at once.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


class Bounded:
    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._slots = threading.BoundedSemaphore(most)

    def run(
        self, seconds: float, call: Callable[[], T], abort: Callable[[], None] = lambda: None
    ) -> T:
        """What the call returns or raises; TimeoutError, after `abort`, when it takes too long."""
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
