# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/silences: what dies in a window of maintenance is noted and left alone."""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.incidents import REASON, reason
from holdfast.api.holdfast_v1.observations import plain, when
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.incident import MATCHERS, WORK

LONGEST = timedelta(days=30)
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_WHEN = {"type": "string", "format": "date-time", "maxLength": 64}
_MATCHER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "description": "All that is named must be so.",
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
        "starts_at": {**_WHEN, "description": "Default: now."},
        "expires_at": {**_WHEN, "description": "At most 30 days after it starts."},
        "duration_s": {
            "type": "integer",
            "minimum": 1,
            "maximum": int(LONGEST.total_seconds()),
            "description": "Instead of expires_at: how long it lasts.",
        },
    },
}
_TEXT = {"type": "string"}
_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "matcher": {"type": "object", "properties": {name: _TEXT for name in MATCHERS}},
    "segment": {"type": ["string", "null"], "description": "The name of the matcher's segment."},
    "author": _TEXT,
    "reason": _TEXT,
    "created_at": _WHEN,
    "starts_at": _WHEN,
    "expires_at": _WHEN,
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def index(ask: Ask) -> Reply:
    """Those in force, and those to come."""
    store = ask.services.store
    names = store.cases.segment_names()
    return Reply({"silences": [view(row, names) for row in store.switches.all_silences()]})


def create(ask: Ask) -> Reply:
    store = ask.services.store
    why, matcher = reason(ask), _matcher(ask)
    starts, expires = _window(ask.body, store.database.now())
    values = {
        "matcher": matcher,
        "author": ask.caller.user_id,
        "reason": why,
        "starts_at": starts,
        "expires_at": expires,
    }
    row = store.switches.silence(values)
    return Reply({"silence": view(row, store.cases.segment_names())}, status=201)


def delete(ask: Ask) -> Reply:
    ask.services.store.switches.unsilence(ask.path["silence_id"])
    return Reply(status=204)


def view(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    known = {**row, "segment": names.get(row["matcher"].get("segment", ""))}
    return {name: plain(known[name]) for name in _SHOWN}


def _matcher(ask: Ask) -> dict[str, str]:
    """A silence that can never match is a maintenance without protection: it is refused."""
    store, asked = ask.services.store, dict(ask.body["matcher"])
    if "segment" in asked:
        asked["segment"] = store.cases.segment_uuid(asked["segment"])
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
        raise InvalidInput(f"expires_at: a silence lasts {LONGEST.days} days at most")
    return starts, expires
