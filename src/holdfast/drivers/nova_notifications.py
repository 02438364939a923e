# SPDX-License-Identifier: Apache-2.0
"""The listener for Nova's notifications: reads the broker's queue on a single thread.

The listener uses py-amqp, the library below oslo.messaging, and not oslo.messaging's own listener,
which cannot keep the promises of `ports/reports.py` (18.3): it requeues a message whose priority
is no text 500 times a second for ever; it neither delivers nor acknowledges a message that came
twice, which blocks its place; acknowledgements wait up to 5 s; start and stop wait for a broker
that is away; the queue is not bounded; and durability must be set as in Nova, or nothing is read.

    >>> notices = NovaNotices(conf, SystemClock())
    >>> notices.listen(print)
    >>> notices.stop()
"""

import bz2
import contextlib
import itertools
import logging
import ssl
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import amqp
from oslo_config import cfg, types

from holdfast.model.errors import DriverError, HoldfastError
from holdfast.model.nova_notification import Notice, NotUnderstood, parse
from holdfast.ports.reports import Hear, NoTally, Tally, later
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

# Connection to Nova's broker: addresses, TLS, and Holdfast's own queue bound to Nova's
# exchange.
#
# The driver never declares Nova's exchange, it only checks it: declaring it with other flags
# breaks Nova. The queue is Holdfast's own: durable, bounded, and removed by the broker when
# unused.
#
# The driver uses py-amqp without kombu, which would reconnect behind its back and then read
# nothing.


LOG = logging.getLogger(__name__)

PORT = "notices"
#: Time limit for opening a connection and for any answer of the broker.
ANSWER_S = 5.0
#: A broker that is silent for two heartbeats is away.
HEARTBEAT_S = 20
#: Messages that the broker sends ahead; other managers do not see them.
PREFETCH = 50
#: RabbitMQ 4 drops a message of a quorum queue after 20 returns; an outage may need more.
MOST_RETURNS = 1_000_000

AWAY = (OSError, amqp.AMQPError)

_TLS = [
    cfg.BoolOpt("ssl", default=False),
    cfg.StrOpt("ssl_ca_file", default=""),
    cfg.StrOpt("ssl_cert_file", default=""),
    cfg.StrOpt("ssl_key_file", default=""),
]
#: kombu_compression of nova.conf, by its names on the wire.
_UNPACK: Mapping[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
}
#: Largest notification in bytes, uncompressed: Nova's largest have some 100 kB.
MOST_UNPACKED = 16 * 2**20


@dataclass(frozen=True)
class Address:
    """A node of a broker."""

    host: str
    port: int
    user: str
    secret: str = field(repr=False)
    vhost: str

    def __str__(self) -> str:
        """Return the address without the secret, for logs."""
        return f"{self.host}:{self.port}/{self.vhost.removeprefix('/')}"


@dataclass(frozen=True)
class Depth:
    """The length of a queue and its number of readers."""

    messages: int
    readers: int


def addresses(url: str) -> list[Address]:
    """Parse the nodes of an oslo.messaging transport URL: rabbit://u:p@h:1,u:p@h:2/vhost?…"""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("rabbit", "amqp", "kombu+rabbit"):
        raise DriverError(
            PORT,
            "[notifications] transport_url must be rabbit://user:secret@host:5672/vhost; other"
            " brokers are not read",
            retryable=False,
        )
    hosts, _, vhost = rest.partition("?")[0].partition("/")
    nodes = []
    for part in hosts.split(","):
        access, _, node = part.rpartition("@")
        user, _, secret = (access or "guest:guest").partition(":")
        host, port = _host_port(node)
        nodes.append(Address(host, port, unquote(user), unquote(secret), unquote(vhost) or "/"))
    return nodes


def _host_port(node: str) -> tuple[str, int]:
    host, colon, port = node.rpartition(":")
    if not colon or node.endswith("]"):
        host, port = node, "5672"
    if not port.isdigit() or not host:
        raise DriverError(
            PORT,
            f"[notifications] transport_url names the host {node!r}: write host:port",
            retryable=False,
        )
    return host, int(port)


