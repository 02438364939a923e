# SPDX-License-Identifier: Apache-2.0
"""How fast due work is claimed, and how late leases start and end while many do, on PostgreSQL.

    python bench/due_rate.py [OPERATIONS [EVENTS_PER_SECOND [SECONDS]]]

First: OPERATIONS (10000) fall due within one second; 4 managers, each a process of its own, claim
and finish them. Then: leases start and end, EVENTS_PER_SECOND (100) of these together, for SECONDS
(30), once without reservations (what durable work itself costs) and once with a host each on the
simulated cloud (a file that all managers share, so its writes queue).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from tests.e2e.deployment import write_config
from tests.servers.postgresql import PostgreSQL

from holdfast import conf as configuration
from holdfast.app import service
from holdfast.db import Store, migrations
from holdfast.db.operations import apply_work
from holdfast.db.tables import audit
from holdfast.drivers.sim.simulator import Simulator
from holdfast.jobs.job import Run, Step
from holdfast.jobs.loop import Loop, Runner
from holdfast.model.lease import END, SEQUENCE, START, Allocation, Lease, Reservation, Window
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Work
from holdfast.ports.manager import Caller
from holdfast.runtime.clock import SystemClock

MANAGERS = 4
ADMIN = Caller("bench", "bench", ("admin",), is_admin=True)
_spawn = multiprocessing.get_context("spawn")


class Nothing:
    """Work that is done as soon as it is looked at."""

    name = "nothing"
    retry_forever = False

    def steps(self) -> Sequence[Step]:
        return (Step("nothing", lambda _run: "done", recorded=False),)

    def give_up_at(self, _operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Cannot be."""


@contextlib.contextmanager
def _running(
    count: int, stop: Any, target: Callable[..., None], arguments: Callable[[int], tuple[Any, ...]]
) -> Iterator[None]:
    """So many processes, each ready; they end with us, whatever happens."""
    ready = _spawn.Semaphore(0)
    processes = [
        _spawn.Process(target=target, args=(ready, stop, *arguments(n)), daemon=True)
        for n in range(count)
    ]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            if not ready.acquire(timeout=60):
                raise SystemExit("a manager did not start within a minute")
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(30)
            process.kill()


# claims


@dataclass(frozen=True)
class Claims:
    """Seconds from the moment the first was due."""

    claimed_s: float
    finished_s: float
    cpu_s: float  # of all managers together: what other load on the machine does not change
    by_manager: Sequence[int]


class _Noted:
    """The table of work, noting when how many were claimed."""

    def __init__(self, operations: Any) -> None:
        self._operations = operations
        self.claims: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def claim_due(self, *args: Any) -> Any:
        taken = self._operations.claim_due(*args)
        if taken:
            self.claims.append((self._operations.now().timestamp(), len(taken)))
        return taken


def _claimer(ready: Any, stop: Any, url: str, name: str, found: Any) -> None:
    """A manager that knows one kind of work, as a process."""
    sys.setswitchinterval(0.0005)
    clock = SystemClock()
    store = Store(url, clock)
    operations: Any = _Noted(store.operations)
    pace = SimpleNamespace(
        retry_first_s=0.5, retry_most_s=15.0, claim_ahead=10_000, poll_interval_s=1.0
    )
    runner = Runner(
        operations, {Nothing.name: Nothing()}, clock, owner=name, patience=pace, workers=256
    )
    loop = Loop(operations, runner, clock, pace)
    loop.start()
    ready.release()
    before = time.process_time()
    stop.wait()
    loop.stop()
    found.put((operations.claims, time.process_time() - before))
    store.close()


