# SPDX-License-Identifier: Apache-2.0
"""Durable work over the wire: `{url}/holdfast/v1/operations`."""

import builtins
from typing import Any

from holdfast.client.wire import Wire

Operation = dict[str, Any]


class Operations:
    """client.operations"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Operation]:
        answer = self._wire.call("GET", "/holdfast/v1/operations")
        operations: list[Operation] = answer["operations"]
        return operations
