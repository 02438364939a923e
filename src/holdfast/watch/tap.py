# SPDX-License-Identifier: Apache-2.0
"""What an agent goes through, for those who watch it live. Nobody is waited for: who is too slow
misses some of it, and is told how much."""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.model.errors import Conflict, HoldfastError, InvalidInput
from holdfast.model.guest_filter import Sign, Verdict
from holdfast.ports.guests import Event
from holdfast.ports.reports import Reports
from holdfast.watch.guest_record import Reading
from holdfast.watch.guests import Happening, Track

#: Of each who watches.
MOST_WAITING = 5_000
MOST_WATCHERS = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """What the filters say about a guest's trouble from now on."""

    uuid: str
    name: str
    sign: Sign
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sent:
    """One try to deliver a report; `why` it did not succeed."""

    body: Mapping[str, Any]
    outcome: str  # delivered, refused, waits
    why: str = ""


News = Event | Reading | Judged | Happening | Sent


class Watcher:
    def __init__(self, most: int) -> None:
        self._waiting: queue.Queue[News] = queue.Queue(most)
        self._lock = threading.Lock()
        self._missed = 0

    def put(self, news: Sequence[News]) -> None:
        for number, one in enumerate(news):
            try:
                self._waiting.put_nowait(one)
            except queue.Full:
                with self._lock:
                    self._missed += len(news) - number
                return

    def take(self, timeout_s: float) -> tuple[list[News], int]:
        """What has come, and how many after it were missed; nothing when the time is over."""
        found: list[News] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._waiting.get(timeout=timeout_s))
            while True:
                found.append(self._waiting.get_nowait())
        with self._lock:
            missed, self._missed = self._missed, 0
        return found, missed


class Tap:
    """Threads may share it."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._watchers: tuple[Watcher, ...] = ()

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watcher]:
        watcher = Watcher(self._most)
        with self._lock:
            if len(self._watchers) >= MOST_WATCHERS:
                raise Conflict(f"{MOST_WATCHERS} watch already: end one of them first")
            self._watchers = (*self._watchers, watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

    def tell(self, news: Sequence[News]) -> None:
        for watcher in self._watchers:
            watcher.put(news)


class TappedReports:
    """Reports on their way to Holdfast, and what became of each try."""

    def __init__(self, reports: Reports, tap: Tap) -> None:
        self._reports = reports
        self._tap = tap

    def report(self, body: Mapping[str, Any]) -> None:
        try:
            self._reports.report(body)
        except HoldfastError as error:
            outcome = "refused" if isinstance(error, InvalidInput) else "waits"
            self._tap.tell([Sent(body, outcome, error.message)])
            raise
        self._tap.tell([Sent(body, "delivered")])

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        self._reports.view(observer, body)


def judged(
    uuids: Iterable[str], before: Mapping[str, Track], after: Mapping[str, Track]
) -> Iterator[Judged]:
    """Troubles that are new, or of which the filters say something else."""
    for uuid in uuids:
        old, track = before.get(uuid), after.get(uuid)
        if track is None or old is track:
            continue
        for name, trouble in track.troubles.items():
            known = old.troubles.get(name) if old else None
            if known is None or (known.verdict, known.sign) != (trouble.verdict, trouble.sign):
                yield Judged(uuid, track.name, trouble.sign, trouble.verdict)
