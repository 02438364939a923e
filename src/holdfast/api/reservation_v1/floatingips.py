# SPDX-License-Identifier: Apache-2.0
"""/reservation/v1/floatingips: reservable floating IPs."""

from typing import Any

from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import stamp
from holdfast.model.floatingip import FloatingIp

ENROL = {
    "type": "object",
    "additionalProperties": False,
    "required": ["floating_network_id", "floating_ip_address"],
    "properties": {
        "floating_network_id": {"type": "string", "minLength": 1, "maxLength": 36},
        "floating_ip_address": {"type": "string", "minLength": 1, "maxLength": 64},
    },
}


def index(request: Request) -> Response:
    floating_ips = request.services.store.ledger.floatingips()
    return Response({"floatingips": [view(floating_ip) for floating_ip in floating_ips]})


def show(request: Request) -> Response:
    return Response({"floatingip": view(_floatingip(request))})


def create(request: Request) -> Response:
    made = request.services.manager.enrol_floatingip(
        request.caller, request.body["floating_network_id"], request.body["floating_ip_address"]
    )
    return Response(
        {"floatingip": view(request.services.store.ledger.floatingip(made))}, status=201
    )


def delete(request: Request) -> Response:
    request.services.manager.withdraw_floatingip(request.caller, _floatingip(request).id)
    return Response(status=204)


def _floatingip(request: Request) -> FloatingIp:
    return request.services.store.ledger.floatingip(request.path["floatingip_id"])


def view(address: FloatingIp) -> dict[str, Any]:
    return {
        "id": address.id,
        "floating_network_id": address.network_id,
        "subnet_id": address.subnet_id,
        "floating_ip_address": address.address,
        "reservable": address.reservable,
        "created_at": stamp(address.created_at),
        "updated_at": stamp(address.updated_at),
    }
