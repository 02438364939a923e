# SPDX-License-Identifier: Apache-2.0
"""Nova's versioned notifications: services, servers and aggregates, parsed into values.

`parse` turns one message into a value, or raises NotUnderstood with the reason. It does nothing
else: no clock, no broker.

>>> parse(body)
ServiceNotice(event_type='service.update', …, host='cmp-7', disabled=True, forced_down=False, …)

A notification is a hint, not the truth: it can come twice (`message_id` is the same), late, or
after a newer one (`at` tells), and a host that crashes sends nothing at all. Code that acts on
one must read the state from the cloud.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from holdfast.model.errors import HoldfastError

_T = TypeVar("_T")
_Data = Mapping[str, Any]

#: Known major versions of Nova's payloads; of all other payloads the first.
_MAJORS: Mapping[str, frozenset[int]] = {
    "InstanceUpdatePayload": frozenset({1, 2}),
    "InstanceExistsPayload": frozenset({1, 2}),
}
#: Longest quote in a reason: a log line needs no more of a broken message.
_MOST_QUOTED = 80


class NotUnderstood(HoldfastError):
    """The message is not a versioned notification of Nova, or its version is unknown to
    Holdfast."""

    code: ClassVar[str] = "holdfast.notice.notunderstood"
    status: ClassVar[int] = 400
    title: ClassVar[str] = "Notification not understood"
    advice: ClassVar[str] = "Set `[notifications] notification_format = versioned` in nova.conf."


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The common fields of all notifications; `data` is Nova's payload as received."""

    event_type: str
    priority: str
    publisher: str
    at: datetime
    message_id: str
    request_id: str | None = None
    payload: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def noun(self) -> str:
        """The object: `instance` in instance.power_off.end."""
        return self.event_type.split(".")[0]

    @property
    def action(self) -> str:
        """The action: `power_off` in instance.power_off.end."""
        return self.event_type.split(".")[1]

    @property
    def phase(self) -> str | None:
        """The phase: `start`, `end`, `error` or `progress`; None for actions with a single
        message."""
        words = self.event_type.split(".")
        return words[2] if len(words) == 3 else None

    def says(self) -> str:
        """Return a sentence for people."""
        return f"from {self.publisher}"


@dataclass(frozen=True, kw_only=True)
class ServiceNotice(Notice):
    """Notification service.create, .update (disabled, reason or forced down changed), .delete."""

    host: str
    binary: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    last_seen_up: datetime | None
    service_id: str | None

    def says(self) -> str:
        state = "disabled" if self.disabled else "enabled"
        why = f" ({self.disabled_reason})" if self.disabled and self.disabled_reason else ""
        down = ", forced down" if self.forced_down else ""
        return f"{self.binary} on {self.host}: {state}{why}{down}"


@dataclass(frozen=True)
class Fault:
    """The exception that made an action fail."""

    exception: str
    message: str


@dataclass(frozen=True)
class Change:
    """The states before and after instance.update; unchanged states are the same."""

    old_state: str | None
    state: str | None
    old_task_state: str | None
    task_state: str | None


@dataclass(frozen=True, kw_only=True)
class ServerNotice(Notice):
    """Notification instance.*: the server at the time of the message."""

    server_id: str
    name: str | None
    project_id: str | None
    host: str | None
    node: str | None
    state: str | None
    power_state: str | None
    task_state: str | None
    locked: bool | None = None
    fault: Fault | None = None
    change: Change | None = None

    def says(self) -> str:
        doing = f", {self.task_state}" if self.task_state else ""
        why = f": {self.fault.exception}: {_short(self.fault.message)}" if self.fault else ""
        where = f" on {self.host}" if self.host else ""
        return f"server {self.server_id}{where}: {self.state}, {self.power_state}{doing}{why}"


@dataclass(frozen=True, kw_only=True)
class AggregateNotice(Notice):
    """Notification aggregate.*; hosts and metadata are None in cache_images.progress."""

    aggregate_id: int | None
    uuid: str | None
    name: str
    hosts: tuple[str, ...] | None
    metadata: Mapping[str, str] | None = field(hash=False)

    def says(self) -> str:
        hosts = "unknown" if self.hosts is None else ", ".join(self.hosts) or "none"
        return f"aggregate {self.name}: hosts {hosts}"


def parse(body: str | bytes | Mapping[str, Any]) -> Notice:
    """Parse a message body, with or without the envelope of oslo.messaging."""
    message = _open(body)
    event_type = _text(message, "event_type")
    words = event_type.split(".")
    if len(words) not in (2, 3) or not all(words):
        raise NotUnderstood(f"{_short(event_type)}: not the name of an event of Nova")
    payload = message.get("payload")
    if not isinstance(payload, Mapping) or "nova_object.data" not in payload:
        raise NotUnderstood(
            f"{_short(event_type)}: not a versioned notification; nova.conf needs"
            " [notifications] notification_format = versioned or both"
        )
    name, data = _payload(event_type, payload)
    head: dict[str, Any] = {
        "event_type": event_type,
        "priority": _text(message, "priority").lower(),
        "publisher": _text(message, "publisher_id"),
        "at": _time(message, "timestamp", naive_is_utc=True),
        "message_id": _text(message, "message_id"),
        "request_id": _maybe(message, "_context_request_id", str),
        "payload": name,
        "data": data,
    }
    try:
        return _KINDS.get(words[0], _plain)(head, data)
    except NotUnderstood as error:
        raise NotUnderstood(f"{_short(event_type)} ({name}): {error.message}") from error


def _plain(head: dict[str, Any], _data: _Data) -> Notice:
    return Notice(**head)


