# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/agents, /hosts/HOST/expected and /hosts/HOST/samples: the API of the agents.

- Agents: list, heartbeat, alarm rules of a host. The response to a heartbeat names the version of
  the alarm rules for the host, and says whether somebody views the host's live metrics.
- Expected servers of a host. The API asks the cloud at once. If the cloud does not answer, the API
  returns 503, never an empty list.
- Samples: the last hour of a host and its guests. The agent sends samples only while somebody views
  them. A viewer says so with a POST, because a GET changes nothing.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.alarms import scopes
from holdfast.alarms.scopes import Merged
from holdfast.api import tokens
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain, when
from holdfast.api.request import Request, Response
from holdfast.metrics import history
from holdfast.metrics.history import FIELDS, POINTS
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.host import normalise
from holdfast.model.observation import EXPECTED_STATES
from holdfast.model.votes import FRESH_BEATS
from holdfast.ports.reports import MOST_ALSO

_TEXT = {"type": "string"}
_VERSION = {"type": "string", "maxLength": 64}
_DATE = {"type": "string", "format": "date-time", "maxLength": 64}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_SAID = {"type": "string", "maxLength": 2000}
_RULES = {
    "version": {**_VERSION, "description": "In force on the host, from wherever."},
    "central": {**_VERSION, "description": "Of the rules that are kept here, as it has them."},
    "error": {**_SAID, "description": "Why the newest rules are not in force."},
}
_OWN: dict[str, Any] = {
    "program": {"type": "string", "maxLength": 64},
    "deaf": {**_SAID, "description": "Why it hears nothing of its guests."},
    "guests": {
        **_COUNT,
        "type": ["integer", "null"],
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
            "description": "The kernel's boot id; a new id means that the host rebooted.",
        },
        "running": {
            "type": "array",
            "maxItems": 4096,
            "items": {"type": "string", "maxLength": 64},
            "description": "Servers whose guests run there, while the host booted lately.",
        },
        "ran": {
            "type": "array",
            "maxItems": 4096,
            "items": {"type": "string", "maxLength": 64},
            "description": "Servers whose guests ran there before the boot, if that was lately.",
        },
        **_OWN,
    },
}
_SAMPLES = {
    **shape({"after": {"type": "integer", "minimum": -1}}),
    "description": "While an operator watches the host: the agent sends metrics newer than this.",
}
_BEAT = shape({"host": _TEXT, "rules": shape({"version": _VERSION})})
BEAT = {**_BEAT, "properties": {**_BEAT["properties"], "samples": _SAMPLES}}
VIEW = shape(
    {
        "host": _TEXT,
        "started_at": _DATE,
        "seen_at": _DATE,
        "fresh": {"type": "boolean", "description": "Reported within three heartbeats."},
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


def beat(request: Request) -> Response:
    host, body = own_host(request), dict(request.body)
    rules = body["rules"]
    details = {
        **{name: body.get(name, unsaid) for name, unsaid in _UNSAID.items()},
        "groups": body.get("groups", []),
        "rule_groups": groups_of(request, host),
        "error": rules.get("error", ""),
    }
    details |= {name: body[name] for name in ("running", "ran") if name in body}
    values = {
        "started_at": when(body["started_at"], "started_at"),
        "heartbeat_s": float(body["heartbeat_s"]),
        "rules_version": rules.get("version", ""),
        "central_version": rules.get("central", scopes.NONE),
        "details": details,
    }
    if "boot_id" in body:
        values["boot_id"] = body["boot_id"]
    store = request.services.store
    try:
        store.agents.beat(host, values)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    documents = scopes.held(store.alarm_rules.documents(), host, details["rule_groups"])
    answer: dict[str, Any] = {"host": host, "rules": {"version": scopes.version_of(documents)}}
    if (last := store.samples.wanted_of(host)) is not None:
        answer["samples"] = {"after": last}
    return Response({"agent": answer})


def index(request: Request) -> Response:
    store = request.services.store
    now, rows = store.agents.all()
    documents = store.alarm_rules.documents()
    views = []
    for row in rows:
        groups = groups_of(request, row["host"])
        wanted = scopes.held(documents, row["host"], groups)
        views.append(_view(row, now, scopes.version_of(wanted), groups))
    return Response({"agents": views})


def rules(request: Request) -> Response:
    """Return the alarm rules in force for a host; agents read the rules of their own host only."""
    host, store = own_host(request), request.services.store
    merged: Merged = scopes.merged(store.alarm_rules.documents(), host, groups_of(request, host))
    shown = {"version": merged.version, "text": merged.text, "origins": dict(merged.origins)}
    return Response({"alarm_rules": {"host": host, **shown}})


def groups_of(request: Request, host: str) -> list[str]:
    """Return the rule groups of a host, by `[auth] agent_groups`."""
    return tokens.groups_of(host, request.services.conf.auth.agent_groups or ())


def own_host(request: Request) -> str:
    """Return the host of the path; Forbidden if an agent names another host."""
    host = normalise(request.path["host"])
    if not 0 < len(host) <= 255:
        raise InvalidInput("host: its name has 1 to 255 characters")
    tokens.check_host(request.caller, host)
    return tokens.own_host(request.caller) or host


def is_fresh(row: Mapping[str, Any], now: datetime) -> bool:
    silent_s = (now - row["seen_at"]).total_seconds()
    return bool(silent_s <= FRESH_BEATS * row["heartbeat_s"])


def guest_counts(request: Request) -> Mapping[str, int]:
    """Return guest counts from live agents, or from the simulation, which has no agents."""
    if request.services.sim is None:
        now, rows = request.services.store.agents.all()
        guest_counts = {
            row["host"]: row["details"].get("guests") for row in rows if is_fresh(row, now)
        }
        return {host: count for host, count in guest_counts.items() if count is not None}
    world: Mapping[str, Any] = request.services.sim().world()
    return {normalise(host["name"]): host["servers"] for host in world["hosts"]}


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


# /holdfast/v1/hosts/HOST/expected: servers that should run on a host.


QUERY: dict[str, Any] = {
    "also": {
        **_TEXT,
        "maxLength": MOST_ALSO * 37,
        "description": f"Ids of up to {MOST_ALSO} more servers, with commas between them: guests"
        " that run there and are not listed.",
    }
}
_SERVER = shape(
    {"id": _TEXT, "name": _TEXT, "state": {**_TEXT, "enum": list(EXPECTED_STATES)}, "why": _TEXT}
)
EXPECTED_VIEW = shape(
    {
        "host": _TEXT,
        "at": {**_TEXT, "format": "date-time"},
        "servers": {"type": "array", "items": _SERVER},
    }
)


def show_expected(request: Request) -> Response:
    host = request.path["host"]
    tokens.check_host(request.caller, host)
    # use the full name: an agent learns nothing of another host with the same short name
    host = max(host, tokens.own_host(request.caller) or "", key=len)
    expectation = request.services.manager.expected(request.caller, host, _ids(request))
    servers = [
        {"id": server.uuid, "name": server.name, "state": server.state, "why": server.why}
        for server in expectation.servers
    ]
    shown = {"host": expectation.host, "at": expectation.at.isoformat(), "servers": servers}
    return Response({"expected": shown})


def _ids(request: Request) -> list[str]:
    words = [word for text in request.every.get("also", ()) for word in text.split(",") if word]
    if len(words) > MOST_ALSO:
        raise InvalidInput(f"also: {len(words)} ids; ask about {MOST_ALSO} at a time")
    try:
        return [str(uuid.UUID(word)) for word in words]
    except ValueError:
        raise InvalidInput("also: write ids of servers, with commas between them") from None


# /holdfast/v1/hosts/HOST/samples: the last hour of a host and its guests.


_SAMPLE_DATE = {"type": ["string", "null"], "format": "date-time"}
_POINTS = {
    "type": "string",
    "description": "A float of four bytes, little-endian, for each point, in base64; NaN: unknown.",
}
_LINE = {
    "type": "object",
    "required": ["kind", "id", "values"],
    "properties": {
        "kind": {"type": "string", "enum": list(FIELDS)},
        "id": _TEXT,
        **dict.fromkeys(("name", "project", "project_name", "flavor", "guest"), _TEXT),
        "contracts": {"type": "object", "additionalProperties": {"type": "number"}},
        "values": {"type": "object", "additionalProperties": _POINTS},
    },
}
_HOUR: dict[str, Any] = {
    "begin": {
        **_COUNT,
        "maximum": history.LAST_SLOT,
        "description": "The first point; point n is of second 10 n since 1970.",
    },
    "points": {**_COUNT, "maximum": POINTS},
    "lines": {"type": "array", "items": _LINE},
    "left_out": {**_COUNT, "description": "Entries left out for lack of room."},
    "simulated": {"type": "boolean", "description": "There is no host: these are made up."},
}
WANT: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
#: metrics/history validates the lines: a JSON schema takes seconds for megabytes of samples.
SAMPLES_PUT: dict[str, Any] = {
    "type": "object",
    "required": ["begin", "points", "lines"],
    "properties": {**_HOUR, "lines": {"type": "array"}},
}
_WANTED = {
    "host": _TEXT,
    "wanted_until": {**_SAMPLE_DATE, "description": "null: no operator watched the host yet."},
}
WANTED = shape(_WANTED)
SAMPLES_VIEW = shape(
    {
        **_WANTED,
        "at": {**_SAMPLE_DATE, "description": "When numbers came last; null: none did."},
        "fresh": {"type": "boolean", "description": "Whether they come in just now."},
        **_HOUR,
    }
)


def show_samples(request: Request) -> Response:
    watched_host = request.services.store.samples.samples_of(_host(request))
    hour = {"left_out": 0, "simulated": False, **history.plain(watched_host.hour)}
    samples = {
        "host": watched_host.host,
        "wanted_until": plain(watched_host.wanted_until),
        "at": plain(watched_host.at),
        "fresh": watched_host.fresh,
    }
    return Response({"samples": {**samples, **hour}})


def want_samples(request: Request) -> Response:
    host = _host(request)
    try:
        until = request.services.store.samples.want(host)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, ask again") from error
    return Response({"samples": {"host": host, "wanted_until": plain(until)}}, 202)


def put_samples(request: Request) -> Response:
    """Store the samples that a host's agent sends.

    Samples that nobody views any more are no error of the agent's.
    """
    host, hour = own_host(request), history.read(request.body)
    try:
        request.services.store.samples.put(host, hour)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    return Response(status=204)


def _host(request: Request) -> str:
    host = normalise(request.path["host"])
    if not 0 < len(host) <= 255:
        raise InvalidInput("host: its name has 1 to 255 characters")
    return host
