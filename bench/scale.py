# SPDX-License-Identifier: Apache-2.0
"""Creating leases and asking what is free, as the cloud grows to 10,000 hosts held a million times.

One manager in a process of its own on PostgreSQL (which writes to disk as it does in production).
The floor of a create is one commit of such a booking; beside the plan in memory stands what SQL
alone needs to find the free hosts.

    python bench/scale.py [HOSTS …]
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.servers import PostgreSQL

from bench._scale import fill
from holdfast import conf
from holdfast.model.caller import Caller
from holdfast.ports.manager import AvailabilityQuery, NewLease, NewReservation
from holdfast.service import Core, ManagerPart, connect_cloud

HOLDS = 100
ROUNDS = 300
CALLER = Caller("ann", "alpha", ("member",))
ONE = NewReservation("physical:host", {"min": 1, "max": 1})


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


def serve(url: str, folder: Path) -> dict[str, Any]:
    """What one manager needs; runs alone in its process, so that its memory can be told."""
    began = time.perf_counter()
    options = conf.load([], [])
    options.set_override("connection", url, "database")
    options.set_override("database", str(folder / "sim.db"), "sim")
    core = Core(options)
    manager = ManagerPart(core, connect_cloud(options, core.clock))
    commands, ledger = manager.commands, core.store.ledger
    hosts = len(ledger.stock().hosts)
    cold_s = time.perf_counter() - began
    dice = random.Random(7)
    now = ledger.now()

    def create(_number: int) -> None:
        start = now + timedelta(hours=dice.randrange(1, 8000))
        end = start + timedelta(hours=dice.randrange(1, 12))
        commands.create_lease(CALLER, NewLease(str(uuid.uuid4()), "one", start, end, None, (ONE,)))

    def window(_number: int) -> None:
        start = now + timedelta(hours=dice.randrange(1, 8000))
        query = AvailabilityQuery(ONE, start, start + timedelta(hours=4))
        assert commands.availability(CALLER, query).fits

    def earliest(_number: int) -> None:
        many = NewReservation("physical:host", {"min": max(1, hosts // 3), "max": hosts})
        query = AvailabilityQuery(many, now, None, dice.randrange(1, 48) * 3600, limit=3)
        commands.availability(CALLER, query)

    def by_sql(_number: int) -> None:
        start = now + timedelta(hours=dice.randrange(1, 8000))
        query = sa.text(
            "SELECT count(*) FROM hosts h WHERE enrolled AND reservable AND NOT EXISTS (SELECT 1"
            " FROM allocations a WHERE a.host_id = h.id AND a.held_until > :s AND a.held_from < :e)"
        )
        bound = {
            "s": start.replace(tzinfo=None),
            "e": (start + timedelta(hours=4)).replace(tzinfo=None),
        }
        with core.store.database.read() as conn:
            conn.execute(query, bound).scalar_one()

    create(0)
    found = {
        "cold_s": cold_s,
        "create": timed(create, ROUNDS),
        "window": timed(window, ROUNDS),
        "earliest": timed(earliest, ROUNDS // 3),
        "sql": timed(by_sql, 20),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    core.close()
    return found


def measured(server: PostgreSQL, hosts: int) -> dict[str, Any]:
    url = server.new_database()
    filled = fill(url, hosts, HOLDS)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", url, folder]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1).stdout)
    print(f"{hosts} hosts, {hosts * HOLDS} holds (written in {filled:.0f} s)")
    print(f"  cold start {found['cold_s']:.1f} s, memory of the manager {found['MiB']:.0f} MiB")
    for name, about in (
        ("create", "a lease of 1 host"),
        ("window", "availability of a window"),
        ("earliest", "the 3 earliest windows for a third of all hosts"),
        ("sql", "free hosts of a window by SQL alone"),
    ):
        one = found[name]
        print(
            f"  {about}: p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms, most {one['most']:.1f}"
        )
    return found


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        print(json.dumps(serve(sys.argv[2], Path(sys.argv[3]))))
        return
    sizes = [int(word) for word in sys.argv[1:]] or [1_000, 10_000]
    server = Durable()
    try:
        server.start()
        found = [measured(server, hosts) for hosts in sizes]
    finally:
        server.close()
    if len(found) > 1:
        grew = sizes[-1] / sizes[0]
        for name in ("create", "window"):
            ratio = found[-1][name]["p50"] / found[0][name]["p50"]
            print(f"{grew:.0f} x the hosts: {name} costs {ratio:.1f} x")


if __name__ == "__main__":
    main()
