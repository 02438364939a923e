# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/monitors and /matrix: host monitors, their reports, and the HA matrix.

The matrix response lists the hosts that each row matches now. Only registered monitors vote;
unregistered monitors are listed. The API works on the database alone, without a manager.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.api import tokens
from holdfast.api.holdfast_v1.observations import DAY, plain, when
from holdfast.api.request import Request, Response
from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import ACTIONS, UNDECIDED, UNKNOWN
from holdfast.model import votes
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.votes import Listed, Sight, View

KIND = {"type": "string", "enum": ["host"]}
STATE = {"type": "string", "enum": [matrix.UP, matrix.DOWN, UNKNOWN]}
ACTION = {"type": "string", "enum": [*ACTIONS, UNDECIDED]}
MOST_HOSTS, MOST_NETWORKS, MOST_ROWS = 20_000, 16, 5_000
LONGEST_NAME, LONGEST_TEXT = 255, 1000
#: Room for 20,000 host names of maximum length.
MOST_BYTES = 6 * 1024 * 1024
_TEXT = {"type": "string"}
_SAID = {"type": "string", "maxLength": LONGEST_TEXT}
_DATE = {"type": "string", "format": "date-time", "maxLength": 64}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_HOSTS = {"type": "array", "items": {"type": "string"}}
HEALTH = {"type": "object", "additionalProperties": STATE}


