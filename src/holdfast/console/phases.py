# SPDX-License-Identifier: Apache-2.0
"""Where the seconds of an incident went: noticed, judged, fenced, moved, verified, one after the
other from the first missed sample on. Values in, values out; the incident is as the API shows it.

    [Phase("noticed", …, seconds=3.1), Phase("judged", …), …]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

from holdfast.console import hearsay
from holdfast.console.words import read_time
from holdfast.model.incident_history import entries

DONE, BUSY, TO_COME = "done", "under way", "to come"
#: The phase of each step, by kind; a step that a site put between them is a phase by itself.
_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "host": {
        "guards": "judged",
        "fence": "fenced",
        "tell": "told and repaired",
        "repair": "told and repaired",
        "prepare": "moved",
        "move": "moved",
        "verify": "verified",
        "report": "closed",
    },
    "guest": {
        "guards": "judged",
        "stop": "stopped",
        "start": "started",
        "confirm": "verified",
        "elsewhere": "moved",
        "report": "closed",
    },
    "process": {
        "guards": "judged",
        "disable": "disabled",
        "confirm": "verified",
        "report": "closed",
    },
}
#: What steps say that had nothing to do.
_IDLE: Final = ("over", "not needed")
#: Who saw it earlier than that before it was opened has a clock that is wrong.
LONGEST: Final = timedelta(days=1)
#: A phase is drawn so wide at least, of all: it can be seen and pointed at.
_LEAST: Final = 0.03


@dataclass(frozen=True)
class Phase:
    """`x` and `width` are percent of the bar; 0 for what is to come."""

    name: str
    state: str
    begin: datetime | None
    end: datetime | None
    sentence: str = ""
    x: float = 0.0
    width: float = 0.0

    @property
    def seconds(self) -> float:
        if self.begin is None or self.end is None:
            return 0.0
        return max(0.0, (self.end - self.begin).total_seconds())

    @property
    def slug(self) -> str:
        return self.name.split()[0]


def first(case: Mapping[str, Any], seen: Sequence[Mapping[str, Any]] = ()) -> datetime:
    """When the first sample was missed: the earliest that anybody's evidence says."""
    opened = read_time(case["opened_at"])
    said = [*_sinces(case["details"].get("seen")), *(row.get("since") for row in seen)]
    said += [one["generated_at"] for one in case["reports"]]
    times = [at for one in said if (at := hearsay.time(one)) and opened - LONGEST <= at <= opened]
    return min([opened, *times])


def _sinces(votes: Any) -> Iterator[Any]:
    for vote in hearsay.votes(votes):
        yield vote.get("since")
        for one in hearsay.networks(vote).values():
            if one.get("health") == "down":
                yield one.get("since")


def phases(case: Mapping[str, Any], begin: datetime, now: datetime) -> Sequence[Phase]:
    """From the first missed sample on, without gaps; those to come have no times."""
    opened = read_time(case["opened_at"])
    seen = str(case["seen"] or case["cause"])
    found = [Phase("noticed", DONE, begin, opened, seen)]
    if retried := hearsay.time(case["details"].get("retried_at")):
        tried = entries(case["details"].get("attempts"))
        said = "; ".join(f"{one['status']}: {one['sentence']}" for one in tried)
        found.append(Phase("tried before", DONE, opened, retried, said))
    for name, steps in _grouped(case):
        found.append(_phase(name, list(steps), found[-1].end, now))
    found = [_with_holds(one, case) if one.name == "judged" else one for one in found]
    if hearsay.known(case["details"].get("evidence")).get("kind") != "fenced":
        found = [replace(one, name="proven off") if one.name == "fenced" else one for one in found]
    return _drawn([*found, *_rest(case, found, now)])


def _grouped(case: Mapping[str, Any]) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
    of = _OF.get(case["kind"], {})
    shown = [one for one in case["steps"] if one["sentence"] not in _IDLE]
    return groupby(shown, key=lambda one: of.get(one["name"], one["name"]))


def _phase(
    name: str, steps: Sequence[Mapping[str, Any]], begin: datetime | None, now: datetime
) -> Phase:
    said = "; ".join(one["sentence"] for one in steps if one["sentence"])
    states = {one["status"] for one in steps}
    if begin is None or states == {TO_COME}:
        return Phase(name, TO_COME, None, None, said)
    if states != {DONE}:
        return Phase(name, BUSY, begin, max(begin, now), said)
    ended = [at for one in steps if (at := hearsay.time(one["finished_at"]))]
    return Phase(name, DONE, begin, max([begin, *ended]), said)


def _with_holds(judged: Phase, case: Mapping[str, Any]) -> Phase:
    """Why it took so long: each reason for which it was held, once."""
    said = [one["sentence"] for one in case["timeline"] if one["sentence"].startswith("held: ")]
    reasons = [one for one in dict.fromkeys(said) if judged.sentence not in one]
    return replace(judged, sentence="; ".join([*reasons, judged.sentence]))


def _rest(case: Mapping[str, Any], found: Sequence[Phase], now: datetime) -> Iterator[Phase]:
    """What no step stands for: an end by somebody's order, or an incident that has no work."""
    last, closed = found[-1], hearsay.time(case["closed_at"])
    if last.end is None or last.state != DONE or last.name == "closed":
        return
    if closed is not None and closed > last.end:
        yield Phase(f"{case['status']}", DONE, last.end, closed, case["sentence"])
    elif closed is None:
        yield Phase("open", BUSY, last.end, max(last.end, now), case["sentence"])


def _drawn(found: Sequence[Phase]) -> Sequence[Phase]:
    lived = [one for one in found if one.begin is not None]
    total = sum(one.seconds for one in lived) or 1.0
    shares = [max(one.seconds / total, _LEAST) for one in lived]
    places, x = iter(shares), 0.0
    drawn = []
    for one in found:
        if one.begin is None:
            drawn.append(one)
            continue
        width = 100 * next(places) / sum(shares)
        drawn.append(replace(one, x=round(x, 3), width=round(width, 3)))
        x += width
    return drawn


def total(found: Sequence[Phase]) -> float:
    return sum(one.seconds for one in found)
