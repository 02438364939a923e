# SPDX-License-Identifier: Apache-2.0
"""The embedded server under clients that send slowly, send nothing or use up its descriptors."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import resource
import socket
import time
from collections.abc import Iterable, Iterator

import pytest

from holdfast.app import http_server
from holdfast.app.http_server import Server
from tests.processes import eventually, free_port

ATTACKER, CLIENT = "127.0.0.2", "127.0.0.3"
SLOW_HEADERS = b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "
SLOW_BODY = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{"
IDLE = b""


def application(environ: dict[str, object], start_response: object) -> Iterable[bytes]:
    pieces = itertools.repeat(b"x" * 2**20, 64) if environ["PATH_INFO"] == "/large" else [b"OK"]
    if environ["PATH_INFO"] == "/late":
        time.sleep(2.5)
    length = 64 * 2**20 if environ["PATH_INFO"] == "/large" else 2
    headers = [("Content-Length", str(length))]
    status = "200 OK"
    if environ["PATH_INFO"] == "/again":
        status, headers = "429 Too Many Requests", [*headers, ("Retry-After", "1")]
    start_response(status, headers)  # type: ignore[operator]
    return pieces


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(autouse=True)
def server(port: int) -> Iterator[Server]:
    server = Server("127.0.0.1", port, application, threads=4, body_limit=lambda _: 2**20)
    server.start()
    yield server
    server.stop()


def get(port: int, source: str = CLIENT, body: bytes | None = None) -> tuple[int, float]:
    """Request the page on a new connection, with or without a body; return status and seconds."""
    began = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=90, source_address=(source, 0))
    with contextlib.closing(client):
        client.request("GET", "/", body)
        answer = client.getresponse()
        assert (answer.status == 503) == bool(answer.getheader("Retry-After"))
        return answer.status, time.monotonic() - began


@contextlib.contextmanager
def sockets(port: int, sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Connect `count` times from the attacker's address and send the same beginning on each."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = socket.create_connection(
                ("127.0.0.1", port), timeout=90, source_address=(ATTACKER, 0)
            )
            stack.enter_context(connection)
            if sent:
                connection.sendall(sent)
            opened.append(connection)
        yield opened


@pytest.mark.parametrize("sent", [SLOW_HEADERS, SLOW_BODY, IDLE], ids=["headers", "body", "idle"])
def test_500_slow_sockets_of_an_address_do_not_delay_another_client(port: int, sent: bytes) -> None:
    """bench/slow_clients.py prints the p99; here a worker held by a slow client would cost 30 s."""
    with sockets(port, sent, 500):
        answers = [get(port) for _ in range(100)]
        assert get(port, ATTACKER)[0] == 200
    assert {status for status, _ in answers} == {200}
    assert sorted(seconds for _, seconds in answers)[98] < 5


def test_connections_beyond_the_share_close_the_oldest_waiting_ones_of_their_address(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sockets(port, IDLE, 1) as first, sockets(port, IDLE, http_server.CONNECTIONS // 2):
        assert first[0].recv(1) == b""
        assert get(port)[0] == 200


@pytest.mark.parametrize("sent", [SLOW_HEADERS, SLOW_BODY], ids=["headers", "body"])
def test_a_request_that_does_not_arrive_in_time_gets_408(
    port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that keep coming do not extend the deadline."""
    monkeypatch.setattr(http_server, "REQUEST_S", 1.0)
    with sockets(port, sent, 1) as (connection,):
        connection.settimeout(0.2)
        answer = b""
        until = time.monotonic() + 90
        while not answer and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                connection.send(b"x")
                answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")


def heard(connection: socket.socket) -> bytes:
    """Everything that arrives until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_408_never_stands_within_the_answer_to_an_earlier_request(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    late = b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n"
    with sockets(port, late + SLOW_HEADERS, 1) as (connection,):
        answers = heard(connection)
    assert answers.startswith(b"HTTP/1.1 200 ") and answers.index(b"OK\r\n") < answers.index(
        b"408 "
    )


def test_blank_lines_between_requests_start_no_request(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    with sockets(port, b"\r\n", 1) as (connection,):
        time.sleep(2.5)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert heard(connection).startswith(b"HTTP/1.0 200 ")


def test_clients_that_read_no_answer_give_their_threads_back(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "UNREAD_S", 1.0)
    with sockets(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n", 4):
        assert get(port)[0] == 200


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_set_neither_stops_deadlines_nor_closes_uploads(
    port: int, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    right = time.time
    with sockets(port, SLOW_BODY, 1) as (connection,):
        assert get(port)[0] == 200
        monkeypatch.setattr(time, "time", lambda: right() + step_s)
        time.sleep(2.5)
        if step_s < 0:
            monkeypatch.setattr(http_server, "REQUEST_S", 1.0)
            assert heard(connection).startswith(b"HTTP/1.1 408 ")
        else:
            connection.sendall(b" " * 999)
            assert connection.recv(13) == b"HTTP/1.1 200 "


def test_a_flood_that_ignores_retry_after_gets_an_answer_per_held_time(port: int) -> None:
    """Also of pipelined requests, which would not wait for the answer."""
    request = b"GET /again HTTP/1.1\r\nHost: a\r\n\r\n"
    began = time.monotonic()
    with sockets(port, request, 1) as (one,), sockets(port, request * 50, 1) as (many,):
        for _ in range(3):
            assert one.recv(65536).startswith(b"HTTP/1.1 429 ")
            one.sendall(request)
        assert heard(many).count(b"HTTP/1.1 429 ") == 1
    assert time.monotonic() - began >= 3 * http_server.HELD_S[0]


LARGE = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b" " * 400_000


def test_large_bodies_together_take_a_fixed_room_on_disk(
    port: int, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address takes at most half, and gives back the room when its connections end."""
    monkeypatch.setattr(http_server, "BODY_FILE_BYTES", 1_000_000)
    with sockets(port, LARGE, 1):
        # until it has arrived, another body of the address may take its room
        eventually(lambda: server._adjustments.body_files._held.total() == 400_000)
        assert get(port, ATTACKER, b" " * 200_000)[0] == 503
        assert get(port, ATTACKER)[0] == 200
        assert get(port, CLIENT, b" " * 200_000)[0] == 200
    eventually(lambda: get(port, ATTACKER, b" " * 200_000)[0] == 200)


def test_a_body_for_which_the_disk_has_no_room_is_a_503(port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        assert get(port, body=b" " * 1_000_000)[0] == 503
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert get(port, body=b" " * 1_000_000)[0] == 200


def test_without_file_descriptors_the_server_refuses_rests_and_recovers(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No busy loop, at most a log line a second, and service again when descriptors are free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used: list[int] = []
    waiting = socket.socket()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 20, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                used.append(os.dup(waiting.fileno()))
        waiting.settimeout(90)
        waiting.connect(("127.0.0.1", port))
        assert waiting.recv(1) == b""  # closed instead of left waiting
        began, cpu = time.monotonic(), time.process_time()
        time.sleep(1.0)
        assert time.process_time() - cpu < 0.5 * (time.monotonic() - began)
    finally:
        for descriptor in used:
            os.close(descriptor)
        waiting.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: get(port)[0] == 200)
    complaints = [row for row in caplog.records if "no file descriptor" in row.getMessage()]
    assert 1 <= len(complaints) <= 3
