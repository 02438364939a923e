# SPDX-License-Identifier: Apache-2.0
"""A race: managers, each a process with its own connections, and clients that all want the same.

    python -m tests.races.rivals FOLDER DATABASE_URL [--attempts N] [--seconds S] [--seed N]

Nine of ten creates aim at the same eight hours, for which there are many times as many wishes as
hosts; the others at the weeks after. Clients extend, reduce, move, grow, shrink and delete what
they got, now and then what somebody else got, and replace hosts as a repair does. Each writes down
what it was told. The wishes follow from the seed; who wins does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from holdfast import conf as configuration
from holdfast import service
from holdfast.drivers.cloud.sim import Simulator
from holdfast.model.caller import Caller
from holdfast.model.errors import (
    Conflict,
    HoldfastError,
    InvalidInput,
    NotFound,
    StaleWrite,
    Unavailable,
)
from holdfast.model.host import Inventory
from holdfast.model.lease import Lease
from holdfast.ports.clock import SystemClock
from holdfast.ports.manager import LeaseChange, NewLease, NewReservation
from holdfast.reserve import due
from holdfast.store import migrations
from tests.races import journal
from tests.races.audit import Audit
from tests.races.journal import Entry

MANAGERS, CLIENTS, HOSTS, ADDRESSES = 4, 64, 50, 40
HOT_HOURS = 8
#: What each host has, and what of it slots can take: (total - reserved) * ratio.
INVENTORIES = {
    "VCPU": Inventory(9, reserved=1, ratio=2.0),
    "MEMORY_MB": Inventory(33792, reserved=1024),
    "DISK_GB": Inventory(400),
}
CAPACITY = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 400}
ADMIN = Caller("root", "admin", ("admin",), is_admin=True)
KINDS = ("physical:host", "physical:host", "virtual:instance", "virtual:floatingip")
NETWORK = "0e7a0000-0000-4000-8000-000000000001"
#: Vcpus, memory, disk of slots that do not divide a host evenly.
SIZES = ((1, 1024, 10), (3, 2048, 20), (4, 12288, 30), (5, 4096, 150))


@dataclass(frozen=True)
class Race:
    folder: Path
    url: str
    seed: int
    attempts: int
    seconds: float

    def open(self, name: str) -> tuple[service.Core, service.ManagerPart]:
        """A manager as `holdfast-manager` puts it together, less the broker."""
        file = self.folder / "race.conf"
        file.touch()
        conf = configuration.load([], [str(file)])
        conf.set_override("connection", self.url, "database")
        conf.set_override("database", str(self.folder / "sim.db"), "sim")
        conf.set_override("name", name, "manager")
        conf.set_override("workers", 8, "manager")
        core = service.Core(conf)
        if core.store.database.dialect == "sqlite":  # nobody cuts the power in a race
            event.listen(core.store.database.engine, "connect", _hasty)
        return core, service.ManagerPart(core, service.connect_cloud(conf, core.clock))


def _hasty(dbapi: Any, _record: Any) -> None:
    dbapi.execute("PRAGMA synchronous=OFF")


# one client


@dataclass
class Mine:
    """A lease as its owner knows it."""

    id: str
    start: datetime
    end: datetime
    kind: str
    amount: int


@dataclass
class Client:
    number: int
    commands: Any
    ledger: Any
    base: datetime
    dice: random.Random
    entries: list[Entry] = field(default_factory=list)
    mine: list[Mine] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.caller = Caller(f"user-{self.number}", "races", ("member",))

    def attempt(self) -> None:
        verbs: list[tuple[int, Callable[[], None]]] = [(55, self.create)]
        if self.mine:
            verbs += [(16, self.move), (8, self.resize), (13, self.delete)]
        if self.made:
            verbs += [(4, self.meddle), (8, self.repair)]
        weights, actions = zip(*verbs, strict=True)
        self.dice.choices(actions, weights)[0]()

    def create(self) -> None:
        kind = self.dice.choice(KINDS)
        start, end = self._window()
        amount, spec = self._wish(kind)
        lease = Mine(lease_id(self.number, self.made), start, end, kind, amount)
        self.made += 1
        wanted = NewLease(lease.id, "rival", start, end, None, (NewReservation(kind, spec),))
        if self._tell("create", lease, lambda: self.commands.create_lease(self.caller, wanted)):
            self.mine.append(lease)

    def move(self) -> None:
        """Another end, another start, or both."""
        lease = self.dice.choice(self.mine)
        start, end = lease.start, lease.end
        if self.dice.random() < 0.7:
            end = max(start + timedelta(hours=1), end + timedelta(hours=self.dice.randint(-2, 3)))
        else:
            by = timedelta(hours=self.dice.choice((-2, -1, 1, 2)))
            start, end = start + by, end + by
        change = LeaseChange(start=start, end=end)
        self._update(lease, change, Mine(lease.id, start, end, lease.kind, lease.amount))

    def resize(self) -> None:
        lease = self.dice.choice(self.mine)
        amount = max(1, lease.amount + self.dice.choice((-1, 1)))
        try:
            reservation = self.ledger.lease(lease.id).reservations[0].id
        except NotFound:
            self.mine.remove(lease)  # somebody meddled
            return
        wish = (
            {"min": amount, "max": amount} if lease.kind == "physical:host" else {"amount": amount}
        )
        change = LeaseChange(reservations={reservation: wish})
        self._update(lease, change, Mine(lease.id, lease.start, lease.end, lease.kind, amount))

    def delete(self) -> None:
        lease = self.mine.pop(self.dice.randrange(len(self.mine)))
        self._tell("delete", lease, lambda: self.commands.delete_lease(self.caller, lease.id))

    def meddle(self) -> None:
        """Change or delete what a colleague of the same project may have made."""
        lease = self._somebodys()
        if self.dice.random() < 0.3:
            self._tell("delete", lease, lambda: self.commands.delete_lease(self.caller, lease.id))
            return
        try:
            found = self.ledger.lease(lease.id)
        except NotFound:
            return
        end = found.end + timedelta(hours=self.dice.choice((-1, 1)))
        if end > found.start:
            lease = Mine(lease.id, found.start, end, "", 0)
            change = LeaseChange(start=found.start, end=end)
            self._tell(
                "meddle", lease, lambda: self.commands.update_lease(self.caller, lease.id, change)
            )

    def repair(self) -> None:
        """A host of some lease is not to be used any more: put another in its place."""
        found = self._found_with_hosts()
        if found is None:
            return
        reservation = found.reservations[0]
        hosts = reservation.host_ids()
        lease = Mine(found.id, found.start, found.end, "", 0)
        call = (ADMIN, found.id, reservation.id, self.dice.choice(hosts))
        self._tell("repair", lease, lambda: self.commands.replace_host(*call), window=False)

    def _found_with_hosts(self) -> Lease | None:
        for _look in range(8):
            try:
                found: Lease = self.ledger.lease(self._somebodys().id)
            except NotFound:
                continue
            if found.reservations[0].host_ids():
                return found
        return None

    def _update(self, lease: Mine, change: LeaseChange, after: Mine) -> None:
        if self._tell(
            "update", after, lambda: self.commands.update_lease(self.caller, lease.id, change)
        ):
            self.mine[self.mine.index(lease)] = after

    def _tell(
        self, verb: str, lease: Mine, action: Callable[[], object], window: bool = True
    ) -> bool:
        """Do it, and write down what was answered; whether that was yes."""
        began = time.monotonic()
        said = ""
        try:
            _patiently(action)
            answer = "yes"
        except Exception as error:  # whatever comes, it is written down
            answer, said = _judged(error)
            if isinstance(error, InvalidInput) and verb in ("repair", "meddle"):
                answer = "no"  # what it was to change has changed meanwhile
            if answer == "no" and isinstance(error, NotFound):
                self.mine = [one for one in self.mine if one.id != lease.id]
        known = window and verb != "delete" and answer == "yes"
        times = (_text(lease.start), _text(lease.end)) if known else None
        took = time.monotonic() - began
        self.entries.append(Entry(self.number, verb, lease.id, answer, said, times, took))
        return answer == "yes"

    def _somebodys(self) -> Mine:
        number = lease_id(self.dice.randrange(CLIENTS), self.dice.randrange(self.made))
        return Mine(number, self.base, self.base, "", 0)

    def _window(self) -> tuple[datetime, datetime]:
        """Nine of ten in the same few hours."""
        if self.dice.random() < 0.9:
            start = self.base + timedelta(hours=self.dice.randrange(HOT_HOURS))
        else:
            start = self.base + timedelta(hours=HOT_HOURS + self.dice.randrange(24 * 14))
        return start, start + timedelta(hours=self.dice.randint(1, 4))

    def _wish(self, kind: str) -> tuple[int, dict[str, Any]]:
        amount = self.dice.randint(1, 3)
        if kind == "physical:host":
            properties = {"hypervisor_properties": "", "resource_properties": ""}
            return amount, {"min": amount, "max": amount, **properties}
        if kind == "virtual:floatingip":
            return amount, {"network_id": NETWORK, "amount": amount, "required_floatingips": []}
        amount = self.dice.randint(1, 6)
        vcpus, memory_mb, disk_gb = self.dice.choice(SIZES)
        return amount, {
            "vcpus": vcpus,
            "memory_mb": memory_mb,
            "disk_gb": disk_gb,
            "amount": amount,
            "affinity": self.dice.choice((None, None, True, False)),
            "resource_properties": "",
        }


def lease_id(client: int, number: int) -> str:
    """Ids that everybody can guess, so that colleagues can meddle."""
    return f"{client:08x}-0000-4000-8000-{number:012x}"


def _patiently(action: Callable[[], object]) -> None:
    """What was not answered is asked again, as clients do; the same twice is once."""
    for _again in range(4):
        try:
            action()
            return
        except Unavailable:
            time.sleep(0.5)
    action()


def _text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _judged(error: Exception) -> tuple[str, str]:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, Unavailable):
        return "unsure", said
    if type(error) is Conflict and "too many others" in error.message:
        return "beaten", said
    if isinstance(error, StaleWrite) or not isinstance(error, HoldfastError):
        return "defect", "".join(traceback.format_exception(error))
    expected = isinstance(error, NotFound | Conflict)
    return ("no" if expected else "defect"), said


# one manager


@dataclass(frozen=True)
class Signals:
    """What the processes of a race share."""

    ready: Any
    done: Any
    stop: Any
    attempts: Any
    yes: Any


def manage(race: Race, number: int, base: datetime, signals: Signals) -> None:
    """A manager with its share of the clients, in a process of its own."""
    due.TELL_AFTER_S = (3600.0,)  # after the race
    logging.basicConfig(level=logging.ERROR, format=f"m{number} %(asctime)s %(name)s %(message)s")
    logging.getLogger("holdfast.store.database").setLevel(logging.WARNING)
    core, manager = race.open(f"m{number}")
    manager.start()
    try:
        clients = [
            Client(n, manager.commands, core.store.ledger, base, _dice(race, n))
            for n in range(number, CLIENTS, MANAGERS)
        ]
        _enrol(manager, number)
        signals.ready.wait(60)
        deadline = time.monotonic() + race.seconds
        with ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(lambda one: _play(one, race, deadline, signals), clients))
        found = [entry for client in clients for entry in client.entries]
        journal.write(race.folder / f"m{number}.journal", found)
        signals.done.release()
        signals.stop.wait(120)
    finally:
        manager.stop()
        core.close()


def _dice(race: Race, client: int) -> random.Random:
    return random.Random(f"{race.seed}/{client}")


def _enrol(manager: service.ManagerPart, number: int) -> None:
    for host in range(number, HOSTS, MANAGERS):
        manager.commands.enrol_host(ADMIN, f"h{host:02d}", {})
    for last in range(number, ADDRESSES, MANAGERS):
        manager.commands.enrol_floatingip(ADMIN, NETWORK, f"192.0.2.{last + 10}")


def _play(client: Client, race: Race, deadline: float, signals: Signals) -> None:
    while len(client.entries) < race.attempts / CLIENTS and time.monotonic() < deadline:
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
    )
    base = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    managers = [
        context.Process(target=manage, args=(race, number, base, signals), daemon=True)
        for number in range(MANAGERS)
    ]
    for one in managers:
        one.start()
    try:
        signals.ready.wait(60)
        began = time.monotonic()
        _wait(managers, signals, began, progress_s)
        took = time.monotonic() - began
        _settled(Audit(race.url, CAPACITY))
    finally:
        signals.stop.set()
        for one in managers:
            one.join(30)
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
        dead = [one for one in managers if one.exitcode not in (None, 0)]
        if dead:
            raise SystemExit(f"{len(dead)} managers ended in the middle of the race")
        if progress_s and time.monotonic() - said > progress_s:
            said = time.monotonic()
            tried, yes = signals.attempts.value, signals.yes.value
            print(f"{said - began:7.0f} s {tried} attempts, {yes} accepted", flush=True)


def _settled(audit: Audit) -> None:
    """Until no delete is under way any more."""
    deadline = time.monotonic() + 60
    query = "SELECT count(*) FROM operations WHERE is_open AND kind = 'lease_delete'"
    while audit.count(query):
        if time.monotonic() > deadline:
            raise SystemExit("deletes are still under way a minute after the race")
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
    parser.add_argument("--attempts", type=int, default=5120)
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
