# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/observations: what monitors saw, kept as rows, with or without a manager or a broker."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.model.errors import InvalidInput

_WHEN = {"type": "string", "format": "date-time", "maxLength": 64}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["observer", "subject", "kind", "state"],
    "properties": {
        "observer": {"type": "string", "minLength": 1, "maxLength": 128},
        "subject": {"type": "string", "minLength": 1, "maxLength": 255},
        "kind": {"type": "string", "minLength": 1, "maxLength": 64},
        "state": {"type": "string", "minLength": 1, "maxLength": 64},
        "since": _WHEN,
        "observed_at": _WHEN,
        "key": {"type": "string", "minLength": 1, "maxLength": 255},
        "evidence": {"type": "object"},
    },
}


def create(ask: Ask) -> Reply:
    """202; the same report again is answered 202 and written once."""
    body = ask.body
    values: dict[str, Any] = {
        "observer": body["observer"],
        "subject": body["subject"],
        "kind": body["kind"],
        "state": body["state"],
        "evidence": body.get("evidence", {}),
        "key": body.get("key") or _key(body),
    }
    for field in ("since", "observed_at"):
        if field in body:
            values[field] = when(body[field], field)
    row, _new = ask.services.store.observations.add(ask.services.new_id(), values)
    return Reply({"observation": view(row)}, status=202)


def index(ask: Ask) -> Reply:
    since = ask.query.get("since")
    rows = ask.services.store.observations.list_all(
        subject=ask.query.get("subject"),
        since=when(since, "since") if since else None,
        limit=limit(ask),
    )
    return Reply({"observations": [view(row) for row in rows]})


def limit(ask: Ask) -> int:
    text = ask.query.get("limit", "100")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1000):
        raise InvalidInput("limit: a number from 1 to 1000 is wanted")
    return int(text)


def when(text: str, field: str) -> datetime:
    try:
        value = datetime.fromisoformat(text)
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{field}: {text!r} is not an ISO 8601 date and time") from None
    if not 1970 <= value.year < 9000:
        raise InvalidInput(f"{field}: the year {value.year} is out of range")
    return value


def _key(body: Mapping[str, Any]) -> str:
    """Without a key of the sender's, a report is itself."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def view(row: Mapping[str, Any]) -> dict[str, Any]:
    names = "id key observer subject kind state since observed_at evidence incident_id".split()
    return {name: _plain(row[name]) for name in names}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
