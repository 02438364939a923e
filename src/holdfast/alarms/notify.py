# SPDX-License-Identifier: Apache-2.0
"""Alarm notifier: decides which alarms get a notification, and when.

The notifier compares the state of each alarm with its last notification, so nothing depends on
having seen every change. Only the wait of its group delays a raise. These notifications are
held back:

- alarms of a guest while its host has an alarm of the same class
- the end of a flapping alarm, until the alarm is over for longer each time
- in a storm, all but the worst few; a single storm alarm carries their number

Alarms of the host itself are exempt from the storm limit: there is one per rule, and guests
must not crowd it out. An alarm with a notification stays the same alarm until it is over:
losing its values is not its end, and a later raise belongs to the same alarm.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.alarms.rules import NONE, SEVERITIES, Rule, RuleSet
from holdfast.alarms.tracks import (
    AGAIN,
    CLEARED,
    FIRING,
    LOST,
    NO_DATA,
    OK,
    PENDING,
    RAISED,
    Change,
    Group,
    Moment,
    Track,
    Watcher,
)
from holdfast.ports.metrics import HOST

STORM: Final = "storm"
#: A group is sent now if the next pass would exceed its wait by more than this share of a pass:
#: passes are never exactly evenly spaced.
_LATE: Final = 0.1
#: Within this many seconds no more alarms are raised than may stand notified at once. A storm
#: is over when no alarm was held back for this long.
STORM_S: Final = 60.0
_RANK: Final = {name: rank for rank, name in enumerate((NONE, *SEVERITIES))}


@dataclass(slots=True)
class Storm:
    """Storm alarm: number and worst severity of the alarms held back, as last notified."""

    notified: int = 0
    worst: str = NONE
    first: Change | None = None
    calm_since: float = 0.0


@dataclass(slots=True)
class _Candidate:
    """A raise or no-data state without a notification yet."""

    watcher: Watcher
    track: Track

    @property
    def weight(self) -> tuple[int, bool, float, str]:
        """Sort key: the worst alarm first; the entity id decides between equals."""
        track, level = self.track, self.watcher.level(self.track)
        beyond = abs(track.value - level) / (abs(level) or 1.0)
        return _RANK[self.severity], track.state == FIRING, beyond, track.entity.id

    @property
    def severity(self) -> str:
        return _severity(self.watcher.rule, self.track)


class _Room:
    """Remaining notifications per severity; a lower severity takes no room from a higher."""

    def __init__(self, most: int, *taken: Mapping[str, int]) -> None:
        self._left = {
            severity: most
            - max(sum(of.get(other, 0) for other in _at_least(severity)) for of in taken)
            for severity in SEVERITIES
        }

    def has(self, severity: str) -> bool:
        return self._left.get(severity, 0) > 0

    def use(self, severity: str) -> bool:
        """Use up a notification of this severity; return False if none is left."""
        if not self.has(severity):
            return False
        for lower in SEVERITIES:
            self._left[lower] -= _RANK[lower] <= _RANK[severity]
        return True


@dataclass(slots=True)
class _Candidates:
    """Candidates of a pass: remaining room, wanted notifications, and the number held back."""

    room: _Room
    wanted: list[_Candidate] = field(default_factory=list)
    held_back: int = 0
    worst: str = NONE

    def count(self, held_back: int, severity: str) -> None:
        """Count alarms held back, and keep their worst severity."""
        self.held_back += held_back
        if held_back and _RANK[severity] > _RANK[self.worst]:
            self.worst = severity


@dataclass
class AlarmNotifier:
    """Builds notification groups from the state of all watchers."""

    open: dict[str, tuple[float, list[Change]]] = field(default_factory=dict)  # by project
    raised: deque[tuple[float, str]] = field(default_factory=deque)  # recent: time, severity
    storm: Storm = field(default_factory=Storm)
    #: Number of alarms per severity with a raise notification and no end notification.
    raised_by_severity: Counter[str] = field(default_factory=Counter)

    def notify(
        self,
        watchers: Sequence[Watcher],
        retired: Iterable[Watcher],
        rules: RuleSet,
        moment: Moment,
    ) -> None:
        """Put all due notifications into their groups."""
        for watcher in retired:
            for track in watcher.tracks.values():
                if track.notified != OK:
                    self._clear(watcher, track, moment)
        while self.raised and moment.now - self.raised[0][0] >= STORM_S:
            self.raised.popleft()
        lately = Counter(severity for _, severity in self.raised)
        muted = _muted_topics(watchers)
        candidates = _Candidates(_Room(rules.storm, self.raised_by_severity, lately))
        for watcher in watchers:
            is_muted = watcher.rule.kind != HOST and watcher.rule.topic in muted
            self._collect(watcher, is_muted, candidates, moment)
            if watcher.rule.repeat_s:
                self._repeat(watcher, moment)
        self._raise(candidates, rules.storm, moment)

    def due(self, now: float, wait_s: float, step_s: float, host: str) -> tuple[Group, ...]:
        """Return groups that waited long enough, or would be late in the next pass.

        The next pass is assumed to be as far away as the last pass was; if that is unknown, too
        far.
        """
        left_s = step_s * (1 - _LATE) if step_s else wait_s
        until = now + left_s + 1e-6
        ready = [name for name, (opened, _) in self.open.items() if until >= opened + wait_s]
        return tuple(Group(host, name, tuple(self.open.pop(name)[1])) for name in sorted(ready))

    def _collect(
        self, watcher: Watcher, is_muted: bool, candidates: _Candidates, moment: Moment
    ) -> None:
        """Collect notifications for the changed or postponed alarms of a rule; skip all others."""
        rule, now, tracks = watcher.rule, moment.now, watcher.tracks
        severities = {FIRING: rule.severity, NO_DATA: rule.no_data}
        is_host = rule.kind == HOST
        full = {
            s: not is_host and not candidates.room.has(severity)
            for s, severity in severities.items()
        }
        held_back = dict.fromkeys(severities, 0)
        for key in list(watcher.restless):
            track = tracks[key]
            state, notified = track.state, track.notified
            is_new = notified != state or key in watcher.renewed
            if is_new and state in severities:
                if is_muted or (state == NO_DATA and not _is_lost(track, rule, now)):
                    continue
                if notified == OK and full[state]:
                    held_back[state] += 1
                else:
                    candidates.wanted.append(_Candidate(watcher, track))
                continue
            if notified != OK and state == PENDING:
                continue  # notified, then no data: it may still be the same alarm
            if notified != OK and state == OK:
                if not _is_over(track, rule, now):
                    continue
                self._clear(watcher, track, moment)
            if track.idle(rule, now):
                del tracks[key]
            if state != OK or key not in tracks:
                watcher.restless.discard(key)
        for state, count in held_back.items():
            candidates.count(count, severities[state])

    def _repeat(self, watcher: Watcher, moment: Moment) -> None:
        """Repeat notifications that are older than the rule's `repeat`."""
        for track in watcher.tracks.values():
            old = moment.now - track.notified_now >= watcher.rule.repeat_s
            if old and track.notified == track.state != OK:
                self._send(watcher, track, AGAIN, moment)

    def _raise(self, candidates: _Candidates, most: int, moment: Moment) -> None:
        """Send the wanted notifications within the storm limit, the worst first."""
        # an alarm with a notification only gets an update, which needs no room
        more = [candidate for candidate in candidates.wanted if candidate.track.notified != OK]
        new = [candidate for candidate in candidates.wanted if candidate.track.notified == OK]
        new.sort(key=lambda candidate: candidate.weight, reverse=True)
        for candidate in [*more, *new]:
            needs_room = candidate.track.notified == OK and is_capped(candidate.track)
            if not needs_room or candidates.room.use(candidate.severity):
                self._notify_of(candidate, moment)
            else:
                candidates.count(1, candidate.severity)
        self._count(candidates, most, moment)

    def _notify_of(self, candidate: _Candidate, moment: Moment) -> None:
        """Record and send the notification of a raise or of no data."""
        track, severity, before = candidate.track, candidate.severity, candidate.track.notified
        if is_capped(track):
            self.raised.append((moment.now, severity))
        if before == OK:  # the same alarm until it is over, whatever its later states
            track.notified_first_at, track.notified_severity = track.first_at, severity
            self.raised_by_severity[severity] += is_capped(track)
        elif _RANK[severity] > _RANK[track.notified_severity]:
            self.raised_by_severity.update(
                {track.notified_severity: -is_capped(track), severity: is_capped(track)}
            )
            track.notified_severity = severity
        track.notified = track.state
        candidate.watcher.renewed.discard(track.entity.id)
        event = RAISED if track.state == FIRING else LOST
        self._send(candidate.watcher, track, event, moment, before)

    def _count(self, candidates: _Candidates, most: int, moment: Moment) -> None:
        """Raise, repeat or clear the storm alarm."""
        storm, held_back = self.storm, candidates.held_back
        if held_back:
            storm.calm_since = moment.now
            worse = _RANK[candidates.worst] > _RANK[storm.worst]
            if storm.first is None or held_back >= 2 * storm.notified or worse:
                event = RAISED if storm.first is None else AGAIN
                change = _storm_change(held_back, most, candidates.worst, moment)
                storm.first = storm.first or change
                storm.notified, storm.worst = held_back, candidates.worst
                self._put(replace(change, first_at=storm.first.first_at, event=event), moment)
        elif storm.first is not None and moment.now - storm.calm_since >= STORM_S:
            over = replace(
                storm.first, before=FIRING, state=OK, event=CLEARED, at=moment.at, value=0.0
            )
            self._put(over, moment)
            self.storm = Storm()

    def _clear(self, watcher: Watcher, track: Track, moment: Moment) -> None:
        """Send the notification of an alarm's end."""
        track.notified, before = OK, track.notified
        self.raised_by_severity[track.notified_severity] -= is_capped(track)
        watcher.renewed.discard(track.entity.id)
        self._send(watcher, track, CLEARED, moment, before)

    def _send(
        self, watcher: Watcher, track: Track, event: str, moment: Moment, before: str = ""
    ) -> None:
        track.notified_now, watcher.unsaved = moment.now, True
        change = watcher.change(track, before or track.notified, moment)
        state = OK if event == CLEARED else change.state
        severity = _severity(watcher.rule, track)
        first_at = track.notified_first_at
        change = replace(change, event=event, state=state, severity=severity, first_at=first_at)
        self._put(
            change, moment, _late_s(watcher.rule, track, moment.now) if event == RAISED else 0
        )

    def _put(self, change: Change, moment: Moment, late_s: float = 0.0) -> None:
        """Add a change to the group of its project.

        `late_s` is the time since the change could have been sent if there had been a pass. The
        group's wait counts from then on.
        """
        since = moment.now - late_s
        opened, changes = self.open.get(change.project, (since, []))
        changes.append(change)
        self.open[change.project] = (min(since, opened), changes)


