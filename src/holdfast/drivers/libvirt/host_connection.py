# SPDX-License-Identifier: Apache-2.0
"""Connections to the libvirt daemon of a remote host, with deadlines and Holdfast's own errors.

    host.call("domains", lambda conn: conn.listAllDomains(), within_s=3)

Every call has its own thread and connection, without keepalive (`connection.ConnectionPool` says
why), and the caller waits for a limited time. After a host has not answered, further calls to it
fail at once with `Silent` for a while, so that a frozen host costs other callers nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.drivers.libvirt.connection import Call, ConnectionPool, PooledConnection, running
from holdfast.drivers.libvirt.settings import PORT, Host
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: Maximum number of unanswered calls to a host.
MOST_CALLS = 64
#: Seconds that a caller waits for another caller that opens a connection; seconds after which
#: that other attempt no longer blocks the next.
TURN_S, HUNG_S = 3.0, 60.0
#: Seconds without calls after a host did not answer; after its daemon was unreachable.
SILENT_S, AWAY_S = 4.0, 0.5


def failed(message: str, *, retryable: bool = True) -> DriverError:
    return DriverError(PORT, message, retryable=retryable)


class Silent(DriverError):
    """A host does not answer. If `sent` is true, the request may have taken effect all the same."""

    code = "holdfast.driver.silent"
    title = "A host does not answer"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(PORT, message, retryable=True)
        self.sent = sent


class HostEndpoint:
    """Lets a single caller at a time open a connection to the host.

    sshd would refuse many attempts at once, and a frozen daemon should block one caller, not all.
    An attempt that hangs for ever because its host was cut off blocks others for HUNG_S only.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._since = time.monotonic()

    def through(self, do: Callable[[], T]) -> T:
        turn = self._turn
        if not turn.acquire(timeout=TURN_S):
            if time.monotonic() - self._since > HUNG_S:
                self._turn = threading.Lock()
            raise failed("another login waits there")
        try:
            self._since = time.monotonic()
            return do()
        finally:
            turn.release()


class HostConnection:
    """The connections to a host's libvirt daemon."""

    def __init__(self, host: Host) -> None:
        self.name = host.name
        self._uri = host.uri
        self._libvirt = running()
        self._endpoint = HostEndpoint()
        self._pool = ConnectionPool(self._connect, MOST_CALLS)
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self.is_late = False  # the host did not answer the last call in time
        self._why_quiet = ""

    def call(self, call_name: str, do: Callable[[Any], T], within_s: float) -> T:
        """Run `do` on a connection and return the answer.

        Raises Silent if the host is unreachable or late, and NotFound, Conflict or DriverError for
        errors that libvirt reported.
        """
        return self.wait(self.begin(call_name, do), call_name, within_s)

    def begin(self, call_name: str, do: Callable[[Any], T]) -> Call[T]:
        """Start the call without waiting; `wait` waits for the answer."""
        with self._lock:
            if time.monotonic() < self._quiet_until:
                raise Silent(f"{self.name}: {self._why_quiet}", sent=False)
        try:
            return self._pool.begin(
                f"{self.name}-{call_name}", lambda pooled: self._do(call_name, do, pooled)
            )
        except DriverError as busy:
            raise Silent(f"{self.name}: {busy.message}", sent=False) from busy

    def wait(self, call: Call[T], call_name: str, within_s: float) -> T:
        try:
            return call.result(within_s)
        except DriverError as late:
            if call.is_done:
                return call.result(0)
            reason = f"no answer to {call_name} within {within_s:.1f} s"
            self.is_late = True
            raise self._quiet(reason, SILENT_S, sent=True) from late

    def close(self) -> None:
        self._pool.close()

    def _do(self, call_name: str, do: Callable[[Any], T], pooled: PooledConnection) -> T:
        """Run the call on its own thread."""
        try:
            answer = do(pooled.connection)
        except self._libvirt.libvirtError as error:
            raise self._translate(call_name, error, pooled.connection) from error
        with self._lock:  # even a late answer proves that the host answers
            self._quiet_until, self.is_late = 0.0, False
        return answer

    def _connect(self) -> Any:
        """Open a connection on the call's thread. Raises Silent with `sent` false."""
        try:
            return self._endpoint.through(lambda: self._libvirt.open(self._uri))
        except DriverError as waits:
            raise Silent(f"{self.name}: {waits.message}", sent=False) from waits
        except self._libvirt.libvirtError as error:
            raise self._away(" ".join(str(error).split()), sent=False) from error

    def _away(self, reason: str, *, sent: bool) -> Silent:
        """Record that the daemon is unreachable and replace the connection pool.

        Idle connections are dead too, though they do not show it. Without the replacement a daemon
        that is back would be missed once per idle connection.
        """
        with self._lock:
            old, self._pool = self._pool, ConnectionPool(self._connect, MOST_CALLS)
        old.close()
        return self._quiet(f"its libvirt does not answer: {reason}", AWAY_S, sent=sent)

    def _quiet(self, why: str, seconds: float, *, sent: bool) -> Silent:
        with self._lock:
            self._quiet_until, self._why_quiet = time.monotonic() + seconds, why
        return Silent(f"{self.name}: {why}", sent=sent)

    def _translate(self, call_name: str, error: Any, conn: Any) -> HoldfastError:
        code, reason = error.get_error_code(), " ".join(str(error).split())
        message = f"{self.name}: {call_name}: {reason}"
        if not conn.isAlive():
            return self._away(reason, sent=True)
        if code == self._libvirt.VIR_ERR_NO_DOMAIN:
            return NotFound(message)
        if code == self._libvirt.VIR_ERR_OPERATION_INVALID:
            return Conflict(message)
        return failed(message)
