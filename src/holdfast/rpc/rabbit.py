# SPDX-License-Identifier: Apache-2.0
"""Commands over oslo.messaging: a client that is a Manager, and a server in front of one.

A command carries its deadline: a manager that finds it in the queue too late drops it, because the
caller has long been told 503. So a broker that was away leaves nothing half-made behind.
"""

import logging
from typing import Any, cast

import oslo_messaging
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging.rpc import dispatcher

from holdfast.model.caller import Caller
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.manager import Manager
from holdfast.rpc import wire

LOG = logging.getLogger(__name__)

TOPIC = "holdfast.manager"
#: A health probe asks often and must not wait as long as a command may.
PING_S = 2
#: oslo.messaging method name; the command itself is an argument.
METHOD = "command"

_AWAY = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessagingTimeout,
    oslo_messaging.MessagingException,
    OSError,
)


def transport(conf: cfg.ConfigOpts) -> Any:
    """A connection to the broker; [oslo_messaging_rabbit] and its like are read from our files.

    oslo.messaging gets the library-wide configuration, not ours: parts of it read that one
    whatever they are given, and it registers names that we use too.
    """
    theirs = cfg.CONF
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    return oslo_messaging.get_rpc_transport(theirs, url=conf.transport_url)


class RemoteManager:
    """Looks like a Manager; each method is a call to whichever manager takes it from the queue."""

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock) -> None:
        self._conf = conf
        self._clock = clock
        self._transport = transport(conf)
        target = oslo_messaging.Target(topic=TOPIC, version="1.0")
        self._client = oslo_messaging.get_rpc_client(self._transport, target, retry=0)

    def __getattr__(self, name: str) -> Any:
        if name not in wire.commands():
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            names = [hint for hint in wire._hints(name) if hint != "return"]
            return self._call(name, {**dict(zip(names, args, strict=False)), **kwargs})

        return call

    def _call(self, name: str, args: dict[str, Any]) -> Any:
        timeout = min(PING_S, self._conf.rpc_timeout) if name == "ping" else self._conf.rpc_timeout
        message = {
            "v": wire.VERSION,
            "name": name,
            "deadline": self._clock.now().timestamp() + timeout,
            "args": wire.pack(name, args),
        }
        client = self._client.prepare(timeout=timeout)
        try:
            answer = client.call({}, METHOD, message=message)
        except _AWAY as error:
            raise Unavailable(
                f"no manager answered within {timeout} s: is holdfast-manager running, and is the"
                " message broker up? Nothing was changed; try again"
            ) from error
        return wire.unpack_answer(answer)

    def close(self) -> None:
        self._transport.cleanup()


def remote(conf: cfg.ConfigOpts, clock: Clock) -> Manager:
    return cast(Manager, RemoteManager(conf, clock))


class Server:
    """Takes commands from the queue and hands them to the manager in this process."""

    def __init__(self, conf: cfg.ConfigOpts, manager: Manager, clock: Clock, name: str) -> None:
        self._transport = transport(conf)
        target = oslo_messaging.Target(topic=TOPIC, server=name, version="1.0")
        self._server = oslo_messaging.get_rpc_server(
            self._transport,
            target,
            [_Endpoint(manager, clock)],
            executor="threading",
            access_policy=dispatcher.DefaultRPCAccessPolicy,
        )

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()


class _Endpoint:
    def __init__(self, manager: Manager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock

    def command(self, _context: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        name = message["name"]
        if name not in wire.commands():
            return wire.pack_error(HoldfastError(f"no command {name}"))
        if message["deadline"] < self._clock.now().timestamp():
            LOG.warning("dropped a %s that nobody waits for any more", name)
            return wire.pack_error(Unavailable("too late"))
        try:
            args = wire.unpack(name, message["args"])
            _adopt(args.get("caller"))
            return {"ok": getattr(self._manager, name)(**args)}
        except HoldfastError as error:
            LOG.info("%s: %s", name, error.message)
            return wire.pack_error(error)
        except Exception as error:  # the top of a thread; the caller gets a 500
            LOG.exception("command %s: unforeseen", name)
            return wire.pack_error(error)


def _adopt(caller: Caller | None) -> None:
    """Log lines of this thread carry the caller's request id from here on."""
    if caller is not None:
        oslo_context.RequestContext(
            user_id=caller.user_id,
            project_id=caller.project_id,
            request_id=caller.request_id or None,
            overwrite=True,
        )
