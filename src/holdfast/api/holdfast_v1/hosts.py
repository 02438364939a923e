# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/hosts: host status with reason and time, and host health by monitor and network."""

from collections.abc import Iterable
from typing import Any

from holdfast.api.holdfast_v1.monitors import ACTION, HEALTH, STATE, shape
from holdfast.api.holdfast_v1.observations import plain
from holdfast.api.request import Request, Response
from holdfast.db.host_status import HostStatusRow
from holdfast.hostmonitor.matrix import UNKNOWN, Matrix
from holdfast.hoststatus.status import DOWN, RETURNING, SUSPECT, UP
from holdfast.model import votes
from holdfast.model.errors import NotFound
from holdfast.model.votes import ABSTAIN, AGAINST, FOR, Ballot, MonitorReport

_STATE = {"type": "string", "enum": [UP, SUSPECT, DOWN, RETURNING]}
QUERY: dict[str, Any] = {"state": _STATE}
_TEXT = {"type": "string"}
_SHOWN: dict[str, Any] = {
    "id": {"type": "integer"},
    "uuid": _TEXT,
    "name": _TEXT,
    "zone": _TEXT,
    "rack": _TEXT,
    "state": _STATE,
    "since": {"type": ["string", "null"], "format": "date-time"},
    "why": {**_TEXT, "description": "The source of the status; empty if there was no report yet."},
    "enrolled": {"type": "boolean"},
    "reservable": {
        "type": "boolean",
        "description": "Enrolled and where it belongs; a booking needs a usable state as well.",
    },
    "segment": {"type": ["string", "null"]},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}
HEALTH_QUERY: dict[str, Any] = {
    "health": {
        "type": "string",
        "enum": ["bad"],
        "description": "Only hosts that are not up on every network.",
    }
}
_WHEN = {"type": ["string", "null"], "format": "date-time"}
_NAMES = {"type": "array", "items": _TEXT}
HEALTH_VIEW = shape(
    {
        "host": _TEXT,
        "health": HEALTH,
        "action": ACTION,
        "since": _WHEN,
        "monitors": {"type": "integer", "description": "How many see it."},
    }
)
_SEEN_BY = {"type": "array", "items": shape({"observer": _TEXT, "state": STATE, "at": _WHEN})}
_NETWORK = shape({"state": STATE, "since": _WHEN, "seen_by": _SEEN_BY})
_STATUS = shape({name: _SHOWN[name] for name in ("state", "since", "why", "segment")})
WHOLE_HEALTH = shape(
    {
        "host": _TEXT,
        "networks": {"type": "object", "additionalProperties": _NETWORK},
        "action": ACTION,
        "for_s": {"type": "number"},
        "sentence": _TEXT,
        "votes": shape(
            {FOR: _NAMES, AGAINST: _NAMES, ABSTAIN: _NAMES, "needed": {"type": "integer"}}
        ),
        "status": {**_STATUS, "type": ["object", "null"]},
        "incident_id": {"type": ["string", "null"], "description": "The open incident."},
    }
)


def index(request: Request) -> Response:
    statuses = request.services.store.host_status.shown(state=request.query.get("state"))
    return Response({"hosts": [view(status) for status in statuses]})


def view(seen: HostStatusRow) -> dict[str, Any]:
    status = seen.status
    return {
        "id": seen.id,
        "uuid": seen.uuid,
        "name": seen.name,
        "zone": seen.zone,
        "rack": seen.rack,
        "state": status.state,
        "since": plain(status.since),
        "why": status.why,
        "enrolled": seen.enrolled,
        "reservable": seen.reservable,
        "segment": seen.segment,
    }


# Host health, as host monitors report it


def health(request: Request) -> Response:
    """Return the health of all hosts known to fresh monitors."""
    store = request.services.store
    now, views = store.monitors.views()
    fresh = [monitor for monitor in views if monitor.is_fresh(now)]
    ha_matrix, _others = votes.in_force(fresh)
    if ha_matrix is None:
        return Response({"hosts": []})
    everybody = votes.everybody(fresh, ha_matrix.networks)
    blind = votes.blind(fresh, ha_matrix.networks)
    bad = {host for host, states in everybody.items() if set(states.values()) != {UP}}
    words = store.observations.words(bad)
    shown = [
        {
            "host": host,
            "health": states,
            "action": ha_matrix.answer(states, blind).action,
            "since": _since(words.get(host, ())),
            "monitors": sum(monitor.picture.name(host) is not None for monitor in fresh),
        }
        for host, states in everybody.items()
        if host in bad or "health" not in request.query
    ]
    return Response({"hosts": shown})


def _since(words: Iterable[MonitorReport]) -> str | None:
    """Return the earliest time from which a monitor reports a concern."""
    since = min(
        (monitor_report.since for monitor_report in words if monitor_report.is_concern),
        default=None,
    )
    return since.isoformat() if since else None


def show_health(request: Request) -> Response:
    """Return the health of a host; NotFound if no monitor knows the host."""
    store, host = request.services.store, request.path["host"]
    ballot = store.votes.ballot(host)
    called = next((name for v in ballot.views if (name := v.picture.name(ballot.host))), None)
    if called is None:
        raise NotFound(
            f"no registered monitor reports a host {host[:80]!r}: known hosts are in GET"
            " /holdfast/v1/hosts/health"
        )
    ha_matrix, _others = votes.in_force(ballot.fresh or ballot.views)
    if ha_matrix is None:
        raise AssertionError("who knows a host has an HA matrix")
    count = votes.count(ballot, request.services.conf.recovery.host_votes)
    observers = {name: count.observers(name) for name in (FOR, AGAINST, ABSTAIN)}
    states = votes.combined(ballot.fresh, ballot.host, ha_matrix.networks)
    answer = ha_matrix.answer(states, votes.blind(ballot.fresh, ha_matrix.networks))
    seen = store.host_status.of(ballot.host)
    incident = store.incidents.open_about(f"host:{ballot.host}")
    shown = {
        "host": ballot.host,
        "networks": _networks(ballot, ha_matrix, states),
        "action": answer.action,
        "for_s": answer.for_s,
        "sentence": answer.sentence,
        "votes": {**observers, "needed": count.needed},
        "status": None if seen is None else _status(seen),
        "incident_id": None if incident is None else incident.id,
    }
    return Response({"health": shown})


def _networks(ballot: Ballot, ha_matrix: Matrix, states: dict[str, str]) -> dict[str, Any]:
    rows = [(monitor, monitor.picture.row(ballot.host)) for monitor in ballot.fresh]
    words = [word for word in ballot.reports.values() if word.is_concern]
    return {
        name: {
            "state": states[name],
            "since": min(
                (
                    str(said["since"])
                    for word in words
                    if (said := word.network(name)).get("health") == states[name]
                    and said.get("since")
                ),
                default=None,
            ),
            "seen_by": [
                {
                    "observer": monitor.observer,
                    "state": row.health.get(name, UNKNOWN),
                    "at": plain(monitor.at),
                }
                for monitor, row in rows
                if row is not None
            ],
        }
        for name in ha_matrix.networks
    }


def _status(seen: HostStatusRow) -> dict[str, Any]:
    whole = view(seen)
    return {name: whole[name] for name in ("state", "since", "why", "segment")}
