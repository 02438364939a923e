# SPDX-License-Identifier: Apache-2.0
"""Notifications on a message broker, in the form of oslo.messaging's notifier (format 2.0).

Its Notifier itself is no use to us: it logs failures instead of raising them and gives every try
another message id. So the transport below it is called, as its driver `messagingv2` does.
"""

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from holdfast.model.errors import DriverError
from holdfast.ports.publishers import INSTANCE_HA, NEWS, LeaseNotice
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import BoundedCall

PORT = "messaging"
#: Sends that may hang at once; a broker that is away needs no more to prove it.
MOST_SENDS = 16
FORMAT = 2.0


class Messaging:
    """One broker, one exchange, some topics."""

    name = PORT
    hears = NEWS

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.lease_notifications
        self.timeout_s: float = options.messaging_timeout_s
        url = options.transport_url or conf.transport_url
        if not url:
            raise DriverError(
                PORT,
                "[lease_notifications] messaging is true and there is no broker: set transport_url"
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
        """Topics and exchange."""
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
            said = (str(error).splitlines() or [repr(error)])[0]
            raise DriverError(
                PORT, f"the broker did not take it: {said}", retryable=True
            ) from error

    def _send(self, priority: str, message: dict[str, Any]) -> None:
        for topic in self._topics:
            target = self._target(topic=f"{topic}.{priority}", exchange=self._exchange)
            # a copy: it is marked with the id of its transmission on the way
            self._transport._send_notification(target, {}, {**message}, version=FORMAT, retry=0)

    def close(self) -> None:
        """Take leave of the broker, if it is there to hear it."""
        try:
            self._bounded.run(3.0, self._transport.cleanup)
        except TimeoutError:
            return  # it is not


class InstanceHaMessaging(Messaging):
    """The notifications of the instance HA contract, where Masakari sends them."""

    name = "instance-ha"
    hears = INSTANCE_HA

    def _where(self, options: Any) -> tuple[Sequence[str], str]:
        return options.instance_ha_topics, options.instance_ha_exchange


def _oslo_messaging() -> Any:
    """Imported only where it is wanted: it is an extra, and slow."""
    try:
        from oslo_service import backend

        # Threads, before oslo.messaging is imported and chooses eventlet for us.
        backend.init_backend(backend.BackendType.THREADING)
        import oslo_messaging
    except ImportError as error:
        raise DriverError(
            PORT,
            f"[lease_notifications] messaging needs {error.name}: pip install holdfast[rabbit]",
            retryable=False,
        ) from error
    return oslo_messaging


def _troubles(oslo_messaging: Any) -> tuple[type[Exception], ...]:
    """What a broker that is away, or of another mind, makes it raise: its own errors and those of
    the libraries below. A timeout is an OSError."""
    from amqp import AMQPError
    from kombu.exceptions import KombuError

    return oslo_messaging.MessagingException, KombuError, AMQPError, OSError


def _transport(conf: cfg.ConfigOpts, url: str) -> Any:
    """[oslo_messaging_rabbit] and its like are read from our files, by the configuration that
    oslo.messaging has for itself: it registers names that we use too."""
    theirs = cfg.CONF
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    return _oslo_messaging().get_notification_transport(theirs, url=url)


def connect(conf: cfg.ConfigOpts, _clock: Clock) -> Sequence[Messaging]:
    options = conf.lease_notifications
    if not options.messaging:
        return []
    theirs = [InstanceHaMessaging(conf)] if options.instance_ha_topics else []
    return [Messaging(conf), *theirs]
