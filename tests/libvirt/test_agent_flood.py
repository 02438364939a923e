# SPDX-License-Identifier: Apache-2.0
"""A thousand guests die in one moment: each is told once, in bounded memory. They are guests of the
simulated cloud, because no machine of tests has so many; what carries the news is real."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from holdfast.drivers.sim import outage
from holdfast.drivers.sim.file import File
from holdfast.drivers.sim.placement import Order, boot
from holdfast.drivers.sim.simulator import Simulator
from holdfast.drivers.sim.world import open_world
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import all_in_one
from tests.libvirt.site import MOST, Site, staffed
from tests.processes import eventually

HOST = "flood"
#: Memory of the agent at most, and what the flood may add to it.
MOST_MB, MORE_MB = 200, 64


@pytest.mark.slow("the agent and the API carry a thousand reports")
@pytest.mark.timeout(600)
def test_a_thousand_simultaneous_deaths_are_reported_once_each_in_bounded_memory(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least 32 characters\n")
    told = {"auth": {"agent_secret_file": secret}}
    with all_in_one(tmp_path, told) as (up, client), contextlib.ExitStack() as stack:
        eventually((tmp_path / "state" / "populated").exists)
        path, clock = tmp_path / "state" / "sim.db", SystemClock()
        sim = stack.enter_context(contextlib.closing(Simulator(str(path), clock)))
        sim.add_host(HOST, vcpus=4 * MOST, memory_mb=2**22)
        file = stack.enter_context(contextlib.closing(File(str(path), clock)))
        with open_world(file, clock, "test.boot", HOST) as world:
            ids = [boot(world, _order(number), HOST) for number in range(MOST)]
        sims = {"guests": "sim", "guests_address": f"{HOST}@{path}"}
        site = stack.enter_context(
            staffed(Site(tmp_path, up, client), {HOST: ""}, told, agent=sims)
        )
        agent = site.begin(HOST, *ids)
        before_mb = memory_mb(agent.pid)
        with open_world(file, clock, "test.crash", HOST) as world:
            for server in ids:
                outage.crash(world, server)
        began, most_mb = time.monotonic(), before_mb

        def delivered() -> bool:
            nonlocal most_mb
            most_mb = max(most_mb, memory_mb(agent.pid))
            # the cheap question first: the API is to be busy with the reports
            return not site.waiting(HOST) and len(site.observations()) == len(ids)

        eventually(delivered, 300, 0.25)
        print(f"stored in {time.monotonic() - began:.1f} s; {before_mb:.0f} MB, then {most_mb:.0f}")
        assert most_mb < MOST_MB
        assert most_mb - before_mb < MORE_MB
        found = site.observations()
        assert {one["subject"] for one in found} == {f"server:{one}" for one in ids}
        assert {one["state"] for one in found} == {"failed"}


def _order(number: int) -> Order:
    return Order(f"guest-{number}", "demo", 1, 128, 1, "", {}, "")


def memory_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 2**20)
