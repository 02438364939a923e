# SPDX-License-Identifier: Apache-2.0
"""10, 50 and 200 of 400 hosts die at once: what the guard against mass failures lets happen, and in
what order.

    python bench/recovery_storm.py [HOSTS ...]

10 racks of 40 hosts, 3 servers on each, one manager on PostgreSQL, 0.05 s per call. 10 are one of
each rack: all begin at once. 50 are five of each rack: three begin at once, then one per
`throttle_interval_s`. 200 are five whole racks: but for those that were reported before it was
clear how many they are, nothing begins until somebody approves; then all do. Never are more servers
on their way than `parallel_moves`, and within a host those marked go first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from tests.recovery.fleet import Fleet
from tests.servers.postgresql import PostgreSQL

from holdfast.db.incident_actions import IncidentActionStore

RACKS, PER_RACK, SERVERS = 10, 40, 3
LATENCY_S = 0.05
SLOW_S, BURST = 2.0, 3
PARALLEL = 32
LIMIT_S = 300
_CLOSED = "SELECT count(*) FROM incidents WHERE closed_at IS NOT NULL"
_HELD = "SELECT count(*) FROM incidents WHERE status = 'held'"
_ONGOING = "SELECT count(*) FROM vmoves WHERE status = 'ongoing'"
_JUDGED = "SELECT count(*) FROM incidents WHERE status != 'open'"
_STARTS = "SELECT details FROM incidents"
_FIRST = """SELECT count(*) FROM vmoves a JOIN vmoves b ON a.incident_id = b.incident_id
 AND a.position < b.position AND a.started_at > b.started_at"""
_LEFT = "SELECT count(*) FROM vmoves WHERE status != 'succeeded'"


class Watched:
    """The fleet, looked at until something is so."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.most = fleet, 0

    def until(self, done: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not done():
            self.most = max(self.most, self.fleet.rows(_ONGOING)[0][0])
            if time.monotonic() - began > LIMIT_S:
                raise SystemExit(f"not within {LIMIT_S} s")
            time.sleep(0.1)
        return time.monotonic() - began


def names(down: int) -> list[str]:
    """One or five of every rack; two hundred are five racks."""
    if down == 200:
        return [f"r{rack}-{n}" for rack in range(5) for n in range(PER_RACK)]
    return [f"r{rack}-{n}" for rack in range(RACKS) for n in range(down // RACKS)]


def storm(url: str, folder: Path, down: int) -> None:
    options = {
        ("recovery", "parallel_moves"): PARALLEL,
        ("recovery", "throttle_interval_s"): SLOW_S,
        ("recovery", "throttle_burst"): BURST,
        ("cloud", "parallel_calls"): 64,
    }
    dying = set(names(down))
    with Fleet(url, folder, options) as fleet:
        for rack in range(RACKS):
            for number in range(PER_RACK):
                name = f"r{rack}-{number}"
                fleet.add(name, rack=f"rack-{rack}", servers=SERVERS if name in dying else 0)
        fleet.sim.change(latency_s=LATENCY_S)
        fleet.start()
        time.sleep(5)
        watched = Watched(fleet)
        calls = sum(fleet.sim.calls().values())
        fleet.die(*sorted(dying))
        began = time.monotonic()
        said = ""
        if down == 200:
            held = watched.until(lambda: fleet.rows(_JUDGED)[0][0] == down)
            begun = down - fleet.rows(_HELD)[0][0]
            time.sleep(5)
            begun = max(begun, down - fleet.rows(_HELD)[0][0])
            asked = sum(fleet.sim.calls().values()) - calls
            said = (
                f"all judged after {held:.1f} s, {begun} begun until somebody approved;"
                f" {asked} calls meanwhile; then "
            )
            IncidentActionStore(fleet.store.database).approve("bench", "it is so")
            began = time.monotonic()
        watched.until(lambda: fleet.rows(_CLOSED)[0][0] == down)
        took = time.monotonic() - began
        print(
            f"  {down} of {RACKS * PER_RACK} hosts with {down * SERVERS} servers: {said}all"
            f" decided after {took:.1f} s; at most {watched.most} on their way (limit {PARALLEL});"
            f" {fleet.rows(_FIRST)[0][0]} out of order; {fleet.rows(_LEFT)[0][0]} left;"
            f" {fleet.twice()} ran twice; {pace(fleet)}"
        )


def pace(fleet: Fleet) -> str:
    """The most that began in one rack within one throttle_interval_s."""
    racks: dict[str, list[datetime]] = {}
    for (details,) in fleet.rows(_STARTS):
        racks.setdefault(details["domain"], []).append(
            datetime.fromisoformat(details["started_at"])
        )
    most = max(within(sorted(starts)) for starts in racks.values())
    return f"at most {most} hosts of a rack began within {SLOW_S:g} s"


def within(starts: Sequence[datetime]) -> int:
    return max(
        sum(0 <= (other - one).total_seconds() < SLOW_S * 0.99 for other in starts)
        for one in starts
    )


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [10, 50, 200]
    server = PostgreSQL()
    server.start()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, PostgreSQL, one manager")
    with contextlib.closing(server):
        for down in sizes:
            with tempfile.TemporaryDirectory() as folder:
                storm(server.new_database(), Path(folder), down)


if __name__ == "__main__":
    main()
