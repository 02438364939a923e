# SPDX-License-Identifier: Apache-2.0
"""The line to the libvirt of one host: calls that end in time, errors of our own.

    line.ask("domains", lambda host: host.listAllDomains(), within_s=3)

Every call has a thread and a connection of its own, without keepalive: `Lines` says why. Who asked
waits only so long. A host that did not answer is left alone for a while: who asks for it in the
meantime hears at once that it is silent, so that a frozen one costs others nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.drivers.libvirt import connection
from holdfast.drivers.libvirt.connection import Call, Lines, running
from holdfast.drivers.libvirt.settings import PORT, Host
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: Calls to one host that may be without an answer.
LANES = 64
#: So long is waited for the one that opens a connection; after so long it counts for nothing.
TURN_S, HUNG_S = 3.0, 60.0
#: A host that did not answer is asked again after so long; one whose daemon is away, sooner.
SILENT_S, AWAY_S = 4.0, 0.5


def failed(message: str, *, retryable: bool = True) -> DriverError:
    return DriverError(PORT, message, retryable=retryable)


class Silent(DriverError):
    """A host that does not answer. What was `sent` to it may have happened all the same."""

    code = "holdfast.driver.silent"
    title = "A host does not answer"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(PORT, message, retryable=True)
        self.sent = sent


class HostEndpoint:
    """One connection is opened at a time: a crowd at once would be turned away by sshd, and a
    frozen daemon shall keep one caller waiting, not all. One that hangs there for ever, because its
    host was cut off meanwhile, holds the others off for a while only."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._since = time.monotonic()

    def through(self, do: Callable[[], T]) -> T:
        turn = self._turn
        if not turn.acquire(timeout=TURN_S):
            if time.monotonic() - self._since > HUNG_S:
                self._turn = threading.Lock()
            raise failed("somebody else waits there to be let in")
        try:
            self._since = time.monotonic()
            return do()
        finally:
            turn.release()


class Line:
    def __init__(self, host: Host) -> None:
        self.name = host.name
        self._uri = host.uri
        self._libvirt = running()
        self._door = HostEndpoint()
        self._lines = Lines(self._connect, LANES)
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self.is_late = False  # it did not answer the last time
        self._why_quiet = ""

    def ask(self, what: str, do: Callable[[Any], T], within_s: float) -> T:
        """The answer. Silent: nobody is there, or no answer in time. NotFound, Conflict and
        DriverError: what libvirt said."""
        return self.wait(self.begin(what, do), what, within_s)

    def begin(self, what: str, do: Callable[[Any], T]) -> Call[T]:
        """The same, without waiting; `wait` does."""
        with self._lock:
            if time.monotonic() < self._quiet_until:
                raise Silent(f"{self.name}: {self._why_quiet}", sent=False)
        try:
            return self._lines.begin(f"{self.name}-{what}", lambda line: self._do(what, do, line))
        except DriverError as busy:
            raise Silent(f"{self.name}: {busy.message}", sent=False) from busy

    def wait(self, call: Call[T], what: str, within_s: float) -> T:
        try:
            return call.result(within_s)
        except DriverError as late:
            if call.is_done:
                return call.result(0)
            said = f"no answer to {what} within {within_s:.1f} s"
            self.is_late = True
            raise self._quiet(said, SILENT_S, sent=True) from late

    def close(self) -> None:
        self._lines.close()

    def _do(self, what: str, do: Callable[[Any], T], line: connection.Line) -> T:
        """On the call's own thread."""
        try:
            answer = do(line.connection)
        except self._libvirt.libvirtError as error:
            raise self._translate(what, error, line.connection) from error
        with self._lock:  # however late: it answers
            self._quiet_until, self.is_late = 0.0, False
        return answer

    def _connect(self) -> Any:
        """On the call's own thread too. Silent: nothing was sent."""
        try:
            return self._door.through(lambda: self._libvirt.open(self._uri))
        except DriverError as waits:
            raise Silent(f"{self.name}: {waits.message}", sent=False) from waits
        except self._libvirt.libvirtError as error:
            raise self._away(" ".join(str(error).split()), sent=False) from error

    def _away(self, said: str, *, sent: bool) -> Silent:
        """Nobody is there. Connections that rest are over as well, though they do not show it: a
        daemon that is back is not to be missed once for each."""
        with self._lock:
            old, self._lines = self._lines, Lines(self._connect, LANES)
        old.close()
        return self._quiet(f"its libvirt does not answer: {said}", AWAY_S, sent=sent)

    def _quiet(self, why: str, seconds: float, *, sent: bool) -> Silent:
        with self._lock:
            self._quiet_until, self._why_quiet = time.monotonic() + seconds, why
        return Silent(f"{self.name}: {why}", sent=sent)

    def _translate(self, what: str, error: Any, conn: Any) -> HoldfastError:
        code, said = error.get_error_code(), " ".join(str(error).split())
        message = f"{self.name}: {what}: {said}"
        if not conn.isAlive():
            return self._away(said, sent=True)
        if code == self._libvirt.VIR_ERR_NO_DOMAIN:
            return NotFound(message)
        if code == self._libvirt.VIR_ERR_OPERATION_INVALID:
            return Conflict(message)
        return failed(message)
