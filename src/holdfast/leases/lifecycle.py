# SPDX-License-Identifier: Apache-2.0
"""What happens to a lease when its time has come, as durable steps."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step, guarded
from holdfast.leases.events import Announcer
from holdfast.leases.policy import Enforcement
from holdfast.leases.pools import KnownPools
from holdfast.leases.resources.base import Effect, EffectContext, Options, Resource
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

# What becomes of a lease by a step of its work: values in, values out.


#: In `Reservation.made`: ids of hosts that failed and for which nothing else was found.
LOST = "lost"


def event_name(kind: str) -> str:
    """How an announcement calls it."""
    return f"lease.event.{EVENT_TYPES[kind]}" if kind in EVENT_TYPES else ""


def after(lease: Lease, effects: Sequence[Effect]) -> Lease:
    """The lease with what the effects made of its reservations, and missed."""

    def changed(reservation: Reservation, effect: Effect) -> Reservation:
        missing = reservation.missing_resources if effect.missing is None else effect.missing
        missing = missing or bool(reservation.made.get(LOST))
        made = {**reservation.made, **effect.made}
        return replace(reservation, made=made, missing_resources=missing)

    reservations = tuple(map(changed, lease.reservations, effects))
    degraded = any(r.missing_resources or r.resources_changed for r in reservations)
    return replace(lease, reservations=reservations, degraded=degraded)


def along(lease: Lease, path: Sequence[str]) -> Lease:
    """Move along the path; a lease already on it goes on from where it is."""
    left = path[path.index(lease.status) + 1 :] if lease.status in path else path
    for status in left:
        lease = lease.move(status)
    return lease


LOG = logging.getLogger(__name__)


class Settings(Options, Protocol):
    """[reservation], read anew each time."""

    minutes_before_end_lease: int
    cleaning_time: int
    prepare_s: float


@dataclass(frozen=True)
class LeaseContext:
    """What every kind of lease work has at hand."""

    ledger: Ledger
    cloud: Cloud
    calls: Executor
    resources: Mapping[str, Resource]
    settings: Settings
    freepool: str = "freepool"
    announcer: Announcer = field(default_factory=Announcer)
    enforcement: Enforcement = field(default_factory=Enforcement)
    known: KnownPools = field(default_factory=KnownPools)

    def hands(self, run: Run) -> EffectContext:
        return EffectContext(
            cloud=guarded(self.cloud, run.hold),
            ledger=self.ledger,
            calls=self.calls,
            known=self.known,
            freepool=self.freepool,
            options=self.settings,
        )

    def in_the_way(self, cloud: Cloud, host: str) -> list[Server]:
        """Servers that must be gone before a host can be reserved."""
        return [server for server in cloud.servers.list(host=host) if self.stays(server)]

    def stays(self, server: Server) -> bool:
        """Whether it does not give way by itself."""
        return not (self.settings.preemptibles and server.preemptible)

    def cleaning(self) -> timedelta:
        return timedelta(minutes=self.settings.cleaning_time)


class _LeaseWork:
    """Common to all: find the lease, do something for each of its reservations."""

    name = ""
    retry_forever = False

    def __init__(self, context: LeaseContext) -> None:
        self.context = context

    def lease(self, run: Run) -> Lease:
        """Read once per attempt: a save refuses if somebody changed the lease meanwhile."""
        if "lease" not in run.memo:
            run.memo["lease"] = self.context.ledger.lease(run.operation.subject)
        lease: Lease = run.memo["lease"]
        return lease

    def hands(self, run: Run) -> EffectContext:
        if "hands" not in run.memo:
            run.memo["hands"] = self.context.hands(run)
        hands: EffectContext = run.memo["hands"]
        return hands

    def save(
        self, run: Run, new: Lease, say: str, work: Work | None = None, event: str = ""
    ) -> None:
        """Write it, and in the same breath the work that tells of it."""
        old, now = self.lease(run), self.context.ledger.now()
        told = self.context.announcer.health(old, new, now)
        if event:
            told += self.context.announcer.work(event, new, now)
        work = _with(work or Work(), *told)
        run.memo["lease"] = self.context.ledger.save(old, new, claim=run.claim, say=say, work=work)

    def each(self, verb: str) -> Callable[[Run], str]:
        """A step that calls `verb` of every reservation's resource. One that needs more time does
        not keep the others waiting."""

        def step(run: Run) -> str:
            lease, hands = self.lease(run), self.hands(run)
            effects: list[Effect] = []
            late: list[NotYet] = []
            for reservation in lease.reservations:
                act = getattr(self.context.resources[reservation.resource_type], verb)
                try:
                    effects.append(act(hands, lease, reservation))
                except NotYet as more:
                    late.append(more)
                    effects.append(Effect(more.sentence))
            said = "; ".join(effect.sentence for effect in effects)
            new = after(lease, effects)
            if new != lease:
                self.save(run, new, said if new.degraded != lease.degraded else "")
            if late:
                raise min(late, key=lambda one: one.seconds)
            return said or "the lease has no reservations"

        return step

    def move(
        self,
        *path: str,
        past: str = "",
        say: bool = True,
        reservations: str | None = None,
        tell: bool = False,
    ) -> Callable[[Run], str]:
        """A step that takes the lease along a path of states (from wherever on it it is);
        a lease that is `past` it stays as it is."""

        def step(run: Run) -> str:
            old = self.lease(run)
            new = old if old.status == past else along(old, path)
            if reservations:
                new = new.move_reservations(reservations)
            said = f"lease {old.name} is {new.status}"
            if new != old:
                work, event = Work(), event_name(self.name) if tell else ""
                if tell and self.name == END:
                    ended = self.context.enforcement.end_work(old, self.context.ledger.now())
                    work = Work(add=tuple(ended))
                self.save(run, new, said if say else "", work, event)
            return said

        return step

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """The lease is in ERROR, its reservations too; what it holds it keeps until its end."""
        try:
            old = self.lease(run)
        except NotFound:
            return  # deleted meanwhile: nobody is left to tell
        if self.name == START and old.status == "ACTIVE":
            return  # it runs; what failed is the tidying up after
        new = along(old, ("STARTING", "ERROR")).move_reservations("error")
        self.save(run, new, f"{self.name} failed: {why}")


class LeaseArrange(_LeaseWork):
    """What must happen as soon as a lease is booked; tried until its start."""

    name = ARRANGE

    def steps(self) -> Sequence[Step]:
        return (Step("arrange", self.each("arrange")),)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.context.ledger.lease(operation.subject).start

    def failed(self, run: Run, why: str) -> None:
        """The lease goes on: its start looks at how things are."""
        LOG.warning("lease %s: %s: %s", run.operation.subject, self.name, why)


class LeaseStart(_LeaseWork):
    name = START

    def steps(self) -> Sequence[Step]:
        return (
            Step("prepare", self.each("prepare"), pre_due=True),
            Step("begin", self.move("STARTING", past="ACTIVE", say=False), recorded=False),
            Step("start", self.each("start"), recorded=False),
            Step("active", self.move("ACTIVE", reservations="active", tell=True), recorded=False),
            Step("settle", self.each("settle"), recorded=False),
        )

    def give_up_at(self, operation: Operation) -> datetime | None:
        """A start that did not succeed before the lease's end has failed."""
        return self.context.ledger.lease(operation.subject).end


