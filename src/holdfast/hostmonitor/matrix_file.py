# SPDX-License-Identifier: Apache-2.0
"""HA matrix files in Masakari's format and Holdfast's own, read and written.

The reader names every problem with its line.

    sequence: [manage, tenant, storage]        networks: [manage, tenant, storage]
    matrix:                                    for: 3s
      - health: [up, up, down]                 rules:
        action: [recovery]                       - {when: {storage: down}, do: recovery, for: 5s}
      - …                                        - {when: {manage: down}, do: alert}
                                               otherwise: none

In Holdfast's format the first matching rule decides, and a network that a rule does not name
may have any state. A rule that can never match and two rules that contradict each other are
errors. Combinations without a row or rule count as none, as in Masakari (`Matrix.warning` lists
them).
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.hostmonitor.matrix import (
    ACTIONS,
    ALERT,
    ANY,
    DEFAULT_FOR_S,
    DOWN,
    MOST_NAMED,
    NONE,
    RECOVERY,
    UP,
    Health,
    InvalidMatrix,
    Matrix,
    Rule,
    combinations,
    wrong_networks,
)
from holdfast.runtime.documents import List, Map, Node, Reading, Scalar, quoted, shown

MASAKARI_KEYS = ("sequence", "matrix", "for")
MASAKARI_ROW = ("health", "action")
OUR_KEYS = ("networks", "for", "rules", "otherwise")
OUR_RULE = ("when", "do", "for")


def read(data: str | bytes, networks: Sequence[str], source: str) -> Matrix:
    """Read an HA matrix file; see `matrix.parse`."""
    if wrong := wrong_networks(networks):
        raise InvalidMatrix.because("the list of networks", wrong)
    reading = _Reading(tuple(networks))
    because = functools.partial(InvalidMatrix.because, source)
    return reading.whole(data, lambda tree: reading.ha_matrix(tree, source), because)


@dataclass(frozen=True)
class _Claim:
    """A rule as far as the reader understood it.

    An unreadable state counts as any, and `sure` is then false because the matching hosts are
    not certain. An unreadable action is empty.
    """

    rule: Rule
    sure: bool


class _Reading(Reading):
    """Reader of an HA matrix file in either format."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        super().__init__()
        self.networks = networks

    def ha_matrix(self, tree: Node | None, source: str) -> Matrix | None:
        empty = "write rules, or do without a file to get the default"
        root = self.root(tree, empty, "an HA matrix begins with `rules:`, or with `sequence:`")
        if root is None:
            return None
        keys = {key.text for key, _ in root.pairs}
        if keys & {"sequence", "matrix"}:
            return self._masakari(root, source)
        return self._ours(root, source)

    # Masakari's format

    def _masakari(self, tree: Map, source: str) -> Matrix:
        fields = self.fields(tree, MASAKARI_KEYS, needed=("sequence", "matrix"))
        lasts_s = self.span(fields.get("for"), DEFAULT_FOR_S)
        names = self._names(fields.get("sequence"))
        table = fields.get("matrix")
        if table is None:
            return Matrix(names, (), source)
        rows = self.items(table, "matrix")
        claims = [claim for row in rows if (claim := self._row(row, lasts_s))]
        self._check(claims)
        return Matrix(names, tuple(claim.rule for claim in claims), source)

    def _row(self, row: Node, lasts_s: float) -> _Claim | None:
        fields = self.fields(row, MASAKARI_ROW, needed=MASAKARI_ROW)
        action = self._row_action(fields["action"]) if "action" in fields else ""
        if "health" not in fields or not isinstance(fields["health"], List):
            self.items(fields.get("health"), "health")
            return None
        words, width = fields["health"].items, len(self.networks)
        if len(words) != width:
            text = f"{len(words)} states for {width} networks: write one for each, in their order"
            self.say(fields["health"].line, text)
            return None
        before = len(self.problems)
        health = tuple(self.choice(node, (UP, DOWN), "state", ANY) for node in words)
        for_s = 0.0 if action == NONE else lasts_s
        return _Claim(Rule(health, action, for_s, row.line), len(self.problems) == before)

    def _row_action(self, node: Node) -> str:
        words = node.items if isinstance(node, List) else (node, node)
        if not words:
            return NONE
        first = words[0]
        if len(words) == 1 and isinstance(first, Scalar) and first.text in (RECOVERY, ALERT):
            return first.text
        self.say(node.line, f"{shown(node)} is no action: write [{RECOVERY}], [{ALERT}] or []")
        return ""

    # Holdfast's format

    def _ours(self, tree: Map, source: str) -> Matrix:
        fields = self.fields(tree, OUR_KEYS, needed=("rules",))
        lasts_s = self.span(fields.get("for"), DEFAULT_FOR_S)
        names = self._names(fields.get("networks"))
        rows = self.items(fields.get("rules"), "rules")
        claims = [claim for row in rows if (claim := self._rule(row, names, lasts_s))]
        self._check(claims)
        if "otherwise" in fields:
            claims.append(self._otherwise(fields["otherwise"], claims, lasts_s))
        return Matrix(names, tuple(claim.rule for claim in claims), source)

    def _rule(self, node: Node, names: tuple[str, ...], lasts_s: float) -> _Claim | None:
        fields = self.fields(node, OUR_RULE, needed=("when", "do"))
        action = self.choice(fields.get("do"), ACTIONS, "action")
        if action == NONE and "for" in fields:
            self.say(fields["for"].line, "nothing is done, so nothing has to last: leave `for` out")
        for_s = self.span(fields.get("for"), lasts_s)
        if "when" not in fields:
            return None
        before = len(self.problems)
        health = dict.fromkeys(names, ANY)
        for name, state in self.fields(fields["when"], names, of="network").items():
            health[name] = self.choice(state, (UP, DOWN, ANY), "state", ANY)
        rule = Rule(tuple(health.values()), action, 0.0 if action == NONE else for_s, node.line)
        return _Claim(rule, len(self.problems) == before)

    def _otherwise(self, node: Node, claims: Sequence[_Claim], lasts_s: float) -> _Claim:
        """The final rule about all other combinations.

        The rule may match nothing if its action is none.
        """
        action = self.choice(node, ACTIONS, "action")
        everything = (ANY,) * len(self.networks)
        rule = Rule(everything, action, 0.0 if action == NONE else lasts_s, node.line)
        claim = _Claim(rule, sure=True)
        if action in (RECOVERY, ALERT):
            self._check([*claims, claim], only_last=True)
        return claim

    # both

    def _names(self, node: Node | None) -> tuple[str, ...]:
        """The networks in the order of the file, which must list all configured networks."""
        if node is None:
            return self.networks
        before = len(self.problems)
        configured = ", ".join(self.networks)
        names: list[str] = []
        for item in self.items(node, "networks"):
            name = item.text if isinstance(item, Scalar) else shown(item)
            if name not in self.networks:
                text = f"network {quoted(name)} is not configured: there are {configured}"
                self.say(item.line, text)
            elif name in names:
                self.say(item.line, f"network {name} is named twice: name each once")
            names.append(name)
        for name in self.networks:
            if name not in names:
                self.say(node.line, f"network {name} is left out: name each of {configured}")
        return tuple(names) if len(self.problems) == before else self.networks

    def _check(self, claims: Sequence[_Claim], *, only_last: bool = False) -> None:
        """Report contradicting rules, unreachable rules, and actions on healthy hosts."""
        sets, covered = _Sets(len(self.networks)), 0
        sure = [claim.rule for claim in claims if claim.sure]
        for place, rule in enumerate(sure):
            matched = sets.of(rule.health)
            # a host that is up on every network gets no action, whatever a rule says
            worked = matched & ~sets.all_up if rule.action in (RECOVERY, ALERT) else matched
            if only_last and rule is not sure[-1]:
                pass
            elif not worked:
                text = "it asks for something on hosts that are up on every network"
                self.say(rule.line, f"{text}: they are left alone, so write none")
            elif not worked & ~covered:
                self.say(rule.line, _too_late(rule, sure[:place], sets))
            covered |= matched


