# SPDX-License-Identifier: Apache-2.0
"""Database ports of leases, hosts, durable work and retention, as the managers need them.

`Ledger` books hosts and leases for package `leases`, `Operations` serves the work runner,
`Tidy` removes old rows.

Every write of the ledger is one transaction: it locks the rows of the hosts it uses, checks
that no other lease holds them in the window, and writes all or nothing. The ledger never raises
`NotEnoughHosts`; a lost race is a `StaleWrite`, and the caller reads and plans again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.floatingip import FloatingIp
from holdfast.model.host import Host
from holdfast.model.lease import Lease, Window
from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import CloudHost


@dataclass(frozen=True)
class Work:
    """Changes to the durable work of a subject, written in the same transaction as a save."""

    add: tuple[Operation, ...] = ()
    put: tuple[Operation, ...] = ()  # re-arms the row with the same key
    cancel: frozenset[str] = frozenset()  # kinds of operations


@dataclass(frozen=True)
class Change:
    """A step of a lease that is saved together with other steps."""

    old: Lease
    new: Lease
    work: Work | None = None
    say: str = ""


@dataclass(frozen=True)
class Obstacle:
    """A lease that holds a wanted host.

    For a lease of another project only its presence and end are known.
    """

    until: datetime
    hosts: int
    lease_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Limits:
    """Quota of a project for present and future leases; None means unlimited."""

    leases: int | None = None
    hosts: int | None = None
    host_hours: int | None = None


@dataclass(frozen=True)
class RightfulPool:
    """The expected members of the aggregate of a running reservation."""

    lease_id: str
    project_id: str
    hosts: frozenset[str]


@dataclass(frozen=True)
class Rightful:
    """The expected members of aggregates, except aggregates with a change under way.

    `reservations` holds pools of reservations by id, `free` the hosts of the free pool,
    `enrolled` the enrolled hosts, and `settled` the known hosts that are not moving between
    pools.
    """

    reservations: Mapping[str, RightfulPool]
    free: frozenset[str]
    enrolled: frozenset[str]
    settled: frozenset[str]


class Ledger(Protocol):
    def now(self) -> datetime: ...

    # leases
    def lease(self, lease_id: str) -> Lease: ...

    def book(
        self, lease: Lease, work: Work, *, limits: Limits | None = None, wait_for_lock: bool = True
    ) -> None:
        """Write a new lease with its allocations and its work; QuotaExceeded.

        Without `wait_for_lock` the call raises StaleWrite if another booking has locked a host,
        instead of waiting for the lock.
        """
        ...

    def save(
        self,
        old: Lease,
        new: Lease,
        *,
        work: Work | None = None,
        claim: Claim | None = None,
        say: str = "",
        limits: Limits | None = None,
        wait_for_lock: bool = True,
        may_use_spares: bool = False,
        is_repair: bool = False,
    ) -> Lease:
        """Write the step of a lease from `old` to `new`.

        With a claim the write is refused unless the claim is still valid. With `may_use_spares` the
        step may use hosts that segments keep free for host failures. With `is_repair` the audit
        line `say` is marked as a repair.
        """
        ...

    def save_many(self, steps: Sequence[Change]) -> None:
        """Write all steps in a single transaction, or none: StaleWrite.

        Repair uses this call: neither quotas nor the hosts that segments keep free limit it.
        """
        ...

    def foresee(self, old: Lease | None, new: Lease, limits: Limits) -> None:
        """Raise QuotaExceeded if writing this step would exceed the project's quota."""
        ...

    def erase(self, lease: Lease, *, claim: Claim, say: str, work: Work | None = None) -> None:
        """Delete a lease and all its allocations; the audit log keeps its history."""
        ...

    def pool_changes(self, since: datetime) -> Mapping[str, datetime]:
        """Return the pools changed since then, and when: by reservation id, '' for hosts."""
        ...

    # repair
    def needs_repair(self) -> bool:
        """Tell whether there is work for repair.

        True if an enrolled host has failed or is on its way back, or a live reservation misses
        resources.
        """
        ...

    def leases_on(self, host_ids: Collection[int], *, flagged: bool = False) -> Sequence[Lease]:
        """Return pending and running leases that hold any of the hosts now or later.

        With `flagged` also leases that miss resources.
        """
        ...

    def holders(self, host_id: int) -> Mapping[str, bool]:
        """Return ids of the reservations that hold the host now; True for the whole host."""
        ...

    def rightful(self, kinds: Collection[str]) -> Rightful:
        """Return the expected aggregates, with reservations of these resource types only."""
        ...

    def note(self, subject: str, sentence: str) -> None:
        """Write a sentence to the audit log that belongs to no other change."""
        ...

    def keep_back(self, host_id: int, work: Work) -> None:
        """Block a failed host for bookings until `work` returns the host."""
        ...

    def arm(self, operation: Operation) -> None:
        """Make the single row of a periodic job due.

        A manager that runs the job now is not disturbed.
        """
        ...

    def expedite(self, key: str) -> None:
        """Make waiting open work due now; do nothing if there is none."""
        ...

    def approve(self, scope: str, author: str, reason: str, until: datetime) -> None:
        """Record an operator's approval that lifts a hold.

        `scope` is a kind of work (`repair`), or that kind in one failure domain
        (`repair:rack-a`).
        """
        ...

    def approved(self, kind: str) -> Collection[str]:
        """Return the failure domains where the hold of this work is lifted; "" stands for all."""
        ...

    # hosts
    def host(self, ref: str) -> Host:
        """Return an enrolled host by id, uuid or name; NotFound."""
        ...

    def enrolled(self, *, after: int = 0, most: int | None = None) -> Sequence[Host]:
        """Return enrolled hosts by id: all, or at most `most` hosts after id `after`."""
        ...

    def capacity(self, *, sure: bool = False) -> CapacitySnapshot:
        """Return a capacity snapshot: reservable hosts and their holds, for planning.

        The snapshot can miss the commit of a writer that was frozen for long. `sure` reads
        every host, so that the manager never refuses a lease because of outdated data.
        """
        ...

    def busy_things(self, keys: Collection[str], window: Window, *, besides: str) -> set[str]:
        """Return the lockable resources that a lease other than `besides` holds in the window."""
        ...

    def known_things(self, keys: Collection[str]) -> set[str]:
        """Return the lockable resources that were ever booked, also by a lease that is deleted."""
        ...

    def obstacles(
        self,
        hosts: Collection[int],
        window: Window,
        project_id: str,
        *,
        besides: str = "",
        most: int = 10,
    ) -> Sequence[Obstacle]:
        """Return leases other than `besides` that hold these hosts in the window, by end time."""
        ...

    def late_hosts(self) -> set[int]:
        """Return hosts of leases whose end or deletion is due and not done."""
        ...

    def not_given_back(
        self, ids: Collection[int], *, besides: str, whole: bool = False
    ) -> Collection[str]:
        """Return, in words, the ended leases that have not returned these hosts yet.

        With `whole` only leases that held whole hosts. The result also names those of these
        hosts that are on their way back.
        """
        ...

    def enrol(
        self, host: CloudHost, region: str, extras: Mapping[str, str], work: Work
    ) -> Host: ...

    def refresh(self, host_id: int, host: CloudHost, region: str) -> bool:
        """Write the cloud's present data of an enrolled host; tell whether anything changed."""
        ...

    def describe(self, host_id: int, extras: Mapping[str, str | None]) -> None:
        """Set extra capabilities and remove those set to None.

        Conflict if a capability is in use.
        """
        ...

    def set_reservable(self, host_id: int, reservable: bool, *, claim: Claim) -> None: ...

    def withdraw(self, host_id: int, work: Work) -> None:
        """Remove a host from reservation; HostInUse while a lease holds or will hold the host."""
        ...

    def set_property(self, name: str, private: bool) -> None: ...

    def private_properties(self) -> frozenset[str]:
        """Return the names of the properties of hosts that only administrators may see."""
        ...

    # floating IPs, and other lockable resources with one owner at a time
    def floatingips(self, network_id: str | None = None) -> Sequence[FloatingIp]:
        """Return the reservable floating IPs, of a network or of all networks."""
        ...

    def floatingip(self, floatingip_id: str) -> FloatingIp:
        """Return a floating IP; NotFound."""
        ...

    def enrol_floatingip(self, wanted: FloatingIp) -> None:
        """Enrol a floating IP; Conflict if the address is enrolled."""
        ...

    def withdraw_floatingip(self, floatingip_id: str) -> None:
        """Withdraw a floating IP; NotFound, or Conflict while a lease holds or will hold it."""
        ...

    def thing_holds(self, keys: Collection[str], window: Window) -> Sequence[tuple[str, Window]]:
        """Return the holds of these lockable resources that overlap the window."""
        ...

    def hold_ends(self, resource_type: str, window: Window) -> set[datetime]:
        """Return the ends, in the window, of all holds of reservations of this type."""
        ...

    def things_not_given_back(self, keys: Collection[str], *, besides: str) -> Collection[str]:
        """Return names of ended leases that have not returned these lockable resources yet."""
        ...


