# SPDX-License-Identifier: Apache-2.0
"""A reservation as people type it, turned into what a lease's body holds. Pure.

parse("virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3,affinity=false")
parse('physical:host,min=1,max=4,resource_properties=["==", "$gpu", "True"]')
parse('{"resource_type": "physical:host", "min": 1, "max": 1}')

The word in front is the type, in an update the reservation's id. Values are JSON where they are
any, else text; property expressions and ids stay text, for so the wire wants them.
"""

import json
from collections.abc import Iterator
from typing import Any

_OPEN, _CLOSE = "[{", "]}"


def parse(text: str, head: str = "resource_type") -> dict[str, Any]:
    """The fields; a first word without `=` is that of `head`. ValueError says what is wrong."""
    if text.lstrip().startswith("{"):
        try:
            whole: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not JSON: {error}") from None
        return whole
    found: dict[str, Any] = {}
    for position, part in enumerate(_parts(text)):
        key, equals, value = part.partition("=")
        if not equals and position == 0 and part:
            key, value = head, part
        elif not equals or not key.strip():
            raise ValueError(
                f"{part!r} is not key=value: write {head.upper()},key=value,key=value, and"
                ' key="a,b" where a value has commas'
            )
        if key.strip() in found:
            raise ValueError(f"{key.strip()} is there twice")
        found[key.strip()] = _value(key.strip(), value.strip())
    return found


def _parts(text: str) -> Iterator[str]:
    """Split at the commas that stand in no brackets and in no quotes."""
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
    except ValueError:
        return text
