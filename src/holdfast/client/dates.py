# SPDX-License-Identifier: Apache-2.0
"""Date formats of users and of the API, and the client's clock.

The current time is an argument, except for `today` and `tomorrow`.

parse("+2h")               two hours after the origin, for example after now
parse("2027-01-31 18:00")  UTC
parse("2027-01-31T18:00+01:00").on_wire(now)  ->  "2027-01-31 17:00"
"""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_DAY = re.compile(r"(today|tomorrow)(?:\s+(\d{1,2}:\d\d))?", re.IGNORECASE)


@dataclass(frozen=True)
class Date:
    """A date given by the user: absolute (`moment`), relative (`after`), or now (neither)."""

    moment: datetime | None = None
    after: timedelta | None = None

    def at(self, origin: datetime) -> datetime:
        """Return the absolute time; relative dates count from `origin`."""
        if self.moment is not None:
            return self.moment
        return later(origin, self.after or timedelta())

    def on_wire(self, origin: datetime) -> str:
        if self.moment is None and self.after is None:
            return "now"
        return on_wire(self.at(origin))


NOW = Date()


def parse(text: str) -> Date:
    """Parse now, +2h, tomorrow 9:00, or a date with or without a zone (UTC).

    A day without a time begins at 00:00. ValueError lists accepted formats.
    """
    text = text.strip()
    if text.lower() == "now":
        return NOW
    try:
        if text.startswith("+"):
            return Date(after=span(text[1:]))
        if match := _DAY.fullmatch(text):
            return Date(moment=_on_day(match[1].lower() == "tomorrow", match[2] or "0:00"))
        moment = datetime.fromisoformat(text)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return Date(moment=zoned.astimezone(UTC))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a date: write now, +2h, +1d, +1w, tomorrow 9:00, 2027-01-31,"
            " 2027-01-31 18:00 (UTC) or 2027-01-31T18:00+01:00"
        ) from None


def _on_day(is_tomorrow: bool, clock: str) -> datetime:
    hours = datetime.strptime(clock, "%H:%M").time()
    return datetime.combine(now().date() + timedelta(days=is_tomorrow), hours, UTC)


def span(text: str) -> timedelta:
    """Parse a duration: 45s, 30m, 2h, 1d, 1w; ValueError for anything else."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a length of time: write 45s, 30m, 2h, 1d or 1w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def later(moment: datetime, by: timedelta) -> datetime:
    """Add a duration to a date; ValueError if the result is out of range."""
    try:
        return moment + by
    except OverflowError:
        raise ValueError(f"{abs(by).days} days from {on_wire(moment)} is no date") from None


def on_wire(moment: datetime) -> str:
    """Format a date for leases: UTC, with seconds only if not zero."""
    moment = moment.astimezone(UTC)
    form = "%Y-%m-%d %H:%M:%S" if moment.second else "%Y-%m-%d %H:%M"
    return moment.strftime(form)


def from_wire(text: str) -> datetime:
    """Parse a date of a lease or an event, which has no zone, as UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# The client's clock: all of the client uses these functions, and tests replace them.


def now() -> datetime:
    return datetime.now(UTC)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def monotonic() -> float:
    return time.monotonic()