def tls(conf: cfg.ConfigOpts, url: str) -> dict[str, Any] | bool:
    """Return the TLS settings from [oslo_messaging_rabbit] and the URL's query, which wins.

    oslo.messaging reads them in the same way.
    """
    theirs = cfg.ConfigOpts()
    theirs.register_opts(_TLS, group="oslo_messaging_rabbit")
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    group, query = theirs.oslo_messaging_rabbit, dict(parse_qsl(url.partition("?")[2]))
    if not (types.Boolean()(query["ssl"]) if "ssl" in query else group.ssl):
        return False
    authority, certificate, key = (
        query.get(name, group[name]) for name in ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")
    )
    settings: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if authority:
        settings = {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED}
    if certificate:
        settings |= {"certfile": certificate, "keyfile": key or None}
    return settings


class Broker:
    """Opens connections to each node in turn, and declares the queue."""

    def __init__(self, conf: cfg.ConfigOpts, topics: Sequence[str] = ()) -> None:
        """Read the configuration; `topics` are bound in addition to the configured topics."""
        self._options = conf.notifications
        self._topics = sorted({*conf.notifications.topics, *topics})
        url = self._options.transport_url or conf.transport_url
        if not url:
            raise DriverError(
                PORT,
                "no broker: set [notifications] transport_url to the broker of nova.conf",
                retryable=False,
            )
        self.exchange: str = self._options.exchange
        self.pool: str = self._options.pool
        nodes = addresses(url)
        self.shown = ", ".join(map(str, nodes))
        self._nodes = len(nodes)
        self._turn: Iterator[Address] = itertools.cycle(nodes)
        self._tls = tls(conf, url)

    def connect(self) -> amqp.Connection:
        """Connect to the next node; no call on the connection takes longer than ANSWER_S."""
        node = next(self._turn)
        secured = self._tls
        if isinstance(secured, dict) and secured["cert_reqs"] == ssl.CERT_REQUIRED:
            secured = {**secured, "server_hostname": node.host.strip("[]")}
        connection = amqp.Connection(
            host=f"{node.host}:{node.port}",
            userid=node.user,
            password=node.secret,
            virtual_host=node.vhost,
            ssl=secured,
            connect_timeout=ANSWER_S,
            heartbeat=HEARTBEAT_S,
            client_properties={"connection_name": "holdfast notifications"},
        )
        connection.connect()
        connection.sock.settimeout(ANSWER_S)
        return connection

    def connect_to_any(self) -> amqp.Connection:
        """Connect to the first node that answers; raise the last error if none does."""
        for _ in range(self._nodes - 1):
            with contextlib.suppress(*AWAY):
                return self.connect()
        return self.connect()

    def shared_queue(self, connection: amqp.Connection) -> str:
        """Declare and bind the queue that all managers share; return the name."""
        arguments: dict[str, Any] = {
            "x-max-length": self._options.backlog,
            "x-expires": self._options.keep_days * 24 * 3600 * 1000,
        }
        if self._options.quorum:
            arguments |= {"x-queue-type": "quorum", "x-delivery-limit": MOST_RETURNS}
        try:
            connection.channel().queue_declare(
                self.pool, durable=True, auto_delete=False, arguments=arguments
            )
        except amqp.PreconditionFailed as error:
            LOG.warning(
                "the queue %s exists with other settings and is used as it is; to apply backlog,"
                " keep_days and quorum delete it (rabbitmqctl delete_queue): %s",
                self.pool,
                error,
            )
        self._bind(connection, self.pool)
        return self.pool

    def own_queue(self, connection: amqp.Connection) -> str:
        """Declare a queue for this connection only, which takes no message from other readers."""
        declared = connection.channel().queue_declare(
            exclusive=True, auto_delete=True, arguments={"x-max-length": 10_000}
        )
        name: str = declared.queue
        self._bind(connection, name)
        return name

    def depth(self, connection: amqp.Connection) -> Depth | None:
        """Return the length of the managers' queue; None if missing."""
        try:
            declared = connection.channel().queue_declare(self.pool, passive=True)
        except amqp.NotFound:
            return None
        return Depth(messages=declared.message_count, readers=declared.consumer_count)

    def check_exchange(self, connection: amqp.Connection) -> None:
        """Raise DriverError if Nova's exchange does not exist yet."""
        try:
            connection.channel().exchange_declare(self.exchange, "topic", passive=True)
        except amqp.NotFound as error:
            raise DriverError(
                PORT,
                f"the broker has no exchange {self.exchange}: no Nova has spoken there."
                " [notifications] transport_url must be broker and virtual host of nova.conf,"
                " exchange its control_exchange",
                retryable=True,
            ) from error

    def _bind(self, connection: amqp.Connection, queue: str) -> None:
        self.check_exchange(connection)
        channel = connection.channel()
        for topic in self._topics:
            channel.queue_bind(queue, self.exchange, f"{topic}.*")


