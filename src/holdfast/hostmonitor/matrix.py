# SPDX-License-Identifier: Apache-2.0
"""The HA matrix: the action for a host, by the host's state on each network.

The first matching rule decides. An unknown network may be up or down: the matrix tries both,
and acts only if all possibilities lead to the same action. If all of them are recovery or
alert, the action is an alert. A host that is up on every network always gets no action.

>>> ha_matrix = default(("manage", "tenant", "storage"))
>>> ha_matrix.answer({"manage": UP, "tenant": DOWN, "storage": DOWN}).sentence
'storage down -> recovery after 3 s'
>>> ha_matrix.answer({"manage": DOWN, "storage": DOWN}).action  # whatever the tenant network is
'recovery'
>>> ha_matrix.answer({"manage": DOWN, "tenant": DOWN}).sentence
'undecided: storage is unknown; up would mean none, down would mean recovery'
>>> [row.answer.action for row in default(("manage",)).table()]
['none', 'recovery']

`parse` reads files, in Masakari's format or Holdfast's own (see `matrix_file`).
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.model.errors import InvalidDocument, Problem

UP, DOWN, UNKNOWN = "up", "down", "unknown"
ANY = "any"
RECOVERY, ALERT, NONE, UNDECIDED = "recovery", "alert", "none", "undecided"
ACTIONS = (RECOVERY, ALERT, NONE)

NETWORKS = ("manage", "tenant", "storage")
#: No server survives the loss of this network; the default matrix depends on it.
STORAGE = "storage"
#: Seconds that a state must last if the file does not say.
DEFAULT_FOR_S = 3.0
LONGEST_FOR_S = 86_400.0
#: Limit of networks, because every combination is evaluated and drawn: 1024 of them.
MOST_NETWORKS = 10
MOST_RULES = 1_100  # each rule that can match needs its own combination
LONGEST_FOR_SOURCE = 1_000
#: Maximum number of combinations without a rule that one sentence lists.
MOST_NAMED = 16
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

#: States up, down or any (for a host: unknown), in the order of the matrix's networks.
Health = tuple[str, ...]


class InvalidMatrix(InvalidDocument):
    """An HA matrix that cannot be used; `problems` lists every problem by line."""

    code = "holdfast.matrix.invalid"
    title = "The HA matrix cannot be used"


@dataclass(frozen=True)
class Rule:
    """The action for hosts of this health after `for_s` seconds; `line` of the file."""

    health: Health
    action: str
    for_s: float
    line: int = 0

    def text(self, networks: Sequence[str]) -> str:
        """The rule as text, for example `line 7: storage down -> recovery after 3 s`."""
        where = f"line {self.line}: " if self.line else ""
        lasting = "" if self.action == NONE else f" {after(self.for_s)}"
        return f"{where}{condition(networks, self.health)} -> {self.action}{lasting}"


@dataclass(frozen=True)
class Answer:
    """The action of the HA matrix for a host, the reason, and the matching rule, if any.

    `is_decided` is false if an unknown network decides: then nothing is done, or an alert is
    sent.
    """

    action: str
    for_s: float
    sentence: str
    rule: Rule | None = None
    is_decided: bool = True


@dataclass(frozen=True)
class Row:
    """A combination of up and down, in the order of the networks, and its answer."""

    health: Health
    answer: Answer


@dataclass(frozen=True)
class Matrix:
    """An HA matrix; `source` names its origin: a file, or the default."""

    networks: tuple[str, ...]
    rules: tuple[Rule, ...]
    source: str

    def answer(self, health: Mapping[str, str], blind: Collection[str] = ()) -> Answer:
        """The action for a host with these states; a missing or other state is unknown.

        `blind` are networks on which no host can be seen, because their cluster has no quorum
        or the monitor is cut off. A host that is down on all other networks gets an alert if it
        would get recovery or alert were it down on the blind networks too.
        """
        named = (health.get(name, UNKNOWN) for name in self.networks)
        states = tuple(state if state in (UP, DOWN) else UNKNOWN for state in named)
        answer = self._answer_for(states)
        if answer.action == UNDECIDED and blind and self._is_lost(states, blind):
            return self._alert(states, blind)
        return answer

    def _is_lost(self, states: Health, blind: Collection[str]) -> bool:
        """Whether the host is down on every visible network, and at least on one."""
        rest = [state for n, state in zip(self.networks, states, strict=True) if n not in blind]
        down_too = self._answer_for(tuple(DOWN if state == UNKNOWN else state for state in states))
        return set(rest) == {DOWN} and down_too.action in (RECOVERY, ALERT)

    def _alert(self, states: Health, blind: Collection[str]) -> Answer:
        for_s = max(self._answer_for(completion).for_s for completion in completions(states))
        dark = " and ".join(name for name in self.networks if name in blind)
        sentence = f"down on every network that can be seen, {dark} cannot be seen -> alert"
        return Answer(ALERT, for_s, f"{sentence} {after(for_s)}", is_decided=False)

    def left_out(self) -> Sequence[Health]:
        """The combinations of up and down without a rule: the matrix does nothing about them."""
        return [
            row.health
            for row in self.table()
            if row.answer.rule is None and set(row.health) != {UP}
        ]

    @property
    def warning(self) -> str:
        """List the combinations without a rule; "" if there are none."""
        missing = self.left_out()
        if not missing:
            return ""
        shown = ", ".join(f"[{', '.join(row_health)}]" for row_health in missing[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        is_single = len(missing) == 1
        many = (
            "1 row is left out and counts"
            if is_single
            else f"{len(missing)} rows are left out and count"
        )
        return f"{many} as none, in the order {', '.join(self.networks)}: {shown}{more}"

    def table(self) -> Sequence[Row]:
        """Every combination of up and down, all up first, the last network changing fastest."""
        return [
            Row(health, self._answer_for(health)) for health in combinations(len(self.networks))
        ]

    def agrees(self, other: "Matrix") -> bool:
        """Whether both matrices give the same answer for every host, however they are written."""
        if set(self.networks) != set(other.networks):
            return False
        return all(
            (row.answer.action, row.answer.for_s) == (same.action, same.for_s)
            for row in self.table()
            for same in (other.answer(dict(zip(self.networks, row.health, strict=True))),)
        )

    def to_plain(self) -> dict[str, Any]:
        """The matrix as JSON-compatible data for the API."""
        rules = [
            {"health": list(r.health), "action": r.action, "for_s": r.for_s, "line": r.line}
            for r in self.rules
        ]
        return {"networks": list(self.networks), "rules": rules, "source": self.source}

    @cached_property
    def _answers(self) -> dict[Health, Answer]:
        """Cache of answers by health, because there are thousands of hosts."""
        return {}

    @cached_property
    def _tests(self) -> Sequence[tuple[int, int, Rule]]:
        """Each rule with bit masks of its relevant networks and of the networks that must be down.

        Tables of many networks are long, and bit masks are fast.
        """
        return [(_bits(r.health, UP, DOWN), _bits(r.health, DOWN), r) for r in self.rules]

    def _answer_for(self, states: Health) -> Answer:
        if states not in self._answers:
            find = self._possible if UNKNOWN in states else self._certain
            self._answers[states] = find(states)
        return self._answers[states]

    def _possible(self, states: Health) -> Answer:
        """The common answer for all states of the unknown networks, or an undecided answer."""
        answers = [self._answer_for(completion) for completion in completions(states)]
        unknown = [n for n, state in zip(self.networks, states, strict=True) if state == UNKNOWN]
        last = max(answers, key=lambda answer: answer.for_s)
        actions = {answer.action for answer in answers}
        if actions == {RECOVERY, ALERT}:
            sentence = f"{_undecided(unknown, answers)} -> alert {after(last.for_s)}"
            return Answer(ALERT, last.for_s, sentence, is_decided=False)
        if len(actions) > 1:
            return Answer(UNDECIDED, 0.0, _undecided(unknown, answers), is_decided=False)
        if all(answer.rule is last.rule for answer in answers):
            return last
        sentence = f"{last.action}, whatever {' and '.join(unknown)} would be"
        latest = "" if last.action == NONE else f"; at the latest by {last.sentence}"
        return Answer(last.action, last.for_s, sentence + latest, last.rule)

    def _certain(self, health: Health) -> Answer:
        if set(health) <= {UP}:
            return Answer(NONE, 0.0, "up on every network -> none")
        down = _bits(health, DOWN)
        rule = next(
            (rule_ for matters, wanted, rule_ in self._tests if down & matters == wanted), None
        )
        if rule is None:
            return Answer(NONE, 0.0, f"no rule for {condition(self.networks, health)} -> none")
        for_s = 0.0 if rule.action == NONE else rule.for_s
        return Answer(rule.action, for_s, rule.text(self.networks), rule)


def _bits(health: Health, *states: str) -> int:
    return sum(1 << place for place, state in enumerate(health) if state in states)


def _undecided(unknown: Sequence[str], answers: Sequence[Answer]) -> str:
    if len(unknown) == 1:
        up, down = answers
        meant = f"up would mean {up.action}, down would mean {down.action}"
        return f"undecided: {unknown[0]} is unknown; {meant}"
    actions = [action for action in ACTIONS if any(answer.action == action for answer in answers)]
    return f"undecided: {' and '.join(unknown)} are unknown; it could be {' or '.join(actions)}"


def parse(text: str | bytes, networks: Sequence[str], source: str = "the HA matrix") -> Matrix:
    """Read an HA matrix file of either format for the configured networks.

    InvalidMatrix lists all problems of the file.
    """
    from holdfast.hostmonitor.matrix_file import read  # only readers of files need YAML

    return read(text, networks, source)


def default(networks: Sequence[str]) -> Matrix:
    """Recovery when storage is down; with a single network, when this network is down."""
    if problems := wrong_networks(networks):
        raise InvalidMatrix.because("the list of networks", problems)
    if len(networks) > 1 and STORAGE not in networks:
        raise InvalidMatrix(
            f"there is no default for the networks {', '.join(networks)}, none of which is called"
            f" {STORAGE}: write an HA matrix file that says what is to be done",
        )
    decisive = networks[0] if len(networks) == 1 else STORAGE
    down = tuple(DOWN if name == decisive else ANY for name in networks)
    rest = tuple(ANY for _ in networks)
    rules = (Rule(down, RECOVERY, DEFAULT_FOR_S), Rule(rest, NONE, 0.0))
    return Matrix(tuple(networks), rules, "default")


def from_plain(plain: Mapping[str, Any]) -> Matrix:
    """Read the result of `to_plain` from any sender; InvalidMatrix if malformed."""
    if not isinstance(plain, Mapping):
        raise InvalidMatrix("an HA matrix is an object with networks, rules and source")
    networks, source, rules = (plain.get(key) for key in ("networks", "source", "rules"))
    if not isinstance(networks, list):
        raise InvalidMatrix("the HA matrix has no list of networks")
    if wrong := wrong_networks(networks):
        raise InvalidMatrix.because("the HA matrix", wrong)
    if not isinstance(source, str) or len(source) > LONGEST_FOR_SOURCE:
        raise InvalidMatrix("the HA matrix does not say where it came from: `source` is a text")
    if not isinstance(rules, list) or len(rules) > MOST_RULES:
        raise InvalidMatrix(f"the HA matrix has no list of up to {MOST_RULES} rules")
    return Matrix(tuple(networks), tuple(_rule(rule, len(networks)) for rule in rules), source)


def _rule(plain: Any, width: int) -> Rule:
    if not isinstance(plain, Mapping):
        raise InvalidMatrix(f"a rule is an object with health, action and for_s, not {plain!r:.40}")
    health, action, for_s, line = (plain.get(k) for k in ("health", "action", "for_s", "line"))
    if (
        not isinstance(health, list)
        or len(health) != width
        or any(state not in (UP, DOWN, ANY) for state in health)
        or action not in ACTIONS
        or not isinstance(for_s, int | float)
        or not 0 <= for_s <= LONGEST_FOR_S  # also refuses NaN
        or not isinstance(line, int)
    ):
        raise InvalidMatrix(
            f"a rule has the health of {width} networks (up, down, any), an action"
            f" ({', '.join(ACTIONS)}), for_s and line, which {plain!r:.200} has not"
        )
    return Rule(tuple(health), action, float(for_s), line)


def wrong_networks(networks: Sequence[Any]) -> list[Problem]:
    """List the problems of a list of network names."""
    if not networks:
        return [Problem(0, "no network is named: name at least one")]
    if len(networks) > MOST_NETWORKS:
        text = f"{len(networks)} networks are more than the {MOST_NETWORKS} there can be"
        return [Problem(0, text)]
    problems = []
    for place, name in enumerate(networks):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            text = f"{name!r:.80} cannot be the name of a network: use letters, digits and _ . -"
            problems.append(Problem(0, text))
        elif name in networks[:place]:
            problems.append(Problem(0, f"network {name} is named twice: name each once"))
    return problems


def combinations(width: int) -> Iterator[Health]:
    """All combinations of up and down for `width` networks, in drawing order.

    >>> list(combinations(2))
    [('up', 'up'), ('up', 'down'), ('down', 'up'), ('down', 'down')]
    """
    return itertools.product((UP, DOWN), repeat=width)


def completions(health: Health) -> Iterator[Health]:
    """All combinations of up and down for the unknown (or any) states of a health.

    >>> list(completions(("down", "unknown")))
    [('down', 'up'), ('down', 'down')]
    """
    return itertools.product(*((state,) if state in (UP, DOWN) else (UP, DOWN) for state in health))


def condition(networks: Sequence[str], health: Health) -> str:
    """A health as text, without the networks in state any.

    >>> condition(("manage", "storage"), ("any", "down")), condition(("manage",), ("any",))
    ('storage down', 'anything else')
    """
    conditions = [f"{n} {is_}" for n, is_ in zip(networks, health, strict=True) if is_ != ANY]
    return ", ".join(conditions) or "anything else"


def after(for_s: float) -> str:
    """A duration as text.

    >>> after(3.0), after(0.25), after(0)
    ('after 3 s', 'after 0.25 s', 'at once')
    """
    return f"after {for_s:g} s" if for_s else "at once"
