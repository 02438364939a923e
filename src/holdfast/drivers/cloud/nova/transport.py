# SPDX-License-Identifier: Apache-2.0
"""HTTP that ends in time: every request of a call gets what is left of the call's time, no more.

The timeout of an HTTP library bounds each single read. A server that sends one byte now and then
would keep a call for ever, and a claim that was to outlast the call would run out under it. So a
watchman cuts the connection of whoever is out of time.

What no deadline covers is the system's resolver: name servers that do not answer hold a call for as
long as `/etc/resolv.conf` lets them.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

#: Seconds; also what a socket operation gets at least, since zero would mean "do not block".
SHORTEST = 0.001


class Patience(threading.local):
    """How long the thread's present call may still take."""

    def __init__(self, usual_s: float) -> None:
        self._usual_s = usual_s
        self._until: float | None = None

    def begin(self) -> None:
        self._until = time.monotonic() + self._usual_s

    def end(self) -> None:
        self._until = None

    @property
    def until(self) -> float:
        return time.monotonic() + self._usual_s if self._until is None else self._until

    def left(self) -> float:
        return self.until - time.monotonic()


@dataclass
class Post:
    """A request that is watched over. One that was cut can look like a short answer."""

    deadline: float
    sock: socket.socket | None = None
    cut: bool = False


class Watchman:
    """One thread that shuts the sockets of requests whose time is up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._posts: dict[int, Post] = {}  # by thread
        self._thread: threading.Thread | None = None
        self._stopped = False

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[Post]:
        """Watch over the request that this thread makes in the block."""
        me = threading.get_ident()
        with self._changed:
            post = self._posts[me] = Post(deadline)
            self._start()
        try:
            yield post
        finally:
            with self._changed:
                del self._posts[me]

    def take(self, sock: socket.socket | None) -> None:
        """The socket on which this thread's request has just been sent."""
        me = threading.get_ident()
        with self._changed:
            if me in self._posts:
                self._posts[me].sock = sock
                self._changed.notify()

    def overdue(self) -> bool:
        """Whether this thread's request is out of time."""
        with self._changed:
            post = self._posts.get(threading.get_ident())
        return post is not None and time.monotonic() >= post.deadline

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                self._changed.wait(self._cut_and_next())

    def _cut_and_next(self) -> float | None:
        """Shut what is overdue; seconds until the next one, if any waits."""
        now = time.monotonic()
        ahead: list[float] = []
        for post in self._posts.values():
            if post.sock is None or post.cut:
                continue
            if post.deadline > now:
                ahead.append(post.deadline - now)
                continue
            post.cut = True
            with contextlib.suppress(OSError):  # closed by the other side meanwhile
                post.sock.shutdown(socket.SHUT_RDWR)
        return min(ahead, default=None)


class Transport(HTTPAdapter):
    """For all requests of one connection to a cloud, by many threads at once."""

    def __init__(self, patience: Patience, watchman: Watchman, *, connections: int) -> None:
        self._patience = patience
        self._watchman = watchman
        super().__init__(pool_connections=32, pool_maxsize=connections, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _watched(HTTPConnectionPool, self._watchman),
            "https": _watched(HTTPSConnectionPool, self._watchman),
        }

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """One request and its whole answer, within the time of the thread's call.

        Sent a second time, once, if the connection was lost and that can do no harm.
        """
        try:
            return self._send(request, *args, **kwargs)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as lost:
            if isinstance(lost, requests.Timeout) or self._patience.left() <= 0:
                raise
            if not _harmless(request, lost):
                raise
        return self._send(request, *args, **kwargs)

    def _send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        deadline = self._patience.until
        left = deadline - time.monotonic()
        if left <= 0:
            raise requests.Timeout(f"no time left for {request.method} {request.url}")
        given = {**kwargs, "stream": True, "timeout": max(left, SHORTEST)}
        with self._watchman.until(deadline) as post:
            try:
                response = super().send(request, *args, **given)
                _ = response.content  # read here, while somebody watches the time
            except requests.RequestException as error:
                if time.monotonic() >= deadline:  # however it looked, that is why it ended
                    raise requests.Timeout(str(error), request=request) from error
                raise
        if post.cut:
            raise requests.Timeout(f"{request.method} {request.url}: half an answer in that time")
        return response


def _harmless(request: requests.PreparedRequest, lost: requests.RequestException) -> bool:
    """Whether a request may be sent again after the connection was lost: it reads only, it asks
    for a token, or it never left."""
    if request.method in ("GET", "HEAD"):
        return True
    if request.method == "POST" and (request.url or "").endswith("/auth/tokens"):
        return True
    reason = getattr(lost.args[0], "reason", None) if lost.args else None
    return isinstance(reason, NewConnectionError)


def _watched(pool: type[HTTPConnectionPool], watchman: Watchman) -> type[HTTPConnectionPool]:
    """The same kind of connection pool; each of its connections shows the watchman its socket.

    A name may have several addresses, and each is given the whole time: a connection that was made
    too late sends nothing.
    """
    usual: Any = pool.ConnectionCls

    def connect(self: Any) -> None:
        usual.connect(self)
        if watchman.overdue():
            self.close()
            raise ConnectTimeoutError(self, f"connected to {self.host} too late")

    def getresponse(self: Any) -> Any:
        watchman.take(self.sock)
        return usual.getresponse(self)

    own = {"connect": connect, "getresponse": getresponse}
    connection = type("Watched" + usual.__name__, (usual,), own)
    return type("Watched" + pool.__name__, (pool,), {"ConnectionCls": connection})
