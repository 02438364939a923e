# SPDX-License-Identifier: Apache-2.0
"""Leases: reservations of resources for a time, with everything that one transaction writes.

A Lease is a value. A change makes a new one (`lease.move(...)`, `replace(...)`), and the ledger
saves the step from old to new: all or nothing, and refused if another writer changed the lease
in between (`version`).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.model import state_machines


@dataclass(frozen=True)
class Window:
    """A half-open span of time, [start, end)."""

    start: datetime
    end: datetime


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
