# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/segments/SEGMENT/hosts: who is in a segment, and as what."""

import re
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.instance_ha_v1 import segments
from holdfast.api.instance_ha_v1.lists import filters, page
from holdfast.api.instance_ha_v1.segments import BOOLEAN, LONG, TEXT, times, wrapped
from holdfast.model.errors import InvalidInput
from holdfast.model.host import same
from holdfast.model.segment import SegmentHost, text, truth

_FLAGS = ("reserved", "on_maintenance")
_TYPE = re.compile(r"[a-zA-Z0-9]{1,255}")
_FIELDS = {
    "name": TEXT,
    "type": TEXT,
    "control_attributes": {"type": "string", "maxLength": LONG},
    "reserved": BOOLEAN,
    "on_maintenance": BOOLEAN,
}
CREATE = wrapped("host", _FIELDS, "name", "type", "control_attributes")
UPDATE = wrapped("host", _FIELDS)


def index(ask: Ask) -> Reply:
    where = filters(ask, ("name", "type", "control_attributes"), _FLAGS)
    found = ask.services.store.segments.hosts(ask.path["segment_id"], where, page(ask))
    return Reply({"hosts": [view(one, ask.microversion) for one in found]})


def show(ask: Ask) -> Reply:
    return Reply({"host": view(_host(ask), ask.microversion)})


def create(ask: Ask) -> Reply:
    services, ref = ask.services, ask.path["segment_id"]
    services.store.segments.segment(ref)  # before the cloud is asked
    values = _values(ask)
    host_id = services.manager.know_host(ask.caller, values.pop("name"))
    made = services.store.segments.add_host(services.new_id(), ref, host_id, values)
    return Reply({"host": view(made, ask.microversion)}, status=201)


def update(ask: Ask) -> Reply:
    host, values = _host(ask), _values(ask)
    name = values.pop("name", host.name)
    if not same(name, host.name):
        values["host_id"] = ask.services.manager.know_host(ask.caller, name)
    ref = ask.path["segment_id"]
    changed = ask.services.store.segments.change_host(ref, host.uuid, values)
    return Reply({"host": view(changed, ask.microversion)})


def delete(ask: Ask) -> Reply:
    ask.services.store.segments.delete_host(ask.path["segment_id"], ask.path["host_id"])
    return Reply(status=204)


def _host(ask: Ask) -> SegmentHost:
    return ask.services.store.segments.host(ask.path["segment_id"], ask.path["host_id"])


def _values(ask: Ask) -> dict[str, Any]:
    given: dict[str, Any] = dict(ask.body["host"])
    if "name" in given:
        text(given["name"], "host.name")
    if "type" in given and not _TYPE.fullmatch(given["type"]):
        raise InvalidInput("host.type: letters and digits only, such as COMPUTE")
    return given | {name: truth(given[name], f"host.{name}") for name in _FLAGS if name in given}


def view(host: SegmentHost, microversion: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": host.id,
        "uuid": host.uuid,
        "name": host.name,
        "failover_segment_id": host.segment.uuid,
        "failover_segment": segments.view(host.segment, microversion),
        "type": host.type,
        "reserved": host.reserved,
        "control_attributes": host.control_attributes,
        "on_maintenance": host.on_maintenance,
        **times(host),
    }
