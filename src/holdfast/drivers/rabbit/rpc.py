# SPDX-License-Identifier: Apache-2.0
"""Manager commands over oslo.messaging: an RPC client with the Manager interface, and a server.

A command carries its deadline: a manager that finds it in the queue too late drops it, because the
caller has already got 503. So a broker outage leaves nothing half-made behind.
"""

import inspect
import json
import logging
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import datetime
from functools import cache
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import cattrs
import oslo_messaging
from cattrs.cols import is_sequence
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging.rpc import dispatcher

from holdfast.model.errors import HoldfastError, Unavailable, by_code
from holdfast.model.lease import LeaseChange, NewLease
from holdfast.model.observation import Expectation
from holdfast.ports.manager import (
    Availability,
    AvailabilityQuery,
    Caller,
    Manager,
    Preview,
    RepairReport,
)
from holdfast.runtime.threads import BoundedCall, start_call

# Encoding of commands as JSON, by the type hints of the Manager interface. A command is a method
# of this interface, such as `Manager.create_lease`.
#
# Requests are `{"v": 1, "name": …, "deadline": …, "args": {…}}`, answers `{"ok": …}` or
# `{"error": {"code", "message", "details"}}`. So that neighbouring versions can talk, both sides
# ignore unknown keys of messages and values, and the client sends no argument that equals its
# default. The manager refuses an unknown argument: a command without it might do more than its
# caller wants.


VERSION = 1
SAME_RELEASE = "run API and manager of the same release"

Command = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")

_answers = cattrs.Converter()
_answers.register_unstructure_hook(datetime, lambda value: value.isoformat())
_answers.register_structure_hook(datetime, lambda value, _type: datetime.fromisoformat(value))
_answers.register_structure_hook(Any, lambda value, _type: value)
#: Reads requests and converts no type: cattrs reads "no" as True, and text as a list of letters.
_requests = _answers.copy()
_UNREADABLE = (cattrs.BaseValidationError, AttributeError, KeyError, TypeError, ValueError)


def _strict(*allowed: type) -> Callable[[Any, Any], Any]:
    def structure(value: Any, expected: Any) -> Any:
        if type(value) not in allowed:
            raise TypeError(f"expected {expected}")
        return value

    return structure


_requests.register_structure_hook(str, _strict(str))
_requests.register_structure_hook(int, _strict(int))
_requests.register_structure_hook(bool, _strict(bool))


@_requests.register_structure_hook_factory(is_sequence)
def _list_only(kind: Any) -> Callable[[Any, Any], Any]:
    element = typing.get_args(kind)[0]

    def structure(value: Any, _type: Any) -> Any:
        items = _strict(list)(value, "list")
        return tuple(_requests.structure(item, element) for item in items)

    return structure


@cache
def _hints(command: Command) -> dict[str, Any]:
    return typing.get_type_hints(command)


