# SPDX-License-Identifier: Apache-2.0
"""Formatting of values on pages.

Times appear in UTC, and the script adds the local time. States have a shape beside their
colour. The module also formats durations, numbers with units, URLs, and the command equal to a
button.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from holdfast.api.holdfast_v1 import explanation

#: The appearance of each state word: a shape and a colour (the CSS class) beside the word.
GOOD, BUSY, WARN, BAD, IDLE = "good", "busy", "warn", "bad", "idle"
_SHAPES: Final[Mapping[str, str]] = {GOOD: "●", BUSY: "◐", WARN: "▲", BAD: "■", IDLE: "○"}
_COLOURS: Final[Mapping[str, str]] = {
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
    """Render a state word with the shape and colour of its meaning."""
    colour = _COLOURS.get(str(word).lower(), IDLE)
    return Markup(
        '<span class="state {}"><span class="shape" aria-hidden="true">{}</span>{}</span>'
    ).format(colour, _SHAPES[colour], str(word) if text is None else text)


def moment(value: datetime | str | None, form: str = "%Y-%m-%d %H:%M:%S") -> Markup:
    """Render a time in UTC; with scripts enabled the tooltip shows the local time."""
    if value in (None, ""):
        return Markup('<span class="faint">never</span>')
    at = read_time(value)
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), f"{at:{form}}")


#: A time within a sentence, or a range of two. Only a time marked as UTC matches.
_TIME: Final = r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_IN_TEXT: Final = re.compile(rf"({_TIME})(?: to ({_TIME}))?( UTC|\+00:00)", re.ASCII)


def timed(sentence: object) -> Markup:
    """Render a sentence. Each time in the text gets a local-time tooltip, as in `moment`."""
    return Markup(_IN_TEXT.sub(_timed, str(escape(sentence))))


def _timed(match: re.Match[str]) -> str:
    first, second, zone = match.groups()
    if second is None:
        return _time(first, first + zone)
    return f"{_time(first, first)} to {_time(second, second + zone)}"


def _time(value: str, text: str) -> str:
    try:
        at = read_time(value)
    except ValueError:  # a name that looks like a time
        return text
    return f'<time datetime="{at.isoformat()}">{text}</time>'


def read_time(value: datetime | str | None) -> datetime:
    at = datetime.fromisoformat(str(value)) if not isinstance(value, datetime) else value
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def span(value: timedelta | float) -> str:
    """Format a duration as the explanation of an incident does, with a sign if negative."""
    length = value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    return f"-{explanation.span(-length)}" if length < timedelta(0) else explanation.span(length)


def exact(value: timedelta | float) -> str:
    """Format a duration; below a second in milliseconds: 46 ms"""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return span(seconds) if abs(seconds) >= 1 else f"{seconds * 1000:.0f} ms"


def command(*parts: object) -> Markup:
    """Render the shell command equal to a button, with every part quoted."""
    return commands([parts])


def commands(lines: Iterable[Iterable[object]]) -> Markup:
    """Render several shell commands joined with `&&`."""
    line = " && ".join(shlex.join(str(part) for part in parts) for parts in lines)
    return Markup(
        '<details class="cmd"><summary>CLI command</summary><code data-copy>{}</code></details>'
    ).format(line)


def many(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


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


# Durations that forms offer for pauses, maintenance windows and mutes.


#: The seconds that the form sends, the form for commands, and the label.
LENGTHS: Final = (
    ("900", "15m", "15 minutes"),
    ("3600", "1h", "1 hour"),
    ("14400", "4h", "4 hours"),
    ("86400", "1d", "1 day"),
    ("604800", "7d", "7 days"),
)


# Metrics of hosts and guests: the label of a field, and the value with its unit.
#
#     >>> label("util_ratio"), metric("util_ratio", 0.974), metric("mean_latency_ns", 2.5e6)
#     ('CPU', '97.4 %', '2.5 ms')
#     >>> metric("rx_bps", 5e9), metric("mem_available_bytes", 3 * 2**30), metric("load1", 0.25)
#     ('5 Gbit/s', '3 GiB', '0.25')


_LABELS: Final[Mapping[str, str]] = {
    "cpu_util_ratio": "CPU",
    "cpu_iowait_ratio": "CPU: I/O wait",
    "cpu_steal_ratio": "CPU: stolen",
    "load1": "Load",
    "mem_available_bytes": "Memory free",
    "swap_used_bytes": "Swap used",
    "psi_cpu_some_avg10": "CPU pressure",
    "psi_mem_some_avg10": "Mem. pressure",
    "psi_io_some_avg10": "I/O pressure",
    "util_ratio": "CPU",
    "steal_ratio": "CPU: stolen",
    "used_ratio": "Memory used",
    "rss_kib": "Resident",
    "iops": "Operations",
    "bytes_per_s": "Data rate",
    "mean_latency_ns": "Latency",
    "fill_ratio": "Filled",
    "allocation_bytes": "Allocated",
    "capacity_bytes": "Size",
    "rx_bps": "Receives",
    "tx_bps": "Sends",
    "over_contract_ratio": "Of its contract",
}
#: The suffix of a field name selects the factor, the step between units, and the units.
_BINARY: Final = (1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
_DECIMAL: Final = (1000.0, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))
_DURATION: Final = (1000.0, ("ns", "µs", "ms", "s"))
_COUNT: Final = (1000.0, ("", "k", "M", "G", "T"))
_PER_S: Final = (1024.0, ("B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"))
_UNITS: Final[Sequence[tuple[str, float, tuple[float, Sequence[str]]]]] = (
    ("_bytes", 1.0, _BINARY),
    ("_kib", 1024.0, _BINARY),
    ("bytes_per_s", 1.0, _PER_S),
    ("_bps", 1.0, _DECIMAL),
    ("_ns", 1.0, _DURATION),
)


def label(field: str) -> str:
    return _LABELS.get(field, field)


def is_share(field: str) -> bool:
    """Return whether the field is a ratio of a whole, 0 to 1."""
    return field.endswith("_ratio")


def scale_top(field: str) -> float:
    """Return the lowest upper bound of the chart's scale, so small values do not look large."""
    if field.endswith(("steal_ratio", "iowait_ratio")):
        return 0.1
    return 1.0 if is_share(field) else 10.0 if field.startswith("psi_") else 0.0


def metric(field: str, value: float | None) -> str:
    """Format a metric value with its unit."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if is_share(field):
        return f"{_short(100 * value)} %"
    if field.startswith("psi_"):
        return f"{_short(value)} %"
    for end, times, units in _UNITS:
        if field.endswith(end):
            return _scaled(value * times, *units)
    return _scaled(value, *_COUNT).strip()


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    place = 0
    while abs(value) >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    return f"{_short(value)} {units[place]}"


def _short(value: float) -> str:
    """Format a number with three significant digits, without trailing zeros."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def address(path: str, query: Mapping[str, str] | Sequence[tuple[str, str]]) -> str:
    """Join a path and a query; without a query there is no question mark."""
    return f"{path}?{urlencode(query)}" if query else path
