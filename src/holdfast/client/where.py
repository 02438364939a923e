# SPDX-License-Identifier: Apache-2.0
"""Conditions as people type them, turned into the property expressions of the wire. Pure.

expression(["vcpus>=8", "rack in rack-a,rack-b"])
'["and", [">=", "$vcpus", "8"], ["in", "$rack", "rack-a", "rack-b"]]'
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.model import expression as language
from holdfast.model.errors import InvalidInput

_KEY = r"\s*\$?([A-Za-z_][\w.:-]*)"
_COMPARISON = re.compile(_KEY + r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*")
_IN = re.compile(_KEY + r"\s+in\s+(.*?)\s*")


def expression(conditions: Sequence[str]) -> str:
    """All conditions at once, as JSON text; "" for none, one JSON list as it came."""
    if len(conditions) == 1 and conditions[0].lstrip().startswith("["):
        return conditions[0]
    trees = [tree(each) for each in conditions]
    if not trees:
        return ""
    return json.dumps(trees[0] if len(trees) == 1 else ["and", *trees])


def check(condition: str) -> str:
    """The condition unchanged, or ValueError with what is wrong with it."""
    try:
        language.parse(json.dumps(tree(condition)), "condition")
    except InvalidInput as error:
        raise ValueError(error.message) from None
    return condition


def tree(condition: str) -> list[Any]:
    """One condition as a list; ValueError if it is none."""
    if condition.lstrip().startswith("["):
        try:
            return list(json.loads(condition))
        except ValueError as error:
            raise ValueError(f"{condition!r} is not JSON: {error}") from None
    if match := _IN.fullmatch(condition):
        values = [value.strip() for value in match[2].split(",") if value.strip()]
        if values:
            return ["in", f"${match[1]}", *values]
    elif (match := _COMPARISON.fullmatch(condition)) and match[3]:
        operator = "==" if match[2] == "=" else match[2]
        return [operator, f"${match[1]}", match[3]]
    raise ValueError(
        f"{condition!r} is not a condition: write 'vcpus>=8', 'gpu=True', 'rack!=rack-a',"
        " 'rack in rack-a,rack-b' or a JSON list"
    )
