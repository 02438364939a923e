# SPDX-License-Identifier: Apache-2.0
"""The HTTP client against real sockets: deadlines, size limits, aborts, addresses, TLS, proxies."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE_S, eventually, free_port

from holdfast.runtime import http
from holdfast.runtime.http import (
    Aborted,
    AddressRefused,
    Deadline,
    HttpClient,
    HttpError,
    HttpTimeout,
    InvalidUrl,
    Tls,
    TlsFailed,
)

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
Script = Callable[[socket.socket], None]


class Server:
    """Accepts connections and runs a script on each request; remembers the requests."""

    def __init__(
        self, script: Script, listening: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.connections = 0
        self.names: list[str | None] = []  # by TLS clients
        self._listening = listening
        self._tls = tls
        if tls is not None:
            tls.sni_callback = lambda _socket, name, _context: self.names.append(name)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._talk, args=(line,), daemon=True).start()

    def _talk(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(line)
            if self._tls is not None:
                line = stack.enter_context(self._tls.wrap_socket(line, server_side=True))
            while request := line.recv(65536):
                self.requests.append(request)
                self.script(line)


@contextlib.contextmanager
def serving(
    script: Script | bytes = FINE,
    *,
    listening: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[Server, str]]:
    own = listening or socket.create_server(("127.0.0.1", 0))

    def say(line: socket.socket) -> None:
        assert isinstance(script, bytes)
        line.sendall(script)

    server = Server(say if isinstance(script, bytes) else script, own, tls)
    threading.Thread(target=server.serve, daemon=True).start()
    port = own.getsockname()[1] if own.family == socket.AF_INET else 0
    try:
        at = "https://localhost" if tls else "http://127.0.0.1"  # the certificate is for localhost
        yield server, f"{at}:{port}/thing"
    finally:
        own.shutdown(socket.SHUT_RDWR)
        own.close()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient()
    yield made
    made.abort()
    made.close()


def get(client: HttpClient, url: str, seconds: float = PATIENCE_S, **options: Any) -> http.Response:
    return client.request("GET", url, Deadline(seconds), **options)


def server_side(certificate: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_requests_share_a_connection(client: HttpClient) -> None:
    with serving() as (server, url):
        for _ in range(3):
            answer = get(client, url)
        assert (answer.status, answer.reason, answer.body) == (200, "OK", b"fine")
        assert answer.headers["content-LENGTH"] == "4"
        assert server.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(client: HttpClient) -> None:
    def once(line: socket.socket) -> None:
        line.sendall(FINE)
        line.shutdown(socket.SHUT_RDWR)

    with serving(once) as (server, url):
        get(client, url)
        time.sleep(0.2)
        assert get(client, url).body == b"fine"
        assert server.connections == 2


def silent(_line: socket.socket) -> None:
    time.sleep(PATIENCE_S)


def drip(head: bytes) -> Script:
    def script(line: socket.socket) -> None:
        line.sendall(head)
        while True:
            line.sendall(b"x")
            time.sleep(0.02)

    return script


@pytest.mark.parametrize(
    "script",
    [
        silent,
        drip(b"HTTP/1.1 200 OK\r\nX-"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"),
    ],
    ids=["silent", "headers", "body"],
)
@pytest.mark.parametrize("secure", [False, True])
def test_a_slow_answer_ends_at_the_deadline(
    script: Script, secure: bool, certificate: tuple[str, str]
) -> None:
    client = HttpClient(tls=Tls(certificate[0]))
    tls = server_side(certificate) if secure else None
    with serving(script, tls=tls) as (_server, url):
        began = time.monotonic()
        with pytest.raises(HttpTimeout) as raised:
            # long enough for a TLS handshake on a busy machine
            get(client, url, 2.0)
        assert raised.value.sent
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_server_without_a_handshake_ends_at_the_deadline(client: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(HttpTimeout) as raised:
            get(client, f"https://127.0.0.1:{mute.getsockname()[1]}/", 0.3)
        assert not raised.value.sent


def test_a_receiver_that_does_not_read_ends_at_the_deadline(client: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(HttpTimeout) as raised:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        client.request("POST", url, Deadline(0.5), body=b"x" * 2**26)
    assert raised.value.sent


def test_a_resolver_that_hangs_ends_at_the_deadline(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: over.wait(PATIENCE_S))
    with pytest.raises(HttpTimeout) as raised:
        get(client, "http://name.example/", 0.2)
    over.set()
    assert not raised.value.sent


def test_an_address_that_swallows_everything_leaves_time_for_the_next(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (_server, url), contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # Linux drops what does not fit into the backlog
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        there = ("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", where)
            for where in (full.getsockname(), there)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        began = time.monotonic()
        assert get(client, "http://name.example/", 6.0).body == b"fine"
        assert time.monotonic() - began > 2  # else the first address did not swallow


@pytest.mark.parametrize("announced", [b"Content-Length: 100\r\n", b"Connection: close\r\n"])
def test_an_answer_that_is_too_large_is_an_error_or_cut(
    client: HttpClient, announced: bytes
) -> None:
    def script(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\n" + announced + b"\r\n" + b"x" * 100)
        if b"close" in announced:
            line.shutdown(socket.SHUT_RDWR)

    with serving(script) as (_server, url):
        assert len(get(client, url, most_bytes=100).body) == 100
        with pytest.raises(HttpError, match="more than 99 bytes"):
            get(client, url, most_bytes=99)
        assert get(client, url, most_bytes=99, whole=False).body == b"x" * 99


def test_the_client_does_not_wait_for_an_unwanted_body(client: HttpClient) -> None:
    with serving(b"HTTP/1.1 202 Accepted\r\nContent-Length: 4\r\n\r\n") as (_server, url):
        assert get(client, url, most_bytes=0, whole=False).status == 202


def test_half_an_answer_is_an_error(client: HttpClient) -> None:
    def script(line: socket.socket) -> None:
        line.sendall(FINE.replace(b"4", b"40"))
        line.shutdown(socket.SHUT_RDWR)

    with serving(script) as (_server, url), pytest.raises(HttpError) as raised:
        get(client, url)
    assert raised.value.sent
    assert type(raised.value) is HttpError


def test_a_redirect_is_not_followed(client: HttpClient) -> None:
    with serving() as (other, where):
        away = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
        with serving(away) as (_server, url):
            assert get(client, url).status == 302
        assert other.requests == []


@pytest.mark.parametrize("url", ["ftp://x/", "x", "/x", "http://", "http://a b/", "http://x:y/"])
def test_a_url_of_another_form_is_refused(client: HttpClient, url: str) -> None:
    with pytest.raises(InvalidUrl) as raised:
        get(client, url)
    assert not raised.value.sent


def test_a_refused_connection_is_named_in_the_words_of_the_system(client: HttpClient) -> None:
    with pytest.raises(HttpError, match=r"^\[Errno 111\] Connection refused$") as raised:
        get(client, f"http://127.0.0.1:{free_port()}/")
    assert not raised.value.sent


def test_a_header_that_cannot_be_sent_is_an_error(client: HttpClient) -> None:
    with serving() as (server, url), pytest.raises(HttpError) as raised:
        get(client, url, headers={"X-Token": "a\r\nb"})
    assert not raised.value.sent
    assert server.requests == []


@pytest.mark.parametrize("waiting_for", ["answer", "handshake"])
def test_another_thread_ends_a_request_under_way(waiting_for: str) -> None:
    client = HttpClient()
    with serving(silent) as (server, url), ThreadPoolExecutor(1) as threads:
        scheme = "https:" if waiting_for == "handshake" else "http:"
        asked = threads.submit(get, client, url.replace("http:", scheme), 10 * PATIENCE_S)
        eventually(lambda: server.requests)  # for TLS: the beginning of the handshake
        client.abort()
        with pytest.raises(Aborted):
            asked.result(PATIENCE_S)
        with pytest.raises(Aborted):
            get(client, url)


def test_a_unix_socket_is_reached_by_path(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    with serving(listening=listening) as (server, _url):
        assert get(HttpClient(unix_path=path), "http://agent/thing").body == b"fine"
    assert server.requests[0].startswith(b"GET /thing HTTP/1.1\r\nHost: agent\r\n")


def test_a_refused_address_gets_no_connection() -> None:
    with serving() as (server, url):
        picky = HttpClient(check=lambda address: f"is IPv{address.version}")
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.1, which is IPv4"):
            get(picky, url)
        assert server.connections == 0
        assert get(HttpClient(check=lambda _address: None), url).body == b"fine"


def test_a_checked_address_keeps_the_name_for_tls_and_host(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tls=server_side(certificate)) as (server, url):
        real = socket.getaddrinfo
        asked: list[str] = []

        def lookup(host: str, *args: Any, **options: Any) -> Any:
            asked.append(host)
            return real("127.0.0.1", *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        pinned = HttpClient(tls=Tls(certificate[0]), check=lambda _address: None)
        assert get(pinned, url).body == b"fine"
        assert asked == ["localhost"]
        assert server.names == ["localhost"]
        assert f"Host: {url.split('/')[2]}".encode() in server.requests[0]


def test_an_unknown_certificate_gets_no_request(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    with serving(tls=server_side(certificate)) as (server, url):
        for ca_file, host in (("", "localhost"), (certificate[0], "127.0.0.1")):
            with pytest.raises(TlsFailed, match=r"(?i)certificate") as raised:
                get(HttpClient(tls=Tls(ca_file)), url.replace("localhost", host))
            assert not raised.value.sent
        assert server.requests == []


def test_a_file_of_authorities_is_read_again_when_it_changes(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    client = HttpClient(tls=Tls(str(path)))
    with serving(tls=server_side(certificate)) as (_server, url):
        with pytest.raises(HttpError, match="No such file"):
            get(client, url)
        path.write_text("nothing")
        with pytest.raises(HttpError):
            get(client, url)
        path.write_bytes(Path(certificate[0]).read_bytes())
        assert get(client, url).body == b"fine"


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for spelling in (name, name.upper()):
            monkeypatch.delenv(spelling, raising=False)


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_of_the_environment_is_used_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as (proxy, at):
        monkeypatch.setenv("http_proxy", at.replace("//", "//ann:p%20w@").removesuffix("/thing"))
        url = f"http://127.0.0.1:{free_port()}/thing"
        assert get(HttpClient(environment=True), url).body == b"fine"
        assert proxy.requests[0].startswith(f"GET {url} HTTP/1.1".encode())
        assert b"proxy-authorization: Basic YW5uOnAgdw==" in proxy.requests[0]
        for excepted in ("127.0.0.1", "10.0.0.0/8, 127.0.0.0/16", "*"):
            monkeypatch.setenv("no_proxy", excepted)
            with pytest.raises(HttpError, match="refused"):
                get(HttpClient(environment=True), url)
        monkeypatch.delenv("no_proxy")
        with pytest.raises(HttpError, match="refused"):
            get(HttpClient(), url)
        assert len(proxy.requests) == 1


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_that_refuses_a_tunnel_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as (proxy, at):
        monkeypatch.setenv("https_proxy", at)
        with pytest.raises(HttpError, match="403") as raised:
            get(HttpClient(environment=True), "https://198.51.100.7/thing")
        assert not raised.value.sent
        assert proxy.requests[0].startswith(b"CONNECT 198.51.100.7:443 ")


def test_the_environment_names_the_authorities(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate[0])
    with serving(tls=server_side(certificate)) as (_server, url):
        assert get(HttpClient(environment=True), url).body == b"fine"
        with pytest.raises(TlsFailed):
            get(HttpClient(), url)
