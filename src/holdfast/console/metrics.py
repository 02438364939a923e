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
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.db.agents import MOST_HOSTS, WatchedHost
from holdfast.db.alarms import Wanted
from holdfast.metrics.history import EVERY_S, FIELDS, Hour, Line
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise

# Charts of the last hour of a metric: a line, alarms as bands, and a text alternative. Pure.
#
#     spark = draw_spark("s-1", "util_ratio", line.values["util_ratio"], hour, marks)
#     spark.line, spark.last, spark.words
#
# A chart is WIDE by HIGH. There are more points than anybody can see, so each bin draws the
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
    def told(self) -> str:
        return spark_text(self.mark)


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
        return format.name(self.field)

    @property
    def words(self) -> str:
        """Return the text alternative of the chart, for screen readers."""
        range_ = f"least {self.lowest}, most {self.highest}, last {self.last}"
        return "; ".join([range_, *(spark_text(band.mark) for band in self.bands)])


def spark_text(mark: Mark) -> str:
    stood = f"alarm {mark.rule} ({mark.severity}) stood from {mark.since:%Y-%m-%d %H:%M:%S}"
    if mark.until is None:
        return f"{stood} UTC, and still does"
    return f"{stood} to {mark.until:%Y-%m-%d %H:%M:%S} UTC"


def draw_spark(
    id: str, field: str, values: Sequence[float], hour: Hour, marks: Sequence[Mark] = ()
) -> Spark:
    """Draw the chart of a metric with its alarms."""
    known = [value for value in values if math.isfinite(value)]
    bands = tuple(_bands(hour, marks))
    thresholds = sorted({m.threshold for b in bands if (m := b.mark).threshold is not None})
    top = max([*known, format.most(field)], default=0.0) or 1.0
    path, area = _paths(values, known, top)
    return Spark(
        *(id, field, path, area, bands),
        tuple(_y(one, top) for one in thresholds if 0 <= one <= top),
        format.said(field, min(known, default=None)),
        format.said(field, max(known, default=None)),
        format.said(field, values[-1] if values else None),
    )


def _paths(values: Sequence[float], known: Sequence[float], top: float) -> tuple[str, str]:
    """Return SVG paths of the line and of the area below, interrupted where values are missing."""
    mean = sum(known) / len(known) if known else 0.0
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
        some = [
            (place, values[place])
            for place in range(begin, min(begin + step, count))
            if math.isfinite(values[place])
        ]
        place, value = max(some, key=lambda one: abs(one[1] - mean), default=(begin, math.nan))
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


def of_alarms(rows: Iterable[Mapping[str, Any]], rules: Rules, since: datetime) -> Marks:
    """Return the alarms, from database rows, that lasted past `since`."""
    found: dict[tuple[str, str], list[Placed]] = {}
    for row in rows:
        over = row["resolved_at"]
        if over is not None and over < since:
            continue
        details = row["details"] or {}
        rule = rules.get(row["rule"])
        level = details.get("threshold") if rule is not None and is_plain(rule) else None
        mark = Mark(
            *(row["rule"], row["severity"], row["state"], row["fired_at"], over),
            float(level) if isinstance(level, int | float) else None,
            f"/console/alarms/{row['id']}",
        )
        key = _key(str(details.get("kind", "")), str(details.get("entity", "")))
        found.setdefault(key, []).append(Placed(mark, fields_of(rule)))
    return found


def of_stories(stories: Iterable[Story], rules: Rules) -> Marks:
    """Return the alarms that would have fired, from a preview of rules."""
    found: dict[tuple[str, str], list[Placed]] = {}
    for story in stories:
        rule = rules.get(story.rule)
        mine = [
            Placed(one, fields_of(rule)) for one in mark_text(story, rule) if one.state == FIRING
        ]
        found.setdefault(_key(story.kind, story.entity), []).extend(mine)
    return found


def mark_text(story: Story, rule: Rule | None) -> list[Mark]:
    """Return the time spans in which the state was not OK, oldest first."""
    ends: list[Change | None] = [*story.changes[1:], None]
    return [
        Mark(
            *(story.rule, one.severity, one.state, one.at, end.at if end else None),
            one.threshold if rule is not None and is_plain(rule) else None,
        )
        for one, end in zip(story.changes, ends, strict=True)
        if one.state != OK
    ]


