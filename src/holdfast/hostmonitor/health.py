# SPDX-License-Identifier: Apache-2.0
"""Health of hosts: combines all networks, applies the HA matrix, decides on reports. No I/O.

A host is down on a network only if three conditions hold: the leader of the network's cluster
says so, the local agent's gossip does not contradict, and a later proof shows that this monitor
sees the network at all. If the cluster has too few servers for that proof, the host must also
have failed to answer a probe. A host is unknown if the monitor does not see the network, if no
member knows the host, or if it left on purpose. The monitor reports a state only after it has
lasted as long as the rule says, and then once, until the host has been healthy for a while.

>>> ha_matrix = matrix.default(("storage",))
>>> seen = Sight("storage", {"cmp-1": DOWN}, {"cmp-1": DOWN}, seen_at=1.0, proven_at=2.0)
>>> moment = Moment(2.0, datetime(2026, 1, 1))
>>> records, reports = judge(HealthRecords(), [seen], ha_matrix, moment, 10.0)
>>> reports
()
>>> later, moment = replace(seen, proven_at=6.0), Moment(6.0, datetime(2026, 1, 1))
>>> [report.state for report in judge(records, [later], ha_matrix, moment, 10.0)[1]]
['failed']
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import ALERT, DOWN, NONE, RECOVERY, UNDECIDED, UNKNOWN, UP, Matrix
from holdfast.model.host import normalise
from holdfast.ports.membership import LEFT

#: States of a report.
FAILED, ALERTED, WELL = "failed", "alert", "well"
_STATE = {RECOVERY: FAILED, ALERT: ALERTED}
_RANK = {"": 0, ALERTED: 1, FAILED: 2}


@dataclass(frozen=True)
class Moment:
    """A point in time: monotonic seconds, and the wall clock at the same moment."""

    at: float
    now: datetime

    def wall(self, at: float) -> datetime:
        return self.now - timedelta(seconds=self.at - at)


@dataclass(frozen=True)
class Sight:
    """Knowledge about a network; `why` says why the monitor cannot trust it, or is empty."""

    network: str
    states: Mapping[str, str] = field(default_factory=dict)  # as the leader says
    gossip: Mapping[str, str] = field(default_factory=dict)  # as the local agent says
    seen_at: float = 0.0  # when `states` last changed
    proven_at: float = -1.0  # start of the last proof that this monitor sees
    leader: str = ""
    servers: str = ""  # how many servers of the cluster are alive
    unanswered: frozenset[str] | None = None  # nodes that may count as lost; None: all
    probe: str = ""  # how the probe proved it
    why: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether a proof of sight is newer than the node states."""
        return not self.why and self.proven_at >= self.seen_at

    def doubts(self) -> bool:
        """Whether the leader calls a node down and gossip or the proof do not confirm this yet."""
        states = self.states.items()
        down = [node for node, state in states if state == DOWN]
        return any(not self.is_proven or not self._agrees(node) for node in down)

    def health(self, node: str) -> str:
        if self.why:
            return UNKNOWN
        state = self.states.get(node, UNKNOWN)
        if state == DOWN:
            lost = self.unanswered is None or node in self.unanswered
            return DOWN if self.is_proven and lost and self._agrees(node) else UNKNOWN
        return UP if state == UP else UNKNOWN

    def _agrees(self, node: str) -> bool:
        """Whether the local agent does not contradict.

        An agent started after the node had died never hears of the node.
        """
        return self.gossip.get(node, DOWN) == DOWN


@dataclass(frozen=True, slots=True)
class Track:
    """Record of a host between two judgements; times are monotonic seconds."""

    health: tuple[str, ...]
    since: tuple[float, ...]  # start of each network's health
    action: str = NONE  # the action of the HA matrix
    action_since: float = 0.0
    opinion: str = NONE  # the lasting action; undecided if an unknown network decides
    reported: str = ""  # the worst reported state since the host was healthy


@dataclass(frozen=True)
class HealthRecords:
    """Tracks of all hosts."""

    tracks: Mapping[str, Track] = field(default_factory=dict)
    due: float | None = None  # when the next change by time alone is due


@dataclass(frozen=True)
class Report:
    """A changed host state to send to Holdfast, with evidence."""

    host: str
    state: str
    since: datetime
    evidence: Mapping[str, Any]


