# SPDX-License-Identifier: Apache-2.0
"""Who is told of incidents, segments, their hosts and reports: rows of work that go into the
transaction of what they tell of.

`values` are the fields of the noun as the transaction knows them: of one that is about to be made
there is a uuid and no id yet. `fault` says why it did not come to be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.incident import Incident
from holdfast.model.operation import Operation

Values = Mapping[str, Any]
#: What is told of in the words of the instance HA contract.
SEGMENT, SEGMENT_HOST, REPORT = "segment", "host", "notification"
#: A thing begins and ends, well or badly.
START, END, ERROR = "start", "end", "error"


@dataclass(frozen=True)
class Fault:
    """What went wrong, by the name of an error, and in a sentence."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Happening:
    """What a notification of the instance HA contract tells of, such as segment.create.end."""

    noun: str
    action: str
    phase: str
    values: Values
    fault: Fault | None = None


class Herald(Protocol):
    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        """Of one piece of news about an incident, for people."""
        ...

    def contract(self, happening: Happening, now: datetime) -> Sequence[Operation]:
        """Of one notification of the instance HA contract, for programs."""
        ...

    def alarm(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        """Of one piece of news about an alarm (with its id), for people; of one that is `silent`
        only for whoever shows which alarms stand, to take it down."""
        ...

    def observation(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        """Of what an agent saw (a row of it), and of which nothing else comes, for people."""
        ...


class Silence:
    """Nobody is told."""

    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        return ()

    def contract(self, happening: Happening, now: datetime) -> Sequence[Operation]:
        return ()

    def alarm(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        return ()

    def observation(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        return ()
