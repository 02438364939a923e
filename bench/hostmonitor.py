# SPDX-License-Identifier: Apache-2.0
"""A cable is pulled: how long after Consul itself shows the member as failed does the API have the
report?

Three controllers, three computes, three networks: real Consul agents in network namespaces, tuned
as docs/install/consul.md calls faster. `holdfast-hostmonitor` runs on k1, by a rule that waits
for nothing; masakari-monitors' consul driver, by its defaults, in the same place on the same
clusters. Both report to a real Holdfast API. Consul shows it when the agent on k1 does.

    python bench/hostmonitor.py [CUTS [CUTS BESIDE MASAKARI]]     as root; 20 and 2
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from lab.place import Place
from tests.e2e.deployment import write_config
from tests.hostmonitor.house import House, Monitor, built, now, soon
from tests.processes import Program, eventually
from tests.servers.consul import COMPUTES, NETWORKS, Site
from tests.servers.postgresql import PostgreSQL

from bench._parts import spread
from lab import monitors

LIMIT_S = 0.5
AT_ONCE = """\
for: 0
rules:
  - {when: {storage: down}, do: recovery}
otherwise: none
"""
#: Of theirs; a change is seen up to so late.
INTERVAL_S = 60


def first(answers: Callable[[], bool], patience_s: float) -> float:
    """When it is first true, on the monotonic clock."""
    eventually(answers, patience_s, 0.01)
    return time.monotonic()


def pull(
    house: House, host: str, has_it: Callable[[], bool], patience_s: float
) -> tuple[float, float]:
    """Pull the storage cable: seconds until Consul shows it, and from then until the API has it."""
    agent = house.site.agent("k1", "storage")
    failed: list[float] = []

    def watch() -> None:
        failed.append(first(lambda: agent.members()[host] == "failed", 30))

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.monotonic()
    house.site.cut(host, "storage")
    received = first(has_it, patience_s)
    watching.join()
    return failed[0] - began, received - failed[0]


def ours(house: House, cuts: int) -> list[tuple[float, float]]:
    took = []
    with house.monitors(Monitor(house, "k1", ha_matrix=AT_ONCE, healthy_after_s=0)):
        for number in range(cuts):
            host, began = COMPUTES[number % len(COMPUTES)], now()

            def has_it(host: str = host, began: datetime = began) -> bool:
                return ("k1", host) in house.said(began)

            took.append(pull(house, host, has_it, 30))
            house.site.whole()
            soon(lambda host=host, began=began: ("k1", host) in house.said(began, "well"))
            time.sleep(0.5)
    return took


@contextlib.contextmanager
def masakari(house: House) -> Iterator[None]:
    """Its host monitor on k1; where it is missing it is installed into the lab's folder."""
    programs = monitors.install(Place())
    agents = {f"agent_{name}": f"127.0.0.1:{house.site.port(name)}" for name in NETWORKS}
    config = write_config(
        house.folder / "masakari.conf",
        {
            "api": {"auth_type": "none", "endpoint": f"{house.url}/instance-ha/v1"},
            "host": {"monitoring_driver": "consul"},
            "consul": agents,
        },
    )
    command = [programs / "masakari-hostmonitor", "--config-file", config]
    program = Program(command, house.folder, name="masakari")
    try:
        house.site.cables.inside["k1"].do(program.start)
        yield
    finally:
        program.kill()


def theirs(house: House, cuts: int) -> list[tuple[float, float]]:
    """At another moment of their interval each time."""
    took = []
    house.segment(*COMPUTES)
    with masakari(house):
        time.sleep(10)  # they swallow what they see first
        for number in range(cuts):
            host = COMPUTES[number % len(COMPUTES)]
            time.sleep(INTERVAL_S * (number + 0.5) / cuts)

            def has_it(host: str = host) -> bool:
                return any("STOPPED" in str(one) for one in _notifications(house, host))

            took.append(pull(house, host, has_it, INTERVAL_S * 3))
            house.site.whole()
    return took


def _notifications(house: House, host: str) -> list[object]:
    found = house.client.wire.call("GET", "/instance-ha/v1/notifications", key="notifications")
    return [one for one in found if host in str(one)]


def say(who: str, took: list[tuple[float, float]]) -> None:
    print(f"  {who}: {len(took)} cuts; until Consul showed it {spread([one for one, _ in took])};")
    print(f"    from then until the API had it {spread([two for _, two in took])}")


def main() -> None:
    cuts, beside = (int(sys.argv[n]) if len(sys.argv) > n else (20, 2)[n - 1] for n in (1, 2))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, 18 Consul agents, PostgreSQL")
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(PostgreSQL())
        site = stack.enter_context(Site())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dry = {"recovery": {"dry_run": True}}
        house = stack.enter_context(built(site, folder, database.new_database(), dry))
        took = ours(house, cuts)
        say("holdfast-hostmonitor", took)
        late = sorted(two for _, two in took)[int(len(took) * 0.95) - 1]
        if beside:
            say("masakari-hostmonitor", theirs(house, beside))
    if late > LIMIT_S:
        raise SystemExit(f"p95 is {late:.2f} s, more than {LIMIT_S} s")


if __name__ == "__main__":
    main()
