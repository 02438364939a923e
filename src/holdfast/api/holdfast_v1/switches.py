# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/pauses, /approvals and /maintenance-windows: operator switches of recovery.

Pauses, approvals and maintenance windows are rows in the database: the API needs no manager. The
guards read the rows each time they run, and they run before every move of a server. Recovery leaves
failures alone that happen in a maintenance window, and notes them.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.api.holdfast_v1.incidents import REASON, reason
from holdfast.api.holdfast_v1.observations import plain, when
from holdfast.api.request import Request, Response
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.incident import MATCHERS, WORK

DEFAULT_S, LONGEST_S = 3600, 366 * 86400
LONGEST_NAME = 255
_SEGMENT = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_NAME,
    "description": "One segment, by name or id; without it: recovery everywhere.",
}
PAUSE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["reason"],
    "properties": {
        "reason": REASON,
        "segment": _SEGMENT,
        "duration_s": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": LONGEST_S,
            "default": DEFAULT_S,
            "description": "Seconds; null: until an operator resumes recovery.",
        },
    },
}
RESUME: dict[str, Any] = {"segment": _SEGMENT}
APPROVE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["reason"],
    "properties": {
        "reason": REASON,
        "domain": {
            "type": "string",
            "minLength": 1,
            "maxLength": 200,
            "description": "The rack or zone; without it: wherever something is held.",
        },
    },
}
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_DATE = {"type": "string", "format": "date-time"}
_WHEN = {"type": ["string", "null"], "format": "date-time"}
_PAUSE_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "segment_id": {**_MAYBE, "description": "null: everywhere."},
    "segment": _MAYBE,
    "author": _TEXT,
    "reason": _TEXT,
    "created_at": _DATE,
    "expires_at": {**_WHEN, "description": "null: until an operator resumes recovery."},
}
PAUSE_VIEW = {"type": "object", "required": list(_PAUSE_SHOWN), "properties": _PAUSE_SHOWN}
_APPROVAL: dict[str, Any] = {
    "domain": {**_MAYBE, "description": "null: everywhere."},
    "author": _TEXT,
    "reason": _TEXT,
    "expires_at": _DATE,
    "held": {
        "type": "integer",
        "minimum": 0,
        "description": "Incidents that were held; their guards are evaluated again at once.",
    },
}
APPROVAL = {"type": "object", "required": list(_APPROVAL), "properties": _APPROVAL}


def list_pauses(request: Request) -> Response:
    """List the pauses in force."""
    store = request.services.store
    names = store.incident_queries.segment_names()
    return Response({"pauses": [pause_view(row, names) for row in store.switches.all_pauses()]})


def pause(request: Request) -> Response:
    """Pause recovery; 201. The new pause replaces a pause of the same scope."""
    store, why = request.services.store, reason(request)
    ref, lasts = request.body.get("segment"), request.body.get("duration_s", DEFAULT_S)
    segment = store.incident_queries.segment_uuid(ref) if ref else ""
    until = None if lasts is None else store.database.now() + timedelta(seconds=lasts)
    row = store.switches.pause(segment, request.caller.user_id, why, until)
    return Response({"pause": pause_view(row, store.incident_queries.segment_names())}, status=201)


def resume(request: Request) -> Response:
    store, ref = request.services.store, request.query.get("segment")
    segment = store.incident_queries.segment_uuid(ref) if ref else ""
    if not store.switches.resume(segment, request.caller.user_id):
        where = f"in segment {ref}" if ref else "everywhere"
        raise NotFound(f"recovery is not paused {where}: holdfast incident list shows what is")
    store.incident_actions.expedite_held(segment)
    return Response(status=204)


def approve(request: Request) -> Response:
    """Approve a mass failure; 202. Recovery held by the mass-failure guard continues."""
    why, domain = reason(request), request.body.get("domain", "").strip()
    approval = request.services.store.incident_actions.approve(request.caller.user_id, why, domain)
    shown = {name: plain(getattr(approval, name)) for name in _APPROVAL}
    return Response({"approval": {**shown, "domain": approval.domain or None}}, status=202)


