# SPDX-License-Identifier: Apache-2.0
"""/reservation/v1/leases."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.reservation_v1.dates import NOW, lease_date, parse, stamp
from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.model.lease import END, EVENT_TYPES, START, Event, Lease, Reservation
from holdfast.model.operation import RETRYING, RUNNING
from holdfast.ports.manager import LeaseChange, NewLease, NewReservation
from holdfast.store.leases import Seen

_NAME = {"type": "string", "minLength": 1, "maxLength": 80}
_DATE = {"type": "string", "maxLength": 64}
_EVENTS = {"type": ["array", "null"], "maxItems": 100, "items": {"type": "object"}}

CREATE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "start_date", "end_date"],
    "properties": {
        "name": _NAME,
        "start_date": _DATE,
        "end_date": _DATE,
        "before_end_date": {"type": ["string", "null"], "maxLength": 64},
        "events": _EVENTS,
        "reservations": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["resource_type"],
                "properties": {"resource_type": {"type": "string", "maxLength": 66}},
            },
        },
    },
}

UPDATE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "start_date": _DATE,
        "end_date": _DATE,
        "before_end_date": {"type": ["string", "null"], "maxLength": 64},
        "reservations": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {"id": {"type": "string", "maxLength": 36}},
            },
        },
    },
}


def index(ask: Ask) -> Reply:
    return Reply(b'{"leases": [%s]}' % b", ".join(_texts(ask)))


def show(ask: Ask) -> Reply:
    return _shown(ask, ask.path["lease_id"])


def create(ask: Ask) -> Reply:
    body = ask.body
    wanted = NewLease(
        id=ask.services.new_id(),
        name=body["name"],
        start=parse(body["start_date"], "start_date"),
        end=parse(body["end_date"], "end_date"),
        before_end=_optional(body, "before_end_date"),
        reservations=tuple(_reservation(r) for r in body.get("reservations", [])),
    )
    try:
        ask.services.manager.create_lease(ask.caller, wanted)
    except Unavailable:  # the answer may have got lost, not the lease: its id is ours, so look
        if not ask.services.store.ledger.with_events(lease_id=wanted.id):
            raise
    return _shown(ask, wanted.id, status=201)


def update(ask: Ask) -> Reply:
    body, lease_id = ask.body, ask.path["lease_id"]
    _visible(ask, lease_id)
    changes = body.get("reservations", [])
    change = LeaseChange(
        name=body.get("name"),
        start=_optional(body, "start_date"),
        start_now=body.get("start_date") == NOW,
        end=_optional(body, "end_date"),
        end_now=body.get("end_date") == NOW,
        before_end=_optional(body, "before_end_date"),
        reservations={r["id"]: {k: v for k, v in r.items() if k != "id"} for r in changes},
    )
    ask.services.manager.update_lease(ask.caller, lease_id, change)
    return _shown(ask, lease_id)


def delete(ask: Ask) -> Reply:
    lease_id = ask.path["lease_id"]
    _visible(ask, lease_id)
    ask.services.manager.delete_lease(ask.caller, lease_id)
    return Reply(status=204)


def _reservation(body: Mapping[str, Any]) -> NewReservation:
    return NewReservation(
        resource_type=body["resource_type"],
        spec={key: value for key, value in body.items() if key != "resource_type"},
    )


def _optional(body: Mapping[str, Any], field: str) -> datetime | None:
    text = body.get(field)
    if text is None or (text == NOW and field != "before_end_date"):
        return None
    when = parse(text, field)
    if when is None:
        raise InvalidInput(f"{field}: cannot be now")
    return when


def _visible(ask: Ask, lease_id: str) -> None:
    """NotFound unless the lease is there and the caller's: that it is another's looks the same."""
    found, _ = ask.services.store.ledger.stamped(
        lambda _: (), lease_id=lease_id, project_id=_project(ask)
    )
    if not found:
        raise _not_found(lease_id)


def _project(ask: Ask) -> str | None:
    """Whose leases the caller may know of; None: everybody's."""
    return None if ask.caller.is_admin else ask.caller.project_id


def _shown(ask: Ask, lease_id: str, status: int = 200) -> Reply:
    for text in _texts(ask, lease_id):
        return Reply(b'{"lease": %s}' % text, status=status)
    raise _not_found(lease_id)


def _not_found(lease_id: str) -> NotFound:
    return NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")


def _texts(ask: Ask, lease_id: str | None = None) -> list[bytes]:
    """JSON of the leases that the caller may know of, or of one of them."""
    services = ask.services

    def write(seen: Seen) -> bytes:
        lease, events = seen
        return json.dumps(view(lease, events, services.clock.now())).encode()

    look = partial(services.store.ledger.stamped, lease_id=lease_id, project_id=_project(ask))
    return services.lease_texts.texts(look, write, _lasting)


def _lasting(seen: Seen) -> bool:
    """Whether the view of it changes by writes alone: work under way also goes by the time."""
    _, events = seen
    return not any(event.status in (RUNNING, RETRYING) for event in events)


def view(lease: Lease, events: Sequence[Event], now: datetime) -> dict[str, Any]:
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "start_date": lease_date(lease.start),
        "end_date": lease_date(lease.end),
        "trust_id": None,
        "status": lease.status,
        "degraded": lease.degraded,
        "created_at": stamp(lease.created_at),
        "updated_at": stamp(lease.updated_at),
        "reservations": [_reservation_view(lease, r) for r in lease.reservations],
        "events": [_event_view(lease, event, now) for event in events],
    }


def _reservation_view(lease: Lease, reservation: Reservation) -> dict[str, Any]:
    return {
        "id": reservation.id,
        "lease_id": lease.id,
        "resource_id": reservation.id,
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "created_at": stamp(reservation.created_at),
        "updated_at": stamp(reservation.updated_at),
        **reservation.spec,
    }


def _event_view(lease: Lease, event: Event, now: datetime) -> dict[str, Any]:
    return {
        "id": event.id,
        "lease_id": lease.id,
        "event_type": EVENT_TYPES[event.kind],
        "time": lease_date(event.due_at),
        "status": _event_status(lease, event, now),
        "created_at": stamp(event.created_at),
        "updated_at": stamp(event.updated_at),
    }


#: Start and end are what the lease says of them: both are written in one transaction with it,
#: their rows of durable work a moment later.
_FOLLOWS: Mapping[str, Mapping[str, str]] = {
    START: {
        "PENDING": "UNDONE",
        "STARTING": "IN_PROGRESS",
        "ACTIVE": "DONE",
        "TERMINATING": "DONE",
        "TERMINATED": "DONE",
    },
    END: {
        "PENDING": "UNDONE",
        "STARTING": "UNDONE",
        "ACTIVE": "UNDONE",
        "TERMINATING": "IN_PROGRESS",
        "TERMINATED": "DONE",
    },
}


def _event_status(lease: Lease, event: Event, now: datetime) -> str:
    """What the owner may know; work prepared ahead of its time has not happened yet."""
    if event.status == "error":
        return "DONE" if event.kind == START and lease.status == "ACTIVE" else "ERROR"
    follows = _FOLLOWS.get(event.kind, {}).get(lease.status)
    if follows is not None:
        return follows
    if event.status in (RUNNING, RETRYING):
        return "IN_PROGRESS" if event.due_at <= now else "UNDONE"
    return "DONE" if event.status == "done" else "UNDONE"
