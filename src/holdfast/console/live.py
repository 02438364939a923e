# SPDX-License-Identifier: Apache-2.0
"""Change notices for open pages, by an event stream or by polling.

A single thread polls the change marks of all topics (`db/views`) once per second, as long as a
page listens or has polled lately. A notice holds only names of topics, never data: the page
requests its contents again, with the rights of its own user.

The event id is made of the marks themselves. So every process understands the ids of all other
processes, and a page that reconnects learns of changes in between. `Memory`, at the end, sends
an open page only the changed pieces.

    feed = Feed(store.changes.marks, clock, streams=16)
    feed.stream(since)      # bytes of an event stream; Unavailable if all streams are taken
    feed.since("1f0a…")     # ("1f0b…", ["hosts", "leases"]): for a page that polls
"""

import contextlib
import hashlib
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from holdfast.api.concurrency import Lent
from holdfast.api.login import SESSION
from holdfast.api.request import Request, Response
from holdfast.console.pages import HEADERS, STREAM
from holdfast.model.errors import Unavailable
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import PeriodicTask

EVERY_S: Final = 1.0
#: A stream ends after this time and the browser reconnects; the API then checks rights again.
LASTS_S: Final = 300.0
#: The interval of keep-alive comments, by which the API detects a closed connection.
KEEPALIVE_S: Final = 3.0
#: The thread rests after this time without a listening or polling page.
REST_S: Final = 30.0
#: A resting thread sleeps this long, or until a page listens or polls.
ASLEEP_S: Final = 3600.0
#: The most streams per user. A browser opens six connections and needs some for pages.
MOST_PER_USER: Final = 4
#: The number of hexadecimal digits per topic in an id.
DIGITS: Final = 8
#: The id before the first poll. A page with this id gets all topics as changed.
NO_ID: Final = "-"

ReadMarks = Callable[[], Mapping[str, str]]


class Feed:
    """The change feed that all pages of this process share."""

    def __init__(self, read_marks: ReadMarks, clock: Clock, streams: int) -> None:
        self._read_marks = read_marks
        self._clock = clock
        self._streams = streams
        self._slots: set[_Slot] = set()
        self._lock = threading.Condition()
        self._topics: Sequence[str] = ()
        self._at = NO_ID
        self._poll_until = 0.0
        self._is_polling = False
        self._poller = PeriodicTask("console", self._pause_s, self._turn, clock, stop_s=0.0)

    def stop(self) -> None:
        """End every stream."""
        self._poller.stop()
        with self._lock:
            self._lock.notify_all()

    # Polling

    def since(self, last_id: str) -> tuple[str, Sequence[str]]:
        """Return the current id, and the topics that changed since `last_id`.

        Returns "*" for all topics if `last_id` is not a valid id.
        """
        self._keep_polling()
        with self._lock:
            return self._at, self._after(last_id)

    def _after(self, last_id: str) -> Sequence[str]:
        if last_id == "" or self._at == NO_ID:
            return []
        if len(last_id) != len(self._at) or not set(last_id) <= set(string.hexdigits):
            return ["*"]
        pairs = zip(self._topics, _cut(last_id), _cut(self._at), strict=True)
        return [topic for topic, old, new in pairs if old != new]

    # Event streams

    def stream(
        self,
        last_id: str,
        user: str = "",
        tab: str = "",
        is_session_open: Callable[[], bool] = lambda: True,
    ) -> Lent:
        """Open an event stream, which ends within seconds after the session.

        A new page in a browser tab takes over the stream slot of the tab's previous page. A
        user gets at most half of the slots, and at most MOST_PER_USER. Raises Unavailable if no
        slot is free.
        """
        slot = _Slot(user, tab)
        with self._lock:
            if self._poller.stopping.is_set():
                raise Unavailable("the API process stops")
            replaced = [s for s in self._slots if tab and (s.user, s.tab) == (user, tab)]
            self._slots -= set(replaced)
            own = sum(s.user == user for s in self._slots)
            if len(self._slots) >= self._streams or own >= most_per_user(self._streams):
                raise Unavailable("all event streams are in use: poll /console/changes instead")
            self._slots.add(slot)
            self._lock.notify_all()
        events = self._events(last_id, slot, is_session_open)
        return Lent(events, lambda: self._release(slot))

    def _release(self, slot: "_Slot") -> None:
        with self._lock:
            self._slots.discard(slot)

    def _events(
        self, last_id: str, slot: "_Slot", is_session_open: Callable[[], bool]
    ) -> Iterator[bytes]:
        ends = self._clock.monotonic() + LASTS_S
        yield b"retry: 3000\n\n"
        at, topics = self.since(last_id)
        yield _event(at, topics)
        while self._clock.monotonic() < ends:
            new, topics = self._wait(at, slot)
            if self._poller.stopping.is_set() or not is_session_open():
                return
            if slot not in self._slots:
                yield b"event: moved\ndata: \n\n"  # another page with the same tab id took the slot
                return
            if new != at:
                at = new
                yield _event(at, topics)
            else:
                yield b": still here\n\n"

    def _wait(self, last_id: str, slot: "_Slot") -> tuple[str, Sequence[str]]:
        def is_due() -> bool:
            gone = slot not in self._slots or self._poller.stopping.is_set()
            return gone or self._at != last_id

        self._keep_polling()
        with self._lock:
            self._lock.wait_for(is_due, KEEPALIVE_S)
            return self._at, self._after(last_id)

    # The polling thread

    def _keep_polling(self) -> None:
        with self._lock:
            self._poll_until = self._clock.monotonic() + REST_S
            if self._is_polling or self._poller.stopping.is_set():
                return
            self._is_polling = True
        with contextlib.suppress(Exception):  # the poller meets the same error, and logs it
            self._poll()  # at once, so no later change is missed
        if self._poller.alive:
            self._poller.wake()
        else:
            self._poller.start()

    def _pause_s(self) -> float:
        return EVERY_S if self._is_polling else ASLEEP_S

    def _turn(self) -> None:
        with self._lock:
            self._is_polling = self._clock.monotonic() <= self._poll_until
        if self._is_polling:
            self._poll()

    def _poll(self) -> None:
        marks = self._read_marks()
        topics = sorted(marks)
        at = "".join(_digits(topic, marks[topic]) for topic in topics)
        with self._lock:
            self._topics, self._at = topics, at
            self._lock.notify_all()


