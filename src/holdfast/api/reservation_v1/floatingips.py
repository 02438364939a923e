# SPDX-License-Identifier: Apache-2.0
"""/reservation/v1/floatingips: floating IPs that can be reserved."""

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


def index(ask: Request) -> Response:
    found = ask.services.store.ledger.floatingips()
    return Response({"floatingips": [view(one) for one in found]})


def show(ask: Request) -> Response:
    return Response({"floatingip": view(_floatingip(ask))})


def create(ask: Request) -> Response:
    made = ask.services.manager.enrol_floatingip(
        ask.caller, ask.body["floating_network_id"], ask.body["floating_ip_address"]
    )
    return Response({"floatingip": view(ask.services.store.ledger.floatingip(made))}, status=201)


def delete(ask: Request) -> Response:
    ask.services.manager.withdraw_floatingip(ask.caller, _floatingip(ask).id)
    return Response(status=204)


def _floatingip(ask: Request) -> FloatingIp:
    return ask.services.store.ledger.floatingip(ask.path["floatingip_id"])


def view(one: FloatingIp) -> dict[str, Any]:
    return {
        "id": one.id,
        "floating_network_id": one.network_id,
        "subnet_id": one.subnet_id,
        "floating_ip_address": one.address,
        "reservable": one.reservable,
        "created_at": stamp(one.created_at),
        "updated_at": stamp(one.updated_at),
    }
