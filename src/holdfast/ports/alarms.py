# SPDX-License-Identifier: Apache-2.0
"""Where alarms are kept, for whoever does what their rules ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class Moved:
    """A server was moved off that host because of an alarm of that rule; when that ended."""

    host: str
    rule: str
    at: datetime


class Alarms(Protocol):
    def show(self, alarm_id: str) -> Mapping[str, Any]:
        """host, subject, rule, state, …; NotFound."""
        ...

    def paused(self) -> str:
        """Why nothing is to be done now: recovery is paused everywhere; empty if it is not."""
        ...

    def speak_up(self, alarm_id: str) -> str:
        """Its silence is over: if it stands and people do not know how it is, they are told, and
        what it asks for is begun, once. The sentence about it; NotFound."""
        ...

    def moves(self, alarm_id: str) -> None:
        """Remember that its server is about to be moved off the host because of it."""
        ...

    def moved(self, alarm_id: str, since: datetime) -> Moved | None:
        """The last time since then that another alarm moved the server of this one."""
        ...

    def others_ahead(self, alarm_id: str) -> str:
        """Another alarm of the same rule that stands there and for which the host is kept out of
        use too; empty: none."""
        ...
