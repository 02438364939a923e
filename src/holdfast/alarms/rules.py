# SPDX-License-Identifier: Apache-2.0
"""When a number is an alarm: rules as values.

    rules = alarm_rules_file.parse(text, "alarms.yaml", number=7)
    rules.version                        # "7-3fa2c1d09b7e"
    rules.rules[0].conditions[0].level   # 0.95

A `Condition` is about one number: how it is made (as read, its rate, the time until something is
full, all that as a share of a contract), against what it is held, how much of it is too much
(a burst, so many samples of so many). A `Rule` is one or several of them about one kind of entity,
and says for how long, how bad it is, and what is asked for. What is done with the numbers of a
pass is in `alarms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from holdfast.hostmonitor.matrix import InvalidDocument

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
#: What an alarm can be about; the same words as in ports/metrics.
KINDS: Final = ("host", "guest", "disk", "nic")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: Where nothing is said, an alarm ends a tenth of its level on the good side of it.
SLACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Condition:
    field: str
    compare: str
    level: float
    clear: float  # while the alarm stands, it holds until this is passed
    measure: str = VALUE
    over_s: float = 0.0  # the window of a rate or of a time to full
    full: str | float = ""  # when it is full: a number, or the name of the one that says so
    contract: str = ""  # the value is a share of that contract
    burst_s: float = 0.0  # it may be above its level by that many seconds' worth of the level
    hits: int = 1
    of: int = 1

    @property
    def series(self) -> tuple[str, str, float, str | float, str]:
        """What its numbers are made of: with another one, what was remembered means nothing."""
        return self.field, self.measure, self.over_s, self.full, self.contract


@dataclass(frozen=True, slots=True)
class Hours:
    """Some days of the week, from one minute of the day to another, UTC; over midnight if the
    second is not later than the first, and then of the day on which it begins."""

    days: tuple[int, ...]
    begin_min: int = 0
    end_min: int = 1440

    def has(self, at: datetime) -> bool:
        minute, day = at.hour * 60 + at.minute, at.weekday()
        if self.begin_min < self.end_min:
            return day in self.days and self.begin_min <= minute < self.end_min
        if minute >= self.begin_min:
            return day in self.days
        return minute < self.end_min and (day - 1) % 7 in self.days


@dataclass(frozen=True, slots=True)
class Selector:
    """Of a kind those that fit everything that is said; `*` stands for anything."""

    kind: str
    names: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()  # by id or by name
    flavors: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # of hosts: on others the rule is not there

    def is_here(self, groups: frozenset[str]) -> bool:
        return not self.groups or _any(tuple(groups), self.groups)

    def fits(self, *, name: str, project: tuple[str, ...], flavor: str) -> bool:
        return (
            (not self.names or _any((name,), self.names))
            and (not self.projects or _any(project, self.projects))
            and (not self.flavors or _any((flavor,), self.flavors))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    selector: Selector
    conditions: tuple[Condition, ...]
    every: bool = True  # of several conditions all have to hold; else one is enough
    for_s: float = 0.0
    keep_s: float = 0.0
    severity: str = "warning"
    topic: str = ""  # `class` in files: an alarm of a host hushes those of its guests of that class
    summary: str = ""
    no_data: str = "info"  # severity of not knowing; none: it is listed, and told to nobody
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
        return tuple(one.contract for one in self.conditions if one.contract)

    @property
    def window_s(self) -> float:
        return max(one.over_s for one in self.conditions)

    def means_the_same(self, other: "Rule") -> bool:
        """Whether what is remembered for one counts for the other: levels and times may differ."""
        return self._remembered == other._remembered

    @property
    def memory(self) -> str:
        """What has to be the same for that, as a text that can be kept."""
        return repr(self._remembered)

    @property
    def _remembered(self) -> tuple[object, ...]:
        made = [(*one.series, one.of, bool(one.burst_s)) for one in self.conditions]
        return self.kind, self.every, made

    def is_on(self, at: datetime) -> bool:
        return not self.hours or any(one.has(at) for one in self.hours)


@dataclass(frozen=True, slots=True)
class RuleSet:
    rules: tuple[Rule, ...] = ()
    group_wait_s: float = 1.0
    storm: int = 50  # alarms that are told at the same time; of more only the number
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
    """Rules that cannot be used; `problems` are all that is wrong with them, by line."""

    code = "holdfast.alarmrules.invalid"
    title = "The alarm rules cannot be used"


def default_clear(compare: str, level: float) -> float:
    """A tenth of the level on the good side of it."""
    if compare in OVER:
        return level - abs(level) * SLACK
    return level + abs(level) * SLACK if compare in UNDER else level


def _any(values: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return any(value and fnmatchcase(value, one) for value in values for one in wanted)
