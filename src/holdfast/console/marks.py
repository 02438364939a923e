# SPDX-License-Identifier: Apache-2.0
"""Which alarms are drawn on which numbers: of alarms that were told, and of those that rules would
have made of the last hour. Values in, values out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.console.sparks import Mark
from holdfast.model.alarm_rules import VALUE, Rule
from holdfast.watch.alarms.change import FIRING, OK, Change
from holdfast.watch.alarms.preview import Story

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
        mine = [Placed(one, fields_of(rule)) for one in told(story, rule) if one.state == FIRING]
        found.setdefault(_key(story.kind, story.entity), []).extend(mine)
    return found


def told(story: Story, rule: Rule | None) -> list[Mark]:
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
