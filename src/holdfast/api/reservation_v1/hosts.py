# SPDX-License-Identifier: Apache-2.0
"""/reservation/v1/os-hosts: hosts, their allocations and properties."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import lease_date, stamp
from holdfast.model.errors import Forbidden, InvalidInput, NotFound
from holdfast.model.host import Host

ENROL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 255},
        "id": {"type": ["string", "integer"], "minLength": 1, "maxLength": 255},
    },
}
DESCRIBE = {"type": "object"}
PROPERTY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["private"],
    "properties": {"private": {"type": "boolean"}},
}


def index(request: Request) -> Response:
    hosts = request.services.store.ledger.enrolled()
    return Response({"hosts": [_view(request, host) for host in hosts]})


def show(request: Request) -> Response:
    return Response({"host": _view(request, _host(request))})


def create(request: Request) -> Response:
    name = str(request.body.get("name") or request.body.get("id") or "")
    if not name:
        raise InvalidInput("Missing parameter name: which host of the cloud is meant")
    extras = {k: v for k, v in request.body.items() if k not in ("name", "id")}
    capabilities = {key: _capability(key, value) for key, value in extras.items()}
    host_id = request.services.manager.enrol_host(request.caller, name, capabilities)
    host = request.services.store.ledger.host(str(host_id))
    return Response({"host": _view(request, host)}, status=201)


def update(request: Request) -> Response:
    host = _host(request)
    extras = {k: v for k, v in request.body.items() if k not in ("id", "name")}
    if not extras:
        raise InvalidInput("No data to update")
    capabilities = {k: None if v is None else _capability(k, v) for k, v in extras.items()}
    request.services.manager.describe_host(request.caller, host.id, capabilities)
    return Response({"host": _view(request, _host(request))})


def delete(request: Request) -> Response:
    request.services.manager.withdraw_host(request.caller, _host(request).id)
    return Response(status=204)


def allocations(request: Request) -> Response:
    return Response({"allocations": list(_allocations(request))})


def allocation(request: Request) -> Response:
    host = _host(request)
    for entry in _allocations(request, host.id):
        return Response({"allocation": entry})
    raise NotFound(f"Object with {{'host_id': {str(host.id)!r}}} not found")


def properties(request: Request) -> Response:
    """List resource properties.

    By the contract any value of `detail` and `all` counts as true; `all` is for admins.
    """
    detail, everything = bool(request.query.get("detail")), bool(request.query.get("all"))
    if everything and not request.caller.is_admin:
        raise Forbidden("all: private properties are shown to admins only")
    by_name: dict[str, dict[str, Any]] = {}
    for row in request.services.store.ledger.properties():
        if row["private"] and not everything:
            continue
        entry = by_name.setdefault(
            row["name"], {"property": row["name"], "private": row["private"], "values": []}
        )
        if row["text"] is not None:
            entry["values"].append(row["text"])
    entries: Iterable[dict[str, Any]] = by_name.values()
    if not detail:
        entries = [{"property": entry["property"]} for entry in entries]
    return Response({"resource_properties": list(entries)})


def set_property(request: Request) -> Response:
    name = request.path["name"]
    request.services.manager.set_property(request.caller, name, request.body["private"])
    row = request.services.store.ledger.property(name)
    body = {
        "id": str(row["id"]),
        "resource_type": row["resource_type"],
        "property_name": row["name"],
        "private": row["private"],
        "created_at": stamp(row["created_at"]),
        "updated_at": stamp(row["updated_at"]),
    }
    return Response({"resource_property": body})


def _host(request: Request) -> Host:
    return request.services.store.ledger.host(request.path["host_id"])


def _capability(key: str, value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return str(value)
    raise InvalidInput(f"{key}: the value of an extra capability is text or a number")


def _allocations(request: Request, host_id: int | None = None) -> Iterable[dict[str, Any]]:
    """Return the allocations of every enrolled host; filters drop reservations, not hosts."""
    allocations: dict[int, list[Mapping[str, Any]]] = {}
    rows = request.services.store.ledger.allocations(
        host_id=host_id,
        lease_id=request.query.get("lease_id"),
        reservation_id=request.query.get("reservation_id"),
    )
    for row in rows:
        held = allocations.setdefault(row["host_id"], [])
        if row["reservation_id"] is None:
            continue
        held.append(
            {
                "id": row["reservation_id"],
                "lease_id": row["lease_id"],
                "start_date": lease_date(row["start_date"]),
                "end_date": lease_date(row["end_date"]),
            }
        )
    return ({"resource_id": str(i), "reservations": held} for i, held in allocations.items())


def _view(request: Request, host: Host) -> dict[str, Any]:
    """Return the view at the requested version; from 1.1 on with region and rack."""
    later = {} if request.microversion < (1, 1) else {"region": host.region, "rack": host.rack}
    return {**later, **view(host)}


def view(host: Host) -> dict[str, Any]:
    return {
        **host.capabilities,
        "id": str(host.id),
        "vcpus": host.vcpus,
        "cpu_info": host.cpu_info,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "hypervisor_hostname": host.hypervisor_hostname,
        "service_name": host.service_host,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "status": None,
        "availability_zone": host.zone,
        "trust_id": None,
        "reservable": host.reservable and host.usable,
        "created_at": stamp(host.created_at),
        "updated_at": stamp(host.updated_at),
    }
