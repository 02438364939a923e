# SPDX-License-Identifier: Apache-2.0
"""Another client's /healthcheck while one address holds 500 slow or idle sockets, in milliseconds.

Real `holdfast up`. Floor: the same requests without the sockets. Promised: p99 below 100 ms.

    PYTHONPATH=. .venv/bin/python bench/slow_clients.py [REQUESTS]
"""

import contextlib
import http.client
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.processes import Program, free_port, script

ATTACKER, CLIENT, PROMISED_MS = "127.0.0.2", "127.0.0.3", 100.0
ATTACKS = {
    "no attack (floor)": None,
    "500 slow headers": b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ",
    "500 slow bodies": b"POST /reservation/v1/leases HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Length: 1000\r\n\r\n{",
    "500 idle sockets": b"",
}


def healthcheck(port: int) -> float:
    """Request /healthcheck on a new connection; return the milliseconds."""
    began = time.perf_counter()
    client = http.client.HTTPConnection("127.0.0.1", port, 60, source_address=(CLIENT, 0))
    with contextlib.closing(client):
        client.request("GET", "/healthcheck")
        assert client.getresponse().read() == b"OK"
    return (time.perf_counter() - began) * 1000


def attack(port: int, sent: bytes | None, requests: int) -> list[float]:
    """Return the sorted times of requests beside the sockets."""
    with contextlib.ExitStack() as stack:
        for _ in range(500 if sent is not None else 0):
            where = ("127.0.0.1", port)
            connection = socket.create_connection(where, 60, source_address=(ATTACKER, 0))
            stack.enter_context(connection).sendall(sent or b"")
        return sorted(healthcheck(port) for _ in range(requests))


def main() -> int:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    port, worst = free_port(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        command = [script("holdfast"), "up", "--state", Path(folder) / "state"]
        with Program([*command, "--port", str(port)], Path(folder), name="up") as program:
            program.wait_http(f"http://127.0.0.1:{port}/healthcheck")
            for name, sent in ATTACKS.items():
                times = attack(port, sent, requests)
                p99 = times[int(requests * 0.99)]
                worst = max(worst, p99)
                print(f"{name:20} p50 {times[requests // 2]:6.1f} ms  p99 {p99:6.1f} ms")
    print(f"worst p99 {worst:.1f} ms, promised {PROMISED_MS:g} ms")
    return 0 if worst < PROMISED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
