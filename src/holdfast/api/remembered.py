# SPDX-License-Identifier: Apache-2.0
"""What was found out about a secret, for a while.

memory.put(b"token", identity, lasts_s=60.0)
memory.get(b"token")        # None once that is over
"""

import hmac
import os
import threading
from typing import Generic, TypeVar

from holdfast.ports.clock import Clock

T = TypeVar("T")


class Memory(Generic[T]):
    """Who was let in by which secret, for a while. Secrets are not kept, only salted hashes."""

    MOST = 10_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._salt = os.urandom(16)
        self._found: dict[bytes, tuple[T, float]] = {}
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

    def _key(self, secret: bytes) -> bytes:
        return hmac.digest(self._salt, secret, "sha256")
