# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/failover: hosts kept free for failures per segment, and expected shortages."""

from typing import Any

from holdfast.api.holdfast_v1.observations import plain
from holdfast.api.request import Request, Response
from holdfast.model.segment import Capacity

MOST_KEPT = 100_000
KEEP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["kept"],
    "properties": {
        "kept": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_KEPT,
            "description": "Number of spare hosts: no booking leaves fewer hosts free.",
        }
    },
}
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_SHOWN: dict[str, Any] = {
    "segment_id": _TEXT,
    "segment": _TEXT,
    "kept": _COUNT,
    "members": _COUNT,
    "enrolled": _COUNT,
    "usable": {**_COUNT, "description": "Enrolled, not failed, not on maintenance."},
    "free": {**_COUNT, "description": "Usable hosts without a reservation now."},
    "least_free": {**_COUNT, "description": "The fewest at any moment of the next 30 days."},
    "least_free_at": {"type": "string", "format": "date-time"},
    "short": {**_COUNT, "description": "Spare hosts that are missing then."},
    "why": {"type": ["string", "null"], "description": "The shortage, in a sentence."},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def index(request: Request) -> Response:
    return Response(
        {"failover": [view(capacity) for capacity in request.services.store.failover.report()]}
    )


def keep(request: Request) -> Response:
    """Set the number of hosts to keep free. Bookings stay; the response reports a shortage."""
    store = request.services.store.failover
    segment_id = store.keep(request.path["segment_id"], request.body["kept"])
    (capacity,) = [segment for segment in store.report() if segment.segment_id == segment_id]
    return Response({"failover": view(capacity)})


def view(capacity: Capacity) -> dict[str, Any]:
    return {
        "segment_id": capacity.segment_id,
        "segment": capacity.name,
        "kept": capacity.kept,
        "members": capacity.members,
        "enrolled": capacity.enrolled,
        "usable": capacity.usable,
        "free": capacity.free,
        "least_free": capacity.least_free,
        "least_free_at": plain(capacity.least_free_at),
        "short": capacity.short,
        "why": str(capacity) or None,
    }
