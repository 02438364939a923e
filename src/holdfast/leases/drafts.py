# SPDX-License-Identifier: Apache-2.0
"""Lease drafts: compute dates and allocations of a request, or explain a refusal. Writes nothing.

A draft is planned on the capacity snapshot in memory. Before the manager refuses a request it
compares the snapshot with the database and plans again if they differ. The refusal then says
what was in the way and when the request would fit.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.leases.lifecycle import LeaseContext
from holdfast.leases.placement import MASKED, Order
from holdfast.leases.resources.base import Opening, Resource, Wish
from holdfast.model.capacity import FOREVER, CapacitySnapshot
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts
from holdfast.model.lease import (
    Allocation,
    Lease,
    LeaseChange,
    NewLease,
    NewReservation,
    Reservation,
    Window,
    changed_dates,
    owner_fields,
    requested_dates,
)
from holdfast.model.segment import Short, Spare, Steps, compared, first_short, free_over
from holdfast.ports.ledger import Ledger, Obstacle
from holdfast.ports.manager import Caller

# Planning that leaves spares of segments free (`model/segment`).
#
# The resource type plans as usual. If the plan would use up spares of a segment, as much of it
# stays as possible, the hosts that would use up more spares are excluded from the snapshot, and
# the type plans again: in other segments, on hosts that others use in part, or with fewer
# hosts. Without spares this costs one check of an empty tuple. Repair does not call this:
# spares are kept for it.


#: Plans of a type; after that, no more hosts of such a segment are used than those that stay.
MOST_PLANS = 8
#: Starts tried for openings, collected this many days further on at a time.
MOST_TRIES = 200
FURTHER_DAYS = (1, 4, 16, 64, 256, 1024)
DAY_S = 86_400.0
#: Leases begin on whole minutes.
MINUTE_S = 60.0
_REFUSED = "Not enough hosts available: "


def plan(
    resource: Resource, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
) -> tuple[Allocation, ...]:
    """Plan allocations and leave spares free; NotEnoughHosts names the segment."""
    if not snapshot.spares:
        return resource.plan(wish, snapshot, ledger)
    left, shorts = snapshot, dict[str, Short]()
    for tries in range(MOST_PLANS + len(snapshot.spares)):
        try:
            holds = resource.plan(wish, left, ledger)
        except NotEnoughHosts as refused:
            if not shorts:
                raise
            raise _refused(refused, shorts.values()) from None
        courses = [_Course(spare, snapshot, wish.kept, holds) for spare in snapshot.spares]
        eaten = [(course, short) for course in courses if (short := course.short(holds))]
        if not eaten:
            return holds
        for course, short in eaten:
            shorts.setdefault(short.spare.segment_id, short)
            left = left.excluding_hosts(course.barred(holds, everything=tries >= MOST_PLANS))
    raise _refused(NotEnoughHosts(_REFUSED + "too many plans in vain"), shorts.values())


class _Course:
    """The number of free hosts of a segment during a plan: before the plan, and with parts of
    it."""

    def __init__(
        self,
        spare: Spare,
        snapshot: CapacitySnapshot,
        kept: Sequence[Allocation],
        holds: Sequence[Allocation],
    ) -> None:
        self._spare = spare
        self._snapshot = snapshot
        self._kept = kept
        windows = [a.held for a in holds if a.host_id in spare.hosts]
        self._start = min((window.start.timestamp() for window in windows), default=0.0)
        self._end = max((window.end.timestamp() for window in windows), default=0.0)
        self._touched = bool(windows)

    def short(self, holds: Sequence[Allocation]) -> Short | None:
        """Return the first shortage of spares with these allocations; None: enough."""
        if not self._touched:
            return None
        after, ids = self._snapshot.with_holds(holds), self._members()
        hosts = [self._snapshot.hosts[host_id] for host_id in ids]
        if len(after.free(hosts, self._start, self._end)) >= self._spare.kept:
            return None  # enough are free all the time
        shortage = first_short(self._spare.kept, self._before(ids), self._steps(after, ids))
        if shortage is None:
            return None
        at, free = shortage
        return Short(self._spare, len(ids), free, datetime.fromtimestamp(at, UTC))

    def barred(self, holds: Sequence[Allocation], *, everything: bool) -> set[int]:
        """Return the hosts to exclude, if as much as possible of the plan stays.

        With `everything`, all hosts of the segment that are not part of the plan.
        """
        ids = self._members()
        before = self._before(ids)
        stays = self._stays(holds, ids, before)
        after = self._snapshot.with_holds(stays)
        rest = ids - {a.host_id for a in stays}
        if everything:
            return rest
        spares = self._spare.kept
        critical = [
            at
            for at, was, now in compared(before, self._steps(after, ids))
            if now <= spares and now <= was
        ]
        return {host_id for host_id in rest if self._is_free(after, host_id, critical)}

    def _stays(
        self, holds: Sequence[Allocation], ids: Collection[int], before: Steps
    ) -> Sequence[Allocation]:
        """Select as many allocations of the plan as possible, preferring hosts that were not
        free."""
        had = {a.host_id for a in self._kept}
        allocations = [a for a in holds if a.host_id in ids]
        allocations.sort(key=lambda a: (a.host_id not in had, self._was_free(a), -(a.slots or 0)))
        low, high = 0, len(allocations)
        while low < high:
            middle = (low + high + 1) // 2
            after = self._steps(self._snapshot.with_holds(allocations[:middle]), ids)
            if first_short(self._spare.kept, before, after):
                high = middle - 1
            else:
                low = middle
        return allocations[:low]

    def _was_free(self, allocation: Allocation) -> bool:
        return self._snapshot.line(allocation.host_id or 0).is_free(self._start, self._end)

    def _members(self) -> set[int]:
        return {host_id for host_id in self._spare.hosts if host_id in self._snapshot.hosts}

    def _before(self, ids: Collection[int]) -> Steps:
        return self._steps(self._snapshot.with_holds(self._kept), ids)

    def _steps(self, snapshot: CapacitySnapshot, ids: Collection[int]) -> Steps:
        start, end = self._start, self._end
        spans = ((hold[:2] for hold in snapshot.line(i).within(start, end)) for i in ids)
        return free_over(len(ids), spans, start, end)

    def _is_free(self, snapshot: CapacitySnapshot, host_id: int, moments: Sequence[float]) -> bool:
        line = snapshot.line(host_id)
        return any(line.is_free(at, math.nextafter(at, FOREVER)) for at in moments)


def _refused(refused: NotEnoughHosts, shorts: Collection[Short]) -> NotEnoughHosts:
    """Combine the type's own refusal with the shortage of spares."""
    why = "; ".join(map(str, shorts))
    rest = refused.message.removeprefix(_REFUSED)
    spares = [
        {
            "segment_id": short.spare.segment_id,
            "segment": short.spare.name,
            "kept": short.spare.kept,
            "usable": short.usable,
            "free": short.free,
            "at": f"{short.at:%Y-%m-%dT%H:%M:%S.%f}",
        }
        for short in shorts
    ]
    message = f"{_REFUSED}{why}; beside the spare hosts: {rest}"
    return type(refused)(message, **{**refused.details, "failover": spares})


