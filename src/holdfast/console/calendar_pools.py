# SPDX-License-Identifier: Apache-2.0
"""Pools of the calendar: of each rack or zone, how many of its hosts are free when. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from holdfast.console.calendar_rows import CLOSED, Level, Row
from holdfast.console.timescale import Scale
from holdfast.model.standing import USABLE

#: Into so many parts the time is cut; of each it is told how many are free at every moment of it.
PARTS: Final = 84
GIVEN, FAILED = "given", "failed"
#: A time, and by how many more are held from then on.
Step = tuple[datetime, int]


def of_pools(
    pools: Iterable[Any], whole: Iterable[Any], slots: Iterable[Any], group: str, scale: Scale
) -> Sequence[Row]:
    """`whole` are hosts that are held as such, several at once; of `slots` each is one hold."""
    hosts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in pools:
        hosts[one.pool][_how(one)] += one.hosts
    steps: dict[str, list[Step]] = defaultdict(list)
    for one in whole:
        steps[one.pool] += [(one.held_from, one.hosts), (one.held_until, -one.hosts)]
    for (pool, start, end), count in Counter(_joined(slots)).items():
        steps[pool] += [(start, count), (end, -count)]
    return [_row(name, group, counts, steps[name], scale) for name, counts in sorted(hosts.items())]


def _how(hosts: Any) -> str:
    """Whether a lease can get them, or why not."""
    if hosts.state not in USABLE:
        return FAILED
    return GIVEN if hosts.reservable else CLOSED


def _joined(slots: Iterable[Any]) -> Iterator[tuple[str, datetime, datetime]]:
    """A host of which several hold slots is taken once."""
    held: dict[tuple[str, int], list[tuple[datetime, datetime]]] = defaultdict(list)
    for one in slots:
        held[one.pool, one.host_id].append((one.held_from, one.held_until))
    for (pool, _), spans in held.items():
        spans.sort()
        start, end = spans[0]
        for more, until in spans[1:]:
            if more > end:
                yield pool, start, end
                start = more
            end = max(end, until)
        yield pool, start, end


def _row(
    name: str, group: str, hosts: Mapping[str, int], steps: Sequence[Step], scale: Scale
) -> Row:
    kind, total = group.removesuffix("s"), hosts[GIVEN]
    key = "rack" if kind == "rack" else "availability_zone"
    told = [f"{total} host{'' if total == 1 else 's'}"]
    told += [f"{hosts[how]} {how}" for how in (FAILED, CLOSED) if hosts[how]]
    return Row(
        id=f"row-{group}-{name}",
        name=name or f"no {kind}",
        sub=", ".join(told),
        where=f"{key}={name}" if name else None,
        link=f"/console/calendar?{urlencode({kind: name})}" if name else "",
        levels=_levels([total - most for most in _most(steps, scale)], total, scale),
    )


def _most(steps: Sequence[Step], scale: Scale) -> Sequence[int]:
    """Of each part of the time, how many are held at its worst moment."""
    part = (scale.end - scale.start) / PARTS
    found, held, at = [0] * PARTS, 0, 0
    for when, by in sorted(steps):  # who goes at a moment goes before who comes
        until = min(max((when - scale.start) / part, 0.0), float(PARTS))
        for place in range(at, min(int(until) + (until % 1 > 0), PARTS)):
            found[place] = max(found[place], held)
        at, held = min(int(until), PARTS), held + by
    return found


def _levels(free: Sequence[int], total: int, scale: Scale) -> Sequence[Level]:
    """Parts with the same number become one."""
    part: timedelta = (scale.end - scale.start) / PARTS
    found: list[Level] = []
    begun = 0
    for place in range(1, PARTS + 1):
        if place < PARTS and free[place] == free[begun]:
            continue
        start, end = scale.start + begun * part, scale.start + place * part
        found.append(Level(*scale.spans(start, end), free[begun], total, start, end))
        begun = place
    return found
