# SPDX-License-Identifier: Apache-2.0
"""The webhook publisher: notifications as signed HTTP requests.

Each URL has a publisher of its own, so that none waits for another.

    POST /hook
    X-Holdfast-Timestamp: 1893492000
    X-Holdfast-Signature: sha256=<hex of HMAC-SHA256(secret, "1893492000." + body)>

    {"event_type": …, "message_id": …, "payload": {…}, "publisher_id": …, "timestamp": …}

The header's time is the time of the attempt, so a receiver can refuse an old, recorded request.
The body's time is the time of the event; like the message id it is the same in every attempt.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.drivers.publishers import http
from holdfast.drivers.publishers.http import Mailbox, Ways
from holdfast.model.errors import DriverError
from holdfast.ports.publishers import LeaseNotice
from holdfast.runtime.clock import Clock

PORT = "webhook"
SHORTEST_SECRET = 16


class Webhook:
    """The publisher for a webhook URL."""

    def __init__(self, url: str, conf: cfg.ConfigOpts, clock: Clock) -> None:
        options = conf.publishers
        self._clock = clock
        self.timeout_s: float = options.webhook_timeout_s
        self._secret_file: str | None = options.webhook_secret_file
        ways = Ways(PORT, self.timeout_s, options.webhook_cafile, options.webhook_allow_private)
        self._mailbox = Mailbox(url, ways)
        self.name = self._mailbox.name
        self._secret()  # raises at once if the secret is unusable

    def send(self, notice: LeaseNotice) -> None:
        body = encode(notice)
        at = int(self._clock.now().timestamp())
        headers = {
            "X-Holdfast-Timestamp": str(at),
            "X-Holdfast-Signature": signature(self._secret(), at, body),
        }
        self._mailbox.post(body, headers)

    def _secret(self) -> bytes:
        if not self._secret_file:
            raise DriverError(PORT, "[publishers] webhook_secret_file is not set", retryable=False)
        secret = http.secret(PORT, "webhook_secret_file", self._secret_file)
        if len(secret) < SHORTEST_SECRET:
            raise DriverError(
                PORT,
                f"{self._secret_file} must have at least {SHORTEST_SECRET} characters",
                retryable=True,
            )
        return secret

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def encode(notice: LeaseNotice) -> bytes:
    """Encode the notice; the same notice always gives the same bytes."""
    told = {
        "event_type": notice.event_type,
        "publisher_id": notice.publisher,
        "message_id": notice.message_id,
        "timestamp": notice.at.isoformat(),
        "payload": dict(notice.payload),
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def signature(secret: bytes, at: int, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()


def connect(conf: cfg.ConfigOpts, clock: Clock) -> Sequence[Webhook]:
    return [Webhook(url, conf, clock) for url in conf.publishers.webhook_urls]
