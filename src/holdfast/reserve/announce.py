# SPDX-License-Identifier: Apache-2.0
"""Telling others what happens to leases, as durable work: what was written is told, at least once.

`Announcer.work` gives the rows that go into the transaction of the change itself. There is a row
per sink, so that one that is away holds up nobody else's news; those of one lease and one sink are
told in the order in which they happened.

    work = Work(add=(*operations, *announcer.work(CREATED, lease, now)))
"""

import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.model.errors import DriverError
from holdfast.model.incident import Incident
from holdfast.model.lease import BEFORE_END, END, EVENT_TYPES, START, Event, Lease
from holdfast.model.operation import DONE, ERROR, WAITING, Operation
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.sinks import PUBLISHER, LeaseNotice, Sink
from holdfast.reserve import rules
from holdfast.work.kind import Kind, NotYet, Run, Step

ANNOUNCE = "lease_announce"
CREATED, UPDATED, DELETED = "lease.create", "lease.update", "lease.delete"
STARTED, ENDED, BEFORE_ENDED = (f"lease.event.{EVENT_TYPES[k]}" for k in (START, END, BEFORE_END))
BEFORE_END_STOPPED = f"{BEFORE_ENDED}.stop"
DEGRADED, HEALED = "lease.degraded", "lease.healed"
#: Who speaks where it is about incidents.
INCIDENTS = "holdfast.incident"
#: Those of one change are told in this order.
ORDER = (
    CREATED,
    UPDATED,
    BEFORE_END_STOPPED,
    STARTED,
    BEFORE_ENDED,
    ENDED,
    DEGRADED,
    HEALED,
    DELETED,
)
#: Beyond the sink's own limit: the time it takes a thread to be scheduled again.
MARGIN_S = 1.0
_NAMES = uuid.UUID("6f1f3c0e-5f0c-4c43-9a4e-7a0c4a3e9b11")

#: How the reservation contract shows a lease with its events at that time; the API's own view.
Show = Callable[[Lease, Sequence[Event], datetime], Mapping[str, Any]]


class Settings(Protocol):
    """[lease_notifications], read anew each time."""

    give_up_h: float


class Announcer:
    """With no sinks it is silent: nothing is written and nothing is told."""

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        show: Show | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        if sinks and (show is None or settings is None):
            raise TypeError("sinks want to know how leases are shown, and their settings")
        self._show = show
        self._settings = settings
        self._doors = {sink.name: _Door(sink, clock or SystemClock()) for sink in sinks}

    def work(self, event_type: str, lease: Lease, now: datetime) -> tuple[Operation, ...]:
        """The rows of one piece of news. `lease` is what the transaction writes, with the version
        it finds: the value that `book`, `save` or `erase` is given."""
        if self._show is None or not self._doors:
            return ()
        message_id = str(uuid.uuid5(_NAMES, _mark(event_type, lease)))
        told = {
            "message_id": message_id,
            "event_type": event_type,
            "at": now.isoformat(),
            "payload": payload(event_type, lease, now, self._show),
        }
        return tuple(self._operation(sink, event_type, lease, now, told) for sink in self._doors)

    def changed(self, old: Lease, new: Lease, now: datetime) -> tuple[Operation, ...]:
        """The rows of all news that an owner's update is."""
        return tuple(o for event in news(old, new, now) for o in self.work(event, new, now))

    def health(self, old: Lease, new: Lease, now: datetime) -> tuple[Operation, ...]:
        """The rows of a change in the cloud that made the lease worse or whole again, if it did."""
        return tuple(o for event in _health(old, new) for o in self.work(event, new, now))

    def incident(self, event_type: str, incident: Incident, now: datetime) -> tuple[Operation, ...]:
        """The rows of one piece of news about an incident; those of one are told in order."""
        mark = f"{event_type}/{incident.id}/{now.isoformat()}"
        told = {
            "message_id": str(uuid.uuid5(_NAMES, mark)),
            "event_type": event_type,
            "at": now.isoformat(),
            "payload": _incident(incident),
            "publisher": INCIDENTS,
        }
        return tuple(
            Operation(
                id=str(uuid.uuid5(_NAMES, f"{mark}/{sink}")),
                kind=ANNOUNCE,
                subject=f"announce:{incident.id}:{sink}",
                key=f"announce/{mark}/{sink}"[:255],
                due_at=now,
                next_try_at=now,
                payload={"sink": sink, **told},
            )
            for sink in self._doors
        )

    def kinds(self) -> dict[str, Kind]:
        """Also with no sinks: what was written when there were some must come to its end."""
        return {ANNOUNCE: _Announce(self._doors, self._settings)}

    def close(self) -> None:
        for door in self._doors.values():
            door.sink.close()

    def _operation(
        self, sink: str, event_type: str, lease: Lease, now: datetime, told: Mapping[str, Any]
    ) -> Operation:
        key = f"announce/{_mark(event_type, lease)}/{sink}"
        return Operation(
            id=str(uuid.uuid5(_NAMES, key)),
            kind=ANNOUNCE,
            subject=f"announce:{lease.id}:{sink}",
            key=key,
            sequence=_step(event_type, lease) * len(ORDER) + ORDER.index(event_type),
            due_at=now,
            next_try_at=now,
            payload={"sink": sink, **told},
        )


