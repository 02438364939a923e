# SPDX-License-Identifier: Apache-2.0
"""Notifications of the instance HA contract: a host, a guest or a process stopped or started.

This module validates reports; `model.incident.classify` decides what to do about them.

>>> check(PROCESS, {"process_name": "nova-compute"})
Traceback (most recent call last):
holdfast.model.errors.InvalidInput: notification.payload: event is missing; a PROCESS report says \
event, process_name
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.model.errors import InvalidInput

COMPUTE_HOST, PROCESS, VM = "COMPUTE_HOST", "PROCESS", "VM"
TYPES = (COMPUTE_HOST, PROCESS, VM)
NEW, RUNNING, FINISHED, ERROR, IGNORED, FAILED = (
    "new",
    "running",
    "finished",
    "error",
    "ignored",
    "failed",
)
#: Statuses of a notification that is being processed, or will be.
OPEN = (NEW, RUNNING, ERROR)
LONGEST_VALUE = 255
_NAME = re.compile(r"[\w:. -]{1,255}", re.ASCII)
_HOSTNAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_EVENTS = ("STARTED", "STOPPED")


@dataclass(frozen=True)
class Notification:
    """A stored notification.

    `segment_host_uuid` stays when the host has left its segment meanwhile.
    """

    id: int
    uuid: str
    type: str
    segment_host_uuid: str
    segment_uuid: str | None
    generated_time: datetime
    payload: Mapping[str, Any]
    status: str
    message: str | None = None
    incident_id: str | None = None
    reporter: str | None = None  # the user who posted it; the contract never shows it
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class NewNotification:
    """A validated report as received."""

    type: str
    hostname: str
    generated_time: datetime
    payload: Mapping[str, Any]
    reporter: str = ""  # the user who posted it


@dataclass(frozen=True)
class _Shape:
    """The keys of a payload, and the permitted values of some keys."""

    required: Sequence[str]
    optional: Sequence[str]
    values: Mapping[str, Sequence[str]]


_SHAPES: Mapping[str, _Shape] = {
    COMPUTE_HOST: _Shape(
        ("event",),
        ("host_status", "cluster_status"),
        {
            "event": _EVENTS,
            "host_status": ("NORMAL", "UNKNOWN"),
            "cluster_status": ("ONLINE", "OFFLINE"),
        },
    ),
    PROCESS: _Shape(("event", "process_name"), (), {"event": _EVENTS}),
    VM: _Shape(("event", "instance_uuid", "vir_domain_event"), (), {}),
}


def check_hostname(hostname: str) -> str:
    if not _HOSTNAME.fullmatch(hostname):
        raise InvalidInput(
            f"notification.hostname: {hostname[:40]!r} is no host name: letters, digits, dots,"
            " dashes and underscores, at most 255"
        )
    return hostname


def check(type_: str, payload: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the payload if valid for this type; InvalidInput names the wrong field."""
    shape = _SHAPES[type_]
    for key, value in payload.items():
        if not _NAME.fullmatch(key):
            raise _bad("", f"{key[:40]!r} is no name of a field")
        if not isinstance(value, str) or len(value) > LONGEST_VALUE:
            raise _bad(key, f"must be text of at most {LONGEST_VALUE} characters")
    missing = sorted(set(shape.required) - payload.keys())
    if missing:
        wanted = ", ".join(shape.required)
        raise _bad("", f"{', '.join(missing)} is missing; a {type_} report says {wanted}")
    allowed = {*shape.required, *shape.optional}
    if strange := sorted(payload.keys() - allowed):
        raise _bad("", f"{', '.join(strange)[:80]} is not known; known are {sorted(allowed)}")
    for key in shape.required:
        if not payload[key]:
            raise _bad(key, "is empty")
    for key, possible in shape.values.items():
        if key in payload and payload[key] not in possible:
            raise _bad(key, f"{payload[key][:40]!r} is not one of {', '.join(possible)}")
    if type_ == VM and not _is_uuid(payload["instance_uuid"]):
        raise _bad("instance_uuid", f"{payload['instance_uuid'][:40]!r} is no uuid")
    return payload


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)).replace("-", "") == text.lower().replace("-", "")
    except ValueError:
        return False


def _bad(field: str, why: str) -> InvalidInput:
    where = f"notification.payload.{field}" if field else "notification.payload"
    return InvalidInput(f"{where}: {why}")
