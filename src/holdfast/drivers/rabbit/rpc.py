# SPDX-License-Identifier: Apache-2.0
"""Manager commands over oslo.messaging: an RPC client with the Manager interface, and a server.

A command carries its deadline: a manager that finds it in the queue too late drops it, because the
caller has already got 503. So a broker outage leaves nothing half-made behind.
"""

import inspect
import json
import logging
import threading
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, cast

import cattrs
import oslo_messaging
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging.rpc import dispatcher

from holdfast.model.caller import Caller
from holdfast.model.errors import HoldfastError, Unavailable, by_code
from holdfast.ports.manager import Manager
from holdfast.runtime.threads import BoundedCall

# Encoding of commands as JSON, by the type hints of the Manager interface.
#
# Requests are `{"v": 1, "name": …, "deadline": …, "args": {…}}`, answers `{"ok": …}` or
# `{"error": {"code", "message", "details"}}`. Both sides ignore unknown keys, so that
# neighbouring versions can talk.


VERSION = 1

_converter = cattrs.Converter()
_converter.register_unstructure_hook(datetime, lambda value: value.isoformat())
_converter.register_structure_hook(datetime, lambda value, _type: datetime.fromisoformat(value))
_converter.register_structure_hook(Any, lambda value, _type: value)


@cache
def _hints(method: str) -> dict[str, Any]:
    return typing.get_type_hints(getattr(Manager, method))


def parameters(method: str) -> list[str]:
    """Return the names of a command's arguments in order."""
    return [name for name in _hints(method) if name != "return"]


@cache
def commands() -> frozenset[str]:
    """Return the names of all commands; only these methods can be called from outside."""
    functions = inspect.getmembers(Manager, inspect.isfunction)
    return frozenset(name for name, _ in functions if not name.startswith("_"))


def pack(method: str, args: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _converter.unstructure(value, _hints(method)[name]) for name, value in args.items()
    }


def unpack(method: str, args: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(method)
    return {
        name: _converter.structure(value, hints[name])
        for name, value in args.items()
        if name in hints
    }


def pack_answer(method: str, result: Any) -> dict[str, Any]:
    return {"ok": _converter.unstructure(result, _hints(method)["return"])}


def pack_error(error: Exception) -> dict[str, Any]:
    if not isinstance(error, HoldfastError):
        message = "the manager met a defect of ours"
        return {"error": {"code": HoldfastError.code, "message": message}}
    details = json.loads(json.dumps(error.details, default=str))
    return {"error": {"code": error.code, "message": error.message, "details": details}}


def unpack_answer(method: str, answer: Mapping[str, Any]) -> Any:
    """Return the result, or raise the manager's error again."""
    error = answer.get("error")
    if error is None:
        return _result(method, answer.get("ok"))
    cls = by_code().get(error["code"], HoldfastError)
    if str(error["code"]).startswith("holdfast.driver."):  # also for drivers not loaded here
        cls = Unavailable
    raised = cls(error["message"])
    raised.details = dict(error.get("details") or {})
    raise raised


def _result(method: str, value: Any) -> Any:
    """Decode the result; None comes from an older manager that returns less."""
    return None if value is None else _converter.structure(value, _hints(method)["return"])


LOG = logging.getLogger(__name__)

Now = Callable[[], datetime]

TOPIC = "holdfast.manager"
#: Timeout of `ping`: a health probe runs often and must not wait as long as a command may.
PING_S = 2
#: Calls that may wait for the broker at once.
MOST_CALLS = 200
#: oslo.messaging method name; the command itself is an argument.
METHOD = "command"

_AWAY = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessagingException,
    OSError,
)


def transport(conf: cfg.ConfigOpts) -> Any:
    """Create a transport to the broker, with [oslo_messaging_rabbit] from Holdfast's files.

    oslo.messaging gets the global cfg.CONF, not Holdfast's own object: parts of it read the global
    one anyway, and it registers option names that Holdfast uses too.
    """
    theirs = cfg.CONF
    theirs(args=[], project="holdfast", default_config_files=list(conf.config_file))
    return oslo_messaging.get_rpc_transport(theirs, url=conf.transport_url)


