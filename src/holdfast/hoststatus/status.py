# SPDX-License-Identifier: Apache-2.0
"""Host status: decides, from the reports of all sources, whether a host can be used.

A `StatusReport` is the statement of one source about one host at one moment. Sources are Nova's
service list, a Nova notification, a third-party monitor, the recovery engine, and an operator.
A `HostStatus` is the result of all reports until now. `judge` computes the next status:

    up ──bad sample──▶ suspect ──enough of them, or a decisive one──▶ down
    ▲                     │                                             │ ▲
    │◀──────well again────┘                       well on all sides     ▼ │ bad again
    └──────────healthy for long enough, and the damping over──────── returning

Holdfast uses hosts that are up or suspect, and does not use hosts that are down or returning. A
flapping host therefore stays out, and nothing is decided about it again, until it has been
healthy for `healthy_after_s`. Time without a poll does not count. The module has no clock and no
database access: times are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.model.errors import InvalidInput

#: States of a host status.
UP, SUSPECT, DOWN, RETURNING = "up", "suspect", "down", "returning"
USABLE = (UP, SUSPECT)
#: Verdicts. A host disabled by a person or by Nova itself is alive and takes no new servers.
UNKNOWN, DISABLED, AUTO_DISABLED = "unknown", "disabled", "auto-disabled"
VERDICTS = (UP, DOWN, UNKNOWN, DISABLED, AUTO_DISABLED)
#: Limits per host: number of sources, length of a source name, length of a reason.
MOST_SOURCES = 12
LONGEST_SOURCE = 64
LONGEST_REASON = 200
#: In poll intervals: a longer time since the last report is a gap in observation; and how often
#: `seen_at` is written to the database.
GAP, NOTED = 5, 2


class Rules(Protocol):
    """The options of [monitors], read again at every access."""

    down_samples: int
    down_for_s: float
    healthy_after_s: float
    flap_holdoff_s: float
    poll_interval_s: float
    disabled_is_failure: bool
    auto_disabled_is_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """The verdict of `source` about `host`.

    `decisive`: no second sample is needed, because the source knows for certain. A decisive
    `up` also discards the earlier verdicts of all other sources.
    """

    host: str
    source: str
    verdict: str
    at: datetime
    since: datetime | None = None
    reason: str = ""
    decisive: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidInput(f"a verdict is one of {', '.join(VERDICTS)}, not {self.verdict!r}")
        if not self.host or not self.source or len(self.source) > LONGEST_SOURCE:
            raise InvalidInput(
                "a status report names its host and, in at most 64 letters, its source"
            )
        if any(when and when.tzinfo is None for when in (self.at, self.since)):
            raise InvalidInput(f"{self.source}: the times of a status report need a time zone")


@dataclass(frozen=True, slots=True)
class Memory:
    """The last verdict of a source, and the duration of its bad verdicts."""

    verdict: str
    at: datetime
    bad: int = 0  # bad samples in a row
    bad_since: datetime | None = None
    decisive: bool = False
    reason: str = ""

    def convinces(self, rules: Rules) -> bool:
        if not self.bad or self.bad_since is None:
            return False
        lasted = self.at - self.bad_since >= timedelta(seconds=rules.down_for_s)
        return self.decisive or (self.bad >= rules.down_samples and lasted)

    def gist(self, rules: Rules) -> tuple[Any, ...]:
        """All fields except the time: equal repeated samples are not written to the database."""
        convinces = self.convinces(rules)
        count = 0 if convinces else self.bad
        return self.verdict, self.decisive, self.reason, convinces, count, self.bad_since


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Status of a host: state, reason, and the last verdict of each source."""

    state: str = UP
    since: datetime | None = None
    why: str = ""
    decided_at: datetime | None = None  # when the host was last taken out of use
    well_since: datetime | None = None
    seen_at: datetime | None = None  # state returning: approximate time of the last good sample
    sources: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    def differs(self, other: "HostStatus", rules: Rules) -> bool:
        """Whether the two statuses differ in more than the time of the last sample."""

        def gist(status: HostStatus) -> tuple[Any, ...]:
            memories = {n: m.gist(rules) for n, m in status.sources.items() if m.verdict != UP}
            return status.state, status.decided_at, status.well_since, status.seen_at, memories

        return gist(self) != gist(other)


def judge(status: HostStatus, report: StatusReport, rules: Rules, now: datetime) -> HostStatus:
    """The host status after this report; unchanged if the report says nothing new."""
    if report.verdict == UNKNOWN:
        return status
    at = min(report.at, now)  # a clock that is ahead must not hide later reports
    before = status.sources.get(report.source)
    if before is not None and at <= before.at:
        return status
    sources = {**status.sources, report.source: _remember(before, report, at, rules)}
    if report.decisive and report.verdict == UP:
        sources = {name: memory for name, memory in sources.items() if memory.at >= at}
    if report.verdict == UP and status.state == RETURNING:
        status = _seen(status, rules, at)
    return _conclude(replace(status, sources=_few(sources)), rules, now)


