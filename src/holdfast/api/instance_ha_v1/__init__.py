# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract, version 1 (Masakari's): one file per noun.

From 1.4 on answers say more than the contract does; requests may ask for it at any version.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.api.request import Request
from holdfast.db.engine import MOST, Page
from holdfast.model.errors import InvalidInput
from holdfast.model.segment import truth

#: The first version whose answers hold keys of ours.
OURS = (1, 4)


# Dates of the instance HA contract: any form of ISO 8601 in, no zone and six digits out, UTC.


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
    """As the details of a recovery write it."""
    return value.replace(tzinfo=None).isoformat(" ", "microseconds") if value else None


# What every list of the contract takes: limit, marker, sort keys and directions, filters.


_ALWAYS = ("created_at", "id")


def page(request: Request) -> Page:
    """Unknown parameters are left aside, as the contract has it."""
    return Page(_limit(request.query.get("limit")), request.query.get("marker"), _sort(request))


def filters(request: Request, texts: Sequence[str], flags: Sequence[str] = ()) -> dict[str, Any]:
    """What the query asks for by name; words of flags must mean true or false."""
    found: dict[str, Any] = {name: request.query[name] for name in texts if name in request.query}
    return found | {
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
    """Newest first. Keys without a direction go as the first direction says."""
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
