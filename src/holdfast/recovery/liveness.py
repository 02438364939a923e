# SPDX-License-Identifier: Apache-2.0
"""Judges whether a host reported as failed shows signs of life. Pure functions without I/O.

A failure report has a scope (the whole host, or the lost networks) and the time at which
Holdfast received it. A sign of life contradicts the report if Holdfast received it later and it
came over a network within the scope. Holdfast never compares times of other machines' clocks
with its own.

    judge([FailureReport("ann", at)], [LifeSign("its agent", seen_at, 10.0)], now).state  # STANDS
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.model.incident_progress import Counted

#: Combined result of all reports.
STANDS, WAITS, CONTRADICTED, WITHDRAWN = "stands", "waits", "contradicted", "withdrawn"
#: The host died and came back: its servers died with it, and the host is healthy.
REBOOTED = "rebooted"
#: A report received up to this long after a reboot tells of this reboot: outages delay reports.
REBOOT_BEFORE = timedelta(minutes=10)
#: A sign of life counts for this many of its intervals; without a newer one it then expires.
COUNTS_FOR = 2.5
#: Seconds to wait at most for the extent of an outage of a failure domain.
SETTLING_S = 15.0


@dataclass(frozen=True)
class FailureReport:
    """A report of a source that a host failed."""

    source: str
    received_at: datetime
    #: The networks that are lost; None: the whole host.
    networks: frozenset[str] | None = None
    #: Whether the report waits until the host's next sign of life is overdue.
    waits: bool = True
    withdrawn_at: datetime | None = None
    #: Whether the report counts despite all signs of life.
    trusted: bool = False
    #: Why the source itself doubts the report by now: it lost its majority.
    doubt: str = ""

    def covers(self, network: str) -> bool:
        return self.networks is None or network in self.networks


@dataclass(frozen=True)
class LifeSign:
    """A periodic sign of life of a host, for example the agent's heartbeat."""

    source: str
    #: When Holdfast received the last sign; None: none since Holdfast began to watch.
    at: datetime | None
    interval_s: float
    network: str = ""
    #: Seconds that the next sign may come later than its interval.
    margin_s: float = 1.0
    #: When Holdfast began to watch, if the interval counts from then.
    since: datetime | None = None
    #: Whether the sign carries a boot id, and when a new boot id was first seen.
    tells_reboot: bool = False
    rebooted_at: datetime | None = None

    def is_fresh(self, now: datetime) -> bool:
        lasts = timedelta(seconds=COUNTS_FOR * self.interval_s)
        return self.at is not None and now - self.at <= lasts

    def contradicts(self, report: FailureReport, now: datetime) -> bool:
        if report.trusted or self.at is None or self.at <= report.received_at:
            return False
        if not report.covers(self.network):
            return False
        return self.is_fresh(now)

    def shows_reboot(self, reports: Sequence[FailureReport], now: datetime) -> bool:
        """Whether the host rebooted at the time of the reports and is alive now."""
        if self.rebooted_at is None or not self.is_fresh(now) or not reports:
            return False
        in_force = [
            failure_report for failure_report in reports if failure_report.withdrawn_at is None
        ]
        first = min(failure_report.received_at for failure_report in reports)
        return self.rebooted_at > first - REBOOT_BEFORE and all(
            self.contradicts(failure_report, now) for failure_report in in_force
        )

    def is_there(self, report: FailureReport) -> bool:
        """Whether the host gave this sign until shortly before the report, or is watched for it."""
        if self.at is None:
            return self.since is not None
        lately = timedelta(seconds=COUNTS_FOR * self.interval_s)
        return self.since is not None or self.at >= report.received_at - lately

    def overdue_at(self) -> datetime:
        counts_from = max(at for at in (self.at, self.since) if at is not None)
        return counts_from + timedelta(seconds=self.interval_s + self.margin_s)


@dataclass(frozen=True)
class Judgement:
    """Result of `judge`."""

    state: str
    sentence: str
    counted: Sequence[Counted] = ()
    #: Seconds until a new judgement may differ; 0: at any time.
    again_s: float = 0.0


