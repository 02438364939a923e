# SPDX-License-Identifier: Apache-2.0
"""The interface of resource types: a third party adds a type with this Protocol and an entry point.

    [project.entry-points."holdfast.resources"]
    "physical:host" = "holdfast.leases.resources.host:HostResource"

`plan` runs inside a loop that reads, plans and books until the write wins. The effects run in
durable steps: each may run twice, and must then do nothing the second time. A type of your own
overrides the methods of `BaseResource` that differ:

    class Licence(BaseResource):
        type = "acme:licence"

        def plan(self, wish, snapshot, ledger):
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
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, DriverError, NotEnoughHosts, NotFound
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.nova.names import CLOSED, CLOSED_POOL, OPEN
from holdfast.ports.cloud import Cloud, Pool, Pools
from holdfast.ports.ledger import Ledger
from holdfast.ports.manager import Caller

# Pools (host aggregates) by name: a retry finds the pool of the first call by name.


#: Pool ids that the cache keeps.
MOST_IDS = 4096


class PoolIds:
    """Cache of pool ids: spares a lease start the lookup calls."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def id_of(self, pools: Pools, name: str, metadata: Mapping[str, str]) -> str:
        if name not in self._ids:
            # Other managers end leases too, and this one does not hear of it.
            if len(self._ids) >= MOST_IDS:
                self._ids.clear()
            self._ids[name] = ensure_pool(pools, name, metadata).id
        return self._ids[name]

    def forget(self, name: str) -> None:
        self._ids.pop(name, None)


def ensure_pool(pools: Pools, name: str, metadata: Mapping[str, str]) -> Pool:
    """Return the pool of this name with this metadata; create a missing pool.

    A cloud may create a pool in one call and set its metadata in a second. A manager that died
    in between left a pool without an owner.
    """
    pool = pools.find(name)
    if pool is None:
        try:
            return pools.create(name, metadata)
        except Conflict:  # made by an earlier call of ours whose answer was lost
            pool = pools.find(name)
            if pool is None:
                raise
    if metadata.items() - pool.metadata.items():
        pools.set_metadata(pool.id, {**pool.metadata, **metadata})
    return pool


def close_pool(pools: Pools, pool: Pool) -> None:
    """Close the pool: no new servers, not even of its owner.

    A server that leaves now cannot come back. A call that died may have closed the pool without
    telling the scheduler, so a closed pool is resynced.
    """
    if pool.metadata.get(OPEN) == CLOSED:
        pools.resync(pool.id)
    else:
        pools.set_metadata(pool.id, {**pool.metadata, OPEN: CLOSED})


def find_pool(pools: Pools, reservation_id: str) -> Pool | None:
    """Find the pool of a reservation, also when an earlier attempt at the end renamed it."""
    return pools.find(reservation_id) or pools.find(f"{CLOSED_POOL}{reservation_id}")


def retire_pool(effects: "EffectContext", pool: Pool, reservation_id: str) -> None:
    """Rename the closed and empty pool: no pool has the reservation's name after its end.

    The resync job deletes the pool once it is announced as closed.
    """
    effects.pool_ids.forget(reservation_id)
    with contextlib.suppress(NotFound):  # deleted meanwhile
        try:
            effects.cloud.pools.rename(pool.id, f"{CLOSED_POOL}{reservation_id}")
        except Conflict:  # two pools of this reservation: a late call made the second
            effects.cloud.pools.delete(pool.id)


# Effects.


class Options(Protocol):
    """Options of resource types, read anew at every use."""

    before_end: str
    prepare_s: float
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
    pool_ids: PoolIds
    freepool: str
    options: Options

    @contextlib.contextmanager
    def pool(self, name: str, metadata: Mapping[str, str] | None = None) -> Iterator[str]:
        """Provide the id of a pool by name: created if missing, cached until proven wrong."""
        remembered = name in self.pool_ids
        try:
            yield self.pool_ids.id_of(self.cloud.pools, name, metadata or {})
        except NotFound as gone:
            self.pool_ids.forget(name)
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
    polled: bool  # whether `gone` does anything
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

    def properties(self, spec: Mapping[str, Any]) -> frozenset[str]:
        """Return the properties of hosts that the spec names; private ones are masked for users."""
        ...

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
        """Return the allocations for the window; NotEnoughHosts says why there are none."""
        ...

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need | None:
        """Return the need for lost allocations, beside the kept allocations.

        None: repair calls `plan` instead, for this reservation alone.
        """
        ...

    def openings(
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List the earliest fitting windows as long as `wish.held`, from its start on."""
        ...

    # Effects.

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Act as soon as the reservation is booked, or its start has changed."""
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

    def gone(
        self, effects: EffectContext, reservations: Sequence[Reservation]
    ) -> Mapping[str, str]:
        """Name what was deleted in the cloud, by id of the running reservation."""
        ...


class BaseResource:
    """A resource type without behaviour: the base class for others."""

    type = ""
    arranges = False
    polled = False
    pooled = False

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        return dict(spec)

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        return dict(spec)

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.validate({**reservation.spec, **wanted})

    def properties(self, spec: Mapping[str, Any]) -> frozenset[str]:
        return frozenset()

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
        return ()

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need | None:
        return None

    def openings(
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List openings by planning at once, and at each end of a hold of a host or this type."""
        ends = ledger.hold_ends(self.type, Window(wish.held.start, until))
        return by_trying(self.plan, wish, until, snapshot, ledger, most, ends)

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to arrange")

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to prepare")

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to start")

    def settle(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to settle")

    def before_end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("no action before the end")

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect("nothing to give back")

    def gone(
        self, effects: EffectContext, reservations: Sequence[Reservation]
    ) -> Mapping[str, str]:
        return {}


#: Starts that `by_trying` plans.
MOST_TRIES = 200


def by_trying(
    plan: Callable[[Wish, CapacitySnapshot, Ledger], tuple[Allocation, ...]],
    wish: Wish,
    until: datetime,
    snapshot: CapacitySnapshot,
    ledger: Ledger,
    most: int,
    ends: Iterable[datetime] = (),
) -> Sequence[Opening]:
    """List openings of any resource type: plan at once, at `ends`, and when a host becomes free."""
    length = wish.held.end - wish.held.start
    freed = {
        datetime.fromtimestamp(hold.end, UTC)
        for host_id in snapshot.hosts
        for hold in snapshot.line(host_id).within(wish.held.start.timestamp(), until.timestamp())
        if hold.end <= until.timestamp()
    }
    openings: list[Opening] = []
    for start in [wish.held.start, *sorted(freed.union(ends))[:MOST_TRIES]]:
        window = Window(start, start + length)
        try:
            planned = plan(replace(wish, held=window), snapshot, ledger)
        except NotEnoughHosts:
            continue
        openings.append(Opening(window, sum(a.slots or 1 for a in planned)))
        if len(openings) >= most:
            break
    return openings
