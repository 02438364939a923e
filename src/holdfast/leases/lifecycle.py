# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of a lease as durable steps: arrange, start, apply, before-end, end, delete."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step, guarded
from holdfast.leases.events import Announcer
from holdfast.leases.policy import Enforcement
from holdfast.leases.resources.base import Effect, EffectContext, Options, PoolIds, Resource
from holdfast.model.errors import NotFound
from holdfast.model.lease import (
    APPLY,
    ARRANGE,
    BEFORE_END,
    DELETE,
    END,
    EVENT_TYPES,
    SEQUENCE,
    START,
    Lease,
    Reservation,
)
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.ledger import Ledger, Work

# The lease after a step of an operation, as pure functions.


#: Key in `Reservation.made`: ids of failed hosts without a replacement.
LOST = "lost"


def event_name(kind: str) -> str:
    """Return the event type of an operation kind."""
    return f"lease.event.{EVENT_TYPES[kind]}" if kind in EVENT_TYPES else ""


def after(lease: Lease, effects: Sequence[Effect]) -> Lease:
    """Return the lease with the effects on its reservations, and its degraded flag."""

    def changed(reservation: Reservation, effect: Effect) -> Reservation:
        missing = reservation.missing_resources if effect.missing is None else effect.missing
        missing = missing or bool(reservation.made.get(LOST))
        made = {**reservation.made, **effect.made}
        return replace(reservation, made=made, missing_resources=missing)

    reservations = tuple(map(changed, lease.reservations, effects))
    degraded = any(r.missing_resources or r.resources_changed for r in reservations)
    return replace(lease, reservations=reservations, degraded=degraded)


def along(lease: Lease, path: Sequence[str]) -> Lease:
    """Move the lease along the path; a lease already on the path continues from its state."""
    left = path[path.index(lease.status) + 1 :] if lease.status in path else path
    for status in left:
        lease = lease.move(status)
    return lease


LOG = logging.getLogger(__name__)
#: Selects the method of a resource that a step calls.
Act = Callable[[Resource], Callable[[EffectContext, Lease, Reservation], Effect]]


class Settings(Options, Protocol):
    """The `[reservation]` options, read anew at every use."""

    minutes_before_end_lease: int
    cleaning_time: int


@dataclass(frozen=True)
class LeaseContext:
    """The dependencies of all lease jobs."""

    ledger: Ledger
    cloud: Cloud
    calls: Executor
    resources: Mapping[str, Resource]
    settings: Settings
    freepool: str = "freepool"
    announcer: Announcer = field(default_factory=Announcer)
    enforcement: Enforcement = field(default_factory=Enforcement)
    pool_ids: PoolIds = field(default_factory=PoolIds)

    def effects(self, run: Run) -> EffectContext:
        return EffectContext(
            cloud=guarded(self.cloud, run.hold),
            ledger=self.ledger,
            calls=self.calls,
            pool_ids=self.pool_ids,
            freepool=self.freepool,
            options=self.settings,
        )

    def in_the_way(self, cloud: Cloud, host: str) -> list[Server]:
        """List the servers blocking the reservation of a host."""
        return [server for server in cloud.servers.list(host=host) if self.stays(server)]

    def stays(self, server: Server) -> bool:
        """Whether the server stays: it is not preemptible, or preemption is off."""
        return not (self.settings.preemptibles and server.preemptible)

    def cleaning(self) -> timedelta:
        return timedelta(minutes=self.settings.cleaning_time)


