# SPDX-License-Identifier: Apache-2.0
"""What happens to a lease when its time has come, as durable steps."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.model.errors import NotFound
from holdfast.model.lease import APPLY, BEFORE_END, DELETE, END, START, Lease
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.ledger import Ledger
from holdfast.reserve.pools import KnownPools
from holdfast.reserve.resource import Hands, Options, Resource
from holdfast.work.guarded import guarded
from holdfast.work.kind import Kind, Run, Step

LOG = logging.getLogger(__name__)


class Settings(Options, Protocol):
    """[reservation], read anew each time."""

    minutes_before_end_lease: int
    cleaning_time: int
    prepare_s: float


@dataclass(frozen=True)
class Desk:
    """What every kind of lease work has at hand."""

    ledger: Ledger
    cloud: Cloud
    calls: Executor
    resources: Mapping[str, Resource]
    settings: Settings
    freepool: str = "freepool"
    known: KnownPools = field(default_factory=KnownPools)

    def hands(self, run: Run) -> Hands:
        return Hands(
            cloud=guarded(self.cloud, run.hold),
            ledger=self.ledger,
            calls=self.calls,
            known=self.known,
            freepool=self.freepool,
            options=self.settings,
        )

    def in_the_way(self, cloud: Cloud, host: str) -> list[Server]:
        """Servers that must be gone before a host can be reserved."""
        found = cloud.servers.list(host=host)
        return [s for s in found if not (self.settings.preemptibles and s.preemptible)]

    def cleaning(self) -> timedelta:
        return timedelta(minutes=self.settings.cleaning_time)


class _LeaseWork:
    """Common to all: find the lease, do something for each of its reservations."""

    name = ""
    stubborn = False

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def lease(self, run: Run) -> Lease:
        """Read once per attempt: a save refuses if somebody changed the lease meanwhile."""
        if "lease" not in run.memo:
            run.memo["lease"] = self.desk.ledger.lease(run.operation.subject)
        lease: Lease = run.memo["lease"]
        return lease

    def hands(self, run: Run) -> Hands:
        if "hands" not in run.memo:
            run.memo["hands"] = self.desk.hands(run)
        hands: Hands = run.memo["hands"]
        return hands

    def save(self, run: Run, new: Lease, say: str) -> None:
        old = self.lease(run)
        run.memo["lease"] = self.desk.ledger.save(old, new, claim=run.claim, say=say)

    def each(self, verb: str) -> Callable[[Run], str]:
        """A step that calls `verb` of every reservation's resource."""

        def step(run: Run) -> str:
            lease, hands = self.lease(run), self.hands(run)
            said = [
                getattr(self.desk.resources[r.resource_type], verb)(hands, lease, r)
                for r in lease.reservations
            ]
            return "; ".join(said) or "the lease has no reservations"

        return step

    def move(
        self,
        *path: str,
        past: str = "",
        say: bool = True,
        reservations: str | None = None,
    ) -> Callable[[Run], str]:
        """A step that takes the lease along a path of states (from wherever on it it is);
        a lease that is `past` it stays as it is."""

        def step(run: Run) -> str:
            old = self.lease(run)
            new = old if old.status == past else _along(old, path)
            if reservations:
                new = new.move_reservations(reservations)
            said = f"lease {old.name} is {new.status}"
            if new != old:
                self.save(run, new, said if say else "")
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
        new = _along(old, ("STARTING", "ERROR")).move_reservations("error")
        self.save(run, new, f"{self.name} failed: {why}")


class LeaseStart(_LeaseWork):
    name = START

    def steps(self) -> Sequence[Step]:
        return (
            Step("prepare", self.each("prepare"), early=True),
            Step("begin", self.move("STARTING", past="ACTIVE", say=False), kept=False),
            Step("start", self.each("start"), kept=False),
            Step("active", self.move("ACTIVE", reservations="active"), kept=False),
            Step("settle", self.each("settle"), kept=False),
        )

    def give_up_at(self, operation: Operation) -> datetime | None:
        """A start that did not succeed before the lease's end has failed."""
        return self.desk.ledger.lease(operation.subject).end


class _Aside(_LeaseWork):
    """One step in the life of a running lease, which is none the worse if it fails."""

    verbs: tuple[str, ...] = ()

    def steps(self) -> Sequence[Step]:
        return tuple(Step(verb, self.each(verb)) for verb in self.verbs)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.desk.ledger.lease(operation.subject).end

    def failed(self, run: Run, why: str) -> None:
        """The event says ERROR, the lease goes on."""
        LOG.warning("lease %s: %s: %s", run.operation.subject, self.name, why)


class LeaseApply(_Aside):
    """A running lease got more hosts: they join its pool like the first ones did."""

    name, verbs = APPLY, ("start", "settle")

    def failed(self, run: Run, why: str) -> None:
        """The owner is told that not all of it is there."""
        super().failed(run, why)
        old = self.lease(run)
        short = tuple(replace(r, missing_resources=True) for r in old.reservations)
        self.save(run, replace(old, degraded=True, reservations=short), f"not all joined: {why}")


class LeaseBeforeEnd(_Aside):
    name, verbs = BEFORE_END, ("before_end",)


class LeaseEnd(_LeaseWork):
    """Tried until it succeeds: the next owner waits for the hosts."""

    name = END
    stubborn = True

    def steps(self) -> Sequence[Step]:
        return (
            Step("begin", self.move("TERMINATING", past="TERMINATED", say=False), kept=False),
            Step("end", self.each("end")),
            Step("terminated", self.move("TERMINATED", reservations="deleted"), kept=False),
        )


class LeaseDelete(_LeaseWork):
    name = DELETE
    stubborn = True

    def steps(self) -> Sequence[Step]:
        return (Step("end", self.each("end")), Step("erase", self.erase))

    def erase(self, run: Run) -> str:
        try:
            lease = self.lease(run)
        except NotFound:
            return "the lease is gone"
        said = f"lease {lease.name} deleted"
        self.desk.ledger.erase(lease, claim=run.claim, say=said)
        return said


def _along(lease: Lease, path: Sequence[str]) -> Lease:
    """Move along the path; a lease already on it goes on from where it is."""
    left = path[path.index(lease.status) + 1 :] if lease.status in path else path
    for status in left:
        lease = lease.move(status)
    return lease


def kinds(desk: Desk) -> dict[str, Kind]:
    made = (LeaseStart, LeaseApply, LeaseBeforeEnd, LeaseEnd, LeaseDelete)
    return {kind.name: kind(desk) for kind in made}