@dataclass(frozen=True, eq=False)
class _Slot:
    """The slot of a stream, compared by identity."""

    user: str
    tab: str


def most_per_user(streams: int) -> int:
    """Return the most streams per user, given the total."""
    return max(1, min(MOST_PER_USER, streams // 2))


def _event(at: str, topics: Sequence[str]) -> bytes:
    return f"id: {at}\nevent: change\ndata: {' '.join(topics)}\n\n".encode()


def _digits(topic: str, mark: str) -> str:
    text = f"{topic} {mark}".encode()
    return hashlib.blake2b(text, digest_size=DIGITS // 2).hexdigest()


def _cut(feed_id: str) -> Sequence[str]:
    return [feed_id[at : at + DIGITS] for at in range(0, len(feed_id), DIGITS)]


# Handlers of /console/live and /console/changes


def live(request: Request) -> Response:
    """Open an event stream; 503 when all are taken, and the page polls instead."""
    feed: Feed = request.services.feed
    tab = request.query.get("tab", "")
    since = request.last_event_id or request.query.get("since", "")
    stream = feed.stream(since, request.caller.user_id, tab[:64], lambda: _is_session_open(request))
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return Response(headers=headers, content_type=STREAM, stream=stream)


def _is_session_open(request: Request) -> bool:
    try:
        return bool(request.services.login.is_open(request.cookies.get(SESSION, "")))
    except Unavailable:  # the database is away: the session is checked again in a few seconds
        return True


def index(request: Request) -> Response:
    at, topics = request.services.feed.since(request.query.get("since", ""))
    return Response({"at": at, "topics": topics}, headers=HEADERS)


# Differences between renderings: of thousands of pieces the API sends only the changed pieces.
#
# A rendering has pieces, each with an id, and ordered lists of ids. The version is a hash of
# the contents. A page sends the version it shows and gets the differences.
#
#     memory.keep(new)
#     memory.difference("a1b2…", new)    # everything if this process does not remember a1b2…


#: The number of remembered renderings; a rendering of a thousand tiles takes about 100 kB.
REMEMBERED: Final = 64


@dataclass(frozen=True)
class Rendering:
    """The pieces of a page by id, and the order of the ids in each list."""

    lists: Mapping[str, Sequence[str]]
    pieces: Mapping[str, str]

    @cached_property
    def marks(self) -> Mapping[str, bytes]:
        return {name: _mark(text) for name, text in self.pieces.items()}

    @cached_property
    def version(self) -> str:
        whole = hashlib.blake2b(repr(sorted(self.lists.items())).encode(), digest_size=16)
        for name, mark in self.marks.items():
            whole.update(name.encode() + mark)
        return whole.hexdigest()


def _mark(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class Memory:
    """The hashes of the latest renderings, by version."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Mapping[str, Sequence[str]], Mapping[str, bytes]]]
        self._known = OrderedDict()

    def keep(self, rendering: Rendering) -> None:
        with self._lock:
            self._known[rendering.version] = rendering.lists, rendering.marks
            self._known.move_to_end(rendering.version)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def difference(self, version: str, new: Rendering) -> dict[str, Any]:
        """Return the changes for a page with the rendering `version`.

        A version from another process is known here only if it equals the new rendering.
        """
        with self._lock:
            lists, marks = self._known.get(version, ({}, {}))
        self.keep(new)
        if version == new.version:
            lists, marks = new.lists, new.marks
        return {
            "version": new.version,
            "lists": {name: list(ids) for name, ids in new.lists.items() if lists.get(name) != ids},
            "pieces": {
                name: text
                for name, text in new.pieces.items()
                if marks.get(name) != new.marks[name]
            },
        }
