# SPDX-License-Identifier: Apache-2.0
"""Where alarms are kept, for whoever does what their rules ask for."""

from collections.abc import Mapping
from typing import Any, Protocol


class Alarms(Protocol):
    def show(self, alarm_id: str) -> Mapping[str, Any]:
        """host, subject, rule, state, …; NotFound."""
        ...

    def paused(self) -> str:
        """Why nothing is to be done now: recovery is paused everywhere; empty if it is not."""
        ...
