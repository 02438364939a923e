# SPDX-License-Identifier: Apache-2.0
"""Random lives against an oracle: anybody wants anything, time jumps, clouds fail, managers die.

Hypothesis makes up the story; the oracle (`oracle.py`, brute force on a list of holds) says what
must be answered and what must then be so. A refusal is right only when brute force finds nothing
either; an acceptance never makes two owners; when the cloud has been quiet for a while, every lease
is in the state that its dates say, and the cloud holds what the model says and nothing else.

    pytest tests/leases/test_model.py                        # the same stories every time
    MODEL_EXAMPLES=1000 pytest tests/leases/test_model.py --hypothesis-seed=7
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from holdfast.model.errors import NotFound
from holdfast.model.lease import LeaseChange, NewLease, NewReservation
from holdfast.ports.cloud import Flavor
from tests.leases.house import ADMIN, ANN, Points
from tests.leases.lives import CAPACITY, Known, Watched, sure

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
STEPS = 40
HOSTS = ("cmp-1", "cmp-2", "cmp-3", "cmp-4")
NETWORK = "0e7a0000-0000-4000-8000-000000000001"
#: Vcpus, memory, disk of a slot; the last fills a host.
SIZES = ((1, 512, 5), (3, 1024, 10), (5, 4096, 30), (8, 8192, 100))
SMALL = Flavor("small", "m1.small", 3, 1024, 10)
KINDS = (
    "physical:host",
    "physical:host",
    "virtual:instance",
    "flavor:instance",
    "virtual:floatingip",
    "virtual:server",
)
FAULTS: tuple[dict[str, Any], ...] = (
    {"down": True},
    {"failure_rate": 0.3},
    {"lost_reply_rate": 0.3},
    {"delete_s": 40.0},
)


class Life(Watched):
    @initialize(count=st.integers(1, len(HOSTS)))
    def some_hosts(self, count: int) -> None:
        sizes = {"vcpus": CAPACITY["VCPU"], "memory_mb": CAPACITY["MEMORY_MB"]}
        for name in HOSTS:
            self.house.sim.add_host(name, **sizes, local_gb=CAPACITY["DISK_GB"])
        for name in HOSTS[:count]:
            self._enrol(name)
        self.house.m.cloud.flavors.create(SMALL)
        self.house.add("elsewhere")
        self.server = self.house.boot("web", "elsewhere")
        self.house.sim.add_subnet(NETWORK, "192.0.2.0/24", "192.0.2.1", ())
        for last in (11, 12, 13):
            self.house.m.commands.enrol_floatingip(ADMIN, NETWORK, f"192.0.2.{last}")
        addresses = self.house.m.store.ledger.floatingips(NETWORK)
        self.oracle.things = {address.thing for address in addresses} | {f"server:{self.server}"}

    @precondition(lambda self: len(self.leases) < 7)
    @rule(
        kind=st.sampled_from(KINDS),
        start=st.integers(0, 30),
        length=st.integers(1, 24),
        amounts=st.tuples(st.integers(1, 4), st.integers(0, 2)),
        size=st.sampled_from(SIZES),
        affinity=st.sampled_from([None, True, False]),
    )
    def create(
        self,
        kind: str,
        start: int,
        length: int,
        amounts: tuple[int, int],
        size: tuple[int, int, int],
        affinity: bool | None,
    ) -> None:
        """For so many times ten minutes, from so many times ten minutes on; 0: from now."""
        now = self._minute()
        begins = now + timedelta(minutes=10 * start)
        spec = self._spec(kind, amounts, size, affinity)
        ends = begins + timedelta(minutes=10 * length)
        known = {**spec, "vcpus": 3, "memory_mb": 1024, "disk_gb": 10}  # what the flavor means
        wanted = Known(
            self.house.new_id(), kind, known if kind == "flavor:instance" else spec, begins, ends
        )
        order = NewLease(
            wanted.id,
            "life",
            begins if start else None,
            ends,
            None,
            (NewReservation(kind, spec),),
        )
        before = self._fits(wanted, self._book())
        if self._ask(lambda: self.house.m.commands.create_lease(ANN, order), before):
            self._given(wanted)

    def _spec(
        self,
        kind: str,
        amounts: tuple[int, int],
        size: tuple[int, int, int],
        affinity: bool | None,
    ) -> dict[str, Any]:
        low, more = amounts
        slots = {"amount": low + 2 * more, "affinity": affinity, "resource_properties": ""}
        sizes = dict(zip(("vcpus", "memory_mb", "disk_gb"), size, strict=True))
        specs: dict[str, dict[str, Any]] = {
            "physical:host": {"min": low, "max": low + more},
            "virtual:instance": {**sizes, **slots},
            "flavor:instance": {"flavor_id": SMALL.id, **slots},
            "virtual:floatingip": {"network_id": NETWORK, "amount": low},
            "virtual:server": {"server_id": self.server},
        }
        return specs[kind]

    @precondition(lambda self: self._live())
    @rule(data=st.data(), by=st.integers(-12, 12).filter(bool))
    def prolong_or_reduce(self, data: st.DataObject, by: int) -> None:
        lease = self._one_of(data, self._live())
        end = lease.end + timedelta(minutes=10 * by)
        if end <= self.house.clock.now() + timedelta(minutes=1) or end <= lease.start:
            return
        self._change(replace(lease, end=end), LeaseChange(end=end))

    @precondition(lambda self: self._pending())
    @rule(data=st.data(), by=st.integers(-6, 12).filter(bool))
    def advance_or_defer(self, data: st.DataObject, by: int) -> None:
        lease = self._one_of(data, self._pending())
        shift = timedelta(minutes=10 * by)
        if lease.start + shift <= self.house.clock.now() + timedelta(minutes=1):
            return
        moved = replace(lease, start=lease.start + shift, end=lease.end + shift)
        self._change(moved, LeaseChange(start=moved.start, end=moved.end))

    @precondition(lambda self: self._live())
    @rule(data=st.data(), amount=st.integers(1, 5))
    def grow_or_shrink(self, data: st.DataObject, amount: int) -> None:
        lease = self._one_of(data, self._live())
        if lease.kind == "virtual:server":
            return
        wish = {"min": amount, "max": amount}
        if lease.kind != "physical:host":
            wish = {"amount": amount}
        reservation = self.house.lease(lease.id).reservations[0].id
        changed = replace(lease, spec={**lease.spec, **wish})
        self._change(changed, LeaseChange(reservations={reservation: wish}))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        lease = self._one_of(data, list(self.leases.values()))

        def gone() -> None:
            try:
                self.house.delete(lease.id)
            except NotFound:
                assert self.killed, "a lease that was there is not"

        self._ask(gone, sure(True, "a lease can always be deleted"))
        del self.leases[lease.id]
        self.going.add(lease.id)

    @rule(name=st.sampled_from(HOSTS))
    def enrol_or_withdraw(self, name: str) -> None:
        if name in self.names:
            self._withdraw(name)
        else:
            self._enrol(name)

    @rule(passed=st.sampled_from([0.5, 3, 10, 10, 35, 130]))
    def time_passes(self, passed: float) -> None:
        self._work(self.house.clock.now() + timedelta(minutes=passed))

    @rule(passed=st.sampled_from([1, 20, 150]))
    def nobody_works_for_a_while(self, passed: float) -> None:
        self.house.clock.advance(passed * 60)
        self._trouble()

    @rule(fault=st.sampled_from(FAULTS))
    def the_cloud_fails(self, fault: dict[str, Any]) -> None:
        self.house.sim.change(**fault)
        self.calm_since = None

    @precondition(lambda self: self.calm_since is None)
    @rule()
    def the_cloud_is_well_again(self) -> None:
        self._calm()

    @rule(at=st.integers(1, 60), how=st.sampled_from(["kill", "kill", "lose"]))
    def a_manager_that_will_not_live_long(self, at: int, how: str) -> None:
        self.points = Points(at=at, how=how, statements=True, armed=False)
        self.house.manager(self.points)
        self.doomed = True

    @rule()
    def a_manager_dies_now(self) -> None:
        self._killed()

    @precondition(lambda self: self._active_hosts())
    @rule(data=st.data())
    def an_owner_boots_a_server(self, data: st.DataObject) -> None:
        self.house.boot("guest", self._one_of(data, self._active_hosts()))


@pytest.mark.timeout(max(600, EXAMPLES * 30))
def test_random_lives_are_as_the_oracle_says(template: Path, site: Path) -> None:
    run_state_machine_as_test(
        lambda: Life(template, site),
        settings=settings(
            max_examples=EXAMPLES or 20,
            stateful_step_count=STEPS,
            derandomize=not EXAMPLES,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
