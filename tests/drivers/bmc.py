# SPDX-License-Identifier: Apache-2.0
"""BMCs that misbehave, each a small server on loopback; and who looks over an agent's shoulder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import requests
from tests.servers.redfish import Redfish

USER, PASSWORD = "admin", "canary-7Qx2vLm9"


@dataclass
class Proxy:
    """In front of a real one. `lies`: orders are taken and not passed on."""

    behind: Redfish
    lies: bool = False
    held: threading.Event | None = None  # no system is shown before that
    shown: int = 0  # systems, so often
    port: int = 0
    got: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Proxy]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.got.append(f"GET {self.path}")
                if "/Systems/" in self.path and proxy.held is not None:
                    proxy.held.wait(600)
                answer = requests.get(
                    proxy.behind.url + self.path,
                    headers={"Authorization": self.headers["Authorization"]},
                    verify=proxy.behind.certificate,
                    timeout=90,
                )
                self._reply(answer.status_code, answer.content)
                proxy.shown += "/Systems/" in self.path

            def do_POST(self) -> None:
                proxy.got.append(f"POST {self.path}")
                assert proxy.lies, "this one is for liars"
                self._reply(204, b"")

            def _reply(self, status: int, body: bytes) -> None:
                with contextlib.suppress(OSError):  # who asked may have gone
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        with serving(Handler, self.behind) as self.port:
            yield self


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: Redfish | None) -> Iterator[int]:
    """A web server on loopback, by TLS with the emulator's certificate; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, Path(tls.certificate).with_name("key.pem"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def elsewhere() -> Iterator[tuple[int, list[str]]]:
    """Somebody who has no business with us: the port, and all that came."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with serving(Handler, None) as port:
        yield port, came


@contextlib.contextmanager
def saying(status: int, headers: dict[str, str], body: Any) -> Iterator[int]:
    """A BMC by plain HTTP that answers everything the same way; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            text = json.dumps(body).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with serving(Handler, None) as port:
        yield port


@contextlib.contextmanager
def silent(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[int]:
    """A port that takes what comes, and never answers."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        yield taken.getsockname()[1]


@dataclass
class Watcher:
    """Looks at command lines and environments of all below this process, all the time."""

    seen: set[bytes] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def looking(self) -> Iterator[Watcher]:
        over = threading.Event()

        def look() -> None:
            me = psutil.Process(os.getpid())
            while not over.wait(0.005):  # those that it looks for need the processor, too
                for child in me.children(recursive=True):
                    self._one(child.pid)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _one(self, pid: int) -> None:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/{name}").read_bytes()
                self.seen.add(text)
                if name == "cmdline":
                    words = text.split(b"\0")[:3]
                    self.programs |= {os.path.basename(word).decode() for word in words if word}
