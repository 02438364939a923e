# SPDX-License-Identifier: Apache-2.0
"""libvirt calls with a deadline, connections for them, and libvirt's event loop.

A libvirt call may never return. Each call therefore runs on a thread of its own and the caller
waits for a limited time. A late call stays in its thread until libvirt returns. Only a few late
calls exist, because `Lines` and `Calls` refuse new calls while too many have not returned.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.drivers import PORT
from holdfast.model.errors import DriverError
from holdfast.runtime.threads import Pulse

T = TypeVar("T")


class Call(Generic[T]):
    """A function call on its own thread; the constructor starts the thread."""

    def __init__(self, what: str, do: Callable[[], T]) -> None:
        self.what = what
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        name = f"libvirt-{what}"
        threading.Thread(target=self._run, args=(do,), name=name, daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self, within_s: float) -> T:
        """Wait for the return value.

        Raises DriverError if the call is late, else the call's own exception.
        """
        if not self._done.wait(within_s):
            raise failed(f"no answer to {self.what} within {within_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _run(self, do: Callable[[], T]) -> None:
        try:
            self._value = do()
        except BaseException as error:  # the top of the thread: `result` raises it
            self._error = error
            # Release domain objects held by the frames here: releasing them elsewhere might
            # block for ever.
            traceback.clear_frames(error.__traceback__)
        finally:
            self._done.set()


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
class Line:
    """A connection for calls, and the domain objects listed on it; they are valid on it alone."""

    connection: Any = None
    busy: bool = True
    domains: dict[str, Any] = field(default_factory=dict)

    def list(self, flags: int = 0) -> Mapping[str, Any]:
        """List all domains, or the domains that match `flags`, by uuid."""
        found = self.connection.listAllDomains(flags)
        self.domains = {one.UUIDString(): one for one in found}
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


class Lines:
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
        self._lines: list[Line] = []

    def ask(self, what: str, do: Callable[[Line], T], within_s: float) -> T:
        """Run `do` on a free connection and wait for the result.

        Raises DriverError if the call is late or no connection is free, else what `do` or opening
        raised.
        """
        return self.begin(what, do).result(within_s)

    def begin(self, what: str, do: Callable[[Line], T]) -> Call[T]:
        line = self._free(what)
        return Call(what, lambda: self._run(line, do))

    @property
    def hanging(self) -> int:
        return sum(line.busy for line in self._lines)

    def close(self) -> None:
        """Close idle connections without waiting.

        A busy connection closes when its call returns.
        """
        with self._lock:
            idle = [line for line in self._lines if not line.busy]
            self._lines = [line for line in self._lines if line.busy]
            self._most = 0
        for line in idle:
            Call("close", line.close)

    def _free(self, what: str) -> Line:
        with self._lock:
            alive = [line for line in self._lines if line.busy or line.connection.isAlive()]
            self._lines = alive
            for line in alive:
                if not line.busy:
                    line.busy = True
                    return line
            if len(alive) >= self._most:
                raise failed(f"{len(alive)} calls have not come back, {what} has to wait")
            line = Line()
            self._lines.append(line)
            return line

    def _run(self, line: Line, do: Callable[[Line], T]) -> T:
        try:
            if line.connection is None:
                line.connection = self._connect()
            return do(line)
        finally:
            with self._lock:
                line.busy = False
                over = line.connection is None or not self._most
                if over:
                    self._lines.remove(line)
            if over:
                line.close()


class Calls:
    """Runs at most `most` calls at the same time; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._out: list[Call[object]] = []

    @property
    def is_full(self) -> bool:
        return sum(not call.is_done for call in self._out) >= self._most

    def ask(self, what: str, do: Callable[[], T], within_s: float) -> T:
        return self.begin(what, do).result(within_s)

    def begin(self, what: str, do: Callable[[], T]) -> Call[T]:
        with self._lock:
            self._out = [call for call in self._out if not call.is_done]
            if len(self._out) >= self._most:
                raise failed(f"{len(self._out)} calls have not come back, {what} has to wait")
            call = Call(what, do)
            self._out.append(call)  # type: ignore[arg-type]
        return call


def end(connection: Any, ears: Sequence[int]) -> None:
    """Deregister all callbacks, which keep the connection open, and close the connection."""
    if connection.isAlive():
        for ear in ears:
            connection.domainEventDeregisterAny(ear)
        connection.unregisterCloseCallback()
    connection.close()


def failed(why: str) -> DriverError:
    return DriverError(PORT, why, retryable=True)


# libvirt's event loop. The process has a single loop, on a thread of its own, and never waits
# for it. Callbacks run on this thread, so they do nothing that could take time.


LOG = logging.getLogger(__name__)
_lock = threading.Lock()
_running: list[threading.Thread] = []  # libvirt has one loop in a process, so this is global too


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
        if not _running:
            libvirt.registerErrorHandler(lambda *_: None, None)  # libvirt prints errors too
            libvirt.virEventRegisterDefaultImpl()
            # Without a timer an idle loop would not wake up for handles that are added later.
            libvirt.virEventAddTimeout(1000, lambda *_: None, None)
            thread = threading.Thread(target=_forever, name="libvirt-events", daemon=True)
            thread.start()
            _running.append(thread)
    return libvirt


def _forever() -> None:
    import libvirt

    pulse = Pulse("libvirt-events")
    while True:
        pulse.beat(1.0)
        try:
            if libvirt.virEventRunDefaultImpl() < 0:
                LOG.error("libvirt's event loop failed once and goes on")
        except Exception:  # the top of the thread: the loop must go on
            LOG.exception("libvirt's event loop: unforeseen")
