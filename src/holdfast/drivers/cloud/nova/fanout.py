# SPDX-License-Identifier: Apache-2.0
"""Telling the scheduler: many callers, few messages.

A nova-scheduler learns of an aggregate's change by one message, which holds the members as the API
read them *before* the change plus that change. Two changes at once each miss the other, and the
later message wins: in the scheduler's memory a member is gone, until it restarts. So whoever
changed something has the aggregate told again, as it is now, and those who come together share it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class _Round:
    users: int = 0
    begun: int = 0
    done: int = 0
    running: bool = False
    turn: threading.Condition = field(default_factory=threading.Condition)


class Fanout:
    """Per subject: after `tell` returns, a telling that began after it was called has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}

    def tell(self, subject: str, telling: Callable[[], None], patience_s: float) -> bool:
        """Run `telling`, or let somebody else's run do; False if there was no time for either."""
        with self._round(subject) as shared:
            with shared.turn:
                mine = shared.begun + 1  # one that runs already may have read before our change

                def ready() -> bool:
                    return shared.done >= mine or not shared.running

                if not shared.turn.wait_for(ready, max(0.0, patience_s)):
                    return False
                if shared.done >= mine:
                    return True
                shared.running = True
                shared.begun += 1
                number = shared.begun
            told = False
            try:
                telling()
                told = True
            finally:
                with shared.turn:
                    shared.running = False
                    if told:
                        shared.done = number
                    shared.turn.notify_all()
            return True

    @contextlib.contextmanager
    def _round(self, subject: str) -> Iterator[_Round]:
        with self._lock:
            shared = self._rounds.setdefault(subject, _Round())
            shared.users += 1
        try:
            yield shared
        finally:
            with self._lock:
                shared.users -= 1
                if not shared.users:
                    del self._rounds[subject]
