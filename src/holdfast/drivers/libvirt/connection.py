# SPDX-License-Identifier: Apache-2.0
"""Calls into libvirt that may never come back: each has a thread and is waited for so long only.

A call that is late goes on in its thread until libvirt lets it go; there are never more than a few
of them, because nothing new is asked while too many have not come back.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.drivers import PORT
from holdfast.model.errors import DriverError

T = TypeVar("T")


class Call(Generic[T]):
    """One call, on its way from the beginning."""

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
        """Its value. DriverError if it is late; what it raised otherwise."""
        if not self._done.wait(within_s):
            raise failed(f"no answer to {self.what} within {within_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _run(self, do: Callable[[], T]) -> None:
        try:
            self._value = do()
        except BaseException as error:  # the top of the thread: who waits gets it
            self._error = error
            # domains that it left behind are let go here: elsewhere that might wait for ever
            traceback.clear_frames(error.__traceback__)
        finally:
            self._done.set()


class Opening(Generic[T]):
    """Of opening a way to the daemon there is one at a time: one that is frozen gets no more, and
    is met by the first when it thaws."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._call: Call[T] | None = None

    def result(self, within_s: float) -> T:
        """As a call's; asked again after it was late, it is the same one that is waited for."""
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
    """A way to the daemon, and what was got by it and is good for it alone: its domains."""

    connection: Any = None
    busy: bool = True
    domains: dict[str, Any] = field(default_factory=dict)

    def list(self, flags: int = 0) -> Mapping[str, Any]:
        """All domains, or those of a kind, by uuid."""
        found = self.connection.listAllDomains(flags)
        self.domains = {one.UUIDString(): one for one in found}
        return self.domains

    def close(self) -> None:
        """With its domains, which would keep it open; waits for the daemon."""
        self.domains = {}
        if self.connection is not None:
            self.connection.close()

    def domain(self, uuid: str) -> Any:
        if uuid not in self.domains:
            self.domains[uuid] = self.connection.lookupByUUIDString(uuid)
        return self.domains[uuid]


class Lines:
    """Ways to one daemon, each for one call at a time; threads may share it.

    In libvirt before 10.4 a second thread that asks something on a connection, or the event loop
    that sends a sign of life there, can bring down the whole process when the first one's answer
    comes (CVE-2024-4418). So lines have no keepalive, and a call that is late keeps its line until
    it comes back; there are never more than a few.
    """

    def __init__(self, connect: Callable[[], Any], most: int) -> None:
        self._connect = connect
        self._most = most
        self._lock = threading.Lock()
        self._lines: list[Line] = []

    def ask(self, what: str, do: Callable[[Line], T], within_s: float) -> T:
        """DriverError if it is late or has to wait; what `do` or opening raised otherwise."""
        return self.begin(what, do).result(within_s)

    def begin(self, what: str, do: Callable[[Line], T]) -> Call[T]:
        line = self._free(what)
        return Call(what, lambda: self._run(line, do))

    @property
    def hanging(self) -> int:
        return sum(line.busy for line in self._lines)

    def close(self) -> None:
        """Those that are not on their way; others go when they come back. None is waited for."""
        with self._lock:
            idle = [line for line in self._lines if not line.busy]
            self._lines = [line for line in self._lines if line.busy]
            self._most = 0
        for line in idle:
            Call("close", line.close)

    def _free(self, what: str) -> Line:
        with self._lock:
            alive = [one for one in self._lines if one.busy or one.connection.isAlive()]
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
    """Several at once; threads may share it."""

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
    """With all that it tells somebody, which would keep it open."""
    if connection.isAlive():
        for ear in ears:
            connection.domainEventDeregisterAny(ear)
        connection.unregisterCloseCallback()
    connection.close()


def failed(why: str) -> DriverError:
    return DriverError(PORT, why, retryable=True)


# libvirt's event loop: one for the whole process, on a thread of its own, and never waited for.
#
# Callbacks run on it, so they do nothing that could take time.


LOG = logging.getLogger(__name__)
_lock = threading.Lock()
_running: list[threading.Thread] = []  # libvirt has one loop in a process, so this is global too


def running() -> Any:
    """libvirt itself, with its loop running: must be asked for before the first connection."""
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
            libvirt.registerErrorHandler(lambda *_: None, None)  # it prints what it raises as well
            libvirt.virEventRegisterDefaultImpl()
            # with nothing to wait for it would sleep through what is added later
            libvirt.virEventAddTimeout(1000, lambda *_: None, None)
            thread = threading.Thread(target=_forever, name="libvirt-events", daemon=True)
            thread.start()
            _running.append(thread)
    return libvirt


def _forever() -> None:
    import libvirt

    while True:
        try:
            if libvirt.virEventRunDefaultImpl() < 0:
                LOG.error("libvirt's event loop failed once and goes on")
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("libvirt's event loop: unforeseen")
