# SPDX-License-Identifier: Apache-2.0
"""The message broker publisher: notifications in oslo.messaging's notifier format 2.0.

oslo.messaging's own Notifier logs failures instead of raising them and gives every attempt another
message id. So the publisher calls the transport below, as the driver `messagingv2` does.
"""

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from holdfast.model.errors import DriverError
from holdfast.ports.publishers import INSTANCE_HA, NEWS, LeaseNotice
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import BoundedCall

PORT = "messaging"
#: Sends that may hang at once; more are not needed to find that the broker is away.
MOST_SENDS = 16
FORMAT = 2.0


class Messaging:
    """The publisher for a broker, with an exchange and topics."""

    name = PORT
    hears = NEWS

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.publishers
        self.timeout_s: float = options.messaging_timeout_s
        url = options.transport_url or conf.transport_url
        if not url:
            raise DriverError(
                PORT,
                "[publishers] messaging is true and there is no broker: set transport_url"
                " there or in [DEFAULT]",
                retryable=False,
            )
        oslo_messaging = _oslo_messaging()
        self._away = _troubles(oslo_messaging)
        self._target = oslo_messaging.Target
        self._topics, self._exchange = self._where(options)
        self._transport = _transport(conf, url)
        self._bounded = BoundedCall("notify", MOST_SENDS)

    def _where(self, options: Any) -> tuple[Sequence[str], str]:
        """Return topics and exchange."""
        return options.topics, options.exchange

    def send(self, notice: LeaseNotice) -> None:
        message = {
            "message_id": notice.message_id,
            "publisher_id": notice.publisher,
            "event_type": notice.event_type,
            "priority": notice.priority.upper(),
            "payload": dict(notice.payload),
            "timestamp": str(notice.at.replace(tzinfo=None)),
        }
        try:
            self._bounded.run(self.timeout_s, lambda: self._send(notice.priority, message))
        except self._away as error:
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise DriverError(
                PORT, f"the broker did not take it: {reason}", retryable=True
            ) from error

    def _send(self, priority: str, message: dict[str, Any]) -> None:
        for topic in self._topics:
            target = self._target(topic=f"{topic}.{priority}", exchange=self._exchange)
            # A copy, because the transport adds a transmission id to it.
            self._transport._send_notification(target, {}, {**message}, version=FORMAT, retry=0)

    def close(self) -> None:
        """Disconnect from the broker; wait at most 3 s."""
        try:
            self._bounded.run(3.0, self._transport.cleanup)
        except TimeoutError:
            return  # the broker does not answer


class InstanceHaMessaging(Messaging):
    """The publisher of the instance HA contract, on the topics and exchange of Masakari."""

    name = "instance-ha"
    hears = INSTANCE_HA

    def _where(self, options: Any) -> tuple[Sequence[str], str]:
        return options.instance_ha_topics, options.instance_ha_exchange


def _oslo_messaging() -> Any:
    """Import oslo.messaging only when needed: it is an extra, and slow."""
    try:
        from oslo_service import backend

        # Choose threads before oslo.messaging is imported and chooses eventlet.
        backend.init_backend(backend.BackendType.THREADING)
        import oslo_messaging
    except ImportError as error:
        raise DriverError(
            PORT,
            f"[publishers] messaging needs {error.name}: pip install holdfast[rabbit]",
            retryable=False,
        ) from error
    return oslo_messaging


def _troubles(oslo_messaging: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions raised for a broker that is away or refuses.

    These are errors of oslo.messaging and of the libraries below. A timeout is an OSError.
    """
    from amqp import AMQPError
    from kombu.exceptions import KombuError

    return oslo_messaging.MessagingException, KombuError, AMQPError, OSError


def _transport(conf: cfg.ConfigOpts, url: str) -> Any:
    """Create the transport, with [oslo_messaging_rabbit] from Holdfast's files.

    oslo.messaging gets its own global configuration, because it registers option names that
    Holdfast uses too.
    """
    theirs = cfg.CONF
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    return _oslo_messaging().get_notification_transport(theirs, url=url)


def connect(conf: cfg.ConfigOpts, _clock: Clock) -> Sequence[Messaging]:
    options = conf.publishers
    if not options.messaging:
        return []
    theirs = [InstanceHaMessaging(conf)] if options.instance_ha_topics else []
    return [Messaging(conf), *theirs]
