# SPDX-License-Identifier: Apache-2.0
"""Whether a host can be used: the one place that decides it, whoever saw what.

A `Sighting` is what one source says of one host at one moment: Nova's list of services, a message,
a monitor of somebody else's, the recovery engine, an operator. A `Standing` is what all sightings
so far amount to. `judge` makes the next standing from the one before:

    up ──bad sample──▶ suspect ──enough of them, or a decisive word──▶ down
    ▲                     │                                             │ ▲
    │◀──────well again────┘                       well on all sides     ▼ │ bad again
    └──────────healthy for long enough, and the damping over──────── returning

A host that is up or suspect is used; one that is down or returning is not, so a host that flaps
stays out and nothing is decided about it again until it has been well for `healthy_for_s`; time in
which nobody looked does not count for that.
No clock, no table: times come in as arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.model.errors import InvalidInput

#: Standings.
UP, SUSPECT, DOWN, RETURNING = "up", "suspect", "down", "returning"
USABLE = (UP, SUSPECT)
#: Verdicts. A host closed by a person or by Nova itself is alive and takes no new servers.
UNKNOWN, DISABLED, AUTO_DISABLED = "unknown", "disabled", "auto-disabled"
VERDICTS = (UP, DOWN, UNKNOWN, DISABLED, AUTO_DISABLED)
#: What is kept of each host: so many sources, of each so much of its reason.
MOST_SOURCES = 12
LONGEST_SOURCE = 64
LONGEST_REASON = 200
#: In looks: so long after the last one nobody has looked; so often it is written down that one was.
GAP, NOTED = 5, 2


class Rules(Protocol):
    """[monitors], read anew each time."""

    down_samples: int
    down_for_s: float
    healthy_for_s: float
    damping_s: float
    poll_interval_s: float
    disabled_is_failure: bool
    auto_disabled_is_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """What `source` says of `host`. `decisive`: no second sample is needed, for somebody who knows
    said so; a decisive `up` also ends what all others said before it."""

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
            raise InvalidInput("a sighting names its host and, in at most 64 letters, its source")
        if any(when and when.tzinfo is None for when in (self.at, self.since)):
            raise InvalidInput(f"{self.source}: the times of a sighting need a time zone")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a source said last, and for how long it has been saying something bad."""

    verdict: str
    at: datetime
    bad: int = 0  # samples in a row
    bad_since: datetime | None = None
    decisive: bool = False
    reason: str = ""

    def convinces(self, rules: Rules) -> bool:
        if not self.bad or self.bad_since is None:
            return False
        lasted = self.at - self.bad_since >= timedelta(seconds=rules.down_for_s)
        return self.decisive or (self.bad >= rules.down_samples and lasted)

    def gist(self, rules: Rules) -> tuple[Any, ...]:
        """All but when: samples that say the same again are not worth writing down."""
        convinces = self.convinces(rules)
        count = 0 if convinces else self.bad
        return self.verdict, self.decisive, self.reason, convinces, count, self.bad_since


@dataclass(frozen=True, slots=True)
class HostStatus:
    state: str = UP
    since: datetime | None = None
    why: str = ""
    decided_at: datetime | None = None  # when it was last taken out of use
    well_since: datetime | None = None
    seen_at: datetime | None = None  # well, while it is returning; about when last
    sources: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    def differs(self, other: "HostStatus", rules: Rules) -> bool:
        """Whether there is more between them than the time of the last sample."""

        def gist(one: HostStatus) -> tuple[Any, ...]:
            kept = {n: m.gist(rules) for n, m in one.sources.items() if m.verdict != UP}
            return one.state, one.decided_at, one.well_since, one.seen_at, kept

        return gist(self) != gist(other)


def judge(standing: HostStatus, sighting: StatusReport, rules: Rules, now: datetime) -> HostStatus:
    """What the host is to us after this sighting; the same if it says nothing new."""
    if sighting.verdict == UNKNOWN:
        return standing
    at = min(sighting.at, now)  # a clock that is ahead must not silence what comes after
    before = standing.sources.get(sighting.source)
    if before is not None and at <= before.at:
        return standing
    sources = {**standing.sources, sighting.source: _remember(before, sighting, at, rules)}
    if sighting.decisive and sighting.verdict == UP:
        sources = {name: one for name, one in sources.items() if one.at >= at}
    if sighting.verdict == UP and standing.state == RETURNING:
        standing = _seen(standing, rules, at)
    return _conclude(replace(standing, sources=_few(sources)), rules, now)


def _seen(standing: HostStatus, rules: Rules, at: datetime) -> HostStatus:
    """The host was seen well. If nobody had looked for long, it has been well since then: nobody
    knows what it was before."""
    before = standing.seen_at or at
    if at - before > timedelta(seconds=GAP * rules.poll_interval_s):
        why = f"looks well since {at:%H:%M:%S} UTC; before that nobody looked for a while"
        return replace(standing, well_since=at, seen_at=at, why=why)
    worth = at - before >= timedelta(seconds=NOTED * rules.poll_interval_s)
    return replace(standing, seen_at=at) if worth else standing


