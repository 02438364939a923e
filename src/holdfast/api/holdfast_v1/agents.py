# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/agents: which agents live and by which rules they go; the heartbeat by which they
say so, whose answer names the version of the rules that hold for their host, and says whether
somebody looks at its numbers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.api import agents
from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain, when
from holdfast.model import alarm_rules_scope as scopes
from holdfast.model.alarm_rules_scope import Merged
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.host import normalise
from holdfast.model.votes import FRESH_BEATS

_TEXT = {"type": "string"}
_VERSION = {"type": "string", "maxLength": 64}
_DATE = {"type": "string", "format": "date-time", "maxLength": 64}
_COUNT = {"type": "integer", "minimum": 0}
_SAID = {"type": "string", "maxLength": 2000}
_RULES = {
    "version": {**_VERSION, "description": "In force on the host, from wherever."},
    "central": {**_VERSION, "description": "Of the rules that are kept here, as it has them."},
    "error": {**_SAID, "description": "Why it has not taken the newest ones."},
}
_OWN: dict[str, Any] = {
    "program": {"type": "string", "maxLength": 64},
    "deaf": {**_SAID, "description": "Why it hears nothing of its guests."},
    "guests": {
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": 1_000_000,
        "description": "How many run or are paused there.",
    },
    "firing": {**_COUNT, "description": "Alarms that stand on the host."},
    "waiting": {**_COUNT, "description": "Reports that are not delivered yet."},
    "parked": {**_COUNT, "description": "Reports that were not taken."},
}
_GROUPS = {
    "type": "array",
    "maxItems": 64,
    "items": {"type": "string", "minLength": 1, "maxLength": 128},
}
PUT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["started_at", "heartbeat_s", "rules"],
    "properties": {
        "started_at": _DATE,
        "heartbeat_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 300},
        "groups": _GROUPS,
        "rules": {"type": "object", "additionalProperties": False, "properties": _RULES},
        "boot_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
            "description": "The kernel's: another one than before says that the host rebooted.",
        },
        "running": {
            "type": "array",
            "maxItems": 4096,
            "items": {"type": "string", "maxLength": 64},
            "description": "Servers whose guests run there, while the host booted lately.",
        },
        **_OWN,
    },
}
_SAMPLES = {
    **shape({"after": {"type": "integer", "minimum": -1}}),
    "description": "Only while somebody looks at the host: numbers later than that are wanted.",
}
_BEAT = shape({"host": _TEXT, "rules": shape({"version": _VERSION})})
BEAT = {**_BEAT, "properties": {**_BEAT["properties"], "samples": _SAMPLES}}
VIEW = shape(
    {
        "host": _TEXT,
        "started_at": _DATE,
        "seen_at": _DATE,
        "fresh": {"type": "boolean", "description": "Heard of within three heartbeats."},
        "groups": _GROUPS,
        "rules": shape({**_RULES, "wanted": _VERSION}),
        **_OWN,
    }
)
HELD = shape(
    {
        "host": _TEXT,
        "version": _VERSION,
        "text": {**_TEXT, "description": "One file of alarm rules, made of all that hold."},
        "origins": {"type": "object", "additionalProperties": _TEXT},
    }
)
_UNSAID = {"program": "", "deaf": "", "guests": None, "firing": 0, "waiting": 0, "parked": 0}


def beat(ask: Ask) -> Reply:
    host, body = own_host(ask), dict(ask.body)
    rules = body["rules"]
    details = {
        **{name: body.get(name, unsaid) for name, unsaid in _UNSAID.items()},
        "groups": body.get("groups", []),
        "rule_groups": groups_of(ask, host),
        "error": rules.get("error", ""),
    }
    if "running" in body:
        details["running"] = body["running"]
    values = {
        "started_at": when(body["started_at"], "started_at"),
        "heartbeat_s": float(body["heartbeat_s"]),
        "rules_version": rules.get("version", ""),
        "central_version": rules.get("central", scopes.NONE),
        "details": details,
    }
    if "boot_id" in body:
        values["boot_id"] = body["boot_id"]
    store = ask.services.store
    try:
        store.agents.beat(host, values)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    wanted = scopes.held(store.alarm_rules.documents(), host, details["rule_groups"])
    said: dict[str, Any] = {"host": host, "rules": {"version": scopes.version_of(wanted)}}
    if (last := store.samples.wanted_of(host)) is not None:
        said["samples"] = {"after": last}
    return Reply({"agent": said})


def index(ask: Ask) -> Reply:
    store = ask.services.store
    now, rows = store.agents.all()
    documents = store.alarm_rules.documents()
    found = []
    for row in rows:
        groups = groups_of(ask, row["host"])
        wanted = scopes.held(documents, row["host"], groups)
        found.append(_view(row, now, scopes.version_of(wanted), groups))
    return Reply({"agents": found})


def rules(ask: Ask) -> Reply:
    """What holds for that host; an agent asks for its own."""
    host, store = own_host(ask), ask.services.store
    found: Merged = scopes.merged(store.alarm_rules.documents(), host, groups_of(ask, host))
    shown = {"version": found.version, "text": found.text, "origins": dict(found.origins)}
    return Reply({"alarm_rules": {"host": host, **shown}})


def groups_of(ask: Ask, host: str) -> list[str]:
    """The groups whose rules that host gets."""
    return agents.groups_of(host, ask.services.conf.auth.agent_groups or ())


def own_host(ask: Ask) -> str:
    """Of the path; an agent speaks for its own only."""
    host = normalise(ask.path["host"])
    if not 0 < len(host) <= 255:
        raise InvalidInput("host: its name has 1 to 255 characters")
    agents.check_host(ask.caller, host)
    return agents.own_host(ask.caller) or host


def is_fresh(row: Mapping[str, Any], now: datetime) -> bool:
    silent_s = (now - row["seen_at"]).total_seconds()
    return bool(silent_s <= FRESH_BEATS * row["heartbeat_s"])


def _view(
    row: Mapping[str, Any], now: datetime, wanted: str, groups: Sequence[str]
) -> dict[str, Any]:
    details = row["details"] or {}
    return {
        "host": row["host"],
        "started_at": plain(row["started_at"]),
        "seen_at": plain(row["seen_at"]),
        "fresh": is_fresh(row, now),
        "groups": list(groups),
        "rules": {
            "version": row["rules_version"],
            "central": row["central_version"],
            "error": details.get("error", ""),
            "wanted": wanted,
        },
        **{name: details.get(name, unsaid) for name, unsaid in _UNSAID.items()},
    }
