# SPDX-License-Identifier: Apache-2.0
"""Filter files for guests, read so that every problem is named with its line.

    rules:
      - {event: io_error, detail: pause, disk: "scratch*", do: ignore}
      - {event: stopped, detail: failed, project: batch, rate: 3 in 10m, do: report}
      - {event: [monitor, hang], after: 90s, do: recover}
    otherwise: defaults

Of the rules the first that fits counts. What none fits goes to the default set below, unless
`otherwise` names an action.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.model.guest_filter import (
    ABOUT,
    ACTIONS,
    EVENTS,
    IGNORE,
    LASTING,
    BadFilter,
    Filter,
    Rule,
)
from holdfast.model.yaml_fields import Reading, either, quoted, seconds, shown
from holdfast.model.yaml_lines import Map, Node, Word

KEYS = ("rules", "otherwise")
RULE = ("event", "detail", "reason", "disk", *ABOUT, "rate", "after", "do")
DEFAULTS = "defaults"
MOST_TIMES = 100
_RATE = re.compile(r"([0-9]{1,3}) +in +(.+)")
_YES_NO = {"yes": "yes", "true": "yes", "on": "yes", "no": "no", "false": "no", "off": "no"}

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

  # the guest hung, by its watchdog; what the watchdog itself puts right is only told
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
    """A filter, or BadFilter with all that is wrong."""
    reading = _Reading(source)
    return reading.whole(data, reading.filter, functools.partial(BadFilter.because, source))


@functools.cache
def default() -> Filter:
    """What is done where nobody wrote anything."""
    return parse(DEFAULT_TEXT, DEFAULTS)


class _Reading(Reading):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def filter(self, tree: Node | None) -> Filter | None:
        if tree is None or (isinstance(tree, Word) and not tree.text.strip()):
            self.say(0, "it is empty: write rules, or do without a file to get the default")
            return None
        if not isinstance(tree, Map):
            self.say(tree.line, "a filter begins with `rules:`")
            return None
        fields = self.fields(tree, KEYS, needed=("rules",))
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
        """One for each event that it names; one without an event is about all of them."""
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
        for word in words:
            if word not in _YES_NO:
                self.say(fields[name].line, f"`ha` is {quoted(word)}: write yes or no")
        return tuple(_YES_NO.get(word, "") for word in words)

    def _event(self, node: Node, word: str) -> str:
        if word not in EVENTS:
            self.say(node.line, f"{quoted(word)} is no event: write {either(tuple(EVENTS))}")
        return word

    def _check_details(
        self, fields: dict[str, Node], events: Sequence[str], details: Sequence[str]
    ) -> None:
        """Each is of one of the events at least, and each event has one of them."""
        if not details or not all(event in EVENTS for event in events):
            return
        line = fields["detail"].line
        if not events:
            self.say(line, "a detail is of an event: say which with `event`")
            return
        known = [detail for event in events for detail in EVENTS[event]]
        for detail in details:
            if detail not in known:
                there = f"there are {', '.join(known)}" if known else "it has none, leave it out"
                self.say(line, f"{quoted(detail)} is no detail of {either(events)}: {there}")
        for event in events if set(details) <= set(known) else ():
            if not set(details) & set(EVENTS[event]):
                self.say(line, f"none of the details is one of {event}: give it a rule of its own")

    def _check_after(
        self, node: Node, do: str, events: Sequence[str], details: Sequence[str]
    ) -> None:
        if do == IGNORE:
            self.say(node.line, "nothing is done, so nothing has to last: leave `after` out")
            return
        if not events:
            self.say(node.line, "not everything lasts: say with `event` what has to")
        for event in events:
            if event in EVENTS:
                named = [one for one in details if one in EVENTS[event]]
                self._check_lasting(node, event, named or list(EVENTS[event]) or [""])

    def _check_lasting(self, node: Node, event: str, named: Sequence[str]) -> None:
        """All of them: what is over at once would be told when it is long past."""
        over = [one for one in named if (event, one) not in LASTING]
        lasting = [one for one in EVENTS[event] if (event, one) in LASTING]
        if over and lasting:
            said = f"{event} {either(over)} {'is' if len(over) == 1 else 'are'} over at once"
            self.say(node.line, f"{said}: of {event} only {_listed(lasting)}; say so with `detail`")
        elif over:
            self.say(node.line, f"{event} is over at once: leave `after` out")

    def _rate(self, node: Node | None) -> tuple[int, float]:
        if node is None:
            return 1, 0.0
        match = _RATE.fullmatch(node.text.strip()) if isinstance(node, Word) else None
        within_s = seconds(match[2].strip()) if match else None
        if match is None or not within_s:
            self.say(node.line, f"{shown(node)} is no rate: write `3 in 10m`")
            return 1, 0.0
        times = int(match[1])
        if not 2 <= times <= MOST_TIMES:
            self.say(node.line, f"{times} times: write a rate from 2 to {MOST_TIMES}")
        return times, within_s

    def _check_turn(self, rule: Rule, earlier: Sequence[Rule]) -> None:
        for one in earlier:
            if one.covers(rule):
                text = f"it never has its turn: line {one.line} fits all that it fits"
                self.say(rule.line, f"{text}; move it up or take it away")
                return


def _of(whole: Rule, event: str) -> Rule:
    """The part of a rule that is about one event, with the details that are of it."""
    details = tuple(one for one in whole.details if one in EVENTS.get(event, ()))
    return replace(whole, event=event, details=details)


def _listed(lasting: Sequence[str]) -> str:
    """pause and poweroff last"""
    if len(lasting) == 1:
        return f"{lasting[0]} lasts"
    return f"{', '.join(lasting[:-1])} and {lasting[-1]} last"
