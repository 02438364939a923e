# SPDX-License-Identifier: Apache-2.0
"""The way to Nova's broker: addresses, TLS, and a queue of our own bound to Nova's exchange.

The exchange is Nova's and is only looked at: whoever declares it with other flags breaks Nova. The
queue is ours: durable, bounded, and removed by the broker when it was forgotten.

py-amqp is used as it is, without kombu around it, which would reconnect behind our back and then
read nothing.
"""

import bz2
import contextlib
import itertools
import logging
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import amqp
from oslo_config import cfg, types

from holdfast.model.errors import DriverError

LOG = logging.getLogger(__name__)

PORT = "notices"
#: Longest that opening a connection, or any answer of the broker, may take.
ANSWER_S = 5.0
#: A broker that is silent for two of these is away.
HEARTBEAT_S = 20
#: What the broker may hand us ahead; it is out of the other managers' sight.
PREFETCH = 50
#: RabbitMQ 4 throws a quorum queue's message away after 20 returns; an outage may need more.
MOST_RETURNS = 1_000_000

AWAY = (OSError, amqp.AMQPError)

_TLS = [
    cfg.BoolOpt("ssl", default=False),
    cfg.StrOpt("ssl_ca_file", default=""),
    cfg.StrOpt("ssl_cert_file", default=""),
    cfg.StrOpt("ssl_key_file", default=""),
]
#: kombu_compression of nova.conf, by the names it has on the wire.
_UNPACK: Mapping[str, Callable[[bytes], bytes]] = {
    "application/x-gzip": zlib.decompress,
    "application/x-bz2": bz2.decompress,
}


@dataclass(frozen=True)
class Address:
    """One node of a broker."""

    host: str
    port: int
    user: str
    secret: str = field(repr=False)
    vhost: str

    def __str__(self) -> str:
        """What may be logged."""
        return f"{self.host}:{self.port}/{self.vhost.removeprefix('/')}"


@dataclass(frozen=True)
class Depth:
    """What the broker says about a queue."""

    messages: int
    readers: int


def addresses(url: str) -> list[Address]:
    """The nodes of a transport URL as oslo.messaging writes it: rabbit://u:p@h:1,u:p@h:2/vhost?…"""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("rabbit", "amqp", "kombu+rabbit"):
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
    """As oslo.messaging does it: [oslo_messaging_rabbit] of our files, the URL's query wins."""
    theirs = cfg.ConfigOpts()
    theirs.register_opts(_TLS, group="oslo_messaging_rabbit")
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    group, query = theirs.oslo_messaging_rabbit, dict(parse_qsl(url.partition("?")[2]))
    if not (types.Boolean()(query["ssl"]) if "ssl" in query else group.ssl):
        return False
    authority, certificate, key = (
        query.get(name, group[name]) for name in ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")
    )
    found: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if authority:
        found = {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED}
    if certificate:
        found |= {"certfile": certificate, "keyfile": key or None}
    return found


class Broker:
    """Opens connections, to each node in turn, and knows the queue."""

    def __init__(self, conf: cfg.ConfigOpts, topics: Sequence[str] = ()) -> None:
        """`topics` are bound beside those of the configuration."""
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
        """A connection to the next node; no call on it takes longer than ANSWER_S."""
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
        """A connection to the first node that answers; the last one's error if none does."""
        for _ in range(self._nodes - 1):
            with contextlib.suppress(*AWAY):
                return self.connect()
        return self.connect()

    def shared_queue(self, connection: amqp.Connection) -> str:
        """The queue that managers share: its name, when it is there and bound."""
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
        """A queue that ends with the connection, for a look that takes nothing from anybody."""
        declared = connection.channel().queue_declare(
            exclusive=True, auto_delete=True, arguments={"x-max-length": 10_000}
        )
        name: str = declared.queue
        self._bind(connection, name)
        return name

    def depth(self, connection: amqp.Connection) -> Depth | None:
        """How full the managers' queue is; None if there is none."""
        try:
            found = connection.channel().queue_declare(self.pool, passive=True)
        except amqp.NotFound:
            return None
        return Depth(messages=found.message_count, readers=found.consumer_count)

    def look(self, connection: amqp.Connection) -> None:
        """A DriverError where Nova has not been yet."""
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
        self.look(connection)
        channel = connection.channel()
        for topic in self._topics:
            channel.queue_bind(queue, self.exchange, f"{topic}.*")


def body(message: amqp.Message) -> str | bytes:
    """What was sent. What cannot be unpacked comes as it is: nobody will understand it."""
    sent: str | bytes = message.body
    unpack = _UNPACK.get(str(message.headers.get("compression"))) if message.headers else None
    if unpack is None:
        return sent
    try:
        return unpack(sent if isinstance(sent, bytes) else sent.encode())
    except (OSError, ValueError, zlib.error):
        return sent


def close(connection: amqp.Connection) -> None:
    """Politely, but a broker that does not answer is not waited for."""
    try:
        connection.sock.settimeout(1.0)
        connection.close()
    except (*AWAY, AttributeError) as error:  # py-amqp has no socket any more when it was lost
        LOG.debug("the broker did not hear us leave: %s", error)
        connection.collect()
