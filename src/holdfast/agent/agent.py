# SPDX-License-Identifier: Apache-2.0
"""The agent of one host: what its guests and its own services go through, told through the spool.

The driver's thread only hands over what it hears. One thread of ours takes all that has come, asks
`GuestWatch` what it means, and writes what is to be told to disk together with what has to be
remembered: killed at any moment, the next one goes on from there.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.agent import guest_store
from holdfast.agent.expected import Comparison
from holdfast.agent.guest_filters import Filter, FilterFile, Symptom, Tally, Verdict
from holdfast.agent.guest_state import FAILED, WELL, GuestEvent, GuestWatch, Track
from holdfast.agent.guest_store import Again, Reading
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput
from holdfast.ports.guests import LIFECYCLE, Event, Guest, Guests
from holdfast.ports.reports import Reports
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import PeriodicTask

# What an agent goes through, for those who watch it live. Nobody is waited for: who is too slow
# misses some of it, and is told how much.


#: Of each who watches.
MOST_WATCHED = 5_000
MOST_WATCHERS = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """What the filters say about a guest's trouble from now on."""

    uuid: str
    name: str
    sign: Symptom
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sent:
    """One try to deliver a report; `why` it did not succeed."""

    body: Mapping[str, Any]
    outcome: str  # delivered, refused, waits
    why: str = ""


News = Event | Reading | Judged | GuestEvent | Sent


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

    def next_event(self, timeout_s: float) -> tuple[list[News], int]:
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

    def __init__(self, most: int = MOST_WATCHED) -> None:
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

    def publish(self, news: Sequence[News]) -> None:
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
            self._tap.publish([Sent(body, outcome, error.message)])
            raise
        self._tap.publish([Sent(body, "delivered")])

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


LOG = logging.getLogger(__name__)

#: Kinds of our reports, and the notes under which we remember.
GUEST, PROCESS, MEMORY, SERVICES = "guest", "process", "guests", "services"
#: What waits to be looked at; whoever hears more has to wait, and so does libvirt.
MOST_WAITING = 20_000
#: So many at a time are judged and written.
BATCH = 500
TICK_S = 1.0
#: It comes round every second; this long without is said.
ASLEEP_S = 15.0


Record = Event | Reading | Comparison


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """A record, and when it was heard or begun to be read, by the clock that does not jump: of two
    about one guest that says which is the newer one."""

    record: Record
    when: float


def observer(host: str) -> str:
    """In whose name its agent reports."""
    return f"agent@{host}"


class Settings(Protocol):
    """[agent]."""

    services_every_s: float


@dataclass(frozen=True)
class View:
    """What the agent knows, as it was last written down."""

    host: str
    tracks: Mapping[str, Track]
    filters: Filter
    deaf: str  # why nothing is heard
    stuck: str  # why what is heard is not judged
    waiting: int  # to be judged
    problem: str  # with the filter file, which is therefore not in force
    was_read: bool = True  # whether all guests were read since the agent was started


