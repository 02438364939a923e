# SPDX-License-Identifier: Apache-2.0
"""The small words of alarm rules: levels, numbers, hours of the week, so many of so many.

>>> comparison("> 5G"), comparison("<= 95%"), number("4h", spans=True)
(('>', 5000000000.0), ('<=', 0.95), 14400.0)
>>> hours("mon-fri 08:00-18:30")
Hours(days=(0, 1, 2, 3, 4), begin_min=480, end_min=1110)
>>> of("3 of 5"), of("5 of 3")
((3, 5), None)
"""

import math
import re

from holdfast.model.alarm_rules import DAYS, Hours
from holdfast.model.yaml_fields import seconds

#: Of how many samples N of M can be counted at most.
MOST_SAMPLES = 60
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<) *(\S+)")
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)(%|[kMGT]i?)?")
_SCALE = {"": 1.0} | {
    unit + tail: float(base) ** power
    for power, unit in enumerate("kMGT", 1)
    for tail, base in (("", 1000), ("i", 1024))
}
_OF = re.compile(r"([0-9]{1,2}) +of +([0-9]{1,2})")
_DAY = "|".join(DAYS)
_HOURS = re.compile(
    rf"(?:((?:{_DAY})(?:[-,](?:{_DAY}))*))?"
    r"(?: *([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2}))?"
)


def comparison(text: str, *, spans: bool = False) -> tuple[str, float] | None:
    match = _COMPARISON.fullmatch(text.strip())
    level = number(match[2], spans=spans) if match else None
    return (match[1], level) if match and level is not None else None


def number(text: str, *, spans: bool = False) -> float | None:
    """0.95, 95%, 5G, 512Mi; with `spans` also 30s, 4h. None if it is something else."""
    if spans and (lasts_s := seconds(text)) is not None:
        return lasts_s
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    found = float(match[1])
    found = found / 100 if match[2] == "%" else found * _SCALE[match[2] or ""]
    return found if math.isfinite(found) else None


def of(text: str) -> tuple[int, int] | None:
    """Hits, and of how many samples."""
    match = _OF.fullmatch(text.strip())
    if match is None:
        return None
    hits, samples = int(match[1]), int(match[2])
    return (hits, samples) if 1 <= hits <= samples <= MOST_SAMPLES else None


def hours(text: str) -> Hours | None:
    """mon-fri 08:00-18:00, sat,sun, 22:00-06:00 (until the next day); UTC."""
    match = _HOURS.fullmatch(text.strip())
    if match is None or not text.strip():
        return None
    days = _days(match[1]) if match[1] else tuple(range(7))
    if match[2] is None:
        return Hours(days)
    begin, end = (int(match[n]) * 60 + int(match[n + 1]) for n in (2, 4))
    if begin >= 1440 or end > 1440 or int(match[3]) > 59 or int(match[5]) > 59:
        return None
    return Hours(days, begin, end)


def _days(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = DAYS.index(first), DAYS.index(last.split("-")[-1] or first)
        found |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return tuple(sorted(found))
