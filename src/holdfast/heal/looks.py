# SPDX-License-Identifier: Apache-2.0
"""Looks at the cloud that many moves share: sixty servers on their way off one host need one list
of its migrations, not sixty."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.host import same
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.cloud import Cloud, Migration

#: How old an answer may be that says that something is still under way: so much, or so many times
#: what it took to get, for a cloud that is busy is not helped by questions.
FRESH_S, RESTS = 0.4, 5.0
FORCED_S = 2.0
#: How long others may take to ask for us.
PATIENCE_S = 2.0
#: Nobody has asked yet.
NEVER: tuple[float, Any] = (float("-inf"), None)
#: Evacuations that have not ended.
UNDER_WAY = ("accepted", "running")


class Looks:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[float, Any]] = {}
        self._took: dict[str, float] = {}
        self._askers: dict[str, threading.Lock] = {}

    def last(self, cloud: Cloud, source: str, server_id: str, after: int) -> Migration | None:
        """The server's latest evacuation since the one of that number. Only an answer that says
        that it has not ended, or has succeeded, may be older than the question."""
        key, came = f"migrations/{source}", self._clock.monotonic()

        def ask() -> Sequence[Migration]:
            return cloud.moves.migrations(source_host=source)

        def is_enough(asked: float, answer: Sequence[Migration]) -> bool:
            if asked >= came:
                return True
            if asked < came - self._fresh_s(key):
                return False
            found = _latest(answer, server_id, after)
            return found is not None and found.status != "failed"

        return _latest(self._shared(key, is_enough, ask), server_id, after)

    def _fresh_s(self, key: str) -> float:
        return max(FRESH_S, RESTS * self._took.get(key, 0.0))

    def is_dead(self, cloud: Cloud, host: str) -> bool:
        """Forced down: that is said only of a host that is known to be off."""

        def ask() -> list[str]:
            return [one.host for one in cloud.services.list() if one.forced_down]

        since = self._clock.monotonic() - FORCED_S
        forced = self._shared("forced", lambda at, _: at >= since, ask)
        return any(same(host, one) for one in forced)

    def _shared(
        self, key: str, is_enough: Callable[[float, Any], bool], ask: Callable[[], Any]
    ) -> Any:
        """The last answer, if it and the time of its question are enough; else a new one. One
        thread asks for all that came meanwhile; a thread that waits too long for it asks itself."""
        if is_enough(*(known := self._answers.get(key, NEVER))):
            return known[1]
        with self._lock:
            asker = self._askers.setdefault(key, threading.Lock())
        alone = not asker.acquire(timeout=PATIENCE_S)
        try:
            if is_enough(*(known := self._answers.get(key, NEVER))):
                return known[1]
            asked = self._clock.monotonic()
            answer = ask()
            self._took[key] = self._clock.monotonic() - asked
            self._answers[key] = asked, answer
            return answer
        finally:
            if not alone:
                asker.release()


def _latest(found: Sequence[Migration], server_id: str, after: int) -> Migration | None:
    mine = (one for one in reversed(found) if one.server_id == server_id)
    return next((one for one in mine if number(one.id) > after), None)


def number(text: str) -> int:
    return int(text) if text.isdigit() else 0
