# SPDX-License-Identifier: Apache-2.0
"""The timeline of an incident: typed events, each with a sentence for people.

The database writes an event in the transaction of the change (`db/timeline.py`). The explanation,
the console and the CLI render the fields of events. No program reads meaning from a sentence.

    Event(at, "holdfast", StatusChanged("held", "recovery is paused"))
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar

from holdfast.model.incident import DESPITE_POWER_ON

#: The actor of events that no person caused.
HOLDFAST = "holdfast"


@dataclass(frozen=True)
class Opened:
    """The incident was opened."""

    kind: ClassVar = "opened"
    cause: str

    @property
    def sentence(self) -> str:
        return f"opened: {self.cause}"


@dataclass(frozen=True)
class AlarmEvidence:
    """The values of an alarm at the opening of its incident."""

    kind: ClassVar = "alarm_evidence"
    text: str

    @property
    def sentence(self) -> str:
        return f"evidence: {self.text}"


@dataclass(frozen=True)
class StatusChanged:
    """The status of the incident, or the reason for the same status, changed."""

    kind: ClassVar = "status_changed"
    status: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.status}: {self.reason}"


@dataclass(frozen=True)
class ConfirmedOff:
    """An operator confirmed that the host is off; `reads_on`: its fence reads on."""

    kind: ClassVar = "confirmed_off"
    author: str
    host: str
    reason: str
    reads_on: bool = False

    @property
    def sentence(self) -> str:
        though = DESPITE_POWER_ON if self.reads_on else ""
        return f"{self.author} says that {self.host} is off{though}: {self.reason}"


@dataclass(frozen=True)
class MoveEnded:
    """The move of a server ended with this status."""

    kind: ClassVar = "move_ended"
    server_id: str
    status: str
    message: str

    @property
    def outcome(self) -> str:
        return f"{self.status}: {self.message}"

    @property
    def sentence(self) -> str:
        return f"server {self.server_id} {self.outcome}"


@dataclass(frozen=True)
class MovePostponed:
    """An attempt to move a server failed; the next attempt starts after `pause_s` seconds."""

    kind: ClassVar = "move_postponed"
    server_id: str
    pause_s: float
    message: str

    @property
    def outcome(self) -> str:
        return f"waits {self.pause_s:g} s for another try: {self.message}"

    @property
    def sentence(self) -> str:
        return f"server {self.server_id} {self.outcome}"


Data = Opened | AlarmEvidence | StatusChanged | ConfirmedOff | MoveEnded | MovePostponed
_KINDS: Mapping[str, type[Data]] = {arg.kind: arg for arg in Data.__args__}
#: The kinds of events, in the API too.
KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class Event:
    """An event of the timeline; `sentence` is the text that was written with the event."""

    at: datetime
    actor: str
    data: Data
    sentence: str = ""

    @property
    def by_person(self) -> bool:
        return self.actor != HOLDFAST


def fields(data: Data) -> dict[str, Any]:
    """Return the fields of the event as JSON values."""
    return asdict(data)


def read(kind: str, values: Mapping[str, Any]) -> Data:
    """Make the event's data from its kind and its JSON values."""
    return _KINDS[kind](**values)