def body(message: amqp.Message) -> str | bytes:
    """Return the decompressed body.

    The body is unchanged if decompression fails, or above MOST_UNPACKED bytes: the parser then
    refuses it.
    """
    sent: str | bytes = message.body
    unpack = _UNPACK.get(str(message.headers.get("compression"))) if message.headers else None
    if unpack is None:
        return sent
    unpacker = unpack()
    try:
        packed = sent if isinstance(sent, bytes) else sent.encode()
        unpacked: bytes = unpacker.decompress(packed, MOST_UNPACKED)
    except (OSError, ValueError, zlib.error):
        return sent
    return unpacked if unpacker.eof else sent


def close(connection: amqp.Connection) -> None:
    """Close the connection, waiting at most 1 s for the broker."""
    try:
        connection.sock.settimeout(1.0)
        connection.close()
    except (*AWAY, AttributeError) as error:  # py-amqp has no socket after a lost connection
        LOG.debug("the broker did not hear us leave: %s", error)
        connection.collect()


#: Interval at which the thread checks for a stop and sends heartbeats.
CHECK_S = 0.25
#: Pauses between attempts to reach the broker, and to deliver a postponed message.
FIRST_PAUSE_S, MOST_RECONNECT_S, MOST_RETRY_S = 1.0, 5.0, 30.0
#: Seconds that a message which cannot be delivered is kept here; then other managers may try.
HOLD_S = 300.0
#: Time limit of `stop`, whatever the broker does.
STOP_S = 10.0
#: Minimum seconds between log lines about unintelligible messages.
QUIET_S = 60.0


class _GiveBack(Exception):
    """Messages could not be delivered for HOLD_S: return them to the queue."""


