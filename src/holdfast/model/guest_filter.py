# SPDX-License-Identifier: Apache-2.0
"""Which of what happens to guests is a failure: ordered rules, of which the first that fits counts.

    filter = guest_filter_file.parse(text, "filters.yaml")
    verdict, tally = filter.judge(Sign("io_error", "pause", disk="vda"), metadata, {}, now)
    verdict.do, verdict.after_s          # ("recover", 30.0)

A `Sign` is what an event means, in the words of a rule. Of a rule with a rate all that it would fit
is counted, guest by guest; it counts only once there were enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from holdfast.model.matrix import BadStrategy

RECOVER: Final = "recover"
REPORT: Final = "report"
IGNORE: Final = "ignore"
ACTIONS: Final = (RECOVER, REPORT, IGNORE)

#: What a sign can be, and its details.
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
#: What goes on until somebody does something, or ends by itself: a grace time can be given to it.
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
#: Names of what a rule may say about the guest itself.
ABOUT: Final = ("name", "project", "flavor", "ha", "on_crash")
#: A project is known by its id and by its name.
_ALSO: Final = {"project": ("project", "project_name")}


@dataclass(frozen=True, slots=True)
class Sign:
    """What happened to a guest."""

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
    """One line. An empty condition is none; `disks` and what is said about the guest may have *."""

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

    def fits(self, sign: Sign, metadata: Mapping[str, str]) -> bool:
        """Whatever its rate."""
        return (
            self.event in ("", sign.event)
            and (not self.details or sign.detail in self.details)
            and (not self.reasons or sign.reason in self.reasons)
            and (not self.disks or _any((sign.disk, sign.path), self.disks))
            and all(_about(metadata, name, wanted) for name, wanted in self.about)
        )

    def covers(self, other: "Rule") -> bool:
        """Whether all that the other fits, this one fits: then the other never has its turn."""
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
        """filters.yaml line 4: io_error pause, recover after 30 s"""
        words = [self.event or "anything", *self.details, *self.reasons, *self.disks]
        words += [f"{name} {'|'.join(wanted)}" for name, wanted in self.about]
        if self.times > 1:
            words.append(f"{self.times} times in {self.within_s:g} s")
        then = f"{self.do} after {self.after_s:g} s" if self.after_s else self.do
        return f"{self.source} line {self.line}: {' '.join(words)}, {then}"


#: When a rule with a rate fitted lately, by rule.
Tally = Mapping[Rule, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    do: str
    after_s: float = 0.0
    rule: str = "no rule"


@dataclass(frozen=True)
class Filter:
    rules: tuple[Rule, ...]
    source: str
    otherwise: str = IGNORE

    def judge(
        self,
        sign: Sign,
        metadata: Mapping[str, str],
        tally: Tally,
        now: float,
        *,
        again: bool = False,
    ) -> tuple[Verdict, Tally]:
        """What is done about it, and the tally after it. `again`: it was counted before."""
        for rule in self.rules:
            if not rule.fits(sign, metadata):
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


class BadFilter(BadStrategy):
    """A filter file that cannot be used; `problems` are all that is wrong with it, by line."""

    code = "holdfast.guestfilter.invalid"
    title = "The guest filters cannot be used"


def _any(values: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return any(value and fnmatchcase(value, one) for value in values for one in wanted)


def _about(metadata: Mapping[str, str], name: str, wanted: tuple[str, ...]) -> bool:
    return _any(tuple(metadata.get(key, "") for key in _ALSO.get(name, (name,))), wanted)


def _within(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    return not mine or (bool(theirs) and set(theirs) <= set(mine))