def _service(head: dict[str, Any], data: _Data) -> ServiceNotice:
    return ServiceNotice(
        **head,
        host=_text(data, "host"),
        binary=_text(data, "binary"),
        disabled=_need(data, "disabled", bool),
        disabled_reason=_maybe(data, "disabled_reason", str),
        forced_down=_need(data, "forced_down", bool),
        last_seen_up=_time(data, "last_seen_up") if data.get("last_seen_up") else None,
        service_id=_maybe(data, "uuid", str),
    )


def _server(head: dict[str, Any], data: _Data) -> Notice:
    if "uuid" not in data:
        return _plain(head, data)  # an instance event about no single server
    return ServerNotice(
        **head,
        server_id=_text(data, "uuid"),
        name=_maybe(data, "display_name", str),
        project_id=_maybe(data, "tenant_id", str),
        host=_maybe(data, "host", str),
        node=_maybe(data, "node", str),
        state=_maybe(data, "state", str),
        power_state=_maybe(data, "power_state", str),
        task_state=_maybe(data, "task_state", str),
        locked=_maybe(data, "locked", bool),
        fault=_fault(data),
        change=_change(data),
    )


def _aggregate(head: dict[str, Any], data: _Data) -> AggregateNotice:
    hosts, metadata = _maybe(data, "hosts", list), _maybe(data, "metadata", dict)
    if not all(isinstance(text, str) for text in (*(hosts or ()), *(metadata or {}).values())):
        raise NotUnderstood("hosts or metadata hold what is no text")
    return AggregateNotice(
        **head,
        aggregate_id=_maybe(data, "id", int),
        uuid=_maybe(data, "uuid", str),
        name=_text(data, "name"),
        hosts=None if hosts is None else tuple(hosts),
        metadata=metadata,
    )


_KINDS: Mapping[str, Callable[[dict[str, Any], _Data], Notice]] = {
    "service": _service,
    "instance": _server,
    "aggregate": _aggregate,
}


def _fault(data: _Data) -> Fault | None:
    inner = _inner(data, "fault")
    if inner is None:
        return None
    return Fault(
        _maybe(inner, "exception", str) or "unknown",
        _maybe(inner, "exception_message", str) or "",
    )


def _change(data: _Data) -> Change | None:
    inner = _inner(data, "state_update")
    if inner is None:
        return None
    return Change(
        old_state=_maybe(inner, "old_state", str),
        state=_maybe(inner, "state", str),
        old_task_state=_maybe(inner, "old_task_state", str),
        task_state=_maybe(inner, "new_task_state", str),
    )


def _open(body: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """Unwrap the envelope; the old driver `messaging` sends the message without one."""
    message = _loads(body) if isinstance(body, str | bytes) else body
    if isinstance(message, Mapping) and "oslo.message" in message:
        version = message.get("oslo.version")
        if not isinstance(version, str) or version.split(".")[0] != "2":
            raise NotUnderstood(f"envelope of version {_short(version)}, we know 2: too new for us")
        message = _loads(message["oslo.message"])
    if not isinstance(message, Mapping):
        raise NotUnderstood("not a message of oslo.messaging: no JSON object")
    return message


def _loads(text: object) -> Any:
    if not isinstance(text, str | bytes):
        raise NotUnderstood("not a message of oslo.messaging: no text in the envelope")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"not a message of oslo.messaging: not JSON: {error}") from error


def _payload(event_type: str, payload: _Data) -> tuple[str, _Data]:
    """Return name and data of the payload; ignore unknown keys of newer minor versions."""
    name, version, data = (
        payload.get("nova_object.name"),
        payload.get("nova_object.version"),
        payload["nova_object.data"],
    )
    if not isinstance(name, str) or not isinstance(version, str) or not isinstance(data, Mapping):
        raise NotUnderstood(f"{_short(event_type)}: a payload without name, version or data")
    majors = _MAJORS.get(name, frozenset({1}))
    major = version.partition(".")[0]
    if event_type.partition(".")[0] in _KINDS and major not in {
        str(known_major) for known_major in majors
    }:
        raise NotUnderstood(
            f"{_short(event_type)}: {_short(name)} of version {_short(version)}, we know"
            f" {', '.join(map(str, sorted(majors)))}: this Nova is too new for this Holdfast"
        )
    return f"{name} {version}", data


def _inner(data: _Data, key: str) -> _Data | None:
    """Return the data of a nested object of the payload."""
    value = data.get(key)
    if value is None:
        return None
    inner = value.get("nova_object.data") if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping):
        raise NotUnderstood(f"{key} is not an object of Nova")
    return inner


def _need(data: _Data, key: str, kind: type[_T]) -> _T:
    value = _maybe(data, key, kind)
    if value is None:
        raise NotUnderstood(f"no {key}")
    return value


def _text(data: _Data, key: str) -> str:
    text = _need(data, key, str)
    if not text:
        raise NotUnderstood(f"{key} is empty")
    return text


def _maybe(data: _Data, key: str, kind: type[_T]) -> _T | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, kind):
        raise NotUnderstood(f"{key} is no {kind.__name__}: {_short(value)}")
    return value


def _time(data: _Data, key: str, *, naive_is_utc: bool = False) -> datetime:
    text = _text(data, key)
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None and naive_is_utc:
            at = at.replace(tzinfo=UTC)  # oslo.messaging writes UTC and does not say so
        if at.tzinfo is None:
            raise ValueError("no time zone")
        return at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise NotUnderstood(f"{key} is no time: {_short(text)}") from error


def _short(value: object) -> str:
    """Shorten a value for a sentence; for a value other than text only its type, as it may be
    large."""
    text = value.replace("\n", " ") if isinstance(value, str) else f"a {type(value).__name__}"
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"
