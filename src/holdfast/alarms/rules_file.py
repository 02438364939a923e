# SPDX-License-Identifier: Apache-2.0
"""Parser of alarm rules files; reports every error with its line.

    storm: 50
    conditions:
      busy: {field: util_ratio, when: "> 95%"}
      starved: {field: steal_ratio, when: "> 10%"}
    rules:
      - id: pipe
        on: nic
        field: tx_bps
        contract: tx_bps          # the value is a share of this contract
        when: "> 1.2"
        burst: 30s
        severity: critical
        actions: [notify, incident]
      - {id: hot, on: guest, all: [busy, starved], for: 5m}

JSON is a subset of YAML: the same parser reads rules from the socket and from the manager.
"""

import functools
import hashlib
import math
import re
from dataclasses import dataclass

from holdfast.alarms.rules import (
    ACTIONS,
    COMPARATORS,
    DAYS,
    KINDS,
    MEASURES,
    NONE,
    OVER,
    SEVERITIES,
    TIME_TO_FULL,
    UNDER,
    VALUE,
    BadRules,
    Condition,
    Hours,
    Rule,
    RuleSet,
    Selector,
    default_clear,
)
from holdfast.metrics import fields
from holdfast.runtime.documents import Node, Reading, Scalar, quoted, seconds, shown

# Scalars of alarm rules: levels, numbers, weekly hours, N of M.
#
#     >>> comparison("> 5G"), comparison("<= 95%"), number("4h", spans=True)
#     (('>', 5000000000.0), ('<=', 0.95), 14400.0)
#     >>> hours("mon-fri 08:00-18:30")
#     Hours(days=(0, 1, 2, 3, 4), begin_min=480, end_min=1110)
#     >>> of("3 of 5"), of("5 of 3")
#     ((3, 5), None)


#: Largest M in "N of M" samples.
MOST_SAMPLES = 60
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<) *(\S+)")
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)(%|[kMGT]i?)?")
_SCALE = {"": 1.0} | {
    unit + tail: float(base) ** power
    for power, unit in enumerate("kMGT", 1)
    for tail, base in (("", 1000), ("i", 1024))
}
_OF = re.compile(r"([0-9]{1,2}) +of +([0-9]{1,2})")
_DAY = "|".join(DAYS)
_HOURS = re.compile(
    rf"(?:((?:{_DAY})(?:[-,](?:{_DAY}))*))?"
    r"(?: *([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2}))?"
)


def comparison(text: str, *, spans: bool = False) -> tuple[str, float] | None:
    """Parse a comparison such as "> 95%"; None if malformed."""
    match = _COMPARISON.fullmatch(text.strip())
    level = number(match[2], spans=spans) if match else None
    return (match[1], level) if match and level is not None else None


def number(text: str, *, spans: bool = False) -> float | None:
    """Parse 0.95, 95%, 5G or 512Mi, with `spans` also 30s or 4h; None if malformed."""
    if spans and (lasts_s := seconds(text)) is not None:
        return lasts_s
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = float(match[1])
    value = value / 100 if match[2] == "%" else value * _SCALE[match[2] or ""]
    return value if math.isfinite(value) else None


def of(text: str) -> tuple[int, int] | None:
    """Parse "3 of 5" as hits and samples; None if malformed."""
    match = _OF.fullmatch(text.strip())
    if match is None:
        return None
    hits, samples = int(match[1]), int(match[2])
    return (hits, samples) if 1 <= hits <= samples <= MOST_SAMPLES else None


def hours(text: str) -> Hours | None:
    """Parse weekly hours in UTC: mon-fri 08:00-18:00, sat,sun, 22:00-06:00 (until the next day)."""
    match = _HOURS.fullmatch(text.strip())
    if match is None or not text.strip():
        return None
    days = _days(match[1]) if match[1] else tuple(range(7))
    if match[2] is None:
        return Hours(days)
    begin, end = (int(match[n]) * 60 + int(match[n + 1]) for n in (2, 4))
    if begin >= 1440 or end > 1440 or int(match[3]) > 59 or int(match[5]) > 59:
        return None
    return Hours(days, begin, end)