class _Aside(_LeaseWork):
    """One step in the life of a running lease, which is none the worse if it fails."""

    verbs: tuple[str, ...] = ()

    def steps(self) -> Sequence[Step]:
        return tuple(Step(verb, self.each(verb)) for verb in self.verbs)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.context.ledger.lease(operation.subject).end

    def failed(self, run: Run, why: str) -> None:
        """The event says ERROR, the lease goes on."""
        LOG.warning("lease %s: %s: %s", run.operation.subject, self.name, why)


class LeaseApply(_Aside):
    """A running lease got more hosts: they join its pool like the first ones did."""

    name, verbs = APPLY, ("start", "settle")

    def steps(self) -> Sequence[Step]:
        return (*super().steps(), Step("say", self.say, recorded=False))

    def say(self, run: Run) -> str:
        """For those who tell of pools, too."""
        lease = self.lease(run)
        said = f"lease {lease.name} has what it was changed to"
        self.save(run, lease, said)
        return said

    def failed(self, run: Run, why: str) -> None:
        """The owner is told that not all of it is there."""
        super().failed(run, why)
        old = self.lease(run)
        short = tuple(replace(r, missing_resources=True) for r in old.reservations)
        self.save(run, replace(old, degraded=True, reservations=short), f"not all joined: {why}")


class LeaseBeforeEnd(_Aside):
    name, verbs = BEFORE_END, ("before_end",)

    def steps(self) -> Sequence[Step]:
        return (*super().steps(), Step("tell", self.notify))

    def notify(self, run: Run) -> str:
        lease, now = self.lease(run), self.context.ledger.now()
        told = self.context.announcer.work(event_name(self.name), lease, now)
        if not told:
            return "nobody wants to hear of it"
        self.save(run, lease, "", Work(put=told))  # a second try finds the first one's rows
        return "those who want to hear of it will"


class LeaseEnd(_LeaseWork):
    """Tried until it succeeds: the next owner waits for the hosts."""

    name = END
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (
            Step("begin", self.move("TERMINATING", past="TERMINATED", say=False), recorded=False),
            Step("end", self.each("end"), recorded=False),  # what it does is not done twice
            Step(
                "terminated",
                self.move("TERMINATED", reservations="deleted", tell=True),
                recorded=False,
            ),
        )


class LeaseDelete(_LeaseWork):
    name = DELETE
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (Step("end", self.each("end")), Step("erase", self.erase))

    def erase(self, run: Run) -> str:
        try:
            lease = self.lease(run)
        except NotFound:
            return "the lease is gone"
        said, now = f"lease {lease.name} deleted", self.context.ledger.now()
        told = self.context.announcer.work("lease.delete", lease, now)
        work = Work(add=tuple(told))
        # `put`: of a lease without reservations nobody can tell whether its end was told of.
        work = replace(work, put=(*work.put, *self.context.enforcement.end_work(lease, now)))
        self.context.ledger.erase(lease, claim=run.claim, say=said, work=work)
        return said


def lease_work(
    id_: str, lease_id: str, kind: str, due: datetime, early_s: float = 0.0
) -> Operation:
    """The row of one of a lease's works; looked at so much earlier, if that is worth it."""
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