def pause_view(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    _, _, segment = str(row["scope"]).partition(":")
    known = {**row, "segment_id": segment or None, "segment": names.get(segment)}
    return {name: plain(known[name]) for name in _PAUSE_SHOWN}


# /holdfast/v1/maintenance-windows.


LONGEST = timedelta(days=30)
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_WINDOW_WHEN = {"type": "string", "format": "date-time", "maxLength": 64}
_MATCHER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "description": "All named fields must match.",
    "properties": {
        "kind": {"type": "string", "enum": sorted(WORK)},
        "host": {**_NAME, "description": "Short or full."},
        "segment": {**_NAME, "description": "Name or id."},
        "server": {**_NAME, "description": "The server's id."},
    },
}
CREATE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["matcher", "reason"],
    "properties": {
        "matcher": _MATCHER,
        "reason": REASON,
        "starts_at": {**_WINDOW_WHEN, "description": "Default: now."},
        "expires_at": {**_WINDOW_WHEN, "description": "At most 30 days after it starts."},
        "duration_s": {
            "type": "integer",
            "minimum": 1,
            "maximum": int(LONGEST.total_seconds()),
            "description": "Instead of expires_at: how long it lasts.",
        },
    },
}
_WINDOW_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "matcher": {"type": "object", "properties": {name: _TEXT for name in MATCHERS}},
    "segment": {"type": ["string", "null"], "description": "The name of the matcher's segment."},
    "author": _TEXT,
    "reason": _TEXT,
    "created_at": _WINDOW_WHEN,
    "starts_at": _WINDOW_WHEN,
    "expires_at": _WINDOW_WHEN,
}
WINDOW_VIEW = {
    "type": "object",
    "required": list(_WINDOW_SHOWN),
    "properties": _WINDOW_SHOWN,
}


def list_windows(request: Request) -> Response:
    """List current and future maintenance windows."""
    store = request.services.store
    names = store.incident_queries.segment_names()
    return Response(
        {"maintenance_windows": [window_view(row, names) for row in store.switches.all_windows()]}
    )


def create_window(request: Request) -> Response:
    store = request.services.store
    why, matcher = reason(request), _matcher(request)
    starts, expires = _window(request.body, store.database.now())
    values = {
        "matcher": matcher,
        "author": request.caller.user_id,
        "reason": why,
        "starts_at": starts,
        "expires_at": expires,
    }
    row = store.switches.add_window(values)
    return Response(
        {"maintenance_window": window_view(row, store.incident_queries.segment_names())}, status=201
    )


def delete_window(request: Request) -> Response:
    request.services.store.switches.delete_window(request.path["window_id"])
    return Response(status=204)


def window_view(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    known = {**row, "segment": names.get(row["matcher"].get("segment", ""))}
    return {name: plain(known[name]) for name in _WINDOW_SHOWN}


def _matcher(request: Request) -> dict[str, str]:
    """Return the matcher of a maintenance window, with normalised host, segment and server.

    Raises an error for a matcher that can never match, because the maintenance would be
    unprotected.
    """
    store, asked = request.services.store, dict(request.body["matcher"])
    if "segment" in asked:
        asked["segment"] = store.incident_queries.segment_uuid(asked["segment"])
    if "host" in asked:
        member = store.segments.member(asked["host"])
        if member is None:
            raise NotFound(f"host {asked['host'][:80]} is in no segment: nothing is done about it")
        asked["host"] = member.name
    if "server" in asked:
        if asked.get("kind", "guest") != "guest":
            raise InvalidInput("matcher: server goes with the kind guest")
        asked["server"] = _server(asked["server"])
    return asked


def _server(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidInput(f"matcher.server: {text[:40]!r} is no id of a server") from None


def _window(body: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    starts = when(body["starts_at"], "starts_at") if "starts_at" in body else now
    if ("expires_at" in body) == ("duration_s" in body):
        raise InvalidInput("say when it ends: either expires_at or duration_s")
    if "duration_s" in body:
        expires = starts + timedelta(seconds=body["duration_s"])
    else:
        expires = when(body["expires_at"], "expires_at")
    if expires <= starts:
        raise InvalidInput("expires_at: it ends before it starts")
    if expires <= now:
        raise InvalidInput("expires_at: that is over already")
    if expires - starts > LONGEST:
        raise InvalidInput(f"expires_at: a maintenance window lasts {LONGEST.days} days at most")
    return starts, expires
