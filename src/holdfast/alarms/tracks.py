# SPDX-License-Identifier: Apache-2.0
"""One rule at work: whom it is about, what it remembers of them, what a pass changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from math import isfinite, isnan
from operator import itemgetter
from typing import Any, Final

from holdfast.alarms.conditions import Column, ColumnView, Found, Judge, together, which
from holdfast.alarms.rules import Rule, Selector
from holdfast.ports.metrics import MIGRATED, NAN, Entity, Table

# What is told of an alarm: one that changed, and messages that belong together.


OK: Final = "ok"
PENDING: Final = "pending"
FIRING: Final = "firing"
NO_DATA: Final = "no_data"
STATES: Final = (OK, PENDING, FIRING, NO_DATA)

#: Why something is told.
RAISED: Final = "raised"
CLEARED: Final = "cleared"
LOST: Final = "no_data"
AGAIN: Final = "again"
_DATES: Final = ("first_at", "last_at", "at")
_WORDS: Final = ("version", "name", "project", "topic", "summary", "reason", "event")


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm went from one state to another, or is told of."""

    rule: str
    version: str
    host: str
    kind: str
    entity: str
    name: str
    project: str
    before: str
    state: str
    severity: str
    value: float | None  # None: not known
    threshold: float
    window_s: float
    first_at: datetime
    last_at: datetime
    at: datetime
    samples: int
    topic: str = ""
    summary: str = ""
    reason: str = ""
    actions: tuple[str, ...] = ()
    event: str = ""  # raised, cleared, no_data, again; "" of a change that is told to nobody

    @property
    def key(self) -> str:
        """The same for everything that is told of one alarm, from begin to end: told twice, it is
        the same alarm."""
        return f"{self.entity}/{self.rule}/{self.first_at.isoformat()}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it; with the key, and without what is empty."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found |= {name: found[name].isoformat() for name in _DATES}
        found |= {"actions": list(self.actions), "key": self.key}
        if self.value is not None and not isfinite(self.value):
            found["value"] = None
        return {name: value for name, value in found.items() if value not in ("", [])}


def change_from(plain: Mapping[str, Any]) -> Change:
    """Back from `plain`."""
    found = {**dict.fromkeys(_WORDS, ""), **plain}
    del found["key"]
    found |= {name: datetime.fromisoformat(found[name]) for name in _DATES}
    return Change(**{**found, "actions": tuple(plain.get("actions", ()))})


@dataclass(frozen=True, slots=True)
class Group:
    """Messages about one project on one host, sent as one; those about the host have no project."""

    host: str
    project: str
    changes: tuple[Change, ...]

    def plain(self) -> dict[str, Any]:
        told = [one.plain() for one in self.changes]
        return {"host": self.host, "project": self.project, "alarms": told}


# What is remembered of one rule and one entity, and how a pass changes it.
#
# ok -> pending -> firing -> ok           with `for`; without, ok -> firing
# any -> no_data -> as if it were new     what is not known is neither good nor bad
# firing -> no_data -> firing             over a gap that is shorter than what is told as one


_NEAR: Final = 1e-6


@dataclass(slots=True)
class Moment:
    """A pass, by both clocks; `now` is monotonic and decides, `at` is shown."""

    now: float
    at: datetime
    host: str
    version: str


