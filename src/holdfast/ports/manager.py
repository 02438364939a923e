# SPDX-License-Identifier: Apache-2.0
"""The commands that must answer now. In process or by RPC, the interface is this one.

Arguments and results are plain values; errors are `model.errors`. Reads are not commands: the API
takes them straight from the database. A command carries ids chosen by the caller, so that the same
command sent twice is one command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.caller import Caller
from holdfast.model.errors import HoldfastError
from holdfast.model.lease import Lease, Window
from holdfast.model.observation import Expectation


@dataclass(frozen=True)
class NewReservation:
    resource_type: str
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NewLease:
    """`start` None means now, `end` None too (an update's "end it now"). With `dry_run` it is
    planned and nothing is booked."""

    id: str
    name: str
    start: datetime | None
    end: datetime | None
    before_end: datetime | None = None
    reservations: tuple[NewReservation, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class LeaseChange:
    """What an update names; None leaves a thing as it is."""

    name: str | None = None
    start: datetime | None = None
    start_now: bool = False
    end: datetime | None = None
    end_now: bool = False
    before_end: datetime | None = None
    reservations: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    dry_run: bool = False


@dataclass(frozen=True)
class Preview:
    """What a dry run found: the lease as it would be, with what it would hold."""

    lease: Lease


@dataclass(frozen=True)
class AvailabilityQuery:
    """What could I get, and when? Either from `start` to `end`, or for the first windows of
    `length_s` that begin from `start` on and not after `until`. `start` None means now.
    """

    reservation: NewReservation
    start: datetime | None = None
    end: datetime | None = None
    length_s: int | None = None
    until: datetime | None = None
    limit: int = 5


@dataclass(frozen=True)
class Available:
    """For that window, that many: hosts, slots or addresses."""

    window: Window
    amount: int


@dataclass(frozen=True)
class Refusal:
    """Why not, as the same create would be told: the sentence and its parts."""

    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: HoldfastError) -> "Refusal":
        return cls(error.message, error.details)


@dataclass(frozen=True)
class Availability:
    """`amount` is the most that one of the windows has, 0 where there is none."""

    fits: bool
    amount: int = 0
    windows: tuple[Available, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True)
class RepairMove:
    """What becomes, or would become, of one reservation that a failed host hits."""

    lease_id: str
    lease_name: str
    project_id: str
    reservation_id: str
    resource_type: str
    active: bool
    start: datetime
    end: datetime
    leaves: tuple[str, ...] = ()  # hosts that failed and are replaced
    joins: tuple[str, ...] = ()  # hosts that it gets instead
    short: str = ""  # what it misses still, and why


@dataclass(frozen=True)
class RepairReport:
    """The plan of a repair. `held` says why nothing of it happens by itself (too much failed at
    once): it waits for an operator's word. Hosts are counted: usable, of these free now, failed."""

    failed: tuple[str, ...] = ()
    moves: tuple[RepairMove, ...] = ()
    held: str = ""
    usable: int = 0
    free: int = 0


class Manager(Protocol):
    def ping(self) -> str:
        """The answering manager's name."""
        ...

    def create_lease(self, caller: Caller, lease: NewLease) -> Preview | None:
        """A preview if it is a dry run."""
        ...

    def update_lease(self, caller: Caller, lease_id: str, change: LeaseChange) -> Preview | None:
        """A preview if it is a dry run."""
        ...

    def delete_lease(self, caller: Caller, lease_id: str) -> None: ...

    def replace_host(
        self, caller: Caller, lease_id: str, reservation_id: str, host_id: int
    ) -> None:
        """Something else instead of that host, for a reservation that has not started."""
        ...

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        """The owner has seen that the lease got something else: `resources_changed` goes."""
        ...

    def plan_repair(
        self, caller: Caller, hosts: Sequence[str] = (), racks: Sequence[str] = ()
    ) -> RepairReport:
        """What a repair would do now; with hosts or racks: if these failed as well. Nothing is
        written. NotFound names a host or rack that is not enrolled."""
        ...

    def run_repair(
        self, caller: Caller, approve: bool = False, reason: str = "", domain: str = ""
    ) -> RepairReport:
        """Repair now, without waiting for the next look; `approve` lifts a hold for a while: all of
        it, or in one failure domain, a rack or a zone."""
        ...

    def availability(self, caller: Caller, query: AvailabilityQuery) -> Availability:
        """What could be had and when, without trying."""
        ...

    def enrol_host(self, caller: Caller, name: str, capabilities: Mapping[str, str]) -> int:
        """The new host's id."""
        ...

    def know_host(self, caller: Caller, name: str) -> int:
        """The id, in the one list of hosts, of what the cloud runs under that name; added if it is
        not there, enrolled for nothing. InvalidInput if the cloud has none."""
        ...

    def expected(self, caller: Caller, host: str, also: Sequence[str] = ()) -> Expectation:
        """What the cloud says of the servers of that host, and of these. NotFound if it has no such
        host."""
        ...

    def describe_host(
        self, caller: Caller, host_id: int, capabilities: Mapping[str, str | None]
    ) -> None: ...

    def withdraw_host(self, caller: Caller, host_id: int) -> None: ...

    def set_property(self, caller: Caller, name: str, private: bool) -> None: ...

    def enrol_floatingip(self, caller: Caller, network_id: str, address: str) -> str:
        """The new floating IP's id."""
        ...

    def withdraw_floatingip(self, caller: Caller, floatingip_id: str) -> None: ...
