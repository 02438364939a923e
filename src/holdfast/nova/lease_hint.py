# SPDX-License-Identifier: Apache-2.0
"""Lease hint of a server create: parse the hint, store it as server metadata, read it back.

    --hint lease_params='{"name": "night", "start": "2026-12-01 02:00", "end": "2026-12-01 06:00"}'

Pure functions. Until the lease exists, the server's metadata `holdfast:lease` holds the wished
lease (`note`), so that Holdfast's sweep of servers can create it later.

>>> from datetime import datetime, timezone
>>> now = datetime(2026, 11, 30, tzinfo=timezone.utc)
>>> read('{"end": "2026-12-01 06:00", "on_end": "stop"}', "web", now).note()
'{"name":"web_lease","end":"2026-12-01 06:00","on_end":"stop"}'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from holdfast.nova import names

UTC = timezone.utc  # noqa: UP017  # Nova's Python may be 3.9
NOW = "now"
ON_END = ("snapshot", "stop", "suspend", "shelve", "delete")
LONGEST_NAME = 80
LONGEST_NOTE = 255  # Nova's limit for a metadata value
EXAMPLE = '{"name": "night", "start": "2026-12-01 02:00", "end": "2026-12-01 06:00"}'
_FORM = "YYYY-MM-DD HH:MM"
#: Keys that users may write, with their name here; the lease API's names work too.
_KEYS = {
    "name": "name",
    "start": "start",
    "start_date": "start",
    "end": "end",
    "end_date": "end",
    "before_end": "before_end",
    "before_end_date": "before_end",
    "on_end": "on_end",
}
_TRUE = frozenset(("true", "1", "yes", "on", "t", "y"))
HINTS = ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints")


class BadHint(ValueError):
    """The lease hint is invalid; the message says how to write it."""


@dataclass(frozen=True)
class Wish:
    """The wished lease of a server."""

    name: str
    start: datetime | None  #: None: now
    end: datetime
    before_end: datetime | None = None
    on_end: str = ""  #: empty: Holdfast's default

    def lease(self, server_id: str | None) -> dict[str, Any]:
        """Return the body of POST /leases; without a server id the dates alone, for a dry run."""
        body: dict[str, Any] = {
            "name": self.name,
            "start_date": _written(self.start) if self.start else NOW,
            "end_date": _written(self.end),
            "reservations": [self.reservation(server_id)] if server_id else [],
        }
        if self.before_end:
            body["before_end_date"] = _written(self.before_end)
        return body

    def reservation(self, server_id: str) -> dict[str, Any]:
        on_end = {"on_end": self.on_end} if self.on_end else {}
        return {"resource_type": names.SERVER_LEASE, "server_id": server_id, **on_end}

    def note(self) -> str:
        """Return the value for server metadata, in ASCII: some Nova databases accept no more."""
        values = {
            "name": self.name,
            "start": _written(self.start),
            "end": _written(self.end),
            "before_end": _written(self.before_end),
            "on_end": self.on_end,
        }
        return json.dumps({k: v for k, v in values.items() if v}, separators=(",", ":"))


def read(hint: object, server: str, now: datetime, length: timedelta | None = None) -> Wish:
    """Parse a hint; a lease without an end lasts `length`, if given. BadHint if invalid."""
    fields = _fields(hint)
    start = _start(fields, now)
    end = _date(fields, "end")
    if end is None:
        if length is None:
            raise BadHint(f"lease_params: end is missing; write for example {EXAMPLE}")
        end = _minute((start or now) + length)
    _check_order(start or now, end, before_end := _date(fields, "before_end"))
    wish = Wish(_name(fields, server), start, end, before_end, _on_end(fields))
    if len(wish.note()) > LONGEST_NOTE:
        raise BadHint("lease_params: the name is too long; use plain letters, or fewer")
    return wish


def default(server: str, now: datetime, length: timedelta, on_end: str = "") -> Wish:
    """Return the lease for a server without a hint: from now on, for `length`."""
    end = _minute(now + length)
    wish = Wish(_usual_name(server), None, end, on_end=on_end)
    if len(wish.note()) <= LONGEST_NOTE:
        return wish
    return Wish(_usual_name(""), None, end, on_end=on_end)


def from_note(text: str, now: datetime) -> Wish | None:
    """Parse the metadata of a server; None if the lease would be over already.

    A start in the past becomes now. Users can write the metadata: BadHint if it is invalid.
    """
    fields = _fields(text)
    start, end, before_end = (_date(fields, key) for key in ("start", "end", "before_end"))
    if end is None:
        raise BadHint("end is missing")
    if end <= now:
        return None
    start = start if start and start > now else None
    if before_end is not None and not (start or now) < before_end < end:
        before_end = None
    if start is not None and end <= start:
        raise BadHint("it ends before it starts")
    return Wish(_name(fields, "server"), start, end, before_end, _on_end(fields))


def hinted(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler hints of a create request, under the key Nova uses."""
    for key in HINTS:
        if key in body:
            return body[key] if isinstance(body[key], dict) else {}
    return {}


