# SPDX-License-Identifier: Apache-2.0
"""The last hour of a number as a small picture: a line, where alarms stood, and the same in words.

    spark = drawn("s-1", "util_ratio", line.values["util_ratio"], hour, marks)
    spark.line, spark.last, spark.words

A picture is WIDE by HIGH. There are more points than anybody sees: of each bin the one is drawn
that differs most from the mean, so that peaks and dips stay. Values in, values out.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.console import fields
from holdfast.model.samples import EVERY_S, Hour

WIDE: Final = 360
HIGH: Final = 60
BINS: Final = 120
_ROOM: Final = 4  # above the highest point


@dataclass(frozen=True)
class Mark:
    """An alarm while it stood; `until` None: it still does."""

    rule: str
    severity: str
    state: str
    since: datetime
    until: datetime | None = None
    threshold: float | None = None
    href: str = ""


@dataclass(frozen=True)
class Band:
    """A mark in the picture."""

    x: float
    width: float
    mark: Mark
    begins: bool  # within the hour

    @property
    def told(self) -> str:
        return told(self.mark)


@dataclass(frozen=True)
class Spark:
    id: str
    field: str
    line: str  # of an SVG path
    area: str
    bands: Sequence[Band]
    levels: Sequence[float]  # y of each threshold
    lowest: str
    highest: str
    last: str

    @property
    def name(self) -> str:
        return fields.name(self.field)

    @property
    def words(self) -> str:
        """What the picture shows, for who does not see it."""
        range_ = f"least {self.lowest}, most {self.highest}, last {self.last}"
        return "; ".join([range_, *(told(band.mark) for band in self.bands)])


def told(mark: Mark) -> str:
    stood = f"alarm {mark.rule} ({mark.severity}) stood from {mark.since:%Y-%m-%d %H:%M:%S}"
    if mark.until is None:
        return f"{stood} UTC, and still does"
    return f"{stood} to {mark.until:%Y-%m-%d %H:%M:%S} UTC"


def drawn(
    id: str, field: str, values: Sequence[float], hour: Hour, marks: Sequence[Mark] = ()
) -> Spark:
    known = [value for value in values if math.isfinite(value)]
    bands = tuple(_bands(hour, marks))
    thresholds = sorted({m.threshold for b in bands if (m := b.mark).threshold is not None})
    top = max([*known, fields.most(field)], default=0.0) or 1.0
    path, area = _paths(values, known, top)
    return Spark(
        *(id, field, path, area, bands),
        tuple(_y(one, top) for one in thresholds if 0 <= one <= top),
        fields.said(field, min(known, default=None)),
        fields.said(field, max(known, default=None)),
        fields.said(field, values[-1] if values else None),
    )


def _paths(values: Sequence[float], known: Sequence[float], top: float) -> tuple[str, str]:
    """A line for each run of what is known, and the ground below it."""
    mean = sum(known) / len(known) if known else 0.0
    lines, areas, run = [], [], []
    for x, value in [*_binned(values, mean), (0.0, math.nan)]:
        if math.isfinite(value):
            run.append(f"{x:.3g} {_y(value, top):.3g}")
        elif run:
            # a point alone is a line as well
            run = run if len(run) > 1 else run * 2
            lines.append("M" + "L".join(run))
            first, last = run[0].split()[0], run[-1].split()[0]
            areas.append(f"M{first} {HIGH}L{'L'.join(run)}L{last} {HIGH}Z")
            run = []
    return "".join(lines), "".join(areas)


def _binned(values: Sequence[float], mean: float) -> Iterator[tuple[float, float]]:
    count = len(values)
    step = max(1, math.ceil(count / BINS))
    scale = WIDE / max(1, count - 1)
    for begin in range(0, count, step):
        some = [
            (place, values[place])
            for place in range(begin, min(begin + step, count))
            if math.isfinite(values[place])
        ]
        place, value = max(some, key=lambda one: abs(one[1] - mean), default=(begin, math.nan))
        yield place * scale, value


def _y(value: float, top: float) -> float:
    return HIGH - max(0.0, min(value, top)) / top * (HIGH - _ROOM)


def _bands(hour: Hour, marks: Sequence[Mark]) -> Iterator[Band]:
    """Those that are within the hour, cut to it."""
    begin, end = hour.begin * EVERY_S, max(hour.end - 1, hour.begin + 1) * EVERY_S
    for mark in marks:
        first = mark.since.timestamp()
        last = mark.until.timestamp() if mark.until else end
        if last < begin or first > end:
            continue
        x = (max(first, begin) - begin) / (end - begin) * WIDE
        to = (min(last, end) - begin) / (end - begin) * WIDE
        yield Band(round(x, 1), round(max(to - x, 2.0), 1), mark, first >= begin)


def anchor(*parts: str) -> str:
    """An id for a page, whatever somebody called it."""
    return f"{parts[0]}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:12]}"
