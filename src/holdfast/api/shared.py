# SPDX-License-Identifier: Apache-2.0
"""What takes long to work out and is the same for several people who ask in the same second: one
works it out, the others wait for it. The key says all that it depends on, also what they may see.

    shared.get(("tiles", marks), clock.monotonic(), lambda: all_tiles(ask))
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")
#: Seconds for which something is the same; what differs has another key before that.
LASTS_S: Final = 1.0
MOST: Final = 16


class Shared:
    def __init__(self) -> None:
        self._lock = threading.RLock()  # what is worked out may need something else that is shared
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def get(self, key: Hashable, now: float, make: Callable[[], T]) -> T:
        """What somebody made within the last second, or makes now. `now` is monotonic."""
        with self._lock:
            self._forget(now)
            if key in self._known:
                found: T = self._known[key][1]
                return found
            made = make()
            self._known[key] = now, made
            while len(self._known) > MOST:
                self._known.popitem(last=False)
            return made

    def _forget(self, now: float) -> None:
        for key in [one for one, (at, _) in self._known.items() if now - at >= LASTS_S]:
            del self._known[key]
