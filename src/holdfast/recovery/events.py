# SPDX-License-Identifier: Apache-2.0
"""Notifications about incidents and alarms, and notifications of the instance HA contract.

The instance HA contract covers segments, hosts and reports. `IncidentPublisher` turns each
event into rows of durable work, one per sink.

    IncidentPublisher(people=("messaging",), programs=("instance-ha",))
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.model.incident import Incident
from holdfast.model.observation import Observed
from holdfast.model.operation import Operation
from holdfast.model.segment import Segment
from holdfast.ports.publishers import ANNOUNCE, ERROR, REPORT, SEGMENT, SEGMENT_HOST, Event, Fault

#: Publisher id of notifications about incidents.
INCIDENTS = "holdfast.incident"
#: Publisher id of notifications about alarms.
ALARMS = "holdfast.alarm"
#: Publisher id of notifications about observations of agents.
OBSERVATIONS = "holdfast.observation"
#: Publishers in the instance HA contract: the engine processes reports, the API does the rest.
API, ENGINE, PROCESSED = "masakari-api", "masakari-engine", "process"
_NAMES = uuid.UUID("6f1f3c0e-5f0c-4c43-9a4e-7a0c4a3e9b11")


class IncidentPublisher:
    """Creates the notification work for each configured sink.

    `people`: sinks of incident notifications. `programs`: sinks of instance HA notifications.
    `boards`: sinks that show open alarms and receive nothing else. Without sinks nothing is
    written. `host`: the host on which this process runs.
    """

    def __init__(
        self,
        people: Sequence[str] = (),
        programs: Sequence[str] = (),
        host: str = "localhost",
        boards: Sequence[str] = (),
    ) -> None:
        self._people = people
        self._programs = programs
        self._boards = boards
        self._host = host

    def incident(self, event_type: str, incident: Incident, now: datetime) -> Sequence[Operation]:
        message = {"payload": incident_payload(incident), "publisher": INCIDENTS}
        return _rows(self._people, event_type, incident.id, now, message)

    def alarm(
        self, event_type: str, alarm: Mapping[str, Any], now: datetime
    ) -> Sequence[Operation]:
        message = {"payload": dict(alarm), "publisher": ALARMS}
        hearers = self._boards if alarm.get("silent") else (*self._people, *self._boards)
        return _rows(hearers, event_type, alarm["id"], now, message)

    def observation(
        self, event_type: str, row: Mapping[str, Any], now: datetime
    ) -> Sequence[Operation]:
        """Notify people about an observation.

        Notifications about one guest or process keep their order. The subject is hashed because
        its name may be too long for a key.
        """
        about = str(uuid.uuid5(_NAMES, row["subject"]))
        message = {"payload": observation_payload(row), "publisher": OBSERVATIONS}
        return _rows(self._people, event_type, about, now, message)

    def contract(self, event: Event, now: datetime) -> Sequence[Operation]:
        if not self._programs:
            return ()
        service = ENGINE if event.action == PROCESSED else API
        message = {
            "payload": payload(event),
            "publisher": f"{service}:{self._host}",
            "priority": "error" if event.phase == ERROR else "info",
        }
        event_type = f"{event.noun}.{event.action}.{event.phase}"
        return _rows(self._programs, event_type, event.values["uuid"], now, message)


def _rows(
    sinks: Sequence[str], event_type: str, about: str, now: datetime, content: Mapping[str, Any]
) -> tuple[Operation, ...]:
    """A work row per sink; rows about the same subject are delivered in the order of writing."""
    mark = f"{event_type}/{about}/{now.isoformat()}"
    message = {
        "message_id": str(uuid.uuid5(_NAMES, mark)),
        "event_type": event_type,
        "at": now.isoformat(),
        **content,
    }
    return tuple(
        Operation(
            id=str(uuid.uuid5(_NAMES, f"{mark}/{sink}")),
            kind=ANNOUNCE,
            subject=f"announce:{about}:{sink}",
            key=f"announce/{mark}/{sink}",
            due_at=now,
            next_try_at=now,
            payload={"sink": sink, **message},
        )
        for sink in sinks
    )


def payload(event: Event) -> dict[str, Any]:
    """The versioned object of an instance HA notification, with all known fields."""
    values, fault = event.values, event.fault
    name, version, fields = SHAPES[event.noun]
    data = {key: show(values[own]) for key, (own, show) in fields.items() if own in values}
    return _object(name, version, {**data, "fault": None if fault is None else _fault(fault)})


def _object(name: str, version: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "masakari_object.name": name,
        "masakari_object.namespace": "masakari",
        "masakari_object.version": version,
        "masakari_object.data": dict(data),
    }


def _fault(fault: Fault) -> dict[str, Any]:
    """The exception payload, without a code location: internals are not published."""
    data = {
        "module_name": "holdfast",
        "function_name": "unknown",
        "exception": fault.name,
        "exception_message": fault.sentence,
        "traceback": "",
    }
    return _object("ExceptionPayload", "1.0", data)


def _same(value: Any) -> Any:
    return value


def _stamp(when: datetime | None) -> str | None:
    if when is None:
        return None
    utc = when if when.tzinfo is None else when.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%SZ}"


def _segment(segment: Segment) -> dict[str, Any]:
    data = {
        **{name: getattr(segment, name) for name in _OF_SEGMENTS},
        "created_at": _stamp(segment.created_at),
        "updated_at": _stamp(segment.updated_at),
        "deleted_at": None,
        "deleted": False,
    }
    return _object("FailoverSegment", "1.1", data)


Fields = Mapping[str, tuple[str, Callable[[Any], Any]]]
_OF_SEGMENTS = (
    "id",
    "uuid",
    "name",
    "service_type",
    "description",
    "recovery_method",
    "enabled",
)
_OF_HOSTS = ("id", "uuid", "name", "type", "reserved", "control_attributes", "on_maintenance")


def _as_they_are(*names: str) -> Fields:
    return {name: (name, _same) for name in names}


#: By noun: the object's name and version, and for each field the own name and its formatter.
SHAPES: Mapping[str, tuple[str, str, Fields]] = {
    SEGMENT: ("SegmentApiPayload", "1.1", _as_they_are(*_OF_SEGMENTS)),
    SEGMENT_HOST: (
        "HostApiPayload",
        "1.0",
        {**_as_they_are(*_OF_HOSTS), "failover_segment": ("segment", _segment)},
    ),
    REPORT: (
        "NotificationApiPayload",
        "1.0",
        {
            **_as_they_are("id", "type", "status"),
            "notification_uuid": ("uuid", _same),
            "generated_time": ("generated_time", _stamp),
            "source_host_uuid": ("segment_host_uuid", _same),
            "payload": ("payload", dict),
        },
    ),
}


def observation_payload(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "observer", "subject", "kind", "state", "evidence")
    about = {name: row[name] for name in names}
    observed = Observed(**about, since=row["since"])
    return {
        **about,
        "host": observed.host,
        "sentence": observed.sentence,
        "since": observed.since.isoformat(),
        "observed_at": row["observed_at"].isoformat(),
    }


def incident_payload(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "subject": incident.subject,
        "kind": incident.kind,
        "cause": incident.cause,
        "status": incident.status,
        "sentence": incident.sentence,
        "host": incident.host,
        "segment": incident.segment,
        "opened_at": incident.opened_at.isoformat(),
        "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
    }