class _LeaseWork:
    """Base of all lease jobs: load the lease, act on each of its reservations."""

    name = ""
    retry_forever = False

    def __init__(self, context: LeaseContext) -> None:
        self.context = context

    def lease(self, run: Run) -> Lease:
        """Return the lease, read once per attempt: saving fails if another writer changed it."""
        if "lease" not in run.memo:
            run.memo["lease"] = self.context.ledger.lease(run.operation.subject)
        lease: Lease = run.memo["lease"]
        return lease

    def effects(self, run: Run) -> EffectContext:
        if "effects" not in run.memo:
            run.memo["effects"] = self.context.effects(run)
        effects: EffectContext = run.memo["effects"]
        return effects

    def save(
        self,
        run: Run,
        new: Lease,
        say: str,
        work: Work | None = None,
        event: str = "",
        is_repair: bool = False,
    ) -> None:
        """Save the lease, and its events, in the same transaction."""
        old, now = self.lease(run), self.context.ledger.now()
        operations = self.context.announcer.health(old, new, now)
        if event:
            operations += self.context.announcer.work(event, new, now)
        work = _with(work or Work(), *operations)
        run.memo["lease"] = self.context.ledger.save(
            old, new, claim=run.claim, say=say, work=work, is_repair=is_repair
        )

    def each(self, act: Act) -> Callable[[Run], str]:
        """Make a step: call `act` with the resource of every reservation.

        A reservation that needs more time does not delay the others.
        """

        def step(run: Run) -> str:
            lease, effects = self.lease(run), self.effects(run)
            results: list[Effect] = []
            late: list[NotYet] = []
            for reservation in lease.reservations:
                resource = self.context.resources[reservation.resource_type]
                try:
                    results.append(act(resource)(effects, lease, reservation))
                except NotYet as more:
                    late.append(more)
                    results.append(Effect(more.sentence))
            sentence = "; ".join(effect.sentence for effect in results)
            new = after(lease, results)
            if new != lease:
                self.save(run, new, sentence if new.degraded != lease.degraded else "")
            if late:
                raise min(late, key=lambda delay: delay.seconds)
            return sentence or "the lease has no reservations"

        return step

    def move(
        self,
        *path: str,
        past: str = "",
        say: bool = True,
        reservations: str | None = None,
        publish: bool = False,
    ) -> Callable[[Run], str]:
        """Make a step: move the lease along a path of states, from the current state.

        A lease in state `past` stays as it is.
        """

        def step(run: Run) -> str:
            old = self.lease(run)
            new = old if old.status == past else along(old, path)
            if reservations:
                new = new.move_reservations(reservations)
            sentence = f"lease {old.name} is {new.status}"
            if new != old:
                work, event = Work(), event_name(self.name) if publish else ""
                if publish and self.name == END:
                    ended = self.context.enforcement.end_work(old, self.context.ledger.now())
                    work = Work(add=tuple(ended))
                self.save(run, new, sentence if say else "", work, event)
            return sentence

        return step

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Move the lease and its reservations to ERROR; their holds stay until the end."""
        try:
            old = self.lease(run)
        except NotFound:
            return  # deleted meanwhile
        if self.name == START and old.status == "ACTIVE":
            return  # the lease is active; only the clean-up afterwards failed
        new = along(old, ("STARTING", "ERROR")).move_reservations("error")
        self.save(run, new, f"{self.name} failed: {why}")


class LeaseArrange(_LeaseWork):
    """Job kind: act right after the booking or a change of the start; retried until the start.

    Shelves a leased server; takes hosts out of the pool of deferred slots.
    """

    name = ARRANGE

    def steps(self) -> Sequence[Step]:
        return (Step("arrange", self.each(lambda resource: resource.arrange)),)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.context.ledger.lease(operation.subject).start

    def failed(self, run: Run, why: str) -> None:
        """Only log: the start checks the state itself."""
        LOG.warning("lease %s: %s: %s", run.operation.subject, self.name, why)


class LeaseStart(_LeaseWork):
    name = START

    def steps(self) -> Sequence[Step]:
        return (
            Step("prepare", self.each(lambda resource: resource.prepare), pre_due=True),
            Step("begin", self.move("STARTING", past="ACTIVE", say=False), recorded=False),
            Step("start", self.each(lambda resource: resource.start), recorded=False),
            Step(
                "active", self.move("ACTIVE", reservations="active", publish=True), recorded=False
            ),
            Step("settle", self.each(lambda resource: resource.settle), recorded=False),
        )

    def give_up_at(self, operation: Operation) -> datetime | None:
        """Give up at the lease's end."""
        return self.context.ledger.lease(operation.subject).end


