# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: deployments with many hosts, and statistics that fit a line."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.deployment import Options, all_in_one, separate
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

from holdfast.client.client import Client
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock


@dataclass(frozen=True)
class House:
    """A running deployment: how to ask it, its cloud, its database."""

    client: Client
    world: Simulator
    database_url: str


@contextlib.contextmanager
def embedded(hosts: int, options: Options | None = None) -> Iterator[House]:
    """`holdfast up` on SQLite, with that many more hosts enrolled."""
    names = [f"bench-{number:03d}" for number in range(hosts)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _program, client = stack.enter_context(all_in_one(folder, options))
        world = Simulator(str(folder / "state" / "sim.db"), SystemClock())
        stack.callback(world.close)
        for name in names:
            world.add_host(name)
        enrol(client, names)
        yield House(client, world, f"sqlite:///{folder / 'state' / 'holdfast.db'}")


@contextlib.contextmanager
def programs(hosts: int, options: Options | None = None) -> Iterator[House]:
    """1 API and 2 managers on PostgreSQL and RabbitMQ, with that many hosts enrolled."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database, broker = PostgreSQL(), RabbitMQ()
        for server in (database, broker):
            stack.callback(server.close)
            server.start()
        url = database.new_database()
        made = stack.enter_context(
            separate(folder, url, broker.url, apis=1, hosts=hosts, options=options)
        )
        client = made.client()
        enrol(client, [f"host-{number:03d}" for number in range(hosts)])
        yield House(client, made.simulator, url)


def enrol(client: Client, names: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Client(client.url).hosts.create(name, {}), names))


def spread(values: Sequence[float], unit: str = "s", per_unit: float = 1) -> str:
    """p50, p95 and the worst; `per_unit` is what a value is multiplied by to be in that unit."""
    ordered = sorted(value * per_unit for value in values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    p50 = statistics.median(ordered)
    return f"p50 {p50:.2f} {unit}, p95 {p95:.2f} {unit}, last {ordered[-1]:.2f} {unit}"
