# SPDX-License-Identifier: Apache-2.0
"""Guest filters: ordered rules that say which guest events are failures, and the file they are in.

    rules:
      - {event: io_error, detail: pause, disk: "scratch*", do: ignore}
      - {event: stopped, detail: failed, project: batch, rate: 3 in 10m, do: report}
      - {event: [monitor, hang], after: 90s, do: recover}
    otherwise: defaults

The first rule that matches a `Symptom` decides. A symptom that no rule matches is judged by the
default rules below, unless `otherwise` names an action. A rule with a rate counts every match per
guest and decides once the rate is reached. The parser names every problem with its line.

    filter = parse(text, "filters.yaml")
    verdict, tally = filter.judge(Symptom("io_error", "pause", disk="vda"), metadata, {}, now)
    verdict.do, verdict.after_s          # ("recover", 30.0)
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from holdfast.model.errors import InvalidDocument
from holdfast.runtime.documents import (
    Followed,
    Node,
    Reading,
    Scalar,
    either,
    quoted,
    seconds,
    truth,
)

RECOVER: Final = "recover"
REPORT: Final = "report"
IGNORE: Final = "ignore"
ACTIONS: Final = (RECOVER, REPORT, IGNORE)

#: Events of symptoms, with their details.
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "stopped": (
        "failed",
        "vanished",
        "terminated",
        "shutdown",
        "destroyed",
        "migrated",
        "saved",
        "from_snapshot",
    ),
    "panic": ("panicked", "crashloaded"),
    "io_error": ("pause", "report", "none"),
    "watchdog": ("pause", "poweroff", "reset", "shutdown", "none", "dump", "inject-nmi"),
    "monitor": ("stuck", "held"),
    "hang": ("hung", "stalled"),
    "control_error": (),
    "suspended": ("postcopy_failed", "api_error"),
    "reboot": (),
    "agent": ("connected", "disconnected"),
    "memory_failure": ("ignore", "inject", "fatal", "reset"),
    "block_job": ("failed", "completed", "canceled", "ready"),
    "expectation": ("missing", "stopped", "unexpected"),
}
#: Symptoms that last until an operator acts or they end by themselves: only these can have a grace
#: time (`after`).
LASTING: Final = frozenset(
    {
        ("stopped", "failed"),
        ("stopped", "vanished"),
        ("stopped", "terminated"),
        ("panic", "panicked"),
        ("panic", "crashloaded"),
        ("io_error", "pause"),
        ("watchdog", "pause"),
        ("watchdog", "poweroff"),
        ("monitor", "stuck"),
        ("monitor", "held"),
        ("hang", "hung"),
        ("hang", "stalled"),
        ("control_error", ""),
        ("suspended", "postcopy_failed"),
        ("suspended", "api_error"),
        ("agent", "disconnected"),
        ("expectation", "missing"),
        ("expectation", "stopped"),
        ("expectation", "unexpected"),
    }
)
#: Rule keys that match properties of the guest.
ABOUT: Final = ("name", "project", "flavor", "ha", "on_crash")
#: A rule matches a project by its id and by its name.
_ALSO: Final = {"project": ("project", "project_name")}


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom of a guest: an event with detail, reason and disk."""

    event: str
    detail: str = ""
    reason: str = ""
    disk: str = ""
    path: str = ""

    @property
    def lasts(self) -> bool:
        return (self.event, self.detail) in LASTING

    def __str__(self) -> str:
        words = (self.event, self.detail, self.reason, self.disk)
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Rule:
    """A filter rule. An empty condition matches everything; `disks` and `about` may contain *."""

    do: str
    event: str = ""
    details: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    about: tuple[tuple[str, tuple[str, ...]], ...] = ()
    times: int = 1
    within_s: float = 0.0
    after_s: float = 0.0
    line: int = 0
    source: str = ""

    def fits(self, symptom: Symptom, metadata: Mapping[str, str]) -> bool:
        """Whether the rule's conditions match, regardless of its rate."""
        return (
            self.event in ("", symptom.event)
            and (not self.details or symptom.detail in self.details)
            and (not self.reasons or symptom.reason in self.reasons)
            and (not self.disks or _any((symptom.disk, symptom.path), self.disks))
            and all(_about(metadata, name, wanted) for name, wanted in self.about)
        )

    def covers(self, other: "Rule") -> bool:
        """Whether this rule matches everything the other matches, which makes the other useless."""
        mine, theirs = dict(self.about), dict(other.about)
        return (
            self.times <= 1
            and self.event in ("", other.event)
            and _within(self.details, other.details)
            and _within(self.reasons, other.reasons)
            and _within(self.disks, other.disks)
            and all(name in theirs and _within(mine[name], theirs[name]) for name in mine)
        )

    @property
    def sentence(self) -> str:
        """Describe the rule: `filters.yaml line 4: io_error pause, recover after 30 s`."""
        words = [self.event or "anything", *self.details, *self.reasons, *self.disks]
        words += [f"{name} {'|'.join(wanted)}" for name, wanted in self.about]
        if self.times > 1:
            words.append(f"{self.times} times in {self.within_s:g} s")
        then = f"{self.do} after {self.after_s:g} s" if self.after_s else self.do
        return f"{self.source} line {self.line}: {' '.join(words)}, {then}"


