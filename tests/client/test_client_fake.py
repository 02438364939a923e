# SPDX-License-Identifier: Apache-2.0
"""A scripted HTTP server and a way to run commands, which the client's tests share."""

import json
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from holdfast.client import dates
from holdfast.cmd import client as program

LEASES = "/reservation/v1/leases"
HOSTS = "/reservation/v1/os-hosts"
REQUEST_ID = "req-7d5f"


class Fake:
    """A server that answers from a script and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[dict[str, Any]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                fake.take(self, self.rfile.read(length))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def says(self, what: str, *answers: tuple[int, Any]) -> None:
        """Script answers to "METHOD /path", in order; the last one stays."""
        self.script[what] = list(answers)

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path, _, query = handler.path.partition("?")
        what = f"{handler.command} {path}"
        said = json.loads(body) if body else None
        self.asked.append({"what": what, "query": query, "body": said, "headers": handler.headers})
        answers = self.script.get(what) or [(404, {"error_message": f"no {what}"})]
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:  # hang up
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("x-openstack-request-id", REQUEST_ID)
        handler.send_header("Content-Length", str(len(text) if status != 204 else 0))
        handler.end_headers()
        if status != 204:
            handler.wfile.write(text)

    def times(self, what: str) -> int:
        return sum(each["what"] == what for each in self.asked)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(90)


def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "OS_", "CLIFF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `holdfast …` at noon (and seven seconds), without ever pausing."""
    noon = datetime(2027, 1, 31, 12, 0, 7, 99, tzinfo=UTC)
    monkeypatch.setattr(dates, "now", lambda: noon)
    monkeypatch.setattr(dates, "sleep", lambda _seconds: None)

    def run(*argv: str) -> Ran:
        code = program.main(argv)
        return Ran(code, *capsys.readouterr())

    return run
