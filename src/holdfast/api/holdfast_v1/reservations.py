# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/leases/…/reservations/…: what operators do with a reservation of somebody."""

from typing import Any

from holdfast.api.ask import Ask, Reply

REPLACE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["host"],
    "properties": {
        "host": {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "description": "The host to be given up, by id or name.",
        }
    },
}


def replace_host(ask: Ask) -> Reply:
    """Before its start: something else instead of that host, or a refusal and no change."""
    host = ask.services.store.ledger.host(ask.body["host"])
    ask.services.manager.replace_host(
        ask.caller, ask.path["lease_id"], ask.path["reservation_id"], host.id
    )
    return Reply(status=204)