def judge(
    records: HealthRecords,
    sights: Sequence[Sight],
    ha_matrix: Matrix,
    moment: Moment,
    healthy_after_s: float,
) -> tuple[HealthRecords, tuple[Report, ...]]:
    """Return the updated records and the reports to send."""
    tracks: dict[str, Track] = {}
    reports: list[Report] = []
    blind = [sight.network for sight in sights if sight.why]
    dues: list[float] = []
    for host in sorted({*records.tracks, *(node for sight in sights for node in sight.states)}):
        old = records.tracks.get(host)
        health = tuple(sight.health(host) for sight in sights)
        if _is_gone(host, sights):
            continue
        answer = ha_matrix.answer(dict(zip(ha_matrix.networks, health, strict=True)), blind)
        new = _follow(old, health, answer.action, moment)
        new, state, due = _settle(new, answer, healthy_after_s, moment.at)
        if state:
            reports.append(_report(host, state, new, sights, answer, ha_matrix, moment))
        if due is not None:
            dues.append(due)
        tracks[host] = new
    return HealthRecords(tracks, min(dues, default=None)), tuple(reports)


def view(records: HealthRecords, sights: Sequence[Sight]) -> list[dict[str, Any]]:
    """All hosts, grouped by equal health and opinion."""
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for host, track in records.tracks.items():
        rows.setdefault((track.health, track.opinion), []).append(host)
    names = [sight.network for sight in sights]
    return [
        {"health": dict(zip(names, health, strict=True)), "opinion": opinion, "hosts": hosts}
        for (health, opinion), hosts in sorted(rows.items())
    ]


def _is_gone(host: str, sights: Sequence[Sight]) -> bool:
    """Whether the host left or is unknown on every visible network, and a network is visible."""
    seeing = [sight for sight in sights if not sight.why]
    return bool(seeing) and all(sight.states.get(host, LEFT) == LEFT for sight in seeing)


def _follow(old: Track | None, health: tuple[str, ...], action: str, moment: Moment) -> Track:
    at = moment.at
    if old is None or len(old.health) != len(health):
        return Track(health, (at,) * len(health), action, at, reported=old.reported if old else "")
    if health == old.health and action == old.action:
        return old
    since = tuple(
        was_since if was == now else at
        for was, now, was_since in zip(old.health, health, old.since, strict=True)
    )
    action_since = old.action_since if action == old.action else at
    return replace(old, health=health, since=since, action=action, action_since=action_since)


def _settle(
    track: Track, answer: matrix.Answer, healthy_after_s: float, at: float
) -> tuple[Track, str, float | None]:
    """Apply the required durations: the track, a report if due, and the time of the next check."""
    lasted = at - track.action_since
    if not answer.is_decided:
        return _doubt(replace(track, opinion=UNDECIDED), answer, lasted)
    wait = healthy_after_s if track.action == NONE and track.reported else answer.for_s
    if track.action == NONE and not track.reported:
        wait = 0.0
    if lasted < wait:
        before = RECOVERY if track.reported == FAILED else ALERT if track.reported else NONE
        return replace(track, opinion=before), "", track.action_since + wait
    if track.action == NONE:
        return replace(track, opinion=NONE, reported=""), WELL if track.reported else "", None
    state = _STATE[track.action]
    if _RANK[state] <= _RANK[track.reported]:
        return replace(track, opinion=RECOVERY if track.reported == FAILED else ALERT), "", None
    return replace(track, opinion=track.action, reported=state), state, None


def _doubt(track: Track, answer: matrix.Answer, lasted: float) -> tuple[Track, str, float | None]:
    """An unknown network decides: the monitor has no opinion, but reports an alert as usual."""
    if answer.action != ALERT or _RANK[track.reported] >= _RANK[ALERTED]:
        return track, "", None
    if lasted < answer.for_s:
        return track, "", track.action_since + answer.for_s
    return replace(track, reported=ALERTED), ALERTED, None


def _report(
    host: str,
    state: str,
    track: Track,
    sights: Sequence[Sight],
    answer: matrix.Answer,
    ha_matrix: Matrix,
    moment: Moment,
) -> Report:
    networks = {
        sight.network: _evidence(host, sight, health, moment.wall(since))
        for sight, health, since in zip(sights, track.health, track.since, strict=True)
    }
    evidence = {"networks": networks, "rule": answer.sentence, "ha_matrix": ha_matrix.source}
    return Report(
        host=normalise(host),
        state=state,
        since=moment.wall(track.action_since),
        evidence=evidence if answer.is_decided else {**evidence, "undecided": True},
    )


def _evidence(host: str, sight: Sight, health: str, since: datetime) -> dict[str, Any]:
    evidence: dict[str, Any] = {"health": health, "since": since.isoformat()}
    if sight.why:
        return {**evidence, "why": sight.why}
    if health == DOWN:
        own = ["own gossip"] if sight.gossip.get(host) == DOWN else []
        probe = [sight.probe] if sight.probe else []
        evidence["confirmed_by"] = [f"leader {sight.leader}", *own, sight.servers, *probe]
    return {**evidence, "leader": sight.leader}
