# SPDX-License-Identifier: Apache-2.0
"""Recorded samples, one pass to a line of JSON, and what rules would have made of them.

    {"host": "cmp-7", "pass_id": 1, "at": "2026-11-16T12:00:00+00:00", "entities": [
      {"kind": "guest", "id": "4f…", "name": "web-1", "project": "p", "values": {"util_ratio": 1}}]}

What may be left out: `monotonic` and `elapsed_s` (then they go by `at`), `gone`, `fresh` (by kind),
`kinds` (those that were read: all that were there before), and of an entity all but kind and id.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from holdfast.model.alarm_rules import RuleSet
from holdfast.model.errors import InvalidInput
from holdfast.ports.metrics import Entity, Reading, Snapshot, Table
from holdfast.watch.alarms.change import Change, Group
from holdfast.watch.alarms.engine import Engine

_ENTITY = tuple(one.name for one in fields(Entity))


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a pass in which something did."""

    at: datetime
    changes: tuple[Change, ...]
    groups: tuple[Group, ...]


def replay(
    samples: Iterable[Snapshot], rules: RuleSet, groups: Iterable[str] = ()
) -> Iterator[Replayed]:
    engine = Engine(rules, groups)
    for snapshot in samples:
        outcome = engine.take(snapshot)
        if outcome.changes or outcome.groups:
            yield Replayed(snapshot.at, outcome.changes, outcome.groups)


def line(snapshot: Snapshot) -> str:
    """A snapshot as it is recorded."""
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
    found: dict[str, Any] = {
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
    return json.dumps({**found, **({"fresh": fresh} if fresh else {}), "gone": dict(snapshot.gone)})


def read(lines: Iterable[str], source: str) -> Iterator[Snapshot]:
    """InvalidInput with the number of the line that cannot be read."""
    last: Snapshot | None = None
    known: dict[tuple[str, str], Entity] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            last = _snapshot(json.loads(text), last, known)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            why = f"this is no recorded pass: {type(error).__name__} {error}"
            raise InvalidInput(f"{source}:{number}: {why}; docs/alarms.md shows one") from error
        yield last


def _snapshot(
    plain: Mapping[str, Any], last: Snapshot | None, known: dict[tuple[str, str], Entity]
) -> Snapshot:
    at = datetime.fromisoformat(plain["at"])
    if at.tzinfo is None:
        raise ValueError("`at` has no time zone")
    monotonic = float(plain.get("monotonic", at.timestamp()))
    step_s = monotonic - last.monotonic if last else 0.0
    kinds = plain.get("kinds", {kind for kind, _ in known})
    readings: dict[str, list[Reading]] = {kind: [] for kind in kinds}
    for one in plain["entities"]:
        entity = _entity(one, known)
        values = {str(name): float(value) for name, value in one.get("values", {}).items()}
        reading = Reading(entity, values, frozenset(one.get("missing", ())), one.get("stale", ""))
        readings.setdefault(entity.kind, []).append(reading)
    fresh = plain.get("fresh", {})
    tables = {
        kind: Table(kind, found, frozenset(fresh[kind]) if kind in fresh else None)
        for kind, found in readings.items()
    }
    elapsed_s = float(plain.get("elapsed_s", step_s))
    return Snapshot(
        plain["host"], plain["pass_id"], at, monotonic, elapsed_s, tables, plain.get("gone", {})
    )


def _entity(plain: Mapping[str, Any], known: dict[tuple[str, str], Entity]) -> Entity:
    """The same object for as long as it is the same."""
    made = Entity(**{name: plain[name] for name in _ENTITY if name in plain})
    before = known.get((made.kind, made.id))
    if before != made:
        known[made.kind, made.id] = before = made
    return before
