# SPDX-License-Identifier: Apache-2.0
"""A race: managers, each a process with its own connections, and clients that all want the same.

    python -m tests.races.rivals FOLDER DATABASE_URL [--attempts N] [--seconds S] [--seed N]

Nine of ten creates aim at the same eight hours, for which there are many times as many wishes as
hosts; the others at the weeks after. Clients extend, reduce, move, grow, shrink and delete what
they got, now and then what somebody else got, and replace hosts as a repair does. Each writes down
what it was told. What a client wishes follows from the seed; who wins, and so whom others meddle
with, does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from holdfast import conf as configuration
from holdfast.app import service
from holdfast.db import migrations
from holdfast.drivers.sim.simulator import Simulator
from holdfast.leases import aggregates, booking
from holdfast.model.errors import Conflict
from holdfast.model.host import Inventory
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S
from tests.races import journal
from tests.races.audit import Audit
from tests.races.client import ADMIN, NETWORK, Client, Known, done_before, patiently
from tests.races.journal import Entry

MANAGERS, CLIENTS, HOSTS, ADDRESSES = 4, 64, 50, 40
#: What each host has, and what of it slots can take: (total - reserved) * ratio.
INVENTORIES = {
    "VCPU": Inventory(9, reserved=1, ratio=2.0),
    "MEMORY_MB": Inventory(33792, reserved=1024),
    "DISK_GB": Inventory(400),
}
CAPACITY = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 400}
#: For what all managers do before and after the race.
LONG_S = 4 * PATIENCE_S


@dataclass(frozen=True)
class Race:
    folder: Path
    url: str
    seed: int
    attempts: int
    seconds: float

    def each(self) -> int:
        """How often a client tries."""
        return math.ceil(self.attempts / CLIENTS)

    def has_one_writer(self) -> bool:
        return self.url.startswith("sqlite")

    def open(self, name: str) -> tuple[service.Core, service.ManagerPart]:
        """A manager as `holdfast-manager` puts it together, less the broker."""
        file = self.folder / "race.conf"
        file.touch()
        conf = configuration.load([], [str(file)])
        conf.set_override("connection", self.url, "database")
        conf.set_override("database", str(self.folder / "sim.db"), "sim")
        conf.set_override("name", name, "manager")
        conf.set_override("workers", 8, "manager")
        if not self.has_one_writer():
            # sixteen bookings under way for fifty hosts; more would only wait for each other
            conf.set_override("pool_size", 4, "database")
        core = service.Core(conf)
        if self.has_one_writer():  # nobody cuts the power in a race
            event.listen(core.store.database.engine, "connect", _hasty)
        return core, service.ManagerPart(core, service.connect_cloud(conf, core.clock))


def _hasty(dbapi: Any, _record: Any) -> None:
    dbapi.execute("PRAGMA synchronous=OFF")


# one manager


@dataclass(frozen=True)
class Signals:
    """What the processes of a race share."""

    ready: Any
    done: Any
    stop: Any
    attempts: Any
    yes: Any
    known: Any


def manage(race: Race, number: int, base: datetime, signals: Signals) -> None:
    """A manager with its share of the clients, in a process of its own."""
    aggregates.RESYNC_AFTER_S = (3600.0,)  # after the race
    booking._LONGEST_S = LONG_S  # who is beaten is so by others, and not by a slow machine
    logging.basicConfig(level=logging.ERROR, format=f"m{number} %(asctime)s %(name)s %(message)s")
    logging.getLogger("holdfast.db.engine").setLevel(logging.WARNING)
    core, manager = race.open(f"m{number}")
    manager.start()
    if not race.has_one_writer():
        # the manager's is for threads that mostly wait; with 16 clients beside it costs a quarter
        sys.setswitchinterval(0.005)
    try:
        known = Known(signals.known, race.each())
        clients = [
            Client(n, manager.commands, core.store.ledger, base, _dice(race, n), known)
            for n in range(number, CLIENTS, MANAGERS)
        ]
        with ThreadPoolExecutor(len(clients)) as pool:
            _enrol(manager, number, pool)
            signals.ready.wait(LONG_S)
            deadline = time.monotonic() + race.seconds
            list(pool.map(lambda one: _play(one, race, deadline, signals), clients))
        found = [entry for client in clients for entry in client.entries]
        journal.write(race.folder / f"m{number}.journal", found)
        signals.done.release()
        signals.stop.wait(race.seconds + LONG_S)
    finally:
        signals.ready.abort()  # nobody waits for one that is gone
        manager.stop()
        core.close()


def _dice(race: Race, client: int) -> random.Random:
    return random.Random(f"{race.seed}/{client}")


def _enrol(manager: service.ManagerPart, number: int, pool: ThreadPoolExecutor) -> None:
    commands = manager.commands

    def host(name: str) -> None:
        patiently(done_before(lambda: commands.enrol_host(ADMIN, name, {}), Conflict))

    def address(text: str) -> None:
        patiently(done_before(lambda: commands.enrol_floatingip(ADMIN, NETWORK, text), Conflict))

    list(pool.map(host, [f"h{one:02d}" for one in range(number, HOSTS, MANAGERS)]))
    for last in range(number, ADDRESSES, MANAGERS):
        address(f"192.0.2.{last + 10}")


def _play(client: Client, race: Race, deadline: float, signals: Signals) -> None:
    while len(client.entries) < race.each() and time.monotonic() < deadline:
        before = len(client.entries)
        client.attempt()
        said = [entry.answer for entry in client.entries[before:]]
        with signals.attempts.get_lock():
            signals.attempts.value += len(said)
            signals.yes.value += said.count("yes")


# all of them


def run(race: Race, progress_s: float = 0.0) -> tuple[list[Entry], float]:
    """Build the world, let them race, wait until what they began is done."""
    _build(race)
    context = multiprocessing.get_context("fork")
    signals = Signals(
        ready=context.Barrier(MANAGERS + 1),
        done=context.Semaphore(0),
        stop=context.Event(),
        attempts=context.Value("i", 0),
        yes=context.Value("i", 0),
        known=context.Array("b", CLIENTS * race.each(), lock=False),
    )
    base = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    managers = [
        context.Process(target=manage, args=(race, number, base, signals), daemon=True)
        for number in range(MANAGERS)
    ]
    for one in managers:
        one.start()
    try:
        signals.ready.wait(LONG_S)
        began = time.monotonic()
        _wait(managers, signals, began, progress_s)
        took = time.monotonic() - began
        _settled(Audit(race.url, CAPACITY))
    finally:
        signals.stop.set()
        for one in managers:
            one.join(PATIENCE_S)
            one.kill()
    return journal.read(sorted(race.folder.glob("m*.journal"))), took


def _build(race: Race) -> None:
    simulator = Simulator(str(race.folder / "sim.db"), SystemClock())
    for number in range(HOSTS):
        simulator.add_host(f"h{number:02d}", inventories=INVENTORIES)
    simulator.add_subnet(NETWORK, "192.0.2.0/24", "192.0.2.1", ())
    simulator.close()
    core, manager = race.open("builder")
    migrations.sync(core.store.database)
    manager.cloud.close()
    core.close()


def _wait(managers: list[Any], signals: Signals, began: float, progress_s: float) -> None:
    """Until every manager's clients are through."""
    finished, said = 0, began
    while finished < MANAGERS:
        if signals.done.acquire(timeout=0.1):
            finished += 1
        dead = [manager for manager in managers if manager.exitcode not in (None, 0)]
        if dead:
            raise SystemExit(f"{len(dead)} managers ended in the middle of the race")
        if progress_s and time.monotonic() - said > progress_s:
            said = time.monotonic()
            tried, yes = signals.attempts.value, signals.yes.value
            print(f"{said - began:7.0f} s {tried} attempts, {yes} accepted", flush=True)