class NovaNotices:
    """The driver of the notification port.

    With `shared` False it reads a temporary copy of the queue.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        clock: Clock,
        tally: Tally | None = None,
        *,
        shared: bool = True,
        topics: Sequence[str] = (),
    ) -> None:
        self.broker = Broker(conf, topics)
        self._clock = clock
        self._tally: Tally = tally or NoTally()
        self._shared = shared
        self._hear: Hear = lambda notice: None
        self._pause_s = FIRST_PAUSE_S
        self._worker = Worker(
            "notifications",
            clock,
            self._turn,
            retry_s=FIRST_PAUSE_S,
            longest_retry_s=MOST_RECONNECT_S,
            expected=(),
            failed=lambda error: self._lost(error, "a defect of ours"),
            stop_s=STOP_S,
        )
        self._there = False
        self._heard_at: float | None = None
        self._complained: set[str] = set()
        self._strange = _Seldom(clock)
        self._failures = 0
        self._failing_since = 0.0
        self._resume_at = 0.0

    def listen(self, hear: Hear) -> None:
        self._hear = hear
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()
        if self._worker.alive:
            LOG.warning("notifications: a monitor has not returned within %d s", STOP_S)

    @property
    def connected(self) -> bool:
        return self._there

    def age_s(self) -> float | None:
        """Return the seconds since the last notice; None before the first."""
        return None if self._heard_at is None else self._clock.monotonic() - self._heard_at

    # The listener's thread

    def _turn(self) -> float:
        """Listen until the connection ends; return the seconds until the next attempt."""
        try:
            self._session()
        except _GiveBack:
            LOG.warning("notifications: not taken for %d s, given back to the queue", HOLD_S)
        except DriverError as error:
            self._lost(error, error.message)
        except AWAY as error:
            self._lost(error, f"{type(error).__name__}: {error}")
        finally:
            was_there, self._there = self._there, False
            if was_there:
                self._tally.broker(False)
                self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, MOST_RECONNECT_S)
        return pause_s

    def _session(self) -> None:
        """Open a connection and read until it ends."""
        connection = self.broker.connect()
        try:
            queue = (
                self.broker.shared_queue(connection)
                if self._shared
                else self.broker.own_queue(connection)
            )
            waiting: deque[amqp.Message] = deque()
            channel = connection.channel()
            channel.basic_qos(0, PREFETCH, False)
            channel.basic_consume(queue, callback=waiting.append)
            self._reached(queue)
            self._read(connection, waiting)
        finally:
            close(connection)

    def _read(self, connection: amqp.Connection, waiting: deque[amqp.Message]) -> None:
        while not self._worker.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=self._patience(waiting))
            connection.heartbeat_tick()
            check_at = self._clock.monotonic() + CHECK_S
            while waiting and self._resume_at <= self._clock.monotonic() < check_at:
                if self._worker.stopping.is_set():
                    return
                if self._deliver(waiting[0]):
                    message = waiting.popleft()
                    message.channel.basic_ack(message.delivery_tag)

    def _patience(self, waiting: deque[amqp.Message]) -> float:
        """Return how long to wait for the socket; almost zero while a message is ready."""
        if not waiting:
            return CHECK_S
        return min(CHECK_S, max(0.001, self._resume_at - self._clock.monotonic()))

    # Delivery of a message

    def _deliver(self, message: amqp.Message) -> bool:
        """Deliver the message; return whether it may be acknowledged."""
        try:
            notice = parse(body(message))
        except NotUnderstood as error:
            self._let_go(error.message)
            return True
        try:
            self._hear(notice)
        except HoldfastError as error:
            if later(error):
                self._put_off(notice, error)
                return False
            LOG.error("%s %s: %s", notice.event_type, notice.message_id, error.message)
            self._tally.failed(notice)
        except Exception:  # a monitor's defect must not end the listening
            LOG.exception("%s %s: a monitor failed", notice.event_type, notice.message_id)
            self._tally.failed(notice)
        else:
            self._tally.heard(notice)
        self._heard_at = self._clock.monotonic()
        if self._failures:
            LOG.info("notifications: taken again, after %d tries", self._failures)
            self._failures = 0
        return True

    def _put_off(self, notice: Notice, error: HoldfastError) -> None:
        now = self._clock.monotonic()
        if not self._failures:
            self._failing_since = now
            LOG.warning(
                "%s %s cannot be taken now, and waits: %s",
                notice.event_type,
                notice.message_id,
                error.message,
            )
        self._tally.put_off(notice)
        self._resume_at = now + min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 10), MOST_RETRY_S)
        self._failures += 1
        if now - self._failing_since > HOLD_S:
            self._failing_since = now
            raise _GiveBack

    def _let_go(self, why: str) -> None:
        """Count and log an unintelligible message.

        It is acknowledged, since a retry would not help.
        """
        self._tally.not_understood()
        others = self._strange.may_say()
        if others is not None:
            more = f" (and {others} more since the last such line)" if others else ""
            LOG.warning("notifications: let go, not understood: %s%s", why, more)

    # Connection changes: a log line per change

    def _reached(self, queue: str) -> None:
        self._there = True
        self._complained.clear()
        self._tally.broker(True)
        LOG.info("listening to Nova's notifications at %s, queue %s", self.broker.shown, queue)

    def _lost(self, error: Exception, why: str) -> None:
        """Log the loss once per kind of error until the connection is back."""
        kind = type(error).__name__
        if kind in self._complained:
            return
        self._complained.add(kind)
        LOG.warning("not listening to Nova's notifications at %s: %s", self.broker.shown, why)


class _Seldom:
    """Limits the rate of a log line."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic()
        self._unsaid = 0

    def may_say(self) -> int | None:
        """Return the number of suppressed lines if a line may be logged now, else None."""
        now = self._clock.monotonic()
        if now < self._next:
            self._unsaid += 1
            return None
        self._next = now + QUIET_S
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
