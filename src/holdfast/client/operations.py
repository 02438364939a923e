# SPDX-License-Identifier: Apache-2.0
"""Durable work over the wire: `{url}/holdfast/v1/operations`."""

import builtins
from typing import Any
from urllib.parse import urlencode

from holdfast.client.wire import Wire

Operation = dict[str, Any]


class Operations:
    """client.operations"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, subject: str | None = None, status: str | None = None, limit: int = 100
    ) -> builtins.list[Operation]:
        """The newest first; of one subject (a lease's id) or one status if asked."""
        asked = {"subject": subject, "status": status, "limit": str(limit)}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        answer = self._wire.call("GET", f"/holdfast/v1/operations?{query}")
        operations: list[Operation] = answer["operations"]
        return operations