class RemoteManager:
    """A Manager whose methods are RPC calls to any manager that reads the queue."""

    def __init__(self, conf: cfg.ConfigOpts, now: Now) -> None:
        self._conf = conf
        self._now = now
        self._transport = transport(conf)
        target = oslo_messaging.Target(topic=TOPIC, version="1.0")
        self._client = oslo_messaging.get_rpc_client(self._transport, target, retry=0)
        self._calls = BoundedCall("rpc-call", MOST_CALLS)

    def __getattr__(self, name: str) -> Any:
        if name not in commands():
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            names = parameters(name)
            return self._call(name, {**dict(zip(names, args, strict=False)), **kwargs})

        return call

    def _call(self, name: str, args: dict[str, Any]) -> Any:
        timeout = min(PING_S, self._conf.rpc_timeout) if name == "ping" else self._conf.rpc_timeout
        message = {
            "v": VERSION,
            "name": name,
            "deadline": self._now().timestamp() + timeout,
            "args": pack(name, args),
        }
        client = self._client.prepare(timeout=timeout)
        try:
            # oslo.messaging waits for ever for a broker it has never reached.
            answer = self._calls.run(
                timeout + 0.5, lambda: client.call({}, METHOD, message=message)
            )
        except oslo_messaging.MessagingTimeout as error:
            raise Unavailable(
                f"no manager answered within {timeout} s: is holdfast-manager running? If one had"
                " begun, it goes on: look before you repeat the command"
            ) from error
        except _AWAY as error:
            raise Unavailable(
                "no manager can be reached: the message broker is away. Nothing was changed;"
                " try again in a moment"
            ) from error
        return unpack_answer(name, answer)

    def close(self) -> None:
        """Disconnect from the broker; wait at most 3 s."""
        leave = threading.Thread(target=self._transport.cleanup, daemon=True)
        leave.start()
        leave.join(timeout=3)


def remote(conf: cfg.ConfigOpts, now: Now) -> Manager:
    """Return a Manager behind the broker; `now` is the database's clock, shared by both sides."""
    return cast(Manager, RemoteManager(conf, now))


class Server:
    """Reads commands from the queue and calls the manager in this process."""

    def __init__(self, conf: cfg.ConfigOpts, manager: Manager, now: Now, name: str) -> None:
        self._transport = transport(conf)
        target = oslo_messaging.Target(topic=TOPIC, server=name, version="1.0")
        self._server = oslo_messaging.get_rpc_server(
            self._transport,
            target,
            [_Endpoint(manager, now)],
            executor="threading",
            access_policy=dispatcher.DefaultRPCAccessPolicy,
        )

        # oslo.messaging blocks in start() while the broker is away; nothing else may wait for
        # it.
        self._starting = threading.Thread(target=self._server.start, name="rpc", daemon=True)

    def start(self) -> None:
        self._starting.start()

    def stop(self) -> None:
        if self._starting.is_alive():
            return  # never reached the broker: nothing to disconnect
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()


class _Endpoint:
    def __init__(self, manager: Manager, now: Now) -> None:
        self._manager = manager
        self._now = now

    def command(self, _context: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        name = message["name"]
        if name not in commands():
            return pack_error(HoldfastError(f"no command {name}"))
        try:
            if message["deadline"] < self._now().timestamp():
                LOG.warning("dropped a %s: its caller no longer waits", name)
                return pack_error(Unavailable("too late"))
            args = unpack(name, message["args"])
            _adopt(args.get("caller"))
            return pack_answer(name, getattr(self._manager, name)(**args))
        except HoldfastError as error:
            LOG.info("%s: %s", name, error.message)
            return pack_error(error)
        except Exception as error:  # the top of a thread; the caller gets a 500
            LOG.exception("command %s: unforeseen", name)
            return pack_error(error)


def _adopt(caller: Caller | None) -> None:
    """Put the caller's request id into the log lines of this thread."""
    if caller is not None:
        oslo_context.RequestContext(
            user_id=caller.user_id,
            project_id=caller.project_id,
            request_id=caller.request_id or None,
            overwrite=True,
        )
