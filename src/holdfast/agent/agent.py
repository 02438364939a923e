# SPDX-License-Identifier: Apache-2.0
"""The agent of one compute host: judges guest and service events, and writes reports to the outbox.

The hypervisor driver's thread only queues events. The agent's thread takes the queued events, asks
`GuestWatch` to judge them, and writes the reports and the guest state to the outbox in one
transaction. An agent that is killed at any moment therefore continues where it stopped.
`Tap` publishes the same events to operators who watch the agent live.
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
from holdfast.agent.guest_state import FAILED, RUNNING, WELL, GuestEvent, GuestWatch, Track
from holdfast.agent.guest_store import Again, Reading
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput
from holdfast.ports.guests import LIFECYCLE, Event, Guest, Guests
from holdfast.ports.reports import Reports
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import PeriodicTask, Worker, hung

# Live events for operators. The agent never waits for a watcher: a watcher that is too slow misses
# events and learns how many.


#: Queue length of each watcher.
MOST_WATCHED = 5_000
MOST_WATCHERS = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """A new verdict of the filters on a guest's symptom."""

    uuid: str
    name: str
    symptom: Symptom
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sent:
    """An attempt to deliver a report; `why` holds the error if the attempt failed."""

    body: Mapping[str, Any]
    outcome: str  # delivered, refused, waits
    why: str = ""


WatchedEvent = Event | Reading | Judged | GuestEvent | Sent


class Watcher:
    """The event queue of a client that watches the agent."""

    def __init__(self, most: int) -> None:
        self._waiting: queue.Queue[WatchedEvent] = queue.Queue(most)
        self._lock = threading.Lock()
        self._missed = 0

    def put(self, events: Sequence[WatchedEvent]) -> None:
        for number, item in enumerate(events):
            try:
                self._waiting.put_nowait(item)
            except queue.Full:
                with self._lock:
                    self._missed += len(events) - number
                return

    def next_event(self, timeout_s: float) -> tuple[list[WatchedEvent], int]:
        """Return the queued events and the number of missed ones; wait up to `timeout_s`."""
        batch: list[WatchedEvent] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._waiting.get(timeout=timeout_s))
            while True:
                batch.append(self._waiting.get_nowait())
        with self._lock:
            missed, self._missed = self._missed, 0
        return batch, missed


class Tap:
    """Publishes agent events to up to MOST_WATCHERS watchers; thread-safe."""

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
                self._watchers = tuple(other for other in self._watchers if other is not watcher)

    def publish(self, events: Sequence[WatchedEvent]) -> None:
        for watcher in self._watchers:
            watcher.put(events)


class TappedReports:
    """A `Reports` client that publishes the outcome of each delivery to the tap."""

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
    """Yield the faults that are new or have another verdict or symptom than before."""
    for uuid in uuids:
        old, track = before.get(uuid), after.get(uuid)
        if track is None or old is track:
            continue
        for name, fault in track.faults.items():
            earlier = old.faults.get(name) if old else None
            if earlier is None or (earlier.verdict, earlier.symptom) != (
                fault.verdict,
                fault.symptom,
            ):
                yield Judged(uuid, track.name, fault.symptom, fault.verdict)


LOG = logging.getLogger(__name__)

#: Kinds of reports (guest, process), and names of the outbox notes that hold the agent's state.
GUEST, PROCESS, MEMORY, SERVICES = "guest", "process", "guests", "services"
#: Length of the event queue. When the queue is full, the driver's thread and libvirt block.
MOST_WAITING = 20_000
#: The agent judges and writes at most this many events in one transaction.
BATCH = 500
TICK_S = 1.0
#: The agent's loop runs every second; after this long without a pass `view` reports it as stuck.
ASLEEP_S = 15.0


Record = Event | Reading | Comparison


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """A record, with the monotonic time `when` the event arrived or the reading began.

    `when` says which of two records about a guest is newer.
    """

    record: Record
    when: float


def observer(host: str) -> str:
    """Return the observer name under which the agent of `host` sends reports."""
    return f"agent@{host}"


class Settings(Protocol):
    """The options of [agent] that this module reads."""

    services_interval_s: float


@dataclass(frozen=True)
class View:
    """A snapshot of the agent's state, as last written to the outbox."""

    host: str
    tracks: Mapping[str, Track]
    filters: Filter
    deaf: str  # why no events arrive from the hypervisor
    stuck: str  # why the agent does not judge events, or which of its threads hang
    waiting: int  # number of queued events
    problem: str  # why the current filter file is not in force
    was_read: bool = True  # whether the agent has read all guests since its start


