# SPDX-License-Identifier: Apache-2.0
"""Rows of the calendar as they are drawn: bars in lanes, health below, maintenance behind. Pure:
rows of the store in, places in percent out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

from holdfast.console.timescale import Scale
from holdfast.model.incident import covers
from holdfast.model.standing import USABLE

#: Colours that projects share out among themselves; calendar.css has them.
HUES: Final = 8
#: So many bars one above the other are drawn; a host with more slots says how many are left out.
LANES: Final = 5
#: A host with more holds than that is drawn by blocks, of which it has so many.
CROWDED, BLOCKS = 40, 24
SHAPES: Final[Mapping[str, str]] = {
    "PENDING": "○",
    "ACTIVE": "●",
    "ERROR": "■",
    "TERMINATED": "✓",
    "DELETING": "✕",
}
#: What is said of a host that no lease gets: its enrolment failed or goes on, or it is down.
CLOSED: Final = "not reservable"
_CHANGEABLE: Final = ("PENDING", "ACTIVE")


@dataclass(frozen=True)
class Bar:
    """What one reservation holds of a row, where and how it is drawn."""

    lease_id: str
    name: str
    project: str
    status: str
    start: datetime
    end: datetime
    x: float
    width: float
    what: str = ""
    flag: str = ""  # what its owner should know
    movable: bool = False  # its end is on the page and can be pulled
    lane: int = 0

    @cached_property
    def when(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"

    @cached_property
    def told(self) -> str:
        """All of it, for who points at it or does not see it."""
        flag = f", {self.flag}" if self.flag else ""
        about = f"{self.name}, project {self.project}, {self.status}{flag}, {self.what}"
        return f"{about}, {self.when}"

    @property
    def hue(self) -> int:
        return hue(self.project)

    @property
    def shape(self) -> str:
        return "▲" if self.flag else SHAPES.get(self.status, "◐")

    @property
    def look(self) -> str:
        return self.status.lower()


@dataclass(frozen=True)
class Span:
    """A stretch that is marked: health, an incident, or maintenance."""

    x: float
    width: float
    kind: str
    said: str


@dataclass(frozen=True)
class Block:
    """More leases than can be told apart, from the first to the last of them."""

    x: float
    width: float
    count: int
    start: datetime
    end: datetime

    @property
    def begins(self) -> str:
        """As it stands in an address."""
        return f"{self.start:%Y-%m-%dT%H%%3A%M}"

    @cached_property
    def told(self) -> str:
        return f"{self.count} leases, {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Row:
    id: str
    name: str
    sub: str = ""
    state: str = ""
    since: datetime | None = None
    marked: bool = False  # on maintenance, by the word of an operator or of recovery
    where: str | None = None  # what books exactly this; None: nothing can be booked here
    blocks: Sequence[Block] = ()
    bars: Sequence[Bar] = ()
    hidden: int = 0  # bars that have no lane
    health: Sequence[Span] = ()  # how it stands now
    incidents: Sequence[Span] = ()
    blocked: Sequence[Span] = ()
    link: str = ""
    levels: Sequence["Level"] = ()

    @property
    def lanes(self) -> int:
        return max((bar.lane for bar in self.bars), default=0) + 1


@dataclass(frozen=True)
class Level:
    """So many of a pool are free, from here to there."""

    x: float
    width: float
    free: int
    total: int
    start: datetime
    end: datetime

    @property
    def height(self) -> float:
        return round(100 * self.free / self.total, 1) if self.total else 0.0


@dataclass(frozen=True)
class Around:
    """What is known beside the holds themselves."""

    incidents: Sequence[Any] = ()
    silences: Sequence[Any] = ()
    dense: Iterable[Any] = ()  # holds of hosts that have too many of them
    now: datetime = field(default=datetime.min)


def hue(project: str) -> int:
    return crc32(project.encode()) % HUES


def of_hosts(
    hosts: Sequence[Any], holds: Iterable[Any], around: Around, scale: Scale, may_change: bool
) -> Sequence[Row]:
    held: dict[int, list[Bar]] = {}
    for hold in holds:
        held.setdefault(hold.host_id, []).append(_bar(hold, scale, may_change))
    dense: dict[int, list[Any]] = {}
    for hold in around.dense:
        dense.setdefault(hold.host_id, []).append(hold)
    incidents: dict[str, list[Any]] = {}
    for one in around.incidents:
        incidents.setdefault(one.subject.removeprefix("host:"), []).append(one)
    rows = (
        _host(host, held.get(host.id, []), incidents.get(host.name, []), around, scale)
        for host in hosts
    )
    return [
        replace(row, blocks=in_blocks(dense.get(host.id, ()), scale))
        for row, host in zip(rows, hosts, strict=True)
    ]


def _host(
    host: Any, bars: Sequence[Bar], incidents: Sequence[Any], around: Around, scale: Scale
) -> Row:
    drawn, hidden = in_lanes(bars)
    given = host.reservable and host.state in USABLE
    return Row(
        id=f"row-{host.id}",
        name=host.service_host,
        sub=" · ".join(part for part in (host.rack, host.zone, "" if given else CLOSED) if part),
        state=host.state,
        since=host.state_since,
        marked=bool(host.on_maintenance),
        link=f"/console/hosts/{quote(host.service_host)}",
        where=named(host.hypervisor_hostname) if given else None,
        bars=drawn,
        hidden=hidden,
        health=list(_health(host, scale, around.now)),
        incidents=list(_incidents(incidents, scale, around.now)),
        blocked=list(_blocked(host, around, scale)),
    )


def named(hostname: str) -> str:
    """The condition that only this host fulfils, as people type conditions."""
    plain = all(sign.isalnum() or sign in "._-" for sign in hostname)
    if plain:
        return f"hypervisor_hostname={hostname}"
    quoted = hostname.replace("\\", "\\\\").replace('"', '\\"')
    return f'["==", "$hypervisor_hostname", "{quoted}"]'


def of_leases(rows: Iterable[Any], scale: Scale, may_change: bool) -> Sequence[Row]:
    """A row for each reservation, with its one bar."""
    found = []
    for row in rows:
        bar = _bar(row, scale, may_change)
        sub = f"{bar.what} · {bar.project}"
        link = f"/console/leases/{row.lease_id}"
        found.append(
            Row(f"row-{row.reservation_id}", row.name, sub, row.status, link=link, bars=[bar])
        )
    return found


def _bar(hold: Any, scale: Scale, may_change: bool) -> Bar:
    start = max(hold.start_date, getattr(hold, "held_from", hold.start_date))
    end = min(hold.end_date, getattr(hold, "held_until", hold.end_date))
    x, width = scale.spans(start, end)
    return Bar(
        lease_id=hold.lease_id,
        name=hold.name,
        project=hold.project_id,
        status=hold.status,
        start=start,
        end=end,
        x=x,
        width=max(width, 0.1),
        what=_what(hold),
        flag=_flag(hold),
        movable=may_change and hold.status in _CHANGEABLE and scale.holds(end),
    )


def _what(hold: Any) -> str:
    slots, spec = getattr(hold, "slots", None), hold.spec or {}
    if slots is not None:
        return "1 slot" if slots == 1 else f"{slots} slots"
    if hasattr(hold, "host_id"):
        return "whole host"
    low, high = spec.get("min"), spec.get("max")
    if high is not None:
        return f"{high} host{'' if high == 1 else 's'}" if low == high else f"{low} to {high} hosts"
    kind = hold.resource_type.rpartition(":")[2]
    return f"{spec['amount']} x {kind}" if "amount" in spec else str(kind)


def _flag(hold: Any) -> str:
    if hold.missing_resources:
        return "something is missing"
    if hold.resources_changed:
        return "something was replaced"
    return "degraded" if hold.degraded else ""


def in_lanes(bars: Iterable[Bar]) -> tuple[Sequence[Bar], int]:
    """Each where no other is at the same time; and how many found no room."""
    ends: list[datetime] = []
    drawn, hidden = [], 0
    for bar in sorted(bars, key=lambda one: one.start):
        free = next((lane for lane, end in enumerate(ends) if end <= bar.start), len(ends))
        if free == LANES:
            hidden += 1
            continue
        ends[free : free + 1] = [bar.end]
        drawn.append(replace(bar, lane=free))
    return drawn, hidden


def in_blocks(holds: Iterable[Any], scale: Scale) -> Sequence[Block]:
    """Of each part of the time those that begin in it, together."""
    part = (scale.end - scale.start) / BLOCKS
    found: dict[int, tuple[int, datetime, datetime]] = {}
    for hold in holds:
        place = max(0, int((hold.held_from - scale.start) / part))
        count, start, end = found.get(place, (0, hold.held_from, hold.held_until))
        found[place] = count + 1, min(start, hold.held_from), max(end, hold.held_until)
    return [
        Block(*scale.spans(start, end), count, start, end) for count, start, end in found.values()
    ]


def _health(host: Any, scale: Scale, now: datetime) -> Iterator[Span]:
    """How it stands, since that is so."""
    since = host.state_since or scale.start
    x, width = scale.spans(since, now)
    if width:
        told = f"{host.state} since {since:%Y-%m-%d %H:%M} UTC" if host.state_since else host.state
        yield Span(x, width, host.state, told)


def _incidents(incidents: Sequence[Any], scale: Scale, now: datetime) -> Iterator[Span]:
    """When it had failed; of one that is open nobody knows what comes after now."""
    for one in incidents:
        until = one.closed_at or now
        if until < scale.start or one.opened_at >= scale.end:
            continue
        x, width = scale.spans(one.opened_at, until)
        at = f"{one.opened_at:%Y-%m-%d %H:%M} UTC"
        yield Span(x, max(width, 0.2), "down", f"incident {one.status}, {at}: {one.sentence}")


def _blocked(host: Any, around: Around, scale: Scale) -> Iterator[Span]:
    """Maintenance: said of the host, or planned by a silence about it."""
    if host.on_maintenance:
        since = host.marked_at or around.now
        x, width = scale.spans(since, scale.end)
        if width:
            yield Span(x, width, "maintenance", f"on maintenance since {since:%Y-%m-%d %H:%M} UTC")
    for one in around.silences:
        if covers(one.matcher, host.service_host, host.segment):
            x, width = scale.spans(one.starts_at, one.expires_at)
            until = f"{one.expires_at:%Y-%m-%d %H:%M} UTC"
            said = f"maintenance until {until}, by {one.author}: {one.reason}"
            yield Span(x, width, "maintenance", said)
