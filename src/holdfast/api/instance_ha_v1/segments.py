# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/segments and /segments/SEGMENT/hosts: failover segments and their hosts."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.api.instance_ha_v1 import OURS, filters, page, stamp
from holdfast.api.request import Request, Response
from holdfast.model.errors import InvalidInput
from holdfast.model.host import same
from holdfast.model.segment import METHODS, Segment, SegmentHost, text, truth

#: The first version that accepts `enabled` in requests.
_ENABLED = (1, 2)
BOOLEAN = {"type": ["boolean", "string"]}
TEXT = {"type": "string", "minLength": 1, "maxLength": 255}
#: Longest text, in characters, that fits into a TEXT column of MariaDB.
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
    """Return the schema of a body with an object under `name`.

    Without `required`, the object needs at least one field.
    """
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


def index(request: Request) -> Response:
    where = filters(request, ("name", "recovery_method", "service_type"), ("enabled",))
    segments = request.services.store.segments.list_all(where, page(request))
    return Response({"segments": [view(segment, request.microversion) for segment in segments]})


def show(request: Request) -> Response:
    segment = request.services.store.segments.segment(request.path["segment_id"])
    return Response({"segment": view(segment, request.microversion)})


def create(request: Request) -> Response:
    segment = request.services.store.segments.create(request.services.new_id(), _values(request))
    return Response({"segment": view(segment, request.microversion)}, status=201)


def update(request: Request) -> Response:
    changed = request.services.store.segments.change(request.path["segment_id"], _values(request))
    return Response({"segment": view(changed, request.microversion)})


def delete(request: Request) -> Response:
    request.services.store.segments.delete(request.path["segment_id"])
    return Response(status=204)


def _values(request: Request) -> dict[str, Any]:
    given: dict[str, Any] = dict(request.body["segment"])
    if "enabled" in given and request.microversion < _ENABLED:
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


def times(item: Any) -> dict[str, Any]:
    """Return the timestamps of an object. `deleted` is always false: deleted rows are gone."""
    return {
        "created_at": stamp(item.created_at),
        "updated_at": stamp(item.updated_at),
        "deleted_at": None,
        "deleted": False,
    }


# /instance-ha/v1/segments/SEGMENT/hosts: hosts of a segment.


_FLAGS = ("reserved", "on_maintenance")
_TYPE = re.compile(r"[a-zA-Z0-9]{1,255}")
_HOST_FIELDS = {
    "name": TEXT,
    "type": TEXT,
    "control_attributes": {"type": "string", "maxLength": LONG},
    "reserved": BOOLEAN,
    "on_maintenance": BOOLEAN,
}
HOST_CREATE = wrapped("host", _HOST_FIELDS, "name", "type", "control_attributes")
HOST_UPDATE = wrapped("host", _HOST_FIELDS)


def list_hosts(request: Request) -> Response:
    where = filters(request, ("name", "type", "control_attributes"), _FLAGS)
    segment_hosts = request.services.store.segments.hosts(
        request.path["segment_id"], where, page(request)
    )
    return Response(
        {"hosts": [host_view(segment_host, request.microversion) for segment_host in segment_hosts]}
    )


def show_host(request: Request) -> Response:
    return Response({"host": host_view(_host(request), request.microversion)})


def create_host(request: Request) -> Response:
    services, ref = request.services, request.path["segment_id"]
    services.store.segments.segment(ref)  # NotFound before the manager asks the cloud
    values = _host_values(request)
    host_id = services.manager.know_host(request.caller, values.pop("name"))
    segment_host = services.store.segments.add_host(services.new_id(), ref, host_id, values)
    return Response({"host": host_view(segment_host, request.microversion)}, status=201)


def update_host(request: Request) -> Response:
    host, values = _host(request), _host_values(request)
    name = values.pop("name", host.name)
    if not same(name, host.name):
        values["host_id"] = request.services.manager.know_host(request.caller, name)
    ref = request.path["segment_id"]
    changed = request.services.store.segments.change_host(ref, host.uuid, values)
    return Response({"host": host_view(changed, request.microversion)})


def delete_host(request: Request) -> Response:
    request.services.store.segments.delete_host(request.path["segment_id"], request.path["host_id"])
    return Response(status=204)


def _host(request: Request) -> SegmentHost:
    return request.services.store.segments.host(request.path["segment_id"], request.path["host_id"])


def _host_values(request: Request) -> dict[str, Any]:
    given: dict[str, Any] = dict(request.body["host"])
    if "name" in given:
        text(given["name"], "host.name")
    if "type" in given and not _TYPE.fullmatch(given["type"]):
        raise InvalidInput("host.type: letters and digits only, such as COMPUTE")
    return given | {name: truth(given[name], f"host.{name}") for name in _FLAGS if name in given}


def host_view(host: SegmentHost, microversion: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": host.id,
        "uuid": host.uuid,
        "name": host.name,
        "failover_segment_id": host.segment.uuid,
        "failover_segment": view(host.segment, microversion),
        "type": host.type,
        "reserved": host.reserved,
        "control_attributes": host.control_attributes,
        "on_maintenance": host.on_maintenance,
        **times(host),
    }
