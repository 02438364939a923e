# SPDX-License-Identifier: Apache-2.0
"""The book of hosts, leases and allocations as the reserve package needs it.

Every write is one transaction: it takes the rows of the hosts it uses, checks that nobody holds
them in the window, and writes all or nothing. `NotEnoughHosts` never comes from here; a lost race
is a `StaleWrite` and the caller looks again.
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
    """What a save does to the durable work of its subject."""

    add: tuple[Operation, ...] = ()
    put: tuple[Operation, ...] = ()  # the row of the same key is armed again
    cancel: frozenset[str] = frozenset()  # kinds


@dataclass(frozen=True)
class Change:
    """One of many steps that are saved together."""

    old: Lease
    new: Lease
    work: Work | None = None
    say: str = ""


@dataclass(frozen=True)
class Obstacle:
    """A lease that is in the way; of another project's only that it is there, and until when."""

    until: datetime
    hosts: int
    lease_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Limits:
    """What a project may have at most, live and ahead; None: as much as it likes."""

    leases: int | None = None
    hosts: int | None = None
    host_hours: int | None = None


@dataclass(frozen=True)
class RightfulPool:
    """What the pool of a reservation that runs should be."""

    lease_id: str
    project_id: str
    hosts: frozenset[str]


@dataclass(frozen=True)
class Rightful:
    """What pools should be, as far as nobody is about to change them: those of reservations by
    id, hosts that belong to the free pool, hosts that are enrolled, and hosts that we know and that
    are not on their way anywhere."""

    reservations: Mapping[str, RightfulPool]
    free: frozenset[str]
    enrolled: frozenset[str]
    settled: frozenset[str]