class _Aside(_LeaseWork):
    """A job during a running lease; its failure does not end the lease."""

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.context.ledger.lease(operation.subject).end

    def failed(self, run: Run, why: str) -> None:
        """Only log: the event says ERROR, the lease continues."""
        LOG.warning("lease %s: %s: %s", run.operation.subject, self.name, why)


class LeaseApply(_Aside):
    """Job kind: apply a change of a running lease; new hosts join its pool like the first."""

    name = APPLY

    def steps(self) -> Sequence[Step]:
        return (
            Step("start", self.each(lambda resource: resource.start)),
            Step("settle", self.each(lambda resource: resource.settle)),
            Step("say", self.say, recorded=False),
        )

    def say(self, run: Run) -> str:
        """Record the applied change; the resync job finds the lease by its time of change."""
        lease = self.lease(run)
        sentence = f"lease {lease.name} has the change applied"
        self.save(run, lease, sentence)
        return sentence

    def failed(self, run: Run, why: str) -> None:
        """Flag the lease degraded; the owner then sees the missing hosts."""
        super().failed(run, why)
        old = self.lease(run)
        short = tuple(replace(r, missing_resources=True) for r in old.reservations)
        new = replace(old, degraded=True, reservations=short)
        self.save(run, new, f"not all joined: {why}", is_repair=True)


class LeaseBeforeEnd(_Aside):
    name = BEFORE_END

    def steps(self) -> Sequence[Step]:
        return (
            Step("before_end", self.each(lambda resource: resource.before_end)),
            Step("notify", self.notify),
        )

    def notify(self, run: Run) -> str:
        lease, now = self.lease(run), self.context.ledger.now()
        operations = self.context.announcer.work(event_name(self.name), lease, now)
        if not operations:
            return "no publisher is configured"
        self.save(
            run, lease, "", Work(put=operations)
        )  # a second attempt finds the rows of the first
        return "the event is in the outbox"


class LeaseEnd(_LeaseWork):
    """Job kind: end a lease; retried until success, because the next owner waits for the hosts."""

    name = END
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (
            Step("begin", self.move("TERMINATING", past="TERMINATED", say=False), recorded=False),
            # Effects read the state first, so a repeat does nothing.
            Step("end", self.each(lambda resource: resource.end), recorded=False),
            Step(
                "terminated",
                self.move("TERMINATED", reservations="deleted", publish=True),
                recorded=False,
            ),
        )


class LeaseDelete(_LeaseWork):
    name = DELETE
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (Step("end", self.each(lambda resource: resource.end)), Step("erase", self.erase))

    def erase(self, run: Run) -> str:
        try:
            lease = self.lease(run)
        except NotFound:
            return "the lease is gone"
        sentence, now = f"lease {lease.name} deleted", self.context.ledger.now()
        operations = self.context.announcer.work("lease.delete", lease, now)
        work = Work(add=tuple(operations))
        # `put`: for a lease without reservations nothing shows whether its end was already
        # announced.
        work = replace(work, put=(*work.put, *self.context.enforcement.end_work(lease, now)))
        self.context.ledger.erase(lease, claim=run.claim, say=sentence, work=work)
        return sentence


def lease_work(
    id_: str, lease_id: str, kind: str, due: datetime, early_s: float = 0.0
) -> Operation:
    """Make an operation of a lease; `early_s` lets a manager claim it before its due time."""
    return Operation(
        id=id_,
        kind=kind,
        subject=lease_id,
        key=f"{kind}/{lease_id}",
        sequence=SEQUENCE[kind],
        due_at=due,
        next_try_at=due - timedelta(seconds=early_s),
    )


def _with(work: Work, *more: Operation) -> Work:
    return replace(work, add=(*work.add, *more))


def kinds(context: LeaseContext) -> dict[str, Kind]:
    made: list[Kind] = [
        kind(context)
        for kind in (
            LeaseArrange,
            LeaseStart,
            LeaseApply,
            LeaseBeforeEnd,
            LeaseEnd,
            LeaseDelete,
        )
    ]
    return {kind.name: kind for kind in made}
