# SPDX-License-Identifier: Apache-2.0
"""Conditions on hosts: property expressions, and capabilities as Nova's flavors write them.

    ["and", [">=", "$vcpus", "8"], ["or", ["==", "$gpu", "True"], ["in", "$rack", "a", "b"]]]

A property expression is a JSON list: comparison `[op, "$key", value]`, `["in", "$key", value,
…]`, `["not", e]`, `["and"|"or", e, …]`. "" and "[]" ask for nothing. Two numbers compare as
numbers, anything else as text. A host that lacks the key does not match, whatever the
comparison. No code is evaluated; size and depth are capped.

`parse_spec` reads a capability: one operator, then its values.
"""

import functools
import json
import math
import operator
import re
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
    """A parsed expression: `matches(facts)`, the keys it reads, and a readable text.

    `parts` must all match: the parts of an outermost `and`, or the expression itself.
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
        self.source = source  # the exact JSON
        self.parts: Sequence[Expression] = (self,) if parts is None else parts

    def matches(self, facts: Facts) -> bool:
        return self._test(facts)


def parse(text: str, field: str = "resource_properties") -> Expression:
    """Parse an expression; InvalidInput names `field` and the mistake."""
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
    parts = [_Parser(field, text).expression(child) for child in _joined_by_and(tree)]
    return Expression(test, frozenset(parser.keys), _readable(tree), json.dumps(tree), parts)


def _joined_by_and(tree: Any) -> Iterator[Any]:
    if tree[0] != "and":
        yield tree
        return
    for child in tree[1:]:
        yield from _joined_by_and(child)


def _readable(tree: Any) -> str:
    """Return a readable text of a parsed tree: `vcpus >= 8 and not (rack in a, b)`."""
    operator_, rest = tree[0], tree[1:]
    if operator_ == "not":
        return f"not ({_readable(rest[0])})"
    if operator_ in ("and", "or"):
        return f" {operator_} ".join(_inner(child, operator_) for child in rest)
    return f"{path(rest[0][1:])} {operator_} {', '.join(map(str, rest[1:]))}"


def _inner(child: Any, operator_: str) -> str:
    text = _readable(child)
    return f"({text})" if child[0] in ("and", "or") and child[0] != operator_ else text


def both(*expressions: Expression) -> Expression:
    """Join expressions with `and`."""
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
        return Expression(test, frozenset(self.keys), _readable(node), json.dumps(node))

    def test(self, node: Any, depth: int) -> Test:
        self._nodes += 1
        self._check_size(depth)
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise _malformed(self.field, self.text)
        operator_, rest = node[0], node[1:]
        if operator_ in ("and", "or", "not"):
            return self._joined(operator_, rest, depth)
        if operator_ == "in" and len(rest) >= 2:
            self._nodes += len(rest) - 2  # every value is a comparison
            self._check_size(depth)
            return self._in(self._key(rest[0]), list(self._values(rest[1:])))
        if operator_ in _COMPARE and len(rest) == 2:
            (value,) = self._values(rest[1:])
            return self._comparison(_COMPARE[operator_], self._key(rest[0]), value)
        raise _malformed(self.field, self.text)

    def _check_size(self, depth: int) -> None:
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise InvalidInput(
                f"{self.field} is nested deeper than {MAX_DEPTH} or has more than"
                f" {MAX_NODES} conditions"
            )

    def _joined(self, operator_: str, rest: list[Any], depth: int) -> Test:
        parts = [self.test(child, depth + 1) for child in rest]
        if operator_ == "not" and len(parts) == 1:
            return lambda facts: not parts[0](facts)
        if operator_ == "not" or not parts:
            raise _malformed(self.field, self.text)
        join = all if operator_ == "and" else any
        return lambda facts: join(part(facts) for part in parts)

    def _key(self, text: Any) -> str:
        key = path(text[1:]) if isinstance(text, str) and text[:1] == "$" else ""
        if not key:
            raise _malformed(self.field, self.text)
        self.keys.add(key)
        return key

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


def _comparable(value: str, other: str) -> tuple[Any, Any]:
    """Return both as numbers when both are numbers, else as text; "nan", "inf" and "1_0" are
    text."""
    try:
        numbers = float(value), float(other)
    except ValueError:
        return value, other
    plain = all(map(math.isfinite, numbers)) and "_" not in value + other
    return numbers if plain else (value, other)


# Capabilities of a host, in the syntax of Nova's flavors: one operator, then its values.
#
#     {"capabilities:gpu": ">= 4", "rack": "<or> a7 <or> a8", "cpu_info:features": "<in> avx2"}
#
# `= == != >= <=` compare numbers (`=` means at least), `s== s!= s< s<= s> s>=` compare text.
# `<in> x` means that the value contains x, `<all-in> x y` that it contains both, `<or> x <or>
# y` that it is one of them. Without an operator the value must equal the text. A key may carry
# the scope `capabilities:`; further colons reach into a value that is JSON. A host that lacks
# the key never matches.
#
# >>> parse_spec(">= 4")("8"), parse_spec("<or> a <or> b")("b"), parse_spec("<in> avx")("sse avx2")
# (True, True, True)


MAX_SPEC = 1024
MAX_KEY = 255
MAX_KEYS = 100
MAX_REQUEST = 65_536
SCOPE = "capabilities:"

SpecTest = Callable[[str], bool]
#: Returns a host's fact by name; None when the host has no such fact.
Fact = Callable[[str], Any]

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_OPERATORS = (*_NUMBERS, *_TEXTS, "<in>", "<all-in>", "<or>")


def parse_spec(text: str, field: str = "capabilities") -> SpecTest:
    """Return a test for a host's value; InvalidInput names `field` and the mistake."""
    if len(text) > MAX_SPEC:
        raise InvalidInput(f"{field}: longer than {MAX_SPEC} characters")
    words = text.split()
    if not words:
        raise InvalidInput(f"{field}: empty; write a value, or an operator and a value")
    operator_, values = words[0], words[1:]
    if operator_ not in _OPERATORS:
        _check_space(operator_, field)
        return lambda value: value == text
    if not values:
        raise InvalidInput(f"{field}: {operator_} needs a value after it")
    if operator_ == "<or>":
        return _one_of(values, field)
    if operator_ == "<all-in>":
        return lambda value: all(part in value for part in values)
    if len(values) > 1:
        raise InvalidInput(f"{field}: {operator_} takes one value, not {' '.join(values)}")
    return _single(operator_, values[0], field)