# Openings.


def openings(
    resource: Resource,
    wish: Wish,
    until: datetime,
    snapshot: CapacitySnapshot,
    ledger: Ledger,
    most: int,
) -> Sequence[Opening]:
    """List the type's openings if they leave spares free; else try every end of a hold.

    The trial begins at the first opening of the type.
    """
    offers = resource.openings(wish, until, snapshot, ledger, most)
    if not snapshot.spares or not offers:
        return offers

    def amount(window: Window) -> int:
        """Return how many units fit in the window, 0 for none; a resource without a host counts
        1."""
        try:
            holds = plan(resource, replace(wish, held=window), snapshot, ledger)
        except NotEnoughHosts:
            return 0
        return sum(a.slots or 1 for a in holds if a.host_id is not None) or len(holds)

    if all(amount(opening.window) >= opening.amount for opening in offers):
        return offers
    offered: list[Opening] = []
    best = before = 0
    for start in _moments(offers[0].window.start, until, snapshot):
        window = Window(start, start + (wish.held.end - wish.held.start))
        now = amount(window)
        if now and (not before or now >= 2 * best):
            offered.append(replace(offers[0], window=window, amount=now))
            best = max(best, now)
        before = now
        if len(offered) >= most:
            break
    return offered


def _moments(first: datetime, until: datetime, snapshot: CapacitySnapshot) -> Iterator[datetime]:
    """Yield the first start, and the minutes at which holds end."""
    yield first
    since = searched = first.timestamp()
    tries = 0
    for days in FURTHER_DAYS:
        horizon = min(since + days * DAY_S, until.timestamp())
        ends = {
            math.ceil(hold.end / MINUTE_S) * MINUTE_S - since
            for host_id in snapshot.hosts
            for hold in snapshot.line(host_id).within(searched, horizon)
            if searched < hold.end <= horizon
        }
        for later in sorted(ends)[: MOST_TRIES - tries]:
            if since + later <= until.timestamp():
                yield first + timedelta(seconds=later)
        tries += len(ends)
        searched = horizon
        if tries >= MOST_TRIES or searched >= until.timestamp():
            return


