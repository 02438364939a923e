# SPDX-License-Identifier: Apache-2.0
"""Holdfast behind a real nginx and a real HAProxy: noauth is refused, and the TLS of the docs."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast.api import login, tokens
from holdfast.app import service
from holdfast.model.observation import AGENT_HEADER
from tests.api.house import LEASES, OWN, SECRET, House, basic, basic_config, copy, lease_body
from tests.conftest import serve
from tests.processes import PATIENCE_S, free_port
from tests.servers.proxy import HAProxy, Nginx, Proxy

DOCS = Path(__file__).parents[2] / "docs/operate/running.md"
PROXIES: dict[str, type[Proxy]] = {"nginx": Nginx, "haproxy": HAProxy}
NGINX = (
    "server {{ listen 127.0.0.1:PORT; location / {{ {more} proxy_pass http://127.0.0.1:{to}; }} }}"
)
HAPROXY = """
defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
    {more}
listen holdfast
    bind 127.0.0.1:PORT
    server api 127.0.0.1:{to}
"""


@contextlib.contextmanager
def served(house: House) -> Iterator[int]:
    port = free_port()
    server = service.http_server(house.conf, house.app, port)
    server.start()
    try:
        yield port
    finally:
        server.stop()


@pytest.fixture(scope="module")
def open_port(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a Holdfast with noauth."""
    with (
        House(copy(furnished, tmp_path_factory.mktemp("open"))) as house,
        served(house) as port,
    ):
        yield port


@contextlib.contextmanager
def started(proxy: Proxy) -> Iterator[Proxy]:
    with contextlib.contextmanager(serve)(proxy) as running:
        yield running


def status(port: int, path: str, host: str, method: str = "GET") -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(client):
        client.request(method, path, headers={"Host": host})
        return client.getresponse().status


FORWARDED = "proxy_http_version 1.1; proxy_set_header {} 192.0.2.1;"
#: Reverse proxies as people write them, and the Host header of a client from elsewhere.
SEEN = {
    "bare nginx": (Nginx, NGINX, "", "localhost"),
    "nginx of HTTP/1.1": (Nginx, NGINX, FORWARDED.format("X-Forwarded-For"), "localhost"),
    "nginx with X-Real-IP": (Nginx, NGINX, FORWARDED.format("X-Real-IP"), "localhost"),
    "nginx with $host": (
        Nginx, NGINX, "proxy_http_version 1.1; proxy_set_header Host $host;", "cloud.example",
    ),
    "bare HAProxy": (HAProxy, HAPROXY, "", "cloud.example"),
    "HAProxy with forwardfor": (HAProxy, HAPROXY, "option forwardfor", "localhost"),
}  # fmt: skip
#: Nothing tells these from a client of the machine; docs/operate/running.md says so.
UNSEEN = {
    "nginx of HTTP/1.1": (Nginx, NGINX, "proxy_http_version 1.1;", "cloud.example"),
    "bare HAProxy": (HAProxy, HAPROXY, "", "localhost"),
}


@pytest.mark.parametrize("name", SEEN)
def test_noauth_is_refused_behind_a_proxy(open_port: int, name: str) -> None:
    kind, site, more, host = SEEN[name]
    assert status(open_port, LEASES, "localhost") == 200
    with started(kind(site.format(to=open_port, more=more))) as proxy:
        assert status(proxy.port, "/healthcheck", host) == 200
        for method, path in (("GET", LEASES), ("GET", "/"), ("DELETE", f"{LEASES}/x")):
            assert status(proxy.port, path, host, method) == 403


@pytest.mark.parametrize("name", UNSEEN)
def test_a_proxy_that_nothing_tells_from_a_local_client_is_named_in_the_docs(
    open_port: int, name: str
) -> None:
    kind, site, more, host = UNSEEN[name]
    with started(kind(site.format(to=open_port, more=more))) as proxy:
        assert status(proxy.port, LEASES, host) == 200
    page = " ".join(DOCS.read_text().split())
    assert "**cannot** recognize a proxy on the same machine" in page
    assert "`proxy_http_version 1.1`, HAProxy without `option forwardfor`" in page


