# SPDX-License-Identifier: Apache-2.0
"""The commands on leases: look, plan, book at once; when somebody was faster, look again."""

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.model.caller import Caller
from holdfast.model.errors import Conflict, InvalidInput, NotFound, StaleWrite
from holdfast.model.lease import (
    APPLY,
    BEFORE_END,
    DELETE,
    END,
    SEQUENCE,
    START,
    Lease,
    Reservation,
    Window,
)
from holdfast.model.operation import Operation
from holdfast.ports.clock import Clock
from holdfast.ports.ledger import Work
from holdfast.ports.manager import LeaseChange, NewLease
from holdfast.reserve import rules
from holdfast.reserve.due import Desk
from holdfast.reserve.plan import Order
from holdfast.reserve.resource import Resource

T = TypeVar("T")
_TRIES = 30


class Leases:
    def __init__(self, desk: Desk, clock: Clock, new_id: Callable[[], str]) -> None:
        self._desk = desk
        self._clock = clock
        self._new_id = new_id

    # commands

    def create(self, caller: Caller, wanted: NewLease) -> None:
        specs = [
            (self._resource(r.resource_type), self._resource(r.resource_type).validate(r.spec))
            for r in wanted.reservations
        ]
        self._until_won(lambda order: self._create(caller, wanted, specs, order))

    def update(self, caller: Caller, lease_id: str, change: LeaseChange) -> None:
        self._until_won(lambda order: self._update(caller, lease_id, change, order))

    def delete(self, caller: Caller, lease_id: str) -> str:
        """Begin to delete; the key of the work that will have done it."""
        self._until_won(lambda _order: self._delete(caller, lease_id))
        return f"{DELETE}/{lease_id}"

    # create

    def _create(
        self,
        caller: Caller,
        wanted: NewLease,
        specs: list[tuple[Resource, dict[str, Any]]],
        order: Order,
    ) -> None:
        if self._known(caller, wanted.id):
            return  # the same command again
        now = self._desk.ledger.now()
        start, end, before_end = rules.dates(wanted, now, self._before_end_default())
        held = Window(max(start, now), end + self._desk.cleaning())
        if end <= held.start:
            raise InvalidInput("end_date: the lease would end before it can start")
        reservations: list[Reservation] = []
        for resource, spec in specs:
            taken = _hosts_of(reservations)
            holds = resource.plan(spec, held, self._desk.ledger, taken=taken, order=order)
            reservations.append(
                Reservation(self._new_id(), resource.type, spec=spec, allocations=holds)
            )
        lease = Lease(
            id=wanted.id,
            name=wanted.name,
            user_id=caller.user_id,
            project_id=caller.project_id,
            start=start,
            end=end,
            before_end=before_end,
            reservations=tuple(reservations),
        )
        due = rules.events(start, end, before_end)
        work = Work(add=tuple(self._operation(lease.id, k, at) for k, at in due.items()))
        self._desk.ledger.book(lease, work)

    def _known(self, caller: Caller, lease_id: str) -> bool:
        try:
            lease = self._desk.ledger.lease(lease_id)
        except NotFound:
            return False
        if lease.project_id != caller.project_id:
            raise Conflict(f"the id {lease_id} is taken")
        return True

    # update

    def _update(self, caller: Caller, lease_id: str, change: LeaseChange, order: Order) -> None:
        old = self._visible(caller, lease_id)
        rules.check_updatable(old, change)
        now = self._desk.ledger.now()
        start, end, before_end = rules.changed_dates(old, change, now, self._before_end_default())
        new = replace(
            old, name=change.name or old.name, start=start, end=end, before_end=before_end
        )
        if change.reservations or (start, end) != (old.start, old.end):
            new = self._replanned(_Update(old, new, now, order), change.reservations)
        work = self._changed_work(old, new)
        if new != old:
            self._desk.ledger.save(old, new, work=work, say=f"lease {new.name} updated")

    def _replanned(self, update: "_Update", changes: Mapping[str, dict[str, Any]]) -> Lease:
        unknown = changes.keys() - {r.id for r in update.old.reservations}
        if unknown:
            raise InvalidInput(f"reservations: {', '.join(sorted(unknown))} not of this lease")
        planned: list[Reservation] = []
        for position, reservation in enumerate(update.old.reservations):
            changed = changes.get(reservation.id, {})
            others = _hosts_of([*planned, *update.old.reservations[position + 1 :]])
            planned.append(self._replan(update, reservation, changed, others))
        return replace(update.new, reservations=tuple(planned))

    def _replan(
        self,
        update: "_Update",
        reservation: Reservation,
        changes: Mapping[str, Any],
        taken: set[int],
    ) -> Reservation:
        resource = self._resource(reservation.resource_type)
        if changes.get("resource_type", reservation.resource_type) != reservation.resource_type:
            raise Conflict("resource_type: a reservation keeps the type it was made with")
        wanted = {k: v for k, v in changes.items() if k != "resource_type"}
        spec = resource.validate({**reservation.spec, **wanted}) if wanted else reservation.spec
        held = update.held(reservation, self._desk.cleaning())
        fits = all(
            a.held.start <= held.start and held.end <= a.held.end for a in reservation.allocations
        )
        if fits and spec == reservation.spec:  # shorter or the same: nothing to look for
            cut = tuple(replace(a, held=held) for a in reservation.allocations)
            return replace(reservation, allocations=cut)
        holds = resource.plan(
            spec,
            Window(max(held.start, update.now), held.end),
            self._desk.ledger,
            lease=update.old,
            reservation=reservation,
            taken=taken,
            order=update.order,
        )
        kept = {a.host_id: Window(held.start, held.end) for a in reservation.allocations}
        holds = tuple(replace(a, held=kept.get(a.host_id, a.held)) for a in holds)
        return replace(reservation, spec=spec, allocations=holds)

    def _changed_work(self, old: Lease, new: Lease) -> Work:
        was = rules.events(old.start, old.end, old.before_end)
        due = rules.events(new.start, new.end, new.before_end)
        moved = {kind: at for kind, at in due.items() if was.get(kind) != at}
        if new.status == "ACTIVE" and _hosts_of(new.reservations) != _hosts_of(old.reservations):
            # The end is armed anew too: one that is about to begin must wait for the new hosts.
            moved |= {APPLY: self._desk.ledger.now(), END: new.end}
        return Work(
            put=tuple(self._operation(new.id, kind, at) for kind, at in moved.items()),
            cancel=frozenset(was.keys() - due.keys()),
        )

    # delete

    def _delete(self, caller: Caller, lease_id: str) -> None:
        lease = self._visible(caller, lease_id)
        if lease.status == "DELETING":
            return
        work = Work(  # `put`, for an earlier delete may have failed
            put=(self._operation(lease.id, DELETE, self._desk.ledger.now()),),
            cancel=frozenset({START, APPLY, BEFORE_END, END}),
        )
        said = f"lease {lease.name} is to be deleted"
        self._desk.ledger.save(lease, lease.move("DELETING"), work=work, say=said)

    # shared

    def _until_won(self, attempt: Callable[[Order], T]) -> T:
        """Repeat until the write was ours: a little apart and, once beaten, in no order that
        rivals would choose too."""
        for tries in range(_TRIES):
            try:
                return attempt(float if tries == 0 else lambda _host_id: random.random())
            except StaleWrite:
                pause = random.uniform(0, min(0.002 * 2**tries, 0.1))
                self._clock.wait(threading.Event(), pause)
        raise Conflict("too many others book the same hosts right now; try again")

    def _visible(self, caller: Caller, lease_id: str) -> Lease:
        lease = self._desk.ledger.lease(lease_id)
        if not caller.may_see(lease.project_id):
            raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")
        return lease

    def _resource(self, resource_type: str) -> Resource:
        try:
            return self._desk.resources[resource_type]
        except KeyError:
            known = ", ".join(sorted(self._desk.resources))
            raise InvalidInput(
                f"The {resource_type} resource type is not supported; known: {known}"
            ) from None

    def _before_end_default(self) -> timedelta:
        return timedelta(minutes=self._desk.settings.minutes_before_end_lease)

    def _operation(self, lease_id: str, kind: str, due: datetime) -> Operation:
        early = timedelta(seconds=self._desk.settings.prepare_s if kind == START else 0)
        return Operation(
            id=self._new_id(),
            kind=kind,
            subject=lease_id,
            key=f"{kind}/{lease_id}",
            sequence=SEQUENCE[kind],
            due_at=due,
            next_try_at=due - early,
        )


@dataclass(frozen=True)
class _Update:
    """A lease before and after its dates changed, while its reservations are planned anew."""

    old: Lease
    new: Lease
    now: datetime
    order: Order

    def held(self, reservation: Reservation, cleaning: timedelta) -> Window:
        """What the reservation must hold; one that runs, since it began."""
        since = min((a.held.start for a in reservation.allocations), default=self.new.start)
        same = self.old.status != "PENDING" or self.new.start == self.old.start
        start = since if same else max(self.new.start, self.now)
        return Window(start, max(self.new.end + cleaning, start))


def _hosts_of(reservations: Iterable[Reservation]) -> set[int]:
    return {host_id for r in reservations for host_id in r.host_ids()}
