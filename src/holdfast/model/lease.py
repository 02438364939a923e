# SPDX-License-Identifier: Apache-2.0
"""Leases: reservations of resources for a time, and the requests that create and change them.

A Lease is a value. A change makes a new one (`lease.move(...)`, `replace(...)`), and the ledger
saves the step from old to new: all or nothing, and refused if another writer changed the lease
in between (`version`).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.model import state_machines
from holdfast.model.errors import Conflict, InvalidInput


@dataclass(frozen=True)
class Window:
    """A half-open span of time, [start, end)."""

    start: datetime
    end: datetime

    def contains(self, other: "Window") -> bool:
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: "Window") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Allocation:
    """A hold of a reservation for a time: a whole host, slots of a host, or a `thing`.

    Slots take `takes` of the host's capacity, all slots together, by resource class. A thing is
    any resource other than a host that has one owner at a time: an address or a server; its key
    says which. `host` is the host name in the cloud's services, known once the allocation was
    read back.
    """

    host_id: int | None
    held: Window
    slots: int | None = None  # None: the whole host
    takes: Mapping[str, int] = field(default_factory=dict)
    thing: str | None = None
    host: str = field(default="", compare=False)


@dataclass(frozen=True)
class Reservation:
    id: str
    resource_type: str
    status: str = "pending"
    missing_resources: bool = False
    resources_changed: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)  # the request
    made: Mapping[str, Any] = field(default_factory=dict)  # ids of its cloud objects
    created_at: datetime | None = None
    updated_at: datetime | None = None
    allocations: tuple[Allocation, ...] = ()

    def move(self, status: str) -> "Reservation":
        state_machines.check(
            f"reservation {self.id}", state_machines.RESERVATION, self.status, status
        )
        return replace(self, status=status)

    def host_ids(self) -> tuple[int, ...]:
        return tuple(a.host_id for a in self.allocations if a.host_id is not None)

    def hosts(self) -> tuple[str, ...]:
        return tuple(a.host for a in self.allocations if a.host_id is not None)


@dataclass(frozen=True)
class Lease:
    id: str
    name: str
    user_id: str
    project_id: str
    start: datetime
    end: datetime
    before_end: datetime | None = None
    status: str = "PENDING"
    degraded: bool = False
    version: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    user_events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by id
    reservations: tuple[Reservation, ...] = ()

    @property
    def window(self) -> Window:
        return Window(self.start, self.end)

    def move(self, status: str) -> "Lease":
        state_machines.check(f"lease {self.id}", state_machines.LEASE, self.status, status)
        return replace(self, status=status)

    def move_reservations(self, status: str) -> "Lease":
        """Move every reservation for which the transition is legal; the others stay."""
        moved = tuple(
            r.move(status) if status in state_machines.RESERVATION[r.status] else r
            for r in self.reservations
        )
        return replace(self, reservations=moved)

    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(a for r in self.reservations for a in r.allocations)


@dataclass(frozen=True)
class Event:
    """An operation of a lease as its owner sees it: due time and status."""

    id: str
    kind: str
    due_at: datetime
    status: str
    created_at: datetime | None = None
    updated_at: datetime | None = None


# The kinds of operations of a lease, in the order in which they must run.
ARRANGE, START, APPLY, BEFORE_END, END, DELETE = (
    "lease_arrange",
    "lease_start",
    "lease_apply",
    "lease_before_end",
    "lease_end",
    "lease_delete",
)
SEQUENCE: Mapping[str, int] = {
    ARRANGE: 5,
    START: 10,
    APPLY: 15,
    BEFORE_END: 20,
    END: 30,
    DELETE: 40,
}

#: How the reservation contract names these kinds.
EVENT_TYPES: Mapping[str, str] = {
    START: "start_lease",
    BEFORE_END: "before_end_lease",
    END: "end_lease",
}


# Requests: NewLease and LeaseChange, and the rules that turn a request into a lease.


#: Fields that the owner sets and the manager only stores, in NewLease, LeaseChange and Lease.
OWNER_FIELDS = ("name",)


@dataclass(frozen=True)
class NewReservation:
    resource_type: str
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NewLease:
    """A requested lease. `start` None means now; `end` None means now too ("end it now").

    With `dry_run` the manager plans the lease and books nothing.
    """

    id: str
    name: str
    start: datetime | None
    end: datetime | None
    before_end: datetime | None = None
    reservations: tuple[NewReservation, ...] = ()
    dry_run: bool = False
    user_events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LeaseChange:
    """The fields that a lease update changes; None leaves a field unchanged."""

    name: str | None = None
    start: datetime | None = None
    start_now: bool = False
    end: datetime | None = None
    end_now: bool = False
    before_end: datetime | None = None
    reservations: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    dry_run: bool = False


def owner_fields(request: NewLease | LeaseChange) -> dict[str, Any]:
    """Return the fields that the manager copies from the request; unset fields are left out."""
    values = {name: getattr(request, name) for name in OWNER_FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def minute(when: datetime) -> datetime:
    return when.replace(second=0, microsecond=0)


def requested_dates(
    wanted: NewLease, now: datetime, before_end_default: timedelta
) -> tuple[datetime, datetime, datetime | None]:
    """Return start, end and before-end of a new lease; "now" is the current minute."""
    start = minute(now) if wanted.start is None else wanted.start
    end = minute(now) if wanted.end is None else wanted.end
    if start < minute(now):
        raise InvalidInput("start_date: Start date must be later than current date")
    _ordered(start, end)
    return start, end, _before_end(wanted.before_end, start, end, before_end_default)


def changed_dates(
    lease: Lease, change: LeaseChange, now: datetime, before_end_default: timedelta
) -> tuple[datetime, datetime, datetime | None]:
    """Return the dates after an update; the lease's status limits which dates may change."""
    started = lease.status not in ("PENDING", "CREATING")
    start = _pick(change.start, change.start_now, minute(now), lease.start)
    if started and start == minute(lease.start):  # a client of the contract sends no seconds
        start = lease.start
    end = _pick(change.end, change.end_now, now, lease.end)
    if (start, end) != (lease.start, lease.end) or change.before_end:
        if started and start != lease.start:
            raise InvalidInput("start_date: Cannot modify the start date of a started lease")
        if not started and start != lease.start and start < minute(now):
            raise InvalidInput("start_date: Start date must be later than current date")
        if end < minute(now):
            raise InvalidInput("end_date: End date must be later than current date")
    if not (change.end_now and end == start):  # ended at the moment it began
        _ordered(start, end)
    if change.before_end is not None:
        return start, end, _before_end(change.before_end, start, end, before_end_default)
    return start, end, _kept_before_end(lease, start, end)