#: Recent match times of each rule with a rate.
Tally = Mapping[Rule, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The action on a symptom, its grace time, and the rule that decided."""

    do: str
    after_s: float = 0.0
    rule: str = "no rule"


@dataclass(frozen=True)
class Filter:
    """Ordered rules, and the action for symptoms without a matching rule."""

    rules: tuple[Rule, ...]
    source: str
    otherwise: str = IGNORE

    def judge(
        self,
        symptom: Symptom,
        metadata: Mapping[str, str],
        tally: Tally,
        now: float,
        *,
        again: bool = False,
    ) -> tuple[Verdict, Tally]:
        """Return the verdict on a symptom and the new tally; `again`: do not count the match."""
        for rule in self.rules:
            if not rule.fits(symptom, metadata):
                continue
            if rule.times > 1:
                times = tuple(at for at in tally.get(rule, ()) if at > now - rule.within_s)
                if not again:
                    times = (*times, now)[-rule.times :]
                    tally = {**tally, rule: times}
                if len(times) < rule.times:
                    continue
            return Verdict(rule.do, rule.after_s, rule.sentence), tally
        return Verdict(self.otherwise), tally


class BadFilter(InvalidDocument):
    """A filter file is invalid; `problems` lists every problem with its line."""

    code = "holdfast.guestfilter.invalid"
    title = "The guest filters cannot be used"


def _any(values: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return any(value and fnmatchcase(value, pattern) for value in values for pattern in wanted)


def _about(metadata: Mapping[str, str], name: str, wanted: tuple[str, ...]) -> bool:
    return _any(tuple(metadata.get(key, "") for key in _ALSO.get(name, (name,))), wanted)


def _within(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    return not mine or (bool(theirs) and set(theirs) <= set(mine))


KEYS = ("rules", "otherwise")
RULE = ("event", "detail", "reason", "disk", *ABOUT, "rate", "after", "do")
DEFAULTS = "defaults"
MOST_TIMES = 100
_RATE = re.compile(r"([0-9]{1,3}) +in +(.+)")

DEFAULT_TEXT = """\
rules:
  # its owner wants no help
  - {ha: no, do: ignore}

  # QEMU is gone and nobody asked for it; terminated: by a signal, as when a host shuts down
  - {event: stopped, detail: [failed, vanished], do: recover}
  - {event: stopped, detail: terminated, do: report}

  # the guest's own kernel gave up; some are set to come back by themselves
  - {event: panic, detail: crashloaded, do: report}
  - {event: panic, on_crash: [restart, coredump-restart, rename-restart], do: report}
  - {event: panic, do: recover}

  # storage: what comes back in time resumes the guest; to start it anew frees no space
  - {event: io_error, detail: pause, reason: enospc, after: 5s, do: report}
  - {event: io_error, detail: pause, after: 30s, do: recover}
  - {event: io_error, detail: report, do: recover}
  - {event: io_error, do: report}

  # the guest hung, by its watchdog; what the watchdog itself puts right is only reported
  - {event: watchdog, detail: [pause, poweroff], do: recover}
  - {event: watchdog, do: report}

  # QEMU hangs, or talks nonsense, which one that just ends seems to do as well; held: it answers,
  # but somebody's order to it does not end
  - {event: monitor, detail: stuck, after: 60s, do: recover}
  - {event: monitor, detail: held, after: 60s, do: report}
  - {event: control_error, after: 10s, do: report}

  # the guest does nothing any more; only asked of those that want it. stalled: a processor of
  # it gets no time of the host's, which to start it anew would not change
  - {event: hang, detail: stalled, do: report}
  - {event: hang, after: 30s, do: recover}

  - {event: suspended, do: report}
  - {event: memory_failure, do: report}
  - {event: block_job, detail: failed, do: report}
  - {event: reboot, rate: 5 in 5m, do: report}

  # what the cloud says should run here does not, and nobody ended it; of none of them a trace is
  # rather a wrong address than so many deaths. What runs and should not is for people to see
  - {event: expectation, detail: missing, reason: all, do: report}
  - {event: expectation, detail: [missing, stopped], do: recover}
  - {event: expectation, do: report}
otherwise: ignore
"""


def parse(data: str | bytes, source: str) -> Filter:
    """Parse a filter file; raise BadFilter with all problems."""
    reading = _Reading(source)
    return reading.whole(data, reading.filter, functools.partial(BadFilter.because, source))


@functools.cache
def default() -> Filter:
    """Return the default filters, DEFAULT_TEXT."""
    return parse(DEFAULT_TEXT, DEFAULTS)


class _Reading(Reading):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def filter(self, tree: Node | None) -> Filter | None:
        empty = "write rules, or do without a file to get the default"
        root = self.root(tree, empty, "a filter begins with `rules:`")
        if root is None:
            return None
        fields = self.fields(root, KEYS, needed=("rules",))
        rules: list[Rule] = []
        for node in self.items(fields.get("rules"), "rules"):
            for rule in self._rules(node):
                self._check_turn(rule, rules)
                rules.append(rule)
        otherwise = self.choice(fields.get("otherwise"), (DEFAULTS, *ACTIONS), "end of a filter")
        if otherwise in ("", DEFAULTS):
            return Filter((*rules, *default().rules), self._source, IGNORE)
        return Filter(tuple(rules), self._source, otherwise)

    def _rules(self, node: Node) -> list[Rule]:
        """Return a rule per event that the node names; a node without events matches all."""
        before = len(self.problems)
        fields = self.fields(node, RULE, needed=("do",))
        do = self.choice(fields.get("do"), ACTIONS, "action")
        events = [self._event(fields["event"], word) for word in self._named(fields, "event")]
        details = self._named(fields, "detail")
        self._check_details(fields, events, details)
        times, within_s = self._rate(fields.get("rate"))
        after_s = self.span(fields.get("after"), 0.0)
        if after_s:
            self._check_after(fields["after"], do, events, details)
        about = ((name, self._about(fields, name)) for name in ABOUT if name in fields)
        whole = Rule(
            do,
            details=details,
            reasons=self._named(fields, "reason"),
            disks=self._named(fields, "disk"),
            about=tuple(about),
            times=times,
            within_s=within_s,
            after_s=after_s,
            line=node.line,
            source=self._source,
        )
        if len(self.problems) > before:
            return []
        return [_of(whole, event) for event in events or [""]]

    def _named(self, fields: dict[str, Node], name: str) -> tuple[str, ...]:
        return self.words(fields.get(name), name)

    def _about(self, fields: dict[str, Node], name: str) -> tuple[str, ...]:
        words = self._named(fields, name)
        if name != "ha":
            return words
        line, problem = fields[name].line, "`ha` is {}: write yes or no"
        return tuple(self.value(Scalar(word, line), _yes_no, "", problem) for word in words)

    def _event(self, node: Node, word: str) -> str:
        if word not in EVENTS:
            self.say(node.line, f"{quoted(word)} is no event: write {either(tuple(EVENTS))}")
        return word

    def _check_details(
        self, fields: dict[str, Node], events: Sequence[str], details: Sequence[str]
    ) -> None:
        """Check each detail belongs to an event of the rule, and each event has a detail."""
        if not details or not all(event in EVENTS for event in events):
            return
        line = fields["detail"].line
        if not events:
            self.say(line, "a detail is of an event: say which with `event`")
            return
        possible = [detail for event in events for detail in EVENTS[event]]
        for detail in details:
            if detail not in possible:
                there = (
                    f"there are {', '.join(possible)}" if possible else "it has none, leave it out"
                )
                self.say(line, f"{quoted(detail)} is no detail of {either(events)}: {there}")
        for event in events if set(details) <= set(possible) else ():
            if not set(details) & set(EVENTS[event]):
                self.say(line, f"none of the details is one of {event}: give it a rule of its own")

    def _check_after(
        self, node: Node, do: str, events: Sequence[str], details: Sequence[str]
    ) -> None:
        if do == IGNORE:
            self.say(
                node.line, "the rule takes no action, so `after` has no effect: leave `after` out"
            )
            return
        if not events:
            self.say(node.line, "`after` needs `event`: not every event lasts")
        for event in events:
            if event in EVENTS:
                named = [detail for detail in details if detail in EVENTS[event]]
                self._check_lasting(node, event, named or list(EVENTS[event]) or [""])

    def _check_lasting(self, node: Node, event: str, named: Sequence[str]) -> None:
        """Refuse a grace time unless all details last.

        A symptom that is over at once would be reported long after its end.
        """
        over = [detail for detail in named if (event, detail) not in LASTING]
        lasting = [detail for detail in EVENTS[event] if (event, detail) in LASTING]
        if over and lasting:
            sentence = f"{event} {either(over)} {'is' if len(over) == 1 else 'are'} over at once"
            self.say(
                node.line, f"{sentence}: of {event} only {_listed(lasting)}; say so with `detail`"
            )
        elif over:
            self.say(node.line, f"{event} is over at once: leave `after` out")

    def _rate(self, node: Node | None) -> tuple[int, float]:
        times, within_s = self.value(node, _rate, (1, 0.0), "{} is no rate: write `3 in 10m`")
        if node is not None and within_s and not 2 <= times <= MOST_TIMES:
            self.say(node.line, f"{times} times: write a rate from 2 to {MOST_TIMES}")
        return times, within_s

    def _check_turn(self, rule: Rule, earlier: Sequence[Rule]) -> None:
        for other in earlier:
            if other.covers(rule):
                text = f"it never has its turn: line {other.line} fits all that it fits"
                self.say(rule.line, f"{text}; move it up or take it away")
                return


def _yes_no(text: str) -> str | None:
    return {True: "yes", False: "no", None: None}[truth(text)]


def _rate(text: str) -> tuple[int, float] | None:
    """Parse `3 in 10m` as times and seconds; None if malformed."""
    match = _RATE.fullmatch(text.strip())
    within_s = seconds(match[2].strip()) if match else None
    return (int(match[1]), within_s) if match and within_s else None


def _of(whole: Rule, event: str) -> Rule:
    """Return the rule for a single event, with the details of this event."""
    details = tuple(detail for detail in whole.details if detail in EVENTS.get(event, ()))
    return replace(whole, event=event, details=details)


def _listed(lasting: Sequence[str]) -> str:
    """Join the details to a sentence: `pause and poweroff last`."""
    if len(lasting) == 1:
        return f"{lasting[0]} lasts"
    return f"{', '.join(lasting[:-1])} and {lasting[-1]} last"


class FilterFile(Followed[Filter]):
    """The filters in force: the operator's file, reloaded when it changes, or the defaults.

    If a changed file is invalid, the old filters stay in force and the agent logs the problems.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__(path, "filters", default, parse)

    @property
    def filters(self) -> Filter:
        return self.value