def claims(url: str, count: int, managers: int = MANAGERS) -> Claims:
    """Let `count` operations fall due within one second; when the last was claimed, and done."""
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    stop, found = _spawn.Event(), _spawn.Queue()
    with (
        contextlib.closing(store),
        _running(managers, stop, _claimer, lambda number: (url, f"m{number}", found)),
    ):
        start = store.database.now() + timedelta(seconds=2 + count / 1000)
        for at in range(0, count, 1000):
            _due_work(store, start, range(at, min(at + 1000, count)), count)
        if store.database.now() > start:
            raise SystemExit("this machine is too slow to set the scene; try fewer")
        _until(lambda: not store.operations.open_by_kind(), 120)
        finished = (store.database.now() - start).total_seconds()
        stop.set()
        noted = [found.get(timeout=30) for _ in range(managers)]
    last = max(at for taken, _ in noted for at, _ in taken) - start.timestamp()
    return Claims(
        claimed_s=last,
        finished_s=finished,
        cpu_s=sum(cpu for _, cpu in noted),
        by_manager=[sum(n for _, n in taken) for taken, _ in noted],
    )


def _due_work(store: Store, start: datetime, numbers: range, count: int) -> None:
    rows = []
    for number in numbers:
        due, name = start + timedelta(seconds=number / count), f"w{number}"
        rows.append(Operation(str(uuid.uuid4()), Nothing.name, name, name, due, due))
    with store.database.write() as conn:
        apply_work(conn, "", Work(add=tuple(rows)), store.database.now(conn))


# lags


def _manager(ready: Any, stop: Any, config: str) -> None:
    """A whole manager, but for its way to the API, as a process."""
    core = service.Core(configuration.load([], [config]))
    manager = service.ManagerPart(core, service.connect_cloud(core.conf, core.clock))
    manager.start()
    ready.release()
    stop.wait()
    manager.stop()
    core.close()


@dataclass(frozen=True)
class Flow:
    """Leases that start and end evenly, `rate` of both together in a second."""

    rate: float
    seconds: float
    lasts_s: float = 10.0  # each lease; from then on as many end as start
    hosts: bool = False

    def count(self) -> int:
        return round(self.rate / 2 * (self.seconds + self.lasts_s))

    def window(self, start: datetime, number: int) -> Window:
        begins = start + timedelta(seconds=number / self.rate * 2)
        return Window(begins, begins + timedelta(seconds=self.lasts_s))


def lags(
    url: str, folder: Path, flow: Flow, managers: int = MANAGERS
) -> tuple[list[float], list[float]]:
    """How late leases became ACTIVE, and TERMINATED, of those due while both flowed."""
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    with contextlib.closing(store):
        hosts = _enrolled(folder, url, round(flow.rate * flow.lasts_s)) if flow.hosts else []
        with _running(managers, _spawn.Event(), _manager, lambda n: (_config(folder, url, n),)):
            start = store.database.now() + timedelta(seconds=2 + flow.count() / 50)
            with ThreadPoolExecutor(4) as pool:
                booked = pool.map(
                    lambda n: _book(store, f"l{n}", flow.window(start, n), _from(hosts, n)),
                    range(flow.count()),
                )
                leases = list(booked)
            if store.database.now() > start:
                raise SystemExit("this machine is too slow to set the scene; try fewer")
            left = (start - store.database.now()).total_seconds()
            became = _became(store, len(leases), left + flow.seconds + flow.lasts_s * 2)
    first = start + timedelta(seconds=flow.lasts_s)
    both = Window(first, first + timedelta(seconds=flow.seconds))
    return (
        _late(became["ACTIVE"], {x.id: x.start for x in leases}, both),
        _late(became["TERMINATED"], {x.id: x.end for x in leases}, both),
    )


def _from(hosts: Sequence[int], number: int) -> Sequence[int]:
    """Each in turn."""
    return [hosts[number % len(hosts)]] if hosts else []


def _late(
    became: Mapping[str, datetime], due: Mapping[str, datetime], within: Window
) -> list[float]:
    """Of those due in the window, how much later it happened."""
    return [
        (became[lease_id] - when).total_seconds()
        for lease_id, when in due.items()
        if within.start <= when < within.end
    ]


def _config(folder: Path, url: str, number: int) -> str:
    options: Mapping[str, Mapping[str, object]] = {
        "database": {"connection": url.replace("%", "%%")},
        "sim": {"database": folder / "sim.db"},
        "manager": {"name": f"m{number}"},
    }
    return str(write_config(folder / f"m{number}.conf", options))


