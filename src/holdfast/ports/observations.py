# SPDX-License-Identifier: Apache-2.0
"""Where reports are kept. One that says that something failed comes with the work of looking at it:
both are written, or neither."""

from collections.abc import Mapping
from typing import Any, Protocol


class Observations(Protocol):
    def add(self, id_: str, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """The row, and if it is new: the same key of an observer is the same report."""
        ...