def pack(command: Command, args: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the arguments that differ from their defaults."""
    declared = inspect.signature(command).parameters
    return {
        name: _requests.unstructure(value, _hints(command)[name])
        for name, value in args.items()
        if value != declared[name].default
    }


def unpack(command: Command, args: Mapping[str, Any]) -> dict[str, Any]:
    """Decode and check the arguments of a command; HoldfastError names the wrong argument."""
    try:
        inspect.signature(command).bind(None, **args)
    except TypeError as error:
        raise Unavailable(f"wrong arguments: {str(error)[:200]}: {SAME_RELEASE}") from error
    return {name: _decode(name, value, _hints(command)[name]) for name, value in args.items()}


def _decode(name: str, value: Any, hint: Any) -> Any:
    try:
        return _requests.structure(value, hint)
    except _UNREADABLE as error:
        problems = "; ".join(cattrs.transform_error(error, path=name))[:500]
        raise HoldfastError(f"wrong argument: {problems}") from error


def pack_answer(command: Command, result: Any) -> dict[str, Any]:
    return {"ok": _answers.unstructure(result, _hints(command)["return"])}


def pack_error(error: Exception) -> dict[str, Any]:
    if not isinstance(error, HoldfastError):
        message = "unexpected error in the manager; the manager's log has the traceback"
        return {"error": {"code": HoldfastError.code, "message": message}}
    details = json.loads(json.dumps(error.details, default=str))
    return {"error": {"code": error.code, "message": error.message, "details": details}}


def unpack_answer(command: Command, answer: Mapping[str, Any]) -> Any:
    """Return the result, or raise the manager's error again."""
    error = answer.get("error")
    if error is None:
        return _result(command, answer.get("ok"))
    cls = by_code().get(error["code"], HoldfastError)
    if str(error["code"]).startswith("holdfast.driver."):  # also for drivers not loaded here
        cls = Unavailable
    raised = cls(error["message"])
    raised.details = dict(error.get("details") or {})
    raise raised


def _result(command: Command, value: Any) -> Any:
    """Decode the result; None comes from an older manager that returns less."""
    return None if value is None else _answers.structure(value, _hints(command)["return"])


LOG = logging.getLogger(__name__)

Now = Callable[[], datetime]

TOPIC = "holdfast.manager"
#: Timeout of `ping`: a health probe runs often and must not wait as long as a command may.
PING_S = 2
#: Seconds that `close` waits for the broker.
CLOSE_S = 3
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


class RemoteManager(Manager):
    """A Manager whose methods are RPC calls to any manager that reads the queue."""

    def __init__(self, conf: cfg.ConfigOpts, now: Now) -> None:
        """Connect at the first call; `now` is the database's clock, shared by both sides."""
        self._conf = conf
        self._now = now
        self._transport = transport(conf)
        target = oslo_messaging.Target(topic=TOPIC, version="1.0")
        self._client = oslo_messaging.get_rpc_client(self._transport, target, retry=0)
        self._calls = BoundedCall("rpc-call", MOST_CALLS)

    def ping(self) -> str:
        return self._within(min(PING_S, self._conf.rpc_timeout), Manager.ping)

    def create_lease(self, caller: Caller, lease: NewLease) -> Preview | None:
        return self._call(Manager.create_lease, caller, lease)

    def update_lease(self, caller: Caller, lease_id: str, change: LeaseChange) -> Preview | None:
        return self._call(Manager.update_lease, caller, lease_id, change)

    def delete_lease(self, caller: Caller, lease_id: str) -> None:
        self._call(Manager.delete_lease, caller, lease_id)

    def replace_host(
        self, caller: Caller, lease_id: str, reservation_id: str, host_id: int
    ) -> None:
        self._call(Manager.replace_host, caller, lease_id, reservation_id, host_id)

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        self._call(Manager.acknowledge, caller, lease_id)

    def plan_repair(
        self, caller: Caller, hosts: Sequence[str] = (), racks: Sequence[str] = ()
    ) -> RepairReport:
        return self._call(Manager.plan_repair, caller, hosts, racks)

    def run_repair(
        self, caller: Caller, approve: bool = False, reason: str = "", domain: str = ""
    ) -> RepairReport:
        return self._call(Manager.run_repair, caller, approve, reason, domain)

    def availability(self, caller: Caller, query: AvailabilityQuery) -> Availability:
        return self._call(Manager.availability, caller, query)

    def enrol_host(self, caller: Caller, name: str, capabilities: Mapping[str, str]) -> int:
        return self._call(Manager.enrol_host, caller, name, capabilities)

    def know_host(self, caller: Caller, name: str) -> int:
        return self._call(Manager.know_host, caller, name)

    def expected(self, caller: Caller, host: str, also: Sequence[str] = ()) -> Expectation:
        return self._call(Manager.expected, caller, host, also)

    def describe_host(
        self, caller: Caller, host_id: int, capabilities: Mapping[str, str | None]
    ) -> None:
        self._call(Manager.describe_host, caller, host_id, capabilities)

    def withdraw_host(self, caller: Caller, host_id: int) -> None:
        self._call(Manager.withdraw_host, caller, host_id)

    def set_property(self, caller: Caller, name: str, private: bool) -> None:
        self._call(Manager.set_property, caller, name, private)

    def enrol_floatingip(self, caller: Caller, network_id: str, address: str) -> str:
        return self._call(Manager.enrol_floatingip, caller, network_id, address)

    def withdraw_floatingip(self, caller: Caller, floatingip_id: str) -> None:
        self._call(Manager.withdraw_floatingip, caller, floatingip_id)

    def _call(
        self, command: Callable[Concatenate[Any, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return self._within(self._conf.rpc_timeout, command, *args, **kwargs)

    def _within(
        self,
        timeout_s: float,
        command: Callable[Concatenate[Any, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        arguments = inspect.signature(command).bind(self, *args, **kwargs).arguments
        del arguments["self"]
        message = {
            "v": VERSION,
            "name": command.__name__,
            "deadline": self._now().timestamp() + timeout_s,
            "args": pack(command, arguments),
        }
        result: R = unpack_answer(command, self._send(message, timeout_s))
        return result

    def _send(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        client = self._client.prepare(timeout=timeout_s)
        try:
            # oslo.messaging waits for ever for a broker it has never reached.
            answer: Mapping[str, Any] = self._calls.run(
                timeout_s + 0.5, lambda: client.call({}, METHOD, message=message)
            )
        except oslo_messaging.MessagingTimeout as error:
            raise Unavailable(
                f"no manager answered within {timeout_s} s: is holdfast-manager running? If one"
                " has begun the command, the manager completes it: check before you repeat it"
            ) from error
        except _AWAY as error:
            raise Unavailable(
                "no manager can be reached: the message broker is away. Nothing was changed;"
                " try again in a moment"
            ) from error
        return answer

    def close(self) -> None:
        """Disconnect from the broker; wait at most CLOSE_S seconds."""
        wait([start_call("rpc-close", self._transport.cleanup)], CLOSE_S)


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
        self._starting: Future[None] | None = None

    def start(self) -> None:
        # oslo.messaging blocks in start() while the broker is away; nothing else may wait for it.
        self._starting = start_call("rpc", self._listen)

    def stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            return  # never reached the broker: nothing to disconnect
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()

    def _listen(self) -> None:
        try:
            self._server.start()
        except Exception:  # the top of a thread
            LOG.exception("the manager does not read commands from the broker")


class _Served(NamedTuple):
    declared: Command  # in the Manager interface: the types of its arguments
    run: Command  # of the manager in this process


def served(manager: Manager) -> Mapping[str, _Served]:
    """Return the commands that can be called from outside, by their names in messages."""
    return {
        "ping": _Served(Manager.ping, manager.ping),
        "create_lease": _Served(Manager.create_lease, manager.create_lease),
        "update_lease": _Served(Manager.update_lease, manager.update_lease),
        "delete_lease": _Served(Manager.delete_lease, manager.delete_lease),
        "replace_host": _Served(Manager.replace_host, manager.replace_host),
        "acknowledge": _Served(Manager.acknowledge, manager.acknowledge),
        "plan_repair": _Served(Manager.plan_repair, manager.plan_repair),
        "run_repair": _Served(Manager.run_repair, manager.run_repair),
        "availability": _Served(Manager.availability, manager.availability),
        "enrol_host": _Served(Manager.enrol_host, manager.enrol_host),
        "know_host": _Served(Manager.know_host, manager.know_host),
        "expected": _Served(Manager.expected, manager.expected),
        "describe_host": _Served(Manager.describe_host, manager.describe_host),
        "withdraw_host": _Served(Manager.withdraw_host, manager.withdraw_host),
        "set_property": _Served(Manager.set_property, manager.set_property),
        "enrol_floatingip": _Served(Manager.enrol_floatingip, manager.enrol_floatingip),
        "withdraw_floatingip": _Served(Manager.withdraw_floatingip, manager.withdraw_floatingip),
    }


class _Endpoint:
    def __init__(self, manager: Manager, now: Now) -> None:
        self._commands = served(manager)
        self._now = now

    def command(self, _context: dict[str, Any], message: Any) -> dict[str, Any]:
        """Run a command; a message that is not a command of this version changes nothing."""
        try:
            name, deadline, args = self._read(message)
            return self._run(name, deadline, args)
        except HoldfastError as error:
            LOG.warning("a message in %s was refused: %s", TOPIC, error.message)
            return pack_error(error)

    def _read(self, message: Any) -> tuple[str, float, Mapping[str, Any]]:
        """Return name, deadline and arguments; HoldfastError unless the message is a command."""
        if not isinstance(message, dict):
            raise HoldfastError(f"a command is a JSON object, not {type(message).__name__}")
        if message.get("v") != VERSION:
            raise Unavailable(
                f"the manager reads commands of version {VERSION}, this one has"
                f" {str(message.get('v'))[:20]!r}: {SAME_RELEASE}"
            )
        name, deadline, args = (message.get(key) for key in ("name", "deadline", "args"))
        if not isinstance(name, str) or name not in self._commands:
            raise Unavailable(f"the manager has no command {str(name)[:80]!r}: {SAME_RELEASE}")
        if not isinstance(deadline, int | float) or not isinstance(args, dict):
            raise HoldfastError(f"command {name}: deadline must be a number, args a JSON object")
        return name, deadline, args

    def _run(self, name: str, deadline: float, args: Mapping[str, Any]) -> dict[str, Any]:
        declared, run = self._commands[name]
        try:
            if not deadline >= self._now().timestamp():  # NaN is too late as well
                LOG.warning("dropped a %s: its caller no longer waits", name)
                return pack_error(Unavailable("too late"))
            arguments = unpack(declared, args)
            _adopt(arguments.get("caller"))
            return pack_answer(declared, run(**arguments))
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