def due_times(start: datetime, end: datetime, before_end: datetime | None) -> dict[str, datetime]:
    """Return the due time of each operation of a lease."""
    due = {START: start, END: end}
    return due if before_end is None else {**due, BEFORE_END: before_end}


def check_updatable(lease: Lease, change: LeaseChange) -> None:
    """Refuse an update while an operation runs; after the end, only the name can change.

    An operation under way needs the lease to itself.
    """
    if lease.status in ("CREATING", "STARTING", "UPDATING", "TERMINATING", "DELETING"):
        raise Conflict(
            f"Invalid lease status: lease {lease.id} is {lease.status}; try again when that is done"
        )
    if lease.status in ("TERMINATED", "ERROR") and not _renames_only(lease, change):
        raise InvalidInput(f"Lease is {lease.status}: only its name can change")


def _renames_only(lease: Lease, change: LeaseChange) -> bool:
    """Whether the change only renames; dates are permitted if equal to the current dates."""
    same_dates = change.start in (None, lease.start) and change.end in (None, lease.end)
    now_said = change.start_now or change.end_now
    return same_dates and not (now_said or change.before_end or change.reservations)


def _pick(named: datetime | None, now_said: bool, now: datetime, old: datetime) -> datetime:
    if now_said:
        return now
    return old if named is None else named


def _ordered(start: datetime, end: datetime) -> None:
    if end <= start:
        raise InvalidInput("end_date: End date must be later than start date.")


def _before_end(
    named: datetime | None, start: datetime, end: datetime, default: timedelta
) -> datetime | None:
    if named is not None:
        if not start < named < end:
            raise InvalidInput("before_end_date: Datetime is out of lease limits")
        return named
    return max(start, end - default) if default else None


def _kept_before_end(lease: Lease, start: datetime, end: datetime) -> datetime | None:
    """Keep the distance between before-end and end, when the change names no before-end."""
    if lease.before_end is None:
        return None
    return max(start, end - (lease.end - lease.before_end))


# A lease as plain data and back: operations keep a copy of a lease that may be deleted by then.


_TIMES = ("start", "end", "before_end", "created_at", "updated_at")


def to_plain(lease: Lease) -> dict[str, Any]:
    """Convert a lease to JSON-able data; `from_plain` returns an equal lease."""
    text = json.dumps(dataclasses.asdict(lease), default=datetime.isoformat)
    plain: dict[str, Any] = json.loads(text)
    return plain


def from_plain(plain: Mapping[str, Any]) -> Lease:
    reservations = tuple(_reservation(reservation) for reservation in plain["reservations"])
    return Lease(**{**_with_times(plain), "reservations": reservations})


def _reservation(plain: Mapping[str, Any]) -> Reservation:
    allocations = tuple(_allocation(allocation) for allocation in plain["allocations"])
    return Reservation(**{**_with_times(plain), "allocations": allocations})


def _allocation(plain: Mapping[str, Any]) -> Allocation:
    return Allocation(**{**plain, "held": Window(**_with_times(plain["held"]))})


def _with_times(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: datetime.fromisoformat(value) if key in _TIMES and value else value
        for key, value in plain.items()
    }
