# SPDX-License-Identifier: Apache-2.0
"""A server on loopback that is Keystone, Nova and Placement at once and does what it is told: hang,
cut, trickle, refuse. The real ones do that too, but not on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Keystone at /v3, Nova at /v2.1, Placement at /placement; whatever `acts` holds for a request
    comes first."""

    protocol_version = "HTTP/1.1"
    server: Stub

    def respond(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        words = f"{self.command} {self.path}"
        with self.server.lock:
            self.server.seen.append(words)
            act = next((self.server.acts[k] for k in self.server.acts if words.startswith(k)), None)
        (act or Handler.usual)(self)

    do_GET = do_POST = do_PUT = do_DELETE = respond

    def usual(self) -> None:
        root = f"http://127.0.0.1:{self.server.server_port}"
        if self.path.startswith("/v3/auth/tokens"):
            self.say(201, {"token": token(root)}, {"X-Subject-Token": "t"})
        elif self.path in ("/v3", "/v3/"):
            self.say(200, {"version": version("v3.14", root + "/v3")})
        elif self.path in ("/v2.1", "/v2.1/"):
            extra = {"version": "2.80", "min_version": "2.1"}
            self.say(200, {"version": {**version("v2.1", root + "/v2.1"), **extra}})
        elif self.path in ("/placement", "/placement/"):
            extra = {"max_version": "1.39", "min_version": "1.0"}
            found = {**version("v1.0", root + "/placement"), **extra}
            self.say(200, {"versions": [found]})
        else:
            self.say(200, {"fine": True})

    def say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.say_text(status, json.dumps(body), "application/json", headers)

    def say_text(
        self, status: int, text: str, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Stub(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.acts: dict[str, Act] = {}
        self.seen: list[str] = []
        self.released = threading.Event()

    def count(self, words: str) -> int:
        with self.lock:
            return sum(1 for each in self.seen if each.startswith(words))


def token(root: str) -> dict[str, Any]:
    def service(kind: str, url: str) -> dict[str, Any]:
        points = [
            {"interface": each, "region": "R", "region_id": "R", "url": url, "id": each}
            for each in ("public", "internal")
        ]
        return {"type": kind, "name": kind, "id": kind, "endpoints": points}

    return {
        "methods": ["password"],
        "expires_at": "2099-01-01T00:00:00.000000Z",
        "issued_at": "2026-01-01T00:00:00.000000Z",
        "user": {"id": "u", "name": "u", "domain": {"id": "d", "name": "d"}},
        "project": {"id": "p", "name": "p", "domain": {"id": "d", "name": "d"}},
        "roles": [{"id": "r", "name": "admin"}],
        "catalog": [
            service("compute", root + "/v2.1"),
            service("identity", root + "/v3"),
            service("placement", root + "/placement"),
        ],
    }


def version(name: str, url: str) -> dict[str, Any]:
    links = [{"rel": "self", "href": url + "/"}]
    return {"id": name, "status": "CURRENT", "links": links, "updated": "2026-01-01T00:00:00Z"}


# What the server can be told to do


def hang(handler: Handler) -> None:
    handler.server.released.wait(120)
    handler.close_connection = True


def cut(handler: Handler) -> None:
    handler.close_connection = True


def cut_in_the_middle(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"half')
    handler.close_connection = True


def trickle(handler: Handler) -> None:
    """A byte now and then: no single read takes long, and it never ends."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        while not handler.server.released.wait(0.1):
            handler.wfile.write(b"X-More: again\r\n")
    except OSError:
        handler.close_connection = True


def trickle_body(handler: Handler) -> None:
    try:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not handler.server.released.wait(0.1):
            handler.wfile.write(b" ")
    except OSError:
        handler.close_connection = True


def once(first: Act) -> Act:
    """That for the first request, the usual for all others."""
    left = [first]

    def act(handler: Handler) -> None:
        chosen = left.pop() if left else Handler.usual
        chosen(handler)

    return act


def saying(status: int, body: Any) -> Act:
    return lambda handler: handler.say(status, body)
