# SPDX-License-Identifier: Apache-2.0
"""Hosts with their agents and numbers, and the last hour of one of them. Its agent sends that only
while somebody looks, which the page says by a form: to look at a page changes nothing."""

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

# The last hour of a number as a small picture: a line, where alarms stood, and the same in words.
#
#     spark = drawn("s-1", "util_ratio", line.values["util_ratio"], hour, marks)
#     spark.line, spark.last, spark.words
#
# A picture is WIDE by HIGH. There are more points than anybody sees: of each bin the one is drawn
# that differs most from the mean, so that peaks and dips stay. Values in, values out.


WIDE: Final = 360
HIGH: Final = 60
BINS: Final = 120
_ROOM: Final = 4  # above the highest point


@dataclass(frozen=True)
class Mark:
    """An alarm while it stood; `until` None: it still does."""

    rule: str
    severity: str
    state: str
    since: datetime
    until: datetime | None = None
    threshold: float | None = None
    href: str = ""


@dataclass(frozen=True)
class Band:
    """A mark in the picture."""

    x: float
    width: float
    mark: Mark
    begins: bool  # within the hour

    @property
    def told(self) -> str:
        return spark_text(self.mark)


@dataclass(frozen=True)
class Spark:
    id: str
    field: str
    line: str  # of an SVG path
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
        """What the picture shows, for who does not see it."""
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
    """A line for each run of what is known, and the ground below it."""
    mean = sum(known) / len(known) if known else 0.0
    lines, areas, run = [], [], []
    for x, value in [*_binned(values, mean), (0.0, math.nan)]:
        if math.isfinite(value):
            run.append(f"{x:.3g} {_y(value, top):.3g}")
        elif run:
            # a point alone is a line as well
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
    """Those that are within the hour, cut to it."""
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
    """An id for a page, whatever somebody called it."""
    return f"{parts[0]}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:12]}"


# Which alarms are drawn on which numbers: of alarms that were told, and of those that rules would
# have made of the last hour. Values in, values out.


HOST = "host"
Rules = Mapping[str, Rule]


@dataclass(frozen=True)
class Placed:
    """A mark, and the fields that it is about; none: nobody knows which."""

    mark: Mark
    fields: frozenset[str] = frozenset()

    def is_on(self, field: str) -> bool:
        return not self.fields or field in self.fields


#: By kind and entity; a host has one line, however it is called there.
Marks = Mapping[tuple[str, str], Sequence[Placed]]


def of_alarms(rows: Iterable[Mapping[str, Any]], rules: Rules, since: datetime) -> Marks:
    """Rows of the store, those that stood after `since`."""
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
    """Of what would have been; only what would have fired."""
    found: dict[tuple[str, str], list[Placed]] = {}
    for story in stories:
        rule = rules.get(story.rule)
        mine = [
            Placed(one, fields_of(rule)) for one in mark_text(story, rule) if one.state == FIRING
        ]
        found.setdefault(_key(story.kind, story.entity), []).extend(mine)
    return found


def mark_text(story: Story, rule: Rule | None) -> list[Mark]:
    """Each time in which it was something else than well, the oldest first."""
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
    """Whether its level is one of the number itself, which can be drawn beside it."""
    (one, *more) = rule.conditions
    return not more and one.measure == VALUE and not one.contract


def _key(kind: str, entity: str) -> tuple[str, str]:
    return kind, "" if kind == HOST else entity


# The last hour of a host laid out as people look at it: the host, then each guest with its disks
# and interfaces, every number with its picture. Values in, values out.


#: Guests on one page: each has about ten pictures.
MOST_GUESTS: Final = 12
_KINDS: Final = {"guest": "guest", "disk": "disk", "nic": "interface"}


@dataclass(frozen=True)
class Part:
    """A guest itself, a disk or an interface of it."""

    kind: str
    name: str
    sparks: Sequence[Spark]
    marks: Sequence[Mark] = ()


@dataclass
class Guest:
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
    host: Part | None
    guests: Sequence[Guest]
    found: int  # guests in all that were asked for
    page: int
    pages: int


def lay_out(hour: Hour, marks: Marks, wanted: str = "", page: int = 1) -> Laid:
    """`wanted`: what is in a guest's name, id or project. Those with alarms come first."""
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
#: Of more hosts these are shown; the rest is found by name.
MOST_ROWS = 100
MOST_ALARMS = 500
_MOST_PAGES = 1_000
#: Hosts, and ways in which rules are put together: an hour of a full host takes some megabytes.
REMEMBERED = 16


def show(request: Request) -> Response:
    """For who may not look at hosts, what they may: their alarms."""
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
    """Somebody looks: the host's agent is asked for numbers."""
    name = _known(request)
    api_calls.call(request, agents.want_samples, path={"host": name})
    return away(f"{PREFIX}/metrics/{quote(name, safe='')}")


def _known(request: Request) -> str:
    name = normalise(request.path["host"])
    if not is_known(request, name):
        raise NotFound(f"no host {name[:80]} is known")
    return name


def is_known(request: Request, name: str) -> bool:
    """Whether anybody knows of it; of others no numbers are asked for."""
    store = request.services.store
    seen = store.standings.of(name) or store.wall.agent(name)
    return seen is not None or store.samples.samples_of(name).at is not None


# all hosts


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


# one host


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
    """Where alarms stood. A simulated host has no agent that could have raised one: what its rules
    would have said is worked out."""
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


# everybody who looks at a host, and every refresh until numbers come, would work out the same


@dataclass(frozen=True)
class _Worked:
    host: str
    rules: str
    at: datetime | None
    end: int
    hour: Hour = field(compare=False)  # what came then and ends there is the same


@lru_cache(maxsize=REMEMBERED)
def _stories(of: _Worked) -> Sequence[Story]:
    return preview(of.rules, {of.host: of.hour}).stories


@lru_cache(maxsize=REMEMBERED)
def _rules(
    documents: tuple[Document, ...], host: str, groups: tuple[str, ...]
) -> tuple[str, Mapping[str, Rule]]:
    """Those that hold there, as one text and by id."""
    text = scopes.merged(documents, host, groups).text
    return text, rules_file.parse(text, "rules").by_id
