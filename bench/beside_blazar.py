# SPDX-License-Identifier: Apache-2.0
"""Creating and starting leases beside Blazar, in one run on the lab's cloud.

Creates: both have the same hosts and the same 10,000 reservations of one host over the coming year
in the lab's MariaDB, and are asked in turn, with the same Keystone token and the same body, for one
host for half a day. Starts: both have two of the lab's computes and slot leases (1 vCPU, 64 MB)
that start at the same full minute; looked at four times a second, how late is each ACTIVE?

Holdfast runs as shipped: `holdfast-api` and one `holdfast-manager`, RPC over RabbitMQ, Nova.

    make lab; python bench/beside_blazar.py [--quick] [creates | slots]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from lab.cloud import Lab, NotRunning
from tests.e2e.deployment import host_lease
from tests.lab.house import house

from bench import _blazar, _rows
from bench._parts import spread
from bench._rows import Owner

PREFIX = "beside-"
#: Creates asked of us for each one asked of Blazar.
OURS_PER_ROUND = 5
#: Blazar gets no more rounds when they have taken so long: others wait for the lab's one house.
ROUNDS_S = 200
#: A burst that has not started by then never will.
BURST_S = 600
SLOT = {
    "resource_type": "virtual:instance",
    "vcpus": 1,
    "memory_mb": 64,
    "disk_gb": 1,
    "amount": 1,
    "affinity": None,
    "resource_properties": "",
}
Body = Mapping[str, Any]


class Refused(Exception):
    """An answer that is not a success."""


@dataclass(frozen=True)
class Side:
    """One of the two: where it answers, and its database to see what became of its leases."""

    name: str
    url: str
    token: str
    database_url: str
    #: How many at once; Blazar is not asked for more than one thing at a time.
    deletes: int = 1

    def ask(self, method: str, path: str, body: Body | None = None) -> Any:
        """One request on a connection of its own, as Blazar's server wants it."""
        where = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=300)
        json_ = "application/json"
        headers = {"X-Auth-Token": self.token, "Content-Type": json_, "Accept": json_}
        with contextlib.closing(connection):
            connection.request(
                method, where.path + path, None if body is None else json.dumps(body), headers
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 300:
            raise Refused(f"{self.name}: {method} {path}: {answer.status} {text[:300]}")
        return json.loads(text) if text else None

    def create(self, body: Body) -> float:
        """How long it took."""
        began = time.perf_counter()
        self.ask("POST", "/leases", body)
        return time.perf_counter() - began

    def statuses(self, prefix: str = PREFIX) -> dict[str, str]:
        """Of the leases whose names begin so. Not by the API, which would list all others too."""
        engine = sa.create_engine(self.database_url)
        query = sa.text("SELECT id, status FROM leases WHERE name LIKE :name")
        try:
            with engine.connect() as conn:
                found = conn.execute(query, {"name": f"{prefix}%"}).all()
            return {str(id_): str(status) for id_, status in found}
        finally:
            engine.dispose()

    def delete_leases(self) -> None:
        with ThreadPoolExecutor(self.deletes) as pool:
            list(pool.map(self._delete, self.statuses()))
        until = time.monotonic() + BURST_S
        while left := self.statuses():
            if time.monotonic() > until:
                raise Refused(f"{self.name}: {len(left)} leases are still there")
            time.sleep(0.5)

    @contextlib.contextmanager
    def enrolled(self, hosts: Sequence[str]) -> Iterator[None]:
        """These computes, without servers of others, until we are done."""
        made = []
        try:
            for host in hosts:
                made.append(self._enrol(host))
            yield
        finally:
            for id_ in made:
                self.ask("DELETE", f"/os-hosts/{id_}")

    def _enrol(self, host: str) -> str:
        """Others' servers may still be on it."""
        return str(patiently(lambda: self.ask("POST", "/os-hosts", {"name": host}))["host"]["id"])

    def _delete(self, id_: str) -> None:
        """Blazar refuses while it is doing something to the lease."""
        patiently(lambda: self.ask("DELETE", f"/leases/{id_}"))


def patiently(action: Callable[[], Any]) -> Any:
    """What is refused now may be possible within two minutes."""
    until = time.monotonic() + 120
    while True:
        try:
            return action()
        except Refused:
            if time.monotonic() > until:
                raise
            time.sleep(2)


def a_lease(name: str, start: datetime, length: timedelta, what: Body) -> Body:
    return {
        "name": f"{PREFIX}{name}",
        "start_date": f"{start:%Y-%m-%d %H:%M}",
        "end_date": f"{start + length:%Y-%m-%d %H:%M}",
        "reservations": [what],
        "events": [],
    }


@contextlib.contextmanager
def ours(lab: Lab, owner: Owner, database_url: str) -> Iterator[Side]:
    """Our programs. Invented hosts are not looked for in Nova; Blazar's monitor is off too."""
    with (
        tempfile.TemporaryDirectory() as folder,
        house(
            lab,
            Path(folder),
            cloud="nova",
            database_url=database_url,
            extra={"reservation": {"host_refresh_s": 0}},
        ) as made,
    ):
        yield Side("Holdfast", f"{made.url}/reservation/v1", owner.token, database_url, deletes=8)


@contextlib.contextmanager
def database(lab: Lab) -> Iterator[str]:
    url = lab.new_database(f"bench_beside_{os.getpid()}_{time.monotonic_ns()}")
    try:
        yield url
    finally:
        lab.drop_database(url)


def clear(lab: Lab, blazar: Side, owner: Owner) -> None:
    """Take away all of ours in Blazar, also what a run left that was killed."""
    blazar.delete_leases()
    _blazar.fill(lab, owner, ())
    for host in blazar.ask("GET", "/os-hosts")["hosts"]:
        blazar.ask("DELETE", f"/os-hosts/{host['id']}")


# creates


@dataclass(frozen=True)
class Size:
    hosts: int
    reservations: int
    #: How often Blazar is asked.
    rounds: int


SIZES = (Size(100, 10_000, 20), Size(500, 10_000, 20))
SMALL = Size(100, 1_000, 5)


def creates(lab: Lab, blazar: Side, owner: Owner, size: Size) -> None:
    """The same leases of both in turn."""
    hosts, reservations = size.hosts, size.reservations
    bookings = list(_rows.bookings([(number,) for number in range(hosts)], reservations))
    _blazar.fill(lab, owner, bookings, hosts)
    with database(lab) as url:
        _rows.fill(url, owner, bookings, hosts)
        try:
            with ours(lab, owner, url) as holdfast:
                theirs, own = in_turn(blazar, holdfast, size.rounds)
        finally:
            clear(lab, blazar, owner)
    ratio = statistics.median(own) / statistics.median(theirs)
    print(f"a lease of 1 of {hosts} hosts with {reservations} reservations; load {load()}")
    print(f"  Blazar   {spread(theirs)} ({len(theirs)} creates)")
    print(f"  Holdfast {spread(own, 'ms', 1000)} ({len(own)} creates)")
    print(f"  p50: 1/{1 / ratio:.0f} of Blazar's (wanted: at most 1/20)", flush=True)


def in_turn(blazar: Side, holdfast: Side, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each create; the first of each side is not counted."""
    day = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    what = host_lease(1, 1)

    def body(number: int) -> Body:
        start = day + timedelta(days=5 + number * 3 % 300)
        return a_lease(f"create-{number}", start, timedelta(hours=12), what)

    for side in (blazar, holdfast):
        side.create(body(0))
    theirs: list[float] = []
    own: list[float] = []
    until = time.monotonic() + ROUNDS_S
    for number in range(1, rounds + 1):
        theirs.append(blazar.create(body(number)))
        for more in range(OURS_PER_ROUND):
            own.append(holdfast.create(body(number + more * rounds)))
        if time.monotonic() > until:
            break
    return theirs, own


# starts


def slots(lab: Lab, blazar: Side, owner: Owner, count: int) -> None:
    """Blazar on the first two computes, then we on the others."""
    _blazar.make_room(lab, lab.computes[:2])
    try:
        theirs = on_hosts(blazar, lab.computes[:2], count)
    finally:
        clear(lab, blazar, owner)
    with database(lab) as url, ours(lab, owner, url) as holdfast:
        own = on_hosts(holdfast, lab.computes[2:4], count)
    print(f"{count} slot leases that start in the same second")
    for name, burst in (("Blazar", theirs), ("Holdfast", own)):
        failed = f"; {count - len(burst.late)} never" if len(burst.late) < count else ""
        print(f"  {name:8} {spread(burst.late)}{failed}; load then {burst.load}")
    ratio = max(theirs.late) / max(own.late)
    print(f"  the last: 1/{ratio:.1f} as late as Blazar's (wanted: at most 1/5)")


@dataclass(frozen=True)
class Burst:
    """Seconds after their start at which leases were ACTIVE, and what else the machine did."""

    late: Sequence[float]
    load: str


def on_hosts(side: Side, hosts: Sequence[str], count: int) -> Burst:
    with side.enrolled(hosts):
        try:
            return lateness(side, count)
        finally:
            side.delete_leases()


def lateness(side: Side, count: int) -> Burst:
    """Create the leases and watch them start; those that fail are left out."""
    hour = timedelta(hours=1)
    each_s = side.create(a_lease("probe", datetime.now(UTC) + 24 * hour, hour, SLOT))
    start = full_minute(datetime.now(UTC) + timedelta(seconds=30 + 2 * each_s * count))
    for number in range(count):
        side.create(a_lease(f"burst-{number}", start, hour, SLOT))
    if datetime.now(UTC) >= start:
        raise SystemExit(f"{side.name} books too slowly on this machine now; try fewer leases")
    time.sleep((start - datetime.now(UTC)).total_seconds())
    before = load()
    found: dict[str, float] = {}
    until = time.monotonic() + BURST_S
    while time.monotonic() < until:
        late = (datetime.now(UTC) - start).total_seconds()
        now = side.statuses(f"{PREFIX}burst-")
        for id_, status in now.items():
            if status == "ACTIVE":
                found.setdefault(id_, late)
        if len(found) + sum(status == "ERROR" for status in now.values()) >= count:
            break
        time.sleep(0.25)
    if not found:
        raise SystemExit(f"{side.name} started none of {count} leases")
    return Burst(list(found.values()), before)


def full_minute(at: datetime) -> datetime:
    """That minute or the next: Blazar knows no seconds."""
    return (at + timedelta(seconds=59)).replace(second=0, microsecond=0)


def load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small try of two minutes")
    parser.add_argument("part", nargs="?", choices=["creates", "slots"], help="only this")
    options = parser.parse_args()
    try:
        lab = Lab.running()
    except NotRunning as error:  # the other figures do not need it
        print(f"  left out: {error}")
        return
    owner = _blazar.owner_of(lab)
    where = _blazar.start(lab)
    blazar = Side("Blazar", where, owner.token, lab.place.database_url("blazar"))
    clear(lab, blazar, owner)
    if options.part != "slots":
        for size in [SMALL] if options.quick else SIZES:
            creates(lab, blazar, owner, size)
    if options.part != "creates":
        slots(lab, blazar, owner, 10 if options.quick else 50)


if __name__ == "__main__":
    main()