def _days(text: str) -> tuple[int, ...]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = DAYS.index(first), DAYS.index(last.split("-")[-1] or first)
        days |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return tuple(sorted(days))


KEYS = ("rules", "conditions", "group_wait", "storm")
CONDITION = ("field", "when", "clear", "measure", "over", "full", "contract", "burst", "hits")
CHOICE = ("name", "project", "flavor", "group")
TIMES = ("for", "keep_firing", "repeat", "damp", "damp_cap", "no_data_for", "hours")
RULE = (
    *("id", "on", *CONDITION, "all", "any", *CHOICE),
    *("severity", "class", "summary", "no_data", *TIMES, "actions"),
)
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Actions that are allowed for some kinds only.
_ONLY = {
    "migrate_away": ("guest", "disk", "nic"),
    "disable_host": ("host",),
    "repair_ahead": ("host",),
}
MOST_STORM = 10_000
NOTHING = Rule("", Selector(""), ())


def parse(
    data: str | bytes, source: str, number: int = 0, *, known_fields: bool = False
) -> RuleSet:
    """Parse rules. BadRules lists every error.

    `number` is the version that the author gave. With `known_fields`, a field that no agent
    measures is an error; recordings may have other fields.
    """
    reading = _Reading(known_fields)
    origin = _Origin(source, number, data)
    because = functools.partial(BadRules.because, source)
    return reading.whole(data, lambda tree: reading.rule_set(tree, origin), because, quick=True)


@dataclass(frozen=True)
class _Origin:
    """Source, version and text of a rules file."""

    source: str
    number: int
    data: str | bytes

    @property
    def digest(self) -> str:
        text = self.data
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        return hashlib.sha256(data).hexdigest()[:12]


