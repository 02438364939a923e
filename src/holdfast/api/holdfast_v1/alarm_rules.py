# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/alarm-rules: documents of alarm rules, each with a scope and all its versions.

What cannot be used is a 400 with every problem and its line (`details.problems`), and changes
nothing. Agents are told of a new version by the answer to their next heartbeat.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain
from holdfast.model import alarm_rules_file
from holdfast.model import alarm_rules_scope as scopes
from holdfast.model.alarm_rules_scope import Document
from holdfast.model.errors import StaleWrite, Unavailable
from holdfast.model.yaml_lines import MAX_BYTES

#: A text of the largest size, however it is escaped.
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
            "description": "A file of alarm rules, YAML or JSON (docs/alarms.md).",
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


def index(ask: Ask) -> Reply:
    return Reply({"alarm_rules": [_listed(row) for row in ask.services.store.alarm_rules.all()]})


def show(ask: Ask) -> Reply:
    row = ask.services.store.alarm_rules.show(_name(ask), ask.query.get("version"))
    return Reply({"alarm_rules": _view(row, "text")})


def put(ask: Ask) -> Reply:
    store, name, body = ask.services.store.alarm_rules, _name(ask), ask.body
    was = next((row["scope"] for row in store.all() if row["name"] == name), scopes.ALL)
    document = Document(name, scopes.scope(body.get("scope", was)), 0, body["text"])
    scopes.check(document)
    try:
        row = store.put(document, ask.caller.user_id, body.get("replaces"))
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    return Reply({"alarm_rules": _view(row, "text")})


def delete(ask: Ask) -> Reply:
    ask.services.store.alarm_rules.remove(_name(ask), ask.caller.user_id)
    return Reply(status=204)


def history(ask: Ask) -> Reply:
    rows = ask.services.store.alarm_rules.history(_name(ask))
    return Reply({"versions": [_view(row, "text", "removed") for row in rows]})


def roll_back(ask: Ask) -> Reply:
    store = ask.services.store.alarm_rules
    row = store.roll_back(_name(ask), ask.body.get("version"), ask.caller.user_id)
    return Reply({"alarm_rules": _view(row, "text")})


def _name(ask: Ask) -> str:
    return scopes.name(ask.path["rules_name"])


def _view(row: Mapping[str, Any], *more: str) -> dict[str, Any]:
    return {name: plain(row[name]) for name in (*_SHOWN, *more)}


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    found = alarm_rules_file.parse(row["text"], row["name"])
    return {**_view(row), "rules": [rule.id for rule in found.rules]}
