# SPDX-License-Identifier: Apache-2.0
"""Notifications as signed HTTP requests: one sink per address, so that none waits for another.

    POST /hook
    X-Holdfast-Timestamp: 1893492000
    X-Holdfast-Signature: sha256=<hex of HMAC-SHA256(secret, "1893492000." + body)>

    {"event_type": …, "message_id": …, "payload": {…}, "publisher_id": …, "timestamp": …}

The header's time is that of the try, so a receiver can refuse what is old and was recorded;
the body's is that of the event and stays, like the message id, the same in every try.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from oslo_config import cfg

import holdfast
from holdfast.drivers.sinks.bounded import Bounded
from holdfast.drivers.sinks.pinned import PinnedConnection, Refused, resolve
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.sinks import PUBLISHER, LeaseNotice

PORT = "webhook"
SHORTEST_SECRET = 16
MOST_SENDS = 16
#: Client errors that say "not now" rather than "never".
_LATER = {408, 425, 429}


class Webhook:
    def __init__(self, url: str, conf: cfg.ConfigOpts, clock: Clock) -> None:
        options = conf.lease_notifications
        self._clock = clock
        self._private: bool = options.webhook_allow_private
        self.timeout_s: float = options.webhook_timeout_s
        self._secret_file: str | None = options.webhook_secret_file
        self._host, self._port, self._path, secure = _parts(url, self._private)
        self._tls = _context(options.webhook_cafile) if secure else None
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]
        self.name = f"{PORT} {self._host[:40]} {digest}"
        self._bounded = Bounded(PORT, MOST_SENDS)
        self._secret()  # one that cannot sign is found now

    def send(self, notice: LeaseNotice) -> None:
        body = encode(notice)
        at = int(self._clock.now().timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{holdfast.__version__}",
            "X-Holdfast-Timestamp": str(at),
            "X-Holdfast-Signature": signature(self._secret(), at, body),
        }
        try:
            status = self._post(body, headers)
        except Refused as refused:
            # Retried, for it is a matter of the configuration: mended in time, nothing is lost.
            raise self._failed(
                f"{refused}; set webhook_allow_private if that is meant", True
            ) from refused
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(str(error) or repr(error), True) from error
        if not 200 <= status < 300:
            raise self._failed(*_judged(status))

    def _post(self, body: bytes, headers: dict[str, str]) -> int:
        opened: list[PinnedConnection] = []

        def call() -> int:
            addresses = resolve(self._host, self._port, self._private)
            connection = PinnedConnection(
                self._host, self._port, addresses, self.timeout_s, self._tls
            )
            opened.append(connection)
            with contextlib.closing(connection):
                connection.request("POST", self._path, body, headers)
                return connection.getresponse().status

        def abort() -> None:
            for connection in opened:
                connection.abort()

        return self._bounded.run(self.timeout_s, call, abort)

    def _secret(self) -> bytes:
        if not self._secret_file:
            raise DriverError(
                PORT, "[lease_notifications] webhook_secret_file is not set", retryable=False
            )
        try:
            secret = Path(self._secret_file).read_bytes().strip()
        except OSError as error:
            raise DriverError(
                PORT, f"webhook_secret_file cannot be read: {error}", retryable=True
            ) from error
        if len(secret) < SHORTEST_SECRET:
            raise DriverError(
                PORT,
                f"{self._secret_file} must have at least {SHORTEST_SECRET} characters",
                retryable=True,
            )
        return secret

    def _failed(self, why: str, retryable: bool) -> DriverError:
        return DriverError(PORT, f"{self._host}:{self._port}: {why}", retryable=retryable)

    def close(self) -> None:
        """Nothing stays open."""


def encode(notice: LeaseNotice) -> bytes:
    """The same bytes for the same notice, whoever sends it and how often."""
    told = {
        "event_type": notice.event_type,
        "publisher_id": PUBLISHER,
        "message_id": notice.message_id,
        "timestamp": notice.at.isoformat(),
        "payload": dict(notice.payload),
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def signature(secret: bytes, at: int, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()


def _judged(status: int) -> tuple[str, bool]:
    """What to say of an answer that is no yes, and whether to come again."""
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed, name the final address", False
    return f"answered {status}", status >= 500 or status in _LATER


def _parts(url: str, private: bool) -> tuple[str, int, str, bool]:
    """Host, port, path and whether by TLS; DriverError saying what to write instead."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    wrong = not host or parts.scheme not in ("https", "http") or "@" in parts.netloc
    if not host or wrong or not url.isascii():
        raise DriverError(
            PORT,
            f"[lease_notifications] webhook_urls: {_shown(url)} must be https://host[:port]/path,"
            " without user name and password",
            retryable=False,
        )
    if parts.scheme == "http" and not private:
        raise DriverError(
            PORT,
            f"[lease_notifications] webhook_urls: {_shown(url)} must be https; http only with"
            " webhook_allow_private",
            retryable=False,
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    secure = parts.scheme == "https"
    return host, port or (443 if secure else 80), path, secure


def _shown(url: str) -> str:
    """Without what may be a secret."""
    return url.partition("?")[0].rpartition("@")[2]


def _context(cafile: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise DriverError(
            PORT, f"[lease_notifications] webhook_cafile {cafile}: {error}", retryable=False
        ) from error


def connect(conf: cfg.ConfigOpts, clock: Clock) -> Sequence[Webhook]:
    return [Webhook(url, conf, clock) for url in conf.lease_notifications.webhook_urls]
