# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/operations: durable operations, open and finished."""

from typing import Any

from holdfast.api.holdfast_v1.observations import LIMIT, plain
from holdfast.api.request import Request, Response
from holdfast.model.operation import Operation
from holdfast.model.state_machines import OPERATION

QUERY: dict[str, Any] = {
    "subject": {"type": "string", "maxLength": 255},
    "status": {"type": "string", "enum": sorted(OPERATION)},
    "limit": LIMIT,
}
_TEXT = {"type": "string"}
_WHEN = {"type": ["string", "null"], "format": "date-time"}
_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "kind": _TEXT,
    "subject": _TEXT,
    "key": _TEXT,
    "status": {"type": "string", "enum": sorted(OPERATION)},
    "due_at": _WHEN,
    "next_try_at": _WHEN,
    "owner": {"type": ["string", "null"]},
    "epoch": {"type": "integer"},
    "claim_until": _WHEN,
    "attempts": {"type": "integer"},
    "sentence": {"type": ["string", "null"]},
    "created_at": _WHEN,
    "updated_at": _WHEN,
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def index(request: Request) -> Response:
    operations = request.services.store.operations.list_all(
        subject=request.query.get("subject"),
        status=request.query.get("status"),
        limit=request.query.get("limit", LIMIT["default"]),
    )
    return Response({"operations": [view(operation) for operation in operations]})


def show(request: Request) -> Response:
    operation = request.services.store.operations.find(request.path["operation_id"])
    return Response({"operation": view(operation)})


def view(operation: Operation) -> dict[str, Any]:
    return {name: plain(getattr(operation, name)) for name in _SHOWN}