class Ledger(Protocol):
    def now(self) -> datetime: ...

    # leases
    def lease(self, lease_id: str) -> Lease: ...

    def book(
        self, lease: Lease, work: Work, *, limits: Limits | None = None, patient: bool = True
    ) -> None:
        """Write a new lease with its allocations and its work; QuotaExceeded.

        Who is not `patient` gets StaleWrite where another booking has one of the hosts in hand.
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
        patient: bool = True,
        spared: bool = False,
    ) -> Lease:
        """Write the step from old to new; under a claim, only while it is ours. `spared`: it may
        take what segments keep free in case hosts fail."""
        ...

    def save_many(self, steps: Sequence[Change]) -> None:
        """All of them in one transaction, or none: StaleWrite. Repair's: neither quotas nor what
        segments keep free stand in its way."""
        ...

    def foresee(self, old: Lease | None, new: Lease, limits: Limits) -> None:
        """QuotaExceeded if writing that step would be more than the project may have."""
        ...

    def erase(self, lease: Lease, *, claim: Claim, say: str, work: Work | None = None) -> None:
        """Remove a lease and all it held; its story stays in the audit."""
        ...

    def news_of_pools(self, since: datetime) -> Mapping[str, datetime]:
        """Whose pools changed since then, and when: reservations by id, all hosts as ''."""
        ...

    # repair
    def needs_repair(self) -> bool:
        """Whether an enrolled host has failed or is on its way back, or a living reservation
        misses something."""
        ...

    def leases_on(self, host_ids: Collection[int], *, flagged: bool = False) -> Sequence[Lease]:
        """Leases that wait or run and hold one of these hosts now or later; `flagged`: also those
        that miss something."""
        ...

    def holders(self, host_id: int) -> Mapping[str, bool]:
        """Ids of reservations that hold the host at this moment; whether the whole of it."""
        ...

    def rightful(self, kinds: Collection[str]) -> Rightful:
        """Of reservations only those of these resource types."""
        ...

    def note(self, subject: str, sentence: str) -> None:
        """A sentence for the audit, of something that changes nothing else."""
        ...

    def keep_back(self, host_id: int, work: Work) -> None:
        """Let nobody book a host that failed, until that work gives it back."""
        ...

    def arm(self, operation: Operation) -> None:
        """Make the one row of a chore due; whoever is at it is not disturbed."""
        ...

    def expedite(self, key: str) -> None:
        """Make open work due that only waits; nothing if there is none."""
        ...

    def approve(self, what: str, author: str, reason: str, until: datetime) -> None:
        """An operator's word that lifts a hold: of a kind of work (`repair`), or of it in one
        failure domain (`repair:rack-a`)."""
        ...

    def approved(self, kind: str) -> Collection[str]:
        """The failure domains where the hold of that work is lifted; "" for all of them."""
        ...

    # hosts
    def host(self, ref: str) -> Host:
        """An enrolled host by id, uuid or name; NotFound."""
        ...

    def enrolled(self, *, after: int = 0, most: int | None = None) -> Sequence[Host]:
        """Enrolled hosts, by id: all, or so many that come after that one."""
        ...

    def stock(self, *, sure: bool = False) -> CapacitySnapshot:
        """Reservable hosts and who holds them when, as of now: what planning looks at.

        A writer that was frozen for long can be missed; `sure` looks at every host, so that a
        refusal never rests on what is not so.
        """
        ...

    def busy_things(self, keys: Collection[str], window: Window, *, besides: str) -> set[str]:
        """Those of the things that somebody other than that lease holds in the window."""
        ...

    def known_things(self, keys: Collection[str]) -> set[str]:
        """Those of the things that anybody ever booked, also where the lease is gone by now."""
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
        """Who other than that lease holds these hosts in the window, the first to give one back
        first."""
        ...

    def late_hosts(self) -> set[int]:
        """Hosts of leases whose end or deletion is due and not done."""
        ...

    def not_given_back(
        self, ids: Collection[int], *, besides: str, whole: bool = False
    ) -> Collection[str]:
        """In words, leases that are over and whose end has not returned these hosts yet (`whole`:
        only those that held whole hosts), and of these hosts those that are on their way back."""
        ...

    def enrol(
        self, host: CloudHost, region: str, extras: Mapping[str, str], work: Work
    ) -> Host: ...

    def refresh(self, host_id: int, host: CloudHost) -> bool:
        """Write what the cloud says of an enrolled host now; whether anything of it is new."""
        ...

    def describe(self, host_id: int, extras: Mapping[str, str | None]) -> None:
        """Set extra capabilities, remove those that are None; Conflict if one is in use."""
        ...

    def set_reservable(self, host_id: int, reservable: bool, *, claim: Claim) -> None: ...

    def withdraw(self, host_id: int, work: Work) -> None:
        """Take a host out of reservation; HostInUse while a lease holds or will hold it."""
        ...

    def set_property(self, name: str, private: bool) -> None: ...

    # floating IPs, and other things that have one owner at a time
    def floatingips(self, network_id: str | None = None) -> Sequence[FloatingIp]:
        """Those that can be reserved, of one network or of all."""
        ...

    def floatingip(self, floatingip_id: str) -> FloatingIp:
        """NotFound."""
        ...

    def enrol_floatingip(self, wanted: FloatingIp) -> None:
        """Conflict if the address is enrolled."""
        ...

    def withdraw_floatingip(self, floatingip_id: str) -> None:
        """Conflict while a lease holds or will hold it; NotFound."""
        ...

    def thing_holds(self, keys: Collection[str], window: Window) -> Sequence[tuple[str, Window]]:
        """Who of the things is held when, as far as that touches the window."""
        ...

    def things_not_given_back(self, keys: Collection[str], *, besides: str) -> Collection[str]:
        """Names of leases that are over and whose end has not returned these things yet."""
        ...


# Durable work as the runner needs it: find, claim, keep, record, finish.


class Operations(Protocol):
    def now(self) -> datetime:
        """The database's clock: the one that all managers share."""
        ...

    def by_key(self, key: str) -> Operation: ...

    def ensure(self, operation: Operation) -> None:
        """See to it that work of that key is open; what is open already is left alone."""
        ...

    def claim_due(
        self, owner: str, limit: int, ttl: timedelta, kinds: Collection[str]
    ) -> Sequence[Operation]:
        """Take up to `limit` operations of these kinds whose time has come, oldest first."""
        ...

    def next_look(self, after: datetime | None = None) -> datetime | None:
        """When the earliest open operation wants to be looked at, of those later than `after`.

        Without it: later than now.
        """
        ...

    def renew(self, claim: Claim, ttl: timedelta) -> None:
        """Keep the claim for another `ttl`; ClaimLost if it is not ours any more."""
        ...

    def renew_many(self, claims: Sequence[Claim], ttl: timedelta) -> set[str]:
        """The same of several of one owner; the ids of those that are still its own."""
        ...

    def step_done(
        self, claim: Claim, position: int, name: str, sentence: str, ttl: timedelta
    ) -> None:
        """Record a finished step and renew the claim in one go."""
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
        """Give the claim back: look again at `next_try_at`; `failures` adds to the attempts. With
        the `due_at` that was claimed: at once, if it was asked for again since."""
        ...

    def finish(self, claim: Claim, status: str, sentence: str) -> bool:
        """Close the operation as done or error; whether the next of its subject is due already."""
        ...


# Old rows that nobody will ask for any more.


class Tidy(Protocol):
    def now(self) -> datetime: ...

    def operations(self, before: datetime, most: int) -> int:
        """Remove up to `most` operations that ended before that moment, but none of a lease that
        still exists; how many were removed."""
        ...

    def reports(self, before: datetime, most: int) -> int:
        """Remove up to `most` notifications that ended before that moment, and with the last one of
        an incident the incident, its verdicts and its moves; how many notifications."""
        ...

    def observations(self, before: datetime, most: int) -> int:
        """Remove up to `most` observations older than that, but none of an incident that is open
        or of a host whose votes are being counted; with the last one of an incident the incident,
        as above; how many observations."""
        ...

    def samples(self, before: datetime, most: int) -> int:
        """Remove up to `most` hosts' numbers that nobody wants since then; how many hosts."""
        ...

    def audit(self, before: datetime, most: int) -> int:
        """Remove up to `most` sentences of the audit older than that; how many were removed."""
        ...

    def alarms(self, before: datetime, most: int) -> int:
        """End up to `most` alarms that stand, of agents that were not heard of since then; how many
        that were. Their rows go when they are over for long enough."""
        ...