class _Reading(Reading):
    """Parser with the errors found so far."""

    def __init__(self, known_fields: bool) -> None:
        super().__init__()
        self.known_fields = known_fields
        self.named: dict[str, Condition | None] = {}  # None: malformed
        self.lines: dict[str, int] = {}  # of named conditions
        self.unknown: set[tuple[int, str, str]] = set()  # unknown fields already reported
        self.used: set[str] = set()
        self.ids: dict[str, int] = {}

    def rule_set(self, tree: Node | None, origin: _Origin) -> RuleSet | None:
        empty = "write `rules: []` if there shall be no alarms"
        root = self.root(tree, empty, "alarm rules begin with `rules:`")
        if root is None:
            return None
        fields = self.fields(root, KEYS, needed=("rules",))
        self._conditions(fields.get("conditions"))
        rules = [self._rule(node) for node in self.items(fields.get("rules"), "rules")]
        for name in self.named.keys() - self.used:
            self.say(self.lines[name], f"no rule uses condition {name}: use it or take it away")
        return RuleSet(
            tuple(rules),
            group_wait_s=self.span(fields.get("group_wait"), 1.0),
            storm=self.whole_number(fields.get("storm"), "storm", 1, MOST_STORM, 50),
            number=origin.number,
            digest=origin.digest,
            source=origin.source,
        )

    # conditions

    def _conditions(self, node: Node | None) -> None:
        if node is None:
            return
        for key, value in self.pairs(node, "{busy: {field: …, when: …}}", "condition"):
            self.lines[key.text] = key.line
            fields = self.fields(value, CONDITION, needed=("field", "when"))
            self.named[key.text] = self._condition(fields)

    def _condition(self, fields: dict[str, Node]) -> Condition | None:
        before = len(self.problems)
        measure = self.choice(fields.get("measure"), MEASURES, "measure", VALUE)
        compare, level = self._when(fields.get("when"), spans=measure == TIME_TO_FULL)
        problem = f"{{}}: write `hits: 3 of 5`, of {MOST_SAMPLES} at most"
        hits, samples = self.value(fields.get("hits"), of, (1, 1), problem)
        over_s, full = self._window(fields, measure, compare)
        condition = Condition(
            self.word(fields.get("field"), "field"),
            compare,
            level,
            self._clear(fields.get("clear"), compare, level, measure),
            measure=measure,
            over_s=over_s,
            full=full,
            contract=self.word(fields.get("contract"), "contract"),
            burst_s=self.span(fields.get("burst"), 0.0),
            hits=hits,
            of=samples,
        )
        good = len(self.problems) == before
        if good and condition.burst_s and (compare not in OVER or level <= 0):
            self.say(fields["burst"].line, "a burst is above a level that is more than 0: write >")
        return condition if len(self.problems) == before and condition.field else None

    def _when(self, node: Node | None, *, spans: bool) -> tuple[str, float]:
        example = '"< 4h"' if spans else '"> 0.95", "> 95%" or "< 5G"'
        problem = f"{{}} is no level: write one of {' '.join(COMPARATORS)} and a number"
        read = functools.partial(comparison, spans=spans)
        return self.value(node, read, ("", 0.0), f"{problem}, as in {example}")

    def _clear(self, node: Node | None, compare: str, level: float, measure: str) -> float:
        if node is None:
            return default_clear(compare, level)
        spans = measure == TIME_TO_FULL
        clear = number(node.text, spans=spans) if isinstance(node, Scalar) else None
        if clear is None:
            self.say(node.line, f"`clear` is {shown(node)} and should be a number")
        elif compare and compare not in (*OVER, *UNDER):
            self.say(node.line, f"`clear` goes with more or less, not with {compare}: leave it out")
        elif clear > level if compare in OVER else clear < level:
            side = "below" if compare in OVER else "above"
            text = f"an alarm at {level:g} cannot end at {clear:g}"
            self.say(node.line, f"{text}: write a `clear` {side} the level, or the same")
        else:
            return clear
        return level

    def _window(
        self, fields: dict[str, Node], measure: str, compare: str
    ) -> tuple[float, str | float]:
        over_s = self.span(fields.get("over"), 0.0)
        line = next(iter(fields.values())).line if fields else 0
        if measure == VALUE and "over" in fields:
            self.say(
                fields["over"].line, "`over` goes with a rate or a time to full: add `measure`"
            )
        if measure != VALUE and over_s <= 0:
            self.say(line, f"a {measure} needs a window: add `over: 5m`")
        if measure != TIME_TO_FULL and "full" in fields:
            self.say(fields["full"].line, "`full` goes with `measure: time_to_full`: add it")
        if measure != TIME_TO_FULL:
            return over_s, ""
        if compare and compare not in UNDER:
            self.say(line, 'a time_to_full fires when little time is left: write when: "< 4h"')
        full = self.word(fields.get("full"), "full")
        if not full:
            self.say(
                line, "a time_to_full needs to know when it is full: add `full: 100G`, or the field"
            )
        as_number = number(full)
        return over_s, full if as_number is None else as_number

    # rules

    def _rule(self, node: Node) -> Rule:
        before = len(self.problems)
        fields = self.fields(node, RULE, needed=("id", "on"))
        name = self._id(fields.get("id"))
        kind = self.choice(fields.get("on"), KINDS, "kind of thing")
        every, conditions = self._conditions_of(node, fields, kind)
        damp_s = self.span(fields.get("damp"), NOTHING.damp_s)
        severities = (*SEVERITIES, NONE)
        chosen = {key: self.words(fields.get(key), key) for key in CHOICE}
        times = {key: self.span(fields.get(key), 0.0) for key in ("for", "keep_firing", "repeat")}
        rule = Rule(
            name,
            Selector(kind, *(chosen[key] for key in CHOICE)),
            conditions,
            every,
            for_s=times["for"],
            keep_s=times["keep_firing"],
            severity=self.choice(fields.get("severity"), SEVERITIES, "severity", NOTHING.severity),
            topic=self.word(fields.get("class"), "class"),
            summary=self.word(fields.get("summary"), "summary"),
            no_data=self.choice(fields.get("no_data"), severities, "severity", NOTHING.no_data),
            no_data_for_s=self.span(fields.get("no_data_for"), NOTHING.no_data_for_s),
            hours=self._hours(fields.get("hours")),
            repeat_s=times["repeat"],
            damp_s=damp_s,
            damp_cap_s=self.span(fields.get("damp_cap"), max(damp_s, NOTHING.damp_cap_s)),
            actions=self._actions(fields.get("actions"), kind),
            line=node.line,
        )
        if "damp_cap" in fields and rule.damp_cap_s < rule.damp_s:
            self.say(fields["damp_cap"].line, "`damp_cap` is less than `damp`: write more")
        return rule if len(self.problems) == before else NOTHING

    def _id(self, node: Node | None) -> str:
        name = self.word(node, "id")
        if node is None or not name:
            return ""
        if not _ID.fullmatch(name):
            self.say(node.line, f"id {quoted(name)}: write up to 64 letters, digits, . _ and -")
        elif name in self.ids:
            text = f"line {self.ids[name]} has the id {name} already: give it another one"
            self.say(node.line, text)
        else:
            self.ids[name] = node.line
        return name

    def _conditions_of(
        self, node: Node, fields: dict[str, Node], kind: str
    ) -> tuple[bool, tuple[Condition, ...]]:
        """Read the conditions of a rule: its own, or `all` or `any` of the named conditions."""
        ways = [key for key in ("field", "all", "any") if key in fields]
        if len(ways) != 1:
            self.say(node.line, "write either `field` and `when`, or one of `all` and `any`")
            return True, ()
        if ways[0] == "field":
            if "when" not in fields:
                self.say(node.line, "`when` is missing: add `when: …`")
            own = self._condition({key: fields[key] for key in CONDITION if key in fields})
            self._measured(own, kind, fields["field"].line)
            return True, (own,) if own else ()
        for key in CONDITION:
            if key in fields:
                self.say(fields[key].line, f"`{key}` belongs into a condition: put it there")
        conditions: list[Condition] = []
        for name in self.words(fields[ways[0]], ways[0]):
            self.used.add(name)
            condition = self.named.get(name)
            if condition is not None:
                self._measured(condition, kind, self.lines[name])
                conditions.append(condition)
            elif name not in self.named:
                there = ", ".join(self.named) or "none"
                line = fields[ways[0]].line
                self.say(line, f"condition {quoted(name)} is not there: there are {there}")
        return ways[0] == "all", tuple(conditions)

    def _measured(self, condition: Condition | None, kind: str, line: int) -> None:
        """Report an error for fields that agents do not measure for this kind."""
        if not self.known_fields or condition is None or not kind:
            return
        full = condition.full if isinstance(condition.full, str) else ""
        for name in filter(None, (condition.field, full)):
            if fields.is_known(kind, name) or (line, kind, name) in self.unknown:
                continue
            self.unknown.add((line, kind, name))
            like = fields.like(kind, name)
            advice = f"do you mean {like}?" if like else "docs/concepts/metrics.md has their names"
            self.say(line, f"{quoted(name)} is no field of a {kind}: {advice}")

    def _hours(self, node: Node | None) -> tuple[Hours, ...]:
        spans: list[Hours] = []
        for text in self.words(node, "hours"):
            span = hours(text)
            if span is None and node is not None:
                advice = "write mon-fri 08:00-18:00, in UTC"
                self.say(node.line, f"{quoted(text)} are no hours of the week: {advice}")
            elif span is not None:
                spans.append(span)
        return tuple(spans)

    def _actions(self, node: Node | None, kind: str) -> tuple[str, ...]:
        if node is None:
            return NOTHING.actions
        actions = self.words(node, "actions")
        for name in actions:
            if name not in ACTIONS:
                self.say(node.line, f"{quoted(name)} is no action: there are {', '.join(ACTIONS)}")
            elif kind and kind not in _ONLY.get(name, KINDS):
                there = " or ".join(_ONLY[name])
                self.say(node.line, f"{name} is for an alarm of a {there}, not of a {kind}")
        return actions
