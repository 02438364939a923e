# SPDX-License-Identifier: Apache-2.0
"""Over real HTTP: what only a server on a socket can get wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.app import service
from tests.api.house import LEASES, House, copy, lease_body
from tests.processes import free_port


@pytest.fixture(scope="module")
def port(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    number = free_port()
    with House(copy(furnished, tmp_path_factory.mktemp("served"))) as house:
        server = service.Server("127.0.0.1", number, house.app, threads=2)
        server.start()
        yield number
        server.stop()


def exchange(port: int, *parts: bytes) -> list[tuple[int, bytes]]:
    """Send bytes as they are on one connection; every answer until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=90) as line:
        for part in parts:
            line.sendall(part)
        line.shutdown(socket.SHUT_WR)
        heard = b""
        while got := line.recv(65536):
            heard += got
    answers = []
    while heard:
        head, _, rest = heard.partition(b"\r\n\r\n")
        fields = dict(row.lower().split(b": ", 1) for row in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", 0))
        answers.append((int(head.split()[1]), rest[:length]))
        heard = rest[length:]
    return answers


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


GET = request("GET", LEASES)
CHUNKED = "Transfer-Encoding: chunked"


def test_a_chunked_body_is_read_like_any_other(port: int) -> None:
    body = json.dumps(lease_body(reservations=[])).encode()
    answers = exchange(port, request("POST", LEASES, CHUNKED, body=chunked(body)), GET)
    assert [status for status, _ in answers] == [201, 200]


@pytest.mark.parametrize(
    "refused", ["Origin: http://evil.example", "Via: 1.1 proxy", "Content-Type: a/b"]
)
def test_a_chunked_body_that_nobody_reads_is_not_the_next_request(port: int, refused: str) -> None:
    smuggled = request("DELETE", f"{LEASES}/x")
    first = request("POST", LEASES, CHUNKED, refused, body=chunked(smuggled))
    answers = exchange(port, first, GET)
    assert len(answers) == 2
    assert answers[0][0] in (400, 403)
    assert answers[1][0] == 200


def test_a_chunked_body_beyond_the_limit_is_a_413(port: int) -> None:
    answers = exchange(port, request("POST", LEASES, CHUNKED, body=chunked(b" " * 200_000)))
    status, body = answers[0]
    assert status == 413
    assert json.loads(body)["error_code"] == 413


@pytest.mark.parametrize("body", [b"zz\r\n{}\r\n0\r\n\r\n", b"5\r\n{}", b"-5\r\n{}\r\n"])
def test_a_broken_chunked_body_is_a_400(port: int, body: bytes) -> None:
    (status, _answer), *_ = exchange(port, request("POST", LEASES, CHUNKED, body=body))
    assert status == 400


def test_a_body_announced_beyond_the_limit_is_refused_without_reading_it(port: int) -> None:
    answers = exchange(port, request("POST", LEASES, "Content-Length: 99999999999"))
    assert answers[0][0] == 413


@pytest.mark.parametrize("length", ["-1", "x", "1, 2"])
def test_a_bad_content_length_is_a_400(port: int, length: str) -> None:
    (status, _answer), *_ = exchange(port, request("POST", LEASES, f"Content-Length: {length}"))
    assert status == 400


def test_a_body_that_ends_early_is_a_400(port: int) -> None:
    (status, answer), *_ = exchange(port, request("POST", LEASES, "Content-Length: 50", body=b"{"))
    assert status == 400
    assert "Malformed" in json.loads(answer)["error_message"]


@pytest.mark.parametrize("path", ["/%00", "/%ff%fe", f"{LEASES}/%0aforged%20line", "/%2e%2e/x"])
def test_odd_addresses_are_answered_and_forge_no_log_line(
    port: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "holdfast.api")
    (status, _answer), *_ = exchange(port, request("GET", path))
    assert status in (400, 404)
    assert all("\n" not in record.getMessage() for record in caplog.records)