def example(name: str, to: int, certificate: tuple[str, str], folder: Path) -> str:
    """The configuration in the docs, with the ports and files of the test."""
    (text,) = re.findall(rf"(?ms)^```{name}$(.*?)^```$", DOCS.read_text())
    both = folder / "tls.pem"
    both.write_text("".join(Path(path).read_text() for path in certificate))
    changes = {
        "127.0.0.1:8780": f"127.0.0.1:{to}",
        "443": "PORT",
        "/etc/holdfast/tls.pem": str(both),
        "/etc/holdfast/tls.crt": certificate[0],
        "/etc/holdfast/tls.key": certificate[1],
    }
    for old, new in changes.items():
        text = text.replace(old, new)
    return str(text)


@pytest.mark.parametrize("name", PROXIES)
def test_tls_as_in_the_docs(
    furnished: Path, tmp_path: Path, certificate: tuple[str, str], name: str
) -> None:
    with contextlib.ExitStack() as stack:
        house = stack.enter_context(House(copy(furnished, tmp_path), basic_config(tmp_path)))
        site = example(name, stack.enter_context(served(house)), certificate, tmp_path)
        port = stack.enter_context(started(PROXIES[name](site))).port
        house.conf.set_override("public_url", f"https://localhost:{port}", "api")
        client = Client(port, certificate[0])
        _api_calls(client)
        _console_session(client)


class Client:
    """A client behind the proxy: a connection per request, as different people have."""

    def __init__(self, port: int, authority: str) -> None:
        self.site = f"https://localhost:{port}"
        self._port = port
        self._context = ssl.create_default_context(cafile=authority)

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        client = http.client.HTTPSConnection(
            "localhost", self._port, timeout=PATIENCE_S, context=self._context
        )
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        client.request(method, path, body, {"Connection": "close", **sent})
        return client.getresponse()

    def form(self, path: str, cookies: dict[str, str], **fields: str) -> http.client.HTTPResponse:
        said = {login.FIELD: login.token(cookies), **fields}
        kind = "application/x-www-form-urlencoded"
        return self.ask(
            "POST", path, urlencode(said).encode(), Content_Type=kind, Cookie=cookie(cookies),
            Origin=self.site,
        )  # fmt: skip


def cookie(cookies: dict[str, str]) -> str:
    return "; ".join(f"{name}={value}" for name, value in cookies.items())


def _api_calls(client: Client) -> None:
    member = basic("member")
    answer = client.ask("GET", LEASES, Authorization=member)
    assert answer.status == 200
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert f'"{client.site}/' in client.ask("GET", OWN).read().decode()
    body, kind = json.dumps(lease_body()).encode(), "application/json"
    for origin, wanted in ((client.site, 201), ("https://evil.example", 403)):
        answer = client.ask(
            "POST", LEASES, body, Authorization=member, Content_Type=kind, Origin=origin
        )
        assert answer.status == wanted
    large = json.dumps({"begin": 1, "points": 1, "lines": []}).encode().rjust(11 * 2**20)
    agent = {AGENT_HEADER.replace("-", "_"): tokens.agent_token("cmp-1", SECRET)}
    answer = client.ask("PUT", f"{OWN}/agents/cmp-1/samples", large, Content_Type=kind, **agent)
    assert answer.status == 204


def _console_session(client: Client) -> None:
    """A stream is not held back by the proxy, and ends with the session."""
    answer = client.form("/console/login", {login.COOKIE: "mine"}, user="member", password="member")
    assert answer.status == 303
    said = answer.headers.get_all("Set-Cookie")
    assert all("; Secure" in one for one in said)
    cookies = dict(one.partition(";")[0].split("=", 1) for one in said)
    stream = client.ask("GET", "/console/live", Cookie=cookie(cookies))
    assert stream.status == 200
    assert stream.readline() == b"retry: 3000\n"
    assert client.form("/console/logout", cookies).status == 303
    assert b"event: change" in stream.read()