def judge(
    reports: Sequence[FailureReport],
    signs: Sequence[LifeSign],
    now: datetime,
    *,
    seen_well: str = "",
    is_off: bool = False,
) -> Judgement:
    """Judge the reports by the signs of life.

    `seen_well`: the sentence of a majority of the seeing monitors that the host is healthy.
    `is_off`: the power reads off, which proves the host dead whatever arrived before.
    """
    in_force = [failure_report for failure_report in reports if failure_report.withdrawn_at is None]
    for sign in signs:
        if sign.rebooted_at is not None and sign.shows_reboot(reports, now):
            sentence = f"{sign.source} reports a new boot id since {_clock(sign.rebooted_at)}"
            how = "the host died and came back"
            counted = (*_gone(reports), *_reported(in_force, f"true: {how}"))
            return Judgement(REBOOTED, f"{sentence}: {how}", counted)
    if not in_force and (silent := _unheard_since(reports, signs, now)):
        sentence = f"every report was withdrawn, and {silent} was not heard since: did it reboot?"
        return Judgement(CONTRADICTED, sentence, _gone(reports))
    if not in_force:
        sentence = seen_well or "; ".join(
            f"{failure_report.source} withdrew the report" for failure_report in reports
        )
        return Judgement(
            WITHDRAWN, sentence or "no source reports a failure any more", _gone(reports)
        )
    if is_off:
        return Judgement(STANDS, "its power reads off", _reported(in_force, "proven by its power"))
    against = [
        (report, [sign for sign in signs if sign.contradicts(report, now)]) for report in in_force
    ]
    free = [
        report
        for report, life_signs in against
        if report.trusted or not (life_signs or seen_well or report.doubt)
    ]
    counted = (*_gone(reports), *_weighed(against, signs, seen_well, now))
    if not free:
        return Judgement(CONTRADICTED, _contradiction(signs, in_force, seen_well, now), counted)
    ready = [_ready_at(report, signs, now) for report in free]
    wait_s = (min(ready) - now).total_seconds()
    if wait_s > 0:
        sentence = "one report alone: its next sign of life is not overdue yet"
        return Judgement(WAITS, sentence, counted, wait_s)
    sentence = "no newer sign of life contradicts it"
    if any(report.trusted for report in free):
        sentence = "its segment trusts notifications"
    return Judgement(STANDS, sentence, counted)


def _unheard_since(
    reports: Sequence[FailureReport], signs: Sequence[LifeSign], now: datetime
) -> str:
    """Name the boot-id sign given before the reports but not since their withdrawal.

    Empty if there is none, or REBOOT_BEFORE has passed since the withdrawal.
    """
    if not reports:
        return ""
    first = min(reports, key=lambda failure_report: failure_report.received_at)
    withdrawn = max(report.withdrawn_at or now for report in reports)
    for sign in signs:
        if not sign.tells_reboot or sign.at is None or now > withdrawn + REBOOT_BEFORE:
            continue
        if first.received_at - REBOOT_BEFORE < sign.at <= withdrawn:
            return sign.source
    return ""


def _ready_at(report: FailureReport, signs: Sequence[LifeSign], now: datetime) -> datetime:
    """When the host's next sign of life is overdue.

    The agent's sign suffices if there is one: it comes first in `signs`.
    """
    if report.trusted or not report.waits:
        return now
    for sign in signs:
        if report.covers(sign.network) and sign.is_there(report):
            return sign.overdue_at()
    return now


def _contradiction(
    signs: Sequence[LifeSign], reports: Sequence[FailureReport], seen_well: str, now: datetime
) -> str:
    contradictions = [
        f"{sign.source} gave a sign of life since"  # no time: the sentence must not change
        for sign in signs
        if any(sign.contradicts(failure_report, now) for failure_report in reports)
    ]
    contradictions += sorted({seen_well, *(report.doubt for report in reports)} - {""})
    sources = ", ".join(sorted({failure_report.source for failure_report in reports}))
    return f"contradicted: {'; '.join(contradictions)}; it was reported as failed by {sources}"


def _gone(reports: Sequence[FailureReport]) -> tuple[Counted, ...]:
    return tuple(
        Counted(
            failure_report.source, "withdrew its report", failure_report.withdrawn_at, "no longer"
        )
        for failure_report in reports
        if failure_report.withdrawn_at is not None
    )


def _reported(reports: Sequence[FailureReport], how: str) -> tuple[Counted, ...]:
    return tuple(
        Counted(failure_report.source, _says(failure_report), failure_report.received_at, how)
        for failure_report in reports
    )


def _weighed(
    against: Sequence[tuple[FailureReport, Sequence[LifeSign]]],
    signs: Sequence[LifeSign],
    seen_well: str,
    now: datetime,
) -> tuple[Counted, ...]:
    lines = []
    for report, life_signs in against:
        seen = seen_well or report.doubt
        names = [sign.source for sign in life_signs] + (["the monitors"] if seen else [])
        how = f"contradicted by {' and '.join(names)}" if names else "counts"
        if report.trusted:
            how = "counts whatever else is said: its segment trusts notifications"
        lines.append(Counted(report.source, _says(report), report.received_at, how))
    for sign in signs:
        if sign.at is None:
            continue
        newer = any(sign.contradicts(report, now) for report, _found in against)
        how = "contradicts" if newer else "older than the report, or about another network"
        lines.append(Counted(sign.source, "gave a sign of life", sign.at, how))
    return tuple(lines)


def _says(report: FailureReport) -> str:
    if report.networks is None:
        return "reported that it failed"
    return f"reported that it lost {' and '.join(sorted(report.networks))}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"
