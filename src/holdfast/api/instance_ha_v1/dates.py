# SPDX-License-Identifier: Apache-2.0
"""Dates of the instance HA contract: any form of ISO 8601 in, no zone and six digits out, UTC."""

from datetime import UTC, datetime

from holdfast.model.errors import InvalidInput


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
