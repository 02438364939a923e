# SPDX-License-Identifier: Apache-2.0
"""A store, a simulated cloud, monitors, and managers that do nothing but look round."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.hoststatus import poll
from holdfast.hoststatus.plugins.compute import ComputeMonitor
from holdfast.hoststatus.poll import HostWatch, Watch
from holdfast.hoststatus.status import StatusReport
from holdfast.jobs.job import never_ending
from holdfast.jobs.loop import Loop, Runner
from holdfast.model.nova_notification import Notice
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud
from holdfast.ports.ledger import Work
from holdfast.runtime.clock import Clock
from tests.leases.house import Inline, make_template, open_store
from tests.simclock import SimClock


class Own:
    """A monitor of which each test says what it does."""

    topics: Sequence[str] = ()

    def __init__(
        self,
        name: str = "own",
        heard: Callable[[Notice], Any] = lambda _notice: [],
        states: Callable[[Cloud, datetime], Any] = lambda _cloud, _at: [],
        event_types: Sequence[str] = ("service.update",),
    ) -> None:
        self.name, self.event_types = name, event_types
        self.push_only = False
        self._heard, self._states = heard, states
        self.calls: Counter[str] = Counter()

    def heard(self, notice: Notice) -> Any:
        self.calls["heard"] += 1
        return self._heard(notice)

    def states(self, cloud: Cloud, at: datetime) -> Any:
        self.calls["states"] += 1
        return self._states(cloud, at)


class Count:
    """A tally that remembers."""

    def __init__(self) -> None:
        self.reports: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.messages: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        self.there: list[bool] = []

    def reported(self, report: StatusReport) -> None:
        self.reports[report.source, report.verdict] += 1

    def failed(self, monitor: str, how: str) -> None:
        self.failures[monitor, how] += 1

    def polled(self, monitor: str) -> None:
        self.looks[monitor] += 1

    def connected(self, there: bool) -> None:
        self.there.append(there)

    def message(self, how: str) -> None:
        self.messages[how] += 1


def settings(**changes: Any) -> SimpleNamespace:
    """[monitors] as it is by default, and what the runner reads."""
    given = {
        "enabled": ["compute", "own", "other"],
        "poll": True,
        "poll_interval_s": 30.0,
        "confirm_s": 2.0,
        "poll_timeout_s": 60.0,
        "push": True,
        "push_timeout_s": 60.0,  # not 5: it is real time, and the machine may be busy
        "push_fresh_s": 10.0,
        "down_samples": 2,
        "down_for_s": 0.0,
        "healthy_after_s": 300.0,
        "flap_holdoff_s": 600.0,
        "disabled_is_failure": False,
        "auto_disabled_is_failure": False,
        "retry_first_s": 0.5,
        "retry_most_s": 15.0,
        "claim_ahead": 0,
        "poll_interval_of_the_loop_s": 1e6,
    }
    return SimpleNamespace(**{**given, **changes})


@functools.cache
def empty_database() -> bytes:
    """Made once: that takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        return (make_template(Path(folder)) / "holdfast.db").read_bytes()


class Site:
    def __init__(
        self,
        path: Path,
        stack: contextlib.ExitStack,
        *monitors: Any,
        clock: Clock | None = None,
        waits: Clock | None = None,
        given: Any = None,
        **changes: Any,
    ) -> None:
        """`waits` is the clock by which monitors are waited for, if that is another."""
        self.clock: Any = clock or SimClock()
        file = str(path / "cloud.db")
        if not (path / "holdfast.db").exists():
            (path / "holdfast.db").write_bytes(empty_database())
        self.store = stack.enter_context(contextlib.closing(open_store(path, self.clock)))
        self.sim = stack.enter_context(contextlib.closing(Simulator(file, self.clock)))
        self.cloud = stack.enter_context(contextlib.closing(SimCloud(file, self.clock)))
        self.settings = given or settings(**changes)
        self.count = Count()
        self.rung = self._armed = 0
        self.hosts = HostWatch(
            self.store.host_status, self.settings, repair=self._repair, wake=self._wake
        )
        some = [ComputeMonitor(None), *monitors]
        self.watch = Watch(self.hosts, some, self.count, waits or self.clock)
        self.loop = self.manager("m1")
        self.store.operations.ensure(never_ending(poll.POLL, self.clock.now()))

    def _repair(self, now: datetime) -> Operation:
        self._armed += 1
        return never_ending("repair", now)

    def _wake(self) -> None:
        self.rung += 1

    def manager(self, name: str, pool: Executor | None = None) -> Loop:
        operations = self.store.operations
        runner = Runner(
            operations,
            poll.kinds(self.watch, self.cloud, self.settings, self.store.host_status.now),
            self.clock,
            owner=name,
            patience=self.settings,
            claim_s=30,
            pool=pool or Inline(),
        )
        return Loop(operations, runner, self.clock, SimpleNamespace(poll_interval_s=1e6))

    def enrol(self, *names: str) -> None:
        for name in names:
            host = self.sim.add_host(name, vcpus=8)
            made = self.store.ledger.enrol(host, "here", {}, Work())
            with self.store.database.write() as conn:
                conn.exec_driver_sql(f"UPDATE hosts SET reservable = 1 WHERE id = {made.id}")

    def run(self, seconds: float, *loops: Loop) -> None:
        """Let time pass, and every manager look when it wants to."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            pause = min(loop.cycle() for loop in loops or (self.loop,))
            self.clock.advance(min(left, max(0.05, pause)))

    def states(self) -> dict[str, str]:
        return {one.name: one.status.state for one in self.store.host_status.watched()}

    def free(self) -> set[str]:
        return {host.name for host in self.store.ledger.capacity(sure=True).hosts.values()}

    def repairs(self) -> int:
        """How often repair was armed, of which there is one row at most."""
        assert len(self.store.operations.list_all(subject="repair")) == min(1, self._armed)
        return self._armed

    def said(self) -> str:
        return self.store.operations.by_key(poll.POLL).sentence


class Gate:
    """Where a monitor hangs until the test lets it go."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, *_: Any) -> list[StatusReport]:
        self.open.wait()  # on a daemon thread: a test that fails leaves it behind
        return []


class Hurry(SimClock):
    """For a watch of which one monitor hangs: the time it has is over as soon as the others have
    answered, however long that takes them on a busy machine.

    `others` are names of threads: `hear compute`, `poll compute`.
    """

    def __init__(self, *others: str) -> None:
        super().__init__()
        self.others = set(others)

    def monotonic(self) -> float:
        for one in threading.enumerate():
            if one.name in self.others:
                one.join()
        self.advance(3600)
        return super().monotonic()
