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
import threading
import time
from datetime import timedelta
from urllib.parse import urlsplit

from tests.e2e.deployment import soon, wire_date

from bench._parts import embedded, programs
from holdfast.client import Client

CONNECTIONS = 4
LEASES = 100


def hammer(url: str, seconds: float, counted: multiprocessing.Queue[int]) -> None:
    """Ask for the URL over a few kept-alive connections; put the number of answers."""
    parts = urlsplit(url)
    counts = [0] * CONNECTIONS
    deadline = time.monotonic() + seconds

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        while time.monotonic() < deadline:
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise SystemExit(f"{url} answered {answer.status}")
            counts[number] += 1
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted.put(sum(counts))


def rate(url: str, seconds: float) -> float:
    counted: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=hammer, args=(url, seconds, counted))
    process.start()
    number = counted.get(timeout=seconds + 60)
    process.join()
    return number / seconds


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