class HostAgent:
    """Receives guest events from the driver and judges them on a thread (`guests.Listener`)."""

    def __init__(
        self,
        host: str,
        guests: Guests,
        services: ProcessWatch,
        filters: FilterFile,
        outbox: Outbox,
        settings: Settings,
        clock: Clock,
        *,
        report_stored: Callable[[], None],
        tap: Tap | None = None,
    ) -> None:
        self.host = host
        self._guests = guests
        self._services = services
        self._filters = filters
        self._outbox = outbox
        self._settings = settings
        self._clock = clock
        self._report_stored = report_stored
        self._waiting: queue.Queue[QueuedEvent] = queue.Queue(MOST_WAITING)
        self._tap = tap or Tap()
        self._watch = self._remembered()
        #: Guests that ran when the agent last wrote their state, before it started.
        self.ran_before = sorted(
            track.uuid for track in self._watch.tracks.values() if track.life == RUNNING
        )
        self._again = Again(self._watch)
        self._seen: Mapping[str, Track] = dict(self._watch.tracks)
        self._counted: Mapping[str, Tally] = {}  # of guests that are gone
        self._turned = clock.monotonic()
        self._stuck = ""
        self._was_read = False
        #: Called when a guest was undefined: the cloud may not know of the removal.
        self.removed: Callable[[], None] = lambda: None
        self._kept: list[QueuedEvent] = []  # to be judged again
        self._worker = Worker("agent", clock, self._judge_queued, stop_s=10.0)
        self._worker.make_essential()
        self._task = PeriodicTask("services", settings.services_interval_s, self.maintain, clock)
        self._task.make_essential()
        self._service_text: Mapping[str, Any] = {}  # service state as last written to the outbox

    @property
    def observer(self) -> str:
        return observer(self.host)

    def start(self) -> None:
        self._worker.start()
        self._task.start()
        self._guests.start(self)

    def stop(self) -> None:
        self._guests.close()
        self._worker.stopping.set()
        self._task.stop()
        self._worker.stop()

    # called by the driver

    def heard(self, event: Event) -> None:
        self._waiting.put(QueuedEvent(event, self._when(event.at)))

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        self._waiting.put(QueuedEvent(Reading(tuple(guests), at), self._when(at)))

    def polled(self, comparison: Comparison) -> None:
        """Queue a comparison of expected and actual guests, with the reading it is based on."""
        compared = comparison.comparison
        if compared is not None:
            self._waiting.put(
                QueuedEvent(Reading(compared.guests, compared.read_at), compared.began)
            )
        self._waiting.put(QueuedEvent(comparison, self._clock.monotonic()))

    def _when(self, at: datetime) -> float:
        """Convert a recent date to monotonic time at once, before the wall clock can be set."""
        ago_s = (self._clock.now() - at).total_seconds()
        return self._clock.monotonic() - max(0.0, ago_s)

    # the agent's thread

    def _judge_queued(self) -> float:
        self._worker.beat(TICK_S)
        self._kept = self._come_round(self._kept or self._next())
        return 0.0

    def _come_round(self, taken: list[QueuedEvent]) -> list[QueuedEvent]:
        """Judge the events; return the events to judge next if this failed."""
        try:
            self._turn(taken)
        except HoldfastError as error:  # the disk failed: keep the events and try again
            self._stuck = f"events cannot be stored: {error.message}"
            LOG.error("%s; it is tried again", error.message)
            self._begin_again()
            return taken
        except Exception:  # the top of the thread: the loop must go on
            LOG.exception(
                "agent: unforeseen; queued events are dropped, and all guests are read again"
            )
            self._begin_again()
            return self._read()
        self._stuck = ""
        return []

    def _read(self) -> list[QueuedEvent]:
        """Read all guests, in place of the events that the agent failed to judge.

        Return nothing if the hypervisor does not answer: the driver reads all guests once the
        hypervisor is back.
        """
        began = self._clock.monotonic()
        try:
            guests, at = self._guests.read()
        except HoldfastError as error:
            LOG.error("%s", error.message)
            return []
        return [QueuedEvent(Reading(tuple(guests), at), began)]

    def _begin_again(self) -> None:
        """Reload the guest state from the outbox, and retry until the outbox can be read.

        Judgements made since then have not been reported and must not count as reported.
        """
        while not self._clock.wait(self._worker.stopping, TICK_S):
            self._worker.beat(TICK_S)
            try:
                self._watch = self._remembered(self._seen, self._counted)
                self._again.begin_again()
                return
            except HoldfastError as error:
                LOG.error("%s; it is tried again", error.message)

    def _next(self) -> list[QueuedEvent]:
        """Return up to BATCH queued events, or none when a timer is due."""
        queued_events: list[QueuedEvent] = []
        try:
            queued_events.append(self._waiting.get(timeout=self._pause()))
            while len(queued_events) < BATCH:
                queued_events.append(self._waiting.get_nowait())
        except queue.Empty:
            return queued_events
        return queued_events

    def _pause(self) -> float:
        due = self._watch.due()
        return TICK_S if due is None else max(0.0, min(TICK_S, due - self._clock.monotonic()))

    def turn(self, records: Sequence[Record]) -> None:
        """Judge records that arrive at this moment."""
        now = self._clock.monotonic()
        self._turn([QueuedEvent(record, now) for record in records])

    def _turn(self, taken: Sequence[QueuedEvent]) -> None:
        """Judge the events and the expired timers, and write reports and state to the outbox."""
        now = self._clock.monotonic()
        if self._filters.follow():
            self._watch.use(self._filters.filters, now)
        guest_events: list[GuestEvent] = []
        events: list[WatchedEvent] = []  # for watchers
        for queued_event in taken:
            happened, seen = self._judge(queued_event, now)
            guest_events += happened
            events += seen
        late = self._watch.check_timers(now)
        guest_events += late
        if guest_events or taken:
            items = [self._item(guest_event) for guest_event in guest_events]
            notes = {MEMORY: guest_store.to_plain(self._watch)}
            self._outbox.put(items, notes, _over(guest_events))
            self._again.written()
            if items:
                self._report_stored()
        self._seen, self._counted = dict(self._watch.tracks), dict(self._watch.counted)
        self._was_read = self._was_read or any(
            isinstance(queued_event.record, Reading) for queued_event in taken
        )
        self._turned = self._clock.monotonic()
        self._tap.publish([*events, *late])
        if any(_is_removal(queued_event.record) for queued_event in taken):
            self.removed()

    def _judge(self, taken: QueuedEvent, now: float) -> tuple[list[GuestEvent], list[WatchedEvent]]:
        """Return the guest events to report, and the events for watchers."""
        record, when = taken.record, taken.when
        if isinstance(record, Comparison):
            events = record.events(self._watch, now)
            heard = [self._judge(QueuedEvent(event, when), now) for event in events]
            return [guest_event for guest_events, _ in heard for guest_event in guest_events], [
                n for _, events in heard for n in events
            ]
        tracks = self._watch.tracks
        before = dict(tracks) if self._tap.watched else None
        if isinstance(record, Event):
            guest_events, about = self._watch.hear(record, now, when), [record.uuid]
        else:
            about = list(tracks)
            guest_events = self._watch.reconcile(record.guests, record.at, now, when)
            guest_events += self._again.after(record, self._watch, when)
        if before is None:
            return guest_events, []
        return guest_events, [record, *judged(about, before, tracks), *guest_events]

    # called by the admin socket, from any thread

    def view(self) -> View:
        asleep_s = self._clock.monotonic() - self._turned
        stuck = f"it has not come round for {asleep_s:.0f} s" if asleep_s > ASLEEP_S else ""
        return View(
            self.host,
            self._seen,
            self._filters.filters,
            self._guests.why_deaf(),
            self._stuck or stuck or hung(),
            self._waiting.qsize(),
            self._filters.problem,
            self._was_read,
        )

    def report_simulated(self, guest_events: Sequence[GuestEvent]) -> None:
        """Report simulated guest events to Holdfast, marked `simulated`.

        The guest state does not change, so the agent still reports the next real event.
        """
        marked = [
            replace(
                guest_event,
                key=f"{guest_event.key}/simulated",
                evidence={**guest_event.evidence, "simulated": True},
            )
            for guest_event in guest_events
        ]
        self._outbox.put([self._item(guest_event) for guest_event in marked])
        self._report_stored()
        self._tap.publish(marked)

    def _remembered(
        self,
        before: Mapping[str, Track] | None = None,
        counted: Mapping[str, Tally] | None = None,
    ) -> GuestWatch:
        filters, now = self._filters.filters, self._clock.monotonic()
        note = self._outbox.note(MEMORY)
        if note is None:
            return GuestWatch(filters)
        try:
            return guest_store.from_plain(note, filters, now, before, counted)
        except InvalidInput as error:
            LOG.warning("%s; the agent starts with no state of guests", error.message)
            return GuestWatch(filters)

    def _item(self, event: GuestEvent) -> tuple[str, str, Mapping[str, Any]]:
        cause = " ".join(filter(None, (event.evidence["event"], event.evidence["detail"])))
        marked = " (simulated)" if event.evidence.get("simulated") else ""
        LOG.warning("guest %s (%s): %s%s: %s", event.name, event.uuid, event.state, marked, cause)
        return self._report(
            f"server:{event.uuid}", GUEST, event.state, event.since, event.key, event.evidence
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
        reports = self._services.check(self._clock.monotonic())
        for service, step in reports:
            since = self._clock.now()
            subject = f"process:{self.host}:{service.name}"
            key = f"{subject}/{step.report}/{since.isoformat()}"
            about = {"process": service.name, "sentence": step.sentence}
            items.append(self._report(subject, PROCESS, step.report, since, key, about))
        note = self._services.remembered()
        if not items and note == self._service_text:
            return
        try:
            self._outbox.put(items, {SERVICES: note})
        except HoldfastError:
            self._services.forget_reports(reports)
            raise
        self._service_text = note
        for _, step in reports:
            LOG.warning("%s", step.sentence)
        if items:
            self._report_stored()


def _is_removal(record: Record) -> bool:
    return isinstance(record, Event) and (record.kind, record.detail) == (LIFECYCLE, "undefined")


def _over(guest_events: Sequence[GuestEvent]) -> dict[str, str]:
    """Return the subjects whose last event is a recovery, with the date of recovery.

    A guest that failed again after its recovery is left out.
    """
    last = {
        f"server:{guest_event.uuid}": guest_event
        for guest_event in guest_events
        if guest_event.state in (FAILED, WELL)
    }
    return {
        who: guest_event.since.isoformat()
        for who, guest_event in last.items()
        if guest_event.state == WELL
    }