#: How far ahead a refusal searches for a window that fits.
AHEAD = timedelta(days=90)

#: A lease that starts within this time needs hosts that are given back already.
SOON = timedelta(minutes=5)

#: A resource type with the normalised spec of a request.
ResolvedRequest = tuple[Resource, dict[str, Any]]


@dataclass(frozen=True)
class _PlanInput:
    """The capacity snapshot of an attempt.

    `sure`: a refusal may rest on it. `barren_until`: the caller knows that nothing of this kind
    fits that begins before.
    """

    snapshot: CapacitySnapshot
    sure: bool
    barren_until: datetime | None = None


class _Refused(Exception):
    """Refused by a snapshot that may be a moment old; carries the input of the explanation."""


class Drafts:
    def __init__(self, context: LeaseContext, new_id: Callable[[], str]) -> None:
        self._context = context
        self._new_id = new_id

    def resolve(self, caller: Caller, wanted: Sequence[NewReservation]) -> list[ResolvedRequest]:
        """Validate the reservations, and complete them with facts from the cloud."""
        checked = [(self._resource(r.resource_type), r.spec) for r in wanted]
        valid = [(resource, resource.validate(spec)) for resource, spec in checked]
        cloud = self._context.cloud
        resolved = [(resource, resource.resolve(spec, cloud, caller)) for resource, spec in valid]
        return [(resource, self._masked(caller, resource, spec)) for resource, spec in resolved]

    def _masked(
        self, caller: Caller, resource: Resource, spec: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Record the private properties that the spec names, unless the caller may see them."""
        names = frozenset[str]() if caller.is_admin else resource.properties(spec)
        private = names & self._context.ledger.private_properties() if names else names
        return {**spec, MASKED: sorted(private)} if private else dict(spec)

    # New leases.

    def new(
        self,
        caller: Caller,
        wanted: NewLease,
        requests: Sequence[ResolvedRequest],
        order: Order,
        barren_until: datetime | None = None,
    ) -> Lease:
        now = self._context.ledger.now()
        start, end, before_end = requested_dates(wanted, now, self._before_end_default())
        window = Window(max(start, now), end + self._context.cleaning())
        if end <= window.start:
            raise InvalidInput("end_date: the lease would end before it can start")
        lease = Lease(
            id=wanted.id,
            user_id=caller.user_id,
            project_id=caller.project_id,
            start=start,
            end=end,
            before_end=before_end,
            user_events=wanted.user_events,
            **owner_fields(wanted),
        )

        def draft(plan_input: _PlanInput) -> Lease:
            planned: list[Reservation] = []
            for resource, spec in requests:
                taken = [a for r in planned for a in r.allocations]
                wish = Wish(
                    spec,
                    window,
                    caller.project_id,
                    order=order,
                    lease_id=lease.id,
                    taken=_things(taken),
                )
                holds = self._plan(
                    resource,
                    wish,
                    replace(plan_input, snapshot=plan_input.snapshot.with_holds(taken)),
                )
                planned.append(
                    Reservation(self._new_id(), resource.type, spec=spec, allocations=holds)
                )
            return replace(lease, reservations=tuple(planned))

        return self._made_sure(draft, barren_until)

    # Changed leases.

    def changed(self, caller: Caller, old: Lease, change: LeaseChange, order: Order) -> Lease:
        """Return the lease after the update; unchanged parts keep their value."""
        now = self._context.ledger.now()
        start, end, before_end = changed_dates(old, change, now, self._before_end_default())
        new = replace(old, start=start, end=end, before_end=before_end, **owner_fields(change))
        if not change.reservations and (start, end) == (old.start, old.end):
            return new
        unknown = change.reservations.keys() - {r.id for r in old.reservations}
        if unknown:
            raise InvalidInput(f"reservations: {', '.join(sorted(unknown))} not of this lease")
        changes = change.reservations
        specs = [self._spec(caller, r, changes.get(r.id, {})) for r in old.reservations]

        def draft(plan_input: _PlanInput) -> Lease:
            planned: list[Reservation] = []
            for reservation, spec in zip(old.reservations, specs, strict=True):
                others = [*planned, *old.reservations[len(planned) + 1 :]]
                taken = [a for r in others for a in r.allocations]
                snapshot = plan_input.snapshot.without_holds(old.allocations()).with_holds(taken)
                update = _Update(old, new, now, order, _things(taken))
                planned.append(
                    self._replan(update, reservation, spec, replace(plan_input, snapshot=snapshot))
                )
            return replace(new, reservations=tuple(planned))

        return self._made_sure(draft)

    def without_host(self, old: Lease, reservation_id: str, host_id: int, order: Order) -> Lease:
        """Return the lease with a replacement for the host; the replacement may use spares."""
        if old.status != "PENDING":
            raise Conflict(
                f"lease {old.id} is {old.status}: hosts are replaced only before it starts"
            )
        held = {r.id: r for r in old.reservations}
        if reservation_id not in held or host_id not in held[reservation_id].host_ids():
            raise InvalidInput(f"reservation {reservation_id} does not hold host {host_id}")
        reservation = held[reservation_id]
        kept = tuple(a for a in reservation.allocations if a.host_id != host_id)
        window = next(a.held for a in reservation.allocations if a.host_id == host_id)
        resource = self._resource(reservation.resource_type)

        def draft(plan_input: _PlanInput) -> Lease:
            others = [a for r in old.reservations if r.id != reservation.id for a in r.allocations]
            snapshot = (
                plan_input.snapshot.without_holds(old.allocations())
                .with_holds(others)
                .excluding_hosts([host_id])
                .ignoring_spares(())
            )
            left = replace(reservation, allocations=kept)
            wish = Wish(
                reservation.spec, window, old.project_id, left, order, old.id, _things(others)
            )
            holds = self._plan(resource, wish, replace(plan_input, snapshot=snapshot))
            moved = replace(reservation, allocations=holds)
            reservations = tuple(moved if r.id == reservation.id else r for r in old.reservations)
            return replace(old, reservations=reservations)

        return self._made_sure(draft)

    def _spec(
        self, caller: Caller, reservation: Reservation, changes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if changes.get("resource_type", reservation.resource_type) != reservation.resource_type:
            raise Conflict("resource_type: a reservation keeps the type it was made with")
        wanted = {k: v for k, v in changes.items() if k != "resource_type"}
        if not wanted:
            return reservation.spec
        resource = self._resource(reservation.resource_type)
        requested = {name: value for name, value in reservation.spec.items() if name != MASKED}
        spec = resource.change(replace(reservation, spec=requested), wanted)
        return self._masked(caller, resource, spec)

    def _replan(
        self,
        update: "_Update",
        reservation: Reservation,
        spec: Mapping[str, Any],
        plan_input: _PlanInput,
    ) -> Reservation:
        held = update.held(reservation, self._context.cleaning())
        had = reservation.allocations
        cut = tuple(replace(a, held=update.kept(a, held)) for a in had)
        fits = all(was.held.contains(now.held) for now, was in zip(cut, had, strict=True))
        if fits and spec == reservation.spec:  # shorter or the same: nothing to plan
            return replace(reservation, allocations=cut)
        window = Window(max(held.start, update.now), held.end)
        wish = Wish(
            spec,
            window,
            update.old.project_id,
            reservation,
            update.order,
            update.old.id,
            update.taken,
        )
        holds = self._plan(self._resource(reservation.resource_type), wish, plan_input)
        windows = {(a.host_id, a.thing): a.held for a in cut}
        holds = tuple(replace(a, held=windows.get((a.host_id, a.thing), a.held)) for a in holds)
        return replace(reservation, spec=spec, allocations=holds)

    # Openings.

    def openings(
        self, caller: Caller, request: ResolvedRequest, window: Window, until: datetime, most: int
    ) -> Sequence[Opening]:
        """List the earliest windows of this length, with times as owners see them."""
        resource, spec = request
        held = Window(window.start, window.end + self._context.cleaning())
        wish = Wish(spec, held, caller.project_id)
        ledger = self._context.ledger
        offers = openings(resource, wish, until, ledger.capacity(), ledger, most)
        return [self._named(opening) for opening in offers]

    def _named(self, opening: Opening) -> Opening:
        """Remove the cleaning time, which owners do not see."""
        window = opening.window
        return replace(opening, window=Window(window.start, window.end - self._context.cleaning()))

    # Shared.

    def _made_sure(
        self, draft: Callable[[_PlanInput], Lease], barren_until: datetime | None = None
    ) -> Lease:
        snapshot = self._context.ledger.capacity()
        changes = snapshot.changes
        try:
            return draft(_PlanInput(snapshot, sure=False, barren_until=barren_until))
        except _Refused as first:
            again = self._context.ledger.capacity(sure=True)
            # A second plan would give the same result.
            if again is snapshot and again.changes == changes:
                raise self._explained(*first.args) from None
            return draft(_PlanInput(again, sure=True))

    def _plan(
        self, resource: Resource, wish: Wish, plan_input: _PlanInput
    ) -> tuple[Allocation, ...]:
        late = self._late(wish)
        if late:
            with contextlib.suppress(NotEnoughHosts):  # better a host that may be late than none
                return plan(
                    resource, wish, plan_input.snapshot.excluding_hosts(late), self._context.ledger
                )
        try:
            return plan(resource, wish, plan_input.snapshot, self._context.ledger)
        except NotEnoughHosts as refused:
            if not plan_input.sure:
                raise _Refused(refused, resource, wish, plan_input) from None
            raise self._explained(refused, resource, wish, plan_input) from None

    def _late(self, wish: Wish) -> set[int]:
        """Return the hosts free in the database but not given back yet.

        A lease that starts soon would have to wait for them, and nobody knows for how long.
        """
        ledger = self._context.ledger
        if wish.held.start > ledger.now() + SOON:
            return set()
        return ledger.late_hosts() - {a.host_id for a in wish.kept if a.host_id is not None}

    def _explained(
        self, refused: NotEnoughHosts, resource: Resource, wish: Wish, plan_input: _PlanInput
    ) -> NotEnoughHosts:
        """Extend the refusal with the leases in the way, and the earliest fitting window."""
        ledger, details = self._context.ledger, dict(refused.details)
        busy = details.pop("busy", ())
        obstacles = (
            ledger.obstacles(busy, wish.held, wish.project_id, besides=wish.lease_id)
            if busy
            else ()
        )
        sentences = [refused.message]
        if obstacles:
            sentences.append(
                f"in the way: {', '.join(_obstacle_text(obstacle) for obstacle in obstacles[:3])}"
            )
        earliest = None
        if not wish.is_active:
            again = replace(wish, reservation=None)
            until = wish.held.start + AHEAD
            if plan_input.barren_until is None or plan_input.barren_until < until:
                offers = openings(resource, again, until, plan_input.snapshot, ledger, 1)
                earliest = self._named(offers[0]).window if offers else None
            sentences.append(
                f"it would fit from {_date(earliest.start)} to {_date(earliest.end)} UTC"
                if earliest
                else f"nothing fits within {AHEAD.days} days either"
            )
        return type(refused)(
            "; ".join(sentences),
            **details,
            obstacles=[_plain(obstacle) for obstacle in obstacles],
            earliest=_dates(earliest) if earliest else None,
        )

    def _resource(self, resource_type: str) -> Resource:
        try:
            return self._context.resources[resource_type]
        except KeyError:
            known = ", ".join(sorted(self._context.resources))
            raise InvalidInput(
                f"The {resource_type} resource type is not supported; known: {known}"
            ) from None

    def _before_end_default(self) -> timedelta:
        return timedelta(minutes=self._context.settings.minutes_before_end_lease)


def _things(allocations: Iterable[Allocation]) -> frozenset[str]:
    return frozenset(allocation.thing for allocation in allocations if allocation.thing is not None)


def _obstacle_text(obstacle: Obstacle) -> str:
    whose = f"lease {obstacle.name}" if obstacle.lease_id else "another project's lease"
    return f"{whose} until {_date(obstacle.until)}"


def _plain(obstacle: Obstacle) -> dict[str, Any]:
    return {
        "until": _wire(obstacle.until),
        "hosts": obstacle.hosts,
        "lease_id": obstacle.lease_id,
        "name": obstacle.name,
    }


def _dates(window: Window) -> dict[str, str]:
    return {"start_date": _wire(window.start), "end_date": _wire(window.end)}


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}" if when.second else f"{when:%Y-%m-%d %H:%M}"


def _wire(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}"


@dataclass(frozen=True)
class _Update:
    """A lease before and after a change of dates, while its reservations are planned anew."""

    old: Lease
    new: Lease
    now: datetime
    order: Order
    taken: frozenset[str]  # resource keys of its other reservations

    def held(self, reservation: Reservation, cleaning: timedelta) -> Window:
        """Return the window that the reservation must hold; for an active one, since it began."""
        since = min((a.held.start for a in reservation.allocations), default=self.new.start)
        start = since if self._same_start() else max(self.new.start, self.now)
        return Window(start, max(self.new.end + cleaning, start))

    def kept(self, allocation: Allocation, held: Window) -> Window:
        """Return the window of a single allocation.

        An allocation added later does not start before it was added, because then it was
        another lease's.
        """
        start = allocation.held.start if self._same_start() else held.start
        return Window(start, max(held.end, start))

    def _same_start(self) -> bool:
        return self.old.status != "PENDING" or self.new.start == self.old.start
