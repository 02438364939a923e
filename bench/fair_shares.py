# SPDX-License-Identifier: Apache-2.0
"""A tenant's requests while another tenant floods the API on 40 connections, in milliseconds.

Real `holdfast up` with http_basic on one processor, the client on another processor. Floor: the
same requests without the flood. Promised: p99 at most doubles.

    PYTHONPATH=. .venv/bin/python bench/fair_shares.py [SECONDS]
"""

import contextlib
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from tests.api.house import LEASES, basic, basic_config, host_reservation, lease_body
from tests.processes import Program, free_port, script

ATTACKERS, CONNECTIONS, WARM_S = ("127.0.0.2", "127.0.0.3"), 40, 15.0
ASKED = json.dumps(host_reservation())
#: Path, body and what is flooded: lists, refused writes, searches for windows.
FLOODS: dict[str, tuple[str, str, str | None]] = {
    "reads": ("GET", LEASES, None),
    "writes": ("POST", LEASES, json.dumps(lease_body(name="x", reservations=[host_reservation()]))),
    "availability": (
        "GET",
        "/holdfast/v1/availability?" + urlencode({"reservation": ASKED, "duration_s": 3600}),
        None,
    ),
}


def ask(port: int, user: str, source: str, flood: tuple[str, str, str | None]) -> Callable[[], int]:
    method, path, body = flood
    headers = {"Authorization": basic(user), "Content-Type": "application/json"}
    client = http.client.HTTPConnection("127.0.0.1", port, 60, source_address=(source, 0))

    def once() -> int:
        client.request(method, path, body, headers)
        answer = client.getresponse()
        answer.read()
        return answer.status

    return once


def flooding(port: int, name: str, stop: "multiprocessing.synchronize.Event") -> None:
    """Send requests on all connections without a pause, and ignore Retry-After."""
    os.sched_setaffinity(0, _half(0))
    statuses: Counter[int] = Counter()

    def run(number: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                once = ask(port, "other", ATTACKERS[number % 2], FLOODS[name])
                while not stop.is_set():
                    statuses[once()] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"    {name}: answers to the flood {dict(statuses)}")


@contextlib.contextmanager
def flood(port: int, name: str) -> Iterator[None]:
    stop = multiprocessing.Event()
    process = multiprocessing.Process(target=flooding, args=(port, name, stop))
    process.start()
    time.sleep(WARM_S)  # the first ten seconds' worth may come at once
    try:
        yield
    finally:
        stop.set()
        process.join()


def measure(port: int, seconds: float) -> list[float]:
    """Return the sorted times of a tenant's list requests, in milliseconds."""
    once, times = ask(port, "member", "127.0.0.4", FLOODS["reads"]), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        assert once() == 200
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.05)  # a tenant within its share
    return sorted(times)


def _half(number: int) -> set[int]:
    """Return the processors of the server and the flood (0), or those of the client (1)."""
    every = sorted(os.sched_getaffinity(0))
    return set(every[:-1] if number == 0 else every[-1:]) or set(every)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "holdfast.conf"
        config.write_text(basic_config(Path(folder)))
        command = [script("holdfast"), "up", "--state", Path(folder) / "state"]
        command += ["--port", str(port), "--config", config]
        with Program(command, Path(folder), name="up") as program:
            program.wait_http(f"http://127.0.0.1:{port}/readyz")
            every = os.sched_getaffinity(0)
            for task in os.listdir(f"/proc/{program.pid}/task"):
                os.sched_setaffinity(int(task), _half(0))
            os.sched_setaffinity(0, _half(1))
            measure(port, 2.0)
            floor = measure(port, seconds)
            limit = 2 * floor[int(len(floor) * 0.99)]
            worst = 0.0
            print(f"{'alone (floor)':14} p50 {floor[len(floor) // 2]:6.1f}  p99 {limit / 2:6.1f}")
            for name in FLOODS:
                os.sched_setaffinity(0, every)
                with flood(port, name):
                    os.sched_setaffinity(0, _half(1))
                    times = measure(port, seconds)
                p99 = times[int(len(times) * 0.99)]
                worst = max(worst, p99)
                print(f"{name:14} p50 {times[len(times) // 2]:6.1f}  p99 {p99:6.1f}")
    print(f"worst p99 {worst:.1f} ms, promised at most {limit:.1f} ms")
    return 0 if worst <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
