# SPDX-License-Identifier: Apache-2.0
"""Alarm rules as values: conditions, selectors, rules and rule sets.

    rules = rules_file.parse(text, "alarms.yaml", number=7)
    rules.version                        # "7-3fa2c1d09b7e"
    rules.rules[0].conditions[0].level   # 0.95

A `Condition` is about a single series: the measure (value as read, rate, time until full, each
optionally as a share of a contract), the level, and the tolerance (a burst, or N of M samples).
A `Rule` combines conditions on a kind of entity, and sets the duration, the severity and the
actions. `engine.Engine` evaluates the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from holdfast.model.errors import InvalidDocument

OVER: Final = (">", ">=")
UNDER: Final = ("<", "<=")
COMPARATORS: Final = (*OVER, *UNDER, "==", "!=")

VALUE: Final = "value"
RATE: Final = "rate"
TIME_TO_FULL: Final = "time_to_full"
MEASURES: Final = (VALUE, RATE, TIME_TO_FULL)

NONE: Final = "none"
SEVERITIES: Final = ("info", "warning", "critical")
ACTIONS: Final = ("notify", "incident", "migrate_away", "disable_host", "repair_ahead")
#: Kinds of entities, the same words as in ports/metrics.
KINDS: Final = ("host", "guest", "disk", "nic")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: Default distance of `clear` from the level: a tenth of the level, on the good side.
SLACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a series with a level."""

    field: str
    compare: str
    level: float
    clear: float  # a firing alarm holds until the value passes this level
    measure: str = VALUE
    over_s: float = 0.0  # window of a rate or time to full
    full: str | float = ""  # limit for time to full: a number, or the field with the limit
    contract: str = ""  # the value is a share of this contract
    burst_s: float = 0.0  # allowance above the level: this many seconds times the level
    hits: int = 1
    of: int = 1

    @property
    def series(self) -> tuple[str, str, float, str | float, str]:
        """Identity of the series; with another series, saved state is meaningless."""
        return self.field, self.measure, self.over_s, self.full, self.contract


@dataclass(frozen=True, slots=True)
class Hours:
    """Weekly hours in UTC: days of the week, from minute to minute of the day.

    If `end_min` is not later than `begin_min`, the hours span midnight and belong to the day on
    which they begin.
    """

    days: tuple[int, ...]
    begin_min: int = 0
    end_min: int = 1440

    def has(self, at: datetime) -> bool:
        """Tell whether a time is within these hours."""
        minute, day = at.hour * 60 + at.minute, at.weekday()
        if self.begin_min < self.end_min:
            return day in self.days and self.begin_min <= minute < self.end_min
        if minute >= self.begin_min:
            return day in self.days
        return minute < self.end_min and (day - 1) % 7 in self.days


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects entities of a kind that match all given patterns; `*` matches any text."""

    kind: str
    names: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()  # by id or by name
    flavors: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # host groups; the rule does not apply on other hosts

    def is_here(self, groups: frozenset[str]) -> bool:
        """Tell whether the rule applies on a host with these groups."""
        return not self.groups or _any(tuple(groups), self.groups)

    def fits(self, *, name: str, project: tuple[str, ...], flavor: str) -> bool:
        """Tell whether an entity matches."""
        return (
            (not self.names or _any((name,), self.names))
            and (not self.projects or _any(project, self.projects))
            and (not self.flavors or _any((flavor,), self.flavors))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """An alarm rule."""

    id: str
    selector: Selector
    conditions: tuple[Condition, ...]
    every: bool = True  # all conditions must hold; otherwise any suffices
    for_s: float = 0.0
    keep_s: float = 0.0
    severity: str = "warning"
    topic: str = ""  # `class` in files: a host alarm holds back guest alarms of its class
    summary: str = ""
    no_data: str = "info"  # severity without data; none: listed, but no notification
    no_data_for_s: float = 60.0
    hours: tuple[Hours, ...] = ()
    repeat_s: float = 0.0
    damp_s: float = 30.0
    damp_cap_s: float = 600.0
    actions: tuple[str, ...] = ("notify",)
    line: int = field(default=0, compare=False)

    @property
    def kind(self) -> str:
        return self.selector.kind

    @property
    def contracts(self) -> tuple[str, ...]:
        return tuple(condition.contract for condition in self.conditions if condition.contract)

    @property
    def window_s(self) -> float:
        return max(condition.over_s for condition in self.conditions)

    def means_the_same(self, other: "Rule") -> bool:
        """Tell whether saved state of a rule is valid for another; only levels and times may
        differ."""
        return self._remembered == other._remembered

    @property
    def memory(self) -> str:
        """Text that must be equal for saved state to be valid."""
        return repr(self._remembered)

    @property
    def _remembered(self) -> tuple[object, ...]:
        made = [
            (*condition.series, condition.of, bool(condition.burst_s))
            for condition in self.conditions
        ]
        return self.kind, self.every, made

    def is_on(self, at: datetime) -> bool:
        """Tell whether the rule is active at a time."""
        return not self.hours or any(hour.has(at) for hour in self.hours)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A version of all rules."""

    rules: tuple[Rule, ...] = ()
    group_wait_s: float = 1.0
    storm: int = 50  # alarms notified at the same time; of more only the number
    number: int = field(default=0, compare=False)
    digest: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    @property
    def version(self) -> str:
        return f"{self.number}-{self.digest}"

    @property
    def by_id(self) -> Mapping[str, Rule]:
        return {rule.id: rule for rule in self.rules}


class BadRules(InvalidDocument):
    """Invalid alarm rules; `problems` lists every error with its line."""

    code = "holdfast.alarmrules.invalid"
    title = "The alarm rules cannot be used"


def default_clear(compare: str, level: float) -> float:
    """Return the default `clear` level, a tenth of the level on the good side."""
    if compare in OVER:
        return level - abs(level) * SLACK
    return level + abs(level) * SLACK if compare in UNDER else level


def _any(values: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Tell whether any value matches any pattern."""
    return any(value and fnmatchcase(value, pattern) for value in values for pattern in wanted)
