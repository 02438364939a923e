# SPDX-License-Identifier: Apache-2.0
"""One POST to an address of the configuration, in bounded time: what the sinks that speak HTTP
have in common.

    mailbox = Mailbox("https://portal.example/hook", Ways("webhook", timeout_s=5.0))
    mailbox.post(b"{}", {})  # DriverError, retryable when a later try may succeed
"""

import contextlib
import hashlib
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import holdfast
from holdfast.drivers.sinks.bounded import Bounded
from holdfast.drivers.sinks.pinned import PinnedConnection, Refused, resolve
from holdfast.model.errors import DriverError

MOST_SENDS = 16
#: Client errors that say "not now" rather than "never".
_LATER = {408, 425, 429}


@dataclass(frozen=True)
class Ways:
    """How it is sent. `port` is the kind of sink, with which its options begin; `private`: to
    private addresses too, and by http."""

    port: str
    timeout_s: float
    cafile: str | None = None
    private: bool = False


class Mailbox:
    """`name` is the same for the same address, and shows nothing secret of it."""

    def __init__(self, url: str, ways: Ways, below: str = "") -> None:
        """`below`: a path below the address."""
        self._ways = ways
        self._host, self._port, self._path, secure = _parts(url, ways, below)
        self._tls = _context(ways) if secure else None
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]
        self.name = f"{ways.port} {self._host[:40]} {digest}"
        self._bounded = Bounded(ways.port, MOST_SENDS)

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Returns when it was taken."""
        common = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{holdfast.__version__}",
        }
        try:
            status = self._post(body, {**common, **headers})
        except Refused as refused:
            # Retried, for it is a matter of the configuration: mended in time, nothing is lost.
            meant = f"; set {self._ways.port}_allow_private if that is meant"
            hint = "" if self._ways.private else meant
            raise self._failed(f"{refused}{hint}", True) from refused
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(str(error) or repr(error), True) from error
        if not 200 <= status < 300:
            raise self._failed(*_judged(status))

    def _post(self, body: bytes, headers: dict[str, str]) -> int:
        opened: list[PinnedConnection] = []
        ways = self._ways

        def call() -> int:
            addresses = resolve(self._host, self._port, ways.private)
            connection = PinnedConnection(
                self._host, self._port, addresses, ways.timeout_s, self._tls
            )
            opened.append(connection)
            with contextlib.closing(connection):
                connection.request("POST", self._path, body, headers)
                return connection.getresponse().status

        def abort() -> None:
            for connection in opened:
                connection.abort()

        return self._bounded.run(ways.timeout_s, call, abort)

    def _failed(self, why: str, retryable: bool) -> DriverError:
        return DriverError(
            self._ways.port, f"{self._host}:{self._port}: {why}", retryable=retryable
        )


def secret(port: str, option: str, path: str) -> bytes:
    """What that file has now; retryable, for somebody may be about to write it."""
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise DriverError(port, f"{option} cannot be read: {error}", retryable=True) from error


def _judged(status: int) -> tuple[str, bool]:
    """What to say of an answer that is no yes, and whether to come again."""
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed, name the final address", False
    return f"answered {status}", status >= 500 or status in _LATER


def _parts(url: str, ways: Ways, below: str) -> tuple[str, int, str, bool]:
    """Host, port, path and whether by TLS; DriverError saying what to write instead."""
    where = f"[lease_notifications] {ways.port}_urls: {_shown(url)}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    wrong = not host or parts.scheme not in ("https", "http") or "@" in parts.netloc
    if not host or wrong or not url.isascii():
        raise DriverError(
            ways.port,
            f"{where} must be https://host[:port]/path, without user name and password",
            retryable=False,
        )
    if parts.scheme == "http" and not ways.private:
        raise DriverError(
            ways.port,
            f"{where} must be https; http only with {ways.port}_allow_private",
            retryable=False,
        )
    path = (parts.path.rstrip("/") + below) if below else (parts.path or "/")
    secure = parts.scheme == "https"
    query = f"?{parts.query}" if parts.query else ""
    return host, port or (443 if secure else 80), path + query, secure


def _shown(url: str) -> str:
    """Without what may be a secret."""
    return url.partition("?")[0].rpartition("@")[2]


def _context(ways: Ways) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ways.cafile)
    except OSError as error:
        raise DriverError(
            ways.port,
            f"[lease_notifications] {ways.port}_cafile {ways.cafile}: {error}",
            retryable=False,
        ) from error
