# SPDX-License-Identifier: Apache-2.0
"""Ports of publishers: sinks that deliver notifications, and the operations that carry them.

Package `drivers/publishers` implements sinks. A third party adds a sink with a class and an
entry point. The factory gets the configuration and returns the sinks configured there, possibly
none:

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

#: Publisher id and priority of lease notifications; consumers of the reservation contract
#: filter by both.
PUBLISHER = "blazar.lease"
PRIORITY = "info"
#: The kind of operation that delivers a notification; waiting rows carry this name.
ANNOUNCE = "lease_announce"
#: Topics: notifications about leases and incidents, notifications of the instance HA contract
#: (which have their own topic), or alarms alone.
NEWS, INSTANCE_HA, ALARMS = "news", "instance_ha", "alarms"
#: Event types for people and billing, and when Holdfast publishes each.
EVENTS: Mapping[str, str] = {
    "lease.create": "a lease was booked",
    "lease.update": "the owner changed the lease",
    "lease.event.before_end_lease.stop": (
        "the lease was prolonged after `lease.event.before_end_lease` was sent"
    ),
    "lease.event.start_lease": "the lease became ACTIVE",
    "lease.event.before_end_lease": (
        "the end of the lease is near, and the action requested for this time is done"
    ),
    "lease.event.end_lease": "the lease is TERMINATED: Holdfast released all resources",
    "lease.degraded": "the lease lost a part of its reserved resources (Blazar has no such event)",
    "lease.healed": "the lease is complete again (Blazar has no such event)",
    "lease.delete": "the lease is deleted",
    "incident.opened": "a host, guest or process failed, or an alarm rule requests an incident",
    "incident.held": "a guard holds recovery; sent once per incident",
    "incident.escalated": "recovery needs an operator: fencing failed repeatedly",
    "incident.recovered": "the failed servers run again, or the alarm is over",
    "incident.failed": "a part of the recovery failed; the sentence names the work left to do",
    "incident.ignored": "a guard refused recovery for good, or nothing is left to recover",
    "incident.explained": "a larger incident is the cause, and recovery continues there",
    "incident.aborted": (
        "an operator aborted the incident; the sentence names the operator and the reason"
    ),
    "incident.retried": (
        "an operator or a new report retried the incident; the sentence names the cause"
    ),
    "host.alert": (
        "host monitors request an alert about a host, or too few host monitors report the"
        " host as failed; there is no incident, and the payload is like an incident with the"
        " status `alert`"
    ),
    "guest.noted": (
        "an agent or Nova reports a problem of a guest without a recovery action: a full"
        " disk, a guest on the wrong host"
    ),
    "process.failed": "a service of a host does not run in spite of all restart attempts",
    "process.well": "the service of the host runs again",
    "alarm.raised": "an alarm rule fires",
    "alarm.again": "the alarm still fires; a reminder",
    "alarm.no_data": "a firing alarm has no readings any more",
    "alarm.cleared": "the alarm ended",
}


@dataclass(frozen=True)
class LeaseNotice:
    """A notification about a lease, an incident, a segment or a report.

    A sink may receive it twice, then with the same `message_id`.
    """

    message_id: str
    event_type: str
    at: datetime
    payload: Mapping[str, Any]
    publisher: str = PUBLISHER
    priority: str = PRIORITY


class Sink(Protocol):
    """A receiver of notifications, selected by `hears`.

    A sink with `hears = INSTANCE_HA` gets the notifications of the instance HA contract. A sink
    with `hears = ALARMS` gets alarms, and the end of each alarm it got. Any other sink gets the
    notifications about leases and incidents, and alarms too.
    """

    name: str  # at most 64 characters; waiting rows in table `operations` name it
    timeout_s: float  # the longest that `send` takes until it returns or fails

    def send(self, notice: LeaseNotice) -> None:
        """Deliver the notification for good; DriverError, retryable if a later try may succeed."""
        ...

    def close(self) -> None: ...


def sinks_for(sinks: Sequence[Sink], topic: str) -> tuple[str, ...]:
    """Return the names of the sinks that want this topic."""
    return tuple(sink.name for sink in sinks if getattr(sink, "hears", NEWS) == topic)


# Publishers return operations that the caller writes in the transaction of the reported change.
#
# `values` are the fields of the object as the transaction knows them: an object about to be
# created has a uuid and no id yet. `fault` says why the action failed.


Values = Mapping[str, Any]
#: Objects of the instance HA contract.
SEGMENT, SEGMENT_HOST, REPORT = "segment", "host", "notification"
#: Phases of an action: started, ended, failed.
START, END, ERROR = "start", "end", "error"


@dataclass(frozen=True)
class Fault:
    """The name of an error and a sentence about it."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Event:
    """A notification of the instance HA contract, such as segment.create.end."""

    noun: str
    action: str
    phase: str
    values: Values
    fault: Fault | None = None


class EventPublisher(Protocol):
    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        """Return the operations that notify people about an incident."""
        ...

    def contract(self, event: Event, now: datetime) -> Sequence[Operation]:
        """Return the operations that send a notification of the instance HA contract.

        These notifications are for programs.
        """
        ...

    def alarm(self, event_type: str, values: Values, now: datetime) -> Sequence[Operation]:
        """Return the operations that notify people about an alarm (with its id).

        For a `silent` alarm only sinks that display firing alarms are notified, to remove the
        alarm.
        """
        ...

    def observation(self, event_type: str, values: Values, now: datetime) -> Sequence[Operation]:
        """Return the operations that notify people about an agent's observation.

        The observation has no other effect.
        """
        ...


class NullPublisher:
    """An EventPublisher that notifies no sink."""

    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        return ()

    def contract(self, event: Event, now: datetime) -> Sequence[Operation]:
        return ()

    def alarm(self, event_type: str, values: Values, now: datetime) -> Sequence[Operation]:
        return ()

    def observation(self, event_type: str, values: Values, now: datetime) -> Sequence[Operation]:
        return ()
