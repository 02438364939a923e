# SPDX-License-Identifier: Apache-2.0
"""A guest is killed: how long after libvirt itself has said so does the API have the report?

A real libvirtd with real QEMU guests (no KVM needed), `holdfast-agent` beside it, `holdfast-api`
and `holdfast-manager` on PostgreSQL and RabbitMQ, which start every guest again. libvirt has said
it when a listener of our own, on a connection of its own, hears it; the API has it when its row
can be read in the database, which is looked for every 3 ms. First one guest after the other, then
all of them at once. At the end, what the agent weighs.

    python bench/guests.py [KILLS [GUESTS]]     60 and 20
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from tests.e2e.deployment import separate
from tests.libvirt.host import GuestHost
from tests.libvirt.site import Site, settings, staffed
from tests.processes import eventually
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

from bench._parts import spread
from holdfast.drivers.libvirt import connection

LIMIT_S = 0.2
LOOK_S = 0.003
HOST = "cmp-1"
#: Of the whole agent, with its numbers and alarms.
MOST_MIB = 96
_COUNT = sa.text(
    "SELECT subject, count(*) FROM observations WHERE state = 'failed' GROUP BY subject"
)


class Witness:
    """Hears libvirt, and reads what is stored; everything by the monotonic clock."""

    def __init__(self, host: GuestHost, database_url: str) -> None:
        self._heard: dict[str, list[float]] = {}
        self._stored: dict[str, list[float]] = {}
        libvirt = connection.running()
        self._stopped = libvirt.VIR_DOMAIN_EVENT_STOPPED
        self._way = libvirt.openReadOnly(host.url)
        kind = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        self._callback = self._way.domainEventRegisterAny(None, kind, self._hear, None)
        self._engine = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._engine.dispose()
        self._way.domainEventDeregisterAny(self._callback)
        self._way.close()

    def _hear(self, _way: Any, domain: Any, event: int, _detail: int, _opaque: object) -> None:
        if event == self._stopped:
            self._heard.setdefault(domain.UUIDString(), []).append(time.monotonic())

    def _read(self) -> None:
        with self._engine.connect() as way:
            while not self._stop.wait(LOOK_S):
                for subject, count in way.execute(_COUNT):
                    times = self._stored.setdefault(subject.removeprefix("server:"), [])
                    times += [time.monotonic()] * (count - len(times))

    def late(self, guest: str, death: int) -> float:
        """Seconds from what libvirt said of a death to the report; waits until both are there."""

        def both() -> bool:
            seen = (self._heard, self._stored)
            return all(len(times.get(guest, ())) >= death for times in seen)

        eventually(both, 30, 0.01)
        assert len(self._stored[guest]) == len(self._heard[guest]) == death
        return self._stored[guest][-1] - self._heard[guest][-1]


class Herd:
    """Guests that are killed, and started again by Holdfast."""

    def __init__(self, host: GuestHost, site: Site, witness: Witness, size: int) -> None:
        self._host, self._site, self._witness = host, site, witness
        self._deaths = dict.fromkeys([f"bench-{number}" for number in range(size)], 0)
        with ThreadPoolExecutor(4) as effects:
            found = effects.map(self._boot, self._deaths)
            self._uuids = dict(zip(self._deaths, found, strict=True))
        site.begin(HOST, *self._uuids.values())

    def _boot(self, name: str) -> str:
        with self._host.connected() as way:
            domain = way.defineXML(self._host.xml(name))
            domain.create()
            return str(domain.UUIDString())

    def mended(self, names: Sequence[str]) -> None:
        """All their deaths were told and mended, each once."""

        def so() -> bool:
            for name in names:
                found = self._site.statuses(self._uuids[name])
                assert found == ["recovered"] * self._deaths[name], (name, found)
            return True

        eventually(so, 60, 0.1)

    def kill(self, names: Sequence[str]) -> list[float]:
        """Now, all of these: how late each is stored."""
        for name in names:
            self._host.kill_guest(name)
            self._deaths[name] += 1
        return [self._witness.late(self._uuids[name], self._deaths[name]) for name in names]

    def one_by_one(self, kills: int) -> list[float]:
        took, names = [], list(self._deaths)
        for number in range(kills):
            name = names[number % len(names)]
            took += self.kill([name])
            self.mended([name])
        return took

    def weight(self) -> float:
        """MiB of the whole agent."""
        return float(psutil.Process(self._site.agents[HOST].pid).memory_info().rss) / 2**20

    def all_at_once(self) -> list[float]:
        names = list(self._deaths)
        took = self.kill(names)
        self.mended(names)
        return took


@contextlib.contextmanager
def herd(size: int) -> Iterator[Herd]:
    with contextlib.ExitStack() as stack:
        database, broker, host = PostgreSQL(), RabbitMQ(), GuestHost()
        for server in (database, broker, host):
            stack.callback(server.close)
            server.start()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts, budget = {HOST: host.url}, {"recovery": {"guest_max_recoveries": 10_000}}
        told, url = settings(folder, hosts, budget), database.new_database()
        made = stack.enter_context(
            separate(folder, url, broker.url, apis=1, managers=1, hosts=0, options=told)
        )
        site = Site(folder, made.apis[0], made.client())
        stack.enter_context(staffed(site, hosts, told))
        site.segment(HOST)
        witness = stack.enter_context(Witness(host, url))
        yield Herd(host, site, witness, size)


def verdict(took: Sequence[float], mib: float) -> str:
    """What is more than it may be; empty if nothing is."""
    if p95(took) > LIMIT_S:
        return f"p95 is {p95(took) * 1000:.0f} ms, more than {LIMIT_S * 1000:.0f} ms"
    return f"{mib:.0f} MiB are more than {MOST_MIB}" if mib > MOST_MIB else ""


def p95(took: Sequence[float]) -> float:
    return sorted(took)[min(len(took) - 1, int(len(took) * 0.95))]


def main() -> None:
    kills, size = (int(sys.argv[n]) if len(sys.argv) > n else (60, 20)[n - 1] for n in (1, 2))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {size} guests, PostgreSQL")
    with herd(size) as guests:
        took = guests.one_by_one(kills)
        print(f"  {kills} kills, one by one: stored after libvirt's own word by")
        print(f"    {spread(took, 'ms', 1000)}")
        together = guests.all_at_once()
        print(f"  all {size} at once: {spread(together, 'ms', 1000)}")
        mib = guests.weight()
        print(f"  the agent, which measures them as well: {mib:.0f} MiB (at most {MOST_MIB})")
    print(f"  load at the end {os.getloadavg()[0]:.1f}")
    if said := verdict(took, mib):
        raise SystemExit(said)


if __name__ == "__main__":
    main()
