# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/alarm-rules and /alarm-rules-preview: versioned alarm rule documents with scopes.

The API refuses an invalid document with 400, lists every problem with its line
(`details.problems`), and changes nothing. Agents learn of a new version in the response to their
next heartbeat. The preview evaluates rules over the last hour of hosts whose samples somebody views
(/hosts/HOST/samples). The preview changes nothing and notifies nobody.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.alarms import rules_file, scopes
from holdfast.alarms.preview import Story, preview
from holdfast.alarms.scopes import Document
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain
from holdfast.api.request import Request, Response
from holdfast.model.errors import StaleWrite, Unavailable
from holdfast.model.host import normalise
from holdfast.runtime.documents import MAX_BYTES

#: Room for the largest document, however JSON escapes the text.
MOST_BYTES = 6 * MAX_BYTES + 4096
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_SCOPE = {
    "type": "string",
    "maxLength": 255,
    "description": "all, host:NAME, group:NAME or project:ID.",
}
PUT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text"],
    "properties": {
        "text": {
            "type": "string",
            "maxLength": MAX_BYTES,
            "description": "A file of alarm rules, YAML or JSON (docs/concepts/alarms.md).",
        },
        "scope": {**_SCOPE, "description": f"{_SCOPE['description']} Default: as it was, or all."},
        "replaces": {
            "type": "integer",
            "minimum": 0,
            "maximum": 2**31 - 1,
            "description": "The version that you saw, 0 for none: 409 if it is another by now.",
        },
    },
}
ROLLBACK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"version": {**_COUNT, "description": "Default: what was before this one."}},
}
QUERY: dict[str, Any] = {"version": {**_COUNT, "description": "As it was; default: as it is."}}
_SHOWN: dict[str, Any] = {
    "name": _TEXT,
    "scope": _SCOPE,
    "version": _COUNT,
    "author": _TEXT,
    "created_at": {"type": "string", "format": "date-time"},
}
VIEW = shape({**_SHOWN, "rules": {"type": "array", "items": _TEXT}})
WHOLE = shape({**_SHOWN, "text": _TEXT})
PAST = shape({**_SHOWN, "text": _TEXT, "removed": {"type": "boolean"}})


def index(request: Request) -> Response:
    return Response(
        {"alarm_rules": [_listed(row) for row in request.services.store.alarm_rules.all()]}
    )


def show(request: Request) -> Response:
    row = request.services.store.alarm_rules.show(_name(request), request.query.get("version"))
    return Response({"alarm_rules": _view(row, "text")})


def put(request: Request) -> Response:
    store, name, body = request.services.store.alarm_rules, _name(request), request.body
    was = next((row["scope"] for row in store.all() if row["name"] == name), scopes.ALL)
    document = Document(name, scopes.scope(body.get("scope", was)), 0, body["text"])
    scopes.check(document)
    try:
        row = store.put(document, request.caller.user_id, body.get("replaces"))
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    return Response({"alarm_rules": _view(row, "text")})


def delete(request: Request) -> Response:
    request.services.store.alarm_rules.remove(_name(request), request.caller.user_id)
    return Response(status=204)


def history(request: Request) -> Response:
    rows = request.services.store.alarm_rules.history(_name(request))
    return Response({"versions": [_view(row, "text", "removed") for row in rows]})


def roll_back(request: Request) -> Response:
    store = request.services.store.alarm_rules
    row = store.roll_back(_name(request), request.body.get("version"), request.caller.user_id)
    return Response({"alarm_rules": _view(row, "text")})


def _name(request: Request) -> str:
    return scopes.name(request.path["rules_name"])


def _view(row: Mapping[str, Any], *more: str) -> dict[str, Any]:
    return {name: plain(row[name]) for name in (*_SHOWN, *more)}


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    rule_set = rules_file.parse(row["text"], row["name"])
    return {**_view(row), "rules": [rule.id for rule in rule_set.rules]}


# /holdfast/v1/alarm-rules-preview: alarms that rules would have raised in the last hour.


#: Hosts per request: a host with 50 guests takes a few tenths of a second.
MOST_HOSTS = 8
#: The size limit of all rules in force on a host.
PREVIEW_MOST_BYTES = 64 * 1024
#: Stories per response; `left_out` counts the others.
MOST_STORIES = 500

_STATE = {"type": "string", "enum": ["ok", "pending", "firing", "no_data"]}
_NAMES = {"type": "array", "items": _TEXT}
ASKED: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text", "hosts"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": PREVIEW_MOST_BYTES},
        "hosts": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_HOSTS,
            "items": {"type": "string", "minLength": 1, "maxLength": 255},
        },
    },
}
_CHANGE = {
    "at": {"type": "string", "format": "date-time"},
    "before": _STATE,
    "state": _STATE,
    "value": {"type": ["number", "null"]},
    "threshold": {"type": "number"},
    "reason": _TEXT,
}
_STORY = {
    **dict.fromkeys(("host", "rule", "kind", "entity", "name", "project", "severity"), _TEXT),
    "state": {**_STATE, "description": "In the end."},
    "raised": {"type": "integer", "description": "How many times it fired."},
    "changes": {"type": "array", "items": shape(_CHANGE)},
}
PREVIEW_VIEW = shape(
    {
        "hosts": {**_NAMES, "description": "Hosts with recorded values."},
        "stories": {"type": "array", "items": shape(_STORY)},
        "left_out": {"type": "integer", "description": "Stories left out for lack of room."},
        "silent": {
            "type": "object",
            "additionalProperties": _NAMES,
            "description": "Rules about fields without history; the preview leaves them out.",
        },
    }
)


def show_preview(request: Request) -> Response:
    """Preview alarm rules; 400 with every invalid line, as for PUT."""
    store = request.services.store
    hosts = dict.fromkeys(map(normalise, request.body["hosts"]))
    looked = {host: store.samples.samples_of(host).hour for host in hosts}
    hours = {host: hour for host, hour in looked.items() if hour.points}
    seen = preview(request.body["text"], hours, {host: store.agents.groups(host) for host in hours})
    said = {
        "hosts": list(hours),
        "stories": [_story(story) for story in seen.stories[:MOST_STORIES]],
        "left_out": max(0, len(seen.stories) - MOST_STORIES),
        "silent": {rule: list(fields) for rule, fields in seen.silent.items()},
    }
    return Response({"preview": said})


def _story(story: Story) -> dict[str, Any]:
    words = ("host", "rule", "kind", "entity", "name", "project", "severity", "state", "raised")
    changes = [{name: plain(getattr(change, name)) for name in _CHANGE} for change in story.changes]
    return {**{name: getattr(story, name) for name in words}, "changes": changes}
