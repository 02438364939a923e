# SPDX-License-Identifier: Apache-2.0
"""The embedded HTTP server: waitress, with limits on connections, time and memory.

A single thread reads headers and bodies and hands complete requests to worker threads. Slow and
idle connections hold a socket and no worker. This module adds to waitress:

- a deadline for a whole request, headers and body, and for a client that reads no answer, both by
  the monotonic clock;
- an answer with Retry-After waits for a second, because floods of requests ignore this header;
- a share of all connections per client address: a new connection beyond the share closes the
  oldest waiting connection of the same address;
- a body limit that depends on whether the request carries credentials, applied before the body or
  an announced chunk arrives; at most `MEMORY_BYTES` of a body are in memory, a larger body is in a
  temporary file; all these files together have at most `BODY_FILE_BYTES`;
- 400 for requests that two servers could understand differently (request smuggling);
- an accept loop that sheds connections while the process has no file descriptor left.
"""

import contextlib
import ctypes
import errno
import json
import logging
import os
import random
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import BadRequest, Error, RequestEntityTooLarge

from holdfast.app.daemon import BadSetup
from holdfast.model.observation import AGENT_HEADER
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)
#: Seconds in which a request, headers and body, must arrive.
REQUEST_S: Final = 30.0
#: Seconds after which the server closes an idle keep-alive connection.
IDLE_S: Final = 30
#: Seconds after which the server closes the connection of a client that reads nothing.
UNREAD_S: Final = 30.0
#: Seconds that running requests have to end after `stop`.
STOP_S: Final = 5.0
#: Seconds that an answer with Retry-After waits: a client that ignores it sends no more meanwhile.
#: The times differ, so that the connections of a flood do not come back together.
HELD_S: Final = (0.5, 1.5)
#: Longest turn of the server's loop, and the longest while an answer waits.
TURN_S: Final = 0.5
HELD_TURN_S: Final = 0.02
#: Seconds in which the server drops data of a client whose request it has refused.
LINGER_S: Final = 2.0
#: Bytes of a body that the server keeps in memory.
MEMORY_BYTES: Final = 114_688
#: glibc maps larger blocks of memory one by one; malloc.h has the number of the parameter.
MAPPED_BYTES: Final = 2**20
M_MMAP_THRESHOLD: Final = -3
#: Bytes of all larger bodies together, in temporary files. One address has at most half of them.
BODY_FILE_BYTES: Final = 256 * 2**20
#: Bytes of an answer that the server keeps in memory: more than any answer of the API has.
ANSWER_BYTES: Final = 256 * 2**20
HEADER_BYTES: Final = 64 * 1024
#: Bytes of a chunk's size with its extensions, and of the fields after the last chunk.
CHUNK_LINE_BYTES: Final = 4096
#: Connections, if the process may open enough files.
CONNECTIONS: Final = 1000
#: File descriptors for everything but connections: databases, logs, calls to the cloud.
RESERVED_FILES: Final = 200
#: Pause of the accept loop without file descriptors.
REST_S: Final = 0.1
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CREDENTIALS: Final = (
    *("AUTHORIZATION", "X_AUTH_TOKEN", "COOKIE"),
    AGENT_HEADER.upper().replace("-", "_"),
)

#: The largest body in bytes; the argument says whether the request carries credentials.
BodyLimit = Callable[[bool], int]


class _Unavailable(Error):  # type: ignore[misc]
    code = 503
    reason = "Service Unavailable"


