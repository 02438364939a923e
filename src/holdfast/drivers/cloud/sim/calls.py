# SPDX-License-Identifier: Apache-2.0
"""How often each call came in: counted in memory, written with the next transaction.

A call that only looks needs no transaction that writes, so its count waits for one. All who opened
a file in this process share what waits, and so see each other's calls at once; other processes do
when it is written: by the next call that changes something, or the first look that comes later than
`AGE_S`. `kill -9` forgets what waits; no state of the world does.
"""

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

AGE_S = 0.2

_WRITE = (
    "INSERT INTO calls VALUES (?, ?)"
    " ON CONFLICT (name) DO UPDATE SET count = count + excluded.count"
)


class Calls:
    """Those on one file that are not written yet."""

    _known: ClassVar[dict[tuple[int, int], "Calls"]] = {}
    _lock = threading.Lock()

    def __init__(self, key: tuple[int, int] = (0, 0)) -> None:
        self._key = key
        self._new: Counter[str] = Counter()
        self._since = 0.0
        self._users = 0

    @classmethod
    def of(cls, path: str) -> "Calls":
        """Of a file that is there; another one at the same place later is another world."""
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        with cls._lock:
            calls = cls._known.setdefault(key, cls(key))
            calls._users += 1
            return calls

    def let_go(self) -> bool:
        """One user less; whether that was the last and something waits."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                del self._known[self._key]
            return self._users == 0 and bool(self._new)

    def add(self, some: Mapping[str, int]) -> None:
        with self._lock:
            if not self._new:
                self._since = time.monotonic()
            self._new.update(some)

    def take(self) -> Mapping[str, int]:
        """What waits; who cannot write it gives it back by `add`."""
        with self._lock:
            some, self._new = self._new, Counter()
            return some

    @staticmethod
    def write(db: sqlite3.Connection, some: Mapping[str, int]) -> None:
        if some:
            db.executemany(_WRITE, some.items())

    def are_old(self) -> bool:
        """Whether something has waited for so long that other processes should see it."""
        return bool(self._new) and time.monotonic() - self._since > AGE_S
