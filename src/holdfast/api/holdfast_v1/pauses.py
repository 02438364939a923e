# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/pauses and /approvals: the operator's switches of recovery. Rows, no manager needed:
they act with the next look of the guards, and no move of a server begins before it has looked."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.incidents import REASON, reason
from holdfast.api.holdfast_v1.observations import plain
from holdfast.model.errors import NotFound

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
            "description": "How long it lasts; null: until somebody resumes.",
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
_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "segment_id": {**_MAYBE, "description": "null: everywhere."},
    "segment": _MAYBE,
    "author": _TEXT,
    "reason": _TEXT,
    "created_at": _DATE,
    "expires_at": {**_WHEN, "description": "null: until somebody resumes."},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}
_APPROVAL: dict[str, Any] = {
    "domain": {**_MAYBE, "description": "null: everywhere."},
    "author": _TEXT,
    "reason": _TEXT,
    "expires_at": _DATE,
    "held": {
        "type": "integer",
        "minimum": 0,
        "description": "Incidents that were held; their guards are asked again at once.",
    },
}
APPROVAL = {"type": "object", "required": list(_APPROVAL), "properties": _APPROVAL}


def index(ask: Ask) -> Reply:
    """Those in force."""
    store = ask.services.store
    names = store.cases.segment_names()
    return Reply({"pauses": [view(row, names) for row in store.switches.all_pauses()]})


def pause(ask: Ask) -> Reply:
    """201; one of the same place is replaced."""
    store, why = ask.services.store, reason(ask)
    ref, lasts = ask.body.get("segment"), ask.body.get("duration_s", DEFAULT_S)
    segment = store.cases.segment_uuid(ref) if ref else ""
    until = None if lasts is None else store.database.now() + timedelta(seconds=lasts)
    row = store.switches.pause(segment, ask.caller.user_id, why, until)
    return Reply({"pause": view(row, store.cases.segment_names())}, status=201)


def resume(ask: Ask) -> Reply:
    store, ref = ask.services.store, ask.query.get("segment")
    segment = store.cases.segment_uuid(ref) if ref else ""
    if not store.switches.resume(segment, ask.caller.user_id):
        where = f"in segment {ref}" if ref else "everywhere"
        raise NotFound(f"recovery is not paused {where}: holdfast incident list shows what is")
    store.orders.hasten_held(segment)
    return Reply(status=204)


def approve(ask: Ask) -> Reply:
    """202: so much did fail; what was held for that goes on."""
    why, domain = reason(ask), ask.body.get("domain", "").strip()
    made = ask.services.store.orders.approve(ask.caller.user_id, why, domain)
    shown = {name: plain(getattr(made, name)) for name in _APPROVAL}
    return Reply({"approval": {**shown, "domain": made.domain or None}}, status=202)


def view(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    _, _, segment = str(row["scope"]).partition(":")
    known = {**row, "segment_id": segment or None, "segment": names.get(segment)}
    return {name: plain(known[name]) for name in _SHOWN}
