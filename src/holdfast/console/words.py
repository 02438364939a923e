# SPDX-License-Identifier: Apache-2.0
"""How values look on a page: times in UTC (our script adds the local one), lengths of time, states
with a shape besides their colour, and commands that do the same as a button."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup, escape

from holdfast.api.holdfast_v1 import explanation

#: What each word looks like: a shape and a colour (the class), beside the word itself.
GOOD, BUSY, WARN, BAD, IDLE = "good", "busy", "warn", "bad", "idle"
_SHAPES: Final[Mapping[str, str]] = {GOOD: "●", BUSY: "◐", WARN: "▲", BAD: "■", IDLE: "○"}
_MEANS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("up", "active", "recovered", "succeeded", "done", "ok", "yes", "free"), GOOD),
    **dict.fromkeys(
        ("starting", "running", "ongoing", "returning", "recovering", "updating", "terminating"),
        BUSY,
    ),
    **dict.fromkeys(("open", "under way"), BUSY),
    **dict.fromkeys(
        ("suspect", "held", "warning", "maintenance", "degraded", "missing", "pending_approval"),
        WARN,
    ),
    **dict.fromkeys(("down", "failed", "error", "critical", "firing", "no", "dead"), BAD),
}


def state(word: Any, text: str | None = None) -> Markup:
    """A state: its word, with a shape and a colour by what it means."""
    means = _MEANS.get(str(word).lower(), IDLE)
    return Markup(
        '<span class="state {}"><span class="shape" aria-hidden="true">{}</span>{}</span>'
    ).format(means, _SHAPES[means], str(word) if text is None else text)


def moment(value: datetime | str | None, form: str = "%Y-%m-%d %H:%M:%S") -> Markup:
    """A time in UTC; on hover the local one, if there is a script."""
    if value in (None, ""):
        return Markup('<span class="faint">never</span>')
    at = read_time(value)
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), f"{at:{form}}")


#: A time within a sentence, or two of them; only what says that it is UTC is taken for one.
_TIME: Final = r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_IN_TEXT: Final = re.compile(rf"({_TIME})(?: to ({_TIME}))?( UTC|\+00:00)", re.ASCII)


def timed(sentence: object) -> Markup:
    """A sentence whose times have their local one on hover, as those of `moment`."""
    return Markup(_IN_TEXT.sub(_timed, str(escape(sentence))))


def _timed(found: re.Match[str]) -> str:
    first, second, zone = found.groups()
    if second is None:
        return _time(first, first + zone)
    return f"{_time(first, first)} to {_time(second, second + zone)}"


def _time(said: str, text: str) -> str:
    try:
        at = read_time(said)
    except ValueError:  # somebody's name for something
        return text
    return f'<time datetime="{at.isoformat()}">{text}</time>'


def read_time(value: datetime | str | None) -> datetime:
    at = datetime.fromisoformat(str(value)) if not isinstance(value, datetime) else value
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def span(value: timedelta | float) -> str:
    """As the story of an incident tells it, and before zero with a sign."""
    length = value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    return f"-{explanation.span(-length)}" if length < timedelta(0) else explanation.span(length)


def exact(value: timedelta | float) -> str:
    """The same, and of less than a second in milliseconds: 46 ms"""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return span(seconds) if abs(seconds) >= 1 else f"{seconds * 1000:.0f} ms"


def command(*parts: object) -> Markup:
    """What does the same from a shell; every part is quoted for it."""
    return commands([parts])


def commands(lines: Iterable[Iterable[object]]) -> Markup:
    """The same where it takes several, one after the other."""
    line = " && ".join(shlex.join(str(part) for part in parts) for parts in lines)
    return Markup(
        '<details class="cmd"><summary>same by command</summary><code data-copy>{}</code></details>'
    ).format(line)


def many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one}" if count == 1 else f"{count:,} {more or one + 's'}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "state": state,
    "moment": moment,
    "timed": timed,
    "span": span,
    "exact": exact,
    "time": read_time,
    "many": many,
    "command": lambda parts: command(*parts),
    "commands": commands,
}
