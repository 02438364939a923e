# SPDX-License-Identifier: Apache-2.0
"""Segments and their hosts: where recovery may happen, by which method, with which spares.

A segment host is a row of the list of hosts in its role as member of a segment. Whether the
host is also enrolled for reservation does not matter here.

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
    """A failover segment.

    `spare_hosts`: how many of its hosts may fail; Holdfast keeps capacity for them free.
    `trust_host_status`: a monitor's report that a host is off counts like a fence's.
    `trust_notifications`: recovery acts at once on a notification that a host failed, whatever
    signs of life the host gives; as Masakari does.
    """

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
    """A host as member of a segment.

    `name` is the name of the cloud's service; `host_id` is the row in the list of hosts. A
    `reserved` host is a spare: it takes over when another host fails.
    """

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
        """The normalised name, as the list of hosts and incidents use it."""
        return normalise(self.name)


def truth(value: object, field: str) -> bool:
    """Parse a boolean word ("off" is false); InvalidInput for any other word."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise InvalidInput(f"{field}: {str(value)[:40]!r} is neither true nor false; write one of them")


def text(value: str, field: str) -> str:
    """Check a name or service type: printable in a single line, no blanks at the ends."""
    if value.strip() != value:
        raise InvalidInput(f"{field}: begins or ends with a blank; leave it out")
    if not all(_printable(char) for char in value):
        raise InvalidInput(f"{field}: holds characters that cannot be printed; leave them out")
    return value


def _printable(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind[0] != "C" and kind not in ("Zl", "Zp")


# Spare hosts: hosts of a segment that stay free in case others fail.
#
# A booking is refused if it takes a free host of the segment at a moment when fewer than the
# kept number would be left wholly free. A segment can also fall short in other ways: a host
# failed, repair used the spares, or the number was raised. None of these takes anything away
# from a lease.
#
# >>> free_over(3, [[(10.0, 20.0)], [(15.0, 30.0)], []], 0.0, 40.0)
# [(0.0, 3), (10.0, 2), (15.0, 1), (20.0, 2), (30.0, 3)]


#: Start and end, in seconds since 1970.
Span = tuple[float, float]
#: The number of free hosts from each moment on.
Steps = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Spare:
    """A segment that keeps hosts free; only its reservable hosts count."""

    segment_id: str
    name: str
    kept: int
    hosts: frozenset[int]


@dataclass(frozen=True, slots=True)
class Short:
    """A shortage: where a booking first leaves fewer free hosts than the segment keeps."""

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
    """The spare capacity of a segment, now and in the time ahead."""

    segment_id: str
    name: str
    kept: int
    members: int
    enrolled: int
    usable: int  # of the enrolled: reservable, and not on maintenance
    free: int
    least_free: int
    least_free_at: datetime

    @property
    def short(self) -> int:
        """The number of kept hosts missing when the fewest hosts are free."""
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
    """Count the free hosts in the window, from each moment on at which the number changes.

    `busy` are the holds of each host that has any.
    """
    changes = {start: 0}
    for spans in busy:
        for since, until in _together(spans, start, end):
            changes[since] = changes.get(since, 0) - 1
            if until < end:
                changes[until] = changes.get(until, 0) + 1
    free, steps = count, []
    for at in sorted(changes):
        free += changes[at]
        steps.append((at, free))
    return steps


def _together(spans: Iterable[Span], start: float, end: float) -> Iterator[tuple[float, float]]:
    """Merge the holds of a host in the window; holds that touch become a single span."""
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
    """Return the first moment with the fewest free hosts, and their number."""
    return min(steps, key=lambda step: (step[1], step[0]))


def compared(before: Steps, after: Steps) -> Iterator[tuple[float, int, int]]:
    """Yield two courses of the same window side by side: moment, first, second."""
    first, second = dict(before), dict(after)
    was = now = 0
    for at in sorted(first.keys() | second.keys()):
        was, now = first.get(at, was), second.get(at, now)
        yield at, was, now


def first_short(kept: int, before: Steps, after: Steps) -> tuple[float, int] | None:
    """Return the first moment with fewer than `kept` hosts free, and fewer than before."""
    for at, was, now in compared(before, after):
        if now < kept and now < was:
            return at, now
    return None
