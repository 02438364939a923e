# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/observations: reports of monitors and agents, stored with or without a manager."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.api import tokens
from holdfast.api.request import Request, Response
from holdfast.db.observations import HOST
from holdfast.model import observation
from holdfast.model.errors import Forbidden, InvalidInput, StaleWrite, Unavailable
from holdfast.model.host import normalise
from holdfast.model.votes import HOST_HEALTH, STATES

#: Longest expected network delay of a report.
WAY = timedelta(seconds=1)
#: Furthest that a date of a report may lie ahead. The past has no bound: an outbox delivers late.
DAY = timedelta(days=1)
LIMIT = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
_WHEN = {"type": "string", "format": "date-time", "maxLength": 64}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["observer", "subject", "kind", "state", "since"],
    "properties": {
        "observer": {"type": "string", "minLength": 1, "maxLength": 128},
        "subject": {"type": "string", "minLength": 1, "maxLength": 255},
        "kind": {"type": "string", "minLength": 1, "maxLength": 64},
        "state": {"type": "string", "minLength": 1, "maxLength": 64},
        "since": _WHEN,
        "observed_at": _WHEN,
        "sent_at": {**_WHEN, "description": "By the clock of the other dates: how wrong it is."},
        "key": {"type": "string", "minLength": 1, "maxLength": 255},
        "evidence": {
            "type": "object",
            "maxProperties": 64,
            "propertyNames": {"maxLength": 255},
        },
    },
}
QUERY: dict[str, Any] = {
    "subject": {"type": "string", "maxLength": 255},
    "host": {
        "type": "string",
        "maxLength": 255,
        "description": "The host, and observations on the host.",
    },
    "kind": {"type": "string", "maxLength": 64},
    "state": {"type": "string", "maxLength": 64},
    "since": {**_WHEN, "description": "Observed at or after."},
    "limit": LIMIT,
}
_TEXT = {"type": "string"}
_SHOWN: dict[str, Any] = {
    "id": _TEXT,
    "key": _TEXT,
    "observer": _TEXT,
    "subject": _TEXT,
    "kind": _TEXT,
    "state": _TEXT,
    "since": {"type": ["string", "null"], "format": "date-time"},
    "observed_at": {"type": "string", "format": "date-time"},
    "evidence": {"type": "object"},
    "incident_id": {"type": ["string", "null"]},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


class WrongClock(InvalidInput):
    """The sender's clock is wrong by more than a day, so no date of the report can be used."""

    code = "holdfast.report.clock"
    title = "Wrong clock"
    advice = "Correct the clock of the sending host, then send the report again."


def create(request: Request) -> Response:
    """Store a report; 202. A repeated report also gets 202 and is stored once."""
    body = _of_its_own(request)
    values: dict[str, Any] = {
        "observer": body["observer"],
        "subject": _subject(body),
        "kind": body["kind"],
        "state": body["state"],
        "evidence": body.get("evidence", {}),
        "key": body.get("key") or _key(body),
    }
    now = request.services.store.database.now()
    ahead = _ahead(body, now)
    for name in ("since", "observed_at"):
        if name in body:
            values[name] = not_ahead(when(body[name], name) - ahead, name, now)
    if body["kind"] == observation.ALARM:
        _check_alarm_dates(values["evidence"], now)
    try:
        row, _new = request.services.store.observations.add(
            request.services.new_id(), values, ask_cloud=tokens.own_host(request.caller) is not None
        )
    except StaleWrite as error:  # 409 would tell the monitor that the report is stored
        raise Unavailable("the report could not be written just now, send it again") from error
    request.services.wake()
    return Response({"observation": view(row)}, status=202)


def index(request: Request) -> Response:
    since = request.query.get("since")
    rows = request.services.store.observations.list_all(
        **{name: request.query.get(name) for name in ("subject", "host", "kind", "state")},
        since=when(since, "since") if since else None,
        limit=request.query.get("limit", LIMIT["default"]),
    )
    return Response({"observations": [view(row) for row in rows]})


def _of_its_own(request: Request) -> Mapping[str, Any]:
    """Return the report; for an agent, with the host name of the agent's token.

    Raises Forbidden if an agent reports about another host.
    """
    body: Mapping[str, Any] = request.body
    own = tokens.own_host(request.caller)
    if own is None:
        _check_monitor(request)
        return body
    if body["kind"] not in observation.STATES:
        raise Forbidden(f"agents report {', '.join(observation.STATES)}, nothing else")
    tokens.check_own(request.caller, body["observer"], _host(body))
    evidence = {**body["evidence"], "host": own}
    if body["kind"] == observation.ALARM and body["subject"].startswith(HOST):
        evidence["project"] = ""  # a host belongs to no project
    return {**body, "evidence": evidence}


def _check_monitor(request: Request) -> None:
    """Raise Forbidden if a monitor reports anything but host health, or under another name.

    Also refuses callers without the token that report under the name of a registered monitor.
    """
    if tokens.own_name(request.caller) is not None and request.body["kind"] != HOST_HEALTH:
        raise Forbidden(f"monitors report {HOST_HEALTH}, nothing else")
    tokens.check_observer(request, request.body["observer"])


def _ahead(body: Mapping[str, Any], now: datetime) -> timedelta:
    """Return how far the sender's clock is ahead of the database clock; WrongClock above a day.

    The manager compares times of death with start times, so the API corrects the sender's times.
    A difference of at most `WAY` counts as network delay and is not corrected.
    """
    if "sent_at" not in body:
        return timedelta()
    ahead = when(body["sent_at"], "sent_at") - now
    if abs(ahead) > DAY:
        raise WrongClock(f"sent_at: more than a day from now, {now.isoformat()}")
    return ahead if abs(ahead) > WAY else timedelta()


def not_ahead(date: datetime, field: str, now: datetime) -> datetime:
    """Return the date; InvalidInput if the date is more than a day in the future."""
    if date > now + DAY:
        raise InvalidInput(f"{field}: more than a day ahead of now, {now.isoformat()}")
    return date


def _check_alarm_dates(evidence: Mapping[str, Any], now: datetime) -> None:
    """Refuse dates ahead of now: later reports would count as old. `central` checks the types."""
    for name in ("first_at", "at"):
        if isinstance(text := evidence.get(name), str):
            not_ahead(when(text, f"evidence.{name}"), f"evidence.{name}", now)


def when(text: str, field: str) -> datetime:
    try:
        value = datetime.fromisoformat(text)
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{field}: {text!r} is not an ISO 8601 date and time") from None
    if not 1970 <= value.year < 9000:
        raise InvalidInput(f"{field}: the year {value.year} is out of range")
    return value


def _subject(body: Mapping[str, Any]) -> str:
    """Validate subject and state; return the subject with a normalised host name."""
    named: str = body["subject"]
    kind = body["kind"]
    if kind in observation.STATES:
        if body["state"] not in observation.STATES[kind]:
            raise InvalidInput(
                f"state: of {kind} it is one of {', '.join(observation.STATES[kind])}"
            )
        return observation.subject(kind, named, _host(body))
    if kind != HOST_HEALTH:
        return named
    if not named.startswith(HOST) or not normalise(named.removeprefix(HOST)):
        raise InvalidInput(f"subject: what {HOST_HEALTH} is about is called {HOST}NAME")
    if body["state"] not in STATES:
        raise InvalidInput(f"state: of {HOST_HEALTH} it is one of {', '.join(STATES)}")
    return f"{HOST}{normalise(named.removeprefix(HOST))}"


def _host(body: Mapping[str, Any]) -> str:
    """Return the host of the evidence; InvalidInput if missing."""
    host = body.get("evidence", {}).get("host", "")
    if not isinstance(host, str) or not normalise(host):
        raise InvalidInput("evidence.host: on which host it was seen must be said")
    if len(host) > 255:
        raise InvalidInput("evidence.host: longer than 255 characters")
    return host


def _key(body: Mapping[str, Any]) -> str:
    """Return the idempotency key of a report without a sender's key.

    Reports with the same subject, kind, state and `since` are the same report.
    """
    values = [body[name] for name in ("subject", "kind", "state", "since")]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def view(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(row[name]) for name in _SHOWN}


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