class _Sets:
    """Sets of combinations as bit masks, a bit per combination in drawing order; bit 0: all up."""

    all_up = 1

    def __init__(self, width: int) -> None:
        self.combinations = list(combinations(width))
        self.everything = (1 << len(self.combinations)) - 1
        self._down = [0] * width
        for bit, health in enumerate(self.combinations):
            for place, state in enumerate(health):
                if state == DOWN:
                    self._down[place] |= 1 << bit

    def of(self, health: Health) -> int:
        matching = self.everything
        for down, state in zip(self._down, health, strict=True):
            if state != ANY:
                matching &= down if state == DOWN else ~down
        return matching


def _too_late(rule: Rule, earlier: Sequence[Rule], sets: _Sets) -> str:
    same = next(
        (earlier_rule for earlier_rule in earlier if earlier_rule.health == rule.health), None
    )
    if same and (same.action, same.for_s) == (rule.action, rule.for_s):
        return f"it says the same as line {same.line}: take one of them away"
    if same and rule.action and same.action:
        differs = f"{rule.action} here, {same.action} there"
        differs = differs if rule.action != same.action else "another time to last"
        return f"it contradicts line {same.line}, which is about the same hosts: {differs}"
    left, lines = sets.of(rule.health), []
    for earlier_rule in earlier:
        if left & sets.of(earlier_rule.health):
            lines.append(str(earlier_rule.line))
            left &= ~sets.of(earlier_rule.health)
    where = f"line{'s' * (len(lines) > 1)} {', '.join(lines[:MOST_NAMED])}"
    return f"it never has its turn: {where} matched before; move it up or take it away"


