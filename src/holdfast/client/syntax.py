# SPDX-License-Identifier: Apache-2.0
"""Command line syntax of reservations and conditions, parsed into API bodies and expressions.

The functions are pure.

    parse("virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3,affinity=false")
    parse('physical:host,min=1,max=4,resource_properties=["==", "$gpu", "True"]')
    parse('{"resource_type": "physical:host", "min": 1, "max": 1}')

    expression(["vcpus>=8", "rack in rack-a,rack-b"])
    '["and", [">=", "$vcpus", "8"], ["in", "$rack", "rack-a", "rack-b"]]'

The first word of a reservation is the resource type, in an update the reservation's id. Values are
parsed as JSON if they are valid JSON, else they are text. Property expressions and ids stay text,
because the API expects text.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.model import expression as language
from holdfast.model.errors import InvalidInput

_OPEN, _CLOSE = "[{", "]}"


def parse(text: str, head: str = "resource_type") -> dict[str, Any]:
    """Parse a reservation; a first word without `=` is the value of `head`.

    Raises ValueError with the problem.
    """
    if text.lstrip().startswith("{"):
        whole: dict[str, Any] = _json(text)
        return whole
    reservation: dict[str, Any] = {}
    for position, part in enumerate(_parts(text)):
        key, equals, value = part.partition("=")
        if not equals and position == 0 and part:
            key, value = head, part
        elif not equals or not key.strip():
            raise ValueError(
                f"{part!r} is not key=value: write {head.upper()},key=value,key=value, and"
                ' key="a,b" where a value has commas'
            )
        if key.strip() in reservation:
            raise ValueError(f"{key.strip()} is there twice")
        reservation[key.strip()] = _value(key.strip(), value.strip())
    return reservation


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    depth, quoted, begun = 0, False, 0
    for at, sign in enumerate(text):
        if sign == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (sign in _OPEN) - (sign in _CLOSE)
            if sign == "," and depth == 0:
                yield text[begun:at].strip()
                begun = at + 1
    yield text[begun:].strip()


def _value(key: str, text: str) -> Any:
    if key == "id" or key.endswith(("_id", "_type", "_properties")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    """Parse JSON; ValueError quotes the beginning of other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:200]!r} is not JSON: {error}") from None


_KEY = r"\s*\$?([A-Za-z_][\w.:-]*)"
# possessive: a condition that does not match is not tried again from every blank
_COMPARISON = re.compile(_KEY + r"\s*+(>=|<=|!=|==|=|>|<)\s*+(.*)")
_IN = re.compile(_KEY + r"\s++in\s++(.*)")


def expression(conditions: Sequence[str]) -> str:
    """Combine conditions into a JSON expression; "" for none, a single JSON list unchanged."""
    if len(conditions) == 1 and conditions[0].lstrip().startswith("["):
        return conditions[0]
    trees = [tree(each) for each in conditions]
    if not trees:
        return ""
    return json.dumps(trees[0] if len(trees) == 1 else ["and", *trees])


def check(condition: str) -> str:
    """Return the condition unchanged; ValueError names the problem."""
    try:
        language.parse(json.dumps(tree(condition)), "condition")
    except InvalidInput as error:
        raise ValueError(error.message) from None
    return condition


def tree(condition: str) -> list[Any]:
    """Parse a condition into an expression list; ValueError if invalid."""
    if condition.lstrip().startswith("["):
        return list(_json(condition))
    condition = condition.strip()
    if match := _IN.fullmatch(condition):
        values = [value.strip() for value in match[2].split(",") if value.strip()]
        if values:
            return ["in", f"${match[1]}", *values]
    elif (match := _COMPARISON.fullmatch(condition)) and match[3]:
        if match[3][0] in "<>=":
            raise ValueError(
                f"{condition[:200]!r} is not a condition: {match[3][0]!r} at character"
                f" {match.start(3) + 1} follows the operator {match[2]!r}; write a value there"
            )
        operator = "==" if match[2] == "=" else match[2]
        return [operator, f"${match[1]}", match[3]]
    raise ValueError(
        f"{condition[:200]!r} is not a condition: write 'vcpus>=8', 'gpu=True', 'rack!=rack-a',"
        " 'rack in rack-a,rack-b' or a JSON list"
    )