class HostAgent:
    """`ports.guests.Listener`, and the thread behind it."""

    def __init__(
        self,
        host: str,
        guests: Guests,
        services: ProcessWatch,
        filters: FilterFile,
        spool: Outbox,
        settings: Settings,
        clock: Clock,
        *,
        spooled: Callable[[], None],
        tap: Tap | None = None,
    ) -> None:
        self.host = host
        self._guests = guests
        self._services = services
        self._filters = filters
        self._spool = spool
        self._settings = settings
        self._clock = clock
        self._spooled = spooled
        self._waiting: queue.Queue[QueuedEvent] = queue.Queue(MOST_WAITING)
        self._stop = threading.Event()
        self._tap = tap or Tap()
        self._watch = self._remembered()
        self._again = Again(self._watch)
        self._seen: Mapping[str, Track] = dict(self._watch.tracks)
        self._counted: Mapping[str, Tally] = {}  # of guests that were gone then
        self._turned = clock.monotonic()
        self._stuck = ""
        self._was_read = False
        #: Called when a guest was removed: its cloud may not know.
        self.removed: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._forever, name="agent", daemon=True)
        self._rounds = PeriodicTask("services", settings.services_every_s, self.maintain, clock)
        self._services_said: Mapping[str, Any] = {}  # what is remembered of them on disk

    @property
    def observer(self) -> str:
        return observer(self.host)

    def start(self) -> None:
        self._thread.start()
        self._rounds.start()
        self._guests.start(self)

    def stop(self) -> None:
        self._guests.close()
        self._stop.set()
        self._rounds.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    # what the driver calls

    def heard(self, event: Event) -> None:
        self._waiting.put(QueuedEvent(event, self._when(event.at)))

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        self._waiting.put(QueuedEvent(Reading(tuple(guests), at), self._when(at)))

    def polled(self, comparison: Comparison) -> None:
        """What should run here was asked, and what does was read."""
        look = comparison.look
        if look is not None:
            self._waiting.put(QueuedEvent(Reading(look.guests, look.read_at), look.began))
        self._waiting.put(QueuedEvent(comparison, self._clock.monotonic()))

    def _when(self, at: datetime) -> float:
        """A date of just now, by our own time, before anybody can set the clock."""
        ago_s = (self._clock.now() - at).total_seconds()
        return self._clock.monotonic() - max(0.0, ago_s)

    # the thread

    def _forever(self) -> None:
        kept: list[QueuedEvent] = []
        while not self._stop.is_set():
            kept = self._come_round(kept or self._next())

    def _come_round(self, taken: list[QueuedEvent]) -> list[QueuedEvent]:
        """Judge these; what is to be judged next, if it did not go well."""
        try:
            self._turn(taken)
        except HoldfastError as error:  # the disk: nothing is forgotten, it is tried again
            self._stuck = f"what is heard cannot be written down: {error.message}"
            LOG.error("%s; it is tried again", error.message)
            self._begin_again()
            return taken
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("agent: unforeseen; what was heard is left aside, and all read anew")
            self._begin_again()
            return self._read()
        self._stuck = ""
        return []

    def _read(self) -> list[QueuedEvent]:
        """All guests, in place of what could not be judged; nothing if they cannot be read, for
        then they will be once the hypervisor is found again."""
        began = self._clock.monotonic()
        try:
            guests, at = self._guests.read()
        except HoldfastError as error:
            LOG.error("%s", error.message)
            return []
        return [QueuedEvent(Reading(tuple(guests), at), began)]

    def _begin_again(self) -> None:
        """From what was written down last, as soon as that can be read: what was judged since is
        not told, and not to be taken for told."""
        while not self._clock.wait(self._stop, TICK_S):
            try:
                self._watch = self._remembered(self._seen, self._counted)
                self._again.begin_again()
                return
            except HoldfastError as error:
                LOG.error("%s; it is tried again", error.message)

    def _next(self) -> list[QueuedEvent]:
        """What has come, or nothing when it is time to look at the clock."""
        found: list[QueuedEvent] = []
        try:
            found.append(self._waiting.get(timeout=self._pause()))
            while len(found) < BATCH:
                found.append(self._waiting.get_nowait())
        except queue.Empty:
            return found
        return found

    def _pause(self) -> float:
        due = self._watch.due()
        return TICK_S if due is None else max(0.0, min(TICK_S, due - self._clock.monotonic()))

    def turn(self, records: Sequence[Record]) -> None:
        """These have come just now."""
        now = self._clock.monotonic()
        self._turn([QueuedEvent(record, now) for record in records])

    def _turn(self, taken: Sequence[QueuedEvent]) -> None:
        """Judge these, and what time alone has made true; write it down."""
        now = self._clock.monotonic()
        if self._filters.follow():
            self._watch.use(self._filters.filters, now)
        told: list[GuestEvent] = []
        news: list[News] = []  # for those who watch
        for one in taken:
            happened, seen = self._judge(one, now)
            told += happened
            news += seen
        late = self._watch.check_timers(now)
        told += late
        if told or taken:
            items = [self._item(one) for one in told]
            notes = {MEMORY: guest_store.to_plain(self._watch)}
            self._spool.put(items, notes, _over(told))
            self._again.written()
            if items:
                self._spooled()
        self._seen, self._counted = dict(self._watch.tracks), dict(self._watch.counted)
        self._was_read = self._was_read or any(isinstance(one.record, Reading) for one in taken)
        self._turned = self._clock.monotonic()
        self._tap.publish([*news, *late])
        if any(_is_removal(one.record) for one in taken):
            self.removed()

    def _judge(self, taken: QueuedEvent, now: float) -> tuple[list[GuestEvent], list[News]]:
        """What is to be told, and what those see who watch."""
        record, when = taken.record, taken.when
        if isinstance(record, Comparison):
            events = record.events(self._watch, now)
            heard = [self._judge(QueuedEvent(one, when), now) for one in events]
            return [one for told, _ in heard for one in told], [
                n for _, news in heard for n in news
            ]
        tracks = self._watch.tracks
        before = dict(tracks) if self._tap.watched else None
        if isinstance(record, Event):
            told, about = self._watch.hear(record, now, when), [record.uuid]
        else:
            about = list(tracks)
            told = self._watch.reconcile(record.guests, record.at, now, when)
            told += self._again.after(record, self._watch, when)
        if before is None:
            return told, []
        return told, [record, *judged(about, before, tracks), *told]

    # what people ask, from any thread

    def view(self) -> View:
        asleep_s = self._clock.monotonic() - self._turned
        stuck = f"it has not come round for {asleep_s:.0f} s" if asleep_s > ASLEEP_S else ""
        return View(
            self.host,
            self._seen,
            self._filters.filters,
            self._guests.why_deaf(),
            self._stuck or stuck,
            self._waiting.qsize(),
            self._filters.problem,
            self._was_read,
        )

    def report_simulated(self, told: Sequence[GuestEvent]) -> None:
        """To Holdfast as if it had happened, and said to be simulated. What is remembered of the
        guests stays as it is, so that what really happens next is told too."""
        marked = [
            replace(one, key=f"{one.key}/simulated", evidence={**one.evidence, "simulated": True})
            for one in told
        ]
        self._spool.put([self._item(one) for one in marked])
        self._spooled()
        self._tap.publish(marked)

    def _remembered(
        self,
        before: Mapping[str, Track] | None = None,
        counted: Mapping[str, Tally] | None = None,
    ) -> GuestWatch:
        filters, now = self._filters.filters, self._clock.monotonic()
        said = self._spool.note(MEMORY)
        if said is None:
            return GuestWatch(filters)
        try:
            return guest_store.from_plain(said, filters, now, before, counted)
        except InvalidInput as error:
            LOG.warning("%s; all guests are looked at as if for the first time", error.message)
            return GuestWatch(filters)

    def _item(self, one: GuestEvent) -> tuple[str, str, Mapping[str, Any]]:
        what = " ".join(filter(None, (one.evidence["event"], one.evidence["detail"])))
        marked = " (simulated)" if one.evidence.get("simulated") else ""
        LOG.warning("guest %s (%s): %s%s: %s", one.name, one.uuid, one.state, marked, what)
        return self._report(
            f"server:{one.uuid}", GUEST, one.state, one.since, one.key, one.evidence
        )

    def _report(
        self,
        subject: str,
        kind: str,
        state: str,
        since: datetime,
        key: str,
        evidence: Mapping[str, Any],
    ) -> tuple[str, str, Mapping[str, Any]]:
        body = {
            "observer": self.observer,
            "subject": subject,
            "kind": kind,
            "state": state,
            "since": since.isoformat(),
            "observed_at": self._clock.now().isoformat(),
            "key": key[:255],
            "evidence": {**evidence, "host": self.host},
        }
        return subject, key, body

    # services of the host

    def maintain(self) -> None:
        items = []
        told = self._services.check(self._clock.monotonic())
        for service, step in told:
            since = self._clock.now()
            subject = f"process:{self.host}:{service.name}"
            key = f"{subject}/{step.told}/{since.isoformat()}"
            about = {"process": service.name, "sentence": step.sentence}
            items.append(self._report(subject, PROCESS, step.told, since, key, about))
        said = self._services.remembered()
        if not items and said == self._services_said:
            return
        try:
            self._spool.put(items, {SERVICES: said})
        except HoldfastError:
            self._services.untell(told)
            raise
        self._services_said = said
        for _, step in told:
            LOG.warning("%s", step.sentence)
        if items:
            self._spooled()


def _is_removal(record: Record) -> bool:
    return isinstance(record, Event) and (record.kind, record.detail) == (LIFECYCLE, "undefined")


def _over(told: Sequence[GuestEvent]) -> dict[str, str]:
    """Who failed and is well again, since when; of one that failed again since, that does not
    count."""
    last = {f"server:{one.uuid}": one for one in told if one.state in (FAILED, WELL)}
    return {who: one.since.isoformat() for who, one in last.items() if one.state == WELL}