class _BodyFiles:
    """Counts the bytes of bodies in temporary files, by client address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    def take(self, address: str, more: int) -> bool:
        """Count more bytes; False if all bodies, or those of the address, have too many."""
        with self._lock:
            own, total = self._held[address] + more, self._held.total() + more
            if own > BODY_FILE_BYTES // 2 or total > BODY_FILE_BYTES:
                return False
            self._held[address] = own
            return True

    def give_back(self, address: str, count: int) -> None:
        with self._lock:
            self._held[address] -= count
            if not self._held[address]:
                del self._held[address]


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """Parses a request; refuses ambiguous requests and bodies beyond the limits."""

    on_disk = 0

    def __init__(self, adj: Adjustments, address: str) -> None:
        super().__init__(adj)
        self._address = address

    @property
    def blank(self) -> bool:
        """Whether nothing but blank lines arrived: clients may send these between requests."""
        return self.body_rcv is None and (not self.header_plus or self.header_plus.isspace())

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        self._check_framing(header_plus)
        limit: BodyLimit = self.adj.body_limit
        self.most = limit(any(name in self.headers for name in _CREDENTIALS))
        if self.content_length > self.most:
            self._refuse_size()

    def _check_framing(self, header_plus: bytes) -> None:
        """Raise ParsingError if another server could find another end or host of the request."""
        lines = header_plus.split(b"\r\n")[1:]
        names = [line.partition(b":")[0].lower() for line in lines]
        if any(line[:1].isspace() for line in lines):
            raise ParsingError("a header is folded over several lines")
        if names.count(b"host") != 1 and (self.version == "1.1" or b"host" in names):
            raise ParsingError("there must be one Host header")
        if b"transfer-encoding" not in names:
            return
        if b"content-length" in names:
            raise ParsingError("Content-Length and Transfer-Encoding together")
        if not self.chunked or names.count(b"transfer-encoding") > 1:
            raise ParsingError("Transfer-Encoding is not a single `chunked` of HTTP/1.1")

    def received(self, data: bytes) -> int:
        try:
            consumed: int = super().received(data)
        except OSError as error:  # the disk of the temporary file is full
            LOG.error("a request body cannot be stored: %s", error)
            self.refuse(_Unavailable("the body cannot be stored, try again"))
            return len(data)
        if self.body_rcv is not None and self.error is None:
            self._check_body()
        if self.completed:  # the channel would send `100 Continue` and read on
            self.expect_continue = False
        return consumed

    def _check_body(self) -> None:
        size, body = len(self.body_rcv), self.body_rcv
        if self.chunked and size + body.chunk_remainder > self.most:
            self._refuse_size()
        elif self.chunked and len(body.control_line) + len(body.trailer) > CHUNK_LINE_BYTES:
            self.refuse(BadRequest(f"a chunk line has more than {CHUNK_LINE_BYTES} bytes"))
        elif size > max(MEMORY_BYTES, self.on_disk):
            if not self.adj.body_files.take(self._address, size - self.on_disk):
                self.refuse(_Unavailable("other large bodies are arriving just now, try again"))
            else:
                self.on_disk = size

    def _refuse_size(self) -> None:
        self.refuse(RequestEntityTooLarge(f"at most {self.most} bytes are taken"))

    def refuse(self, error: Error) -> None:
        self.error = error
        self.completed = True

    def close(self) -> None:
        """Drop the body; a second call does nothing."""
        on_disk, self.on_disk = self.on_disk, 0
        if on_disk:
            self.adj.body_files.give_back(self._address, on_disk)
        with contextlib.suppress(OSError):  # closing writes what a full disk did not take
            super().close()


class _Task(WSGITask):  # type: ignore[misc]
    def set_close_on_finish(self) -> None:
        """Keep the connection after an answer without a body: such an answer needs no length."""
        asked = self.request.headers.get("CONNECTION", "").lower() == "close"
        if self.has_body or asked or self.version == "1.0":
            super().set_close_on_finish()

    def build_response_header(self) -> Any:
        if any(name.lower() == "retry-after" for name, _ in self.response_headers):
            until = time.monotonic() + random.uniform(*HELD_S)
            self.channel.held_until = until
            self.channel.server.held_until = max(until, self.channel.server.held_until)
            if len(self.channel.requests) > 1:  # pipelined requests would not wait
                super().set_close_on_finish()
        return super().build_response_header()


class _ErrorTask(ErrorTask):  # type: ignore[misc]
    """Answers a refused request with JSON, as the API does."""

    def execute(self) -> None:
        error = self.request.error
        self.status = f"{error.code} {error.reason}"
        body = {
            "error_code": error.code,
            "error_name": error.code,
            "error_message": f"{error.reason}: {error.body}",
        }
        data = json.dumps(body).encode()
        self.response_headers += [("Content-Type", "application/json"), ("Connection", "close")]
        self.response_headers += [("X-Content-Type-Options", "nosniff")]
        if error.code == _Unavailable.code:
            self.response_headers.append(("Retry-After", "5"))
        self.close_on_finish = self.complete = self.channel.refused = True
        self.content_length = len(data)
        self.write(data)


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection.

    After a refusal the client may still be sending. Closing the socket then would reset the
    connection and could lose the answer, so the channel reads and drops data for LINGER_S.
    """

    task_class = _Task
    error_task_class = _ErrorTask
    request: Any = None
    #: Monotonic time of the first byte of an incomplete request.
    began: float | None = None
    #: Monotonic time since when the client has read nothing of an answer.
    unread_since: float | None = None
    #: Monotonic time before which no answer is sent.
    held_until = 0.0
    refused = False
    linger_until: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the connection has no complete request and no answer to send."""
        return not self.requests and not self.total_outbufs_len

    @property
    def last_activity(self) -> float:
        """Monotonic time at which the last byte was received or sent."""
        return self._last_activity

    @last_activity.setter
    def last_activity(self, _now: float) -> None:
        """Note the monotonic time: waitress sets the time of day, which an operator may change."""
        self._last_activity = time.monotonic()

    def parser_class(self, adj: Adjustments) -> _Parser:
        return _Parser(adj, self.addr[0])

    def received(self, data: bytes) -> bool:
        before = self.request
        taken: bool = super().received(data)
        if self.request is None or self.request.blank:
            self.began = None
        elif self.request is not before or self.began is None:
            self.began = time.monotonic()
        return taken

    def readable(self) -> bool:
        return self.linger_until is not None or bool(super().readable())

    def writable(self) -> bool:
        return self.linger_until is None and not self._is_held() and bool(super().writable())

    def _flush_some(self, do_close: bool = True) -> bool:
        return not self._is_held() and bool(super()._flush_some(do_close))

    def _is_held(self) -> bool:
        return time.monotonic() < self.held_until

    def handle_read(self) -> None:
        if self.linger_until is not None:
            self.recv(self.adj.recv_bytes)  # closes the channel at the end of the stream
        elif self._ended_within_request():
            self._refuse_partial()
        else:
            super().handle_read()

    def _ended_within_request(self) -> bool:
        if self.request is None or self.request.blank:
            return False
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return False

    def _refuse_partial(self) -> None:
        """Answer 400: a client that sends no more may still read."""
        with self.requests_lock:
            request, self.request, self.began = self.request, None, None
            request.refuse(BadRequest("the connection ended within the request"))
            self.requests.append(request)
        self.server.add_task(self)

    def handle_expt(self) -> None:
        """Close the connection: TCP urgent data, which no client of HTTP sends, stays readable."""
        self.handle_close()

    def handle_close(self) -> None:
        if not self.refused or self.linger_until is not None:
            if self.request is not None:
                self.request.close()
            super().handle_close()
            return
        self.linger_until = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def check_time(self, now: float) -> None:
        """Close the connection of a client that is too slow to send a request or read an answer."""
        if self.linger_until is not None:
            if self.linger_until < now:
                self.handle_close()
        elif self.waits:
            self.unread_since = None
            if self.began is not None and self.began < now - REQUEST_S:
                self._time_out()
        else:
            if self.began is not None:  # the server reads the next request after this answer
                self.began = now
            self._check_reader(now)

    def _time_out(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
        self.handle_close()

    def _check_reader(self, now: float) -> None:
        if not self.total_outbufs_len:
            self.unread_since = None
        elif self.unread_since is None or self.unread_since < self.last_activity:
            self.unread_since = now
        elif self.unread_since < now - UNREAD_S:
            self.handle_close()


class _Listener(TcpWSGIServer):  # type: ignore[misc]
    """Accepts connections within the limits; see the module docstring."""

    channel_class = _Channel
    accept_after = next_check = held_until = 0.0
    last_complaint = float("-inf")

    def __init__(self, *args: Any, **options: Any) -> None:
        self.spare: int | None = os.open(os.devnull, os.O_RDONLY)
        super().__init__(*args, **options)

    def bind_server_socket(self) -> None:
        """Bind; the address `::` takes IPv4 connections too."""
        if self.family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().bind_server_socket()

    def readable(self) -> bool:
        """Return whether to accept; check the channels once a second.

        The method of waitress does so by the time of day: a clock that is set back stops it.
        """
        now = time.monotonic()
        if now >= self.next_check:
            self.next_check = now + 1.0
            self.maintenance(now)
        return self.accepting and now >= self.accept_after

    def handle_accept(self) -> None:
        try:
            accepted = self.accept()
        except OSError as error:
            if error.errno in _NO_FILES:
                self._shed()
            return
        if accepted is None:
            return
        connection, address = accepted
        address = (address[0].removeprefix("::ffff:"), *address[1:])  # IPv4 on an IPv6 socket
        if not self._has_room(address[0]):
            connection.close()
            return
        try:
            self.set_socket_options(connection)
            self.channel_class(self, connection, address, self.adj, map=self._map)
        except OSError:  # the client has gone already
            connection.close()

    def _has_room(self, address: str) -> bool:
        """Return whether a connection may join; close the oldest waiting one if none is free."""
        channels = list(self.active_channels.values())
        own = [channel for channel in channels if channel.addr[0] == address]
        limit: int = self.adj.connections
        if len(own) >= limit // 2:
            return self._close_oldest(own)
        return len(channels) < limit or self._close_oldest(channels)

    def _close_oldest(self, channels: Sequence[_Channel]) -> bool:
        waiting = [channel for channel in channels if channel.waits]
        if not waiting:
            return False
        min(waiting, key=lambda channel: channel.last_activity).handle_close()
        return True

    def _shed(self) -> None:
        """Close the next connection with the help of the spare descriptor, and rest a moment."""
        if self.spare is not None:
            os.close(self.spare)
            self.spare = None
        with contextlib.suppress(OSError):
            self.socket.accept()[0].close()
        with contextlib.suppress(OSError):  # another thread may have been faster
            self.spare = os.open(os.devnull, os.O_RDONLY)
        now = time.monotonic()
        self.accept_after = now + REST_S
        if now - self.last_complaint >= 1.0:
            self.last_complaint = now
            LOG.error("no file descriptor is left: connections are refused; raise LimitNOFILE")

    def maintenance(self, now: float) -> None:
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            channel.check_time(now)


class Server:
    """The HTTP server of an application: `bind`, `start`, `stop`."""

    def __init__(
        self, host: str, port: int, application: Any, threads: int, body_limit: BodyLimit
    ) -> None:
        self._address = f"{host}:{port}"
        self._application = application
        self._adjustments = _adjustments(host, port, threads)
        self._adjustments.body_limit = body_limit
        self._listener: _Listener | None = None
        self._worker = Worker("http", SystemClock(), self._poll)

    def bind(self) -> None:
        """Bind the address before any other part starts; BadSetup if the bind fails."""
        if self._listener is not None:
            return
        try:
            self._listener = _Listener(self._application, adj=self._adjustments)
        except OSError as error:
            why = "it is in use" if error.errno == errno.EADDRINUSE else str(error)
            raise BadSetup(
                f"cannot listen on {self._address}: {why}; stop the other program or choose"
                " another port"
            ) from error

    def start(self) -> None:
        self.bind()
        _return_memory()
        self._worker.start()

    def stop(self) -> None:
        """Accept nothing more, let running requests end within STOP_S, close all connections."""
        if self._listener is None:
            return
        self._listener.pull_trigger()
        self._worker.stop()
        self._listener.accepting = False
        until = time.monotonic() + STOP_S
        while self._busy() and time.monotonic() < until:
            self._poll(0.1)
        self._listener.task_dispatcher.shutdown(timeout=0.1)
        wasyncore.close_all(self._listener._map, ignore_all=True)
        self._listener = None

    def _poll(self, longest_s: float = TURN_S) -> float:
        """Read, write and accept once; return the pause until the next turn: none."""
        assert self._listener is not None
        if time.monotonic() < self._listener.held_until + longest_s:
            longest_s = HELD_TURN_S
        wasyncore.loop(longest_s, use_poll=True, map=self._listener._map, count=1)
        return 0.0

    def _busy(self) -> bool:
        assert self._listener is not None
        return any(not channel.waits for channel in self._listener.active_channels.values())


def _return_memory() -> None:
    """Make glibc return the memory of large bodies to the system, not to the heap of a thread."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def _connections() -> int:
    """Return the number of connections for which the process may open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + RESERVED_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(50, min(CONNECTIONS, soft - RESERVED_FILES))


def _adjustments(host: str, port: int, threads: int) -> Adjustments:
    try:
        made = Adjustments(
            host=host,
            port=port,
            threads=threads,
            ident="holdfast",
            connection_limit=10**6,  # `_Listener` has limits of its own
            channel_timeout=IDLE_S,
            asyncore_use_poll=True,
            backlog=128,
            inbuf_overflow=MEMORY_BYTES,
            outbuf_overflow=ANSWER_BYTES,
            max_request_header_size=HEADER_BYTES,
            clear_untrusted_proxy_headers=False,  # `api.auth` looks for them
        )
    except ValueError as error:  # the host name has no address
        raise BadSetup(f"cannot listen on {host}:{port}: {error}") from error
    made.connections = _connections()
    made.body_files = _BodyFiles()
    return made
