# SPDX-License-Identifier: Apache-2.0
"""Hosts fail all at once, with thousands of future reservations on them: how long until each is
decided, by one manager on PostgreSQL.

    python bench/repair_storm.py [HOSTS [FAILED [RESERVATIONS]]]

Prints the seconds from the moment the hosts are known to be down until every reservation that was
on them has something else or is flagged, what the plan alone took, and what plain SQL finds: holds
that overlap, reservations that moved more than once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa
from tests.servers.postgresql import PostgreSQL

from bench._scale import fill
from holdfast import conf
from holdfast.app.service import Core, ManagerPart, connect_cloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.hoststatus.status import HostStatus
from holdfast.jobs.job import never_ending
from holdfast.leases.repair import REPAIR
from holdfast.ports.recovery import StatusChange
from holdfast.runtime.clock import SystemClock

LIMIT_S = 60
_LEFT = """SELECT count(*) FROM allocations a JOIN reservations r ON r.id = a.reservation_id
 JOIN hosts h ON h.id = a.host_id WHERE h.state = 'down' AND NOT r.missing_resources"""
_OVERLAPS = """SELECT count(*) FROM allocations a JOIN allocations b ON a.host_id = b.host_id
 AND a.id < b.id AND a.held_from < b.held_until AND b.held_from < a.held_until"""
_MOVED = """SELECT count(*) FILTER (WHERE version = 1), count(*) FILTER (WHERE version > 1)
 FROM leases"""
_SHORT = "SELECT count(*) FROM reservations WHERE missing_resources"


def storm(url: str, folder: Path, hosts: int, failed: int, holds: int) -> None:
    fill(url, hosts, holds, together=1)
    options = conf.load([], [])
    for group, name, value in (
        ("database", "connection", url),
        ("sim", "database", str(folder / "sim.db")),
        ("reservation", "repair_horizon_s", 0.0),
        ("reservation", "repair_interval_s", 600.0),
        ("reservation", "reconcile_s", 0.0),  # there is no such cloud
        ("reservation", "host_refresh_s", 0.0),
        ("monitors", "poll", False),
        ("monitors", "push", False),
    ):
        options.set_override(name, value, group)
    with contextlib.closing(Simulator(str(folder / "sim.db"), SystemClock())) as simulator:
        for number in range(1, failed + 1):  # those that are looked after
            simulator.add_host(f"host-{number:05d}")
    core = Core(options)
    manager = ManagerPart(core, connect_cloud(core.conf, core.clock))
    manager.start()
    time.sleep(10)  # it has read the hosts and looked at what is hurt: nothing
    watched = core.store.host_status.watched()[:failed]
    now = core.store.database.now()
    down = [StatusChange(w.id, w.status, HostStatus("down", since=now)) for w in watched]
    core.store.host_status.change(down, lambda at: never_ending(REPAIR, at))
    manager.loop.wake()
    began = time.monotonic()

    def ask(query: str) -> tuple[int, ...]:
        with core.store.database.read() as conn:
            return tuple(conn.execute(sa.text(query)).one())

    while ask(_LEFT)[0]:
        if time.monotonic() - began > LIMIT_S * 5:
            raise SystemExit("not decided within five times the limit")
        time.sleep(0.5)
    took = time.monotonic() - began
    once, more = ask(_MOVED)
    print(
        f"  {hosts} hosts, {failed} fail with {failed * holds} reservations on them:"
        f" all decided in {took:.1f} s (limit {LIMIT_S} s);"
        f" {once} written once, {more} more often, {ask(_SHORT)[0]} miss something,"
        f" {ask(_OVERLAPS)[0]} overlaps"
    )
    print(f"  {core.store.operations.by_key(REPAIR).sentence}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  peak memory of the process that also filled the database: {peak} MiB")
    manager.stop()
    core.close()


def main() -> None:
    hosts, failed, reservations = (
        int(sys.argv[n]) if len(sys.argv) > n else default
        for n, default in ((1, 2000), (2, 200), (3, 10_000))
    )
    server = PostgreSQL()
    server.start()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, PostgreSQL, one manager")
    with contextlib.closing(server), tempfile.TemporaryDirectory() as folder:
        storm(server.new_database(), Path(folder), hosts, failed, reservations // failed)


if __name__ == "__main__":
    main()
