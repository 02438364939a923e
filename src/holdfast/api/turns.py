# SPDX-License-Identifier: Apache-2.0
"""Work that takes long is done by few at once, so that it never takes every thread of the API.

    turns = Turns(most=4, waiting=2, patience_s=2.0, why="many log in at once: try again")
    with turns.turn("192.0.2.7"):       # Unavailable (503, Retry-After) if none comes free in time
        check(password)
    stream = turns.lent(pieces)         # a turn that ends with what somebody reads

Those who wait take threads too: only so many do. One address has half of the places at most, so
that who has the right password comes in from elsewhere, however many a stranger tries.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from holdfast.model.errors import Unavailable


class Turns:
    def __init__(self, most: int, waiting: int, patience_s: float, why: str) -> None:
        self._free = threading.BoundedSemaphore(most)
        self._places = most + waiting
        self._patience_s = patience_s
        self._why = why
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self, address: str = "") -> Iterator[None]:
        """`address` is whose share it comes from; nobody's if empty."""
        give_back = self._take(address)
        try:
            yield
        finally:
            give_back()

    def lent(self, pieces: Iterator[bytes]) -> "Lent":
        return Lent(pieces, self._take(""))

    def _take(self, address: str) -> Callable[[], None]:
        self._queue(address)
        if not self._free.acquire(timeout=self._patience_s):
            self._leave(address)
            raise Unavailable(self._why)

        def give_back() -> None:
            self._free.release()
            self._leave(address)

        return give_back

    def _queue(self, address: str) -> None:
        share = max(1, self._places // 2) if address else self._places
        with self._lock:
            if self._taken.total() >= self._places or self._taken[address] >= share:
                raise Unavailable(self._why)
            self._taken[address] += 1

    def _leave(self, address: str) -> None:
        with self._lock:
            self._taken[address] -= 1
            if not self._taken[address]:
                del self._taken[address]


class Lent:
    """Gives its turn back when it ends, also before it began: a generator that nobody started
    does nothing at its end."""

    def __init__(self, pieces: Iterator[bytes], give_back: Callable[[], None]) -> None:
        self._pieces = pieces
        self._give_back: Callable[[], None] | None = give_back

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()