def news(old: Lease, new: Lease, now: datetime) -> tuple[str, ...]:
    """What an update is, in the contract's words and ours."""
    fired = old.before_end is not None and old.before_end <= now and old.status == "ACTIVE"
    again = new.before_end is not None and new.before_end > now
    stopped = (BEFORE_END_STOPPED,) if fired and again else ()
    return (UPDATED, *stopped, *_health(old, new))


def _health(old: Lease, new: Lease) -> tuple[str, ...]:
    """Worse is also one that was bad before and has become worse."""
    if _troubles(new) - _troubles(old) or (new.degraded and not old.degraded):
        return (DEGRADED,)
    return (HEALED,) if old.degraded and not new.degraded else ()


def _troubles(lease: Lease) -> set[tuple[str, str]]:
    found = {(r.id, "missing") for r in lease.reservations if r.missing_resources}
    return found | {(r.id, "changed") for r in lease.reservations if r.resources_changed}


def _step(event_type: str, lease: Lease) -> int:
    """The how many-th writing of the lease this is."""
    return 0 if event_type == CREATED else lease.version + 1


def _mark(event_type: str, lease: Lease) -> str:
    """What makes this piece of news this one and no other. Before its end nothing of a lease
    changes, so that a second try would look like a second piece of news: there the time says it."""
    which = str(lease.version)
    if event_type == BEFORE_ENDED and lease.before_end is not None:
        which = lease.before_end.isoformat()
    return f"{event_type}/{lease.id}/{which}"


def payload(event_type: str, lease: Lease, now: datetime, show: Show) -> dict[str, Any]:
    """A lease as the contract's notifications carry it."""
    stamped = replace(
        lease,
        created_at=lease.created_at or now,
        updated_at=None if event_type == CREATED else now,
    )
    shown = dict(show(stamped, _events(event_type, stamped, now), now))
    return {
        "lease_id": shown["id"],
        **{name: shown[name] for name in _SAME},
        "events": [{name: event[name] for name in _OF_EVENTS} for event in shown["events"]],
    }


_OF_EVENTS = ("lease_id", "event_type", "time", "status")
_SAME = (
    "user_id",
    "project_id",
    "trust_id",
    "start_date",
    "end_date",
    "status",
    "reservations",
    "name",
    "created_at",
    "updated_at",
    "degraded",
)


def _events(event_type: str, lease: Lease, now: datetime) -> list[Event]:
    """The lease's events with the state that their rows have, or are about to have.

    A change does not read its rows of work; what they say follows from the lease and the time.
    """
    due = rules.events(lease.start, lease.end, lease.before_end)
    return [
        Event("", kind, at, _supposed(event_type, lease, kind, at, now))
        for kind, at in sorted(due.items(), key=lambda item: item[1])
    ]


