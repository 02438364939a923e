# SPDX-License-Identifier: Apache-2.0
"""Dates as people type them, and as the wire wants them. Pure: the present is an argument.

parse("+2h")               two hours after whatever it is measured from
parse("2027-01-31 18:00")  UTC
parse("2027-01-31T18:00+01:00").on_wire(now)  ->  "2027-01-31 17:00"
"""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"(\d{1,6})([smhd])")


@dataclass(frozen=True)
class Date:
    """A moment, or (with `after`) one measured from another; neither means now."""

    moment: datetime | None = None
    after: timedelta | None = None

    def at(self, origin: datetime) -> datetime:
        """The moment meant, where `origin` is what relative dates count from."""
        if self.moment is not None:
            return self.moment
        return later(origin, self.after or timedelta())

    def on_wire(self, origin: datetime) -> str:
        if self.moment is None and self.after is None:
            return "now"
        return on_wire(self.at(origin))


NOW = Date()


def parse(text: str) -> Date:
    """now, +2h, a date in UTC or one with a zone; ValueError says what is accepted."""
    text = text.strip()
    if text.lower() == "now":
        return NOW
    try:
        if text.startswith("+"):
            return Date(after=span(text[1:]))
        moment = datetime.fromisoformat(text)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return Date(moment=zoned.astimezone(UTC))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a date: write now, +2h, +1d, 2027-01-31 18:00 (UTC)"
            " or 2027-01-31T18:00+01:00"
        ) from None


def span(text: str) -> timedelta:
    """A length of time: 45s, 30m, 2h, 1d; ValueError for anything else."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a length of time: write 45s, 30m, 2h or 1d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def later(moment: datetime, by: timedelta) -> datetime:
    """Moved, back if `by` is negative; ValueError if no calendar reaches that far."""
    try:
        return moment + by
    except OverflowError:
        raise ValueError(f"{abs(by).days} days from {on_wire(moment)} is no date") from None


def on_wire(moment: datetime) -> str:
    """As leases take it: UTC, seconds only where there are any."""
    moment = moment.astimezone(UTC)
    form = "%Y-%m-%d %H:%M:%S" if moment.second else "%Y-%m-%d %H:%M"
    return moment.strftime(form)


def from_wire(text: str) -> datetime:
    """A date of a lease or an event, which comes without a zone, as aware UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# The only place where the client asks for the time or waits; tests put their own here.


def now() -> datetime:
    return datetime.now(UTC)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def monotonic() -> float:
    return time.monotonic()
