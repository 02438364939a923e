# SPDX-License-Identifier: Apache-2.0
"""What was heard and read of guests as lines of JSON, and what filters would have made of it.

    {"at": "2026-11-16T12:00:00+00:00", "uuid": "…", "name": "web-1", "kind": "lifecycle",
     "detail": "stopped", "reason": "failed", "metadata": {"project": "p-1"}}
    {"at": "2026-11-16T12:00:05+00:00", "guests": [{"uuid": "…", "name": "web-1",
     "state": "shutoff", "reason": "crashed"}]}

The second kind is all guests that there were, read at that time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast.model.guest_filter import Filter
from holdfast.ports.guests import KINDS, Event, Guest
from holdfast.watch.guests import GuestWatch, Happening

_EVENT = tuple(one.name for one in fields(Event))
_GUEST = tuple(one.name for one in fields(Guest))
_TYPES: Mapping[str, type] = {"metadata": dict, "persistent": bool, "autostart": bool}


@dataclass(frozen=True)
class Reading:
    guests: tuple[Guest, ...]
    at: datetime


def line(record: Event | Reading) -> str:
    return json.dumps(plain(record))


def plain(record: Event | Reading) -> dict[str, Any]:
    """Without what is empty."""
    said = asdict(record) | {"at": record.at.isoformat()}
    if isinstance(record, Event):
        return {name: value for name, value in said.items() if value}
    return said


def read(lines: Iterable[str], source: str) -> Iterator[Event | Reading]:
    """InvalidInput names the line that is wrong; empty ones are passed over."""
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            yield _record(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"{source}:{number}: {error}") from error


def replay(
    records: Iterable[Event | Reading], filters: Filter
) -> Iterator[tuple[datetime, Happening]]:
    """What would have been told, and when; grace times that end later included."""
    for now, one in go_on(GuestWatch(filters), records, datetime.timestamp):
        yield datetime.fromtimestamp(now, UTC), one


def go_on(
    watch: GuestWatch,
    records: Iterable[Event | Reading],
    time_of: Callable[[datetime], float],
) -> Iterator[tuple[float, Happening]]:
    """The same from what a watch knows already, by its own time."""
    for record in records:
        now = time_of(record.at)
        yield from _until(watch, now)
        if isinstance(record, Event):
            told = watch.hear(record, now)
        else:
            told = watch.reconcile(record.guests, record.at, now)
        yield from ((now, one) for one in told)
    yield from _until(watch, None)


def _until(watch: GuestWatch, now: float | None) -> Iterator[tuple[float, Happening]]:
    while (due := watch.due()) is not None and (now is None or due <= now):
        yield from ((due, one) for one in watch.look(due))


def _record(said: Any) -> Event | Reading:
    if not isinstance(said, dict):
        raise ValueError("a line is an event, or what was read: write {…}")
    at = _date(said.get("at"))
    if "guests" in said:
        found = said["guests"]
        if not isinstance(found, list) or set(said) - {"at", "guests"}:
            raise ValueError("what was read is `at` and a list of `guests`")
        return Reading(tuple(Guest(**_fields(one, _GUEST, ())) for one in found), at)
    known = _fields(said, _EVENT, ("kind",))
    if known["kind"] not in KINDS:
        raise ValueError(f"`kind` is {known['kind']!r}: there are {', '.join(KINDS)}")
    return Event(**known | {"at": at})


def _fields(said: Any, names: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    """What a guest or an event is made of: words, but for its metadata and what is yes or no."""
    if not isinstance(said, dict):
        raise ValueError("a guest is written {…}")
    for name in said:
        if name not in names:
            raise ValueError(f"`{name}` is unknown: there are {', '.join(names)}")
    is_guest = "state" in names
    for name in ("uuid", "name", *needed, *(("state", "reason") if is_guest else ())):
        if name not in said:
            raise ValueError(f"`{name}` is missing")
    for name, value in said.items():
        wanted = _TYPES.get(name, str)
        if not isinstance(value, wanted):
            raise ValueError(f"`{name}` is {value!r}: write a {wanted.__name__}")
    metadata: Mapping[str, Any] = said.get("metadata", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("`metadata` has something that is no text: write it in quotes")
    return dict(said)


def _date(text: Any) -> datetime:
    if not isinstance(text, str):
        raise ValueError("`at` is missing: write a date and time of ISO 8601")
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
