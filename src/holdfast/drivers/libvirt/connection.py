# SPDX-License-Identifier: Apache-2.0
"""libvirt calls with a deadline, connections for them, and libvirt's event loop.

A libvirt call may never return. Each call therefore runs on a thread of its own and the caller
waits for a limited time. A late call stays in its thread until libvirt returns. Only a few late
calls exist, because `ConnectionPool` and `Calls` refuse new calls while too many have not returned.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.drivers import PORT
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import Worker, start_call

T = TypeVar("T")


class Call(Generic[T]):
    """A libvirt call on its own thread; the constructor starts the thread.

    `name` describes the call in errors and names the thread.
    """

    def __init__(self, name: str, do: Callable[[], T]) -> None:
        self.name = name
        self._future = start_call(f"libvirt-{name}", lambda: _without_frames(do))

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self, within_s: float) -> T:
        """Wait for the return value.

        Raises DriverError if the call is late, else the call's own exception.
        """
        if not wait([self._future], within_s).done:
            raise failed(f"no answer to {self.name} within {within_s:g} s")
        return self._future.result()


def _without_frames(do: Callable[[], T]) -> T:
    """Call `do`; if `do` raises, release the domain objects that its frames hold.

    Releasing them later on another thread might block this thread for ever.
    """
    try:
        return do()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise


class Opening(Generic[T]):
    """Opens connections to the daemon, at most a single attempt at a time.

    A frozen daemon gets no further attempts; when it thaws it meets the first attempt.
    """

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._call: Call[T] | None = None

    def result(self, within_s: float) -> T:
        """Wait for the connection, as `Call.result`.

        After a late attempt, wait for the same attempt again.
        """
        if self._call is None:
            self._call = Call("open", self._do)
        call = self._call
        try:
            return call.result(within_s)
        finally:
            if call.is_done:
                self._call = None


@dataclass
class PooledConnection:
    """A connection for calls, and the domain objects listed on it; they are valid on it alone."""

    connection: Any = None
    busy: bool = True
    domains: dict[str, Any] = field(default_factory=dict)

    def list(self, flags: int = 0) -> Mapping[str, Any]:
        """List all domains, or the domains that match `flags`, by uuid."""
        domains = self.connection.listAllDomains(flags)
        self.domains = {domain.UUIDString(): domain for domain in domains}
        return self.domains

    def close(self) -> None:
        """Release the domain objects, which keep the connection open, and close.

        Waits for the daemon.
        """
        self.domains = {}
        if self.connection is not None:
            self.connection.close()

    def domain(self, uuid: str) -> Any:
        if uuid not in self.domains:
            self.domains[uuid] = self.connection.lookupByUUIDString(uuid)
        return self.domains[uuid]


class ConnectionPool:
    """A bounded pool of connections to a daemon, each used by a single call at a time.

    The pool is thread-safe. In libvirt before 10.4 a second thread that makes a call on a
    connection, or the event loop that sends a keepalive on it, can crash the whole process when
    the first call's answer arrives (CVE-2024-4418). So these connections have no keepalive, and a
    late call keeps its connection until it returns; the pool has at most `most` connections.
    """

    def __init__(self, connect: Callable[[], Any], most: int) -> None:
        self._connect = connect
        self._most = most
        self._lock = threading.Lock()
        self._connections: list[PooledConnection] = []

    def call(self, name: str, do: Callable[[PooledConnection], T], within_s: float) -> T:
        """Run `do` on a free connection and wait for the result.

        Raises DriverError if the call is late or no connection is free, else what `do` or opening
        raised.
        """
        return self.begin(name, do).result(within_s)

    def begin(self, name: str, do: Callable[[PooledConnection], T]) -> Call[T]:
        pooled = self._free(name)
        return Call(name, lambda: self._run(pooled, do))

    @property
    def hanging(self) -> int:
        return sum(pooled.busy for pooled in self._connections)

    def close(self) -> None:
        """Close idle connections without waiting.

        A busy connection closes when its call returns.
        """
        with self._lock:
            idle = [pooled for pooled in self._connections if not pooled.busy]
            self._connections = [pooled for pooled in self._connections if pooled.busy]
            self._most = 0
        for pooled in idle:
            Call("close", pooled.close)

    def _free(self, name: str) -> PooledConnection:
        with self._lock:
            alive = [
                pooled for pooled in self._connections if pooled.busy or pooled.connection.isAlive()
            ]
            self._connections = alive
            for pooled in alive:
                if not pooled.busy:
                    pooled.busy = True
                    return pooled
            if len(alive) >= self._most:
                raise failed(f"{len(alive)} calls have not come back, {name} has to wait")
            pooled = PooledConnection()
            self._connections.append(pooled)
            return pooled

    def _run(self, pooled: PooledConnection, do: Callable[[PooledConnection], T]) -> T:
        try:
            if pooled.connection is None:
                pooled.connection = self._connect()
            return do(pooled)
        finally:
            with self._lock:
                pooled.busy = False
                over = pooled.connection is None or not self._most
                if over:
                    self._connections.remove(pooled)
            if over:
                pooled.close()


class Calls:
    """Runs at most `most` calls at the same time; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._out: list[Call[object]] = []

    @property
    def is_full(self) -> bool:
        return sum(not call.is_done for call in self._out) >= self._most

    def call(self, name: str, do: Callable[[], T], within_s: float) -> T:
        return self.begin(name, do).result(within_s)

    def begin(self, name: str, do: Callable[[], T]) -> Call[T]:
        with self._lock:
            self._out = [call for call in self._out if not call.is_done]
            if len(self._out) >= self._most:
                raise failed(f"{len(self._out)} calls have not come back, {name} has to wait")
            call = Call(name, do)
            self._out.append(call)  # type: ignore[arg-type]
        return call


def end(connection: Any, callbacks: Sequence[int]) -> None:
    """Deregister all callbacks, which keep the connection open, and close the connection."""
    if connection.isAlive():
        for callback in callbacks:
            connection.domainEventDeregisterAny(callback)
        connection.unregisterCloseCallback()
    connection.close()


def failed(why: str) -> DriverError:
    return DriverError(PORT, why, retryable=True)


# libvirt's event loop. The process has a single loop, on a thread of its own, and never waits
# for it. Callbacks run on this thread, so they do nothing that could take time.


LOG = logging.getLogger(__name__)
_lock = threading.Lock()
_loops: list[Worker] = []  # libvirt has a single loop in a process, so this is global too


def running() -> Any:
    """Start libvirt's event loop if needed and return the libvirt module.

    Call before connecting.
    """
    try:
        import libvirt
    except ImportError as error:
        raise DriverError(
            PORT,
            "libvirt-python is not installed: pip install 'holdfast[libvirt]', or Debian's"
            " python3-libvirt",
            retryable=False,
        ) from error
    with _lock:
        if not _loops:
            libvirt.registerErrorHandler(lambda *_: None, None)  # libvirt prints errors too
            libvirt.virEventRegisterDefaultImpl()
            # Without a timer an idle loop would not wake up for handles that are added later.
            libvirt.virEventAddTimeout(1000, lambda *_: None, None)
            loop = Worker("libvirt-events", SystemClock(), _handle_events)
            loop.make_essential()
            loop.start()
            _loops.append(loop)
    return libvirt


def _handle_events() -> float:
    """Wait for libvirt's next event, at most 1 s, and run its callbacks."""
    import libvirt

    if libvirt.virEventRunDefaultImpl() < 0:
        LOG.error("libvirt's event loop failed once and goes on")
    return 0.0
