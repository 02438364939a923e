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
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.model.errors import Unavailable


class ConcurrencyLimiter:
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


# What takes long to work out and is the same for several people who ask in the same second: one
# works it out, the others wait for it. The key says all that it depends on, also what they may
# see.
#
#     shared.get(("tiles", marks), clock.monotonic(), lambda: all_tiles(ask))


T = TypeVar("T")
#: Seconds for which something is the same; what differs has another key before that.
LASTS_S: Final = 1.0
MOST: Final = 16


class SingleFlight:
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


# JSON that was written once and is right for as long as its stamp is.
#
# A stamp is what the database says of an object at the moment of asking: its id first, then
# whatever
# changes when anything that is shown of it does. Every answer asks for the stamps; only the
# objects
# whose stamp has no text yet are read in full and written. Nothing here goes by time and nobody
# has
# to be told of a change: an old text is never found again, because its stamp never comes back.


#: An object's id, and more: a row of the stamps' query.
Stamp = tuple[Hashable, ...]
#: Says of stamps which ids must be read in full.
Missing = Callable[[Sequence[Stamp]], Sequence[str]]
#: Reads the stamps, then those in full that the argument names.
Look = Callable[[Missing], tuple[Sequence[Stamp], Mapping[str, T]]]


class JsonCache:
    """At most `most` texts, those used last. One of these per kind of object and way to write it.

    >>> rendered.texts(ledger.stamped, lambda lease: json.dumps(view(lease)).encode())
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._texts: OrderedDict[Stamp, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def texts(
        self,
        look: Look[T],
        write: Callable[[T], bytes],
        lasting: Callable[[T], bool] = lambda _: True,
    ) -> list[bytes]:
        """What `look` finds, written, in its order. Not kept is what is not `lasting`: it would
        change without its stamp.
        """
        known: dict[Stamp, bytes] = {}

        def missing(stamps: Sequence[Stamp]) -> list[str]:
            known.update(self._known(stamps))
            return [str(stamp[0]) for stamp in stamps if stamp not in known]

        stamps, read = look(missing)
        fresh: dict[Stamp, bytes] = {}
        texts = []
        for stamp in stamps:
            text = known.get(stamp)
            if text is None:
                found = read.get(str(stamp[0]))
                if found is None:  # gone since its stamp was read
                    continue
                text = write(found)
                if lasting(found):
                    fresh[stamp] = text
            texts.append(text)
        if fresh:
            self._keep(fresh)
        return texts

    def _known(self, stamps: Sequence[Stamp]) -> dict[Stamp, bytes]:
        with self._lock:
            known = {stamp: self._texts[stamp] for stamp in stamps if stamp in self._texts}
            for stamp in known:
                self._texts.move_to_end(stamp)
        return known

    def _keep(self, fresh: Mapping[Stamp, bytes]) -> None:
        with self._lock:
            self._texts.update(fresh)
            while len(self._texts) > self._most:
                self._texts.popitem(last=False)
