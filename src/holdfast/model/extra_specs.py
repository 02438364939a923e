# SPDX-License-Identifier: Apache-2.0
"""Capabilities of a host, asked for the way Nova's flavors do it: one operator, then its values.

    {"capabilities:gpu": ">= 4", "rack": "<or> a7 <or> a8", "cpu_info:features": "<in> avx2"}

`= == != >= <=` compare numbers (`=` means at least), `s== s!= s< s<= s> s>=` text; `<in> x` is part
of the value, `<all-in> x y` are both, `<or> x <or> y` is one of them; without an operator the
value is that very text. A key may carry the scope `capabilities:`, and reaches into a value that
is JSON by further colons. A host that lacks the key matches nothing.

>>> parse(">= 4")("8"), parse("<or> a <or> b")("b"), parse("<in> avx")("sse avx2")
(True, True, True)
"""

import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.model.errors import InvalidInput

MAX_TEXT = 1024
MAX_KEY = 255
MAX_KEYS = 100
MAX_REQUEST = 65_536
SCOPE = "capabilities:"

Test = Callable[[str], bool]
#: What a host says of itself under a name; None when it says nothing.
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


def parse(text: str, field: str = "capabilities") -> Test:
    """A test of a host's value, or what is wrong with the text, naming `field`."""
    if len(text) > MAX_TEXT:
        raise InvalidInput(f"{field}: longer than {MAX_TEXT} characters")
    words = text.split()
    if not words:
        raise InvalidInput(f"{field}: empty; write a value, or an operator and a value")
    word, values = words[0], words[1:]
    if word not in _OPERATORS:
        _check_space(word, field)
        return lambda value: value == text
    if not values:
        raise InvalidInput(f"{field}: {word} needs a value after it")
    if word == "<or>":
        return _one_of(values, field)
    if word == "<all-in>":
        return lambda value: all(part in value for part in values)
    if len(values) > 1:
        raise InvalidInput(f"{field}: {word} takes one value, not {' '.join(values)}")
    return _single(word, values[0], field)


def path(key: str) -> str:
    """The key without its scope."""
    return key.removeprefix(SCOPE)


def value(fact: Fact, key: str) -> str | None:
    """What a host has under the key, as text; by its whole name, or step by step into JSON."""
    name = path(key)
    found = fact(name)
    if found is None and ":" in name:
        first, *steps = name.split(":")
        found = _descend(fact(first), steps)
    return None if found is None else str(found)


def _check_space(word: str, field: str) -> None:
    for sign in sorted(_OPERATORS, key=len, reverse=True):
        if word.startswith(sign):
            raise InvalidInput(f"{field}: put a space after {sign} in {word[:80]}")


def _one_of(values: Sequence[str], field: str) -> Test:
    choices, joints = values[::2], values[1::2]
    if any(joint != "<or>" for joint in joints) or len(choices) == len(joints):
        raise InvalidInput(f"{field}: write <or> a <or> b, one word between each")
    return lambda value: value in choices


def _single(word: str, wanted: str, field: str) -> Test:
    if word == "<in>":
        return lambda value: wanted in value
    if word in _TEXTS:
        as_text = _TEXTS[word]
        return lambda value: as_text(value, wanted)
    number, compare = _number(wanted), _NUMBERS[word]
    if number is None:
        raise InvalidInput(
            f"{field}: {word} compares numbers and {wanted} is none; s== is for text"
        )
    return lambda value: (mine := _number(value)) is not None and compare(mine, number)


def _number(text: str) -> float | None:
    """Of a plain number; "nan", "inf" and "1_0" are words."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _descend(found: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if isinstance(found, str):
            found = _loaded(found)
        if not isinstance(found, Mapping):
            return None
        found = found.get(step)
    return found


@functools.lru_cache(maxsize=1024)
def _loaded(text: str) -> Any:
    """Hosts of one make say the same: it is read once."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _request(text: str, field: str) -> Any:
    """Not remembered like what hosts say: requests are anybody's, and of any number."""
    if len(text) > MAX_REQUEST:
        raise InvalidInput(f"{field}: longer than {MAX_REQUEST} characters")
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None


def read(given: Any, field: str = "capabilities") -> Iterator[tuple[str, str]]:
    """Keys and expressions of a request, each checked; a command line sends JSON as text."""
    if isinstance(given, str):
        given = _request(given, field)
    if not isinstance(given, Mapping):
        raise InvalidInput(f'Malformed parameter {field}: write {{"gpu": ">= 4"}}')
    if len(given) > MAX_KEYS:
        raise InvalidInput(f"{field}: more than {MAX_KEYS} are asked for")
    for key, text in given.items():
        if not isinstance(key, str) or not path(key).strip(":"):
            raise InvalidInput(f"Malformed parameter {field}: a key is empty")
        if len(key) > MAX_KEY or _UNKEEPABLE.search(f"{key}{text}"):
            raise InvalidInput(
                f"Malformed parameter {field}: a key is longer than {MAX_KEY} characters, or"
                " there are characters that cannot be kept (NUL or surrogates)"
            )
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise InvalidInput(f"Malformed parameter {field}: {key[:80]} wants text")
        parse(str(text), f"{field}: {key[:80]}")
        yield key, str(text)
