# SPDX-License-Identifier: Apache-2.0
"""/console/metrics: hosts with their agents, and charts of the last hour of a host's metrics.

The agent sends live metrics only while a page asks for them. The page asks with a POST form,
because a GET changes nothing. The sections below draw a chart, place alarms on charts, and lay
out a host with its guests, all as pure functions. The last sections render the pages.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from holdfast.alarms import rules_file, scopes
from holdfast.alarms.preview import Story, preview
from holdfast.alarms.rules import VALUE, Rule
from holdfast.alarms.scopes import Document
from holdfast.alarms.tracks import FIRING, OK, Change
from holdfast.api.holdfast_v1 import agents, hosts
from holdfast.api.request import Request, Response
from holdfast.console import alarms as alarm_pages
from holdfast.console import api_calls, format
from holdfast.console.hosts import agent
from holdfast.console.pages import PREFIX, away, page, part, project_scope, whole_number
from holdfast.db.agents import MOST_HOSTS, WatchedHost
from holdfast.db.alarms import Wanted
from holdfast.metrics.history import EVERY_S, FIELDS, Hour, Line
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise

# Charts of the last hour of a metric: a line, alarms as bands, and a text alternative. Pure.
#
#     spark = draw_spark("s-1", "util_ratio", line.values["util_ratio"], hour, marks)
#     spark.line, spark.last, spark.description
#
# A chart is WIDE by HIGH. The hour has more points than pixels, so each bin draws the
# point that differs most from the mean: peaks and dips stay visible.


WIDE: Final = 360
HIGH: Final = 60
BINS: Final = 120
_ROOM: Final = 4  # above the highest point


@dataclass(frozen=True)
class Mark:
    """The time span of an alarm; `until` is None while the alarm lasts."""

    rule: str
    severity: str
    state: str
    since: datetime
    until: datetime | None = None
    threshold: float | None = None
    href: str = ""


@dataclass(frozen=True)
class Band:
    """An alarm as a band in the chart."""

    x: float
    width: float
    mark: Mark
    begins: bool  # within the hour

    @property
    def title(self) -> str:
        return mark_title(self.mark)


@dataclass(frozen=True)
class Spark:
    """A small chart of a metric."""

    id: str
    field: str
    line: str  # data of an SVG path
    area: str
    bands: Sequence[Band]
    levels: Sequence[float]  # y of each threshold
    lowest: str
    highest: str
    last: str

    @property
    def name(self) -> str:
        return format.label(self.field)

    @property
    def description(self) -> str:
        """Return the text alternative of the chart, for screen readers."""
        range_ = f"min {self.lowest}, max {self.highest}, last {self.last}"
        return "; ".join([range_, *(band.title for band in self.bands)])


def mark_title(mark: Mark) -> str:
    begin = f"alarm {mark.rule} ({mark.severity}) from {mark.since:%Y-%m-%d %H:%M:%S}"
    if mark.until is None:
        return f"{begin} UTC, still open"
    return f"{begin} to {mark.until:%Y-%m-%d %H:%M:%S} UTC"


def draw_spark(
    id: str, field: str, values: Sequence[float], hour: Hour, marks: Sequence[Mark] = ()
) -> Spark:
    """Draw the chart of a metric with its alarms."""
    finite = [value for value in values if math.isfinite(value)]
    bands = tuple(_bands(hour, marks))
    thresholds = sorted({m.threshold for b in bands if (m := b.mark).threshold is not None})
    top = max([*finite, format.scale_top(field)], default=0.0) or 1.0
    path, area = _paths(values, finite, top)
    return Spark(
        *(id, field, path, area, bands),
        tuple(_y(level, top) for level in thresholds if 0 <= level <= top),
        format.metric(field, min(finite, default=None)),
        format.metric(field, max(finite, default=None)),
        format.metric(field, values[-1] if values else None),
    )


def _paths(values: Sequence[float], finite: Sequence[float], top: float) -> tuple[str, str]:
    """Return SVG paths of the line and of the area below, interrupted where values are missing."""
    mean = sum(finite) / len(finite) if finite else 0.0
    lines, areas, run = [], [], []
    for x, value in [*_binned(values, mean), (0.0, math.nan)]:
        if math.isfinite(value):
            run.append(f"{x:.3g} {_y(value, top):.3g}")
        elif run:
            # A single point is drawn as a line too.
            run = run if len(run) > 1 else run * 2
            lines.append("M" + "L".join(run))
            first, last = run[0].split()[0], run[-1].split()[0]
            areas.append(f"M{first} {HIGH}L{'L'.join(run)}L{last} {HIGH}Z")
            run = []
    return "".join(lines), "".join(areas)


def _binned(values: Sequence[float], mean: float) -> Iterator[tuple[float, float]]:
    count = len(values)
    step = max(1, math.ceil(count / BINS))
    scale = WIDE / max(1, count - 1)
    for begin in range(0, count, step):
        points = [
            (place, values[place])
            for place in range(begin, min(begin + step, count))
            if math.isfinite(values[place])
        ]
        furthest = max(points, key=lambda point: abs(point[1] - mean), default=(begin, math.nan))
        place, value = furthest
        yield place * scale, value


def _y(value: float, top: float) -> float:
    return HIGH - max(0.0, min(value, top)) / top * (HIGH - _ROOM)


def _bands(hour: Hour, marks: Sequence[Mark]) -> Iterator[Band]:
    """Yield the alarms that overlap the hour, cut to the hour."""
    begin, end = hour.begin * EVERY_S, max(hour.end - 1, hour.begin + 1) * EVERY_S
    for mark in marks:
        first = mark.since.timestamp()
        last = mark.until.timestamp() if mark.until else end
        if last < begin or first > end:
            continue
        x = (max(first, begin) - begin) / (end - begin) * WIDE
        to = (min(last, end) - begin) / (end - begin) * WIDE
        yield Band(round(x, 1), round(max(to - x, 2.0), 1), mark, first >= begin)


def anchor(*parts: str) -> str:
    """Return an HTML id for a name with any characters."""
    return f"{parts[0]}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:12]}"


# Alarms on charts: raised alarms, and alarms that rules would have raised in the hour. Pure.


HOST = "host"
Rules = Mapping[str, Rule]


@dataclass(frozen=True)
class Placed:
    """An alarm and the fields of its rule. Without known fields every chart shows the alarm."""

    mark: Mark
    fields: frozenset[str] = frozenset()

    def is_on(self, field: str) -> bool:
        return not self.fields or field in self.fields


#: Alarms by kind and entity. The entity of a host is empty: each host has a single line.
Marks = Mapping[tuple[str, str], Sequence[Placed]]


def marks_of_alarms(rows: Iterable[Mapping[str, Any]], rules: Rules, since: datetime) -> Marks:
    """Return the alarms, from database rows, that lasted past `since`."""
    marks: dict[tuple[str, str], list[Placed]] = {}
    for row in rows:
        resolved_at = row["resolved_at"]
        if resolved_at is not None and resolved_at < since:
            continue
        details = row["details"] or {}
        rule = rules.get(row["rule"])
        threshold = details.get("threshold") if rule is not None and is_plain(rule) else None
        mark = Mark(
            *(row["rule"], row["severity"], row["state"], row["fired_at"], resolved_at),
            float(threshold) if isinstance(threshold, int | float) else None,
            f"/console/alarms/{row['id']}",
        )
        key = _key(str(details.get("kind", "")), str(details.get("entity", "")))
        marks.setdefault(key, []).append(Placed(mark, rule_fields(rule)))
    return marks


def marks_of_stories(stories: Iterable[Story], rules: Rules) -> Marks:
    """Return the alarms that would have fired, from a preview of rules."""
    marks: dict[tuple[str, str], list[Placed]] = {}
    for story in stories:
        rule = rules.get(story.rule)
        firing = [mark for mark in open_spans(story, rule) if mark.state == FIRING]
        placed = [Placed(mark, rule_fields(rule)) for mark in firing]
        marks.setdefault(_key(story.kind, story.entity), []).extend(placed)
    return marks


def open_spans(story: Story, rule: Rule | None) -> list[Mark]:
    """Return the time spans in which the state was not OK, oldest first."""
    ends: list[Change | None] = [*story.changes[1:], None]
    return [
        Mark(
            *(story.rule, change.severity, change.state, change.at, end.at if end else None),
            change.threshold if rule is not None and is_plain(rule) else None,
        )
        for change, end in zip(story.changes, ends, strict=True)
        if change.state != OK
    ]


def marks_of(marks: Marks, kind: str, entity: str) -> Sequence[Placed]:
    return marks.get(_key(kind, entity), ())


def rule_fields(rule: Rule | None) -> frozenset[str]:
    conditions = () if rule is None else rule.conditions
    return frozenset(condition.field for condition in conditions)


def is_plain(rule: Rule) -> bool:
    """Return whether the rule's threshold is a value of the metric, and so fits into the chart."""
    (first, *more) = rule.conditions
    return not more and first.measure == VALUE and not first.contract


