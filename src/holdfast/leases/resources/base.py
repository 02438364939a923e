# SPDX-License-Identifier: Apache-2.0
"""What a resource type must know: a third party adds one with this Protocol and one entry point.

    [project.entry-points."holdfast.resources"]
    "physical:host" = "holdfast.leases.resources.host:HostResource"

`plan` is asked inside a loop that looks, plans and books until nobody was faster. The effects are
called from durable steps: each may run twice and must then do nothing the second time. A type of
your own needs what differs from `Quiet`, and an entry point:

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
    """The settings resources read, each time anew."""

    before_end: str
    preemptibles: bool
    server_on_end: Sequence[str]
    server_start_patience_s: float


@dataclass(frozen=True)
class EffectContext:
    """What an effect works with: the cloud (guarded by the claim), the book, parallel calls."""

    cloud: Cloud
    ledger: Ledger
    calls: Executor
    known: KnownPools
    freepool: str
    options: Options

    @contextlib.contextmanager
    def pool(self, name: str, metadata: Mapping[str, str] | None = None) -> Iterator[str]:
        """The id of the pool of that name, made if need be, remembered until it proves wrong."""
        remembered = name in self.known
        try:
            yield self.known.id_of(self.cloud.pools, name, metadata or {})
        except NotFound as gone:
            self.known.forget(name)
            if remembered:
                raise NotYet(f"pool {name} is not what it was: {gone.message}", 0.1) from gone
            raise DriverError("cloud", gone.message, retryable=True) from gone

    def each(self, action: Callable[[str], None], names: Iterable[str]) -> None:
        """Do it for every name at once; the first failure is raised after all have ended."""
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
    """What a reservation asks for, and what is true of it already.

    Of the stock that comes with it, what the lease itself holds is taken out, and what was planned
    for the same lease a moment ago is put in.
    """

    spec: Mapping[str, Any]
    held: Window
    project_id: str
    reservation: Reservation | None = None  # planned anew: what it holds is preferred
    order: Order = float
    lease_id: str = ""
    taken: frozenset[str] = frozenset()  # things that other reservations of the lease have

    @property
    def kept(self) -> tuple[Allocation, ...]:
        return self.reservation.allocations if self.reservation else ()

    @property
    def is_active(self) -> bool:
        """An active reservation never loses what it has."""
        return bool(self.reservation and self.reservation.status == "active")


@dataclass(frozen=True)
class Opening:
    """When a wish could be had: for that window, that many."""

    window: Window
    amount: int


@dataclass(frozen=True)
class Effect:
    """What an effect did, in a sentence; what the owner should know of it."""

    sentence: str
    made: Mapping[str, Any] = field(default_factory=dict)  # ids that the cloud gave
    missing: bool | None = None  # whether something could not be had; None: nothing to say


class Resource(Protocol):
    type: str
    arranges: bool  # whether `arrange` has anything to do
    pooled: bool  # whether, while it runs, the pool of its id has just the hosts that it holds

    # decide

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The normalised spec of a reservation, or InvalidInput naming the field."""
        ...

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        """The spec with what only the cloud knows (a flavor's size, a server's host)."""
        ...

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The spec after an update; InvalidInput or Conflict when that cannot change (any more)."""
        ...

    def plan(self, wish: Wish, stock: CapacitySnapshot, ledger: Ledger) -> tuple[Allocation, ...]:
        """What to hold in the window; NotEnoughHosts says why not."""
        ...

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need | None:
        """What must take the place of what is lost, beside what the wish keeps; None: `plan` is
        asked instead, for this reservation alone."""
        ...

    def openings(
        self, wish: Wish, until: datetime, stock: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """The earliest windows as long as `wish.held`, from its start on, that would fit."""
        ...

    # act

    def arrange(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """What must happen as soon as it is booked."""
        ...

    def prepare(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Make what can be made before the start."""
        ...

    def start(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Make it usable: as few calls as can be, the lease is active when they return."""
        ...

    def settle(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """What belongs to a start and can follow once the lease is active."""
        ...

    def before_end(
        self, hands: EffectContext, lease: Lease, reservation: Reservation
    ) -> Effect: ...

    def end(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Give everything back; NotYet while the cloud is still at it."""
        ...


class Quiet:
    """A resource type that has nothing to say or do unless it says so: begin with this one."""

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
        """By trying: at once, and whenever somebody gives something back."""
        return by_trying(self.plan, wish, until, stock, ledger, most)

    def arrange(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to arrange")

    def prepare(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to prepare")

    def start(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to start")

    def settle(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to settle")

    def before_end(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing asked for before the end")

    def end(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to give back")


#: How many moments `by_trying` looks at.
MOST_TRIES = 200


def by_trying(
    plan: Callable[[Wish, CapacitySnapshot, Ledger], tuple[Allocation, ...]],
    wish: Wish,
    until: datetime,
    stock: CapacitySnapshot,
    ledger: Ledger,
    most: int,
) -> Sequence[Opening]:
    """Openings of any resource type: planned at once, and whenever a host is given back."""
    length = wish.held.end - wish.held.start
    ends = {
        datetime.fromtimestamp(hold.end, UTC)
        for host_id in stock.hosts
        for hold in stock.line(host_id).within(wish.held.start.timestamp(), until.timestamp())
        if hold.end <= until.timestamp()
    }
    found: list[Opening] = []
    for start in [wish.held.start, *sorted(ends)[:MOST_TRIES]]:
        window = Window(start, start + length)
        try:
            planned = plan(replace(wish, held=window), stock, ledger)
        except NotEnoughHosts:
            continue
        found.append(Opening(window, sum(a.slots or 1 for a in planned)))
        if len(found) >= most:
            break
    return found
