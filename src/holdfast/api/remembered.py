# SPDX-License-Identifier: Apache-2.0
"""What was found out about a secret, for a while.

memory.put(b"token", identity, lasts_s=60.0)
memory.get(b"token")        # None once that is over
memory.once(b"password", 60.0, check)    # what is known, or found out by one of those who ask
"""

import hmac
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from holdfast.model.errors import TooMany, Unavailable
from holdfast.ports.clock import Clock

T = TypeVar("T")
#: In the last part of its time what is known is found out again: by one; others go on with it.
SOON: Final = 0.25
#: So long others wait for the one who finds it out.
PATIENCE_S: Final = 5.0


class Memory(Generic[T]):
    """Who was let in by which secret, for a while. Secrets are not kept, only salted hashes."""

    MOST = 10_000

    def __init__(self, clock: Clock, most_waiting: int = 8) -> None:
        """So many at most wait for what somebody else finds out: they take threads."""
        self._clock = clock
        self._salt = os.urandom(16)
        self._found: dict[bytes, tuple[T, float]] = {}
        self._going: dict[bytes, Future[T]] = {}
        self._room = threading.BoundedSemaphore(most_waiting)
        self._lock = threading.Lock()

    def get(self, secret: bytes) -> T | None:
        found = self._found.get(self._key(secret))
        return found[0] if found and found[1] > self._clock.monotonic() else None

    def put(self, secret: bytes, value: T, lasts_s: float) -> None:
        if lasts_s <= 0:
            return
        key, now = self._key(secret), self._clock.monotonic()
        with self._lock:
            self._found.pop(key, None)  # what is new goes to the end
            self._found[key] = (value, now + lasts_s)
            while (first := next(iter(self._found))) != key and (
                len(self._found) > self.MOST or self._found[first][1] <= now
            ):
                del self._found[first]

    def once(self, secret: bytes, lasts_s: float, find: Callable[[], T]) -> T:
        """One client may have many requests under way: each is let in by what is found out once."""
        key, now = self._key(secret), self._clock.monotonic()
        with self._lock:
            found, going = self._found.get(key), self._going.get(key)
            left_s = found[1] - now if found else 0.0
            if found and left_s > 0 and (going or left_s > lasts_s * SOON):
                return found[0]
            if going is None:
                mine = self._going[key] = Future[T]()
        return self._follow(going) if going else self._lead(secret, lasts_s, find, mine)

    def _follow(self, going: "Future[T]") -> T:
        if not self._room.acquire(blocking=False):
            raise Unavailable("many log in at once: try again")
        try:
            return going.result(PATIENCE_S)
        except TimeoutError:
            raise Unavailable("it takes long to look at passwords: try again") from None
        finally:
            self._room.release()

    def _lead(self, secret: bytes, lasts_s: float, find: Callable[[], T], mine: "Future[T]") -> T:
        try:
            made = self._found_out(secret, lasts_s, find)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(made)
            return made
        finally:
            with self._lock:
                del self._going[self._key(secret)]

    def _found_out(self, secret: bytes, lasts_s: float, find: Callable[[], T]) -> T:
        try:
            made = find()
        except (TooMany, Unavailable):
            if (known := self.get(secret)) is None:
                raise
            return known  # it is not over yet: whoever comes next tries again
        self.put(secret, made, lasts_s)
        return made

    def _key(self, secret: bytes) -> bytes:
        return hmac.digest(self._salt, secret, "sha256")
