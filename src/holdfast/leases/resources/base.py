# SPDX-License-Identifier: Apache-2.0
"""The interface of resource types: a third party adds a type with this Protocol and an entry point.

    [project.entry-points."holdfast.resources"]
    "physical:host" = "holdfast.leases.resources.host:HostResource"

`plan` runs inside a loop that reads, plans and books until the write wins. The effects run in
durable steps: each may run twice, and must then do nothing the second time. A type of your own
overrides the methods of `Quiet` that differ:

    class Licence(Quiet):
        type = "acme:licence"

        def plan(self, wish, stock, ledger):
            return (Allocation(None, wish.held, thing="licence:42"),)
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.jobs.job import NotYet
from holdfast.leases.placement import Need, Order
from holdfast.leases.pools import KnownPools
from holdfast.model.caller import Caller
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import DriverError, NotEnoughHosts, NotFound
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import Cloud
from holdfast.ports.ledger import Ledger


class Options(Protocol):
    """Options of resource types, read anew at every use."""

    before_end: str
    preemptibles: bool
    server_on_end: Sequence[str]
    server_start_timeout_s: float


@dataclass(frozen=True)
class EffectContext:
    """The dependencies of an effect: the cloud (guarded by the claim), the database, parallel
    calls."""

    cloud: Cloud
    ledger: Ledger
    calls: Executor
    known: KnownPools
    freepool: str
    options: Options

    @contextlib.contextmanager
    def pool(self, name: str, metadata: Mapping[str, str] | None = None) -> Iterator[str]:
        """Provide the id of a pool by name: created if missing, cached until proven wrong."""
        remembered = name in self.known
        try:
            yield self.known.id_of(self.cloud.pools, name, metadata or {})
        except NotFound as gone:
            self.known.forget(name)
            if remembered:
                raise NotYet(f"pool {name} is not what it was: {gone.message}", 0.1) from gone
            raise DriverError("cloud", gone.message, retryable=True) from gone

    def each(self, action: Callable[[str], None], names: Iterable[str]) -> None:
        """Run the action for every name in parallel; raise the first failure after all have
        ended."""
        names = list(names)
        if len(names) == 1:
            action(names[0])
            return
        futures = [self.calls.submit(action, name) for name in names]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise errors[0]


@dataclass(frozen=True)
class Wish:
    """The request of a reservation, with its current allocations.

    In the capacity snapshot that comes with it, the holds of the lease itself are removed, and
    those just planned for the same lease are added.
    """

    spec: Mapping[str, Any]
    held: Window
    project_id: str
    reservation: Reservation | None = None  # planned anew: its current allocations are preferred
    order: Order = float
    lease_id: str = ""
    taken: frozenset[str] = frozenset()  # resource keys of the lease's other reservations

    @property
    def kept(self) -> tuple[Allocation, ...]:
        return self.reservation.allocations if self.reservation else ()

    @property
    def is_active(self) -> bool:
        """Whether the reservation is active: an active reservation never loses an allocation."""
        return bool(self.reservation and self.reservation.status == "active")


@dataclass(frozen=True)
class Opening:
    """A window in which a request fits, and how many units."""

    window: Window
    amount: int


@dataclass(frozen=True)
class Effect:
    """The result of an effect: a sentence, and facts for the owner."""

    sentence: str
    made: Mapping[str, Any] = field(default_factory=dict)  # ids from the cloud
    missing: bool | None = None  # whether something is missing; None: no statement


class Resource(Protocol):
    type: str
    arranges: bool  # whether `arrange` does anything
    pooled: bool  # whether, while active, the pool of its id contains exactly its hosts

    # Decisions.

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the normalised spec of a reservation; InvalidInput names the wrong field."""
        ...

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        """Add facts from the cloud to the spec (a flavor's size, a server's host)."""
        ...

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec after an update; InvalidInput or Conflict for a forbidden change."""
        ...

    def plan(self, wish: Wish, stock: CapacitySnapshot, ledger: Ledger) -> tuple[Allocation, ...]:
        """Return the allocations for the window; NotEnoughHosts says why there are none."""
        ...

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need | None:
        """Return the need for lost allocations, beside the kept allocations.

        None: repair calls `plan` instead, for this reservation alone.
        """
        ...

    def openings(
        self, wish: Wish, until: datetime, stock: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List the earliest fitting windows as long as `wish.held`, from its start on."""
        ...

    # Effects.

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Act as soon as the reservation is booked."""
        ...

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Create cloud objects before the start."""
        ...

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Make the resources usable with as few calls as possible: the lease is active
        afterwards."""
        ...

    def settle(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Finish a start once the lease is active."""
        ...

    def before_end(
        self, effects: EffectContext, lease: Lease, reservation: Reservation
    ) -> Effect: ...

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Give everything back; NotYet while the cloud is still busy."""
        ...


class Quiet:
    """A resource type without behaviour: the base class for others."""

    type = ""
    arranges = False
    pooled = False

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        return dict(spec)

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        return dict(spec)

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.validate({**reservation.spec, **wanted})

    def plan(self, wish: Wish, stock: CapacitySnapshot, ledger: Ledger) -> tuple[Allocation, ...]:
        return ()

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need | None:
        return None

    def openings(
        self, wish: Wish, until: datetime, stock: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List openings by planning at once, and at each end of a hold."""
        return by_trying(self.plan, wish, until, stock, ledger, most)

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to arrange")

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to prepare")

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to start")

    def settle(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to settle")

    def before_end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing asked for before the end")

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to give back")


#: Starts that `by_trying` plans.
MOST_TRIES = 200


def by_trying(
    plan: Callable[[Wish, CapacitySnapshot, Ledger], tuple[Allocation, ...]],
    wish: Wish,
    until: datetime,
    stock: CapacitySnapshot,
    ledger: Ledger,
    most: int,
) -> Sequence[Opening]:
    """List openings of any resource type: plan at once, and whenever a host becomes free."""
    length = wish.held.end - wish.held.start
    ends = {
        datetime.fromtimestamp(hold.end, UTC)
        for host_id in stock.hosts
        for hold in stock.line(host_id).within(wish.held.start.timestamp(), until.timestamp())
        if hold.end <= until.timestamp()
    }
    openings: list[Opening] = []
    for start in [wish.held.start, *sorted(ends)[:MOST_TRIES]]:
        window = Window(start, start + length)
        try:
            planned = plan(replace(wish, held=window), stock, ledger)
        except NotEnoughHosts:
            continue
        openings.append(Opening(window, sum(a.slots or 1 for a in planned)))
        if len(openings) >= most:
            break
    return openings
