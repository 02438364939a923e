# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/alarms: list alarms of hosts and guests; acknowledge, mute and end alarms.

A project sees the alarms of its own guests; alarms of hosts and of other projects are for admins.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.alarms.central import STATES, threshold
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import LIMIT, plain
from holdfast.api.request import Request, Response
from holdfast.db.alarms import Wanted
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise

LONGEST = timedelta(days=30)
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
QUERY: dict[str, Any] = {
    "host": _NAME,
    "rule": _NAME,
    "project": {**_NAME, "description": "For admins; others see their own."},
    "state": {"type": "string", "enum": list(STATES)},
    "all": {
        "type": "string",
        "enum": ["true", "false"],
        "description": "Also ended alarms of the last 30 days.",
    },
    "limit": LIMIT,
}
MUTE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["duration_s"],
    "properties": {
        "duration_s": {
            "type": "integer",
            "minimum": 0,
            "maximum": int(LONGEST.total_seconds()),
            "description": "Seconds without notifications; 0 ends a mute, and what it"
            " withheld of a firing alarm is published.",
        }
    },
}
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_DATE = {"type": "string", "format": "date-time"}
_LATER = {"type": ["string", "null"], "format": "date-time"}
_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "rule": _TEXT,
    "rules_version": _TEXT,
    "state": {"type": "string", "enum": list(STATES)},
    "severity": _TEXT,
    "host": _TEXT,
    "subject": _TEXT,
    "project_id": _TEXT,
    "value": {"type": ["number", "null"]},
    "fired_at": _DATE,
    "reported_at": _DATE,
    "resolved_at": _LATER,
    "acked_at": _LATER,
    "acked_by": _MAYBE,
    "muted_until": _LATER,
    "muted_by": _MAYBE,
}
VIEW = shape({**_SHOWN, "name": _TEXT, "threshold": {"type": ["number", "null"]}})
WHOLE = shape({**VIEW["properties"], "details": {"type": "object"}})


def index(request: Request) -> Response:
    query, caller = request.query, request.caller
    host = query.get("host")
    wanted = Wanted(
        project=query.get("project") if caller.is_admin else caller.project_id,
        host=normalise(host) if host else None,
        rule=query.get("rule"),
        state=query.get("state"),
        active=query.get("all") != "true",
        limit=query.get("limit", LIMIT["default"]),
    )
    return Response(
        {"alarms": [_view(row) for row in request.services.store.alarms.list_all(wanted)]}
    )


def show(request: Request) -> Response:
    return Response({"alarm": _whole(_mine(request))})


def acknowledge(request: Request) -> Response:
    alarm_id = _mine(request)["id"]
    row = request.services.store.alarms.acknowledge(alarm_id, request.caller.user_id)
    return Response({"alarm": _whole(row)})


def mute(request: Request) -> Response:
    alarm_id, lasts = _mine(request)["id"], timedelta(seconds=request.body["duration_s"])
    row = request.services.store.alarms.mute(alarm_id, request.caller.user_id, lasts)
    return Response({"alarm": _whole(row)})


def end(request: Request) -> Response:
    alarm_id = _mine(request)["id"]
    return Response(
        {"alarm": _whole(request.services.store.alarms.end(alarm_id, request.caller.user_id))}
    )


def _mine(request: Request) -> Mapping[str, Any]:
    """Return the alarm; NotFound also for an alarm of another project."""
    alarm_id = request.path["alarm_id"]
    row = request.services.store.alarms.show(alarm_id)
    if not request.caller.may_see(row["project_id"]):
        raise NotFound(f"no alarm {alarm_id[:80]}")
    return row


def _view(row: Mapping[str, Any]) -> dict[str, Any]:
    details = row["details"] or {}
    about = {"name": str(details.get("name", "")), "threshold": threshold(details)}
    return {**{name: plain(row[name]) for name in _SHOWN}, **about}


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_view(row), "details": row["details"] or {}}