def shape(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _strict(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {**shape(properties), "additionalProperties": False}


def _by_network(schema: Any) -> dict[str, Any]:
    names = {"minLength": 1, "maxLength": 64}
    return {
        "type": "object",
        "maxProperties": MOST_NETWORKS,
        "propertyNames": names,
        "additionalProperties": schema,
    }


_SIGHT = {"sighted": {"type": "boolean"}, "leader": _SAID, "since": _DATE, "why": _SAID}
_WARNING = {"warning": {**_SAID, "description": "Changes that the cluster needs."}}
_SENT_SIGHT, _SHOWN_SIGHT = _strict(_SIGHT), shape(_SIGHT)
for _schema in (_SENT_SIGHT, _SHOWN_SIGHT):
    _schema["properties"] |= _WARNING
# `_check_hosts` validates the host names: a JSON schema takes half a second for them.
_ROW = {
    "health": _by_network(STATE),
    "opinion": ACTION,
    "hosts": {"type": "array", "maxItems": MOST_HOSTS},
}
PUT: dict[str, Any] = _strict(
    {
        "kind": KIND,
        "at": _DATE,
        "started_at": _DATE,
        "heartbeat_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 300},
        "networks": _by_network(_SENT_SIGHT),
        "ha_matrix": {"type": "object", "maxProperties": 16},
        "rows": {"type": "array", "maxItems": MOST_ROWS, "items": _strict(_ROW)},
    }
)
#: State of the monitor itself; a missing field means no problem.
_OWN: dict[str, Any] = {
    "problem": {**_SAID, "description": "Of its HA matrix file; an older one is in force."},
    "waiting": {**_COUNT, "description": "Reports that are not delivered yet."},
    "parked": {**_COUNT, "description": "Reports that were not taken."},
}
PUT["properties"] |= _OWN
_REGISTRATION: dict[str, Any] = {
    "registered_by": {"type": ["string", "null"]},
    "registered_at": {**_DATE, "type": ["string", "null"]},
}
REGISTER: dict[str, Any] = _strict(
    {"observer": {"type": "string", "minLength": 1, "maxLength": 128}}
)
REGISTERED = shape({"observer": _TEXT, "token": _TEXT, **_REGISTRATION})
VIEW = shape(
    {
        "observer": _TEXT,
        "registered": {"type": "boolean", "description": "Only registered monitors vote."},
        **_REGISTRATION,
        "hint": {
            **_TEXT,
            "description": "The action that gives the monitor a vote; empty: none needed.",
        },
        "kind": _TEXT,
        "seen_at": {**_DATE, "type": ["string", "null"]},
        "fresh": {"type": "boolean", "description": "Reported within three heartbeats."},
        "networks": {"type": "object", "additionalProperties": _SHOWN_SIGHT},
        "matrix_source": _TEXT,
        "hosts": _COUNT,
        **_OWN,
    }
)
_IN_A_ROW = {"health": HEALTH, "hosts": _HOSTS, "count": _COUNT}
MATRIX = shape(
    {
        "networks": {"type": "array", "items": _TEXT},
        "source": {"type": ["string", "null"]},
        "ha_matrix": {"type": ["object", "null"]},
        "rows": {
            "type": "array",
            "items": shape(
                {**_IN_A_ROW, "action": ACTION, "for_s": {"type": "number"}, "sentence": _TEXT}
            ),
        },
        "undecided": {"type": "array", "items": shape(_IN_A_ROW)},
        "differing": {"type": "array", "items": shape({"observer": _TEXT, "source": _TEXT})},
        "blind": {
            "type": "array",
            "items": _TEXT,
            "description": "Networks on which no monitor sees anything.",
        },
    }
)


def put(request: Request) -> Response:
    """Store the report of a monitor; 204 also if a newer report is stored already."""
    observer, body = request.path["observer"], dict(request.body)
    if len(observer) > 128:
        raise InvalidInput("observer: longer than 128 characters")
    tokens.check_observer(request, observer)
    _check_hosts(body["rows"])
    now = request.services.store.database.now()
    at = when(body.pop("at"), "at")
    if abs(at - now) > DAY:
        raise InvalidInput(f"at: more than a day from now, {now.isoformat()}; correct the clock")
    for name, date in _dates(body):
        when(date, name)
    try:
        request.services.store.monitors.put(observer, at, body)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    request.services.wake()
    return Response(status=204)


def _dates(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "started_at", body["started_at"]
    for network, sight in body["networks"].items():
        yield f"networks.{network}.since", sight["since"]


def _check_hosts(rows: Sequence[Mapping[str, Any]]) -> None:
    count, seen = 0, set()
    for place, row in enumerate(rows):
        for name in row["hosts"]:
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
                raise InvalidInput(
                    f"rows.{place}.hosts: the name of a host is a text of up to {LONGEST_NAME}"
                    " characters"
                )
        seen.update(row["hosts"])
        count += len(row["hosts"])
    if count > MOST_HOSTS:
        raise InvalidInput(f"rows: {count} hosts; at most {MOST_HOSTS} are taken")
    if len(seen) != count:
        raise InvalidInput("rows: a host appears twice; each host has a single row")


def register(request: Request) -> Response:
    """Register a monitor; 201 with the token. A second registration returns the same token."""
    observer, services = request.body["observer"], request.services
    token = tokens.new_token(observer, services.conf.auth.agent_secret_file)
    registration = services.store.monitors.register(observer, request.caller.user_id)
    registered = {"observer": observer, "token": token, "registered_by": registration.by}
    return Response(
        {"monitor": {**registered, "registered_at": plain(registration.at)}}, status=201
    )


def unregister(request: Request) -> Response:
    """Unregister a monitor; NotFound if no monitor of the name is registered."""
    request.services.store.monitors.unregister(request.path["observer"])
    return Response(status=204)


def index(request: Request) -> Response:
    """List registered monitors, and unregistered monitors that report."""
    now, listed = request.services.store.monitors.listed()
    return Response({"monitors": [_listed(monitor, now) for monitor in listed]})


def _listed(monitor: Listed, now: datetime) -> dict[str, Any]:
    registration, view = monitor.registration, monitor.view
    return {
        "observer": monitor.observer,
        "registered": registration is not None,
        "registered_by": registration.by if registration else None,
        "registered_at": plain(registration.at) if registration else None,
        "hint": _hint(monitor),
        "fresh": view is not None and view.is_fresh(now),
        **(_UNHEARD if view is None else _monitor(view)),
    }


def _hint(monitor: Listed) -> str:
    if monitor.registration is None:
        return (
            "not registered, so the monitor has no vote: `holdfast monitor register"
            f" {monitor.observer}` prints the token for its [hostmonitor] token_file"
        )
    if monitor.view is None:
        return (
            "no report since the registration: check that the monitor runs, and that its"
            " [hostmonitor] token_file has its token"
        )
    return ""


#: Fields of a registered monitor without a report yet.
_UNHEARD: Mapping[str, Any] = {
    **{"kind": "host", "seen_at": None, "networks": {}, "matrix_source": ""},
    **{"hosts": 0, "problem": "", "waiting": 0, "parked": 0},
}


def _monitor(view: View) -> dict[str, Any]:
    picture = view.picture
    return {
        "kind": view.kind,
        "seen_at": plain(view.seen_at),
        "networks": {name: _sight(sight) for name, sight in picture.networks.items()},
        "matrix_source": picture.ha_matrix.source,
        "hosts": len(picture.places),
        "problem": picture.problem,
        "waiting": picture.waiting,
        "parked": picture.parked,
    }


def _sight(sight: Sight) -> dict[str, Any]:
    return {name: value for name, value in vars(sight).items() if value or name in _SIGHT}


def show_matrix(request: Request) -> Response:
    now, views = request.services.store.monitors.views()
    return Response({"matrix": shown([view for view in views if view.is_fresh(now)])})


def shown(views: Sequence[View]) -> dict[str, Any]:
    """Return the HA matrix of fresh monitors with the hosts in each row; empty without monitors."""
    ha_matrix, others = votes.in_force(views)
    if ha_matrix is None:
        return {
            **{"networks": [], "source": None, "ha_matrix": None},
            **{"rows": [], "undecided": [], "differing": [], "blind": []},
        }
    groups: dict[tuple[str, ...], list[str]] = {}
    for host, health in votes.everybody(views, ha_matrix.networks).items():
        groups.setdefault(tuple(health.values()), []).append(host)
    rows = []
    for row in ha_matrix.table():
        answer = row.answer
        decision = {"action": answer.action, "for_s": answer.for_s, "sentence": answer.sentence}
        rows.append({**_in_a_row(ha_matrix, row.health, groups.pop(row.health, [])), **decision})
    return {
        "networks": list(ha_matrix.networks),
        "source": ha_matrix.source,
        "ha_matrix": ha_matrix.to_plain(),
        "rows": rows,
        "undecided": [_in_a_row(ha_matrix, key, names) for key, names in sorted(groups.items())],
        "differing": [
            {"observer": other.observer, "source": other.picture.ha_matrix.source}
            for other in others
        ],
        "blind": votes.blind(views, ha_matrix.networks),
    }


def _in_a_row(
    ha_matrix: matrix.Matrix, health: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    by_network = dict(zip(ha_matrix.networks, health, strict=True))
    return {"health": by_network, "hosts": sorted(names), "count": len(names)}
