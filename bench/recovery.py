# SPDX-License-Identifier: Apache-2.0
"""A host with 60 servers dies, and every call of the cloud takes 0.2 s: how long from the report to
all of them running elsewhere.

    python bench/recovery.py [SERVERS]

One manager on PostgreSQL. Masakari by its defaults needs about 600 s for that: it waits 180 s
before it begins, and moves one server after the other.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.recovery.fleet import Fleet
from tests.servers.postgresql import PostgreSQL

LIMIT_S = 10
LATENCY_S = 0.2
TARGETS = 10


def recover(url: str, folder: Path, servers: int, action_s: float) -> None:
    with Fleet(url, folder, {}) as fleet:
        fleet.add("dies", servers=servers)
        for number in range(TARGETS):
            fleet.add(f"lives-{number}")
        fleet.sim.change(latency_s=LATENCY_S, action_s=action_s)
        fleet.start()
        time.sleep(5)  # it has read what there is
        before = sum(fleet.sim.calls().values())
        fleet.die("dies")
        began = time.monotonic()
        most = 0
        while fleet.away() < servers:
            most = max(most, fleet.moving())
            if time.monotonic() - began > LIMIT_S * 20:
                raise SystemExit("not recovered within twenty times the limit")
            time.sleep(0.02)
        took = time.monotonic() - began
        while not fleet.rows("SELECT id FROM incidents WHERE closed_at IS NOT NULL"):
            time.sleep(0.02)
        whole = time.monotonic() - began
        ((details,),) = fleet.rows("SELECT details FROM incidents")
        fenced, started = (
            datetime.fromisoformat(text)
            for text in (details["evidence"]["at"], details["started_at"])
        )
        calls = sum(fleet.sim.calls().values()) - before
        print(
            f"  {servers} servers, an evacuation takes {action_s:g} s: all run elsewhere after"
            f" {took:.1f} s (limit {LIMIT_S} s plus fencing), of which until it was fenced"
            f" {(fenced - started).total_seconds():.1f} s; closed after {whole:.1f} s;"
            f" {calls / servers:.1f} calls per server, at most {most} on their way;"
            f" {fleet.twice()} ran twice"
        )


def main() -> None:
    servers = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    server = PostgreSQL()
    server.start()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, PostgreSQL, one manager")
    with contextlib.closing(server):
        for action_s in (0.0, 1.0):
            with tempfile.TemporaryDirectory() as folder:
                recover(server.new_database(), Path(folder), servers, action_s)


if __name__ == "__main__":
    main()