def _settled(audit: Audit) -> None:
    """Until no delete is under way any more."""
    deadline = time.monotonic() + LONG_S
    query = "SELECT count(*) FROM operations WHERE is_open AND kind = 'lease_delete'"
    while audit.count(query):
        if time.monotonic() > deadline:
            raise SystemExit(f"deletes are still under way {LONG_S:g} s after the race")
        time.sleep(0.1)


def report(race: Race, progress_s: float = 0.0) -> dict[str, Any]:
    """Run the race and audit it: figures, and what was found."""
    entries, took = run(race, progress_s)
    audit = Audit(race.url, CAPACITY)
    told = journal.told(entries)
    answers = sorted({e.said for e in entries if e.answer in ("defect", "unsure")})
    return {
        "attempts": len(entries),
        "figures": journal.figures(entries, took),
        "beaten": sum(e.answer == "beaten" for e in entries),
        "yes": {
            verb: sum(e.answer == "yes" for e in entries if e.verb == verb)
            for verb in sorted({e.verb for e in entries})
        },
        "answers": answers[:5],
        "findings": audit.findings() + audit.told(told),
    }


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.races.rivals")
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("--attempts", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--progress", type=float, default=0.0)
    asked = parser.parse_args(words)
    race = Race(asked.folder, asked.url, asked.seed, asked.attempts, asked.seconds)
    found = report(race, asked.progress)
    (asked.folder / "report.json").write_text(json.dumps(found))
    print(found["figures"])
    for line in [*found["answers"], *found["findings"]]:
        print(line)
    return 1 if found["answers"] or found["findings"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
