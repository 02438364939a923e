# SPDX-License-Identifier: Apache-2.0
"""Where monitors and agents send what they saw."""

from collections.abc import Mapping
from typing import Any, Protocol


class Reports(Protocol):
    """Errors: `Unavailable`, it is to be sent again later; `InvalidInput`, it never will be taken;
    anything else of ours is a matter of set-up, and is tried again too."""

    def report(self, body: Mapping[str, Any]) -> None:
        """One observation; it has been stored, now or before, when this returns."""
        ...

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        """All that this monitor sees now; a later one replaces it."""
        ...
