# SPDX-License-Identifier: Apache-2.0
"""The webhook publisher, and HTTP POST with a time limit and address checks for HTTP publishers.

Each configured URL has a `Mailbox`:

    mailbox = Mailbox("https://portal.example/hook", Ways("webhook", timeout_s=5.0))
    mailbox.post(b"{}", {})  # DriverError, retryable when a later try may succeed
"""

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from oslo_config import cfg

import holdfast
from holdfast.model.errors import DriverError
from holdfast.ports.publishers import LeaseNotice
from holdfast.runtime.clock import Clock
from holdfast.runtime.http import (
    AddressRefused,
    Deadline,
    HttpClient,
    HttpError,
    HttpTimeout,
    IpAddress,
    Tls,
)

# Address checks: for each request the HTTP client resolves the name once, checks every address,
# and connects only to one of these addresses. So neither a name that points into the site's own
# network, nor a name that points elsewhere a moment later, nor a redirect makes Holdfast talk to a
# forbidden address.


#: Always refused: this network, link-local (metadata services), multicast, reserved, and IPv6
#: that embeds IPv4 (6to4, Teredo, NAT64), whose destination is unknown.
_NEVER = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "fd00:ec2::254/128",
        "fe80::/10",
        "ff00::/8",
    )
]
_COMPATIBLE = ipaddress.ip_network("::/96")
_LOOPBACK = ipaddress.ip_address("::1")
#: This machine, private networks and unassigned ranges: allowed only with `private`.
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    )
]
#: The range of global IPv6 addresses.
_WORLD = ipaddress.ip_network("2000::/3")


def judge(address: IpAddress, allow_private: bool) -> str | None:
    """Return why the address is refused; None if it is allowed."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return judge(address.ipv4_mapped, allow_private)
    compatible = address in _COMPATIBLE and address != _LOOPBACK
    if compatible or any(address in network for network in _NEVER):
        return "is link-local, multicast or reserved"
    if allow_private:
        return None
    if any(address in network for network in _PRIVATE):
        return "is private or loopback"
    if address.version == 6 and address not in _WORLD:
        return "is not of the public internet"
    return None


#: Client errors that mean "not now" rather than "never".
_LATER = {408, 425, 429}


@dataclass(frozen=True)
class Ways:
    """Settings of a publisher: kind, timeout, CA file, private addresses.

    `port` is the kind of publisher and the prefix of its options. `private` also allows private
    addresses and http.
    """

    port: str
    timeout_s: float
    cafile: str | None = None
    private: bool = False


class Mailbox:
    """A destination of POST requests.

    `name` is stable for a URL and contains no secret of it.
    """

    def __init__(self, url: str, ways: Ways, below: str = "") -> None:
        """Parse and check the URL; `below` is a path appended to the URL."""
        self._ways = ways
        parts = _parts(url, ways)
        path = parts.path.rstrip("/") + below if below else parts.path or "/"
        self._url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        self._where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        tls = Tls(ways.cafile or "")
        if parts.scheme == "https":
            _check_files(tls, ways)
        self._http = HttpClient(tls=tls, check=lambda address: judge(address, ways.private))
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]
        self.name = f"{ways.port} {str(parts.hostname)[:40]} {digest}"

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send the body; returns when the receiver has accepted it."""
        common = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{holdfast.__version__}",
        }
        deadline = Deadline(self._ways.timeout_s)
        try:
            # The status is enough; without its body the connection is not kept.
            answer = self._http.request(
                "POST",
                self._url,
                deadline,
                body=body,
                headers={**common, **headers},
                most_bytes=0,
                whole=False,
            )
        except AddressRefused as refused:
            # Retryable, because it depends on the configuration: after a timely correction
            # nothing is lost.
            meant = f"; set {self._ways.port}_allow_private if that is meant"
            hint = "" if self._ways.private else meant
            raise self._failed(f"{refused}{hint}", True) from refused
        except HttpTimeout as late:
            raise self._failed(f"no answer within {self._ways.timeout_s:g} s", True) from late
        except HttpError as error:
            raise self._failed(str(error), True) from error
        if not 200 <= answer.status < 300:
            raise self._failed(*_judged(answer.status))

    def _failed(self, why: str, retryable: bool) -> DriverError:
        return DriverError(self._ways.port, f"{self._where}: {why}", retryable=retryable)


def read_secret(port: str, option: str, path: str) -> bytes:
    """Read the file's present content.

    An error is retryable, since the file may be written soon.
    """
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise DriverError(port, f"{option} cannot be read: {error}", retryable=True) from error


def _judged(status: int) -> tuple[str, bool]:
    """Return the error text for a status other than 2xx, and whether to retry."""
    if 300 <= status < 400:
        return f"answered {status}; redirects are not followed, name the final address", False
    return f"answered {status}", status >= 500 or status in _LATER


def _parts(url: str, ways: Ways) -> SplitResult:
    """Parse the URL; DriverError names the correct form."""
    where = f"[publishers] {ways.port}_urls: {_shown(url)}"
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    wrong = not host or parts.scheme not in ("https", "http") or "@" in parts.netloc
    if wrong or not url.isascii():
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
    return parts


def _shown(url: str) -> str:
    """Return the URL without parts that may be secret."""
    return url.partition("?")[0].rpartition("@")[2]


def _check_files(tls: Tls, ways: Ways) -> None:
    try:
        tls.context()
    except OSError as error:
        raise DriverError(
            ways.port,
            f"[publishers] {ways.port}_cafile {ways.cafile}: {error}",
            retryable=False,
        ) from error


# The webhook publisher: notifications as signed HTTP requests.
#
# Each URL has a publisher of its own, so that none waits for another.
#
#     POST /hook
#     X-Holdfast-Timestamp: 1893492000
#     X-Holdfast-Signature: sha256=<hex of HMAC-SHA256(secret, "1893492000." + body)>
#
#     {"event_type": …, "message_id": …, "payload": {…}, "publisher_id": …, "timestamp": …}
#
# The header's time is the time of the attempt, so a receiver can refuse an old, recorded request.
# The body's time is the time of the event; like the message id it is the same in every attempt.


WEBHOOK = "webhook"
SHORTEST_SECRET = 16


class Webhook:
    """The publisher for a webhook URL."""

    def __init__(self, url: str, conf: cfg.ConfigOpts, clock: Clock) -> None:
        options = conf.publishers
        self._clock = clock
        self.timeout_s: float = options.webhook_timeout_s
        self._secret_file: str | None = options.webhook_secret_file
        ways = Ways(WEBHOOK, self.timeout_s, options.webhook_cafile, options.webhook_allow_private)
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
            raise DriverError(
                WEBHOOK, "[publishers] webhook_secret_file is not set", retryable=False
            )
        secret = read_secret(WEBHOOK, "webhook_secret_file", self._secret_file)
        if len(secret) < SHORTEST_SECRET:
            raise DriverError(
                WEBHOOK,
                f"{self._secret_file} must have at least {SHORTEST_SECRET} characters",
                retryable=True,
            )
        return secret

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def encode(notice: LeaseNotice) -> bytes:
    """Encode the notice; the same notice always gives the same bytes."""
    body = {
        "event_type": notice.event_type,
        "publisher_id": notice.publisher,
        "message_id": notice.message_id,
        "timestamp": notice.at.isoformat(),
        "payload": dict(notice.payload),
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def signature(secret: bytes, at: int, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()


def connect_webhook(conf: cfg.ConfigOpts, clock: Clock) -> Sequence[Webhook]:
    return [Webhook(url, conf, clock) for url in conf.publishers.webhook_urls]