def _supposed(event_type: str, lease: Lease, kind: str, at: datetime, now: datetime) -> str:
    if event_type.removeprefix("lease.event.") == EVENT_TYPES[kind]:
        return DONE  # it is what we tell
    if lease.status == "ERROR" and kind == START:
        return ERROR  # no other work gives up and leaves a lease like that
    over = at <= now and lease.status not in ("PENDING", "STARTING", "ERROR")
    return DONE if over else WAITING


#: Of one sink: so many sends at once, so long a rest after failures.
MOST_AT_ONCE = 8
FIRST_REST_S, MOST_REST_S = 1.0, 60.0
#: Who waits outside comes back so long after the one before, or somewhen within a while: ten
#: thousand that wait for a slow sink must not keep all other work waiting by asking.
APART_S, WHILE_S = 0.01, 120.0


@dataclass
class _Door:
    """The way to one sink. While it is away a try now and then finds out; all others wait
    outside, each with a time at which it may ask again."""

    sink: Sink
    clock: Clock
    _failures: int = 0
    _inside: int = 0
    _rests_until: float = 0.0
    _line_until: float = 0.0  # when the last of those outside asks again
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """NotYet when it is not our turn."""
        with self._lock:
            left = self._rests_until - self.clock.monotonic()
            if left > 0:
                said = f"{self.sink.name} is away: waits until it is tried again"
                raise NotYet(said, self._wait(left))
            if self._inside >= (1 if self._failures else MOST_AT_ONCE):
                raise NotYet(f"{self.sink.name}: others are being told", self._wait(0.1))
            self._inside += 1

    def _wait(self, least: float) -> float:
        now = self.clock.monotonic()
        following = max(self._line_until + APART_S, now + least)
        if following - now > WHILE_S:
            return random.uniform(WHILE_S / 2, WHILE_S)
        self._line_until = following
        return following - now

    def leave(self, *, away: bool | None) -> None:
        """`away` None: it was not found out."""
        with self._lock:
            self._inside -= 1
            if away is None:
                return
            self._failures = self._failures + 1 if away else 0
            rest = min(FIRST_REST_S * 2.0 ** min(self._failures - 1, 16), MOST_REST_S)
            self._rests_until = self.clock.monotonic() + rest if away else 0.0


class _Announce:
    """One piece of news to one sink. What the sink refuses for good is let go; what does not reach
    it is tried again for hours."""

    name = ANNOUNCE
    stubborn = False

    def __init__(self, doors: Mapping[str, _Door], settings: Settings | None) -> None:
        self._doors = doors
        self._settings = settings

    def steps(self) -> Sequence[Step]:
        return (Step("tell", self.tell, kept=False),)

    def tell(self, run: Run) -> str:
        told = run.operation.payload
        door = self._doors.get(told["sink"])
        if door is None:  # of another manager's configuration, or of none any more
            raise NotYet(f"{told['sink']} is not configured here", 60.0)
        door.enter()
        away: bool | None = None
        try:
            run.hold(door.sink.timeout_s + MARGIN_S)
            door.sink.send(notice(told))
            away = False
        except DriverError as error:
            away = error.retryable
            raise
        finally:
            door.leave(away=away)
        return f"{door.sink.name} was told of {told['event_type']}"

    def give_up_at(self, operation: Operation) -> datetime | None:
        hours = self._settings.give_up_h if self._settings is not None else 0.0
        return operation.due_at + timedelta(hours=hours)

    def failed(self, run: Run, why: str) -> None:
        """The row says so; the lease is none the worse."""


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "subject": incident.subject,
        "kind": incident.kind,
        "cause": incident.cause,
        "status": incident.status,
        "sentence": incident.sentence,
        "host": incident.host,
        "segment": incident.segment,
        "opened_at": incident.opened_at.isoformat(),
        "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
    }


def notice(told: Mapping[str, Any]) -> LeaseNotice:
    return LeaseNotice(
        publisher=told.get("publisher", PUBLISHER),
        message_id=told["message_id"],
        event_type=told["event_type"],
        at=datetime.fromisoformat(told["at"]),
        payload=told["payload"],
    )