def _seen(status: HostStatus, rules: Rules, at: datetime) -> HostStatus:
    """Record a good sample of a returning host.

    After a gap in observation the host counts as healthy only since this sample, because its
    state before is unknown.
    """
    before = status.seen_at or at
    if at - before > timedelta(seconds=GAP * rules.poll_interval_s):
        why = f"looks well since {at:%H:%M:%S} UTC; before that there was no poll for a while"
        return replace(status, well_since=at, seen_at=at, why=why)
    worth = at - before >= timedelta(seconds=NOTED * rules.poll_interval_s)
    return replace(status, seen_at=at) if worth else status


def ripen(status: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    """Advance a returning host by time alone, for sites without polling.

    Without polling, the absence of bad reports must count as health.
    """
    return _conclude(status, rules, now) if status.state == RETURNING else status


def _remember(before: Memory | None, report: StatusReport, at: datetime, rules: Rules) -> Memory:
    memory = Memory(
        report.verdict,
        at,
        decisive=report.decisive,
        reason=report.reason[:LONGEST_REASON],
    )
    if not _is_bad(report.verdict, rules):
        return memory
    bad_since = before.bad_since if before is not None else None
    since = min(when for when in (bad_since, report.since, at) if when is not None)
    return replace(memory, bad=(before.bad if before is not None else 0) + 1, bad_since=since)


def _is_bad(verdict: str, rules: Rules) -> bool:
    return {
        DOWN: True,
        DISABLED: rules.disabled_is_failure,
        AUTO_DISABLED: rules.auto_disabled_is_failure,
    }.get(verdict, False)


def _few(sources: dict[str, Memory]) -> dict[str, Memory]:
    """Limit the number of sources: keep sources with bad verdicts, then the latest."""
    if len(sources) <= MOST_SOURCES:
        return sources
    best = sorted(sources, key=lambda name: (sources[name].bad > 0, sources[name].at), reverse=True)
    return {name: sources[name] for name in best[:MOST_SOURCES]}


def _conclude(status: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    memories = status.sources
    sure = next((name for name, memory in memories.items() if memory.convinces(rules)), None)
    if sure is not None:
        decided = now if status.usable else status.decided_at
        down = replace(status, decided_at=decided, well_since=None, seen_at=None)
        return _move(down, DOWN, _why(sure, memories[sure]), now)
    bad = next((name for name, memory in memories.items() if memory.bad), None)
    if status.usable:
        if bad is None:
            return _move(status, UP, "well", now)
        return _move(status, SUSPECT, _why(bad, memories[bad]), now)
    closed = next((name for name, memory in memories.items() if memory.verdict != UP), None)
    if closed is not None:  # bad again, or disabled: not healthy for all sources
        out = replace(status, well_since=None, seen_at=None)
        return _move(out, DOWN, _why(closed, memories[closed]), now)
    return _returning(status, rules, now)


def _returning(status: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    since, decided = status.well_since or now, status.decided_at or now
    well = replace(status, well_since=since, seen_at=status.seen_at or now)
    ready = max(
        since + timedelta(seconds=rules.healthy_after_s),
        decided + timedelta(seconds=rules.flap_holdoff_s),
    )
    if now < ready:
        return _move(well, RETURNING, f"looks well since {since:%H:%M:%S} UTC", now)
    back = replace(status, well_since=None, seen_at=None)
    return _move(back, UP, f"well since {since:%Y-%m-%d %H:%M:%S} UTC", now)


def _move(status: HostStatus, state: str, why: str, now: datetime) -> HostStatus:
    if state == status.state:
        return status if state in (UP, RETURNING) else replace(status, why=why)
    return replace(status, state=state, since=now, why=why)


def _why(source: str, memory: Memory) -> str:
    verdict = {DOWN: "down", UP: "up"}.get(memory.verdict, memory.verdict)
    return f"{source} says {verdict}" + (f": {memory.reason}" if memory.reason else "")


def to_plain(status: HostStatus) -> dict[str, Any]:
    """The fields besides `state` and `since`, as JSON-compatible data."""
    return {
        "why": status.why,
        "decided_at": _text(status.decided_at),
        "well_since": _text(status.well_since),
        "seen_at": _text(status.seen_at),
        "sources": {
            name: {
                "verdict": memory.verdict,
                "at": _text(memory.at),
                "bad": memory.bad,
                "bad_since": _text(memory.bad_since),
                "decisive": memory.decisive,
                "reason": memory.reason,
            }
            for name, memory in status.sources.items()
        },
    }


def from_plain(state: str, since: datetime | None, fields: Mapping[str, Any] | None) -> HostStatus:
    fields = fields or {}
    return HostStatus(
        state=state,
        since=since,
        why=fields.get("why", ""),
        decided_at=_time(fields.get("decided_at")),
        well_since=_time(fields.get("well_since")),
        seen_at=_time(fields.get("seen_at")),
        sources={
            name: Memory(
                verdict=memory["verdict"],
                at=datetime.fromisoformat(memory["at"]),
                bad=memory["bad"],
                bad_since=_time(memory["bad_since"]),
                decisive=memory["decisive"],
                reason=memory["reason"],
            )
            for name, memory in fields.get("sources", {}).items()
        },
    )


def _text(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
