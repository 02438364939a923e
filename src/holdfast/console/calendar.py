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
from holdfast.console.leases import KINDS, LeaseForm
from holdfast.console.pages import PREFIX, page, part, project_scope, whole_number
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
    def title(self) -> str:
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
        level = ZOOMS[zoom]
        begin = _floor(now, level.back, zoom) if start is None else start
        return cls(zoom, begin, begin + level.length)

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
    level = ZOOMS[scale.zoom]
    at = scale.start + (_EPOCH - scale.start) % level.lines
    while at < scale.end:
        has_label = (at - _EPOCH) % level.labels == timedelta()
        yield at, _label(scale, at, level.form) if has_label else ""
        at += level.lines


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
    resource: str = ""
    flag: str = ""  # a warning for the owner of the lease
    movable: bool = False  # the end is visible and the user can drag it
    lane: int = 0

    @cached_property
    def when(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"

    @cached_property
    def title(self) -> str:
        """Return the full description, for the tooltip and for screen readers."""
        flag = f", {self.flag}" if self.flag else ""
        about = f"{self.name}, project {self.project}, {self.status}{flag}, {self.resource}"
        return f"{about}, {self.when}"

    @property
    def hue(self) -> int:
        return hue(self.project)

    @property
    def shape(self) -> str:
        return "▲" if self.flag else SHAPES.get(self.status, "◐")

    @property
    def css_class(self) -> str:
        return self.status.lower()


@dataclass(frozen=True)
class Span:
    """A marked time span in a row: health, an incident, or maintenance."""

    x: float
    width: float
    kind: str
    title: str


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
    def title(self) -> str:
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
    windows: Sequence[Any] = ()
    dense: Iterable[Any] = ()  # holds of hosts with more than CROWDED holds
    now: datetime = field(default=datetime.min)


def hue(project: str) -> int:
    return crc32(project.encode()) % HUES


def host_rows(
    hosts: Sequence[Any], holds: Iterable[Any], around: Around, scale: Scale, may_change: bool
) -> Sequence[Row]:
    barses: dict[int, list[Bar]] = {}
    for hold in holds:
        barses.setdefault(hold.host_id, []).append(_bar(hold, scale, may_change))
    dense: dict[int, list[Any]] = {}
    for hold in around.dense:
        dense.setdefault(hold.host_id, []).append(hold)
    incidents: dict[str, list[Any]] = {}
    for incident in around.incidents:
        incidents.setdefault(incident.subject.removeprefix("host:"), []).append(incident)
    rows = (
        _host(host, barses.get(host.id, []), incidents.get(host.name, []), around, scale)
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
    reservable = host.reservable and host.state in USABLE
    return Row(
        id=f"row-{host.id}",
        name=host.service_host,
        sub=" · ".join(
            part for part in (host.rack, host.zone, "" if reservable else CLOSED) if part
        ),
        state=host.state,
        since=host.state_since,
        marked=bool(host.on_maintenance),
        link=f"/console/hosts/{quote(host.service_host)}",
        where=host_condition(host.hypervisor_hostname) if reservable else None,
        bars=drawn,
        hidden=hidden,
        health=list(_health(host, scale, around.now)),
        incidents=list(_incidents(incidents, scale, around.now)),
        blocked=list(_blocked(host, around, scale)),
    )


def host_condition(hostname: str) -> str:
    """Return the condition for exactly this host, in the syntax of the `where` field."""
    if all(letter.isalnum() or letter in "._-" for letter in hostname):
        return f"hypervisor_hostname={hostname}"
    quoted = hostname.replace("\\", "\\\\").replace('"', '\\"')
    return f'["==", "$hypervisor_hostname", "{quoted}"]'


def lease_rows(holds: Iterable[Any], scale: Scale, may_change: bool) -> Sequence[Row]:
    """Return a row with a single bar for each reservation."""
    rows = []
    for hold in holds:
        bar = _bar(hold, scale, may_change)
        sub = f"{bar.resource} · {bar.project}"
        link = f"/console/leases/{hold.lease_id}"
        rows.append(
            Row(f"row-{hold.reservation_id}", hold.name, sub, hold.status, link=link, bars=[bar])
        )
    return rows


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
        resource=_resource(hold),
        flag=_flag(hold),
        movable=may_change and hold.status in _CHANGEABLE and scale.holds(end),
    )


def _resource(hold: Any) -> str:
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
        return "resource missing"
    if hold.resources_changed:
        return "resource replaced"
    return "degraded" if hold.degraded else ""


def in_lanes(bars: Iterable[Bar]) -> tuple[Sequence[Bar], int]:
    """Put each bar into a lane where no other bar overlaps. Returns the bars and the number
    without a lane."""
    ends: list[datetime] = []
    drawn, hidden = [], 0
    for bar in sorted(bars, key=lambda bar: bar.start):
        lane = next((lane for lane, end in enumerate(ends) if end <= bar.start), len(ends))
        if lane == LANES:
            hidden += 1
            continue
        ends[lane : lane + 1] = [bar.end]
        drawn.append(replace(bar, lane=lane))
    return drawn, hidden


def in_blocks(holds: Iterable[Any], scale: Scale) -> Sequence[Block]:
    """Group the holds by the part of the time span in which each begins."""
    part = (scale.end - scale.start) / BLOCKS
    blocks: dict[int, tuple[int, datetime, datetime]] = {}
    for hold in holds:
        place = max(0, int((hold.held_from - scale.start) / part))
        count, start, end = blocks.get(place, (0, hold.held_from, hold.held_until))
        blocks[place] = count + 1, min(start, hold.held_from), max(end, hold.held_until)
    return [
        Block(*scale.spans(start, end), count, start, end) for count, start, end in blocks.values()
    ]


def _health(host: Any, scale: Scale, now: datetime) -> Iterator[Span]:
    """Yield the span of the current host status, from its start until now."""
    since = host.state_since or scale.start
    x, width = scale.spans(since, now)
    if width:
        title = f"{host.state} since {since:%Y-%m-%d %H:%M} UTC" if host.state_since else host.state
        yield Span(x, width, host.state, title)


def _incidents(incidents: Sequence[Any], scale: Scale, now: datetime) -> Iterator[Span]:
    """Yield a span for each incident. The span of an open incident ends now."""
    for incident in incidents:
        until = incident.closed_at or now
        if until < scale.start or incident.opened_at >= scale.end:
            continue
        x, width = scale.spans(incident.opened_at, until)
        at = f"{incident.opened_at:%Y-%m-%d %H:%M} UTC"
        title = f"incident {incident.status}, {at}: {incident.sentence}"
        yield Span(x, max(width, 0.2), "down", title)


def _blocked(host: Any, around: Around, scale: Scale) -> Iterator[Span]:
    """Yield the maintenance of a host: the mark on the host, and planned maintenance windows."""
    if host.on_maintenance:
        since = host.marked_at or around.now
        x, width = scale.spans(since, scale.end)
        if width:
            yield Span(x, width, "maintenance", f"on maintenance since {since:%Y-%m-%d %H:%M} UTC")
    for window in around.windows:
        if covers(window.matcher, host.service_host, host.segment):
            x, width = scale.spans(window.starts_at, window.expires_at)
            until = f"{window.expires_at:%Y-%m-%d %H:%M} UTC"
            title = f"maintenance until {until}, by {window.author}: {window.reason}"
            yield Span(x, width, "maintenance", title)


# Rows of pools: the number of free hosts of each rack or zone over time. Pure.


#: The number of parts of the time span. A part shows the hosts that are free throughout.
PARTS: Final = 84
RESERVABLE, FAILED = "reservable", "failed"
#: A time, and the change in the number of held hosts from then on.
Step = tuple[datetime, int]


def pool_rows(
    pools: Iterable[Any], whole: Iterable[Any], slots: Iterable[Any], group: str, scale: Scale
) -> Sequence[Row]:
    """Return a row for each pool.

    `whole` holds counts of fully reserved hosts. Each entry of `slots` is a single hold on a
    host.
    """
    hosts: dict[str, Counter[str]] = defaultdict(Counter)
    for pool in pools:
        hosts[pool.pool][_availability(pool)] += pool.hosts
    steps: dict[str, list[Step]] = defaultdict(list)
    for hold in whole:
        steps[hold.pool] += [(hold.held_from, hold.hosts), (hold.held_until, -hold.hosts)]
    for (name, start, end), count in Counter(_joined(slots)).items():
        steps[name] += [(start, count), (end, -count)]
    return [
        _pool_row(name, group, counts, steps[name], scale) for name, counts in sorted(hosts.items())
    ]


def _availability(hosts: Any) -> str:
    """Return whether leases can get these hosts, or the reason against."""
    if hosts.state not in USABLE:
        return FAILED
    return RESERVABLE if hosts.reservable else CLOSED


def _joined(slots: Iterable[Any]) -> Iterator[tuple[str, datetime, datetime]]:
    """Merge overlapping slot holds of a host, because a host with several holds counts once."""
    held: dict[tuple[str, int], list[tuple[datetime, datetime]]] = defaultdict(list)
    for hold in slots:
        held[hold.pool, hold.host_id].append((hold.held_from, hold.held_until))
    for (pool, _), spans in held.items():
        spans.sort()
        start, end = spans[0]
        for begin, until in spans[1:]:
            if begin > end:
                yield pool, start, end
                start = begin
            end = max(end, until)
        yield pool, start, end


def _pool_row(
    name: str, group: str, hosts: Mapping[str, int], steps: Sequence[Step], scale: Scale
) -> Row:
    kind, total = group.removesuffix("s"), hosts[RESERVABLE]
    key = "rack" if kind == "rack" else "availability_zone"
    counts = [f"{total} host{'' if total == 1 else 's'}"]
    counts += [f"{hosts[reason]} {reason}" for reason in (FAILED, CLOSED) if hosts[reason]]
    return Row(
        id=f"row-{group}-{name}",
        name=name or f"no {kind}",
        sub=", ".join(counts),
        where=f"{key}={name}" if name else None,
        link=f"/console/calendar?{urlencode({kind: name})}" if name else "",
        levels=_levels([total - held for held in _highest(steps, scale)], total, scale),
    )


def _highest(steps: Sequence[Step], scale: Scale) -> Sequence[int]:
    """Return, for each part of the time span, the highest number of held hosts."""
    part = (scale.end - scale.start) / PARTS
    highest, held, at = [0] * PARTS, 0, 0
    for when, by in sorted(steps):  # at the same moment ends sort before starts
        until = min(max((when - scale.start) / part, 0.0), float(PARTS))
        for place in range(at, min(int(until) + (until % 1 > 0), PARTS)):
            highest[place] = max(highest[place], held)
        at, held = min(int(until), PARTS), held + by
    return highest


def _levels(free: Sequence[int], total: int, scale: Scale) -> Sequence[Level]:
    """Merge neighbouring parts with the same number of free hosts."""
    part: timedelta = (scale.end - scale.start) / PARTS
    levels: list[Level] = []
    begun = 0
    for place in range(1, PARTS + 1):
        if place < PARTS and free[place] == free[begun]:
            continue
        start, end = scale.start + begun * part, scale.start + place * part
        levels.append(Level(*scale.spans(start, end), free[begun], total, start, end))
        begun = place
    return levels


HERE: Final = f"{PREFIX}/calendar"
HOSTS, LEASES = "hosts", "leases"
ROWS: Final = 100
FITS: Final = 5
#: Parameters in the URL besides the search form.
_QUERY: Final = ("view", "from", "zoom", "rack", "zone", "text", "page")

#: The row on which the lease view lets the user drag the time of a new lease.
_NEW_LEASE: Final = Row("row-new", "new lease", "drag to select its time", where="")


@dataclass(frozen=True)
class CalendarView:
    """The view that the URL describes: rows, time scale, filters and page number."""

    kind: str  # hosts, racks, zones or leases
    scale: Scale
    which: Which
    number: int
    query: Mapping[str, str]

    @property
    def offset(self) -> int:
        return (self.number - 1) * ROWS

    def address(self, base: str = HERE, **changes: Any) -> str:
        """Return the URL of this view with changes; the page number resets to 1 unless `changes`
        sets it."""
        query = {**self.query, **({} if "page" in changes else {"page": ""}), **changes}
        return f"{base}?{urlencode({name: value for name, value in query.items() if value})}"

    def zoom_in(self, name: str) -> str:
        """Return the URL of the next closer zoom on a host. The caller appends the start
        (`Block.begins`)."""
        zooms = list(ZOOMS)
        zoom = zooms[max(0, zooms.index(self.scale.zoom) - 1)]
        return self.address(zoom=zoom, text=name, **{"from": ""}) + "&from="

    def moved(self, to: datetime) -> str:
        return self.address(**{"from": f"{to:%Y-%m-%dT%H:%M}"})


def show(request: Request) -> Response:
    view = _view_of(request)
    rows, total = _rows(request, view)
    racks, zones = request.services.store.calendar.places() if _sees_hosts(request) else ((), ())
    return page(
        request,
        "calendar.html",
        title="Calendar",
        racks=racks,
        zones=zones,
        zooms=list(ZOOMS),
        row_kinds=_kinds(request),
        kinds=KINDS,
        form=LeaseForm.of(request.query),
        result=_search(request),
        **_board(request, view, rows, total),
    )


def board(request: Request) -> Response:
    """Render only the rows, for the refresh of an open page."""
    view = _view_of(request)
    rows, total = _rows(request, view)
    return part(request, "calendar_rows.html", **_board(request, view, rows, total))


def _board(request: Request, view: CalendarView, rows: Sequence[Row], total: int) -> dict[str, Any]:
    # A refresh must keep the start of the view, however late it comes.
    fixed = {"from": f"{view.scale.start:%Y-%m-%dT%H:%M}", "page": str(view.number)}
    return {
        "view": view,
        "scale": view.scale,
        "rows": [_NEW_LEASE, *rows] if view.kind == LEASES and _may_book(request) else rows,
        "total": total,
        "first": view.offset + 1,
        "last": view.offset + len(rows),
        "part_address": view.address(f"{HERE}/board", **fixed),
        "may_book": _may_book(request),
    }


def _view_of(request: Request) -> CalendarView:
    query = {name: str(request.query.get(name, "")) for name in _QUERY}
    kinds = _kinds(request)
    kind = query["view"] or kinds[0]
    if kind not in kinds:
        raise InvalidInput(f"view: there is no {kind[:40]!r} for you; one of {', '.join(kinds)}")
    start = parse(query["from"], "from") if query["from"] else None
    scale = Scale.of(query["zoom"] or WEEK, start, request.services.clock.now())
    number = whole_number(query["page"] or "1", 5)
    if number is None or not 1 <= number <= 10_000:
        raise InvalidInput(f"page: {query['page'][:40]!r} is not a page number")
    which = Which(query["rack"], query["zone"], query["text"].strip().lower())
    return CalendarView(kind, scale, which, number, query)


def _may_book(request: Request) -> bool:
    return request.allowed("reservation:lease:create")


def _sees_hosts(request: Request) -> bool:
    return request.allowed("reservation:host:list") and request.allowed(
        "reservation:host:allocations"
    )


def _kinds(request: Request) -> Sequence[str]:
    return (HOSTS, *GROUPS, LEASES) if _sees_hosts(request) else (LEASES,)


def _rows(request: Request, view: CalendarView) -> tuple[Sequence[Row], int]:
    store, scale = request.services.store.calendar, view.scale
    may_change = request.allowed("reservation:lease:update")
    if view.kind == LEASES:
        project = project_scope(request)
        holds, total = store.leases(project, scale.start, scale.end, view.offset, ROWS)
        return lease_rows(holds, scale, may_change), total
    if view.kind in GROUPS:
        pools = store.pools(view.kind, view.which)
        taken = store.taken(view.kind, view.which, scale.start, scale.end)
        rows = pool_rows(pools, *taken, view.kind, scale)
        return rows[view.offset : view.offset + ROWS], len(rows)
    hosts, total = store.hosts(view.which, view.offset, ROWS)
    ids = [host.id for host in hosts]
    crowded, dense = store.dense(ids, scale.start, scale.end, CROWDED)
    holds = store.holds([host for host in ids if host not in crowded], scale.start, scale.end)
    around = Around(
        store.incidents([host.name for host in hosts], scale.start, scale.end),
        store.maintenance_windows(scale.start, scale.end),
        dense,
        request.services.clock.now(),
    )
    return host_rows(hosts, holds, around, scale, may_change), total


# The availability search


def _search(request: Request) -> dict[str, Any] | None:
    """Return the time windows that fit, or the reason for none; None without a search."""
    if "find" not in request.query:
        return None
    form = LeaseForm.of(request.query)
    try:
        reservation, query = form.search(request.services.clock.now(), FITS)
        query["reservation"] = json.dumps(reservation)
        answer = api_calls.call(request, availability.show, query=query)["availability"]
    except HoldfastError as error:
        return {"windows": (), "why": {"message": error.message, **error.details}}
    now = request.services.clock.now()
    windows = [{**window, "book": _book(form, window, now)} for window in answer["windows"]]
    return {"windows": windows, "why": answer["why_not"]}


def _book(form: LeaseForm, window: Mapping[str, Any], now: datetime) -> str:
    """Return the URL of the booking form for a window.

    A window that is free now is still free a minute later, so the form starts `now`: the time
    that the user needs for the form does not matter.
    """
    fields = {name: value for name, value in form.fields.items() if value}
    start, end = (datetime.fromisoformat(window[name]) for name in ("start_date", "end_date"))
    fields |= {"start": f"{start:%Y-%m-%d %H:%M}", "end": f"{end:%Y-%m-%d %H:%M}"}
    if start <= now:
        fields |= {"start": "now", "end": f"+{form['length']}"}
    return f"{PREFIX}/leases/new?{urlencode(fields)}"
