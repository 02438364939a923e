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
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Event, Guest, Guests
from holdfast.watch import guest_memory
from holdfast.watch.filters import FilterFile
from holdfast.watch.guest_record import Reading
from holdfast.watch.guests import GuestWatch, Happening
from holdfast.watch.processes import ProcessWatch
from holdfast.watch.spool import Spool

LOG = logging.getLogger(__name__)

#: Kinds of our reports, and the note under which we remember.
GUEST, PROCESS, MEMORY = "guest", "process", "guests"
#: What waits to be looked at; whoever hears more has to wait, and so does libvirt.
MOST_WAITING = 20_000
#: So many at a time are judged and written.
BATCH = 500
TICK_S = 1.0


class Settings(Protocol):
    """[agent]."""

    services_every_s: float


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
    ) -> None:
        self.host = host
        self._guests = guests
        self._services = services
        self._filters = filters
        self._spool = spool
        self._settings = settings
        self._clock = clock
        self._spooled = spooled
        self._waiting: queue.Queue[Event | Reading] = queue.Queue(MOST_WAITING)
        self._stop = threading.Event()
        self._watch = self._remembered()
        self._thread = threading.Thread(target=self._forever, name="agent", daemon=True)
        self._processes = threading.Thread(target=self._look_after, name="services", daemon=True)

    @property
    def observer(self) -> str:
        return f"agent@{self.host}"

    def start(self) -> None:
        self._thread.start()
        self._processes.start()
        self._guests.start(self)

    def stop(self) -> None:
        self._guests.close()
        self._stop.set()
        for thread in (self._thread, self._processes):
            if thread.is_alive():
                thread.join(timeout=10)

    # what the driver calls

    def heard(self, event: Event) -> None:
        self._waiting.put(event)

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        self._waiting.put(Reading(tuple(guests), at))

    # the thread

    def _forever(self) -> None:
        kept: list[Event | Reading] = []
        while not self._stop.is_set():
            kept = kept or self._next()
            try:
                self.turn(kept)
                kept = []
            except HoldfastError as error:  # the disk: nothing is forgotten, it is tried again
                LOG.error("%s; it is tried again", error.message)
                self._watch = self._remembered()
                self._clock.wait(self._stop, TICK_S)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("agent: unforeseen; what was heard just now is left aside")
                kept = []

    def _next(self) -> list[Event | Reading]:
        """What has come, or nothing when it is time to look at the clock."""
        found: list[Event | Reading] = []
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

    def turn(self, records: Sequence[Event | Reading]) -> None:
        """Judge these, and what time alone has made true; write it down."""
        if self._filters.follow():
            self._watch.filters = self._filters.filters
        now = self._clock.monotonic()
        told: list[Happening] = []
        for record in records:
            if isinstance(record, Event):
                told += self._watch.hear(record, now)
            else:
                told += self._watch.reconcile(record.guests, record.at, now)
        told += self._watch.look(now)
        if not told and not records:
            return
        items = [self._item(one) for one in told]
        self._spool.put(items, {MEMORY: guest_memory.to_plain(self._watch)})
        if items:
            self._spooled()

    def _remembered(self) -> GuestWatch:
        filters = self._filters.filters
        said = self._spool.note(MEMORY)
        if said is None:
            return GuestWatch(filters)
        try:
            return guest_memory.from_plain(said, filters, self._clock.monotonic())
        except InvalidInput as error:
            LOG.warning("%s; all guests are looked at as if for the first time", error.message)
            return GuestWatch(filters)

    def _item(self, one: Happening) -> tuple[str, str, Mapping[str, Any]]:
        what = " ".join(filter(None, (one.evidence["event"], one.evidence["detail"])))
        LOG.warning("guest %s (%s): %s: %s", one.name, one.uuid, one.state, what)
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

    def _look_after(self) -> None:
        while not self._clock.wait(self._stop, self._settings.services_every_s):
            try:
                self.look_after()
            except HoldfastError as error:
                LOG.error("%s; it is tried again", error.message)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("services: unforeseen")

    def look_after(self) -> None:
        items = []
        for service, step in self._services.look(self._clock.monotonic()):
            LOG.warning("%s", step.sentence)
            since = self._clock.now()
            subject = f"process:{self.host}:{service.name}"
            key = f"{subject}/{step.told}/{since.isoformat()}"
            about = {"process": service.name, "sentence": step.sentence}
            items.append(self._report(subject, PROCESS, step.told, since, key, about))
        if items:
            self._spool.put(items)
            self._spooled()
