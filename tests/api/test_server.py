# SPDX-License-Identifier: Apache-2.0
"""Over real HTTP: what only a server on a socket can get wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.api import tokens
from holdfast.app import service
from holdfast.app.daemon import BadSetup
from holdfast.app.http_server import Server
from holdfast.model.observation import AGENT_HEADER
from tests.api.house import LEASES, OWN, SECRET, House, basic_config, copy, lease_body
from tests.processes import PATIENCE_S, free_port, script


def _limit(has_credentials: bool) -> int:
    return 12 * 2**20 if has_credentials else 114_688


@pytest.fixture(scope="module")
def port(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    number = free_port()
    with House(copy(furnished, tmp_path_factory.mktemp("served"))) as house:
        server = Server("127.0.0.1", number, house.app, threads=2, body_limit=_limit)
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


@pytest.mark.parametrize("body", [b"zz\r\n{}\r\n0\r\n\r\n", b"-5\r\n{}\r\n"])
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


@pytest.mark.parametrize(
    "sent",
    [
        request("POST", LEASES, "Content-Length: 50", body=b"{"),
        request("POST", LEASES, CHUNKED, body=b"5\r\n{}"),
        GET[:-2],
    ],
    ids=["body", "chunk", "headers"],
)
def test_a_request_that_ends_early_is_a_400(port: int, sent: bytes) -> None:
    (status, answer), *rest = exchange(port, GET, sent)[1:]
    assert (status, rest) == (400, [])
    assert "ended within the request" in json.loads(answer)["error_message"]


EXPECT = "Expect: 100-continue"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (("Content-Length: 200000",), [413]),
        ((CHUNKED, "Host: other.example"), [400]),
        ((CHUNKED, "Content-Length: 4"), [400]),
        (("Content-Length: 2",), [100, 400, 200]),
        ((), [400, 200]),
    ],
    ids=str,
)
def test_a_client_that_waits_for_100_continue_has_the_same_limits(
    port: int, headers: tuple[str, ...], expected: list[int]
) -> None:
    sent = request("POST", LEASES, EXPECT, *headers, body=b"{}" if 100 in expected else b"")
    assert [status for status, _ in exchange(port, sent + GET)] == expected


@pytest.mark.parametrize("body", [b"1;" + b"x" * 20_000, b"0\r\n" + b"X-A: b\r\n" * 4000])
def test_a_long_chunk_line_or_trailer_is_a_400(port: int, body: bytes) -> None:
    (status, answer), *_ = exchange(port, request("POST", LEASES, CHUNKED, body=body))
    assert status == 400
    assert "chunk line" in json.loads(answer)["error_message"]


@pytest.mark.parametrize("sent", [GET[:-2], request("POST", LEASES, "Content-Length: 9")])
def test_urgent_data_of_tcp_closes_the_connection(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=90) as line:
        line.sendall(sent)
        line.send(b"!", socket.MSG_OOB)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1) == b""


@pytest.mark.parametrize(
    ("size", "status"), [(1_000_000, 204), (13 * 2**20, 413)], ids=["large", "too-large"]
)
def test_an_agent_sends_its_large_bodies_with_its_token_alone(
    furnished: Path, tmp_path: Path, size: int, status: int
) -> None:
    number = free_port()
    body = json.dumps({"begin": 1, "points": 1, "lines": []}).encode().ljust(size)
    with House(copy(furnished, tmp_path), basic_config(tmp_path)) as house:
        agent = f"{AGENT_HEADER}: {tokens.agent_token('cmp-1', SECRET)}"
        sent = request(
            "PUT", f"{OWN}/agents/cmp-1/samples", agent, f"Content-Length: {size}", body=body
        )
        server = service.http_server(house.conf, house.app, number)
        server.start()
        try:
            assert [got for got, _ in exchange(number, sent)] == [status]
        finally:
            server.stop()


def test_the_address_of_all_ipv6_interfaces_takes_ipv4_too() -> None:
    number, peers = free_port(), []

    def application(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        peers.append(environ["REMOTE_ADDR"])
        start_response("204 No Content", [])
        return []

    server = Server("::", number, application, threads=1, body_limit=_limit)
    server.start()
    try:
        for host in ("127.0.0.1", "::1"):
            with closing(http.client.HTTPConnection(host, number, timeout=90)) as client:
                client.request("GET", "/")
                assert client.getresponse().status == 204
    finally:
        server.stop()
    assert peers == ["127.0.0.1", "::1"]


def test_a_host_name_without_an_address_is_a_setup_error() -> None:
    with pytest.raises(BadSetup, match=r"cannot listen on no-such-host\.invalid:1"):
        Server("no-such-host.invalid", 1, lambda *_: [], threads=1, body_limit=_limit)


SMUGGLED = [
    ("Content-Length: 4", CHUNKED),
    (CHUNKED, CHUNKED),
    ("Transfer-Encoding: chunked, identity",),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding : chunked",),
    ("Content-Length: 4", "Content-Length: 5"),
    ("Host: other.example",),
    ("Host : other.example",),
    ("X: a\rHost: other.example",),
    ("Content-Length:\r\n 5",),
    ("Transfer-Encoding:\r\n\tchunked",),
    ("X: a\r\n Host: other.example",),
]


@pytest.mark.parametrize("headers", SMUGGLED, ids=" & ".join)
def test_a_request_with_two_ends_or_two_hosts_is_refused(
    port: int, headers: tuple[str, ...]
) -> None:
    sent = request("POST", LEASES, *headers, body=b"0\r\n\r\n")
    answers = exchange(port, sent + GET)
    assert [status for status, _ in answers] in ([400], [501])


def test_a_request_of_http_1_1_without_a_host_is_refused(port: int) -> None:
    for version, status in (("1.1", 400), ("1.0", 200)):
        sent = f"GET /healthcheck HTTP/{version}\r\n\r\n".encode()
        assert [got for got, _ in exchange(port, sent)] == [status]


def test_transfer_encoding_of_http_1_0_is_refused(port: int) -> None:
    sent = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert [status for status, _ in exchange(port, sent)] == [400]


def test_an_announced_chunk_beyond_the_limit_is_refused_before_it_arrives(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=90) as line:
        line.sendall(request("POST", LEASES, CHUNKED) + b"f00000\r\n{")
        answer = line.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"X-Content-Type-Options: nosniff\r\n" in answer


def test_an_answer_without_a_body_keeps_the_connection(port: int) -> None:
    options = request("OPTIONS", LEASES)
    assert [status for status, _ in exchange(port, options, GET)][-1] == 200


@pytest.mark.parametrize("path", ["/%00", "/%ff%fe", f"{LEASES}/%0aforged%20line", "/%2e%2e/x"])
def test_odd_addresses_are_answered_and_forge_no_log_line(
    port: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "holdfast.api")
    (status, _answer), *_ = exchange(port, request("GET", path))
    assert status in (400, 404)
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_up_leaves_the_mode_of_a_folder_that_it_did_not_make_and_says_so(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir(mode=0o755)
    for name in ("holdfast.db", "holdfast.db-wal", "holdfast.log", "foreign"):
        (theirs / name).touch(0o644)
    for state in (theirs, ours):
        command = [script("holdfast"), "up", "--host", "no-such-host.invalid", "--state", state]
        (tmp_path / "config").write_text("[DEFAULT]\nauth_strategy = keystone\n")
        ended = subprocess.run(
            [*command, "--config", tmp_path / "config"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert (f"can enter the state folder {state}" in ended.stderr) == (state == theirs)
    assert (theirs.stat().st_mode & 0o777, ours.stat().st_mode & 0o777) == (0o755, 0o700)
    modes = {file.name: file.stat().st_mode & 0o777 for file in theirs.iterdir()}
    assert modes.pop("foreign") == 0o644 and set(modes.values()) == {0o600}
