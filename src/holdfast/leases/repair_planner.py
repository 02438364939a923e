# SPDX-License-Identifier: Apache-2.0
"""The repair planner: a single plan for all reservations affected by failed hosts.

The planner is pure: it writes nothing, and no host needs to have failed. To preview a failure,
pass a capacity snapshot without those hosts (`snapshot.excluding_hosts`).

    plan = plan_repair(affected, snapshot, resources, ledger, now)
    for result in plan.results: …   # kept allocations, replacements, and a sentence if short

Allocations on healthy hosts stay. Active reservations come before pending ones, then the higher
priority, then the earlier start; within a class the planner makes as many whole as possible.
The booking transaction decides, because the snapshot is a moment old.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.leases.placement import Need
from holdfast.leases.resources.base import Resource, Wish
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import InvalidInput, NotEnoughHosts
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.ledger import Ledger

if TYPE_CHECKING:
    from holdfast.leases.repair_board import Job

#: A reservation needed within this time gets no host that is late in coming back, if others are
#: free.
SOON = timedelta(minutes=5)


@dataclass(frozen=True)
class AffectedReservation:
    """A reservation with allocations on unusable hosts."""

    lease: Lease
    reservation: Reservation
    lost: tuple[Allocation, ...]
    priority: int = 0  # higher comes first

    @property
    def is_active(self) -> bool:
        return self.reservation.status == "active"

    @property
    def kept(self) -> tuple[Allocation, ...]:
        return tuple(a for a in self.reservation.allocations if a not in self.lost)

    @property
    def rank(self) -> tuple[float, ...]:
        """The class: a later class gets nothing that an earlier class could use."""
        return (not self.is_active, -self.priority)

    def order(self) -> tuple[object, ...]:
        start = min((a.held.start for a in self.lost), default=self.lease.start)
        return (*self.rank, start, self.lease.start, self.lease.id, self.reservation.id)

    def window(self, now: datetime) -> Window | None:
        """Return the window in which the lost allocations are still needed; None: not any more."""
        ahead = [a.held for a in self.lost if a.held.end > now]
        if not ahead:
            return None
        start = max(now, min(window.start for window in ahead))
        return Window(start, max(window.end for window in ahead))


@dataclass(frozen=True)
class RepairResult:
    """The repair of a reservation; `short` is empty, or says why something is missing."""

    affected: AffectedReservation
    kept: tuple[Allocation, ...]
    replacements: tuple[Allocation, ...] = ()
    short: str = ""

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return (*self.kept, *self.replacements)


@dataclass(frozen=True)
class RepairPlan:
    """The results in planning order, each reservation once."""

    results: tuple[RepairResult, ...] = ()

    @property
    def moved(self) -> int:
        """The number of reservations with replacements."""
        return sum(bool(repair_result.replacements) for repair_result in self.results)

    @property
    def short(self) -> int:
        """The number of reservations still missing something."""
        return sum(bool(repair_result.short) for repair_result in self.results)

    @property
    def whole(self) -> int:
        return len(self.results) - self.short

    def __str__(self) -> str:
        return (
            f"{len(self.results)} reservations: {self.moved} move, {self.short} miss something,"
            f" {self.whole} are whole"
        )


def plan_repair(
    affected: Sequence[AffectedReservation],
    snapshot: CapacitySnapshot,
    resources: Mapping[str, Resource],
    ledger: Ledger,
    now: datetime,
) -> RepairPlan:
    """Plan the repair; `snapshot` has only usable hosts, and the holds of all leases."""
    context = _PlanContext(snapshot, resources, ledger, now)
    in_order = sorted(affected, key=AffectedReservation.order)
    requests = [context.request(reservation) for reservation in in_order]
    odd = [
        request
        for request in requests
        if request.resource is not None and request.need is None and request.wish
    ]
    for request in odd:
        if request.affected.is_active:
            context.by_planning(request)
    context.together([request for request in requests if request.need is not None])
    for request in odd:
        if not request.affected.is_active:
            context.by_planning(request)
    return RepairPlan(tuple(request.result() for request in requests))


@dataclass
class _Request:
    """A reservation during planning."""

    affected: AffectedReservation
    kept: tuple[Allocation, ...]
    resource: Resource | None = None
    wish: Wish | None = None  # None: the lost allocations are no longer needed
    need: Need | None = None  # None: its resource type plans for itself
    replacements: tuple[Allocation, ...] = ()
    short: str = ""

    def result(self) -> RepairResult:
        return RepairResult(self.affected, self.kept, self.replacements, self.short)


class _PlanContext:
    def __init__(
        self,
        snapshot: CapacitySnapshot,
        resources: Mapping[str, Resource],
        ledger: Ledger,
        now: datetime,
    ) -> None:
        self._snapshot = snapshot
        self._resources = resources
        self._ledger = ledger
        self._now = now
        self._things: frozenset[str] = frozenset()  # resource keys planned and not booked yet

    def request(self, affected: AffectedReservation) -> _Request:
        """Return the need of the reservation, stated by the resource type."""
        kept, window = affected.kept, affected.window(self._now)
        if window is None:
            return _Request(affected, kept)
        name = affected.reservation.resource_type
        resource = self._resources.get(name)
        if resource is None:
            unknown = f"the resource type {name} is unknown: install its plugin"
            return _Request(affected, kept, short=unknown)
        left = replace(affected.reservation, allocations=kept)
        others = (a for r in affected.lease.reservations if r.id != left.id for a in r.allocations)
        taken = frozenset(a.thing for a in others if a.thing is not None)
        lease = affected.lease
        wish = Wish(left.spec, window, lease.project_id, left, lease_id=lease.id, taken=taken)
        lost = [a for a in affected.lost if a.held.end > self._now]
        return _Request(affected, kept, resource, wish, resource.need(wish, lost))

    def together(self, requests: Sequence[_Request]) -> None:
        """Plan all reservations with a known need together."""
        if not requests:
            return
        from holdfast.leases import (
            repair_board,
            repair_search,  # they load numpy
        )
        from holdfast.leases.repair_board import Board, Job

        needs = [request.need for request in requests if request.need is not None]
        soon = (self._now + SOON).timestamp()
        late = self._ledger.late_hosts() if any(need.start <= soon for need in needs) else ()
        board, frees = Board(self._snapshot, late), repair_board.free_hosts(needs, self._snapshot)
        jobs = [
            Job(number, need, requests[number].affected.rank, free, need.start <= soon)
            for number, (need, free) in enumerate(zip(needs, frees, strict=True))
        ]
        repair_search.plan(jobs, board)
        for request, job in zip(requests, jobs, strict=True):
            request.replacements = job.need.allocations(job.has)
            request.short = self._missing(job)
        self._snapshot = self._snapshot.with_holds(
            a for request in requests for a in request.replacements
        )

    def by_planning(self, request: _Request) -> None:
        """Plan a reservation of a type without `need`, as for a lease update."""
        wish, resource = request.wish, request.resource
        assert wish is not None and resource is not None
        try:
            wish = replace(wish, taken=wish.taken | self._things)
            holds = resource.plan(wish, self._snapshot.without_holds(request.kept), self._ledger)
        except (InvalidInput, NotEnoughHosts) as refused:
            request.short = refused.message
            return
        kept = {(a.host_id, a.thing) for a in request.kept}
        if kept - {(a.host_id, a.thing) for a in holds}:
            request.short = "it could be had only by giving up what is healthy: change the lease"
            return
        request.replacements = tuple(a for a in holds if (a.host_id, a.thing) not in kept)
        self._snapshot = self._snapshot.with_holds(request.replacements)
        self._things |= {a.thing for a in request.replacements if a.thing is not None}

    def _missing(self, job: "Job") -> str:
        if job.is_whole:
            return ""
        need, free = job.need, job.free.count
        were_free = f"{free} of those {'was' if free == 1 else 'were'} free in the window"
        taken = ", and others came first" if free > len(job.has) else ""
        return (
            f"{job.missing} of the {need.units} {need.what} it lost cannot be replaced: of"
            f" {len(self._snapshot.hosts)} usable hosts {len(job.free.matching)} match and"
            f" {were_free}{taken}; it is tried again when capacity appears"
        )
