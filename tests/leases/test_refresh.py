# SPDX-License-Identifier: Apache-2.0
"""Enrolled hosts are read again, by one manager at a time, for as long as there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.db import Store, migrations
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.jobs.job import never_ending
from holdfast.jobs.loop import Loop, Runner
from holdfast.leases import hosts
from holdfast.leases.lifecycle import LeaseContext
from holdfast.model.host import Inventory
from holdfast.model.operation import OPEN
from holdfast.ports.ledger import Work
from tests.leases.house import Inline
from tests.simclock import SimClock


class Site:
    """A store, a simulated cloud, and a manager that does nothing but read hosts again."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self.clock = SimClock()
        file = str(path / "cloud.db")
        self.store = stack.enter_context(
            contextlib.closing(Store(f"sqlite:///{path}/holdfast.db", self.clock))
        )
        migrations.sync(self.store.database)
        self.sim = stack.enter_context(contextlib.closing(Simulator(file, self.clock)))
        self.cloud = stack.enter_context(contextlib.closing(SimCloud(file, self.clock)))
        self.settings = SimpleNamespace(
            host_refresh_s=300.0,
            retry_first_s=0.5,
            retry_most_s=15.0,
            claim_ahead=0,
            poll_interval_s=1e6,
        )
        self.loop = self.manager("m1")
        self.store.operations.ensure(never_ending(hosts.REFRESH, self.clock.now()))

    def manager(self, name: str) -> Loop:
        context = LeaseContext(self.store.ledger, self.cloud, Inline(), {}, self.settings)
        operations = self.store.operations
        kinds = hosts.refresh_kinds(context, self.settings, "here")
        runner = Runner(
            operations,
            kinds,
            self.clock,
            owner=name,
            patience=self.settings,
            claim_s=30,
            pool=Inline(),
        )
        return Loop(operations, runner, self.clock, self.settings)

    def enrol(self, *names: str, region: str = "here") -> None:
        for name in names:
            host = self.sim.add_host(name, vcpus=8)
            self.store.ledger.enrol(host, region, {}, Work())

    def run(self, seconds: float, loop: Loop | None = None) -> None:
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.clock.advance(min(left, max(0.05, (loop or self.loop).cycle())))

    def said(self) -> str:
        operation = self.store.operations.by_key(hosts.REFRESH)
        assert operation.status in OPEN
        return operation.sentence


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_a_change_in_the_cloud_is_stored_after_the_next_refresh(site: Site) -> None:
    site.enrol("cmp-1", "cmp-2")
    site.run(10)
    cores = Inventory(8, reserved=1, ratio=2.0, most=8)
    site.sim.change_host("cmp-1", inventories={"VCPU": cores}, traits=["CUSTOM_X"], memory_mb=64)
    before = site.store.ledger.host("cmp-1")
    assert before.inventories["VCPU"].capacity == 8
    site.run(300)
    after = site.store.ledger.host("cmp-1")
    assert after.inventories["VCPU"] == cores
    assert (after.memory_mb, after.traits) == (64, frozenset({"CUSTOM_X"}))
    assert site.said() == "2 hosts read again, 1 of them changed"


def test_the_region_of_a_host_is_refreshed_like_its_other_facts(site: Site) -> None:
    site.enrol("cmp-1", region="")
    site.run(10)
    assert site.store.ledger.host("cmp-1").region == "here"


def test_a_host_that_did_not_change_is_not_touched(site: Site) -> None:
    site.enrol("cmp-1")
    before = site.store.ledger.host("cmp-1")
    site.run(1000)
    assert site.store.ledger.host("cmp-1") == before
    assert site.said() == "1 hosts read again, 0 of them changed"


def test_the_refresh_switched_off_reads_nothing_until_switched_on(site: Site) -> None:
    site.enrol("cmp-1")
    site.settings.host_refresh_s = 0
    site.run(500)
    assert "hosts.find" not in site.sim.calls()
    site.settings.host_refresh_s = 300
    site.run(61)
    assert site.sim.calls()["hosts.find"] == 1


def test_a_cloud_that_is_away_for_a_while_is_asked_again(site: Site) -> None:
    site.enrol("cmp-1", "cmp-2")
    site.sim.change(down=True)
    site.run(60)
    site.sim.change(down=False)
    site.sim.change_host("cmp-2", traits=["CUSTOM_X"])
    site.run(620)
    assert site.store.ledger.host("cmp-2").traits == {"CUSTOM_X"}


def test_a_host_that_the_cloud_has_lost_does_not_stop_the_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.enrol("cmp-1", "cmp-2")
    with site.store.database.write() as conn:
        conn.exec_driver_sql("UPDATE hosts SET hypervisor_hostname = 'gone' WHERE name = 'cmp-1'")
    site.sim.change_host("cmp-2", zone="az-2")
    site.run(10)
    assert site.store.ledger.host("cmp-2").zone == "az-2"
    assert "host gone: not read again" in caplog.text


def test_a_rebuilt_host_is_not_taken_for_the_enrolled_host(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.enrol("cmp-1")
    with site.store.database.write() as conn:
        conn.exec_driver_sql("UPDATE hosts SET uuid = '4ab11c5e-7bb4-4f0e-8b52-000000000000'")
    site.sim.change_host("cmp-1", zone="az-2")
    site.run(10)
    assert site.store.ledger.host("cmp-1").zone == ""
    assert "withdraw it and enrol it again" in caplog.text


def test_a_slow_cloud_is_read_in_turns_until_all_hosts_were_read(site: Site) -> None:
    site.enrol(*(f"cmp-{number}" for number in range(12)))
    site.sim.change(latency_s=2.0, only_calls=["hosts.find"])
    site.run(8)
    assert "so far" in site.said()
    site.run(40)
    assert site.said() == "12 hosts read again, 0 of them changed"
    assert site.sim.calls()["hosts.find"] == 12


def test_a_host_query_slower_than_a_turn_still_makes_progress(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.enrol(*(f"cmp-{number}" for number in range(3)))
    opened = site.store.ledger.enrolled

    def slowly(**which: int) -> object:
        site.clock.advance(hosts.TURN.total_seconds() + 1)
        return opened(**which)

    monkeypatch.setattr(site.store.ledger, "enrolled", slowly)
    site.run(60)
    assert site.said() == "3 hosts read again, 0 of them changed"


def test_a_single_manager_of_many_refreshes_hosts(site: Site) -> None:
    site.enrol("cmp-1")
    others = [site.manager(f"m{number}") for number in range(2, 5)]
    with ThreadPoolExecutor(3) as pool:  # each makes sure of the row as it starts
        again = never_ending(hosts.REFRESH, site.clock.now())
        list(pool.map(lambda _: site.store.operations.ensure(again), others))
    for loop in (site.loop, *others):
        loop.cycle()
    assert site.sim.calls()["hosts.find"] == 1
