# SPDX-License-Identifier: Apache-2.0
"""Alarm preview: evaluates rules on the last hour of hosts or on recorded snapshots.

The preview runs the same engine on the coarse history (metrics/history). It sends no
notifications and keeps no state.

    seen = preview(text, {"cmp-7": hour})      # BadRules lists every error with its line
    seen.stories[0].rule, seen.stories[0].name, seen.stories[0].changes
    seen.silent["busy-disk"]                   # ("rd_bytes",): field not recorded, no result

A point of the history is a pass, so the preview misses conditions shorter than 10 seconds.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from math import isnan
from typing import Any, Final

from holdfast.alarms import rules_file
from holdfast.alarms.engine import Engine
from holdfast.alarms.rules import Rule, RuleSet
from holdfast.alarms.tracks import FIRING, Change, Group
from holdfast.metrics.history import EVERY_S, FIELDS, Hour, Line
from holdfast.model.errors import InvalidInput
from holdfast.ports.metrics import Entity, Reading, Snapshot, Table

# Recordings: a JSON line per pass.
#
#     {"host": "cmp-7", "pass_id": 1, "at": "2026-11-16T12:00:00+00:00", "entities": [
#       {"kind": "guest", "id": "4f…", "name": "web-1", "project": "p",
#        "values": {"util_ratio": 1}}]}
#
# Optional: `monotonic` and `elapsed_s` (default: derived from `at`), `gone`, `fresh` (by kind),
# `kinds` (kinds that were read; default: all kinds seen before), and all attributes of an
# entity except kind and id.


_ENTITY = tuple(column.name for column in fields(Entity))


@dataclass(frozen=True, slots=True)
class Replayed:
    """Changes and notification groups of a pass."""

    at: datetime
    changes: tuple[Change, ...]
    groups: tuple[Group, ...]


def replay(
    samples: Iterable[Snapshot], rules: RuleSet, groups: Iterable[str] = ()
) -> Iterator[Replayed]:
    """Evaluate rules on snapshots; yield the passes with changes or notifications."""
    engine = Engine(rules, groups)
    for snapshot in samples:
        outcome = engine.evaluate(snapshot)
        if outcome.changes or outcome.groups:
            yield Replayed(snapshot.at, outcome.changes, outcome.groups)


def line(snapshot: Snapshot) -> str:
    """Return a snapshot as a line of a recording."""
    entities = [
        {
            **{name: value for name in _ENTITY if (value := getattr(reading.entity, name))},
            "values": dict(reading.values),
            **({"missing": sorted(reading.missing)} if reading.missing else {}),
            **({"stale": reading.stale} if reading.stale else {}),
        }
        for table in snapshot.tables.values()
        for reading in table.readings
    ]
    recorded: dict[str, Any] = {
        "host": snapshot.host,
        "pass_id": snapshot.pass_id,
        "at": snapshot.at.isoformat(),
        "monotonic": snapshot.monotonic,
        "elapsed_s": snapshot.elapsed_s,
        "kinds": sorted(snapshot.tables),
        "entities": entities,
    }
    fresh = {
        kind: sorted(table.fresh)
        for kind, table in snapshot.tables.items()
        if table.fresh is not None
    }
    return json.dumps(
        {**recorded, **({"fresh": fresh} if fresh else {}), "gone": dict(snapshot.gone)}
    )


def read(lines: Iterable[str], source: str) -> Iterator[Snapshot]:
    """Read a recording. InvalidInput names the line that cannot be parsed."""
    last: Snapshot | None = None
    entities: dict[tuple[str, str], Entity] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            last = _snapshot(json.loads(text), last, entities)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            why = f"this is no recorded pass: {type(error).__name__} {error}"
            raise InvalidInput(
                f"{source}:{number}: {why}; docs/concepts/alarms.md shows one"
            ) from error
        yield last


def _snapshot(
    plain: Mapping[str, Any], last: Snapshot | None, entities: dict[tuple[str, str], Entity]
) -> Snapshot:
    at = datetime.fromisoformat(plain["at"])
    if at.tzinfo is None:
        raise ValueError("`at` has no time zone")
    monotonic = float(plain.get("monotonic", at.timestamp()))
    step_s = monotonic - last.monotonic if last else 0.0
    kinds = plain.get("kinds", {kind for kind, _ in entities})
    readings: dict[str, list[Reading]] = {kind: [] for kind in kinds}
    for row in plain["entities"]:
        entity = _entity(row, entities)
        values = {str(name): float(value) for name, value in row.get("values", {}).items()}
        reading = Reading(entity, values, frozenset(row.get("missing", ())), row.get("stale", ""))
        readings.setdefault(entity.kind, []).append(reading)
    fresh = plain.get("fresh", {})
    tables = {
        kind: Table(kind, rows, frozenset(fresh[kind]) if kind in fresh else None)
        for kind, rows in readings.items()
    }
    elapsed_s = float(plain.get("elapsed_s", step_s))
    return Snapshot(
        plain["host"], plain["pass_id"], at, monotonic, elapsed_s, tables, plain.get("gone", {})
    )


def _entity(plain: Mapping[str, Any], entities: dict[tuple[str, str], Entity]) -> Entity:
    """Build an entity; return the same object until something changes."""
    entity = Entity(**{name: plain[name] for name in _ENTITY if name in plain})
    before = entities.get((entity.kind, entity.id))
    if before != entity:
        entities[entity.kind, entity.id] = before = entity
    return before


NOT_KNOWN: Final = "not known"


@dataclass(frozen=True)
class Story:
    """All changes of a rule on an entity, the oldest first; at least one change."""

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
        """State at the end of the hour."""
        return self.changes[-1].state

    @property
    def raised(self) -> int:
        """Number of times the alarm fired."""
        return sum(change.state == FIRING for change in self.changes)


@dataclass(frozen=True)
class Preview:
    """Result of a preview."""

    rules: RuleSet
    stories: tuple[Story, ...]  # in the order of the rules, then by host and name
    #: Rules without a result, and the fields that the history does not record.
    silent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def preview(
    text: str | bytes,
    hours: Mapping[str, Hour],
    groups: Mapping[str, Iterable[str]] | None = None,
    source: str = "rules",
) -> Preview:
    """Parse rules and evaluate them on the history of hosts; `hours` and `groups` are by host."""
    rules = rules_file.parse(text, source)
    silent = {rule.id: lacks for rule in rules.rules if (lacks := _unrecorded(rule))}
    rule_set = replace(rules, rules=tuple(rule for rule in rules.rules if rule.id not in silent))
    stories: list[Story] = []
    for host, hour in hours.items():
        mine = (groups or {}).get(host, ())
        by_alarm: dict[tuple[str, str], list[Change]] = {}
        for each in replay(snapshots(host, hour), rule_set, mine):
            for change in each.changes:
                by_alarm.setdefault((change.rule, change.entity), []).append(change)
        stories += [_story(host, tuple(changes)) for changes in by_alarm.values()]
    order = {rule.id: place for place, rule in enumerate(rules.rules)}
    stories.sort(key=lambda story: (order[story.rule], story.host, story.name, story.entity))
    return Preview(rules, tuple(stories), silent)


def _unrecorded(rule: Rule) -> tuple[str, ...]:
    """Return the fields of a rule that the history does not record."""
    wanted = {condition.field for condition in rule.conditions}
    wanted |= {
        condition.full
        for condition in rule.conditions
        if isinstance(condition.full, str) and condition.full
    }
    return tuple(sorted(wanted - set(FIELDS[rule.kind])))


def _story(host: str, changes: tuple[Change, ...]) -> Story:
    change = changes[-1]
    attributes = (
        change.rule,
        change.kind,
        change.entity,
        change.name or change.entity,
        change.project,
        change.severity,
    )
    return Story(host, *attributes, changes)


def snapshots(host: str, hour: Hour) -> Iterator[Snapshot]:
    """Yield a snapshot per point of the history.

    An entity with a gap is present with unknown values; before its first and after its last
    known point the entity is absent.
    """
    there = [(_preview_entity(line), line, *_span(line)) for line in hour.lines]
    for place in range(hour.points):
        readings: dict[str, list[Reading]] = {kind: [] for kind in FIELDS}
        for entity, line, first, last in there:
            if first <= place <= last:
                readings[line.kind].append(_reading(entity, line, place))
        at_s = float((hour.begin + place) * EVERY_S)
        tables = {kind: Table(kind, rows) for kind, rows in readings.items()}
        at = datetime.fromtimestamp(at_s, UTC)
        yield Snapshot(host, hour.begin + place, at, at_s, EVERY_S if place else 0, tables)


def _preview_entity(line: Line) -> Entity:
    return Entity(
        *(line.kind, line.id, line.name, line.project, line.project_name, line.flavor, line.guest),
        contracts=dict(line.contracts),
    )


def _span(line: Line) -> tuple[int, int]:
    """Return the first and last point at which any field is known."""
    ends = [
        place
        for points in line.values.values()
        for place in (_first(points), len(points) - 1 - _first(points[::-1]))
        if 0 <= place < len(points)
    ]
    return (min(ends), max(ends)) if ends else (1, 0)


def _first(points: Iterable[float]) -> int:
    """Return the index of the first known point, or the length if none is known."""
    place = -1
    for place, value in enumerate(points):
        if not isnan(value):
            return place
    return place + 1


def _reading(entity: Entity, line: Line, place: int) -> Reading:
    point = {name: points[place] for name, points in line.values.items()}
    values = {name: value for name, value in point.items() if not isnan(value)}
    missing = frozenset(point.keys() - values.keys())
    return Reading(entity, values, missing, "" if values else NOT_KNOWN)
