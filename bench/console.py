# SPDX-License-Identifier: Apache-2.0
"""How long the server takes over the first paint of the wall and the calendar, and over the pieces
of the wall that changed, in one process on SQLite: 1,000 hosts with 20,000 leases, 10,000 hosts.

A tenth of the hosts is held now, one in a hundred is down, one monitor sees all of them.

    python bench/console.py [HOSTS LEASES]
"""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from falcon import testing

from bench._rows import Booking, Owner, bookings, fill, host_name
from holdfast import conf as configuration
from holdfast.api.concurrency import LASTS_S
from holdfast.app import service
from holdfast.db import Store
from holdfast.db.tables import hosts
from holdfast.hostmonitor import matrix

TOGETHER = 10
RACK = 40
NETWORKS = ("manage", "tenant", "storage")
TIMES = 9
CALENDAR = "/console/calendar"
#: Its first view is a week of hosts.
CALENDARS = {
    CALENDAR: "the calendar",
    f"{CALENDAR}?zoom=year": "the calendar, a year",
    f"{CALENDAR}?view=racks": "the calendar of racks",
    f"{CALENDAR}?view=racks&zoom=year": "the calendar of racks, a year",
    f"{CALENDAR}?view=zones&zoom=year": "the calendar of zones, a year",
    f"{CALENDAR}?view=leases": "the calendar of leases",
    f"{CALENDAR}?view=leases&zoom=year": "the calendar of leases, a year",
}
_HEADERS = {"Host": "127.0.0.1:8780"}


def main(sizes: list[tuple[int, int]]) -> None:
    print("hosts   leases   page                            ms (median)  of them CPU  kB")
    for count, leases in sizes:
        with tempfile.TemporaryDirectory(prefix="holdfast-console-") as folder:
            measure(Path(folder), count, leases)


def measure(folder: Path, count: int, leases: int) -> None:
    with served(folder, count, leases) as client:
        paths = {"/": "the wall", "/?state=down": "the wall, what is down", **CALENDARS}
        for path, name in paths.items():
            told(count, leases, name, timed(client, path))
        version = re.search(r'data-version="(\w+)"', _get(client, "/").text)
        changed = f"/console/wall/tiles?since={version[1] if version else ''}"
        alone = timed(client, changed, rest_s=LASTS_S)  # longer than it is kept for others
        told(count, leases, "what of the wall has changed", alone)
        told(count, leases, "the same for a further viewer", timed(client, changed))


@contextlib.contextmanager
def served(
    folder: Path, count: int, leases: int, together: int = TOGETHER
) -> Iterator[testing.TestClient]:
    """The whole application, without a server before it; a lease has so many hosts."""
    furnish(f"sqlite:///{folder / 'holdfast.db'}", count, leases, together)
    conf = configuration.load([], [])
    conf.set_override("connection", f"sqlite:///{folder / 'holdfast.db'}", "database")
    conf.set_override("driver", "libvirt", "cloud")  # no simulated world beside it
    core = service.Core(conf)
    nobody: Any = None
    services = service.api_services(core, nobody)
    look(core.store, count)
    try:
        yield testing.TestClient(service.application(core, services))
    finally:
        services.feed.stop()
        core.close()


@dataclass(frozen=True)
class Took:
    seconds: float
    cpu: float
    size: int


def timed(
    client: testing.TestClient, path: str, times: int = TIMES, rest_s: float = 0.0
) -> list[Took]:
    _get(client, path)  # templates are read once
    took = []
    for _ in range(times):
        time.sleep(rest_s)
        began, cpu = time.perf_counter(), time.thread_time()
        size = len(_get(client, path).content)
        took.append(Took(time.perf_counter() - began, time.thread_time() - cpu, size))
    return took


def _get(client: testing.TestClient, path: str) -> testing.Result:
    answer = client.simulate_get(path, headers=_HEADERS, remote_addr="127.0.0.1")
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.status_code} {answer.text[:500]}")
    return answer


def told(count: int, leases: int, name: str, took: Sequence[Took]) -> None:
    seconds, cpu = (
        1000 * statistics.median(getattr(one, what) for one in took) for what in ("seconds", "cpu")
    )
    size = took[-1].size / 1000
    print(f"{count:<7} {leases:<8} {name:<31} {seconds:<12.0f} {cpu:<12.0f} {size:.0f}")


def furnish(url: str, count: int, leases: int, together: int) -> None:
    groups = [tuple(range(at, at + together)) for at in range(0, count, together)]
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    ends = now + timedelta(hours=4)
    held = [
        Booking(f"held-{number}", now - timedelta(hours=1), ends, ends, group)
        for number, group in enumerate(groups[::10])
    ]
    fill(url, Owner("user", "demo"), [*held, *bookings(groups, leases)], count)
    engine = sa.create_engine(url)
    rack = "rack-" + sa.cast(hosts.c.id // RACK, sa.String)
    with engine.begin() as conn:
        conn.execute(sa.update(hosts).values(rack=rack))
        conn.execute(
            sa.update(hosts)
            .where(hosts.c.id % 100 == 7)
            .values(state="down", state_since=now, status={"why": "a monitor says down"})
        )
    engine.dispose()


def look(store: Store, count: int) -> None:
    """What a monitor says that it sees."""
    at = datetime.now(UTC)
    sight = {"sighted": True, "leader": "10.0.0.1:8300", "since": at.isoformat(), "why": ""}
    names = [host_name(number) for number in range(count)]
    body = {
        "kind": "host",
        "started_at": at.isoformat(),
        "heartbeat_s": 60,
        "networks": dict.fromkeys(NETWORKS, sight),
        "ha_matrix": matrix.default(NETWORKS).to_plain(),
        "rows": [{"health": dict.fromkeys(NETWORKS, "up"), "opinion": "none", "hosts": names}],
    }
    store.monitors.register("ctl-1", "bench")
    store.monitors.put("ctl-1", at, body)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main([(given[0], given[1])] if given else [(1_000, 20_000), (10_000, 20_000)])
