# SPDX-License-Identifier: Apache-2.0
"""An agent that answers whatever it was told to, byte for byte."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

HEADERS = {"X-Consul-Index": "7", "X-Consul-Knownleader": "true", "X-Consul-Lastcontact": "0"}
STATE, NODE = "/v1/health/state/any", "/v1/health/node/"
MEMBERS, LEADER, SELF = "/v1/agent/members", "/v1/status/leader", "/v1/agent/self"
#: Sent as it is, or given the connection to do with what it likes.
Raw = bytes | Callable[[socket.socket], None]


def check(node: str, status: str = "passing") -> dict[str, Any]:
    """As Consul 1.8 writes it."""
    return {
        "Node": node,
        "CheckID": "serfHealth",
        "Name": "Serf Health Status",
        "Status": status,
        "Notes": "",
        "Output": "Agent alive and reachable",
        "ServiceID": "",
        "ServiceName": "",
        "ServiceTags": [],
        "Type": "",
        "Definition": {},
        "CreateIndex": 10,
        "ModifyIndex": 10,
    }


def member(name: str, status: int = 1, role: str = "node") -> dict[str, Any]:
    """As Consul 1.8 writes it."""
    tags = {"acls": "0", "build": "1.8.7:", "dc": "storage", "role": role, "segment": ""}
    tags |= {"id": "865306dc-0ab2-5684-9a6e-60fb2f818ff3", "vsn": "2", "vsn_min": "2"}
    numbers = {"ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2, "DelegateMin": 2}
    return {
        "Name": name,
        "Addr": "10.1.0.1",
        "Port": 8301,
        "Tags": tags,
        "Status": status,
    } | numbers


def answer(
    body: object, headers: Mapping[str, str] = HEADERS, status: str = "200 OK", length: int = -1
) -> bytes:
    """A whole answer; `body` is sent as it is if it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {**headers, "Content-Length": str(length if length >= 0 else len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + data


def drip(data: bytes, every: float = 0.2) -> Callable[[socket.socket], None]:
    """Byte by byte, for ever slow."""

    def send(line: socket.socket) -> None:
        for byte in data:
            line.sendall(bytes([byte]))
            time.sleep(every)

    return send


class Liar:
    """What it answers by path; `asked` are the questions, with their queries."""

    def __init__(self) -> None:
        """Well-behaved at first: k1, two servers more, one compute."""
        servers = [member(name, role="consul") for name in ("k1", "k2", "k3")]
        self.answers: dict[str, Raw] = {
            SELF: answer({"Config": {}, "Member": member("k1", role="consul")}),
            LEADER: answer("10.1.0.1:8300"),
            MEMBERS: answer([*servers, member("h1")]),
            STATE: answer([check(name) for name in ("k1", "k2", "k3", "h1")]),
            NODE: answer([check("k1")]),
        }
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as questions:
            try:
                while first := questions.readline().decode():
                    while questions.readline().strip():
                        continue
                    target = first.split()[1]
                    self.asked.append(target)
                    found = next(p for p in self.answers if target.startswith(p))
                    given = self.answers[found]
                    if isinstance(given, bytes):
                        line.sendall(given)
                    else:
                        given(line)
            except OSError:
                return  # whoever asked has gone

    def close(self) -> None:
        """No more questions."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def liar() -> Iterator[Liar]:
    """One for a while."""
    made = Liar()
    try:
        yield made
    finally:
        made.close()
