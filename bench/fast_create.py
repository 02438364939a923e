# SPDX-License-Identifier: Apache-2.0
"""A year-wide lease at 200 hosts of which most are leased, 20 at a time, 200 times in that year.

One manager in this process, without HTTP and broker; the floor is an empty transaction that writes
one row. Blazar, measured at the same size: 28 s of processor time, twice per create.

    python bench/fast_create.py
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from tests.servers.postgresql import PostgreSQL

from bench import _rows
from bench._parts import spread
from bench._rows import Owner
from holdfast import conf
from holdfast.app.service import Core, ManagerPart, connect_cloud
from holdfast.db.tables import resource_locks
from holdfast.model.errors import HoldfastError
from holdfast.model.lease import NewLease, NewReservation
from holdfast.ports.manager import Caller

HOSTS, LEASES, TOGETHER = 200, 200, 20
#: The last ones are free all year, one for each lease that is created here.
FREE = 40
CALLER = Caller("ann", "alpha", ("member",))


@dataclass
class Found:
    """Seconds of each."""

    created: list[float] = field(default_factory=list)
    created_cpu: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)


def measure(url: str, folder: Path) -> Found:
    """One-host leases of a year until all hosts are taken; too many are asked for in between."""
    groups = [tuple(range(at, at + TOGETHER)) for at in range(0, HOSTS - FREE, TOGETHER)]
    _rows.fill(url, Owner("user", "beta"), list(_rows.bookings(groups, LEASES)), HOSTS)
    found = Found()
    with manager(url, folder) as (core, part):
        start = core.store.ledger.now() + timedelta(days=1)

        def create(many: int) -> None:
            wish = NewReservation("physical:host", {"min": many, "max": many})
            year = (start, start + timedelta(days=_rows.DAYS), None)
            part.commands.create_lease(
                CALLER, NewLease(str(uuid.uuid4()), "a year", *year, (wish,))
            )

        create(1)
        for number in range(1, FREE):
            began = time.process_time()
            found.created.append(timed(lambda: create(1)))
            found.created_cpu.append(time.process_time() - began)
            found.refused.append(timed(lambda: refused(lambda: create(FREE))))
            found.floor.append(timed(functools.partial(write, core, number)))
    return found


@contextlib.contextmanager
def manager(url: str, folder: Path) -> Iterator[tuple[Core, ManagerPart]]:
    """Without its loop: nothing is due, and only the commands are measured."""
    folder.mkdir(parents=True, exist_ok=True)
    options = conf.load([], [])
    options.set_override("connection", url, "database")
    options.set_override("database", str(folder / "sim.db"), "sim")
    core = Core(options)
    try:
        part = ManagerPart(core, connect_cloud(options, core.clock))
        try:
            yield core, part
        finally:
            part.stop()
    finally:
        core.close()


def refused(action: Callable[[], None]) -> None:
    try:
        action()
    except HoldfastError:
        return
    raise SystemExit("a lease of more hosts than are free was created")


def write(core: Core, number: int) -> None:
    with core.store.database.write() as conn:
        conn.execute(sa.insert(resource_locks).values(key=f"floor-{number}", generation=0))


def timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    print(f"a year-wide lease at {HOSTS} hosts and {LEASES} leases of {TOGETHER} hosts")
    print(f"  load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    server = PostgreSQL()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            server.start()
            for kind, url in (
                ("PostgreSQL", server.new_database()),
                ("SQLite", f"sqlite:///{folder / 'holdfast.db'}"),
            ):
                found = measure(url, folder / kind)
                print(f"  {kind}: created {spread(found.created, 'ms', 1000)} (wanted: 50 ms)")
                print(f"    of it our processor time {spread(found.created_cpu, 'ms', 1000)}")
                print(f"    refused, with reasons {spread(found.refused, 'ms', 1000)}")
                print(f"    floor {spread(found.floor, 'ms', 1000)}")
        finally:
            server.close()


if __name__ == "__main__":
    main()
