# SPDX-License-Identifier: Apache-2.0
"""Reads with real Keystone tokens, beside Blazar in the same cloud: one lease, and a list of 100.

Both have 100 leases of the same shape (one reservation, three events) in the lab's MariaDB and get
the same token, issued once; the same four connections ask, one server after the other in turn.

    Blazar           uWSGI, 1 process of 4 threads; it closes each connection after its answer
    Holdfast, uWSGI  the same command, the same closing
    holdfast-api     as shipped: 1 process, connections kept alive

The floor is the same server of ours answering /healthcheck: HTTP and routing alone.

    make lab; python bench/api_keystone.py [SECONDS]
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean

from lab.cloud import Lab, NotRunning
from lab.place import PASSWORD
from tests.e2e.deployment import write_config
from tests.processes import Program, free_port, script

from bench import _blazar
from bench._rows import Booking, Owner
from bench.api_rate import CONNECTIONS, LEASES, rate
from holdfast.db import Store, migrations
from holdfast.model.lease import BEFORE_END, END, SEQUENCE, START, Lease, Reservation
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Work
from holdfast.runtime.clock import SystemClock

ROUNDS = 2
THREADS = 4
SPEC = {"min": 1, "max": 1, "hypervisor_properties": "", "resource_properties": ""}


@dataclass(frozen=True)
class Read:
    """A server's addresses for the two reads, and for its floor if it has one."""

    name: str
    one: str
    index: str
    floor: str = ""


def spans() -> Iterator[Booking]:
    """The leases, one after the other."""
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    half = timedelta(minutes=30)
    for number in range(LEASES):
        start = first + timedelta(hours=2 * number)
        yield Booking(f"listed-{number}", start, start + half, start + 2 * half)


# Holdfast


def fill_holdfast(url: str, owner: Owner) -> str:
    """Book the leases in an empty database; the id of one."""
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    for each in spans():
        id_ = str(uuid.uuid4())
        part = Reservation(str(uuid.uuid4()), "physical:host", spec={**SPEC, "before_end": ""})
        times = (each.start, each.before_end, each.end)
        dates = (each.start, each.end, each.before_end)
        lease = Lease(id_, each.name, owner.user, owner.project, *dates, reservations=(part,))
        due = zip((START, BEFORE_END, END), times, strict=True)
        store.ledger.book(lease, Work(add=tuple(_work(id_, kind, at) for kind, at in due)))
    store.close()
    return id_


def _work(lease_id: str, kind: str, due: datetime) -> Operation:
    id_, key = str(uuid.uuid4()), f"{kind}/{lease_id}"
    return Operation(id_, kind, lease_id, key, due, due, sequence=SEQUENCE[kind])


@contextlib.contextmanager
def holdfast(lab: Lab, database_url: str, one: str) -> Iterator[Sequence[Read]]:
    """One API under the lab's uWSGI and one as shipped, on one database."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, shipped_port = free_port(), free_port()
        config = write_config(folder / "holdfast.conf", options(lab, database_url, shipped_port))
        command = [
            *(lab.place.program("uwsgi"), "--ini", lab.place.etc / "uwsgi.ini"),
            *("--http-socket", f"127.0.0.1:{port}", "--threads", str(THREADS)),
            *("--module", "holdfast.wsgi:application"),
        ]
        # the lab's uWSGI is a module of the lab's Python: our packages come before its own
        env = {
            "HOLDFAST_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        programs = (
            (Program(command, folder, env=env, name="uwsgi"), port),
            (Program([script("holdfast-api"), "--config-file", config], folder), shipped_port),
        )
        for program, its_port in programs:
            stack.enter_context(program)
            program.wait_http(f"http://127.0.0.1:{its_port}/healthcheck", 60)
        yield [
            _ours("Holdfast, uWSGI", port, one),
            _ours("holdfast-api", shipped_port, one),
        ]


def options(lab: Lab, database_url: str, port: int) -> Mapping[str, Mapping[str, object]]:
    return {
        "DEFAULT": {"auth_strategy": "keystone", "transport_url": lab.transport_url},
        "api": {"port": port},
        "database": {"connection": database_url.replace("%", "%%")},
        "keystone_authtoken": {
            "auth_type": "password",
            "auth_url": lab.auth_url,
            "www_authenticate_uri": lab.auth_url,
            "username": "holdfast",
            "password": PASSWORD,
            "project_name": "service",
            "user_domain_name": "Default",
            "project_domain_name": "Default",
        },
    }


def _ours(name: str, port: int, one: str) -> Read:
    base = f"http://127.0.0.1:{port}"
    leases = f"{base}/reservation/v1/leases"
    return Read(name, f"{leases}/{one}", leases, f"{base}/healthcheck")


# Blazar


def blazar(lab: Lab, owner: Owner) -> Read:
    """Start it in the lab, unless it runs, with the leases as rows of its database."""
    leases = f"{_blazar.start(lab)}/leases"
    one = _blazar.fill(lab, owner, spans())
    return Read("Blazar", f"{leases}/{one}", leases)


# measure


def measure(servers: Sequence[Read], token: str, seconds: float) -> None:
    headers = {"X-Auth-Token": token, "Accept": "application/json"}
    found: dict[tuple[str, str], list[float]] = {}
    for read in ("one", "index"):
        for _ in range(ROUNDS):
            for server in servers:
                speed = rate(getattr(server, read), seconds, headers)
                found.setdefault((server.name, read), []).append(speed)
    peer = servers[0].name
    for server in servers:
        one, index = (mean(found[server.name, read]) for read in ("one", "index"))
        line = f"  {server.name:16} one lease {one:.0f}/s"
        if server.name == peer:
            print(f"{line}, list of {LEASES} {index:.0f}/s")
            continue
        times = one / mean(found[peer, "one"]), index / mean(found[peer, "index"])
        floor = rate(server.floor, seconds)
        print(
            f"{line} ({times[0]:.1f} x {peer}), list of {LEASES} {index:.0f}/s"
            f" ({times[1]:.1f} x); floor {floor:.0f}/s"
        )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    try:
        lab = Lab.running()
    except NotRunning as error:  # the other figures do not need it
        print(f"  left out: {error}")
        return
    owner = _blazar.owner_of(lab)
    database_url = lab.new_database("bench_api_keystone")
    try:
        peer = blazar(lab, owner)
        one = fill_holdfast(database_url, owner)
        with holdfast(lab, database_url, one) as ours:
            print(
                f"requests per second over {CONNECTIONS} connections with a Keystone token,"
                f" {ROUNDS} rounds of {seconds:g} s each; load of the machine {_load()}"
            )
            measure([peer, *ours], owner.token, seconds)
            print(f"  load of the machine at the end {_load()}")
    finally:
        lab.drop_database(database_url)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


if __name__ == "__main__":
    main()
