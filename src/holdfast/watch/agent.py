# SPDX-License-Identifier: Apache-2.0
"""The agent of one host: what its guests and its own services go through, told through the spool.

The driver's thread only hands over what it hears. One thread of ours takes all that has come, asks
`GuestWatch` what it means, and writes what is to be told to disk together with what has to be
remembered: killed at any moment, the next one goes on from there.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.guest_filter import Filter, Tally
from holdfast.ports.clock import Clock
from holdfast.ports.guests import LIFECYCLE, Event, Guest, Guests
from holdfast.watch import guest_memory
from holdfast.watch.errand import Rounds
from holdfast.watch.expectation import Comparison
from holdfast.watch.filters import FilterFile
from holdfast.watch.guest_again import Again
from holdfast.watch.guest_record import Reading
from holdfast.watch.guest_trouble import FAILED, WELL
from holdfast.watch.guests import GuestWatch, Happening, Track
from holdfast.watch.processes import ProcessWatch
from holdfast.watch.spool import Spool
from holdfast.watch.tap import News, Tap, judged

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
class Taken:
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
        spool: Spool,
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
        self._waiting: queue.Queue[Taken] = queue.Queue(MOST_WAITING)
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
        self._rounds = Rounds("services", settings.services_every_s, self.look_after, clock)
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
        self._waiting.put(Taken(event, self._when(event.at)))

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        self._waiting.put(Taken(Reading(tuple(guests), at), self._when(at)))

    def looked(self, comparison: Comparison) -> None:
        """What should run here was asked, and what does was read."""
        look = comparison.look
        if look is not None:
            self._waiting.put(Taken(Reading(look.guests, look.read_at), look.began))
        self._waiting.put(Taken(comparison, self._clock.monotonic()))

    def _when(self, at: datetime) -> float:
        """A date of just now, by our own time, before anybody can set the clock."""
        ago_s = (self._clock.now() - at).total_seconds()
        return self._clock.monotonic() - max(0.0, ago_s)

    # the thread

    def _forever(self) -> None:
        kept: list[Taken] = []
        while not self._stop.is_set():
            kept = self._come_round(kept or self._next())

    def _come_round(self, taken: list[Taken]) -> list[Taken]:
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

    def _read(self) -> list[Taken]:
        """All guests, in place of what could not be judged; nothing if they cannot be read, for
        then they will be once the hypervisor is found again."""
        began = self._clock.monotonic()
        try:
            guests, at = self._guests.read()
        except HoldfastError as error:
            LOG.error("%s", error.message)
            return []
        return [Taken(Reading(tuple(guests), at), began)]

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

    def _next(self) -> list[Taken]:
        """What has come, or nothing when it is time to look at the clock."""
        found: list[Taken] = []
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
        self._turn([Taken(record, now) for record in records])

    def _turn(self, taken: Sequence[Taken]) -> None:
        """Judge these, and what time alone has made true; write it down."""
        now = self._clock.monotonic()
        if self._filters.follow():
            self._watch.use(self._filters.filters, now)
        told: list[Happening] = []
        news: list[News] = []  # for those who watch
        for one in taken:
            happened, seen = self._judge(one, now)
            told += happened
            news += seen
        late = self._watch.look(now)
        told += late
        if told or taken:
            items = [self._item(one) for one in told]
            notes = {MEMORY: guest_memory.to_plain(self._watch)}
            self._spool.put(items, notes, _over(told))
            self._again.written()
            if items:
                self._spooled()
        self._seen, self._counted = dict(self._watch.tracks), dict(self._watch.counted)
        self._was_read = self._was_read or any(isinstance(one.record, Reading) for one in taken)
        self._turned = self._clock.monotonic()
        self._tap.tell([*news, *late])
        if any(_is_removal(one.record) for one in taken):
            self.removed()

    def _judge(self, taken: Taken, now: float) -> tuple[list[Happening], list[News]]:
        """What is to be told, and what those see who watch."""
        record, when = taken.record, taken.when
        if isinstance(record, Comparison):
            events = record.events(self._watch, now)
            heard = [self._judge(Taken(one, when), now) for one in events]
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

    def tell_simulated(self, told: Sequence[Happening]) -> None:
        """To Holdfast as if it had happened, and said to be simulated. What is remembered of the
        guests stays as it is, so that what really happens next is told too."""
        marked = [
            replace(one, key=f"{one.key}/simulated", evidence={**one.evidence, "simulated": True})
            for one in told
        ]
        self._spool.put([self._item(one) for one in marked])
        self._spooled()
        self._tap.tell(marked)

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
            return guest_memory.from_plain(said, filters, now, before, counted)
        except InvalidInput as error:
            LOG.warning("%s; all guests are looked at as if for the first time", error.message)
            return GuestWatch(filters)

    def _item(self, one: Happening) -> tuple[str, str, Mapping[str, Any]]:
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

    def look_after(self) -> None:
        items = []
        told = self._services.look(self._clock.monotonic())
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


def _over(told: Sequence[Happening]) -> dict[str, str]:
    """Who failed and is well again, since when; of one that failed again since, that does not
    count."""
    last = {f"server:{one.uuid}": one for one in told if one.state in (FAILED, WELL)}
    return {who: one.since.isoformat() for who, one in last.items() if one.state == WELL}