def path(key: str) -> str:
    """Return the key without its scope."""
    return key.removeprefix(SCOPE)


def value(fact: Fact, key: str) -> str | None:
    """Return a host's value for the key as text: by its whole name, or step by step into JSON."""
    name = path(key)
    fact_value = fact(name)
    if fact_value is None and ":" in name:
        first, *steps = name.split(":")
        fact_value = _descend(fact(first), steps)
    return None if fact_value is None else str(fact_value)


def _check_space(text: str, field: str) -> None:
    for sign in sorted(_OPERATORS, key=len, reverse=True):
        if text.startswith(sign):
            raise InvalidInput(f"{field}: put a space after {sign} in {text[:80]}")


def _one_of(values: Sequence[str], field: str) -> SpecTest:
    choices, joints = values[::2], values[1::2]
    if any(joint != "<or>" for joint in joints) or len(choices) == len(joints):
        raise InvalidInput(f"{field}: write <or> a <or> b, one word between each")
    return lambda value: value in choices


def _single(operator_: str, wanted: str, field: str) -> SpecTest:
    if operator_ == "<in>":
        return lambda value: wanted in value
    if operator_ in _TEXTS:
        as_text = _TEXTS[operator_]
        return lambda value: as_text(value, wanted)
    number, compare = _number(wanted), _NUMBERS[operator_]
    if number is None:
        raise InvalidInput(
            f"{field}: {operator_} compares numbers and {wanted} is none; s== is for text"
        )
    return lambda value: (mine := _number(value)) is not None and compare(mine, number)


def _number(text: str) -> float | None:
    """Parse a plain number; None for text, also for "nan", "inf" and "1_0"."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _descend(node: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if isinstance(node, str):
            node = _loaded(node)
        if not isinstance(node, Mapping):
            return None
        node = node.get(step)
    return node


@functools.lru_cache(maxsize=1024)
def _loaded(text: str) -> Any:
    """Parse JSON of a host's fact; cached, because hosts of the same model have equal facts."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _request(text: str, field: str) -> Any:
    """Parse JSON of a request; not cached, because requests vary without limit."""
    if len(text) > MAX_REQUEST:
        raise InvalidInput(f"{field}: longer than {MAX_REQUEST} characters")
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None


def read(request: Any, field: str = "capabilities") -> Iterator[tuple[str, str]]:
    """Yield keys and checked expressions of a request; a command line sends JSON as text."""
    if isinstance(request, str):
        request = _request(request, field)
    if not isinstance(request, Mapping):
        raise InvalidInput(f'Malformed parameter {field}: write {{"gpu": ">= 4"}}')
    if len(request) > MAX_KEYS:
        raise InvalidInput(f"{field}: more than {MAX_KEYS} are asked for")
    for key, text in request.items():
        if not isinstance(key, str) or not path(key).strip(":"):
            raise InvalidInput(f"Malformed parameter {field}: a key is empty")
        if len(key) > MAX_KEY or _UNKEEPABLE.search(f"{key}{text}"):
            raise InvalidInput(
                f"Malformed parameter {field}: a key is longer than {MAX_KEY} characters, or"
                " there are characters that cannot be kept (NUL or surrogates)"
            )
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise InvalidInput(f"Malformed parameter {field}: {key[:80]} wants text")
        parse_spec(str(text), f"{field}: {key[:80]}")
        yield key, str(text)
