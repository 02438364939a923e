# SPDX-License-Identifier: Apache-2.0
"""A host in a test: an engine, and passes one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from holdfast.alarms import rules_file
from holdfast.alarms.engine import Engine, Outcome
from holdfast.alarms.rules import RuleSet
from holdfast.alarms.tracks import Change, Group
from holdfast.ports.metrics import GUEST, HOST, Entity, Reading, Snapshot, Table

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)  # a Monday
Values = Mapping[str, float] | float | None | str


def rules(text: str, number: int = 1) -> RuleSet:
    return rules_file.parse(text, "alarms.yaml", number)


def one_rule(more: str = "", on: str = GUEST, when: str = "> 90", top: str = "") -> RuleSet:
    """About the number `x` of guests, without hysteresis unless it is said."""
    rule = f"{{id: r, on: {on}, field: x, when: '{when}'{', ' * bool(more)}{more}}}"
    return rules(f"{top}\nrules:\n  - {rule}\n")


@dataclass
class World:
    rules: RuleSet
    step_s: float = 1.0
    now: float = 1000.0
    number: int = 0
    host: str = "cmp-7"
    about: dict[str, Entity] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Engine(self.rules)
        self.begun = self.now

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now - self.begun)

    @property
    def told(self) -> list[Change]:
        return [change for group in self.groups for change in group.changes]

    def entity(self, name: str, kind: str = GUEST, **said: object) -> Entity:
        """Said once, it stays so."""
        if name not in self.about or said:
            self.about[name] = Entity(kind, f"u-{name}", name, **said)  # type: ignore[arg-type]
        return self.about[name]

    def snapshot(
        self,
        guests: Mapping[str, Values],
        *,
        host: Mapping[str, float] | None = None,
        gone: Mapping[str, str] | None = None,
        fresh: frozenset[str] | None = None,
    ) -> Snapshot:
        self.number += 1
        tables: dict[str, list[Reading]] = {GUEST: []}
        for name, value in guests.items():
            entity = self.entity(name)
            tables.setdefault(entity.kind, []).append(reading(entity, value))
        if host is not None:
            here = self.about.setdefault(self.host, Entity(HOST, self.host, self.host))
            tables[HOST] = [Reading(here, host)]
        made = {kind: Table(kind, readings, fresh) for kind, readings in tables.items()}
        return Snapshot(self.host, self.number, self.at, self.now, self.step_s, made, gone or {})

    def take(self, snapshot: Snapshot) -> Outcome:
        outcome = self.engine.evaluate(snapshot)
        self.changes += outcome.changes
        self.groups += outcome.groups
        return outcome

    def see(self, **guests: Values) -> list[str]:
        """A pass; what changed in it, as `a pending`."""
        outcome = self.take(self.snapshot(guests))
        self.now += self.step_s
        return [f"{change.name} {change.state}" for change in outcome.changes]

    def run(self, *values: Values, name: str = "a") -> list[str]:
        """Of one guest, pass by pass its state."""
        found = []
        for value in values:
            self.see(**{name: value})
            states = {alarm.name: alarm.state for alarm in self.engine.alarms()}
            found.append(states.get(name, "ok"))
        return found


def reading(entity: Entity, value: Values) -> Reading:
    """A number is x; a word says why it is stale; None: x is missing."""
    if value is None:
        return Reading(entity, {}, frozenset({"x"}))
    if isinstance(value, str):
        return Reading(entity, {"x": 1e9}, stale=value)
    return Reading(entity, {"x": value} if isinstance(value, int | float) else value)
