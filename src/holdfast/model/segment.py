# SPDX-License-Identifier: Apache-2.0
"""Segments and their hosts: where recovery may happen, by which method, with which spares.

A segment host is a row of the one list of hosts in its role as member of a segment; whether that
host is enrolled for reservation as well is the other facet, and no matter here.

>>> truth("off", "enabled")
False
>>> text("north ", "name")
Traceback (most recent call last):
holdfast.model.errors.InvalidInput: name: begins or ends with a blank; leave it out
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise

AUTO, RESERVED_HOST, AUTO_PRIORITY, RH_PRIORITY = (
    "auto",
    "reserved_host",
    "auto_priority",
    "rh_priority",
)
METHODS = (AUTO, RESERVED_HOST, AUTO_PRIORITY, RH_PRIORITY)
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})


@dataclass(frozen=True)
class Segment:
    """`spare_hosts`: so many hosts of it may fail, and room for that is kept free.
    `trust_host_status`: a monitor's word that a host is off counts like a fence's.
    `trust_notifications`: a notification that a host failed is acted on at once, whatever signs of
    life the host gives; as Masakari does."""

    id: int
    uuid: str
    name: str
    recovery_method: str
    service_type: str
    description: str | None = None
    enabled: bool = True
    trust_host_status: bool = False
    trust_notifications: bool = False
    spare_hosts: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class SegmentHost:
    """`name` is the cloud's own for its service; `host_id` is the row in the list of hosts.
    A `reserved` one is a spare: it takes over when another fails."""

    id: int
    uuid: str
    name: str
    host_id: int
    type: str
    control_attributes: str
    reserved: bool
    on_maintenance: bool
    segment: Segment
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def key(self) -> str:
        """Its name as the list of hosts keeps it, and as incidents name it."""
        return normalise(self.name)


def truth(value: object, field: str) -> bool:
    """The word as what it says: "off" is false. InvalidInput for any other."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidInput(f"{field}: {str(value)[:40]!r} is neither true nor false; write one of them")


def text(value: str, field: str) -> str:
    """A name or a type of service, fit to be shown in one line."""
    if value.strip() != value:
        raise InvalidInput(f"{field}: begins or ends with a blank; leave it out")
    if not all(_printable(char) for char in value):
        raise InvalidInput(f"{field}: holds characters that cannot be printed; leave them out")
    return value


def _printable(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind[0] != "C" and kind not in ("Zl", "Zp")


# Hosts kept free for the case that others fail: how many of a segment nobody holds, and when.
#
# A segment keeps so many hosts. A booking is refused that takes a free host of it at a moment at
# which fewer would then be left wholly free. Whatever else makes a segment short (a host failed,
# repair used what was kept for it, more is to be kept from now on) takes nothing away from
# anybody.
#
# >>> free_over(3, [[(10.0, 20.0)], [(15.0, 30.0)], []], 0.0, 40.0)
# [(0.0, 3), (10.0, 2), (15.0, 1), (20.0, 2), (30.0, 3)]


#: From when until when, in seconds since 1970.
Span = tuple[float, float]
#: From each moment on, how many.
Steps = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Spare:
    """A segment that keeps hosts free. Of its hosts those that can be reserved count."""

    segment_id: str
    name: str
    kept: int
    hosts: frozenset[int]


@dataclass(frozen=True, slots=True)
class Short:
    """Where a booking would leave fewer than are kept: how many, at which moment first."""

    spare: Spare
    usable: int
    free: int
    at: datetime

    def __str__(self) -> str:
        name, kept = self.spare.name, self.spare.kept
        if kept >= self.usable:
            return (
                f"segment {name} keeps {kept} hosts free in case hosts fail and has {self.usable}"
                " that can be reserved, so nothing there can be booked"
            )
        return (
            f"segment {name} keeps {kept} of its {self.usable} hosts free in case hosts fail,"
            f" and {self.free} would be left at {self.at:%Y-%m-%d %H:%M} UTC"
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a segment has for the case that hosts fail, now and in the time ahead."""

    segment_id: str
    name: str
    kept: int
    members: int
    enrolled: int
    usable: int  # of the enrolled: can be reserved, and not on maintenance
    free: int
    least_free: int
    least_free_at: datetime

    @property
    def short(self) -> int:
        """How many of those to be kept are missing when the fewest are free."""
        return max(0, self.kept - self.least_free)

    def __str__(self) -> str:
        if not self.short:
            return ""
        if self.kept > self.usable:
            return f"{self.kept} are to be kept free and {self.usable} can be used at all"
        if self.free < self.kept:
            return f"{self.kept} are to be kept free and {self.free} are"
        return (
            f"{self.kept} are to be kept free and {self.least_free} will be at"
            f" {self.least_free_at:%Y-%m-%d %H:%M} UTC"
        )


def free_over(
    count: int, busy: Iterable[Iterable[Span]], start: float, end: float
) -> list[tuple[float, int]]:
    """How many of so many hosts are free in the window, from each moment on at which that changes;
    `busy` are the holds of each host that has any."""
    changes = {start: 0}
    for spans in busy:
        for since, until in _together(spans, start, end):
            changes[since] = changes.get(since, 0) - 1
            if until < end:
                changes[until] = changes.get(until, 0) + 1
    free, found = count, []
    for at in sorted(changes):
        free += changes[at]
        found.append((at, free))
    return found


def _together(spans: Iterable[Span], start: float, end: float) -> Iterator[tuple[float, float]]:
    """When a host is held by anybody, of a window: holds that touch are one."""
    since = until = start
    for first, last in sorted(spans):
        if last <= start or first >= end:
            continue
        if first > until:
            if until > since:
                yield since, until
            since = first
        until = max(until, min(last, end))
    if until > since:
        yield since, until


def least(steps: Steps) -> tuple[float, int]:
    """When the fewest are free first, and how many that is."""
    return min(steps, key=lambda step: (step[1], step[0]))


def compared(before: Steps, after: Steps) -> Iterator[tuple[float, int, int]]:
    """Two courses of the same window side by side."""
    first, second = dict(before), dict(after)
    was = now = 0
    for at in sorted(first.keys() | second.keys()):
        was, now = first.get(at, was), second.get(at, now)
        yield at, was, now


def first_short(kept: int, before: Steps, after: Steps) -> tuple[float, int] | None:
    """The first moment at which fewer than `kept` are free, and fewer than before."""
    for at, was, now in compared(before, after):
        if now < kept and now < was:
            return at, now
    return None
