# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/audit: the audit log, a sentence per decision, newest first.

A project sees decisions about its own leases and guests; admins see all decisions.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.api.holdfast_v1.observations import LIMIT, plain, when
from holdfast.api.request import Request, Response
from holdfast.db.audit import Wanted

_NAME = {"type": "string", "minLength": 1, "maxLength": 128}
_WHEN = {"type": "string", "format": "date-time", "maxLength": 64}
QUERY: dict[str, Any] = {
    "subject": {
        **_NAME,
        "description": "A lease's id, incident:ID, host:ID, …; `incident:` alone is all of them.",
    },
    "actor": {**_NAME, "description": "Actor: the id of a user, or holdfast."},
    "project_id": {**_NAME, "description": "For admins; others see their own."},
    "text": {**_NAME, "description": "Somewhere in the sentence, in capitals or not."},
    "since": {**_WHEN, "description": "Decided at or after."},
    "until": {**_WHEN, "description": "Decided before."},
    "limit": LIMIT,
    "marker": {
        "type": "integer",
        "minimum": 1,
        "description": "The id of the last line seen; older lines follow.",
    },
}
_TEXT = {"type": "string"}
_SHOWN: dict[str, Any] = {
    "id": {"type": "integer"},
    "at": {"type": "string", "format": "date-time"},
    "subject": _TEXT,
    "project_id": {"type": ["string", "null"], "description": "The project of the subject."},
    "actor": _TEXT,
    "request_id": {**_TEXT, "description": "The request that caused the line; empty: none."},
    "sentence": _TEXT,
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def index(request: Request) -> Response:
    lines = request.services.store.audit.list_all(wanted(request))
    return Response({"audit": [view(row) for row in lines]})


def wanted(request: Request) -> Wanted:
    """Return the filter of the query, limited to the caller's project unless admin."""
    query = request.query
    since, until = query.get("since"), query.get("until")
    return Wanted(
        subject=query.get("subject"),
        actor=query.get("actor"),
        project=query.get("project_id") if request.caller.is_admin else request.caller.project_id,
        text=query.get("text"),
        since=None if since is None else when(since, "since"),
        until=None if until is None else when(until, "until"),
        older_than=query.get("marker"),
        limit=query.get("limit", LIMIT["default"]),
    )


def view(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(row[name]) for name in _SHOWN}
