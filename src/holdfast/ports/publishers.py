# SPDX-License-Identifier: Apache-2.0
"""Where news goes: one small promise, kept by `drivers/sinks/`.

A third party adds a sink with one class and one entry point. The factory is given the configuration
and returns the sinks that it asks for, none when it asks for nothing:

    [project.entry-points."holdfast.sinks"]
    pager = "acme_pager:connect"

    def connect(conf, clock):
        return [Pager(url) for url in conf.acme_pager.urls]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.incident import Incident
from holdfast.model.operation import Operation

#: Who speaks, and how loud: what readers of the reservation contract's news filter by.
PUBLISHER = "blazar.lease"
PRIORITY = "info"
#: The kind of work by which a sink is told; what waits in the table bears that name.
ANNOUNCE = "lease_announce"
#: What there is to hear: news of leases and incidents, or the notifications of the instance HA
#: contract, which have a topic of their own, or alarms alone.
NEWS, INSTANCE_HA, ALARMS = "news", "instance_ha", "alarms"


@dataclass(frozen=True)
class LeaseNotice:
    """One thing that happened to a lease, an incident, a segment or a report. It may come twice,
    then with the same `message_id`."""

    message_id: str
    event_type: str
    at: datetime
    payload: Mapping[str, Any]
    publisher: str = PUBLISHER
    priority: str = PRIORITY


class Sink(Protocol):
    """One that has `hears = INSTANCE_HA` hears the notifications of that contract; one that has
    `hears = ALARMS` hears of alarms, and of the end of each that it was told of; any other one the
    news, of alarms too."""

    name: str  # at most 64 characters; what waits in the table of work is found again by it
    timeout_s: float  # longest that `send` takes, one way or the other

    def send(self, notice: LeaseNotice) -> None:
        """Hand it over for good; DriverError, retryable when a later try may succeed."""
        ...

    def close(self) -> None: ...


def heard_by(sinks: Sequence[Sink], what: str) -> tuple[str, ...]:
    """The names of those that want to hear that."""
    return tuple(sink.name for sink in sinks if getattr(sink, "hears", NEWS) == what)


# Who is told of incidents, segments, their hosts and reports: rows of work that go into the
# transaction of what they tell of.
#
# `values` are the fields of the noun as the transaction knows them: of one that is about to be
# made
# there is a uuid and no id yet. `fault` says why it did not come to be.


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
class Event:
    """What a notification of the instance HA contract tells of, such as segment.create.end."""

    noun: str
    action: str
    phase: str
    values: Values
    fault: Fault | None = None


class EventPublisher(Protocol):
    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        """Of one piece of news about an incident, for people."""
        ...

    def contract(self, happening: Event, now: datetime) -> Sequence[Operation]:
        """Of one notification of the instance HA contract, for programs."""
        ...

    def alarm(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        """Of one piece of news about an alarm (with its id), for people; of one that is `silent`
        only for whoever shows which alarms stand, to take it down."""
        ...

    def observation(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        """Of what an agent saw (a row of it), and of which nothing else comes, for people."""
        ...


class NullPublisher:
    """Nobody is told."""

    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        return ()

    def contract(self, happening: Event, now: datetime) -> Sequence[Operation]:
        return ()

    def alarm(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        return ()

    def observation(self, event_type: str, told: Values, now: datetime) -> Sequence[Operation]:
        return ()
