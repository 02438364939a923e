# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract, version 1 (Masakari's): a module per resource; dates, paging, filters.

From 1.4 on responses have keys beyond the contract. Requests may set these fields at any version.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.api.request import Request
from holdfast.db.engine import MOST, Page
from holdfast.model.errors import InvalidInput
from holdfast.model.segment import truth

#: The first version whose responses have Holdfast's own keys.
OURS = (1, 4)


# Dates of the instance HA contract, in UTC. Requests: any ISO 8601 form. Responses: without a zone,
# with six digits of microseconds.


def parse(text: str, field: str) -> datetime:
    try:
        value = datetime.fromisoformat(text.strip())
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{field}: {text[:60]!r} is no date; write it as 2026-11-15T19:23:11 or with a zone"
        ) from None
    if not 1970 <= value.year < 9000:
        raise InvalidInput(f"{field}: the year {value.year} is out of range")
    return value


def stamp(value: datetime | None) -> str | None:
    return value.replace(tzinfo=None).isoformat(timespec="microseconds") if value else None


def spaced(value: datetime | None) -> str | None:
    """Format a date for recovery workflow details: with a space instead of T."""
    return value.replace(tzinfo=None).isoformat(" ", "microseconds") if value else None


# Parameters of every list of the contract: limit, marker, sort keys and directions, filters.


_ALWAYS = ("created_at", "id")


def page(request: Request) -> Page:
    """Return limit, marker and sort order; ignores unknown parameters, as the contract requires."""
    return Page(_limit(request.query.get("limit")), request.query.get("marker"), _sort(request))


def filters(request: Request, texts: Sequence[str], flags: Sequence[str] = ()) -> dict[str, Any]:
    """Return the filters of the query; InvalidInput if a flag is neither true nor false."""
    given: dict[str, Any] = {name: request.query[name] for name in texts if name in request.query}
    return given | {
        name: truth(request.query[name], name) for name in flags if name in request.query
    }


def _limit(text: str | None) -> int:
    if text is None:
        return MOST
    try:
        wanted = int(text) if len(text) < 19 else -1
    except ValueError:
        wanted = -1
    if wanted < 0:
        raise InvalidInput(f"limit: {text[:40]!r} is not a number from 0 on")
    return min(wanted, MOST)


def _sort(request: Request) -> tuple[tuple[str, bool], ...]:
    """Return sort keys and directions; default newest first.

    Keys without a direction use the first direction.
    """
    keys, words = list(request.every.get("sort_key", [])), list(request.every.get("sort_dir", []))
    for word in words:
        if word not in ("asc", "desc"):
            raise InvalidInput(f"sort_dir: {word[:40]!r} is neither asc nor desc")
    keys = keys or ["created_at"]
    if len(words) > len(keys):
        raise InvalidInput("sort_dir: there are more directions than keys; name one for each")
    usual = words[0] if words else "desc"
    words += [usual] * (len(keys) - len(words))
    more = [(key, usual) for key in _ALWAYS if key not in keys]
    return tuple((key, word == "desc") for key, word in [*zip(keys, words, strict=True), *more])
