# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/availability: check whether and when a reservation fits. Nothing is booked.

?reservation={"resource_type": "physical:host", "min": 2, "max": 4}
    &start_date=2027-01-31T18:00&end_date=2027-02-01T18:00     does it fit in this window?
    &duration_s=86400                                          when does it fit for a day?
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.api import request as http_request
from holdfast.api.holdfast_v1.observations import plain
from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import parse
from holdfast.model.errors import InvalidInput
from holdfast.model.lease import NewReservation
from holdfast.ports.manager import Availability, AvailabilityQuery

MOST_WINDOWS = 20
AHEAD = timedelta(days=30)
_WHEN = {"type": "string", "minLength": 1, "maxLength": 64}
QUERY: dict[str, Any] = {
    "reservation": {
        "type": "string",
        "minLength": 1,
        "maxLength": 10_000,
        "description": "JSON of one entry of a lease's reservations.",
    },
    "start_date": {**_WHEN, "description": "Could I get it from here, or now, …"},
    "end_date": {**_WHEN, "description": "… to here?"},
    "duration_s": {
        "type": "integer",
        "minimum": 1,
        "maximum": 10 * 365 * 86_400,
        "description": "When could I get it for that long?",
    },
    "from": {**_WHEN, "description": "Earliest start; default: now."},
    "until": {**_WHEN, "description": "Latest start; default: in 30 days."},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_WINDOWS, "default": 5},
}
_NUMBER = {"type": "integer", "minimum": 0}
_DATE = {"type": "string", "format": "date-time"}
_WINDOW = {
    "type": "object",
    "required": ["start_date", "end_date", "amount"],
    "properties": {"start_date": _DATE, "end_date": _DATE, "amount": _NUMBER},
}
_WHY_NOT = {
    "type": ["object", "null"],
    "required": ["message"],
    "properties": {
        "message": {"type": "string"},
        "conditions": {"type": "array"},
        "obstacles": {"type": "array", "items": {"type": "object"}},
        "earliest": {"type": ["object", "null"]},
    },
}
VIEW: dict[str, Any] = {
    "type": "object",
    "required": ["fits", "amount", "windows", "why_not"],
    "properties": {
        "fits": {"type": "boolean"},
        "amount": _NUMBER,
        "windows": {"type": "array", "items": _WINDOW},
        "why_not": _WHY_NOT,
    },
}


def show(request: Request) -> Response:
    query = _query(request.query, request.services.clock.now())
    availability = request.services.manager.availability(request.caller, query)
    return Response({"availability": view(availability)})


def view(availability: Availability) -> dict[str, Any]:
    refusal = availability.refusal
    return {
        "fits": availability.fits,
        "amount": availability.amount,
        "windows": [
            {
                "start_date": plain(available.window.start),
                "end_date": plain(available.window.end),
                "amount": available.amount,
            }
            for available in availability.windows
        ],
        "why_not": None if refusal is None else {"message": refusal.message, **refusal.details},
    }


def _query(asked: Mapping[str, Any], now: datetime) -> AvailabilityQuery:
    reservation = _reservation(asked)
    if "duration_s" not in asked:
        return _one_window(reservation, asked, now)
    if twice := [name for name in ("start_date", "end_date") if name in asked]:
        raise InvalidInput(f"{twice[0]}: not together with duration_s; use from and until")
    start = _date(asked, "from")
    until = _date(asked, "until") or (start or now) + AHEAD
    if until < (start or now):
        raise InvalidInput("until: lies before the first start to look at")
    return AvailabilityQuery(
        reservation,
        start=start,
        length_s=asked["duration_s"],
        until=until,
        limit=asked.get("limit", QUERY["limit"]["default"]),
    )


def _one_window(
    reservation: NewReservation, asked: Mapping[str, Any], now: datetime
) -> AvailabilityQuery:
    missing = [name for name in ("start_date", "end_date") if name not in asked]
    if missing:
        raise InvalidInput(
            f"Missing parameter {', '.join(missing)}: give start_date and end_date, or duration_s"
        )
    if strange := [name for name in ("from", "until", "limit") if name in asked]:
        raise InvalidInput(f"{strange[0]}: goes with duration_s only")
    start, end = _date(asked, "start_date"), _date(asked, "end_date")
    if end is None or end <= (start or now):
        raise InvalidInput("End date must be later than start date.")
    return AvailabilityQuery(reservation, start=start, end=end)


def _date(asked: Mapping[str, Any], name: str) -> datetime | None:
    """Return the date of a parameter; None for "now" and for a missing parameter."""
    return parse(asked[name], name) if name in asked else None


def _reservation(asked: Mapping[str, Any]) -> NewReservation:
    reservation = http_request.parse(asked["reservation"], "reservation")
    if not isinstance(reservation, dict) or not isinstance(reservation.get("resource_type"), str):
        raise InvalidInput('reservation: a JSON object is wanted, with its "resource_type"')
    spec = {key: value for key, value in reservation.items() if key != "resource_type"}
    return NewReservation(reservation["resource_type"], spec)
