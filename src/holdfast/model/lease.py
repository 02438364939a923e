# SPDX-License-Identifier: Apache-2.0
"""A lease: reservations of resources for a time, with everything that one transaction writes.

A Lease is a value. A change makes a new one (`lease.move(...)`, `replace(...)`) and the ledger
saves the step from old to new, all or nothing, refused if somebody else wrote in between
(`version`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.model import moves


@dataclass(frozen=True)
class Window:
    """A half-open span of time, [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Allocation:
    """A resource held for a reservation; `slots` is None when the whole host is held.

    `host` is what the cloud's services call it, known once the allocation was read back.
    """

    host_id: int
    held: Window
    slots: int | None = None
    host: str = field(default="", compare=False)


@dataclass(frozen=True)
class Reservation:
    id: str
    resource_type: str
    status: str = "pending"
    missing_resources: bool = False
    resources_changed: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)
    allocations: tuple[Allocation, ...] = ()
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def move(self, status: str) -> "Reservation":
        moves.check(f"reservation {self.id}", moves.RESERVATION, self.status, status)
        return replace(self, status=status)

    def host_ids(self) -> tuple[int, ...]:
        return tuple(a.host_id for a in self.allocations)

    def hosts(self) -> tuple[str, ...]:
        return tuple(a.host for a in self.allocations)


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
        moves.check(f"lease {self.id}", moves.LEASE, self.status, status)
        return replace(self, status=status)

    def move_reservations(self, status: str) -> "Lease":
        """Move every reservation that still can; one already past that point stays."""
        moved = tuple(
            r.move(status) if status in moves.RESERVATION[r.status] else r
            for r in self.reservations
        )
        return replace(self, reservations=moved)


@dataclass(frozen=True)
class Event:
    """What an owner sees of a lease's durable work: when it is due and how far it is."""

    id: str
    kind: str
    due_at: datetime
    status: str
    created_at: datetime | None = None
    updated_at: datetime | None = None


# The kinds of durable work a lease brings along, in the order they must happen.
START, APPLY, BEFORE_END, END, DELETE = (
    "lease_start",
    "lease_apply",
    "lease_before_end",
    "lease_end",
    "lease_delete",
)
SEQUENCE: Mapping[str, int] = {START: 10, APPLY: 15, BEFORE_END: 20, END: 30, DELETE: 40}

#: How the reservation contract names them.
EVENT_TYPES: Mapping[str, str] = {
    START: "start_lease",
    BEFORE_END: "before_end_lease",
    END: "end_lease",
}
