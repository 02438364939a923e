# SPDX-License-Identifier: Apache-2.0
"""A stretch of time as it is drawn: where a moment lies in it, where its lines are, what is before
and after it. Pure.

    scale = Scale.of("week", start=None, now=now)
    scale.place(now)      # 14.2: percent from the left
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.model.errors import InvalidInput

_EPOCH: Final = datetime(1970, 1, 5, tzinfo=UTC)  # a Monday
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Tick:
    x: float
    at: datetime
    label: str = ""  # none: a thin line

    @property
    def told(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class _Zoom:
    """`back` is where a look at the present begins; a drag jumps by `snap`."""

    length: timedelta
    back: timedelta
    labels: timedelta
    lines: timedelta
    snap: timedelta
    form: str


ZOOMS: Final[Mapping[str, _Zoom]] = {
    "hour": _Zoom(_HOUR, 10 * _MINUTE, 10 * _MINUTE, 5 * _MINUTE, _MINUTE, "%H:%M"),
    "day": _Zoom(_DAY, 2 * _HOUR, 3 * _HOUR, _HOUR, 15 * _MINUTE, "%H:%M"),
    "week": _Zoom(7 * _DAY, _DAY, _DAY, 6 * _HOUR, _HOUR, "%a %d %b"),
    "month": _Zoom(35 * _DAY, 7 * _DAY, 7 * _DAY, _DAY, 6 * _HOUR, "%d %b"),
    "year": _Zoom(365 * _DAY, 30 * _DAY, 30 * _DAY, 30 * _DAY, _DAY, "%b %Y"),
}
WEEK: Final = "week"


@dataclass(frozen=True)
class Scale:
    zoom: str
    start: datetime
    end: datetime

    @classmethod
    def of(cls, zoom: str, start: datetime | None, now: datetime) -> "Scale":
        """From `start` on; without one, a little before now, on a line."""
        if zoom not in ZOOMS:
            raise InvalidInput(f"zoom: there is no {zoom[:40]!r}; one of {', '.join(ZOOMS)}")
        kind = ZOOMS[zoom]
        begin = _floor(now, kind.back, zoom) if start is None else start
        return cls(zoom, begin, begin + kind.length)

    @property
    def earlier(self) -> datetime:
        return max(self.start - ZOOMS[self.zoom].length, _EPOCH)

    @property
    def later(self) -> datetime:
        return self.end

    @property
    def snap(self) -> timedelta:
        return ZOOMS[self.zoom].snap

    def place(self, at: datetime) -> float:
        """Percent from the left; what lies outside is at the edge."""
        part = (at - self.start) / (self.end - self.start)
        return round(100 * min(max(part, 0.0), 1.0), 3)

    def spans(self, start: datetime, end: datetime) -> tuple[float, float]:
        """Left edge and width."""
        left = self.place(start)
        return left, round(self.place(end) - left, 3)

    def holds(self, at: datetime) -> bool:
        return self.start <= at < self.end

    def ticks(self) -> Sequence[Tick]:
        marks = _months(self) if self.zoom == "year" else _even(self)
        return [Tick(self.place(at), at, label) for at, label in marks]


def _floor(now: datetime, unit: timedelta, zoom: str) -> datetime:
    if zoom == "year":
        return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return now - (now - _EPOCH) % unit


def _even(scale: Scale) -> Iterator[tuple[datetime, str]]:
    kind = ZOOMS[scale.zoom]
    at = scale.start + (_EPOCH - scale.start) % kind.lines
    while at < scale.end:
        named = (at - _EPOCH) % kind.labels == timedelta()
        yield at, _label(scale, at, kind.form) if named else ""
        at += kind.lines


def _label(scale: Scale, at: datetime, form: str) -> str:
    """Hours of another day name the day."""
    midnight = scale.zoom in ("hour", "day") and (at.hour, at.minute) == (0, 0)
    return f"{at:%a %d %b}" if midnight else f"{at:{form}}"


def _months(scale: Scale) -> Iterator[tuple[datetime, str]]:
    at = scale.start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while at < scale.end:
        if at >= scale.start:
            yield at, f"{at:%b %Y}" if at.month == 1 else f"{at:%b}"
        at = (at + 32 * _DAY).replace(day=1)
