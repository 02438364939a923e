# SPDX-License-Identifier: Apache-2.0
"""Wrong passwords are slowed down: after a few for one user from one address the next ones wait,
twice as long each time. Who has the right one but comes from elsewhere does not notice.

    with guesses.attempt("alice", "192.0.2.7"):    # TooMany while it is too early
        check(password)                            # Unauthorized counts as a guess

Behind a proxy all come from its address: there a stranger can keep a user out, a minute at a time,
unless the user's password is remembered.
"""

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.model.errors import TooMany, Unauthorized
from holdfast.model.printable import printable
from holdfast.ports.clock import Clock

LOG = logging.getLogger(__name__)
#: So many cost nothing: people mistype.
FREE: Final = 5
#: So long the first one after these waits.
FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
#: After so long without one all is forgotten.
FORGOTTEN_S: Final = 900.0
#: Of so many users and addresses it is known; the oldest go first.
MOST: Final = 10_000

#: Of a user and an address, as long for every name: strangers choose names.
Key = bytes


@dataclass(frozen=True)
class _Wrong:
    count: int
    last: float

    @property
    def until(self) -> float:
        return self.last + min(LONGEST_S, FIRST_S * 2.0 ** min(self.count - FREE, 10))


class Guesses:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: dict[Key, _Wrong] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def attempt(self, user: str, address: str) -> Iterator[None]:
        """Counts as wrong from the start, so that many at once are no way round it."""
        key = hashlib.blake2b(
            f"{user}\n{address}".encode(errors="replace"), digest_size=16
        ).digest()
        before = self._begin(key)
        try:
            yield
        except Unauthorized:
            LOG.warning("wrong password for %s from %s", printable(user)[:64], address)
            raise
        except BaseException:
            self._put(key, before)  # nobody looked at the password
            raise
        self._put(key, None)

    def _begin(self, key: Key) -> _Wrong | None:
        now = self._clock.monotonic()
        with self._lock:
            before = self._wrong.pop(key, None)
            if before is not None and now - before.last > FORGOTTEN_S:
                before = None
            early = before is not None and before.count >= FREE and now < before.until
            count = before.count if before else 0
            self._wrong[key] = before if early and before else _Wrong(count + 1, now)
            self._tidy(now)
        if early and before is not None:
            wait_s = max(1, round(before.until - now))
            raise TooMany(f"too many wrong passwords: try again in {wait_s} s", wait_s=wait_s)
        return before

    def _tidy(self, now: float) -> None:
        """What nobody tried for long goes, and the oldest of too many: what is new is last."""
        while (first := next(iter(self._wrong), None)) is not None and (
            len(self._wrong) > MOST or now - self._wrong[first].last > FORGOTTEN_S
        ):
            del self._wrong[first]

    def _put(self, key: Key, known: _Wrong | None) -> None:
        with self._lock:
            self._wrong.pop(key, None)
            if known is not None:
                self._wrong[key] = known
