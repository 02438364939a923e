# SPDX-License-Identifier: Apache-2.0
"""Which of the alarms are told, and when: as little as is enough.

How alarms are is compared with what was told of them, so nothing depends on having seen them
change. A raise is never delayed but by its group. Not told is an alarm of a guest while its host
has one of the same class; the end of an alarm that comes and goes, until it is over for longer each
time; and of a storm more than the worst few, for which one alarm has the number. Those of the host
itself are outside of that: there is one for each rule, and guests must not crowd it out. An alarm
that was told is one until it is over: losing its numbers is not its end, and what comes after is
the same.
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
#: A group is told now if the next pass would be later than its wait by more of a pass than this:
#: passes are never quite as far apart as they should be.
_LATE: Final = 0.1
#: In that time no more alarms are raised than may stand told at once; and a storm is over when
#: there was none for so long.
STORM_S: Final = 60.0
_RANK: Final = {name: rank for rank, name in enumerate((NONE, *SEVERITIES))}


@dataclass(slots=True)
class Storm:
    """How many alarms are not told, as it was told last, and how bad the worst of them is."""

    told: int = 0
    worst: str = NONE
    first: Change | None = None
    calm_since: float = 0.0


@dataclass(slots=True)
class _Wish:
    """A raise, or no data, that has not been told."""

    watcher: Watcher
    track: Track

    @property
    def weight(self) -> tuple[int, bool, float, str]:
        """The worst first; of equals always the same one."""
        track, level = self.track, self.watcher.level(self.track)
        beyond = abs(track.value - level) / (abs(level) or 1.0)
        return _RANK[self.severity], track.state == FIRING, beyond, track.entity.id

    @property
    def severity(self) -> str:
        return _severity(self.watcher.rule, self.track)


class _Room:
    """For how many more of each severity: what is less bad takes no room from what is worse."""

    def __init__(self, most: int, *taken: Mapping[str, int]) -> None:
        self._left = {
            one: most - max(sum(of.get(other, 0) for other in _at_least(one)) for of in taken)
            for one in SEVERITIES
        }

    def has(self, severity: str) -> bool:
        return self._left.get(severity, 0) > 0

    def take(self, severity: str) -> bool:
        if not self.has(severity):
            return False
        for one in SEVERITIES:
            self._left[one] -= _RANK[one] <= _RANK[severity]
        return True


@dataclass(slots=True)
class _Wishes:
    """Of a pass: room for some more, who wants it, how many there is no room for."""

    room: _Room
    wanted: list[_Wish] = field(default_factory=list)
    untold: int = 0
    worst: str = NONE

    def count(self, untold: int, severity: str) -> None:
        self.untold += untold
        if untold and _RANK[severity] > _RANK[self.worst]:
            self.worst = severity


@dataclass
class AlarmNotifier:
    open: dict[str, tuple[float, list[Change]]] = field(default_factory=dict)  # by project
    raised: deque[tuple[float, str]] = field(default_factory=deque)  # lately: when, how bad
    storm: Storm = field(default_factory=Storm)
    #: By severity, alarms that were told, and not that they are over.
    standing: Counter[str] = field(default_factory=Counter)

    def notify(
        self,
        watchers: Sequence[Watcher],
        retired: Iterable[Watcher],
        rules: RuleSet,
        moment: Moment,
    ) -> None:
        """Put what is to be told into its groups."""
        for watcher in retired:
            for track in watcher.tracks.values():
                if track.told != OK:
                    self._clear(watcher, track, moment)
        while self.raised and moment.now - self.raised[0][0] >= STORM_S:
            self.raised.popleft()
        lately = Counter(severity for _, severity in self.raised)
        hushed, wishes = _hushed(watchers), _Wishes(_Room(rules.storm, self.standing, lately))
        for watcher in watchers:
            hush = watcher.rule.kind != HOST and watcher.rule.topic in hushed
            self._look(watcher, hush, wishes, moment)
            if watcher.rule.repeat_s:
                self._repeat(watcher, moment)
        self._raise(wishes, rules.storm, moment)

    def due(self, now: float, wait_s: float, step_s: float, host: str) -> tuple[Group, ...]:
        """Groups that were open for long enough, and those that would be told too late in the next
        pass: it is as far away as the last one was, and if that is not known, too far."""
        left_s = step_s * (1 - _LATE) if step_s else wait_s
        until = now + left_s + 1e-6
        ready = [name for name, (opened, _) in self.open.items() if until >= opened + wait_s]
        return tuple(Group(host, name, tuple(self.open.pop(name)[1])) for name in sorted(ready))

    def _look(self, watcher: Watcher, hush: bool, wishes: _Wishes, moment: Moment) -> None:
        """Of whom something changed, or was put off, what is to be told; the rest is at rest."""
        rule, now, tracks = watcher.rule, moment.now, watcher.tracks
        severities = {FIRING: rule.severity, NO_DATA: rule.no_data}
        is_host = rule.kind == HOST
        full = {s: not is_host and not wishes.room.has(one) for s, one in severities.items()}
        untold = dict.fromkeys(severities, 0)
        for one in list(watcher.restless):
            track = tracks[one]
            state, told = track.state, track.told
            is_new = told != state or one in watcher.renewed
            if is_new and state in severities:
                if hush or (state == NO_DATA and not _is_lost(track, rule, now)):
                    continue
                if told == OK and full[state]:
                    untold[state] += 1
                else:
                    wishes.wanted.append(_Wish(watcher, track))
                continue
            if told != OK and state == PENDING:
                continue  # it was told, and then nothing was known: it may be the same still
            if told != OK and state == OK:
                if not _is_over(track, rule, now):
                    continue
                self._clear(watcher, track, moment)
            if track.idle(rule, now):
                del tracks[one]
            if state != OK or one not in tracks:
                watcher.restless.discard(one)
        for state, count in untold.items():
            wishes.count(count, severities[state])

    def _repeat(self, watcher: Watcher, moment: Moment) -> None:
        for track in watcher.tracks.values():
            old = moment.now - track.told_now >= watcher.rule.repeat_s
            if old and track.told == track.state != OK:
                self._say(watcher, track, AGAIN, moment)

    def _raise(self, wishes: _Wishes, most: int, moment: Moment) -> None:
        # who is told already only says more: that needs no room
        more = [wish for wish in wishes.wanted if wish.track.told != OK]
        new = [wish for wish in wishes.wanted if wish.track.told == OK]
        new.sort(key=lambda wish: wish.weight, reverse=True)
        for wish in [*more, *new]:
            needs_room = wish.track.told == OK and is_capped(wish.track)
            if not needs_room or wishes.room.take(wish.severity):
                self._tell_of(wish, moment)
            else:
                wishes.count(1, wish.severity)
        self._count(wishes, most, moment)

    def _tell_of(self, wish: _Wish, moment: Moment) -> None:
        track, severity, before = wish.track, wish.severity, wish.track.told
        if is_capped(track):
            self.raised.append((moment.now, severity))
        if before == OK:  # and until it is over it is the same alarm, whatever becomes of it
            track.told_first_at, track.told_as = track.first_at, severity
            self.standing[severity] += is_capped(track)
        elif _RANK[severity] > _RANK[track.told_as]:
            self.standing.update({track.told_as: -is_capped(track), severity: is_capped(track)})
            track.told_as = severity
        track.told = track.state
        wish.watcher.renewed.discard(track.entity.id)
        event = RAISED if track.state == FIRING else LOST
        self._say(wish.watcher, track, event, moment, before)

    def _count(self, wishes: _Wishes, most: int, moment: Moment) -> None:
        storm, untold = self.storm, wishes.untold
        if untold:
            storm.calm_since = moment.now
            worse = _RANK[wishes.worst] > _RANK[storm.worst]
            if storm.first is None or untold >= 2 * storm.told or worse:
                event = RAISED if storm.first is None else AGAIN
                change = _storm_change(untold, most, wishes.worst, moment)
                storm.first = storm.first or change
                storm.told, storm.worst = untold, wishes.worst
                self._put(replace(change, first_at=storm.first.first_at, event=event), moment)
        elif storm.first is not None and moment.now - storm.calm_since >= STORM_S:
            over = replace(
                storm.first, before=FIRING, state=OK, event=CLEARED, at=moment.at, value=0.0
            )
            self._put(over, moment)
            self.storm = Storm()

    def _clear(self, watcher: Watcher, track: Track, moment: Moment) -> None:
        track.told, before = OK, track.told
        self.standing[track.told_as] -= is_capped(track)
        watcher.renewed.discard(track.entity.id)
        self._say(watcher, track, CLEARED, moment, before)

    def _say(
        self, watcher: Watcher, track: Track, event: str, moment: Moment, before: str = ""
    ) -> None:
        track.told_now, watcher.unsaved = moment.now, True
        change = watcher.change(track, before or track.told, moment)
        state = OK if event == CLEARED else change.state
        severity = _severity(watcher.rule, track)
        first_at = track.told_first_at
        change = replace(change, event=event, state=state, severity=severity, first_at=first_at)
        self._put(
            change, moment, _late_s(watcher.rule, track, moment.now) if event == RAISED else 0
        )

    def _put(self, change: Change, moment: Moment, late_s: float = 0.0) -> None:
        """`late_s`: for how long it could have been told if there had been a pass. The wait of its
        group counts from then on."""
        since = moment.now - late_s
        opened, changes = self.open.get(change.project, (since, []))
        changes.append(change)
        self.open[change.project] = (min(since, opened), changes)


def is_capped(track: Track) -> bool:
    """Whether it counts for the storm."""
    return track.entity.kind != HOST


def _late_s(rule: Rule, track: Track, now: float) -> float:
    return max(0.0, now - track.began - rule.for_s)


def _hushed(watchers: Iterable[Watcher]) -> set[str]:
    """Classes in which a host has an alarm."""
    return {
        watcher.rule.topic
        for watcher in watchers
        if watcher.rule.kind == HOST
        and watcher.rule.topic
        and any(track.state == FIRING for track in watcher.tracks.values())
    }


def _is_over(track: Track, rule: Rule, now: float) -> bool:
    """Whether its end may be told: one that comes and goes has to be over for a while."""
    if track.told == NO_DATA or not track.flaps or track.cleared is None:
        return True
    delay_s = min(rule.damp_cap_s, rule.damp_s * 2.0 ** min(track.flaps - 1, 30))
    return now - track.cleared >= delay_s


def _is_lost(track: Track, rule: Rule, now: float) -> bool:
    """Whether it is told that nothing is known. Of what was told as firing it always is."""
    if rule.no_data == NONE and track.told != FIRING:
        return False
    return now - track.lost >= rule.no_data_for_s


def _severity(rule: Rule, track: Track) -> str:
    """Not knowing has one of its own; if it has none, what was raised is as bad as it was."""
    if track.state != NO_DATA or (rule.no_data == NONE and track.told != OK):
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
        summary=f"{count} alarms more than the {most} that are told at once; see them on the host",
        actions=("notify",),
    )
