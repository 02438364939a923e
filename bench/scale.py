# SPDX-License-Identifier: Apache-2.0
"""Creating leases and asking what is free, as the cloud grows to 10,000 hosts held a million times.

One manager in a process of its own on PostgreSQL (which writes to disk as it does in production).
The floor of a create is one commit of such a booking; beside the plan in memory stands what SQL
alone needs to find the free hosts. Refusals are measured apart: each is made sure of, and says what
was in the way and when it would fit. At last another manager books on the same database meanwhile.

    python bench/scale.py [HOSTS …]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.servers.postgresql import PostgreSQL

from bench._scale import fill
from holdfast import conf
from holdfast.app.service import Core, ManagerPart, connect_cloud
from holdfast.model.lease import NewLease, NewReservation
from holdfast.ports.manager import Availability, AvailabilityQuery, Caller

HOLDS = 100
ROUNDS = 300
SEED = 7
CALLER = Caller("ann", "alpha", ("member",))
ONE = NewReservation("physical:host", {"min": 1, "max": 1})
#: How long the other manager rests between two leases.
PAUSE_S = 0.05
COLD_S, MEMORY_MIB = 10, 300
CREATE_MS, AVAILABILITY_MS = 60, 50
#: What is measured, in that order: its name, what it is, how many ms it may take (p99), rounds.
LINES: tuple[tuple[str, str, int | None, int], ...] = (
    ("first", "the first question about all hosts", AVAILABILITY_MS, 1),
    ("create", "a lease of 1 host", CREATE_MS, ROUNDS),
    ("window", "availability of a window", AVAILABILITY_MS, ROUNDS),
    ("earliest", "the 3 earliest windows for an eighth of all hosts", AVAILABILITY_MS, ROUNDS),
    ("unmet", "no: a condition that no host meets", AVAILABILITY_MS, ROUNDS),
    ("misspelt", "no: a property that no host has", AVAILABILITY_MS, ROUNDS),
    ("never", "no: all hosts for a month, within a year", AVAILABILITY_MS, ROUNDS),
    ("busy", "no: half of all hosts in a window", AVAILABILITY_MS, ROUNDS),
    ("sql", "free hosts of a window by SQL alone", None, 20),
    ("create beside", "a lease of 1 host while another manager books", CREATE_MS, ROUNDS),
    ("window beside", "availability while another manager books", AVAILABILITY_MS, ROUNDS),
)


class Durable(PostgreSQL):
    """As in production: what is committed is on the disk."""

    def command(self) -> list[str]:
        careless = ("--fsync", "--full_page_writes", "--synchronous_commit")
        return [word for word in super().command() if not word.startswith(careless)]


def timed(action: Callable[[int], Any], rounds: int) -> dict[str, float]:
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        action(number)
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    return {"p50": took[rounds // 2], "p99": took[int(rounds * 0.99)], "most": took[-1]}


class House:
    """A manager without its loop, nothing is due, that has read all it keeps in memory."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        options = conf.load([], [])
        options.set_override("connection", url, "database")
        options.set_override("database", str(folder / f"sim-{os.getpid()}.db"), "sim")
        self.core = Core(options)
        manager = ManagerPart(self.core, connect_cloud(options, self.core.clock))
        manager._ready()  # as its start does
        self._commands = manager.commands
        self._hosts = len(self.core.store.ledger.capacity().hosts)
        self._dice = random.Random(seed)
        self._now = self.core.store.ledger.now()

    def action(self, name: str) -> Callable[[int], Any]:
        found: Callable[[int], Any] = getattr(self, name.split(" ", maxsplit=1)[0])
        return found

    def create(self, _number: int) -> None:
        start = self._some_start()
        end = start + timedelta(hours=self._dice.randrange(1, 12))
        new = NewLease(str(uuid.uuid4()), "one", start, end, None, (ONE,))
        self._commands.create_lease(CALLER, new)

    def window(self, _number: int) -> None:
        assert self._at(ONE, hours=4).fits

    def first(self, _number: int) -> None:
        assert self._earliest(self._many(max(1, self._hosts // 8)), hours=1).fits

    def earliest(self, _number: int) -> None:
        some = max(1, self._hosts // 8)
        assert self._earliest(self._many(some), hours=self._dice.randrange(1, 12)).fits

    def unmet(self, number: int) -> None:
        assert not self._earliest(self._with(f'[">", "$vcpus", "{100 + number}"]'), hours=4).fits

    def misspelt(self, number: int) -> None:
        assert not self._at(self._with(f'["==", "$gpus{number}", "1"]'), hours=4).fits

    def never(self, _number: int) -> None:
        assert not self._earliest(self._many(self._hosts), hours=24 * 30, days=335).fits

    def busy(self, number: int) -> None:
        assert not self._at(self._many(self._hosts // 2), hours=24 + number % 24).fits

    def sql(self, _number: int) -> None:
        start = self._some_start().replace(tzinfo=None)
        query = sa.text(
            "SELECT count(*) FROM hosts h WHERE enrolled AND reservable AND NOT EXISTS (SELECT 1"
            " FROM allocations a WHERE a.host_id = h.id AND a.held_until > :s AND a.held_from < :e)"
        )
        with self.core.store.database.read() as conn:
            conn.execute(query, {"s": start, "e": start + timedelta(hours=4)}).scalar_one()

    def _some_start(self) -> Any:
        return self._now + timedelta(hours=self._dice.randrange(100, 8000))

    def _many(self, count: int) -> NewReservation:
        return NewReservation("physical:host", {"min": count, "max": self._hosts})

    def _with(self, text: str) -> NewReservation:
        return NewReservation("physical:host", {**ONE.spec, "resource_properties": text})

    def _at(self, wanted: NewReservation, hours: int) -> Availability:
        start = self._some_start()
        query = AvailabilityQuery(wanted, start, start + timedelta(hours=hours))
        return self._commands.availability(CALLER, query)

    def _earliest(self, wanted: NewReservation, hours: int, days: int = 30) -> Availability:
        now = self.core.store.ledger.now()  # a slow machine takes minutes to come here
        until = now + timedelta(days=days)
        query = AvailabilityQuery(wanted, now, None, hours * 3600, until, limit=3)
        return self._commands.availability(CALLER, query)


def serve(url: str, folder: Path) -> dict[str, Any]:
    """What one manager needs; runs alone in its process, so that its memory can be told."""
    began = time.perf_counter()
    house = House(url, folder, SEED)
    found: dict[str, Any] = {"cold_s": time.perf_counter() - began, "ready_MiB": memory("VmRSS")}
    alone = [line for line in LINES if "beside" not in line[0]]
    for name, _about, _limit, rounds in alone:
        found[name] = timed(house.action(name), rounds)
    found["MiB"], found["peak_MiB"] = memory("VmRSS"), memory("VmHWM")
    with rival(url, folder):
        for name, _about, _limit, rounds in LINES[len(alone) :]:
            found[name] = timed(house.action(name), rounds)
    house.core.close()
    return found


def memory(what: str) -> float:
    """MiB of this process; getrusage would count those of the parent that it was forked from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status says nothing of {what}: only Linux does")


@contextlib.contextmanager
def rival(url: str, folder: Path) -> Iterator[None]:
    """Another manager that books one lease after the other."""
    command = [sys.executable, __file__, "--rival", url, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout
        assert other.stdout.readline(), "the other manager did not start"
        try:
            yield
        finally:
            other.stdin.close()  # it ends with its input


def book(url: str, folder: Path) -> None:
    house = House(url, folder, SEED + 1)
    print("ready", flush=True)
    os.set_blocking(sys.stdin.fileno(), False)
    while sys.stdin.buffer.read(1) is None:
        house.create(0)
        time.sleep(PAUSE_S)
    house.core.close()


def measured(server: PostgreSQL, hosts: int) -> dict[str, Any]:
    url = server.new_database()
    filled = fill(url, hosts, HOLDS)
    print(f"{hosts} hosts, {hosts * HOLDS} holds (written in {filled:.0f} s)", flush=True)
    return told(url)


def told(url: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", url, folder]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1).stdout)
    print(f"  cold start {found['cold_s']:.1f} s{against(found['cold_s'], COLD_S, 's')}")
    ready, now, peak = found["ready_MiB"], found["MiB"], found["peak_MiB"]
    print(
        f"  memory of the manager {ready:.0f} MiB when ready, {now:.0f} after the questions,"
        f" at most {peak:.0f}{against(peak, MEMORY_MIB, 'MiB')}"
    )
    for name, about, limit, _rounds in LINES:
        one = found[name]
        said = f"p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms{against(one['p99'], limit, 'ms')}"
        print(f"  {about}: {said}, most {one['most']:.1f}")
    return found


def against(value: float, limit: float | None, unit: str) -> str:
    if limit is None:
        return ""
    return f" (at most {limit} {unit}: {'holds' if value <= limit else 'DOES NOT HOLD'})"


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        print(json.dumps(serve(sys.argv[2], Path(sys.argv[3]))))
        return
    if sys.argv[1:2] == ["--rival"]:
        book(sys.argv[2], Path(sys.argv[3]))
        return
    sizes = [int(word) for word in sys.argv[1:]] or [1_000, 10_000]
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    server = Durable()
    try:
        server.start()
        found = [measured(server, hosts) for hosts in sizes]
    finally:
        server.close()
    if len(found) > 1:
        grew = sizes[-1] / sizes[0]
        for name in ("create", "window", "earliest", "unmet", "never"):
            ratio = found[-1][name]["p50"] / found[0][name]["p50"]
            print(f"{grew:.0f} x the hosts: {name} costs {ratio:.1f} x{against(ratio, grew, 'x')}")


if __name__ == "__main__":
    main()
