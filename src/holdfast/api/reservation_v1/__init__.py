# SPDX-License-Identifier: Apache-2.0
"""The reservation contract, version 1 (Blazar's): a module per resource; dates."""

from datetime import UTC, datetime

from holdfast.model.errors import InvalidInput

# Dates of the reservation contract, in UTC. Requests: "YYYY-MM-DD HH:MM", also with seconds or
# without leading zeros, or ISO 8601 with or without a zone. Responses: six digits of microseconds.


NOW = "now"
CONTRACT_FORMAT = "%Y-%m-%d %H:%M"


def parse(text: str, field: str) -> datetime | None:
    """Parse a date; return None for "now"."""
    if text == NOW:
        return None
    try:
        value = _parsed(text.strip())
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(text, field) from None
    if not 1970 <= value.year < 9000:
        raise _invalid(text, field)
    return value


def _parsed(text: str) -> datetime:
    try:
        return datetime.strptime(text, CONTRACT_FORMAT)
    except ValueError:
        if len(text) < len("YYYY-MM-DD HH:MM"):
            raise
        return datetime.fromisoformat(text)


def _invalid(text: str, field: str) -> InvalidInput:
    return InvalidInput(
        f"{text[:100]} is an invalid date. Required format: {CONTRACT_FORMAT} (field {field})"
    )


def lease_date(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="microseconds")


def stamp(value: datetime | None) -> str | None:
    return value.replace(tzinfo=None).isoformat(" ", "seconds") if value else None
