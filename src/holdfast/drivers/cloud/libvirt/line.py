# SPDX-License-Identifier: Apache-2.0
"""The line to the libvirt of one host: one connection, calls that end in time, errors of our own.

    line.ask("domains", lambda host: host.listAllDomains(), within_s=3)

Every call has a thread of its own, and who asked waits only so long. A host that did not answer is
left alone for a while: who asks for it in the meantime hears at once that it is silent, so that a
frozen one costs others nothing. Keepalive ends what a frozen daemon holds up.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.drivers.cloud.libvirt.settings import PORT, Host
from holdfast.drivers.guests.calls import Call, Calls
from holdfast.drivers.guests.loop import running
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: Calls to one host that may be without an answer.
LANES = 64
#: A host that did not answer is asked again after so long; one whose daemon is away, sooner.
SILENT_S, AWAY_S = 4.0, 0.5
#: Seconds between words when nobody says anything, and how many may be missing.
KEEPALIVE = 5, 3


def failed(message: str, *, retryable: bool = True) -> DriverError:
    return DriverError(PORT, message, retryable=retryable)


class Silent(DriverError):
    """A host that does not answer. What was `sent` to it may have happened all the same."""

    code = "holdfast.driver.silent"
    title = "A host does not answer"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(PORT, message, retryable=True)
        self.sent = sent


class Line:
    def __init__(self, host: Host) -> None:
        self.name = host.name
        self._uri = host.uri
        self._libvirt = running()
        self._calls = Calls(LANES)
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._conn: Any = None
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
            return self._calls.begin(f"{self.name}-{what}", lambda: self._do(what, do))
        except DriverError as busy:
            raise Silent(f"{self.name}: {busy.message}", sent=False) from busy

    def wait(self, call: Call[T], what: str, within_s: float) -> T:
        try:
            return call.result(within_s)
        except DriverError as late:
            if call.is_done:
                return call.result(0)
            said = f"no answer to {what} within {within_s:.1f} s"
            self._drop(self._conn)  # another one is opened beside it
            self.is_late = True
            raise self._quiet(said, SILENT_S, sent=True) from late

    def close(self) -> None:
        conn = self._conn
        self._drop(conn)
        if conn is not None and time.monotonic() >= self._quiet_until:
            Call("close", conn.close)

    def _do(self, what: str, do: Callable[[Any], T]) -> T:
        """On the call's own thread."""
        conn = None
        try:
            conn = self._connected()
            answer = do(conn)
        except self._libvirt.libvirtError as error:
            raise self._translate(what, error, conn) from error
        with self._lock:  # however late: it answers
            self._quiet_until, self.is_late = 0.0, False
        return answer

    def _connected(self) -> Any:
        with self._opening:
            conn = self._conn
            if conn is not None and conn.isAlive():
                return conn
            self._drop(conn)
            conn = self._libvirt.open(self._uri)
            with contextlib.suppress(self._libvirt.libvirtError):  # a driver without a daemon
                conn.setKeepAlive(*KEEPALIVE)
            self._conn = conn
            return conn

    def _drop(self, conn: Any) -> None:
        with self._lock:
            if self._conn is conn:
                self._conn = None

    def _quiet(self, why: str, seconds: float, *, sent: bool) -> Silent:
        with self._lock:
            self._quiet_until, self._why_quiet = time.monotonic() + seconds, why
        return Silent(f"{self.name}: {why}", sent=sent)

    def _translate(self, what: str, error: Any, conn: Any) -> HoldfastError:
        code, said = error.get_error_code(), " ".join(str(error).split())
        message = f"{self.name}: {what}: {said}"
        if conn is None or not conn.isAlive():
            self._drop(conn)
            why = f"its libvirt does not answer: {said}"
            return self._quiet(why, AWAY_S, sent=conn is not None)
        if code == self._libvirt.VIR_ERR_NO_DOMAIN:
            return NotFound(message)
        if code == self._libvirt.VIR_ERR_OPERATION_INVALID:
            return Conflict(message)
        return failed(message)
