# SPDX-License-Identifier: Apache-2.0
"""The manager's synchronous commands, as the API calls them in process or by RPC.

Arguments and results are plain values; errors are `model.errors`. Reads are not commands: the
API reads the database directly. A command carries ids chosen by the caller, so that a repeated
command has the effect of a single command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.errors import HoldfastError
from holdfast.model.lease import Lease, LeaseChange, NewLease, NewReservation, Window
from holdfast.model.observation import Expectation


@dataclass(frozen=True)
class Caller:
    """The caller of a command: user, project and roles, also passed over RPC."""

    user_id: str
    project_id: str
    roles: tuple[str, ...] = ()
    request_id: str = ""
    is_admin: bool = False

    def may_see(self, project_id: str) -> bool:
        """Whether the caller may see objects of the project: its own project, or any as admin."""
        return self.is_admin or self.project_id == project_id


@dataclass(frozen=True)
class Preview:
    """The result of a dry run: the planned lease with its allocations."""

    lease: Lease


@dataclass(frozen=True)
class AvailabilityQuery:
    """A request for free capacity and the time when that capacity is free.

    Either from `start` to `end`, or for the first windows of `length_s` that begin between
    `start` and `until`. `start` None means now.
    """

    reservation: NewReservation
    start: datetime | None = None
    end: datetime | None = None
    length_s: int | None = None
    until: datetime | None = None
    limit: int = 5


@dataclass(frozen=True)
class Available:
    """The number of free hosts, slots or addresses in a window."""

    window: Window
    amount: int


@dataclass(frozen=True)
class Refusal:
    """The reason for a refusal, as a create request would get: the sentence and its details."""

    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: HoldfastError) -> "Refusal":
        return cls(error.message, error.details)


@dataclass(frozen=True)
class Availability:
    """The answer to an availability query.

    `amount` is the largest amount that a window has, 0 if there is no window.
    """

    fits: bool
    amount: int = 0
    windows: tuple[Available, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True)
class RepairMove:
    """The real or planned outcome of a repair for a reservation that a failed host affects."""

    lease_id: str
    lease_name: str
    project_id: str
    reservation_id: str
    resource_type: str
    active: bool
    start: datetime
    end: datetime
    leaves: tuple[str, ...] = ()  # failed hosts that are replaced
    joins: tuple[str, ...] = ()  # replacement hosts
    short: str = ""  # what the reservation still lacks, and why


@dataclass(frozen=True)
class RepairReport:
    """The plan of a repair.

    `held` says why the manager does not repair by itself (too much failed at once): the repair
    waits for an operator's approval. `usable` counts usable hosts, `free` those of them that
    are free now.
    """

    failed: tuple[str, ...] = ()
    moves: tuple[RepairMove, ...] = ()
    held: str = ""
    usable: int = 0
    free: int = 0


class Manager(Protocol):
    def ping(self) -> str:
        """Return the name of the answering manager."""
        ...

    def create_lease(self, caller: Caller, lease: NewLease) -> Preview | None:
        """Book a lease; return a preview for a dry run."""
        ...

    def update_lease(self, caller: Caller, lease_id: str, change: LeaseChange) -> Preview | None:
        """Change a lease; return a preview for a dry run."""
        ...

    def delete_lease(self, caller: Caller, lease_id: str) -> None: ...

    def replace_host(
        self, caller: Caller, lease_id: str, reservation_id: str, host_id: int
    ) -> None:
        """Replace the host of a reservation that has not started by another host."""
        ...

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        """Clear `resources_changed`: the owner has seen that the lease got other resources."""
        ...

    def plan_repair(
        self, caller: Caller, hosts: Sequence[str] = (), racks: Sequence[str] = ()
    ) -> RepairReport:
        """Return the plan of a repair now, also assuming that `hosts` and `racks` failed.

        The manager writes nothing. NotFound names a host or rack that is not enrolled.
        """
        ...

    def run_repair(
        self, caller: Caller, approve: bool = False, reason: str = "", domain: str = ""
    ) -> RepairReport:
        """Repair now, without waiting for the next periodic run.

        `approve` lifts a mass-failure hold for a while: everywhere, or in one failure domain (a
        rack or a zone).
        """
        ...

    def availability(self, caller: Caller, query: AvailabilityQuery) -> Availability:
        """Return the free amounts and windows, without booking anything."""
        ...

    def enrol_host(self, caller: Caller, name: str, capabilities: Mapping[str, str]) -> int:
        """Enrol a host; return the new host's id."""
        ...

    def know_host(self, caller: Caller, name: str) -> int:
        """Return the id of the cloud host in table `hosts`, adding the host if missing.

        An added host is not enrolled. InvalidInput if the cloud has no such host.
        """
        ...

    def expected(self, caller: Caller, host: str, also: Sequence[str] = ()) -> Expectation:
        """Return the cloud's records of the host's servers and of the servers in `also`.

        NotFound if the cloud has no such host.
        """
        ...

    def describe_host(
        self, caller: Caller, host_id: int, capabilities: Mapping[str, str | None]
    ) -> None: ...

    def withdraw_host(self, caller: Caller, host_id: int) -> None: ...

    def set_property(self, caller: Caller, name: str, private: bool) -> None: ...

    def enrol_floatingip(self, caller: Caller, network_id: str, address: str) -> str:
        """Enrol a floating IP; return the new id."""
        ...

    def withdraw_floatingip(self, caller: Caller, floatingip_id: str) -> None: ...