def ripen(standing: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    """What time alone makes of it: for when nobody looks, and no news has to do for good news."""
    return _conclude(standing, rules, now) if standing.state == RETURNING else standing


def _remember(before: Memory | None, sighting: StatusReport, at: datetime, rules: Rules) -> Memory:
    said = Memory(
        sighting.verdict,
        at,
        decisive=sighting.decisive,
        reason=sighting.reason[:LONGEST_REASON],
    )
    if not _is_bad(sighting.verdict, rules):
        return said
    known = before.bad_since if before is not None else None
    since = min(when for when in (known, sighting.since, at) if when is not None)
    return replace(said, bad=(before.bad if before is not None else 0) + 1, bad_since=since)


def _is_bad(verdict: str, rules: Rules) -> bool:
    return {
        DOWN: True,
        DISABLED: rules.disabled_is_failure,
        AUTO_DISABLED: rules.auto_disabled_is_failure,
    }.get(verdict, False)


def _few(sources: dict[str, Memory]) -> dict[str, Memory]:
    """If there are too many, those that complain, and of the others those that spoke last."""
    if len(sources) <= MOST_SOURCES:
        return sources
    best = sorted(sources, key=lambda name: (sources[name].bad > 0, sources[name].at), reverse=True)
    return {name: sources[name] for name in best[:MOST_SOURCES]}


def _conclude(standing: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    said = standing.sources
    sure = next((name for name, one in said.items() if one.convinces(rules)), None)
    if sure is not None:
        decided = now if standing.usable else standing.decided_at
        down = replace(standing, decided_at=decided, well_since=None, seen_at=None)
        return _move(down, DOWN, _why(sure, said[sure]), now)
    bad = next((name for name, one in said.items() if one.bad), None)
    if standing.usable:
        if bad is None:
            return _move(standing, UP, "well", now)
        return _move(standing, SUSPECT, _why(bad, said[bad]), now)
    closed = next((name for name, one in said.items() if one.verdict != UP), None)
    if closed is not None:  # bad again, or closed by somebody: not well on all sides
        out = replace(standing, well_since=None, seen_at=None)
        return _move(out, DOWN, _why(closed, said[closed]), now)
    return _returning(standing, rules, now)


def _returning(standing: HostStatus, rules: Rules, now: datetime) -> HostStatus:
    since, decided = standing.well_since or now, standing.decided_at or now
    well = replace(standing, well_since=since, seen_at=standing.seen_at or now)
    ready = max(
        since + timedelta(seconds=rules.healthy_for_s),
        decided + timedelta(seconds=rules.damping_s),
    )
    if now < ready:
        return _move(well, RETURNING, f"looks well since {since:%H:%M:%S} UTC", now)
    back = replace(standing, well_since=None, seen_at=None)
    return _move(back, UP, f"well since {since:%Y-%m-%d %H:%M:%S} UTC", now)


def _move(standing: HostStatus, state: str, why: str, now: datetime) -> HostStatus:
    if state == standing.state:
        return standing if state in (UP, RETURNING) else replace(standing, why=why)
    return replace(standing, state=state, since=now, why=why)


def _why(source: str, said: Memory) -> str:
    what = {DOWN: "down", UP: "up"}.get(said.verdict, said.verdict)
    return f"{source} says {what}" + (f": {said.reason}" if said.reason else "")


def to_plain(standing: HostStatus) -> dict[str, Any]:
    """What is kept beside `state` and `since`, fit for JSON."""
    return {
        "why": standing.why,
        "decided_at": _text(standing.decided_at),
        "well_since": _text(standing.well_since),
        "seen_at": _text(standing.seen_at),
        "sources": {
            name: {
                "verdict": one.verdict,
                "at": _text(one.at),
                "bad": one.bad,
                "bad_since": _text(one.bad_since),
                "decisive": one.decisive,
                "reason": one.reason,
            }
            for name, one in standing.sources.items()
        },
    }


def from_plain(state: str, since: datetime | None, kept: Mapping[str, Any] | None) -> HostStatus:
    kept = kept or {}
    return HostStatus(
        state=state,
        since=since,
        why=kept.get("why", ""),
        decided_at=_time(kept.get("decided_at")),
        well_since=_time(kept.get("well_since")),
        seen_at=_time(kept.get("seen_at")),
        sources={
            name: Memory(
                verdict=one["verdict"],
                at=datetime.fromisoformat(one["at"]),
                bad=one["bad"],
                bad_since=_time(one["bad_since"]),
                decisive=one["decisive"],
                reason=one["reason"],
            )
            for name, one in kept.get("sources", {}).items()
        },
    )


def _text(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
