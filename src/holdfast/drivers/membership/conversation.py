# SPDX-License-Identifier: Apache-2.0
"""A few questions to an HTTP agent over one connection, each answered by JSON: until one moment, up
to one size, and ended from another thread if need be.

Why not a library for Consul: py-consul 1.8 cannot ask for health with consistent reads, keeps the
headers to itself that say whether there is a leader, has no bound on the size of an answer nor on
the time of a whole one, cannot end a question that waits, and lets the environment overrule the
token. `requests`, on which it stands, cannot do the last three either.
"""

import http.client
import io
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast.ports.clock import Clock

#: 10,000 members are 4 MB.
LARGEST: Final = 32 * 2**20
_PORTS = {"http": 80, "https": 443}


class Door:
    """Where an agent is asked, and how we show who we are. ValueError for what is no address."""

    def __init__(
        self,
        url: str,
        *,
        token_file: str = "",
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
    ) -> None:
        self.url = url
        self._parts = urlsplit(url)
        self._token_file = token_file
        self._files = (ca_file, cert_file, key_file)
        self._known: tuple[tuple[int, ...], ssl.SSLContext] | None = None
        scheme, parts = self._parts.scheme, self._parts
        if scheme == "unix":
            good = bool(parts.path)
        else:
            good = scheme in _PORTS and bool(parts.hostname) and not parts.username
            _ = parts.port  # ValueError says what is wrong with it
        if not good:
            raise ValueError(f"{url!r} is none of http://…, https://…, unix:///path")

    def headers(self) -> dict[str, str]:
        """With the token, read anew: a new one needs no restart."""
        if not self._token_file:
            return {}
        with open(self._token_file, encoding="ascii") as file:
            token = file.readline(4096).strip()
        if not token.isprintable() or not token:
            raise ValueError(f"{self._token_file} must have a token in its first line")
        return {"X-Consul-Token": token}

    def connect(self, left: Callable[[], float]) -> socket.socket:
        """A line to it, secured if the address says so."""
        line = self._line(left())
        try:
            if self._parts.scheme != "https":
                return line
            line.settimeout(left())
            return self._tls().wrap_socket(line, server_hostname=self._parts.hostname)
        except BaseException:
            line.close()
            raise

    def _line(self, timeout_s: float) -> socket.socket:
        parts = self._parts
        if parts.scheme != "unix":
            port = parts.port or _PORTS[parts.scheme]
            return socket.create_connection((str(parts.hostname), port), timeout_s)
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(timeout_s)
            line.connect(parts.path)
        except BaseException:
            line.close()
            raise
        return line

    def _tls(self) -> ssl.SSLContext:
        """Made anew when a file has changed: certificates are short-lived."""
        ca_file, cert_file, key_file = self._files
        stamp = tuple(os.stat(path).st_mtime_ns for path in self._files if path)
        if self._known is None or self._known[0] != stamp:
            context = ssl.create_default_context(cafile=ca_file or None)
            if cert_file:
                context.load_cert_chain(cert_file, key_file or None)
            self._known = (stamp, context)
        return self._known[1]


@dataclass(frozen=True)
class Answer:
    """With the names of headers in small letters."""

    body: Any
    headers: Mapping[str, str]


class Conversation:
    """Used by one thread; `end` by any. Errors: Unbelievable, with a sentence."""

    def __init__(self, door: Door, clock: Clock, seconds: float) -> None:
        self._door = door
        self._clock = clock
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._ended: Exception | None = None
        self._http = _Http(self)
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Everything that follows must be over after so long."""
        self._until = self._clock.monotonic() + seconds

    def left(self) -> float:
        left = self._until - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError("no whole answer in time")
        return left

    def ask(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """The answer, whose status was 200 and whose body is JSON; `path` is quoted here."""
        try:
            return self._ask(quote(path) + (f"?{urlencode(query)}" if query else ""))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if self._ended is not None:
                raise self._ended from None
            raise Unbelievable(_why(path, error)) from error

    def _ask(self, target: str) -> Answer:
        self._http.request("GET", target, headers=self._door.headers())
        answer = self._http.getresponse()
        body = b"" if (answer.length or 0) > LARGEST else answer.read(LARGEST + 1)
        if len(body) > LARGEST or (answer.length or 0) > LARGEST:
            raise ValueError(f"more than {LARGEST >> 20} MB")
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {_shown(body)}")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(json.loads(body), headers)

    def open(self) -> socket.socket:
        """For the connection alone."""
        line = self._door.connect(self.left)
        with self._lock:
            if self._ended is not None:
                line.close()
                raise ConnectionAbortedError("ended")
            self._line = line
        return line

    def end(self, why: Exception) -> None:
        """Whoever waits for an answer gets this instead."""
        with self._lock:
            self._ended = self._ended or why
            if self._line is not None:
                try:
                    # not of the SSLSocket: that one forgets its state, which another thread uses
                    socket.socket.shutdown(self._line, socket.SHUT_RDWR)
                except OSError:
                    return  # it has ended by itself

    def close(self) -> None:
        with self._lock:
            self._http.close()
            self._line = None


class Unbelievable(Exception):
    """No answer, or none that anybody could believe."""


class _Http(http.client.HTTPConnection):
    """Over a line that keeps to its time."""

    def __init__(self, talk: Conversation) -> None:
        super().__init__("agent")
        self._talk = talk

    def connect(self) -> None:
        # all that http.client asks of a socket
        self.sock: Any = _Line(self._talk.open(), self._talk.left)


class _Line:
    def __init__(self, line: socket.socket, left: Callable[[], float]) -> None:
        self._line = line
        self._left = left

    def sendall(self, data: bytes) -> None:
        self._line.settimeout(self._left())
        self._line.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._line, self._left))

    def close(self) -> None:
        self._line.close()


class _Incoming(io.RawIOBase):
    """What comes in, however slowly: never later than agreed."""

    def __init__(self, line: socket.socket, left: Callable[[], float]) -> None:
        self._line = line
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._line.settimeout(self._left())
        return self._line.recv_into(buffer)


def _why(path: str, error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return f"{path}: its answer is not JSON"
    if isinstance(error, TimeoutError):
        return f"{path}: no whole answer in time"
    return f"{path}: {_shown(str(error).encode()) or type(error).__name__}"


def _shown(body: bytes) -> str:
    """What an outside part said, short and on one line."""
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return "".join(sign if sign.isprintable() else "?" for sign in text)