def is_capped(track: Track) -> bool:
    """Tell whether an alarm counts towards the storm limit."""
    return track.entity.kind != HOST


def _late_s(rule: Rule, track: Track, now: float) -> float:
    """Return the seconds since the alarm's `for` duration ended."""
    return max(0.0, now - track.began - rule.for_s)


def _muted_topics(watchers: Iterable[Watcher]) -> set[str]:
    """Return the classes in which the host has a firing alarm."""
    return {
        watcher.rule.topic
        for watcher in watchers
        if watcher.rule.kind == HOST
        and watcher.rule.topic
        and any(track.state == FIRING for track in watcher.tracks.values())
    }


def _is_over(track: Track, rule: Rule, now: float) -> bool:
    """Tell whether the end may be notified; a flapping alarm must be over for a while."""
    if track.notified == NO_DATA or not track.flaps or track.cleared is None:
        return True
    delay_s = min(rule.damp_cap_s, rule.damp_s * 2.0 ** min(track.flaps - 1, 30))
    return now - track.cleared >= delay_s


def _is_lost(track: Track, rule: Rule, now: float) -> bool:
    """Tell whether no data is to be notified; always for an alarm last notified as firing."""
    if rule.no_data == NONE and track.notified != FIRING:
        return False
    return now - track.lost >= rule.no_data_for_s


def _severity(rule: Rule, track: Track) -> str:
    """Return the severity of a notification.

    No data has a severity of its own; if the rule sets none, a raised alarm keeps its severity.
    """
    if track.state != NO_DATA or (rule.no_data == NONE and track.notified != OK):
        return rule.severity
    return rule.no_data


def _at_least(severity: str) -> tuple[str, ...]:
    return SEVERITIES[SEVERITIES.index(severity) :]


def _storm_change(count: int, most: int, severity: str, moment: Moment) -> Change:
    return Change(
        rule=STORM,
        version=moment.version,
        host=moment.host,
        kind=HOST,
        entity=moment.host,
        name=moment.host,
        project="",
        before=OK,
        state=FIRING,
        severity=severity,
        value=float(count),
        threshold=float(most),
        window_s=STORM_S,
        first_at=moment.at,
        last_at=moment.at,
        at=moment.at,
        samples=1,
        topic=STORM,
        summary=f"{count} alarms more than the {most} that are sent at once; see them on the host",
        actions=("notify",),
    )
