# SPDX-License-Identifier: Apache-2.0
"""Maps, lists, words and lengths of time out of `yaml_lines`, each problem named with its line.

What could not be read is said once, and something harmless takes its place, so that the rest of
the file is looked at too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.model.matrix import LONGEST_FOR_S, MOST_RULES, BadStrategy, Problem
from holdfast.model.yaml_lines import List, Map, Node, Word, decoded, read

T = TypeVar("T")

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass
class Reading:
    """One file being read; problems are collected on the way."""

    problems: list[Problem] = field(default_factory=list)

    def say(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, text))

    def whole(
        self,
        data: str | bytes,
        take: Callable[[Node | None], T | None],
        refused: Callable[[Sequence[Problem]], BadStrategy],
        *,
        quick: bool = False,
    ) -> T:
        """What `take` makes of a file, or `refused` with all that is wrong with it."""
        text = decoded(data, self.problems)
        tree = None if self.problems else read(text, self.problems, quick=quick)
        found = None if self.problems else take(tree)
        if found is None or self.problems:
            raise refused(self.problems)
        return found

    def fields(
        self, node: Node, known: Sequence[str], *, needed: Sequence[str] = (), of: str = "key"
    ) -> dict[str, Node]:
        """Of a map what is known; what is not, or twice, or missing, is a problem."""
        if not isinstance(node, Map):
            self.say(node.line, f"{shown(node)} should be a map: write {{{known[0]}: …}}")
            return {}
        found: dict[str, Node] = {}
        for key, value in node.pairs:
            if key.text not in known:
                text = f"{of} {quoted(key.text)} is unknown: there are {', '.join(known)}"
                self.say(key.line, text)
            elif key.text in found:
                self.say(key.line, f"{of} {key.text} is there twice: keep one of them")
            else:
                found[key.text] = value
        for name in needed:
            if name not in {key.text for key, _ in node.pairs}:
                self.say(node.line, f"`{name}` is missing: add `{name}: …`")
        return found

    def items(self, node: Node | None, what: str) -> tuple[Node, ...]:
        """Of a list, none if there is no such thing (which was said already)."""
        if node is None:
            return ()
        if not isinstance(node, List):
            self.say(node.line, f"`{what}` is {shown(node)} and should be a list: write [ … ]")
            return ()
        if len(node.items) > MOST_RULES:
            self.say(node.line, f"`{what}` has more than {MOST_RULES} entries: write fewer")
            return ()
        return node.items

    def words(self, node: Node | None, what: str) -> tuple[str, ...]:
        """A word, or a list of them."""
        if node is None:
            return ()
        if isinstance(node, List) and not node.items:
            self.say(node.line, f"`{what}` is an empty list: name something, or leave it out")
        found = [node] if isinstance(node, Word) else self.items(node, what)
        texts = []
        for one in found:
            if isinstance(one, Word) and one.text.strip():
                texts.append(one.text.strip())
            else:
                self.say(one.line, f"`{what}`: {shown(one)} should be a word")
        return tuple(texts)

    def choice(self, node: Node | None, allowed: Sequence[str], what: str) -> str:
        """One of these words."""
        if node is None:
            return ""
        if isinstance(node, Word) and node.text in allowed:
            return node.text
        self.say(node.line, f"{shown(node)} is no {what}: write {either(allowed)}")
        return ""

    def span(self, node: Node | None, otherwise_s: float) -> float:
        """A length of time, in seconds."""
        if node is None:
            return otherwise_s
        lasts_s = seconds(node.text) if isinstance(node, Word) else None
        if lasts_s is None:
            text = f"{shown(node)} is no length of time: write 500ms, 3s, 2m, 1h or 0"
            self.say(node.line, text)
            return otherwise_s
        if lasts_s > LONGEST_FOR_S:
            self.say(node.line, f"{shown(node)} is longer than a day: nobody would be helped")
        return lasts_s


def seconds(text: str) -> float | None:
    """500ms, 3s, 2m, 1h, 0; None if it is something else."""
    match = _SPAN.fullmatch(text)
    return float(match[1]) * _UNITS_S[match[2] or "s"] if match else None


def either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def shown(node: Node) -> str:
    """What stands there, for a sentence about it."""
    if isinstance(node, Word):
        return quoted(node.text) if node.text else "nothing"
    if isinstance(node, Map):
        return "a map"
    words = [one.text for one in node.items if isinstance(one, Word)]
    return quoted(f"[{', '.join(words)}]") if len(words) == len(node.items) else "a list"
