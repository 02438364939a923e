# SPDX-License-Identifier: Apache-2.0
"""Requests per second: one lease, and a list of 100, embedded and as separate programs.

The floor is the same server answering /healthcheck: HTTP and routing without a database. Load comes
from plain sockets in one process of its own. Blazar with Keystone, measured: 37/s and 19/s.

    python bench/api_rate.py [SECONDS]
"""

from __future__ import annotations

import http.client
import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

from tests.e2e.deployment import soon, wire_date

from bench._parts import embedded, programs
from holdfast.client.client import Client

CONNECTIONS = 4
LEASES = 100


def hammer(
    url: str, seconds: float, headers: Mapping[str, str], counted: multiprocessing.Queue[int]
) -> None:
    """Ask over a few connections, kept alive where the server does; put the number of answers."""
    parts = urlsplit(url)

    def ask(until: float) -> int:
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        count = 0
        while count == 0 or time.monotonic() < until:
            connection.request("GET", parts.path, headers=dict(headers))
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise SystemExit(f"{url} answered {answer.status}")
            count += 1
        connection.close()
        return count

    ask(0.0)  # the first answer warms up
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        until = time.monotonic() + seconds
        counted.put(sum(pool.map(ask, [until] * CONNECTIONS)))


def rate(url: str, seconds: float, headers: Mapping[str, str] | None = None) -> float:
    """Answers per second."""
    counted: multiprocessing.Queue[int] = multiprocessing.Queue()
    arguments = (url, seconds, headers or {}, counted)
    process = multiprocessing.Process(target=hammer, args=arguments)
    process.start()
    process.join(seconds + 60)
    if process.exitcode != 0:
        raise SystemExit(f"{url}: not measured, see above")
    return counted.get(timeout=10) / seconds


def book(client: Client, count: int) -> str:
    """Fill up to `count` leases; the id of one of them."""
    start = soon(86_400)
    for number in range(count - len(client.leases.list())):
        client.leases.create(
            f"listed-{number}",
            start_date=wire_date(start),
            end_date=wire_date(start + timedelta(hours=1)),
        )
    return str(client.leases.list()[0]["id"])


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print(f"requests per second over {CONNECTIONS} connections, {seconds:g} s each")
    for name, deploy in (
        ("embedded, SQLite", embedded),
        ("API + 2 managers, PostgreSQL", programs),
    ):
        with deploy(0) as house:
            client = house.client
            one = book(client, LEASES)
            floor = rate(f"{client.url}/healthcheck", seconds)
            show = rate(f"{client.url}/reservation/v1/leases/{one}", seconds)
            index = rate(f"{client.url}/reservation/v1/leases", seconds)
        print(
            f"  {name}: one lease {show:.0f}/s ({show / floor:.0%} of the floor),"
            f" list of {LEASES} {index:.0f}/s ({index / floor:.0%}); floor {floor:.0f}/s"
        )


if __name__ == "__main__":
    main()