def _enrolled(folder: Path, url: str, count: int) -> list[int]:
    """Hosts of the simulated cloud, as many as are wanted at once."""
    simulator = Simulator(str(folder / "sim.db"), SystemClock())
    names = [f"host-{number:04d}" for number in range(count)]
    for name in names:
        simulator.add_host(name)
    simulator.close()
    core = service.Core(configuration.load([], [_config(folder, url, count)]))
    manager = service.ManagerPart(core, service.connect_cloud(core.conf, core.clock))
    manager.start()
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda name: manager.commands.enrol_host(ADMIN, name, {}), names))
    manager.stop()
    core.close()
    return ids


def _book(store: Store, name: str, window: Window, hosts: Sequence[int]) -> Lease:
    """Past planning, which is not what is measured here; on the first of these hosts, if any."""
    reservations: tuple[Reservation, ...] = ()
    if hosts:
        spec = {"min": 1, "max": 1, "hypervisor_properties": "", "resource_properties": ""}
        held = Allocation(hosts[0], window)
        reservations = (
            Reservation(str(uuid.uuid4()), "physical:host", spec=spec, allocations=(held,)),
        )
    lease = Lease(
        str(uuid.uuid4()), name, "u", "p", window.start, window.end, reservations=reservations
    )
    rows = tuple(
        Operation(
            id=str(uuid.uuid4()),
            kind=kind,
            subject=lease.id,
            key=f"{kind}/{lease.id}",
            due_at=due,
            next_try_at=due - timedelta(seconds=60 if kind == START and hosts else 0),
            sequence=SEQUENCE[kind],
        )
        for kind, due in ((START, lease.start), (END, lease.end))
    )
    store.ledger.book(lease, Work(add=rows))
    return lease


def _became(store: Store, count: int, seconds: float) -> dict[str, dict[str, datetime]]:
    """When each lease did, as the audit says, which is written in the same transaction."""
    query = sa.select(audit.c.subject, audit.c.at)
    found: dict[str, dict[str, datetime]] = {}

    def all_there() -> bool:
        with store.database.read() as conn:
            for which in ("ACTIVE", "TERMINATED"):
                said = query.where(audit.c.sentence.like(f"% is {which}"))
                found[which] = {subject: at for subject, at in conn.execute(said)}
        return min(map(len, found.values())) >= count

    time.sleep(seconds)  # who asks all the time is a load of its own
    _until(all_there, 240, every=1.0)
    return found


def _until(done: Any, seconds: float, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"not done within {seconds:.0f} s")
        time.sleep(every)


def p(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def main() -> None:
    count, rate, seconds = (
        float(sys.argv[n]) if len(sys.argv) > n else default
        for n, default in ((1, 10_000), (2, 100), (3, 30))
    )
    server = PostgreSQL()
    server.start()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {MANAGERS} managers, PostgreSQL")
    with contextlib.closing(server):
        made = claims(server.new_database(), int(count))
        print(
            f"  {count:.0f} due within one second: last claimed {made.claimed_s:.2f} s after it"
            f" began, last done {made.finished_s:.2f} s; the managers' CPU {made.cpu_s:.1f} s;"
            f" by manager {made.by_manager}"
        )
        for hosts in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                flow = Flow(rate, seconds, hosts=hosts)
                begun, over = lags(server.new_database(), Path(folder), flow)
            what = "a host each, simulated cloud" if hosts else "no reservations"
            print(f"  {rate:.0f} starts and ends a second for {seconds:.0f} s, {what}:")
            for name, found in (("starts", begun), ("ends", over)):
                p50, p99 = statistics.median(found), p(found, 99)
                worst = f"last {max(found):.3f} s ({len(found)})"
                print(f"    {name}: p50 {p50:.3f} s, p99 {p99:.3f} s, {worst}")


if __name__ == "__main__":
    main()