@dataclass(slots=True)
class Track:
    entity: Entity
    state: str = OK
    began: float = 0.0  # since when the condition holds, or nothing is known
    first_at: datetime = datetime.min
    last_at: datetime = datetime.min
    samples: int = 0
    value: float = 0.0
    which: int = 0  # of the conditions of its rule, the one whose number that is
    lapsed: float | None = None  # since when it only keeps firing
    gap: float | None = None  # it fired: since when nothing is known
    reason: str = ""
    # what was told, and how often that went to and fro
    told: str = OK
    told_first_at: datetime = datetime.min
    told_as: str = ""  # the worst severity, while it stands told
    told_now: float = 0.0
    cleared: float | None = None  # when it fired last
    flaps: int = 0

    @property
    def lost(self) -> float:
        """Since when nothing is known, if that is so."""
        return self.began if self.gap is None else self.gap

    def stands(self, rule: Rule, now: float) -> bool:
        """Whether it fires, or would but for a gap that nobody has to know of."""
        if self.state == FIRING:
            return True
        return self.gap is not None and now - self.gap < rule.no_data_for_s - _NEAR

    def step(self, held: bool | None, value: float, rule: Rule, moment: Moment) -> bool:
        """Whether its state is another one now."""
        before, self.last_at = self.state, moment.at
        if not isnan(value):
            self.value = value
        if held:
            self._holds(rule, moment)
        elif before == FIRING and self._keeps(rule, moment):
            self.samples += held is not None
        else:
            self._ends(NO_DATA if held is None else OK, moment)
        return self.state != before

    def _holds(self, rule: Rule, moment: Moment) -> None:
        self.lapsed = None
        if self.stands(rule, moment.now):
            self.state = FIRING
        elif self.state != PENDING:
            self._begin(PENDING, moment)
        self.gap = None
        self.samples += 1
        if self.state == PENDING and moment.now - self.began >= rule.for_s - _NEAR:
            self.state = FIRING
            again = self.cleared is not None and moment.now - self.cleared < rule.damp_cap_s
            self.flaps = self.flaps + 1 if again else 0

    def _keeps(self, rule: Rule, moment: Moment) -> bool:
        """Whether it goes on firing for a while, though nothing says so any more."""
        if self.lapsed is None:
            self.lapsed = moment.now
        return moment.now - self.lapsed < rule.keep_s - _NEAR

    def _ends(self, state: str, moment: Moment) -> None:
        if self.state == state:
            return
        fired, self.lapsed, self.gap = self.state == FIRING, None, None
        if fired:
            self.cleared = moment.now
        if state == NO_DATA and not fired:
            self._begin(NO_DATA, moment)
            return
        self.state = state
        self.gap = moment.now if state == NO_DATA else None  # and since when it fired is kept

    def _begin(self, state: str, moment: Moment) -> None:
        self.state, self.began, self.first_at = state, moment.now, moment.at
        self.samples, self.reason = 0, ""

    def end(self, reason: str, moment: Moment) -> bool:
        """It is over, whatever the numbers are; whether it was something."""
        before = self.state
        self._ends(OK, moment)
        self.reason = reason
        return before != OK

    def idle(self, rule: Rule, now: float) -> bool:
        """Whether it can be forgotten."""
        if self.state != OK or self.told != OK:
            return False
        return self.cleared is None or now - self.cleared >= rule.damp_cap_s


GONE = "gone"
#: So long after a restart at least, nothing being known of an alarm leaves it as it was: of what is
#: read seldom, or made of two readings, nothing can be known before.
RECALL_S: Final = 120.0


class Scope:
    """Of the entities of a table those that a rule is about, and where they are in it."""

    def __init__(
        self, entities: Sequence[Entity], selector: Selector, contracts: Sequence[str]
    ) -> None:
        fit = {one.id: row for row, one in enumerate(entities) if _fits(one, selector, contracts)}
        rows = list(fit.values())  # each once, whoever made the table: who is handled is counted
        self.whole = len(rows) == len(entities)
        self.entities = [entities[row] for row in rows]
        self.ids = [one.id for one in self.entities]
        self.places = {one: place for place, one in enumerate(self.ids)}
        self.came = {one.id for one in self.entities if one.came == MIGRATED}
        self._rows = rows
        self._pick = itemgetter(*rows) if len(rows) > 1 else None

    def picked(self, column: Column) -> Column:
        if self.whole:
            return column
        if self._pick is None:
            return [column[row] for row in self._rows]
        picked: Column = self._pick(column)
        return picked


@dataclass(slots=True)
class Pass:
    """What a rule needs of a pass."""

    moment: Moment
    table: Table
    columns: Mapping[Any, Column | None]  # by the series of a condition
    scope: Scope
    step_s: float  # since the pass before
    gone: Mapping[str, str]

    def why_gone(self, entity: str) -> str:
        there = any(one.id == entity for one in self.table.entities)
        return "not selected" if there else self.gone.get(entity, GONE)


