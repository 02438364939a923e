# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/segments: groups of hosts that stand in for each other."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.instance_ha_v1 import OURS
from holdfast.api.instance_ha_v1.dates import stamp
from holdfast.api.instance_ha_v1.lists import filters, page
from holdfast.model.errors import InvalidInput
from holdfast.model.segment import METHODS, Segment, text, truth

#: `enabled` is a field of requests from here on.
_ENABLED = (1, 2)
BOOLEAN = {"type": ["boolean", "string"]}
TEXT = {"type": "string", "minLength": 1, "maxLength": 255}
#: MariaDB keeps no more in a text.
LONG = 16_000
_FIELDS = {
    "name": TEXT,
    "description": {"type": ["string", "null"], "maxLength": LONG},
    "service_type": TEXT,
    "recovery_method": {"type": "string", "enum": list(METHODS)},
    "enabled": BOOLEAN,
    "spare_hosts": {"type": "integer", "minimum": 0, "maximum": 100_000},
    "trust_host_status": BOOLEAN,
    "trust_notifications": BOOLEAN,
}


def wrapped(name: str, fields: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """A body that holds one object under its name, with the fields required, or any if none is."""
    inner: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(fields),
        **({"required": list(required)} if required else {"minProperties": 1}),
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name],
        "properties": {name: inner},
    }


CREATE = wrapped("segment", _FIELDS, "name", "recovery_method", "service_type")
UPDATE = wrapped("segment", _FIELDS)


def index(ask: Ask) -> Reply:
    where = filters(ask, ("name", "recovery_method", "service_type"), ("enabled",))
    found = ask.services.store.segments.list_all(where, page(ask))
    return Reply({"segments": [view(one, ask.microversion) for one in found]})


def show(ask: Ask) -> Reply:
    found = ask.services.store.segments.segment(ask.path["segment_id"])
    return Reply({"segment": view(found, ask.microversion)})


def create(ask: Ask) -> Reply:
    made = ask.services.store.segments.create(ask.services.new_id(), _values(ask))
    return Reply({"segment": view(made, ask.microversion)}, status=201)


def update(ask: Ask) -> Reply:
    changed = ask.services.store.segments.change(ask.path["segment_id"], _values(ask))
    return Reply({"segment": view(changed, ask.microversion)})


def delete(ask: Ask) -> Reply:
    ask.services.store.segments.delete(ask.path["segment_id"])
    return Reply(status=204)


def _values(ask: Ask) -> dict[str, Any]:
    given: dict[str, Any] = dict(ask.body["segment"])
    if "enabled" in given and ask.microversion < _ENABLED:
        raise InvalidInput(
            "segment.enabled: additional properties are not allowed before version 1.2; ask for"
            " it: OpenStack-API-Version: instance-ha 1.2"
        )
    for name in given.keys() & {"name", "service_type"}:
        text(given[name], f"segment.{name}")
    flags = given.keys() & {"enabled", "trust_host_status", "trust_notifications"}
    return given | {name: truth(given[name], f"segment.{name}") for name in flags}


def view(segment: Segment, microversion: tuple[int, int]) -> dict[str, Any]:
    shown = {
        "id": segment.id,
        "uuid": segment.uuid,
        "name": segment.name,
        "service_type": segment.service_type,
        "enabled": segment.enabled,
        "description": segment.description,
        "recovery_method": segment.recovery_method,
        **times(segment),
    }
    if microversion < OURS:
        return shown
    return shown | {
        "spare_hosts": segment.spare_hosts,
        "trust_host_status": segment.trust_host_status,
        "trust_notifications": segment.trust_notifications,
    }


def times(one: Any) -> dict[str, Any]:
    """What is deleted is gone: nobody is shown anything that was."""
    return {
        "created_at": stamp(one.created_at),
        "updated_at": stamp(one.updated_at),
        "deleted_at": None,
        "deleted": False,
    }