def is_single(server: Mapping[str, Any]) -> bool:
    """Whether the create makes a single server, and Nova's response will name the server."""
    counts = {str(server.get(key, 1)).strip() for key in ("min_count", "max_count")}
    return counts == {"1"} and str(server.get("return_reservation_id", "")).lower() not in _TRUE


def check_single(server: Mapping[str, Any]) -> None:
    """Raise BadHint unless the create makes a single server, because a lease is for one server."""
    if not is_single(server):
        raise BadHint(
            "lease_params: a lease is for one server; create them one by one, without min_count,"
            " max_count and return_reservation_id"
        )


def passed_on(body: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    """Return the create request for Nova: without the hint, with the lease as metadata."""
    new = dict(body)
    for key in HINTS:
        if isinstance(new.get(key), dict):
            new[key] = {k: v for k, v in new[key].items() if k != names.LEASE_HINT}
    server = dict(new["server"])
    server["metadata"] = {**(server.get("metadata") or {}), names.WISH: wish.note()}
    return {**new, "server": server}


def _fields(hint: Any) -> dict[str, str]:
    """Return the hint's fields; clients send an object, its JSON text, or a list with either."""
    if isinstance(hint, (list, tuple)) and len(hint) == 1:
        hint = hint[0]
    if isinstance(hint, str):
        try:
            hint = json.loads(hint)
        except (ValueError, RecursionError):
            raise BadHint(
                f"lease_params: {hint[:60]!r} is not JSON; write for example {EXAMPLE}"
            ) from None
    if not isinstance(hint, dict):
        raise BadHint(f"lease_params: one JSON object is needed, for example {EXAMPLE}")
    fields: dict[str, str] = {}
    for key, value in hint.items():
        name = _KEYS.get(key)
        if name is None:
            allowed = "name, start, end, before_end, on_end"
            raise BadHint(f"lease_params: {str(key)[:60]!r} is not known; use {allowed}")
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise BadHint(f"lease_params: {key} must be a text that is not empty")
        if name in fields:
            raise BadHint(f"lease_params: {name} is given twice; leave {name}_date out")
        fields[name] = value.strip()
    return fields


def _name(fields: Mapping[str, str], server: str) -> str:
    name = fields.get("name", "")
    if not name:
        return _usual_name(server)
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadHint(f"lease_params: name must have at most {LONGEST_NAME} printable characters")
    return name


def _usual_name(server: str) -> str:
    plain = (
        "".join(character for character in server if character.isprintable()).strip() or "server"
    )
    return f"{plain[: LONGEST_NAME - 6]}_lease"


def _on_end(fields: Mapping[str, str]) -> str:
    """Return the action at the end of the lease, or several in order, joined by commas."""
    on_end = fields.get("on_end", "")
    if on_end in ("", "default"):
        return ""
    actions = [action.strip() for action in on_end.split(",")]
    if (
        len(set(actions)) < len(actions)
        or not set(actions) <= set(ON_END)
        or "delete" in actions[:-1]
    ):
        raise BadHint(
            f"lease_params: on_end must be one of {', '.join(ON_END)}; or several of them, each"
            " once, delete last"
        )
    return ",".join(actions)


def _start(fields: Mapping[str, str], now: datetime) -> datetime | None:
    if fields.get("start", NOW).lower() == NOW:
        return None
    start = _date(fields, "start")
    if start is not None and start < _minute(now):
        raise BadHint(
            f"lease_params: start {_written(start)} is over, it is {_written(now)} UTC;"
            " leave it out to start now"
        )
    return start


def _date(fields: Mapping[str, str], field: str) -> datetime | None:
    """Parse a date; a date without a zone is UTC, as in the lease API."""
    text = fields.get(field)
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "Zz" else text)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        when = None
    if when is None or len(text) < len(_FORM) or not 1970 <= when.year < 9000:
        raise BadHint(f"lease_params: {field} {text[:40]!r} is no date; write {_FORM}, in UTC")
    return when


def _check_order(start: datetime, end: datetime, before_end: datetime | None) -> None:
    if end <= start:
        raise BadHint(
            f"lease_params: end {_written(end)} must be later than start {_written(start)} (UTC)"
        )
    if before_end is not None and not start < before_end < end:
        raise BadHint("lease_params: before_end must lie between start and end")


def _minute(when: datetime) -> datetime:
    return when.replace(second=0, microsecond=0)


def _written(when: datetime | None) -> str:
    """Format a date to the minute, as in leases; with seconds only if the date has some."""
    if when is None:
        return ""
    return when.strftime("%Y-%m-%d %H:%M:%S" if when.second else "%Y-%m-%d %H:%M")