@dataclass(frozen=True, slots=True)
class _Values:
    """The numbers of each condition; where one of several is enough, of whom which one holds."""

    columns: Sequence[Column]
    decisive: Mapping[int, int]

    def of(self, place: int, track: Track) -> float:
        """The number that an alarm is about; it stays that one until another holds instead."""
        track.which = self.decisive.get(place, track.which)
        return self.columns[track.which][place]


class Watcher:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.judges = [Judge(one) for one in rule.conditions]
        self.tracks: dict[str, Track] = {}
        self.alive: set[str] = set()  # who is not ok
        self.restless: set[str] = set()  # of whom there may be something to tell
        self.renewed: set[str] = set()  # told, but not as the rule has it now
        self.unsaved = True  # whether there is something that must not be forgotten
        self._unseen: set[str] = set()  # since a restart
        self._unseen_until = 0.0
        self._scope: Scope | None = None

    def take_over(self, old: "Watcher") -> None:
        """The memory of a rule that means the same, with other levels or times."""
        self.tracks, self.alive, self.restless = old.tracks, old.alive, old.restless
        self._unseen, self._unseen_until = old._unseen, old._unseen_until
        self.renewed = old.renewed
        self.renew(old.rule.severity, old.rule.actions)
        if self.rule.no_data != old.rule.no_data:
            self.restless |= self.alive
        for mine, its in zip(self.judges, old.judges, strict=True):
            mine.take_over(its)

    def renew(self, severity: str, actions: Sequence[str]) -> None:
        """So it was told; if the rule says otherwise now, it is told once more."""
        if (severity, tuple(actions)) != (self.rule.severity, self.rule.actions):
            self.renewed |= {one for one in self.alive if self.tracks[one].told == FIRING}
            self.restless |= self.renewed

    def remember(self, tracks: dict[str, Track], now: float) -> None:
        """After a restart."""
        self.tracks = tracks
        self.alive = {one for one, track in tracks.items() if track.state != OK}
        self.restless = set(tracks)
        self._unseen = set(self.alive)
        self._unseen_until = now + max(RECALL_S, self.rule.no_data_for_s)

    @property
    def remembers(self) -> bool:
        return bool(self.tracks) or any(judge.hits or judge.spent for judge in self.judges)

    def evaluate(self, this: Pass) -> list[Change]:
        changes = self._depart(this) if this.scope is not self._scope else []
        columns = [this.columns[one.series] for one in self.rule.conditions]
        if not self.rule.is_on(this.moment.at):
            for judge in self.judges:
                judge.forget()
            return changes + self.end_all("outside its hours", this.moment)
        known = [column for column in columns if column is not None]
        if len(known) < len(columns):  # it has just begun: what was remembered stands
            return changes
        picked = [this.scope.picked(column) for column in known]
        looks = self._look(picked, this)
        found = together(looks, self.rule.every)
        if self._unseen:
            self._see(found, this)
        if not found and not self.alive:
            return changes
        decisive = {} if self.rule.every else which(looks)
        return changes + self._step(found, _Values(picked, decisive), this)

    def not_read(self, moment: Moment) -> list[Change]:
        """Nobody of its kind was seen since a restart."""
        if not self._unseen or moment.now < self._unseen_until:
            return []
        changes = []
        for one in sorted(self._unseen & self.alive):
            track = self.tracks[one]
            before = track.state
            if track.step(None, NAN, self.rule, moment):
                changes.append(self._changed(track, before, moment))
        return changes

    def _see(self, found: Mapping[int, bool | None], this: Pass) -> None:
        """Who is known again after a restart, or is waited for no longer."""
        places, late = this.scope.places, this.moment.now >= self._unseen_until
        self._unseen = {
            one
            for one in self._unseen & self.alive
            if not late and found.get(places[one], False) is None
        }

    def _look(self, picked: Sequence[Column], this: Pass) -> list[Found]:
        """What each condition says."""
        places, tracks, now = this.scope.places, self.tracks, this.moment.now
        standing = {
            places[one]
            for one in self.alive
            if (track := tracks[one]).state == FIRING or track.stands(self.rule, now)
        }
        looks = []
        for judge, values in zip(self.judges, picked, strict=True):
            fresh = this.table.is_fresh(judge.condition.field)
            ids = this.scope.ids
            look = ColumnView(values, ids, places, standing, this.moment.now, this.step_s, fresh)
            looks.append(judge.evaluate(look))
        return looks

    def _step(self, found: Mapping[int, bool | None], seen: "_Values", this: Pass) -> list[Change]:
        """Of whoever is not quiet, or was not."""
        changes, moment, scope, tracks = list[Change](), this.moment, this.scope, self.tracks
        ids, at, before = scope.ids, this.moment.at, len(self.alive)
        first, decisive = seen.columns[0], seen.decisive
        handled = 0  # of those who were something
        for place, held in found.items():
            track = tracks.get(ids[place])
            if track is None:
                track = tracks[ids[place]] = Track(scope.entities[place])
            state = track.state
            handled += state != OK
            value = seen.of(place, track) if decisive or track.which else first[place]
            if held is None and (state == NO_DATA or ids[place] in self._unseen):
                continue
            if held and state == FIRING:  # as most are in a storm: what `step` would do, in short
                track.last_at, track.lapsed = at, None
                track.value = track.value if isnan(value) else value
                track.samples += 1
                continue
            if track.step(held, value, self.rule, moment):
                if state in (OK, NO_DATA) and ids[place] in scope.came:
                    track.reason = MIGRATED
                changes.append(self._changed(track, state, moment))
        return changes + self._quiet(found, seen, this) if handled < before else changes

    def _quiet(self, found: Mapping[int, bool | None], seen: "_Values", this: Pass) -> list[Change]:
        """Of those who were something, and of whom nothing was found."""
        changes = []
        for one in sorted(self.alive):  # not in a set's order: a restart would change it
            place, track = this.scope.places[one], self.tracks[one]
            before, value = track.state, seen.of(place, track)
            if place not in found and track.step(False, value, self.rule, this.moment):
                changes.append(self._changed(track, before, this.moment))
        return changes

    def _changed(self, track: Track, before: str, moment: Moment) -> Change:
        one = track.entity.id
        self.unsaved = True
        self.restless.add(one)
        if track.state == OK:
            self.alive.discard(one)
        else:
            self.alive.add(one)
        return self.change(track, before, moment)

    def _depart(self, this: Pass) -> list[Change]:
        """Who is not there any more has no alarm; who came from elsewhere begins anew."""
        self._scope, places, changes = this.scope, this.scope.places, list[Change]()
        for one, track in self.tracks.items():
            before, place = track.state, places.get(one)
            if place is not None:
                track.entity = this.scope.entities[place]
            if place is None or one in this.scope.came:
                reason = this.why_gone(one) if place is None else MIGRATED
                if track.end(reason, this.moment):
                    changes.append(self._changed(track, before, this.moment))
        for judge in self.judges:
            judge.keep(places.keys() - this.scope.came)
        return changes

    def end_all(self, reason: str, moment: Moment) -> list[Change]:
        changes = []
        for one in sorted(self.alive):
            track = self.tracks[one]
            before = track.state
            if track.end(reason, moment):
                changes.append(self._changed(track, before, moment))
        return changes

    def level(self, track: Track) -> float:
        """Beyond which its number is."""
        return self.rule.conditions[track.which].level

    def change(self, track: Track, before: str, moment: Moment) -> Change:
        rule, one, state = self.rule, track.entity, track.state
        known = state != NO_DATA and isfinite(track.value)  # nobody takes a time that never comes
        return Change(
            rule=rule.id,
            version=moment.version,
            host=moment.host,
            kind=one.kind,
            entity=one.id,
            name=one.name,
            project=one.project,
            before=before,
            state=state,
            severity=rule.no_data if state == NO_DATA else rule.severity,
            value=track.value if known else None,
            threshold=self.level(track),
            window_s=max(rule.for_s, rule.window_s),
            first_at=track.first_at,
            last_at=track.last_at,
            at=moment.at,
            samples=track.samples,
            topic=rule.topic,
            summary=rule.summary,
            reason=track.reason,
            actions=rule.actions,
        )


def _fits(one: Entity, selector: Selector, contracts: Sequence[str]) -> bool:
    project = (one.project, one.project_name)
    return all(one.contracts.get(name, 0.0) > 0 for name in contracts) and selector.fits(
        name=one.name, project=project, flavor=one.flavor
    )
