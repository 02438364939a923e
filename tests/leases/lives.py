# SPDX-License-Identifier: Apache-2.0
"""The side of the model-based test that asks, remembers and judges; `test_model` makes it up."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast.model.errors import (
    Conflict,
    DriverError,
    InvalidInput,
    NotEnoughHosts,
    NotFound,
    Unavailable,
)
from holdfast.model.lease import LeaseChange
from holdfast.model.operation import OPEN, Operation
from tests.leases.house import ADMIN, CLAIM_S, House, Killed, Points, copy
from tests.leases.oracle import Hold, Minutes, Oracle, size_of
from tests.simclock import EPOCH

CAPACITY = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100}
#: After so long without faults everything that was due is done.
CALM = timedelta(minutes=5)
CALMED = {"down": False, "failure_rate": 0.0, "lost_reply_rate": 0.0, "delete_s": 0.0}
POOLED = ("physical:host", "virtual:instance", "flavor:instance")


@dataclass(frozen=True)
class Known:
    """A lease as its owner knows it, and what he was given."""

    id: str
    kind: str
    spec: dict[str, Any]
    start: datetime
    end: datetime
    holds: tuple[Hold, ...] = ()

    @property
    def span(self) -> Minutes:
        return minutes(self.start), minutes(self.end)


def minutes(when: datetime) -> float:
    return (when - EPOCH).total_seconds() / 60


@dataclass
class Verdict:
    """What the oracle says before the house is asked: `yes`, `no`, or `either`."""

    says: str
    why: str = ""

    def check(self, accepted: bool) -> None:
        wrong = self.says == ("no" if accepted else "yes")
        assert not wrong, f"{'accepted' if accepted else 'refused'}, but {self.why}"


def sure(fits: bool, why: str) -> Verdict:
    return Verdict("yes" if fits else "no", why)


class Watched(RuleBasedStateMachine):
    """A house, and beside it all that its owners and the oracle know."""

    def __init__(self, template: Path, site: Path) -> None:
        super().__init__()
        self.house = House(copy(template, site))
        self.oracle = Oracle()
        self.leases: dict[str, Known] = {}
        self.names: dict[str, int] = {}  # enrolled hosts
        self.calm_since: datetime | None = EPOCH
        self.going: set[str] = set()  # being deleted
        self.killed = False
        self.doomed = False
        self.points = Points()
        self.server = ""

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else the story has failed already
                self._until_all_is_over()
        finally:
            self.house.close()

    # what is asked of the house

    def _ask(self, action: Callable[[], object], verdict: Verdict) -> bool:
        """Whether it was accepted; whoever hears no answer asks again, as clients do."""
        self.killed = False
        for _again in range(6):
            try:
                with self._acting():
                    action()
                break
            except (NotEnoughHosts, Conflict) as refused:
                if not self.killed:
                    assert verdict.says != "yes", f"refused ({refused}), but {verdict.why}"
                return False
            except DriverError:
                assert self.calm_since is None or self.doomed, "the cloud is well, and was not"
                return False
            except Unavailable:
                self.killed = True
            except Killed:
                self._killed()
        else:
            raise AssertionError("no answer six times over")
        if not self.killed:
            verdict.check(True)
        return True

    def _change(self, after: Known, change: LeaseChange) -> None:
        before = self._fits(after, self._book().without(after.id), now=self.leases[after.id])
        try:
            accepted = self._ask(lambda: self.house.update(after.id, **vars(change)), before)
        except InvalidInput:
            # between our look and the act the lease began or ended
            assert self.killed, "an update that is fine in itself was called invalid"
            accepted = False
        if accepted:
            self._given(after)

    def _fits(self, wanted: Known, others: Oracle, now: Known | None = None) -> Verdict:
        """What brute force says; of a lease that runs already it says less."""
        since = max(minutes(self.house.clock.now()), wanted.span[0])
        span = (since, wanted.span[1])
        status = "PENDING" if now is None else self.house.status(now.id)
        if status in ("STARTING", "TERMINATING"):
            return Verdict("either")  # it may say: again when that is done
        runs = status != "PENDING"
        if wanted.kind == "physical:host":
            free = others.free(span)
            why = f"{len(free)} hosts are free, wanted are {wanted.spec['min']}"
            if runs and now is not None:
                return self._fits_running(wanted, now, free)
            return sure(len(free) >= wanted.spec["min"], why)
        if runs:
            return Verdict("either")
        if wanted.kind in ("virtual:floatingip", "virtual:server"):
            free_things = {t for t in others.free_things(span) if self._is_of(wanted.kind, t)}
            amount = wanted.spec.get("amount", 1)
            return sure(len(free_things) >= amount, f"free are {free_things}, wanted {amount}")
        size, affinity = size_of(wanted.spec), wanted.spec["affinity"]
        room = others.slots(span, size, affinity)
        why = f"there is room for {room} slots, wanted are {wanted.spec['amount']}"
        return sure(room >= wanted.spec["amount"], why)

    def _is_of(self, kind: str, thing: str) -> bool:
        return thing.startswith("server:") == (kind == "virtual:server")

    def _fits_running(self, wanted: Known, now: Known, free: set[int]) -> Verdict:
        """A lease that runs loses nothing and may get more."""
        mine = {hold.host for hold in now.holds}
        if wanted.spec["max"] < len(mine):
            return Verdict("either")
        fits = mine <= free and len(free) >= wanted.spec["min"]
        return sure(fits, f"it runs on {mine}, free are {free}, wanted {wanted.spec['min']}")

    def _given(self, wanted: Known) -> None:
        """Read what it got, and write it into the oracle's book."""
        try:
            lease = self.house.lease(wanted.id)
        except NotFound:
            raise AssertionError(f"lease {wanted.id} was accepted and is not there") from None
        holds = []
        for allocation in lease.reservations[0].allocations:
            span = (minutes(allocation.held.start), minutes(allocation.held.end))
            takes = None if allocation.slots is None else dict(allocation.takes)
            holds.append(Hold(wanted.id, allocation.host_id, span, takes, allocation.thing))
        known = replace(wanted, start=lease.start, end=lease.end, holds=tuple(holds))
        self.leases[wanted.id] = known
        self.oracle.holds = [*self.oracle.without(wanted.id).holds, *holds]
        self._check_amount(known)

    def _check_amount(self, known: Known) -> None:
        assert all(hold.span[1] >= known.span[1] for hold in known.holds), known
        if known.kind == "physical:host":
            low, high = known.spec["min"], known.spec["max"]
            running = self.house.status(known.id) != "PENDING"
            assert low <= len(known.holds), known
            assert len(known.holds) <= high or running, known
            return
        if known.kind == "virtual:server":
            return  # room on a host is held where there is some
        if known.kind == "virtual:floatingip":
            assert len(known.holds) == known.spec["amount"], known
            return
        size = size_of(known.spec)
        slots = [(hold.takes or {})["VCPU"] // size["VCPU"] for hold in known.holds]
        assert sum(slots) == known.spec["amount"], known
        if known.spec["affinity"] is True:
            assert len({hold.host for hold in known.holds}) == 1, known
        if known.spec["affinity"] is False:
            assert len({hold.host for hold in known.holds}) == known.spec["amount"], known

    # hosts

    def _enrol(self, name: str) -> None:
        self._ask(lambda: self._enrol_again(name), Verdict("either"))
        self._look_at_hosts()  # it may be enrolled all the same

    def _enrol_again(self, name: str) -> None:
        try:
            self.house.m.commands.enrol_host(ADMIN, name, {})
        except Conflict as error:
            if "enrolled already" not in error.message:
                raise

    def _withdraw(self, name: str) -> None:
        host_id = self.names[name]
        now = minutes(self.house.clock.now())
        book = self._book()
        held = any(h.host == host_id and h.span[1] > now for h in book.holds)
        over = all(h.host != host_id for h in book.holds)
        verdict = Verdict("no" if held else "yes" if over else "either", f"held: {held}")

        def withdraw() -> None:
            try:
                self.house.m.commands.withdraw_host(ADMIN, host_id)
            except NotFound:
                assert self.killed, "an enrolled host is not there"

        self._ask(withdraw, verdict)
        self._look_at_hosts()

    def _look_at_hosts(self) -> None:
        """While faults are about, only the house knows which hosts can be reserved."""
        found = {host.name: host for host in self.house.m.store.ledger.enrolled()}
        self.names = {name: host.id for name, host in found.items()}
        self.oracle.hosts = {host.id: CAPACITY for host in found.values() if host.reservable}

    # time

    def _work(self, until: datetime) -> None:
        while True:
            try:
                with self._acting():
                    self.house.run(until=until)
                return
            except Killed:
                self._killed()
                until = max(until, self.house.clock.now())
            except Unavailable:  # the loop's own look was not answered: it comes round again
                self.house.clock.advance(1.0)

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        """Managers die at work, not while we look on. What an answer was about that got lost may be
        late, whoever notices."""
        points, before = self.points, len(self.points.passed)
        points.armed = True
        try:
            yield
        finally:
            points.armed = False
            if before < points.at <= len(points.passed):
                self._trouble()

    def _killed(self) -> None:
        """The manager is gone; when its claims have expired, another is there."""
        self.killed = True
        self.doomed = False
        self.house.clock.advance(CLAIM_S + 1)
        self.house.manager()
        self._trouble()

    def _trouble(self) -> None:
        """Something is late for a while."""
        if self.calm_since is not None:
            self.calm_since = self.house.clock.now()

    def _calm(self) -> None:
        self.house.sim.change(**CALMED)
        self.calm_since = self.house.clock.now()

    def _minute(self) -> datetime:
        now = self.house.clock.now()
        return now.replace(second=0, microsecond=0)

    # who there is

    def _live(self) -> list[Known]:
        now = self.house.clock.now()
        return [lease for lease in self.leases.values() if lease.end > now]

    def _pending(self) -> list[Known]:
        soon = self.house.clock.now() + timedelta(minutes=2)
        return [lease for lease in self.leases.values() if lease.start > soon]

    def _active_hosts(self) -> list[str]:
        """Of leases of whole hosts: where an owner may boot a server."""
        whole = [lease for lease in self.leases.values() if lease.kind == "physical:host"]
        active = [lease for lease in whole if self.house.status(lease.id) == "ACTIVE"]
        return sorted(host for one in active for hosts in self.house.held(one.id) for host in hosts)

    def _one_of(self, data: st.DataObject, those: list[Any]) -> Any:
        return those[data.draw(st.integers(0, len(those) - 1))]

    def _book(self) -> Oracle:
        """The oracle's book, less what was deleted and is gone by now."""
        for lease_id in list(self.going):
            try:
                self.house.lease(lease_id)
            except NotFound:
                self.going.remove(lease_id)
                self.oracle = self.oracle.without(lease_id)
        return self.oracle

    # what must be so

    @invariant()
    def nobody_has_what_somebody_else_has(self) -> None:
        assert list(self.oracle.wrongs()) == []

    @invariant()
    def what_was_accepted_is_there(self) -> None:
        found = {lease.id for lease, _events in self.house.m.store.ledger.with_events()}
        assert self.leases.keys() <= found, "an accepted lease is gone"
        assert found <= self.leases.keys() | self.going, "a lease is there that nobody has"

    @invariant()
    def after_a_quiet_while_all_is_as_its_dates_say(self) -> None:
        now = self.house.clock.now()
        if self.calm_since is None or now - self.calm_since < CALM:
            return
        slack = timedelta(minutes=2 if self.doomed else 0.5)
        for lease in self.leases.values():
            expected = expected_status(lease, now, slack + patience(lease))
            status = self.house.status(lease.id)
            assert status in expected, f"{lease} is {status} at {now}, not {expected}"
            if len(expected) == 1:
                self.house.check_combination(lease.id)
        self.house.check_pools()
        self._check_cloud(now, slack)

    def _check_cloud(self, now: datetime, slack: timedelta) -> None:
        """Pools: the active leases', those about to start, and the hosts nobody has."""
        pools = self.house.pools()
        taken: set[str] = set()
        for lease in self.leases.values():
            (reservation,) = self.house.lease(lease.id).reservations
            hosts = pools.pop(reservation.id, None)
            state = expected_status(lease, now, slack + patience(lease))
            if state == {"ACTIVE"} and lease.kind in POOLED:
                assert hosts == set(reservation.hosts()), f"{lease}: its pool has {hosts}"
                taken |= set(reservation.hosts()) if lease.kind == "physical:host" else set()
            if state == {"TERMINATED"}:
                assert hosts is None, f"{lease} is over and still has {hosts}"
            if len(state) > 1:
                return  # just now one begins or ends
        if not self.going:
            free = pools.pop("freepool", set())
            assert pools == {}, f"pools of nobody: {pools}"
            assert free == self.names.keys() - taken

    def _until_all_is_over(self) -> None:
        """Nobody interferes any more: everything ends, and nothing is left behind."""
        self._calm()
        if self.doomed:
            self._killed()
        ends = [lease.end for lease in self.leases.values()]
        self._work(max([self.house.clock.now(), *ends]) + 2 * CALM)
        self.nobody_has_what_somebody_else_has()
        self.what_was_accepted_is_there()
        self.after_a_quiet_while_all_is_as_its_dates_say()
        assert {self.house.status(lease_id) for lease_id in self.leases} <= {"TERMINATED"}
        self._book()
        assert not self.going, "a delete never ended"
        assert self.house.pools() == ({"freepool": set(self.names)} if self.names else {}) or (
            self.house.pools() == {"freepool": set()}
        )
        now = self.house.clock.now()
        late = [o for o in self.house.m.store.operations.list_all() if is_late(o, now)]
        assert late == [], "work is left undone"


def expected_status(lease: Known, now: datetime, slack: timedelta) -> set[str]:
    """By its dates; around them it may be on its way."""
    if now < lease.start:
        return {"PENDING"}
    if now < lease.start + slack:
        return {"PENDING", "STARTING", "ACTIVE"}
    if now < lease.end:
        return {"ACTIVE"}
    if now < lease.end + slack:
        return {"ACTIVE", "TERMINATING", "TERMINATED"}
    return {"TERMINATED"}


def patience(lease: Known) -> timedelta:
    """A server that cannot come back is waited for before the lease goes on without it."""
    return timedelta(minutes=5 if lease.kind == "virtual:server" else 0)


def is_late(operation: Operation, now: datetime) -> bool:
    return operation.status in OPEN and operation.due_at <= now
