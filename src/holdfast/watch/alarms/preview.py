# SPDX-License-Identifier: Apache-2.0
"""What alarm rules would have made of the last hour of some hosts: the same engine, over what is
kept of them (model/samples). Nothing is told and nothing remembered.

    seen = preview(text, {"cmp-7": hour})      # BadRules says what is wrong, by line
    seen.stories[0].rule, seen.stories[0].name, seen.stories[0].changes
    seen.silent["too-full"]                    # ("allocation_bytes",): not kept, so nothing is said

A point is a pass, so that what lasts shorter than ten seconds is not seen by it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isnan
from typing import Final

from holdfast.model import alarm_rules_file
from holdfast.model.alarm_rules import Rule, RuleSet
from holdfast.model.samples import EVERY_S, FIELDS, Hour, Line
from holdfast.ports.metrics import Entity, Reading, Snapshot, Table
from holdfast.watch.alarms import record
from holdfast.watch.alarms.change import FIRING, Change

NOT_KNOWN: Final = "not known"


@dataclass(frozen=True)
class Story:
    """What became of one rule about one entity, the oldest first; never without a change."""

    host: str
    rule: str
    kind: str
    entity: str
    name: str
    project: str
    severity: str
    changes: tuple[Change, ...]

    @property
    def state(self) -> str:
        """In the end."""
        return self.changes[-1].state

    @property
    def raised(self) -> int:
        """How many times it fired."""
        return sum(one.state == FIRING for one in self.changes)


@dataclass(frozen=True)
class Preview:
    rules: RuleSet
    stories: tuple[Story, ...]  # in the order of the rules, then by host and name
    #: Rules of which nothing can be said, and the fields for which that is so.
    silent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def preview(
    text: str | bytes,
    hours: Mapping[str, Hour],
    groups: Mapping[str, Iterable[str]] | None = None,
    source: str = "rules",
) -> Preview:
    """`hours` and `groups` by host."""
    rules = alarm_rules_file.parse(text, source)
    silent = {rule.id: lacks for rule in rules.rules if (lacks := _not_kept(rule))}
    asked = replace(rules, rules=tuple(one for one in rules.rules if one.id not in silent))
    stories: list[Story] = []
    for host, hour in hours.items():
        mine = (groups or {}).get(host, ())
        found: dict[tuple[str, str], list[Change]] = {}
        for each in record.replay(snapshots(host, hour), asked, mine):
            for one in each.changes:
                found.setdefault((one.rule, one.entity), []).append(one)
        stories += [_story(host, tuple(changes)) for changes in found.values()]
    order = {rule.id: place for place, rule in enumerate(rules.rules)}
    stories.sort(key=lambda one: (order[one.rule], one.host, one.name, one.entity))
    return Preview(rules, tuple(stories), silent)


def _not_kept(rule: Rule) -> tuple[str, ...]:
    asked = {one.field for one in rule.conditions}
    asked |= {one.full for one in rule.conditions if isinstance(one.full, str) and one.full}
    return tuple(sorted(asked - set(FIELDS[rule.kind])))


def _story(host: str, changes: tuple[Change, ...]) -> Story:
    one = changes[-1]
    who = (one.rule, one.kind, one.entity, one.name or one.entity, one.project, one.severity)
    return Story(host, *who, changes)


def snapshots(host: str, hour: Hour) -> Iterator[Snapshot]:
    """Each point as a pass. Who is not known in between is there and not known; who is not known
    yet, or not any more, is not there."""
    there = [(_entity(one), one, *_span(one)) for one in hour.lines]
    for place in range(hour.points):
        readings: dict[str, list[Reading]] = {kind: [] for kind in FIELDS}
        for entity, line, first, last in there:
            if first <= place <= last:
                readings[line.kind].append(_reading(entity, line, place))
        at_s = float((hour.begin + place) * EVERY_S)
        tables = {kind: Table(kind, found) for kind, found in readings.items()}
        at = datetime.fromtimestamp(at_s, UTC)
        yield Snapshot(host, hour.begin + place, at, at_s, EVERY_S if place else 0, tables)


def _entity(line: Line) -> Entity:
    return Entity(
        *(line.kind, line.id, line.name, line.project, line.project_name, line.flavor, line.guest),
        contracts=dict(line.contracts),
    )


def _span(line: Line) -> tuple[int, int]:
    """The first and the last point at which something is known of it."""
    known = [
        place
        for points in line.values.values()
        for place in (_first(points), len(points) - 1 - _first(points[::-1]))
        if 0 <= place < len(points)
    ]
    return (min(known), max(known)) if known else (1, 0)


def _first(points: Iterable[float]) -> int:
    place = -1
    for place, value in enumerate(points):
        if not isnan(value):
            return place
    return place + 1


def _reading(entity: Entity, line: Line, place: int) -> Reading:
    found = {name: points[place] for name, points in line.values.items()}
    values = {name: value for name, value in found.items() if not isnan(value)}
    missing = frozenset(found.keys() - values.keys())
    return Reading(entity, values, missing, "" if values else NOT_KNOWN)
