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

import sqlalchemy as sa
from tests.e2e.deployment import host_lease, wire_date

from bench._parts import House, embedded, programs, spread
from holdfast.client.client import Client
from holdfast.db.tables import audit

LATENCY_S = 0.2
#: at the instant itself: join the pool; it was made before, and the free pool is left after
CALLS_AT_START = 1


def lags(house: House, count: int) -> list[float]:
    """Book `count` leases of one host for the same second; how late each became ACTIVE."""
    start = (datetime.now(UTC) + timedelta(seconds=8 + count / 20)).replace(microsecond=0)

    def book(number: int) -> str:
        lease = Client(house.client.url).leases.create(
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
    house.world.change(latency_s=LATENCY_S)
    time.sleep(max(0.0, (start - datetime.now(UTC)).total_seconds()))
    return [(at - start).total_seconds() for at in _became_active(house.database_url, ids)]


def _became_active(database_url: str, ids: set[str]) -> list[datetime]:
    """When each lease did, as the audit says, which is written in the same transaction."""
    query = sa.select(audit.c.subject, audit.c.at).where(audit.c.sentence.like("% is ACTIVE"))
    engine = sa.create_engine(database_url)
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            time.sleep(0.5)
            with engine.connect() as conn:
                found = [at for subject, at in conn.execute(query) if subject in ids]
            if len(found) == len(ids):
                return found
    finally:
        engine.dispose()
    raise SystemExit("not all leases started within two minutes")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    floor = CALLS_AT_START * LATENCY_S
    print(f"{count} leases starting in the same second, {LATENCY_S} s per cloud call")
    print(f"  floor: {CALLS_AT_START} call = {floor:.1f} s")
    for name, deploy in (("embedded, SQLite", embedded), ("2 managers, PostgreSQL", programs)):
        with deploy(count) as house:
            found = lags(house, count)
        print(f"  {name}: {spread(found)}; last is {max(found) / floor:.1f} x the floor")


if __name__ == "__main__":
    main()
