# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/incidents: list, show, explain, retry, abort, confirm-off.

Operator actions are rows in the database: the API accepts them without a manager, also during a
mass failure.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.api.holdfast_v1 import explanation
from holdfast.api.holdfast_v1.observations import LIMIT, plain, when
from holdfast.api.request import Request, Response
from holdfast.db.incident_queries import Case, Listed, Wanted
from holdfast.model import votes
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.incident import HOST, KINDS, STEPS, votes_of
from holdfast.model.incident_progress import plain as details_plain
from holdfast.model.operation import DONE, OPEN, SKIPPED
from holdfast.model.state_machines import INCIDENT
from holdfast.ports.fence import ON
from holdfast.ports.recovery import FAILED, IGNORED, ONGOING, PENDING, SUCCEEDED, ServerMove
from holdfast.recovery import timeline

LONGEST_REASON = 1000
KIND = {"type": "string", "enum": sorted(KINDS)}
STATUS = {"type": "string", "enum": sorted(INCIDENT)}
QUERY: dict[str, Any] = {
    "status": STATUS,
    "kind": KIND,
    "host": {"type": "string", "maxLength": 255, "description": "By name, short or full."},
    "segment": {"type": "string", "maxLength": 255, "description": "By name or id."},
    "open": {
        "type": "string",
        "enum": ["true", "false"],
        "description": "Only open incidents, or only closed ones.",
    },
    "since": {
        "type": "string",
        "format": "date-time",
        "maxLength": 64,
        "description": "Opened at or after.",
    },
    "limit": LIMIT,
    "marker": {
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "description": "The id of the last incident seen; older incidents follow.",
    },
}
REASON = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_REASON,
    "description": "The reason; the audit log keeps the reason.",
}
ORDER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["reason"],
    "properties": {"reason": REASON},
}
RETRY: dict[str, Any] = {**ORDER, "required": []}
CONFIRM_OFF: dict[str, Any] = {
    **ORDER,
    "properties": {
        "reason": REASON,
        "despite_power_on": {
            "type": "boolean",
            "description": "Its fence reads on, and you know better.",
        },
    },
}
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_DATE = {"type": "string", "format": "date-time"}
_WHEN = {"type": ["string", "null"], "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_COUNTED = (PENDING, ONGOING, SUCCEEDED, FAILED, IGNORED)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _list(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _object(properties)}


_LISTED: dict[str, Any] = {
    "id": _TEXT,
    "kind": KIND,
    "subject": {**_TEXT, "description": "host:NAME, server:ID, process:HOST:NAME or alarm:ID"},
    "host": _TEXT,
    "server": {**_MAYBE, "description": "The guest's id."},
    "server_name": {**_MAYBE, "description": "The guest's name; null: not known."},
    "segment_id": _TEXT,
    "segment": _MAYBE,
    "cause": _TEXT,
    "status": STATUS,
    "sentence": {**_TEXT, "description": "The state, and the next action."},
    "opened_at": _DATE,
    "closed_at": _WHEN,
    "moves": _object({name: _COUNT for name in _COUNTED}),
}
VIEW = _object(_LISTED)
_VERDICT = {"guard": _TEXT, "passed": {"type": "boolean"}, "sentence": _TEXT, "at": _DATE}
_STEP = {
    "name": _TEXT,
    "status": {"type": "string", "enum": [DONE, SKIPPED, "under way", "to come"]},
    "finished_at": _WHEN,
    "sentence": _TEXT,
}
_WORK = {
    "status": _TEXT,
    "sentence": _TEXT,
    "attempts": _COUNT,
    "next_try_at": _WHEN,
    "owner": _MAYBE,
}
_MOVE = {
    "server": _TEXT,
    "name": _TEXT,
    "from": _TEXT,
    "to": _MAYBE,
    "status": {"type": "string", "enum": list(_COUNTED)},
    "attempts": _COUNT,
    "message": _TEXT,
    "reservation": {**_MAYBE, "description": "The reservation on whose hosts the server stays."},
    "started_at": _WHEN,
    "ended_at": _WHEN,
}
_REPORT = {
    "id": _TEXT,
    "type": _TEXT,
    "payload": {"type": "object"},
    "status": _TEXT,
    "message": _MAYBE,
    "generated_at": _DATE,
    "received_at": _DATE,
}
_EVENT = {
    "at": _DATE,
    "actor": _TEXT,
    "kind": {"type": "string", "enum": list(timeline.KINDS)},
    "data": {"type": "object", "description": "The fields of the event, by its kind."},
    "sentence": _TEXT,
}
CASE = _object(
    {
        **_LISTED,
        "seen": {**_MAYBE, "description": "How host monitors voted; null: they did not."},
        "evidence": {**_MAYBE, "description": "The proof that the host is off."},
        "work": {**_object(_WORK), "type": ["object", "null"]},
        "verdicts": _list(_VERDICT),
        "steps": _list(_STEP),
        "servers": _list(_MOVE),
        "reports": _list(_REPORT),
        "timeline": _list(_EVENT),
        "details": {"type": "object"},
    }
)


def index(request: Request) -> Response:
    query, cases = request.query, request.services.store.incident_queries
    segment, since, is_open = (query.get(name) for name in ("segment", "since", "open"))
    wanted = Wanted(
        status=query.get("status"),
        kind=query.get("kind"),
        host=query.get("host"),
        segment=cases.segment_uuid(segment) if segment else None,
        is_open=None if is_open is None else is_open == "true",
        since=when(since, "since") if since else None,
        marker=query.get("marker"),
        limit=query.get("limit", LIMIT["default"]),
    )
    return Response({"incidents": [listed(case) for case in cases.list_all(wanted)]})


def show(request: Request) -> Response:
    return Response({"incident": view(_case(request))})


def explain(request: Request) -> Response:
    store = request.services.store
    story = explanation.story(_case(request), store.database.now())
    return Response({"explanation": explanation.view(story)})


def retry(request: Request) -> Response:
    request.services.store.incident_actions.retry(
        _id(request), request.caller.user_id, reason(request, needed=False)
    )
    return _told(request)


def abort(request: Request) -> Response:
    request.services.store.incident_actions.abort(
        _id(request), request.caller.user_id, reason(request)
    )
    return _told(request)


def confirm_off(request: Request) -> Response:
    """Record the operator's confirmation: the host is off.

    409 if the host's fence reads on, unless `despite_power_on` is set. If the fence cannot be read,
    the operator's confirmation counts.
    """
    why, store, despite = (
        reason(request),
        request.services.store,
        request.body.get("despite_power_on", False),
    )
    incident = store.incidents.incident(_id(request))
    reads_on = False
    if incident.kind == HOST and incident.is_open:
        reads_on = request.services.read_power(incident.host) == ON
    if reads_on and not despite:
        raise Conflict(
            f"the fence of {incident.host} reads on: look at the machine, or cut its power with"
            f" holdfast fence off {incident.host}; if you know that its fence is wrong: holdfast"
            f" incident confirm-off {incident.id} --despite-power-on --reason …"
        )
    store.incident_actions.confirm_off(
        incident.id, request.caller.user_id, why, reads_on=reads_on, despite_power_on=despite
    )
    return _told(request)


def _id(request: Request) -> str:
    return request.path["incident_id"]


def _case(request: Request) -> Case:
    return request.services.store.incident_queries.case(_id(request))


def _told(request: Request) -> Response:
    """Return 202 with the incident; the manager applies the change from now on."""
    return Response({"incident": listed(_case(request))}, status=202)


def reason(request: Request, *, needed: bool = True) -> str:
    """Return the reason of an operator action; InvalidInput if needed and blank."""
    text: str = request.body.get("reason", "").strip()
    if needed and not text:
        raise InvalidInput("reason: required; the audit log keeps it")
    return text


def listed(case: Listed) -> dict[str, Any]:
    incident = case.incident
    return {
        "id": incident.id,
        "kind": incident.kind,
        "subject": incident.subject,
        "host": incident.host,
        "server": incident.server_id or None,
        "server_name": incident.guest_progress.server_name,
        "segment_id": incident.segment,
        "segment": case.segment_name,
        "cause": incident.cause,
        "status": incident.status,
        "sentence": incident.sentence,
        "opened_at": plain(incident.opened_at),
        "closed_at": plain(incident.closed_at),
        "moves": {name: case.moves.get(name, 0) for name in _COUNTED},
    }


def view(case: Case) -> dict[str, Any]:
    known = case.incident.host_progress
    return {
        **listed(case),
        "seen": votes.report_text(case.incident.host, votes_of(known.seen)) or None,
        "evidence": known.evidence.sentence if known.evidence else None,
        "work": None if case.work is None else _picked(_WORK, case.work),
        "verdicts": [_picked(_VERDICT, row) for row in case.verdicts],
        "steps": _steps(case),
        "servers": [_server(server_move) for server_move in case.servers],
        "reports": [_report(row) for row in case.reports],
        "timeline": [_event(event) for event in case.timeline],
        "details": details_plain(case.incident.details),
    }


def _picked(names: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(row[name]) for name in names}


def _steps(case: Case) -> list[dict[str, Any]]:
    """Return the finished steps; for an open incident also the current and the next steps.

    A site may replace a built-in step by a step of its own.
    """
    steps = [_picked(_STEP, row) for row in case.done]
    if not case.incident.is_open or case.work is None:
        return steps
    ours = list(STEPS[case.incident.kind])
    known = [ours.index(row["name"]) for row in case.done if row["name"] in ours]
    left = ours[max(known, default=-1) + 1 :]
    for place, name in enumerate(left):
        now = place == 0 and case.work["status"] in OPEN
        steps.append(
            {
                "name": name,
                "status": "under way" if now else "to come",
                "finished_at": None,
                "sentence": case.work["sentence"] if now else "",
            }
        )
    return steps


def _event(event: timeline.Event) -> dict[str, Any]:
    return {
        "at": plain(event.at),
        "actor": event.actor,
        "kind": event.data.kind,
        "data": timeline.fields(event.data),
        "sentence": event.sentence,
    }


def _server(move: ServerMove) -> dict[str, Any]:
    return {
        "server": move.server_id,
        "name": move.server_name,
        "from": move.source_host,
        "to": move.dest_host,
        "status": move.status,
        "attempts": move.attempts,
        "message": move.message,
        "reservation": move.reservation or None,
        "started_at": plain(move.started_at),
        "ended_at": plain(move.ended_at),
    }


def _report(row: Mapping[str, Any]) -> dict[str, Any]:
    at: datetime = row["created_at"]
    return {
        "id": row["uuid"],
        "type": row["type"],
        "payload": dict(row["payload"]),
        "status": row["status"],
        "message": row["message"],
        "generated_at": plain(row["generated_time"]),
        "received_at": plain(at),
    }