def written(ha_matrix: Matrix) -> str:
    """An HA matrix as a file in Holdfast's format, for an operator who wants to change it.

    The written file gives the same answers for every host (`Matrix.agrees`).

    >>> from holdfast.hostmonitor.matrix import default
    >>> print(written(default(("manage", "tenant", "storage"))), end="")
    networks: [manage, tenant, storage]
    rules:
      - {when: {storage: down}, do: recovery, for: 3s}
    otherwise: none
    """
    used = _used(ha_matrix)
    last = used[-1] if used and set(used[-1].health) == {ANY} else None
    rules = used[:-1] if last is not None else used
    return "\n".join(_lines(ha_matrix.networks, rules, last)) + "\n"


def _used(ha_matrix: Matrix) -> Sequence[Rule]:
    """The rules that can match, in their order: the reader refuses a file with other rules."""
    matching = {id(row.answer.rule) for row in ha_matrix.table() if set(row.health) != {UP}}
    return [rule for rule in ha_matrix.rules if id(rule) in matching]


def _lines(networks: Sequence[str], rules: Sequence[Rule], last: Rule | None) -> Iterator[str]:
    yield f"networks: [{', '.join(map(_quoted, networks))}]"
    if last is not None and last.action != NONE and last.for_s != DEFAULT_FOR_S:
        yield f"for: {_span(last.for_s)}"
    yield "rules:" if rules else "rules: []"
    for rule in rules:
        named = zip(networks, rule.health, strict=True)
        when = ", ".join(f"{_quoted(name)}: {state}" for name, state in named if state != ANY)
        lasts = "" if rule.action == NONE else f", for: {_span(rule.for_s)}"
        yield f"  - {{when: {{{when}}}, do: {rule.action}{lasts}}}"
    # combinations without a rule count as none, and the file must say this
    yield f"otherwise: {NONE if last is None else last.action}"


def _quoted(name: str) -> str:
    """Quote a network name which YAML would read as another type."""
    return name if name[0].isalpha() else f"'{name}'"


def _span(for_s: float) -> str:
    return f"{for_s:.9f}".rstrip("0").rstrip(".") + "s" if for_s else "0"
