# SPDX-License-Identifier: Apache-2.0
"""/console/calendar: the reservations of hosts, pools or leases over time, and free windows.

The URL holds the whole view: rows, zoom, start, filters and page. The sections below draw the
time scale, the host and lease rows, and the pool rows. The last sections build the page and run
the availability search.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode
from zlib import crc32

from holdfast.api.holdfast_v1 import availability
from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import parse
from holdfast.console import api_calls
from holdfast.console.leases import KINDS, Wish
from holdfast.console.pages import PREFIX, page, part
from holdfast.db.views import GROUPS, Which
from holdfast.hoststatus.status import USABLE
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.incident import covers

# The time scale: positions, grid lines, and the time spans before and after. Pure.
#
#     scale = Scale.of("week", start=None, now=now)
#     scale.place(now)      # 14.2: percent from the left


_EPOCH: Final = datetime(1970, 1, 5, tzinfo=UTC)  # a Monday
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Tick:
    """A vertical grid line of the time scale."""

    x: float
    at: datetime
    label: str = ""  # empty: a thin line

    @property
    def told(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class _Zoom:
    """A zoom level: length, grid and drag step.

    A view of the present starts at the last multiple of `back`. A drag moves in steps of
    `snap`.
    """

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
    """The time span that the calendar shows."""

    zoom: str
    start: datetime
    end: datetime

    @classmethod
    def of(cls, zoom: str, start: datetime | None, now: datetime) -> "Scale":
        """Make the scale from `start` on; without `start` from a grid line shortly before now."""
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
        """Return the position of a time in percent from the left, clamped to 0..100."""
        part = (at - self.start) / (self.end - self.start)
        return round(100 * min(max(part, 0.0), 1.0), 3)

    def spans(self, start: datetime, end: datetime) -> tuple[float, float]:
        """Return the left edge and the width of a time span, in percent."""
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
    """Format the label of a grid line; midnight shows the day instead of the hour."""
    midnight = scale.zoom in ("hour", "day") and (at.hour, at.minute) == (0, 0)
    return f"{at:%a %d %b}" if midnight else f"{at:{form}}"


def _months(scale: Scale) -> Iterator[tuple[datetime, str]]:
    at = scale.start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while at < scale.end:
        if at >= scale.start:
            yield at, f"{at:%b %Y}" if at.month == 1 else f"{at:%b}"
        at = (at + 32 * _DAY).replace(day=1)


# Rows of hosts and leases: bars in lanes, health below, maintenance behind. Pure: database rows
# in, positions in percent out.


#: The number of colours for projects; calendar.css defines the colours.
HUES: Final = 8
#: The most bars drawn above each other. A host with more slots shows the number left out.
LANES: Final = 5
#: A host with more than CROWDED holds is drawn as at most BLOCKS blocks.
CROWDED, BLOCKS = 40, 24
SHAPES: Final[Mapping[str, str]] = {
    "PENDING": "○",
    "ACTIVE": "●",
    "ERROR": "■",
    "TERMINATED": "✓",
    "DELETING": "✕",
}
#: Text of a host that leases cannot get: enrolment failed or still runs, or the host is down.
CLOSED: Final = "not reservable"
_CHANGEABLE: Final = ("PENDING", "ACTIVE")


@dataclass(frozen=True)
class Bar:
    """The bar of a reservation in a row: position, state and texts."""

    lease_id: str
    name: str
    project: str
    status: str
    start: datetime
    end: datetime
    x: float
    width: float
    what: str = ""
    flag: str = ""  # a warning for the owner of the lease
    movable: bool = False  # the end is visible and the user can drag it
    lane: int = 0

    @cached_property
    def when(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"

    @cached_property
    def told(self) -> str:
        """Return the full description, for the tooltip and for screen readers."""
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
    """A marked time span in a row: health, an incident, or maintenance."""

    x: float
    width: float
    kind: str
    said: str


@dataclass(frozen=True)
class Block:
    """A run of leases too dense to draw separately, from the first start to the last end."""

    x: float
    width: float
    count: int
    start: datetime
    end: datetime

    @property
    def begins(self) -> str:
        """Return the start in URL form."""
        return f"{self.start:%Y-%m-%dT%H%%3A%M}"

    @cached_property
    def told(self) -> str:
        return f"{self.count} leases, {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Row:
    """A row of the calendar: a host, a pool or a reservation."""

    id: str
    name: str
    sub: str = ""
    state: str = ""
    since: datetime | None = None
    marked: bool = False  # an operator or recovery put the host on maintenance
    where: str | None = None  # the condition that books this row; None: the row cannot be booked
    blocks: Sequence[Block] = ()
    bars: Sequence[Bar] = ()
    hidden: int = 0  # bars without a lane
    health: Sequence[Span] = ()  # the current host status
    incidents: Sequence[Span] = ()
    blocked: Sequence[Span] = ()
    link: str = ""
    levels: Sequence["Level"] = ()

    @property
    def lanes(self) -> int:
        return max((bar.lane for bar in self.bars), default=0) + 1


@dataclass(frozen=True)
class Level:
    """The number of free hosts of a pool in a time span."""

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
    """Data beside the holds: incidents, maintenance windows, holds of crowded hosts, clock."""

    incidents: Sequence[Any] = ()
    silences: Sequence[Any] = ()
    dense: Iterable[Any] = ()  # holds of hosts with more than CROWDED holds
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
    """Return the condition for exactly this host, in the syntax of the `where` field."""
    plain = all(sign.isalnum() or sign in "._-" for sign in hostname)
    if plain:
        return f"hypervisor_hostname={hostname}"
    quoted = hostname.replace("\\", "\\\\").replace('"', '\\"')
    return f'["==", "$hypervisor_hostname", "{quoted}"]'


def of_leases(rows: Iterable[Any], scale: Scale, may_change: bool) -> Sequence[Row]:
    """Return a row with a single bar for each reservation."""
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
    """Put each bar into a lane where no other bar overlaps. Returns the bars and the number
    without a lane."""
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
    """Group the holds by the part of the time span in which each begins."""
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
    """Yield the span of the current host status, from its start until now."""
    since = host.state_since or scale.start
    x, width = scale.spans(since, now)
    if width:
        told = f"{host.state} since {since:%Y-%m-%d %H:%M} UTC" if host.state_since else host.state
        yield Span(x, width, host.state, told)


def _incidents(incidents: Sequence[Any], scale: Scale, now: datetime) -> Iterator[Span]:
    """Yield a span for each incident. The span of an open incident ends now."""
    for one in incidents:
        until = one.closed_at or now
        if until < scale.start or one.opened_at >= scale.end:
            continue
        x, width = scale.spans(one.opened_at, until)
        at = f"{one.opened_at:%Y-%m-%d %H:%M} UTC"
        yield Span(x, max(width, 0.2), "down", f"incident {one.status}, {at}: {one.sentence}")


def _blocked(host: Any, around: Around, scale: Scale) -> Iterator[Span]:
    """Yield the maintenance of a host: the mark on the host, and planned maintenance windows."""
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


# Rows of pools: the number of free hosts of each rack or zone over time. Pure.


#: The number of parts of the time span. A part shows the hosts that are free throughout.
PARTS: Final = 84
GIVEN, FAILED = "given", "failed"
#: A time, and the change in the number of held hosts from then on.
Step = tuple[datetime, int]


def of_pools(
    pools: Iterable[Any], whole: Iterable[Any], slots: Iterable[Any], group: str, scale: Scale
) -> Sequence[Row]:
    """Return a row for each pool.

    `whole` holds counts of fully reserved hosts. Each entry of `slots` is a single hold on a
    host.
    """
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
    """Return whether leases can get these hosts, or the reason against."""
    if hosts.state not in USABLE:
        return FAILED
    return GIVEN if hosts.reservable else CLOSED


def _joined(slots: Iterable[Any]) -> Iterator[tuple[str, datetime, datetime]]:
    """Merge overlapping slot holds of a host, because a host with several holds counts once."""
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
    """Return, for each part of the time span, the highest number of held hosts."""
    part = (scale.end - scale.start) / PARTS
    found, held, at = [0] * PARTS, 0, 0
    for when, by in sorted(steps):  # at the same moment ends sort before starts
        until = min(max((when - scale.start) / part, 0.0), float(PARTS))
        for place in range(at, min(int(until) + (until % 1 > 0), PARTS)):
            found[place] = max(found[place], held)
        at, held = min(int(until), PARTS), held + by
    return found


def _levels(free: Sequence[int], total: int, scale: Scale) -> Sequence[Level]:
    """Merge neighbouring parts with the same number of free hosts."""
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


HERE: Final = f"{PREFIX}/calendar"
HOSTS, LEASES = "hosts", "leases"
ROWS: Final = 100
FITS: Final = 5
#: Parameters in the URL besides the search form.
_KEPT: Final = ("view", "from", "zoom", "rack", "zone", "text", "page")

#: The row on which the lease view lets the user drag the time of a new lease.
_FRESH: Final = Row("row-new", "new lease", "drag to choose its time", where="")


@dataclass(frozen=True)
class CalendarView:
    """The view that the URL describes: rows, time scale, filters and page number."""

    view: str
    scale: Scale
    which: Which
    number: int
    kept: Mapping[str, str]

    @property
    def offset(self) -> int:
        return (self.number - 1) * ROWS

    def address(self, base: str = HERE, **changes: Any) -> str:
        """Return the URL of this view with changes; the page number resets to 1 unless `changes`
        sets it."""
        asked = {**self.kept, **({} if "page" in changes else {"page": ""}), **changes}
        return f"{base}?{urlencode({name: value for name, value in asked.items() if value})}"

    def closer(self, name: str) -> str:
        """Return the URL of the next closer zoom on a host. The caller appends the start
        (`Block.begins`)."""
        zooms = list(ZOOMS)
        zoom = zooms[max(0, zooms.index(self.scale.zoom) - 1)]
        return self.address(zoom=zoom, text=name, **{"from": ""}) + "&from="

    def moved(self, to: datetime) -> str:
        return self.address(**{"from": f"{to:%Y-%m-%dT%H:%M}"})


def show(request: Request) -> Response:
    look = _view_of(request)
    rows, total = _rows(request, look)
    racks, zones = request.services.store.calendar.places() if _sees_hosts(request) else ((), ())
    return page(
        request,
        "calendar.html",
        title="Calendar",
        racks=racks,
        zones=zones,
        zooms=list(ZOOMS),
        views=_views(request),
        kinds=KINDS,
        wish=Wish.of(request.query),
        found=_found(request),
        **_board(request, look, rows, total),
    )


def board(request: Request) -> Response:
    """Render only the rows, for the refresh of an open page."""
    look = _view_of(request)
    rows, total = _rows(request, look)
    return part(request, "calendar_rows.html", **_board(request, look, rows, total))


def _board(request: Request, look: CalendarView, rows: Sequence[Row], total: int) -> dict[str, Any]:
    # A refresh must keep the start of the view, however late it comes.
    fixed = {"from": f"{look.scale.start:%Y-%m-%dT%H:%M}", "page": str(look.number)}
    return {
        "look": look,
        "scale": look.scale,
        "rows": [_FRESH, *rows] if look.view == LEASES and _books(request) else rows,
        "total": total,
        "first": look.offset + 1,
        "last": look.offset + len(rows),
        "part_address": look.address(f"{HERE}/board", **fixed),
        "books": _books(request),
    }


def _view_of(request: Request) -> CalendarView:
    query = {name: str(request.query.get(name, "")) for name in _KEPT}
    views = _views(request)
    view = query["view"] or views[0]
    if view not in views:
        raise InvalidInput(f"view: there is no {view[:40]!r} for you; one of {', '.join(views)}")
    start = parse(query["from"], "from") if query["from"] else None
    scale = Scale.of(query["zoom"] or WEEK, start, request.services.clock.now())
    number = query["page"] or "1"
    good = number.isascii() and number.isdigit() and len(number) <= 5
    if not good or not 1 <= int(number) <= 10_000:
        raise InvalidInput(f"page: {number[:40]!r} is not a number of a page")
    which = Which(query["rack"], query["zone"], query["text"].strip().lower())
    return CalendarView(view, scale, which, int(number), query)


def _books(request: Request) -> bool:
    return request.allowed("reservation:lease:create")


def _sees_hosts(request: Request) -> bool:
    return request.allowed("reservation:host:list") and request.allowed(
        "reservation:host:allocations"
    )


def _views(request: Request) -> Sequence[str]:
    return (HOSTS, *GROUPS, LEASES) if _sees_hosts(request) else (LEASES,)


def _rows(request: Request, look: CalendarView) -> tuple[Sequence[Row], int]:
    store, scale = request.services.store.calendar, look.scale
    may_change = request.allowed("reservation:lease:update")
    if look.view == LEASES:
        whose = None if request.caller.is_admin else request.caller.project_id
        found, total = store.leases(whose, scale.start, scale.end, look.offset, ROWS)
        return of_leases(found, scale, may_change), total
    if look.view in GROUPS:
        pools = store.pools(look.view, look.which)
        taken = store.taken(look.view, look.which, scale.start, scale.end)
        rows = of_pools(pools, *taken, look.view, scale)
        return rows[look.offset : look.offset + ROWS], len(rows)
    hosts, total = store.hosts(look.which, look.offset, ROWS)
    ids = [host.id for host in hosts]
    crowded, dense = store.dense(ids, scale.start, scale.end, CROWDED)
    holds = store.holds([one for one in ids if one not in crowded], scale.start, scale.end)
    around = Around(
        store.incidents([host.name for host in hosts], scale.start, scale.end),
        store.silences(scale.start, scale.end),
        dense,
        request.services.clock.now(),
    )
    return of_hosts(hosts, holds, around, scale, may_change), total


# The availability search


def _found(request: Request) -> dict[str, Any] | None:
    """Return the windows that the search found, or the reason for none; None without a search."""
    if "find" not in request.query:
        return None
    wish = Wish.of(request.query)
    try:
        reservation, query = wish.search(request.services.clock.now(), FITS)
        query["reservation"] = json.dumps(reservation)
        answer = api_calls.call(request, availability.show, query=query)["availability"]
    except HoldfastError as error:
        return {"windows": (), "why": {"message": error.message, **error.details}}
    now = request.services.clock.now()
    windows = [{**one, "book": _book(wish, one, now)} for one in answer["windows"]]
    return {"windows": windows, "why": answer["why_not"]}


def _book(wish: Wish, window: Mapping[str, Any], now: datetime) -> str:
    """Return the URL of the booking form for a window.

    A window that is free now is still free a minute later, so the form starts `now`: the time
    that the user needs for the form does not matter.
    """
    asked = {name: value for name, value in wish.given.items() if value}
    start, end = (datetime.fromisoformat(window[name]) for name in ("start_date", "end_date"))
    asked |= {"start": f"{start:%Y-%m-%d %H:%M}", "end": f"{end:%Y-%m-%d %H:%M}"}
    if start <= now:
        asked |= {"start": "now", "end": f"+{wish['length']}"}
    return f"{PREFIX}/leases/new?{urlencode(asked)}"