def of(marks: Marks, kind: str, entity: str) -> Sequence[Placed]:
    return marks.get(_key(kind, entity), ())


def fields_of(rule: Rule | None) -> frozenset[str]:
    return frozenset() if rule is None else frozenset(one.field for one in rule.conditions)


def is_plain(rule: Rule) -> bool:
    """Return whether the rule's threshold is a value of the metric, and so fits into the chart."""
    (one, *more) = rule.conditions
    return not more and one.measure == VALUE and not one.contract


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


@dataclass
class Guest:
    """A guest with its disks and interfaces."""

    id: str
    name: str = ""
    project: str = ""
    flavor: str = ""
    parts: list[Part] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return anchor("guest", self.id)

    @property
    def marks(self) -> Sequence[Mark]:
        return [mark for part in self.parts for mark in part.marks]


@dataclass(frozen=True)
class Laid:
    """The laid-out page: the host and a page of guests."""

    host: Part | None
    guests: Sequence[Guest]
    found: int  # the number of guests that match the search
    page: int
    pages: int


def lay_out(hour: Hour, marks: Marks, wanted: str = "", page: int = 1) -> Laid:
    """Lay out a host's page. Guests with alarms come first.

    `wanted` is a substring of a guest's name, id or project.
    """
    host = next((one for one in hour.lines if one.kind == "host"), None)
    groups = _grouped(hour.lines)
    chosen = [(whose, lines) for whose, lines in groups.items() if _is_wanted(whose, lines, wanted)]
    chosen.sort(key=lambda one: (not _alarms(one[1], marks), _name(one[1]).lower(), one[0]))
    pages = max(1, -(-len(chosen) // MOST_GUESTS))
    page = max(1, min(page, pages))
    here = chosen[(page - 1) * MOST_GUESTS : page * MOST_GUESTS]
    guests = [_guest(whose, lines, hour, marks) for whose, lines in here]
    return Laid(_part(host, hour, marks) if host else None, guests, len(chosen), page, pages)


def _grouped(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for one in lines:
        if one.kind != "host":
            whose = one.id if one.kind == "guest" else one.guest or one.id
            groups.setdefault(whose, []).append(one)
    return groups


def _is_wanted(whose: str, lines: Sequence[Line], wanted: str) -> bool:
    words = [whose, *(word for one in lines for word in (one.name, one.project, one.project_name))]
    return not wanted or any(wanted.lower() in word.lower() for word in words)


def _alarms(lines: Sequence[Line], marks: Marks) -> bool:
    return any(of(marks, one.kind, one.id) for one in lines)


def _name(lines: Sequence[Line]) -> str:
    return lines[0].name or lines[0].id


def _guest(whose: str, lines: Sequence[Line], hour: Hour, marks: Marks) -> Guest:
    first = lines[0]
    name = first.name if first.kind == "guest" and first.name else whose
    made = Guest(whose, name, first.project_name or first.project, first.flavor)
    for one in lines:
        made.parts.append(_part(one, hour, marks, name))
    return made


def _part(line: Line, hour: Hour, marks: Marks, guest: str = "") -> Part:
    placed = of(marks, line.kind, line.id)
    drawn = [
        draw_spark(
            anchor(line.kind, line.id, name),
            name,
            line.values[name],
            hour,
            [one.mark for one in placed if one.is_on(name)],
        )
        for name in FIELDS[line.kind]
        if name in line.values
    ]
    called = line.name.removeprefix(f"{guest}/") if guest else line.name
    kind = _KINDS.get(line.kind, line.kind)
    return Part(kind, called or line.id, drawn, [one.mark for one in placed])


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
    name = _known(request)
    shown = {**_numbers(request, name), "agent": agent(request, name)}
    return page(request, "metrics_host.html", title=f"Numbers of {name}", **shown)


def figures(request: Request) -> Response:
    return part(
        request, "metrics_figures.html", **_numbers(request, normalise(request.path["host"]))
    )


def watch_host(request: Request) -> Response:
    """Ask the host's agent to send live metrics."""
    name = _known(request)
    api_calls.call(request, agents.want_samples, path={"host": name})
    return away(f"{PREFIX}/metrics/{quote(name, safe='')}")


def _known(request: Request) -> str:
    name = normalise(request.path["host"])
    if not is_known(request, name):
        raise NotFound(f"no host {name[:80]} is known")
    return name


def is_known(request: Request, name: str) -> bool:
    """Return whether the host is known; pages ask only known hosts for metrics."""
    store = request.services.store
    seen = store.standings.of(name) or store.wall.agent(name)
    return seen is not None or store.samples.samples_of(name).at is not None


# The list of hosts


def _hosts(request: Request) -> dict[str, Any]:
    wanted = str(request.query.get("q", "")).strip()
    known = {normalise(one["name"]) for one in api_calls.call(request, hosts.index)["hosts"]}
    lives = {one["host"]: one for one in api_calls.call(request, agents.index)["agents"]}
    own = None if request.caller.is_admin else request.caller.project_id
    counts = Counter(request.services.store.alarms.counts(own))
    store = request.services.store.samples
    there, asked = set(store.there(MOST_HOSTS)), store.wanted()
    names = [one for one in {*known, *lives, *counts, *there} if wanted.lower() in one]
    names.sort(key=lambda one: (-counts[one], one not in lives, one not in there, one))
    found = [
        {
            "name": one,
            "agent": lives.get(one),
            "alarms": counts[one],
            "numbers": "live" if one in there and one in asked else "kept" if one in there else "",
        }
        for one in names[:MOST_ROWS]
    ]
    return {"hosts": found, "count": len(names), "q": wanted}


# The page of a host


def _numbers(request: Request, name: str) -> dict[str, Any]:
    looked = request.services.store.samples.samples_of(name)
    found, worked_out = _marks(request, looked)
    wanted = str(request.query.get("q", "")).strip()
    laid = lay_out(looked.hour, found, wanted, _page(request))
    return {
        "host": name,
        "looked": looked,
        "laid": laid,
        "q": wanted,
        "worked_out": worked_out,
        "begin": _at(looked.hour.begin),
        "end": _at(looked.hour.end - 1),
    }


def _page(request: Request) -> int:
    said = str(request.query.get("page", "1"))
    return min(int(said), _MOST_PAGES) if said.isdecimal() and len(said) < 9 else 1


def _at(slot: int) -> datetime:
    return datetime.fromtimestamp(max(0, slot) * EVERY_S, UTC)


def _marks(request: Request, looked: WatchedHost) -> tuple[Marks, bool]:
    """Return the alarms of a host, and whether the page computed some from the rules.

    A simulated host has no agent to raise alarms, so the page evaluates the rules itself.
    """
    store = request.services.store
    groups = tuple(agents.groups_of(request, looked.host))
    text, rules = _rules(tuple(store.alarm_rules.documents()), looked.host, groups)
    wanted = Wanted(host=looked.host, standing=False, limit=MOST_ALARMS)
    told = store.alarms.list_all(wanted)
    found = of_alarms(told, rules, _at(looked.hour.begin))
    if not looked.hour.simulated or not rules:
        return found, False
    stories = _stories(_Worked(looked.host, text, looked.at, looked.hour.end, looked.hour))
    return {**of_stories(stories, rules), **found}, True


# Caches: all viewers of a host, and all refreshes until new metrics arrive, share the result.


@dataclass(frozen=True)
class _Worked:
    """The cache key of a rule preview."""

    host: str
    rules: str
    at: datetime | None
    end: int
    hour: Hour = field(compare=False)  # the same arrival time and end imply the same hour


@lru_cache(maxsize=REMEMBERED)
def _stories(of: _Worked) -> Sequence[Story]:
    return preview(of.rules, {of.host: of.hour}).stories


@lru_cache(maxsize=REMEMBERED)
def _rules(
    documents: tuple[Document, ...], host: str, groups: tuple[str, ...]
) -> tuple[str, Mapping[str, Rule]]:
    """Return the rules for a host, as a single text and by id."""
    text = scopes.merged(documents, host, groups).text
    return text, rules_file.parse(text, "rules").by_id
