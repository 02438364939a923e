# SPDX-License-Identifier: Apache-2.0
"""How late leases start when many start in the same second and every cloud call takes 0.2 s.

The floor is what the cloud alone needs: the one call left at the instant itself.
Blazar, measured on a real cloud: 50 leases, one after another, median 34 s late, the last 70 s.

    python bench/start_lag.py [LEASES]
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from tests.e2e.deployment import host_lease, wire_date

from bench._parts import embedded, programs, spread
from holdfast.client import Client
from holdfast.drivers.cloud.sim import Simulator

LATENCY_S = 0.2
#: at the instant itself: join the pool; it was made before, and the free pool is left after
CALLS_AT_START = 1


def lags(client: Client, world: Simulator, count: int) -> list[float]:
    """Book `count` leases of one host for the same second; how late each became ACTIVE."""
    start = (datetime.now(UTC) + timedelta(seconds=8 + count / 20)).replace(microsecond=0)

    def book(number: int) -> str:
        lease = Client(client.url).leases.create(
            f"burst-{number}",
            start_date=wire_date(start),
            end_date=wire_date(start + timedelta(hours=1)),
            reservations=[host_lease(1, 1)],
        )
        return str(lease["id"])

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(book, range(count)))
    if datetime.now(UTC) > start:
        raise SystemExit("this machine books too slowly for the burst; try fewer leases")
    world.change(latency_s=LATENCY_S)
    time.sleep(max(0.0, (start - datetime.now(UTC)).total_seconds()))
    return _wait_active(client, ids, start)


def _wait_active(client: Client, ids: set[str], start: datetime) -> list[float]:
    """As an owner sees it: looked at four times a second, so up to 0.25 s too late."""
    seen: dict[str, float] = {}
    deadline = time.monotonic() + 120
    while len(seen) < len(ids):
        if time.monotonic() > deadline:
            raise SystemExit("not all leases started within two minutes")
        leases = client.leases.list()
        now = (datetime.now(UTC) - start).total_seconds()
        for lease in leases:
            if lease["id"] in ids and lease["status"] == "ACTIVE":
                seen.setdefault(lease["id"], now)
        time.sleep(0.25)
    return list(seen.values())


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    floor = CALLS_AT_START * LATENCY_S
    print(f"{count} leases starting in the same second, {LATENCY_S} s per cloud call")
    print(f"  floor: {CALLS_AT_START} call = {floor:.1f} s")
    for name, deploy in (("embedded, SQLite", embedded), ("2 managers, PostgreSQL", programs)):
        with deploy(count) as (client, world):
            found = lags(client, world, count)
        print(f"  {name}: {spread(found)}; last is {max(found) / floor:.1f} x the floor")


if __name__ == "__main__":
    main()
