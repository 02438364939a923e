# SPDX-License-Identifier: Apache-2.0
"""Lease commands: draft, check, and book in a transaction; after a lost race, draft again."""

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from holdfast.leases.drafts import Drafts, ResolvedRequest
from holdfast.leases.lifecycle import LeaseContext, lease_work
from holdfast.leases.placement import Order
from holdfast.model.errors import (
    Conflict,
    DriverError,
    InvalidInput,
    NotEnoughHosts,
    NotFound,
    StaleWrite,
)
from holdfast.model.lease import (
    APPLY,
    ARRANGE,
    BEFORE_END,
    DELETE,
    END,
    START,
    Allocation,
    Lease,
    LeaseChange,
    NewLease,
    Reservation,
    Window,
    check_updatable,
    due_times,
)
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Work
from holdfast.ports.manager import (
    Availability,
    AvailabilityQuery,
    Available,
    Caller,
    Preview,
    Refusal,
)
from holdfast.runtime.clock import Clock

T = TypeVar("T")
_TRIES = 30
_IMPATIENT_TRIES = 5
_LONGEST_S = 30.0
#: After this many attempts reload the snapshot: it may have missed a writer that was frozen for
#: long.
_DOUBTFUL_TRIES = 3
#: How far ahead availability searches by default.
_AHEAD = timedelta(days=30)