def _key(kind: str, entity: str) -> tuple[str, str]:
    return kind, "" if kind == HOST else entity


# The layout of a host's page: the host, then each guest with its disks and interfaces, and a
# chart for every metric. Pure.


#: Guests per page: each has about ten charts.
MOST_GUESTS: Final = 12
_KINDS: Final = {"guest": "guest", "disk": "disk", "nic": "interface"}


@dataclass(frozen=True)
class Part:
    """A guest, or a disk or interface of a guest, with its charts."""

    kind: str
    name: str
    sparks: Sequence[Spark]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Guest:
    """A guest with its disks and interfaces."""

    id: str
    name: str
    project: str
    flavor: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        return anchor("guest", self.id)

    @property
    def marks(self) -> Sequence[Mark]:
        return [mark for part in self.parts for mark in part.marks]


@dataclass(frozen=True)
class Layout:
    """The charts of a host and of a page of guests."""

    host: Part | None
    guests: Sequence[Guest]
    matches: int  # the number of guests that match the search
    page: int
    pages: int


def lay_out(hour: Hour, marks: Marks, text: str = "", page: int = 1) -> Layout:
    """Lay out a host's page. Guests with alarms come first.

    `text` is a substring of a guest's name, id or project.
    """
    host = next((line for line in hour.lines if line.kind == "host"), None)
    groups = _grouped(hour.lines)
    matches = [(guest, lines) for guest, lines in groups.items() if _matches(guest, lines, text)]
    matches.sort(
        key=lambda pair: (not _has_alarms(pair[1], marks), _name(pair[1]).lower(), pair[0])
    )
    pages = max(1, -(-len(matches) // MOST_GUESTS))
    page = max(1, min(page, pages))
    here = matches[(page - 1) * MOST_GUESTS : page * MOST_GUESTS]
    guests = [_guest(guest, lines, hour, marks) for guest, lines in here]
    return Layout(_part(host, hour, marks) if host else None, guests, len(matches), page, pages)


def _grouped(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line.kind != "host":
            guest = line.id if line.kind == "guest" else line.guest or line.id
            groups.setdefault(guest, []).append(line)
    return groups


def _matches(guest: str, lines: Sequence[Line], text: str) -> bool:
    names = [name for line in lines for name in (line.name, line.project, line.project_name)]
    return not text or any(text.lower() in name.lower() for name in (guest, *names))


def _has_alarms(lines: Sequence[Line], marks: Marks) -> bool:
    return any(marks_of(marks, line.kind, line.id) for line in lines)


def _name(lines: Sequence[Line]) -> str:
    return lines[0].name or lines[0].id


def _guest(guest_id: str, lines: Sequence[Line], hour: Hour, marks: Marks) -> Guest:
    first = lines[0]
    name = first.name if first.kind == "guest" and first.name else guest_id
    parts = [_part(line, hour, marks, name) for line in lines]
    return Guest(guest_id, name, first.project_name or first.project, first.flavor, parts)


def _part(line: Line, hour: Hour, marks: Marks, guest: str = "") -> Part:
    placed = marks_of(marks, line.kind, line.id)
    sparks = [
        draw_spark(
            anchor(line.kind, line.id, name),
            name,
            line.values[name],
            hour,
            [alarm.mark for alarm in placed if alarm.is_on(name)],
        )
        for name in FIELDS[line.kind]
        if name in line.values
    ]
    name = line.name.removeprefix(f"{guest}/") if guest else line.name
    kind = _KINDS.get(line.kind, line.kind)
    return Part(kind, name or line.id, sparks, [alarm.mark for alarm in placed])


SAMPLES = "holdfast:host:samples"
#: The number of hosts shown; the search finds the others by name.
MOST_ROWS = 100
MOST_ALARMS = 500
_MOST_PAGES = 1_000
#: Cache entries for hosts and for merged rules: an hour of a full host takes some megabytes.
REMEMBERED = 16


def show(request: Request) -> Response:
    """Render the list of hosts; without permission for samples the caller's alarms."""
    if not request.allowed(SAMPLES):
        return alarm_pages.show(request)
    return page(request, "metrics.html", title="Metrics", **_hosts(request))


def rows(request: Request) -> Response:
    return part(request, "metrics_rows.html", **_hosts(request))


def host(request: Request) -> Response:
    name = _host_name(request)
    shown = {**_charts(request, name), "agent": agent(request, name)}
    return page(request, "metrics_host.html", title=f"Metrics of {name}", **shown)


def figures(request: Request) -> Response:
    name = normalise(request.path["host"])
    return part(request, "metrics_figures.html", **_charts(request, name))


def watch_host(request: Request) -> Response:
    """Ask the host's agent to send live metrics."""
    name = _host_name(request)
    api_calls.call(request, agents.want_samples, path={"host": name})
    return away(f"{PREFIX}/metrics/{quote(name, safe='')}")


def _host_name(request: Request) -> str:
    name = normalise(request.path["host"])
    if not is_known(request, name):
        raise NotFound(f"there is no host {name[:80]}")
    return name


def is_known(request: Request, name: str) -> bool:
    """Return whether the host is known; pages ask only known hosts for metrics."""
    store = request.services.store
    row = store.host_status.of(name) or store.wall.agent(name)
    return row is not None or store.samples.samples_of(name).at is not None


# The list of hosts


def _hosts(request: Request) -> dict[str, Any]:
    text = str(request.query.get("q", "")).strip()
    enrolled = {normalise(host["name"]) for host in api_calls.call(request, hosts.index)["hosts"]}
    with_agent = {row["host"]: row for row in api_calls.call(request, agents.index)["agents"]}
    counts = Counter(request.services.store.alarms.counts(project_scope(request)))
    store = request.services.store.samples
    measured, requested = set(store.there(MOST_HOSTS)), store.wanted()
    names = [name for name in {*enrolled, *with_agent, *counts, *measured} if text.lower() in name]
    names.sort(key=lambda name: (-counts[name], name not in with_agent, name not in measured, name))
    rows = [
        {
            "name": name,
            "agent": with_agent.get(name),
            "alarms": counts[name],
            "metrics": "" if name not in measured else "live" if name in requested else "kept",
        }
        for name in names[:MOST_ROWS]
    ]
    return {"hosts": rows, "count": len(names), "q": text}


# The page of a host


def _charts(request: Request, name: str) -> dict[str, Any]:
    samples = request.services.store.samples.samples_of(name)
    marks, from_rules = _marks(request, samples)
    text = str(request.query.get("q", "")).strip()
    return {
        "host": name,
        "samples": samples,
        "layout": lay_out(samples.hour, marks, text, _page(request)),
        "q": text,
        "from_rules": from_rules,
        "begin": _at(samples.hour.begin),
        "end": _at(samples.hour.end - 1),
    }


def _page(request: Request) -> int:
    number = whole_number(str(request.query.get("page", "")), 8)
    return 1 if number is None else min(number, _MOST_PAGES)


def _at(slot: int) -> datetime:
    return datetime.fromtimestamp(max(0, slot) * EVERY_S, UTC)


def _marks(request: Request, samples: WatchedHost) -> tuple[Marks, bool]:
    """Return the alarms of a host, and whether the page computed some from the rules.

    A simulated host has no agent to raise alarms, so the page evaluates the rules itself.
    """
    store = request.services.store
    host, hour = samples.host, samples.hour
    groups = tuple(agents.groups_of(request, host))
    text, rules = _rules(tuple(store.alarm_rules.documents()), host, groups)
    alarms = store.alarms.list_all(Wanted(host=host, active=False, limit=MOST_ALARMS))
    marks = marks_of_alarms(alarms, rules, _at(hour.begin))
    if not hour.simulated or not rules:
        return marks, False
    stories = _stories(_PreviewKey(host, text, samples.at, hour.end, hour))
    return {**marks_of_stories(stories, rules), **marks}, True


# Caches: all viewers of a host, and all refreshes until new metrics arrive, share the result.


@dataclass(frozen=True)
class _PreviewKey:
    """The cache key of a rule preview."""

    host: str
    rules: str
    at: datetime | None
    end: int
    hour: Hour = field(compare=False)  # the same arrival time and end imply the same hour


@lru_cache(maxsize=REMEMBERED)
def _stories(key: _PreviewKey) -> Sequence[Story]:
    return preview(key.rules, {key.host: key.hour}).stories


@lru_cache(maxsize=REMEMBERED)
def _rules(
    documents: tuple[Document, ...], host: str, groups: tuple[str, ...]
) -> tuple[str, Mapping[str, Rule]]:
    """Return the rules for a host, as a single text and by id."""
    text = scopes.merged(documents, host, groups).text
    return text, rules_file.parse(text, "rules").by_id
