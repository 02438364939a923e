# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/operations: durable work, what is to come and how the rest ended."""

from datetime import datetime
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.observations import limit
from holdfast.model.errors import InvalidInput
from holdfast.model.moves import OPERATION
from holdfast.model.operation import Operation


def index(ask: Ask) -> Reply:
    status = ask.query.get("status")
    if status is not None and status not in OPERATION:
        raise InvalidInput(f"status: one of {', '.join(OPERATION)} is wanted")
    found = ask.services.store.operations.list_all(
        subject=ask.query.get("subject"), status=status, limit=limit(ask)
    )
    return Reply({"operations": [view(operation) for operation in found]})


def view(operation: Operation) -> dict[str, Any]:
    names = (
        "id kind subject key status due_at next_try_at owner epoch claim_until attempts sentence"
        " created_at updated_at"
    )
    return {name: _plain(getattr(operation, name)) for name in names.split()}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
