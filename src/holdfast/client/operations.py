# SPDX-License-Identifier: Apache-2.0
"""Durable work over the wire: `{url}/holdfast/v1/operations`."""

import builtins
from typing import Any

from holdfast.client.wire import Wire

_PATH = "/holdfast/v1/operations"

Operation = dict[str, Any]


class Operations:
    """client.operations"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, subject: str | None = None, status: str | None = None, limit: int = 100
    ) -> builtins.list[Operation]:
        """The newest first; of one subject (a lease's id) or one status if asked."""
        # requests leaves out what is None
        query = {"subject": subject, "status": status, "limit": limit}
        operations: list[Operation] = self._wire.call("GET", _PATH, query=query, key="operations")
        return operations