# Durable work, for the runner: find, claim, renew, record, finish.


class Operations(Protocol):
    def now(self) -> datetime:
        """Return the database's time: the clock shared by all managers."""
        ...

    def by_key(self, key: str) -> Operation: ...

    def ensure(self, operation: Operation) -> None:
        """Add this work unless work of the same key is open; open work stays unchanged."""
        ...

    def claim_due(
        self, owner: str, limit: int, ttl: timedelta, kinds: Collection[str]
    ) -> Sequence[Operation]:
        """Claim up to `limit` due operations of these kinds, oldest first."""
        ...

    def next_due(self, after: datetime | None = None) -> datetime | None:
        """Return the earliest time at which an open operation is due, later than `after`.

        Without `after`: later than now.
        """
        ...

    def correct_future(self, ttl: timedelta) -> int:
        """Make work due now that a clock ahead of time put off; return the number of rows.

        Claims that end later than `ttl` from now end then. Work with a date of its own (start
        and end of a lease) keeps the date.
        """
        ...

    def renew(self, claim: Claim, ttl: timedelta) -> None:
        """Extend the claim by `ttl`; ClaimLost if another owner has the claim."""
        ...

    def renew_many(self, claims: Sequence[Claim], ttl: timedelta) -> set[str]:
        """Extend several claims of the same owner; return the ids still owned."""
        ...

    def step_done(
        self, claim: Claim, position: int, name: str, sentence: str, ttl: timedelta
    ) -> None:
        """Record a finished step and renew the claim in a single transaction."""
        ...

    def put_off(
        self,
        claim: Claim,
        status: str,
        next_try_at: datetime,
        sentence: str,
        failures: int = 0,
        *,
        due_at: datetime | None = None,
    ) -> None:
        """Release the claim and retry at `next_try_at`; `failures` adds to the attempts.

        With the `due_at` that was claimed: retry at once if another request moved `due_at`
        since.
        """
        ...

    def finish(self, claim: Claim, status: str, sentence: str) -> bool:
        """Close the operation as done or error; tell whether the subject's next is due."""
        ...


# Retention: removal of old rows.


class Tidy(Protocol):
    def now(self) -> datetime: ...

    def operations(self, before: datetime, most: int) -> int:
        """Delete up to `most` operations that ended before `before`; return the number deleted.

        Operations of a lease that still exists stay.
        """
        ...

    def reports(self, before: datetime, most: int) -> int:
        """Delete up to `most` notifications ended before `before`; return the number deleted.

        With the last notification of an incident the incident, its verdicts and its moves are
        deleted.
        """
        ...

    def observations(self, before: datetime, most: int) -> int:
        """Delete up to `most` observations older than `before`; return the number deleted.

        Observations of an open incident and of a host whose votes are being counted stay. With
        the last observation of an incident the incident is deleted, as in `reports`.
        """
        ...

    def samples(self, before: datetime, most: int) -> int:
        """Delete the metrics of up to `most` hosts not requested since then; return the number."""
        ...

    def audit(self, before: datetime, most: int) -> int:
        """Delete up to `most` audit sentences older than `before`; return the number deleted."""
        ...

    def alarms(self, before: datetime, most: int) -> int:
        """End up to `most` firing alarms of agents not heard since `before`; return the number.

        Retention deletes the rows of ended alarms later.
        """
        ...