class Leases:
    def __init__(self, context: LeaseContext, clock: Clock, new_id: Callable[[], str]) -> None:
        self._context = context
        self._clock = clock
        self._new_id = new_id
        self._drafts = Drafts(context, new_id)

    # commands

    def create(self, caller: Caller, wanted: NewLease) -> Preview | None:
        try:
            requests = self._drafts.resolve(caller, wanted.reservations)
        except DriverError:
            if self._known(caller, wanted.id):
                return None  # the same command again, while the cloud is unreachable
            raise
        return self._until_won(lambda attempt: self._create(caller, wanted, requests, attempt))

    def update(self, caller: Caller, lease_id: str, change: LeaseChange) -> Preview | None:
        return self._until_won(lambda attempt: self._update(caller, lease_id, change, attempt))

    def delete(self, caller: Caller, lease_id: str) -> tuple[str, str]:
        """Start to delete a lease; return the key of the operation, and the former status."""
        status = self._until_won(lambda _attempt: self._delete(caller, lease_id))
        return f"{DELETE}/{lease_id}", status

    def replace_host(
        self, caller: Caller, lease_id: str, reservation_id: str, host_id: int
    ) -> None:
        """Replace a host of a pending reservation."""

        def replaced(attempt: _Attempt) -> None:
            old = self._visible(caller, lease_id)
            new = self._drafts.without_host(old, reservation_id, host_id, attempt.order)
            sentence = f"lease {old.name}: host {host_id} was replaced"
            self._save(old, new, Work(), sentence, attempt, may_use_spares=True)

        self._until_won(replaced)

    def availability(self, caller: Caller, query: AvailabilityQuery) -> Availability:
        """Return when and how many could be booked; plans like a create, and books nothing."""
        (request,) = self._drafts.resolve(caller, [query.reservation])
        now = self._context.ledger.now()
        start = now if query.start is None else max(query.start, now)
        if query.end is not None:
            return self._at(caller, query, request, Window(start, query.end))
        if not query.length_s:
            raise InvalidInput("duration_s: say how long, or name start_date and end_date")
        window = Window(start, start + timedelta(seconds=query.length_s))
        until = query.until or start + _AHEAD
        openings = self._drafts.openings(caller, request, window, until, query.limit)
        windows = tuple(Available(opening.window, opening.amount) for opening in openings)
        refusal = None
        if not windows:
            refusal = self._refusal(caller, request, window, until)
        most = max((available.amount for available in windows), default=0)
        return Availability(bool(windows), most, windows, refusal)

    # availability

    def _at(
        self, caller: Caller, query: AvailabilityQuery, request: ResolvedRequest, window: Window
    ) -> Availability:
        if window.end <= window.start:
            raise InvalidInput("end_date: End date must be later than start date.")
        try:
            lease = self._imagined(caller, request, window)
        except NotEnoughHosts as refused:
            return Availability(False, refusal=Refusal.of(refused))
        amount = sum(a.slots or 1 for a in lease.allocations())
        return Availability(True, amount, (Available(window, amount),))

    def _refusal(
        self, caller: Caller, request: ResolvedRequest, window: Window, barren_until: datetime
    ) -> Refusal | None:
        try:
            self._imagined(caller, request, window, barren_until)
        except NotEnoughHosts as refused:
            return Refusal.of(refused)
        return None

    def _imagined(
        self,
        caller: Caller,
        request: ResolvedRequest,
        window: Window,
        barren_until: datetime | None = None,
    ) -> Lease:
        new_lease = NewLease("imagined", "imagined", window.start, window.end)
        return self._drafts.new(caller, new_lease, [request], float, barren_until)

    # create

    def _create(
        self, caller: Caller, wanted: NewLease, requests: list[ResolvedRequest], attempt: "_Attempt"
    ) -> Preview | None:
        if self._known(caller, wanted.id):
            return None  # the same command again
        lease = self._drafts.new(caller, wanted, requests, attempt.order)
        self._context.enforcement.check_create(caller, lease)
        if wanted.dry_run:
            return self._preview(None, lease)
        due = due_times(lease.start, lease.end, lease.before_end)
        now = self._context.ledger.now()
        if any(resource.arranges for resource, _ in requests):
            due[ARRANGE] = now
        work = Work(
            add=(
                *(self._operation(lease.id, kind, at) for kind, at in due.items()),
                *self._context.announcer.work("lease.create", lease, now),
            )
        )
        limits = self._context.enforcement.limits(lease.project_id)
        self._context.ledger.book(lease, work, limits=limits, wait_for_lock=attempt.wait_for_lock)
        return None

    def _known(self, caller: Caller, lease_id: str) -> bool:
        try:
            lease = self._context.ledger.lease(lease_id)
        except NotFound:
            return False
        if lease.project_id != caller.project_id:
            raise Conflict(f"the id {lease_id} is taken")
        return True

    # update

    def _update(
        self, caller: Caller, lease_id: str, change: LeaseChange, attempt: "_Attempt"
    ) -> Preview | None:
        old = self._visible(caller, lease_id)
        check_updatable(old, change)
        new = self._drafts.changed(caller, old, change, attempt.order)
        if new != old:
            self._context.enforcement.check_update(caller, old, new)
        if change.dry_run:
            return self._preview(old, new)
        if new != old:
            sentence = f"lease {new.name} updated"
            self._save(old, new, self._changed_work(old, new), sentence, attempt)
        return None

    def _save(
        self,
        old: Lease,
        new: Lease,
        work: Work,
        say: str,
        attempt: "_Attempt",
        *,
        may_use_spares: bool = False,
    ) -> None:
        now = self._context.ledger.now()
        operations = self._context.announcer.changed(old, new, now)
        limits = self._context.enforcement.limits(new.project_id)
        work = replace(work, add=(*work.add, *operations))
        self._context.ledger.save(
            old,
            new,
            work=work,
            say=say,
            limits=limits,
            wait_for_lock=attempt.wait_for_lock,
            may_use_spares=may_use_spares,
            is_repair=may_use_spares,  # spare hosts are for repairs
        )

    def _changed_work(self, old: Lease, new: Lease) -> Work:
        was = due_times(old.start, old.end, old.before_end)
        due = due_times(new.start, new.end, new.before_end)
        moved = {kind: at for kind, at in due.items() if was.get(kind) != at}
        if START in moved:  # what is prepared for the earlier start is undone at once
            moved[ARRANGE] = self._context.ledger.now()
        if new.status == "ACTIVE" and _holds(new.reservations) != _holds(old.reservations):
            # Schedule the end anew too: an end that is about to run must wait for the new
            # hosts.
            moved |= {APPLY: self._context.ledger.now(), END: new.end}
        return Work(
            put=tuple(self._operation(new.id, kind, at) for kind, at in moved.items()),
            cancel=frozenset(was.keys() - due.keys()),
        )

    # delete

    def _delete(self, caller: Caller, lease_id: str) -> str:
        lease = self._visible(caller, lease_id)
        if lease.status == "DELETING":
            return lease.status
        work = Work(  # `put`, because an earlier delete may have failed
            put=(self._operation(lease.id, DELETE, self._context.ledger.now()),),
            cancel=frozenset({ARRANGE, START, APPLY, BEFORE_END, END}),
        )
        sentence = f"lease {lease.name} is to be deleted"
        self._context.ledger.save(lease, lease.move("DELETING"), work=work, say=sentence)
        return lease.status

    # shared

    def _until_won(self, action: Callable[["_Attempt"], T]) -> T:
        """Repeat an action until its write wins, with short random pauses, at most 30 s."""
        deadline = self._clock.monotonic() + _LONGEST_S
        for tries in range(_TRIES):
            try:
                return action(_Attempt(tries))
            except StaleWrite:
                if self._clock.monotonic() > deadline:
                    break
                pause = random.uniform(0, min(0.002 * 2**tries, 0.1))
                self._clock.wait(threading.Event(), pause)
                if tries % 10 == _DOUBTFUL_TRIES:
                    self._context.ledger.capacity(sure=True)
        raise Conflict("too many others book the same hosts right now; try again")

    def _visible(self, caller: Caller, lease_id: str) -> Lease:
        lease = self._context.ledger.lease(lease_id)
        if not caller.may_see(lease.project_id):
            raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")
        return lease

    def _preview(self, old: Lease | None, new: Lease) -> Preview:
        limits = self._context.enforcement.limits(new.project_id)
        if limits is not None:
            self._context.ledger.foresee(old, new, limits)
        return Preview(self._named(new))

    def _named(self, lease: Lease) -> Lease:
        """Add host names to the allocations, for people; a plan needs only ids."""
        hosts = self._context.ledger.capacity().hosts

        def named(allocation: Allocation) -> Allocation:
            host = hosts.get(allocation.host_id or 0)
            return replace(allocation, host=host.service_host) if host else allocation

        def shown(reservation: Reservation) -> Reservation:
            return replace(reservation, allocations=tuple(map(named, reservation.allocations)))

        return replace(lease, reservations=tuple(map(shown, lease.reservations)))

    def _operation(self, lease_id: str, kind: str, due: datetime) -> Operation:
        early_s = self._context.settings.prepare_s if kind == START else 0.0
        return lease_work(self._new_id(), lease_id, kind, due, early_s)


@dataclass(frozen=True)
class _Attempt:
    """An attempt at a command.

    After a lost race, hosts are tried in random order, because rivals would choose the same.
    Only a command that lost often waits for a host that another booking has locked.
    """

    tries: int

    @property
    def order(self) -> Order:
        return float if self.tries == 0 else lambda _host_id: random.random()

    @property
    def wait_for_lock(self) -> bool:
        return self.tries >= _IMPATIENT_TRIES


def _holds(reservations: Iterable[Reservation]) -> set[tuple[int | None, str | None, int | None]]:
    """Return the held resources without times: a change of them needs work in the cloud."""
    return {(a.host_id, a.thing, a.slots) for r in reservations for a in r.allocations}
