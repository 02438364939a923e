# SPDX-License-Identifier: Apache-2.0
"""Property expressions: which hosts a request will take.

    ["and", [">=", "$vcpus", "8"], ["or", ["==", "$gpu", "True"], ["in", "$rack", "a", "b"]]]

A JSON list: comparison `[op, "$key", value]`, `["in", "$key", value, …]`, `["not", e]`,
`["and"|"or", e, …]`. "" and "[]" ask for nothing. Two numbers compare as numbers, anything else as
text. A host that lacks the key does not match, whatever the comparison. No code is evaluated; size
and depth are capped.
"""

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.model.errors import InvalidInput

MAX_TEXT = 16_384
MAX_DEPTH = 16
MAX_NODES = 500

Facts = Mapping[str, str | int | float | bool]
Test = Callable[[Facts], bool]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Expression:
    """A parsed expression: `matches(facts)`, the keys it asks about, and how a person would say it.

    `parts` are what must all be so: those of an outermost `and`, or the expression itself.
    """

    def __init__(
        self,
        test: Test,
        keys: frozenset[str],
        text: str = "",
        source: str = "",
        parts: Sequence["Expression"] | None = None,
    ) -> None:
        self._test = test
        self.keys = keys
        self.text = text
        self.source = source  # as JSON, to the letter
        self.parts: Sequence[Expression] = (self,) if parts is None else parts

    def matches(self, facts: Facts) -> bool:
        return self._test(facts)


def parse(text: str, field: str = "resource_properties") -> Expression:
    """Read an expression or say what is wrong with it, naming `field`."""
    if text.strip() in ("", "[]"):
        return Expression(lambda _facts: True, frozenset(), parts=())
    if len(text) > MAX_TEXT:
        raise InvalidInput(f"{field} is longer than {MAX_TEXT} characters")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed(field, text) from None
    parser = _Parser(field, text)
    test = parser.test(tree, depth=0)
    parts = [_Parser(field, text).expression(one) for one in _joined_by_and(tree)]
    return Expression(test, frozenset(parser.keys), _said(tree), json.dumps(tree), parts)


def _joined_by_and(tree: Any) -> Iterator[Any]:
    if tree[0] != "and":
        yield tree
        return
    for child in tree[1:]:
        yield from _joined_by_and(child)


def _said(tree: Any) -> str:
    """`vcpus >= 8 and not (rack in a, b)`; of a tree that was parsed."""
    word, rest = tree[0], tree[1:]
    if word == "not":
        return f"not ({_said(rest[0])})"
    if word in ("and", "or"):
        return f" {word} ".join(_inner(child, word) for child in rest)
    return f"{rest[0][1:]} {word} {', '.join(map(str, rest[1:]))}"


def _inner(child: Any, word: str) -> str:
    said = _said(child)
    return f"({said})" if child[0] in ("and", "or") and child[0] != word else said


def both(*expressions: Expression) -> Expression:
    """All of them at once."""
    return Expression(
        lambda facts: all(e.matches(facts) for e in expressions),
        frozenset().union(*(e.keys for e in expressions)),
        " and ".join(e.text for e in expressions if e.text),
        parts=[part for e in expressions for part in e.parts],
    )


def _malformed(field: str, text: str) -> InvalidInput:
    return InvalidInput(
        f'Malformed requirements {text[:200]} in {field}: write ["<op>", "$key", "value"],'
        ' joined by ["and", …], ["or", …] or ["not", …]'
    )


class _Parser:
    def __init__(self, field: str, text: str) -> None:
        self.field = field
        self.text = text
        self.keys: set[str] = set()
        self._nodes = 0

    def expression(self, node: Any) -> Expression:
        test = self.test(node, depth=0)
        return Expression(test, frozenset(self.keys), _said(node), json.dumps(node))

    def test(self, node: Any, depth: int) -> Test:
        self._nodes += 1
        self._check_size(depth)
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise _malformed(self.field, self.text)
        word, rest = node[0], node[1:]
        if word in ("and", "or", "not"):
            return self._joined(word, rest, depth)
        if word == "in" and len(rest) >= 2:
            self._nodes += len(rest) - 2  # every value is a comparison
            self._check_size(depth)
            return self._in(self._key(rest[0]), list(self._values(rest[1:])))
        if word in _COMPARE and len(rest) == 2:
            (value,) = self._values(rest[1:])
            return self._comparison(_COMPARE[word], self._key(rest[0]), value)
        raise _malformed(self.field, self.text)

    def _check_size(self, depth: int) -> None:
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise InvalidInput(
                f"{self.field} is nested deeper than {MAX_DEPTH} or has more than"
                f" {MAX_NODES} conditions"
            )

    def _joined(self, word: str, rest: list[Any], depth: int) -> Test:
        parts = [self.test(child, depth + 1) for child in rest]
        if word == "not" and len(parts) == 1:
            return lambda facts: not parts[0](facts)
        if word == "not" or not parts:
            raise _malformed(self.field, self.text)
        join = all if word == "and" else any
        return lambda facts: join(part(facts) for part in parts)

    def _key(self, word: Any) -> str:
        if not isinstance(word, str) or len(word) < 2 or word[0] != "$":
            raise _malformed(self.field, self.text)
        self.keys.add(word[1:])
        return word[1:]

    def _values(self, values: list[Any]) -> Iterator[str]:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise _malformed(self.field, self.text)
            yield str(value)

    @staticmethod
    def _comparison(compare: Callable[[Any, Any], bool], key: str, value: str) -> Test:
        def test(facts: Facts) -> bool:
            if key not in facts:
                return False
            return compare(*_comparable(str(facts[key]), value))

        return test

    @staticmethod
    def _in(key: str, values: list[str]) -> Test:
        def test(facts: Facts) -> bool:
            if key not in facts:
                return False
            return any(a == b for a, b in (_comparable(str(facts[key]), v) for v in values))

        return test


def _comparable(one: str, other: str) -> tuple[Any, Any]:
    """Numbers when both are, text otherwise; "nan", "inf" and "1_0" are words."""
    try:
        numbers = float(one), float(other)
    except ValueError:
        return one, other
    plain = all(map(math.isfinite, numbers)) and "_" not in one + other
    return numbers if plain else (one, other)
