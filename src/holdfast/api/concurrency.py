# SPDX-License-Identifier: Apache-2.0
"""Limits and caches for slow API work.

`ConcurrencyLimiter` bounds concurrent work, `FairShares` bounds requests and work of a project and
a user, `SingleFlight` shares a result between concurrent requests, `JsonCache` keeps rendered JSON.
They keep slow work from occupying every API thread.
"""

import contextlib
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.model.errors import TooMany, Unavailable
from holdfast.runtime.clock import Clock


class ConcurrencyLimiter:
    """Runs at most `most` pieces of slow work at once; `waiting` more wait up to `patience_s`.

    limiter = ConcurrencyLimiter(most=4, waiting=2, patience_s=2.0, why="try again")
    with limiter.turn("192.0.2.7"):     # Unavailable (503, Retry-After) if no slot becomes free
        check(password)
    stream = limiter.lent(pieces)       # the slot is free again when the stream ends

    Waiting requests occupy threads too, so their number is limited. One client address gets at
    most half of all places: a user with the right password can log in from another address however
    many passwords a stranger tries. A quarter of the places, and one slot, stay free for requests
    with a `known` key, so that strangers on many addresses do not keep known clients out. A key
    gets at most half of these places; a request beyond that waits like a stranger's. A suspect,
    a stranger whose last password was wrong, enters only while half of the strangers' places are
    free: a flood of passwords leaves room for the first login of a new client.
    """

    def __init__(self, most: int, waiting: int, patience_s: float, why: str) -> None:
        self._free = threading.BoundedSemaphore(most)
        self._places = most + waiting
        self._reserved = self._places // 4
        self._for_strangers = threading.BoundedSemaphore(max(1, most - 1))
        self._vouched: Counter[str] = Counter()
        self._patience_s = patience_s
        self._why = why
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(
        self, address: str = "", known: str | None = "", *, is_suspect: bool = False
    ) -> Iterator[None]:
        """Hold a slot; the slot counts against the limit of `address` unless `address` is empty.

        `known` is a key of the client or user that succeeded before, None for a stranger, empty if
        the work is not reserved for known clients.
        """
        give_back = self._take(address, known, is_suspect)
        try:
            yield
        finally:
            give_back()

    def lent(self, pieces: Iterator[bytes]) -> "Lent":
        return Lent(pieces, self._take("", "", is_suspect=False))

    def _take(self, address: str, known: str | None, is_suspect: bool) -> Callable[[], None]:
        until = time.monotonic() + self._patience_s
        with contextlib.ExitStack() as held:
            is_stranger = self._queue(held, address, known, is_suspect)
            slots = (self._for_strangers, self._free) if is_stranger else (self._free,)
            for slot in slots:
                if not slot.acquire(timeout=max(0.0, until - time.monotonic())):
                    raise Unavailable(self._why)
                held.callback(slot.release)
            return held.pop_all().close

    def _queue(
        self, held: contextlib.ExitStack, address: str, known: str | None, is_suspect: bool
    ) -> bool:
        """Take a place, which `held` gives back; return whether the place is a stranger's."""
        share = max(1, self._places // 2) if address else self._places
        with self._lock:
            most_vouched = max(1, self._reserved // 2)
            is_stranger = known is None or (known != "" and self._vouched[known] >= most_vouched)
            most = self._places - self._reserved if is_stranger else self._places
            if is_stranger and is_suspect:
                most = max(1, most // 2)
            if self._taken.total() >= most or self._taken[address] >= share:
                raise Unavailable(self._why)
            self._count(held, self._taken, address)
            if known and not is_stranger:
                self._count(held, self._vouched, known)
        return is_stranger

    def _count(self, held: contextlib.ExitStack, counter: Counter[str], key: str) -> None:
        counter[key] += 1
        held.callback(self._uncount, counter, key)

    def _uncount(self, counter: Counter[str], key: str) -> None:
        with self._lock:
            counter[key] -= 1
            if not counter[key]:
                del counter[key]


class Lent:
    """Byte stream with a slot of a ConcurrencyLimiter; releases the slot at end or on close().

    A generator with a `finally` would not do: a generator that was never started does not run the
    `finally` when it is closed.
    """

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


#: Seconds of its share that a project or user may use at once.
BURST_S: Final = 10.0
#: Part of a processor that requests of a project may use on average, each kind of request apart.
WORK: Final = 0.25
#: Projects and users that `FairShares` remembers; it drops the oldest first.
MOST_SHARES: Final = 10_000


class FairShares:
    """Bounds requests of a project and a user, by kind, on average and at once.

    with shares.turn("reads", "blue", "bob", per_s=100.0):  # TooMany (429) above the share
        answer()

    A project may send `per_s` requests per second and may use `WORK` of a processor: a request
    that takes more counts as several. At most three quarters of all threads answer a project at
    once. A user has half of the project's rate, and at most half of all threads.
    """

    def __init__(self, clock: Clock, threads: int) -> None:
        self._clock = clock
        self._most = {"project": max(1, threads * 3 // 4), "user": max(1, threads // 2)}
        #: Monotonic time until which each share is used up.
        self._used_until: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._running: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def turn(self, kind: str, project: str, user: str, per_s: float) -> Iterator[None]:
        """Count a request of this kind, and its processor time; TooMany above a share."""
        least = 1 / per_s
        costs = {(kind, "project", project): 1.0, (kind, "user", user): 2.0}
        self._begin(costs, least)
        before = time.thread_time()
        try:
            yield
        finally:
            more = (time.thread_time() - before) / WORK - least
            with self._lock:
                for key, factor in costs.items():
                    self._running[key[1:]] -= 1
                    if key in self._used_until:
                        self._used_until[key] += max(0.0, more) * factor
                self._running = +self._running  # without zeros

    def _begin(self, costs: Mapping[tuple[str, str, str], float], least: float) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for key in costs:
                wait_s = self._used_until.get(key, now) - now - BURST_S
                if wait_s > 0 or self._running[key[1:]] >= self._most[key[1]]:
                    raise TooMany(
                        f"too many {key[0]} of {key[1]} {key[2]}, see [api] {key[0]}_per_s",
                        wait_s=max(1, math.ceil(wait_s)),
                    )
            for key, factor in costs.items():
                self._used_until[key] = max(now, self._used_until.pop(key, now)) + least * factor
                self._running[key[1:]] += 1
            while len(self._used_until) > MOST_SHARES:
                self._used_until.popitem(last=False)


T = TypeVar("T")
#: Seconds for which a shared result is valid.
LASTS_S: Final = 1.0
MOST: Final = 16


class SingleFlight:
    """Computes a slow result once for all requests of the same second; others wait.

    shared.get(("tiles", marks), clock.monotonic(), lambda: all_tiles(request))

    The key contains everything that the result depends on, including the caller's permissions.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: `make` may get another shared result
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def get(self, key: Hashable, now: float, make: Callable[[], T]) -> T:
        """Return the result of the last second for `key`, or call `make`. `now` is monotonic."""
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


#: A row of the stamp query: the object's id first, then columns that change when any field that
#: the API shows of the object changes.
Stamp = tuple[Hashable, ...]
#: Takes stamps and returns the ids of objects that must be read in full.
Missing = Callable[[Sequence[Stamp]], Sequence[str]]
#: Reads the stamps, then reads the objects in full that the `Missing` argument names.
Look = Callable[[Missing], tuple[Sequence[Stamp], Mapping[str, T]]]


class JsonCache:
    """LRU cache of rendered JSON, keyed by stamps. There is a cache per object kind and format.

    >>> cache.texts(ledger.stamped, lambda lease: json.dumps(view(lease)).encode())

    Every request reads the stamps from the database. Only objects whose stamp is not in the cache
    are read in full and rendered. The cache needs no expiry and no invalidation: a stamp never
    comes back after its object changed, so an outdated text is never found.
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
        """Return the JSON texts of the objects that `look` reads, in the same order.

        The cache does not keep objects that are not `lasting`: their JSON changes while their
        stamp stays the same.
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
                if found is None:  # the object was deleted after its stamp was read
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
