# SPDX-License-Identifier: Apache-2.0
"""One trouble of a guest: the sign it began with, what the filters say of it, and all the traces
that it leaves until it is over."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from holdfast.model.guest_filter import IGNORE, RECOVER, REPORT, Sign, Verdict
from holdfast.ports.guests import HANG, MONITOR, WATCHDOG
from holdfast.watch.guest_meaning import EVERYTHING

FAILED: Final = "failed"
NOTED: Final = "noted"
WELL: Final = "well"
TOLD: Final = {RECOVER: FAILED, REPORT: NOTED, IGNORE: ""}
RANK: Final = {"": 0, NOTED: 1, FAILED: 2}
#: Of how many traces of a trouble each is kept, the first ones.
MOST_TRACES: Final = 16
#: What no state of a guest shows.
UNSEEN: Final = (HANG, MONITOR)


@dataclass(frozen=True, slots=True)
class Trouble:
    sign: Sign
    since: datetime
    began: float
    last: float
    verdict: Verdict
    lasts: bool
    told: str = ""
    traces: tuple[str, ...] = ()
    count: int = 1

    @property
    def is_unsure(self) -> bool:
        """It may have ended while nobody listened."""
        return self.sign.event in UNSEEN and not self.lasts

    @property
    def due(self) -> float | None:
        """When it is told, if nothing changes. What is only remembered of it, and shows in no
        state, is told when it is heard again."""
        if self.is_unsure:
            return None
        if RANK[TOLD[self.verdict.do]] <= RANK[self.told]:
            return None
        return self.began + self.verdict.after_s


@dataclass(frozen=True, slots=True)
class Now:
    """When something was heard or read, what it was, and when it is judged."""

    at: datetime
    now: float  # as it is judged
    stamp: float  # as it was heard, or reading began: what is newer has a higher one
    said: str
    reason: str = ""  # why the guest lives as it does
    removed: str = ""  # how somebody was heard to remove it

    @property
    def trace(self) -> str:
        return f"{self.at.isoformat()} {self.said}"


def without(troubles: Mapping[str, Trouble], ends: frozenset[str]) -> Mapping[str, Trouble]:
    """What was only noted is remembered for a while, so that a guest that falls and rises all the
    time is not noted all the time."""
    if ends == EVERYTHING:
        return {}
    kept = dict(troubles)
    for name in ends & kept.keys():
        trouble = kept.pop(name)
        if trouble.told == NOTED:
            kept[name] = replace(trouble, lasts=False)
    return kept


def explains(trouble: Trouble, same: bool, died: bool) -> bool:
    """Whether what comes now is one trace more of it. That a guest hung before an agent was there
    explains nothing until it is heard again. A death is explained by what kills, not by whatever
    the guest lived with until then."""
    if trouble.told != FAILED or same:
        return trouble.told == FAILED
    if died:
        return (trouble.sign.event, trouble.sign.detail) == (WATCHDOG, "poweroff")
    return not trouble.is_unsure


def begins(when: Now) -> dict[str, Any]:
    return {"since": when.at, "began": when.now}


def traced(trouble: Trouble, when: Now, *, again: bool = True) -> Trouble:
    traces = (*trouble.traces, when.trace)[:MOST_TRACES]
    last = when.now if again else trouble.last
    return replace(trouble, traces=traces, count=trouble.count + 1, last=last)


def richer(old: Sign, new: Sign) -> Sign:
    """Two traces of one thing: what one of them lacks, the other has."""
    same = old.detail == new.detail
    return replace(
        new,
        reason=new.reason or (old.reason if same else ""),
        disk=new.disk or (old.disk if same else ""),
        path=new.path or (old.path if same else ""),
    )
