# SPDX-License-Identifier: Apache-2.0
"""Lease events: the outbox rows for notifications about leases, delivered at least once.

`Announcer.work` returns rows that belong in the transaction of the change itself. Each sink has
its own row, so that an unreachable sink delays no other sink. Events of one lease and sink are
delivered in the order in which they happened.

    work = Work(add=(*operations, *announcer.work(CREATED, lease, now)))
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.jobs.job import Kind
from holdfast.jobs.outbox import OutboxJob, Settings
from holdfast.model.lease import BEFORE_END, END, EVENT_TYPES, START, Event, Lease, due_times
from holdfast.model.operation import DONE, ERROR, WAITING, Operation
from holdfast.ports.publishers import ANNOUNCE, NEWS, Sink, sinks_for
from holdfast.runtime.clock import Clock, SystemClock

CREATED, UPDATED, DELETED = "lease.create", "lease.update", "lease.delete"
STARTED, ENDED, BEFORE_ENDED = (f"lease.event.{EVENT_TYPES[k]}" for k in (START, END, BEFORE_END))
BEFORE_END_STOPPED = f"{BEFORE_ENDED}.stop"
DEGRADED, HEALED = "lease.degraded", "lease.healed"
#: Events of one change are delivered in this order.
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
_NAMES = uuid.UUID("6f1f3c0e-5f0c-4c43-9a4e-7a0c4a3e9b11")

#: Renders a lease with its events at a time, as the reservation contract shows it; the API's
#: view.
Show = Callable[[Lease, Sequence[Event], datetime], Mapping[str, Any]]


class Announcer:
    """Makes outbox rows for lease events; without sinks no rows."""

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
        self._sinks = sinks_for(sinks, NEWS)
        self._outbox = OutboxJob(sinks, settings, clock or SystemClock())

    def work(self, event_type: str, lease: Lease, now: datetime) -> tuple[Operation, ...]:
        """Make the rows of an event.

        `lease` is the value that the transaction writes (`book`, `save` or `erase`), with the
        version it was read with.
        """
        if self._show is None or not self._sinks:
            return ()
        message_id = str(uuid.uuid5(_NAMES, _mark(event_type, lease)))
        event = {
            "message_id": message_id,
            "event_type": event_type,
            "at": now.isoformat(),
            "payload": payload(event_type, lease, now, self._show),
        }
        return tuple(self._operation(sink, event_type, lease, now, event) for sink in self._sinks)

    def changed(self, old: Lease, new: Lease, now: datetime) -> tuple[Operation, ...]:
        """Make the rows of all events of an owner's update."""
        return tuple(o for event in events_of(old, new, now) for o in self.work(event, new, now))

    def health(self, old: Lease, new: Lease, now: datetime) -> tuple[Operation, ...]:
        """Make the rows if the lease became degraded, worse or whole again."""
        return tuple(o for event in _health(old, new) for o in self.work(event, new, now))

    def kinds(self) -> dict[str, Kind]:
        """Return the job kind, also with no sinks: rows written for earlier sinks must still
        end."""
        return self._outbox.kinds()

    def close(self) -> None:
        self._outbox.close()

    def _operation(
        self, sink: str, event_type: str, lease: Lease, now: datetime, event: Mapping[str, Any]
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
            payload={"sink": sink, **event},
        )


def events_of(old: Lease, new: Lease, now: datetime) -> tuple[str, ...]:
    """Return the event types of an update, of the contract and of Holdfast."""
    fired = old.before_end is not None and old.before_end <= now and old.status == "ACTIVE"
    again = new.before_end is not None and new.before_end > now
    stopped = (BEFORE_END_STOPPED,) if fired and again else ()
    return (UPDATED, *stopped, *_health(old, new))


def _health(old: Lease, new: Lease) -> tuple[str, ...]:
    """Return the health event; a degraded lease getting worse is degraded again."""
    if _faults(new) - _faults(old) or (new.degraded and not old.degraded):
        return (DEGRADED,)
    return (HEALED,) if old.degraded and not new.degraded else ()


def _faults(lease: Lease) -> set[tuple[str, str]]:
    missing = {(r.id, "missing") for r in lease.reservations if r.missing_resources}
    return missing | {(r.id, "changed") for r in lease.reservations if r.resources_changed}


def _step(event_type: str, lease: Lease) -> int:
    """Return the number of this write of the lease."""
    return 0 if event_type == CREATED else lease.version + 1


def _mark(event_type: str, lease: Lease) -> str:
    """Return the identity of an event.

    Before-end changes nothing in the lease, so its version would make a retry look like another
    event; the before-end time identifies it instead.
    """
    which = str(lease.version)
    if event_type == BEFORE_ENDED and lease.before_end is not None:
        which = lease.before_end.isoformat()
    return f"{event_type}/{lease.id}/{which}"


def payload(event_type: str, lease: Lease, now: datetime, show: Show) -> dict[str, Any]:
    """Render a lease as the contract's notifications carry it."""
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
    """Return the lease's events with the status that their rows have, or are about to have.

    A change does not read its operations; their status follows from the lease and the time.
    """
    due = due_times(lease.start, lease.end, lease.before_end)
    return [
        Event("", kind, at, _supposed(event_type, lease, kind, at, now))
        for kind, at in sorted(due.items(), key=lambda item: item[1])
    ]


def _supposed(event_type: str, lease: Lease, kind: str, at: datetime, now: datetime) -> str:
    if event_type.removeprefix("lease.event.") == EVENT_TYPES[kind]:
        return DONE  # the event being sent
    if lease.status == "ERROR" and kind == START:
        return ERROR  # only a failed start leaves a lease in ERROR
    over = at <= now and lease.status not in ("PENDING", "STARTING", "ERROR")
    return DONE if over else WAITING
