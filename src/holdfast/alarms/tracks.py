# SPDX-License-Identifier: Apache-2.0
"""State of alarms: a track per rule and entity, and the watcher that updates them in each pass.

`Change` is a transition of an alarm, `Group` a notification of changes that belong together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from math import isfinite, isnan
from operator import itemgetter
from typing import Any, Final

from holdfast.alarms.conditions import Column, ColumnView, Judge, Results, together, which
from holdfast.alarms.rules import Rule, Selector
from holdfast.ports.metrics import MIGRATED, NAN, Entity, Table

# Changes and notifications.


OK: Final = "ok"
PENDING: Final = "pending"
FIRING: Final = "firing"
NO_DATA: Final = "no_data"
STATES: Final = (OK, PENDING, FIRING, NO_DATA)

#: Events of a notification.
RAISED: Final = "raised"
CLEARED: Final = "cleared"
LOST: Final = "no_data"
AGAIN: Final = "again"
_DATES: Final = ("first_at", "last_at", "at")
_WORDS: Final = ("version", "name", "project", "topic", "summary", "reason", "event")


@dataclass(frozen=True, slots=True)
class Change:
    """A state change or notification of an alarm."""

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
    event: str = ""  # raised, cleared, no_data, again; "" for a change without notification

    @property
    def key(self) -> str:
        """Identity of the alarm, equal in all its notifications from begin to end.

        A receiver recognises a repeated notification by the key.
        """
        return f"{self.entity}/{self.rule}/{self.first_at.isoformat()}"

    def plain(self) -> dict[str, Any]:
        """Return the change as JSON, with the key and without empty values."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row |= {name: row[name].isoformat() for name in _DATES}
        row |= {"actions": list(self.actions), "key": self.key}
        if self.value is not None and not isfinite(self.value):
            row["value"] = None
        return {name: value for name, value in row.items() if value not in ("", [])}


def change_from(plain: Mapping[str, Any]) -> Change:
    """Build a change from the result of `plain`."""
    row = {**dict.fromkeys(_WORDS, ""), **plain}
    del row["key"]
    row |= {name: datetime.fromisoformat(row[name]) for name in _DATES}
    return Change(**{**row, "actions": tuple(plain.get("actions", ()))})


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of a project on a host, sent as a notification; host alarms have no project."""

    host: str
    project: str
    changes: tuple[Change, ...]

    def plain(self) -> dict[str, Any]:
        alarms = [change.plain() for change in self.changes]
        return {"host": self.host, "project": self.project, "alarms": alarms}


# Tracks.


_NEAR: Final = 1e-6


@dataclass(slots=True)
class Moment:
    """Time of a pass by both clocks: monotonic `now` decides, wall-clock `at` is shown."""

    now: float
    at: datetime
    host: str
    version: str


@dataclass(slots=True)
class Track:
    """State of an alarm: a rule on an entity.

    ok -> pending -> firing -> ok        with `for`; without, ok -> firing
    any -> no_data -> as if new          an unknown value is neither good nor bad
    firing -> no_data -> firing          if the gap is shorter than `no_data_for`
    """

    entity: Entity
    state: str = OK
    began: float = 0.0  # time since which the condition holds, or no data is known
    first_at: datetime = datetime.min
    last_at: datetime = datetime.min
    samples: int = 0
    value: float = 0.0
    which: int = 0  # index of the rule's condition that `value` belongs to
    lapsed: float | None = None  # time since which only `keep_firing` keeps it firing
    gap: float | None = None  # of a firing alarm: time since which no data is known
    reason: str = ""
    # last notification, and flapping
    notified: str = OK
    notified_first_at: datetime = datetime.min
    notified_severity: str = ""  # worst severity notified, until the end is notified
    notified_now: float = 0.0
    cleared: float | None = None  # when the alarm last stopped firing
    flaps: int = 0

    @property
    def lost(self) -> float:
        """Time since which no data is known, for a track in `no_data`."""
        return self.began if self.gap is None else self.gap

    def is_raised(self, rule: Rule, now: float) -> bool:
        """Tell whether the alarm fires, or would fire but for a gap shorter than `no_data_for`."""
        if self.state == FIRING:
            return True
        return self.gap is not None and now - self.gap < rule.no_data_for_s - _NEAR

    def step(self, held: bool | None, value: float, rule: Rule, moment: Moment) -> bool:
        """Apply the result of a pass; return whether the state changed."""
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
        if self.is_raised(rule, moment.now):
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
        """Tell whether the alarm keeps firing for `keep_firing` though the condition ended."""
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
        self.gap = moment.now if state == NO_DATA else None  # `began` is kept

    def _begin(self, state: str, moment: Moment) -> None:
        self.state, self.began, self.first_at = state, moment.now, moment.at
        self.samples, self.reason = 0, ""

    def end(self, reason: str, moment: Moment) -> bool:
        """End the alarm regardless of its values; return whether the alarm was not ok."""
        before = self.state
        self._ends(OK, moment)
        self.reason = reason
        return before != OK

    def idle(self, rule: Rule, now: float) -> bool:
        """Tell whether the track can be forgotten."""
        if self.state != OK or self.notified != OK:
            return False
        return self.cleared is None or now - self.cleared >= rule.damp_cap_s


GONE = "gone"
#: Shortest time in seconds after a restart for which an alarm without data keeps its state: a
#: value that is read seldom, or computed from two readings, cannot be known before.
RECALL_S: Final = 120.0


class Scope:
    """Entities of a table that a rule selects, and their rows."""

    def __init__(
        self, entities: Sequence[Entity], selector: Selector, contracts: Sequence[str]
    ) -> None:
        fit = {
            entity.id: row
            for row, entity in enumerate(entities)
            if _fits(entity, selector, contracts)
        }
        rows = list(fit.values())  # each id once, as `_step` counts handled entities
        self.whole = len(rows) == len(entities)
        self.entities = [entities[row] for row in rows]
        self.ids = [entity.id for entity in self.entities]
        self.places = {key: place for place, key in enumerate(self.ids)}
        self.came = {entity.id for entity in self.entities if entity.came == MIGRATED}
        self._rows = rows
        self._pick = itemgetter(*rows) if len(rows) > 1 else None

    def picked(self, column: Column) -> Column:
        """Return the selected rows of a column."""
        if self.whole:
            return column
        if self._pick is None:
            return [column[row] for row in self._rows]
        picked: Column = self._pick(column)
        return picked


@dataclass(slots=True)
class Pass:
    """Input of a rule in a pass."""

    moment: Moment
    table: Table
    columns: Mapping[Any, Column | None]  # by the series of a condition
    scope: Scope
    step_s: float  # since the pass before
    gone: Mapping[str, str]

    def why_gone(self, entity: str) -> str:
        """Return why an entity is no longer selected."""
        there = any(selected.id == entity for selected in self.table.entities)
        return "not selected" if there else self.gone.get(entity, GONE)


@dataclass(frozen=True, slots=True)
class _Values:
    """Columns of all conditions and, for rules with `any`, the condition that holds per row."""

    columns: Sequence[Column]
    decisive: Mapping[int, int]

    def of(self, place: int, track: Track) -> float:
        """Return the value that an alarm is about; it changes only when another condition holds."""
        track.which = self.decisive.get(place, track.which)
        return self.columns[track.which][place]


class Watcher:
    """Evaluates a rule in every pass and keeps its tracks."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.judges = [Judge(condition) for condition in rule.conditions]
        self.tracks: dict[str, Track] = {}
        self.alive: set[str] = set()  # entities that are not ok
        self.restless: set[str] = set()  # entities that may need a notification
        self.renewed: set[str] = set()  # notified with an outdated severity or actions
        self.unsaved = True  # whether state changed since the last save
        self._unseen: set[str] = set()  # entities without data since a restart
        self._unseen_until = 0.0
        self._scope: Scope | None = None

    def take_over(self, old: "Watcher") -> None:
        """Take the state of a rule with the same series but other levels or times."""
        self.tracks, self.alive, self.restless = old.tracks, old.alive, old.restless
        self._unseen, self._unseen_until = old._unseen, old._unseen_until
        self.renewed = old.renewed
        self.renew(old.rule.severity, old.rule.actions)
        if self.rule.no_data != old.rule.no_data:
            self.restless |= self.alive
        for judge, its in zip(self.judges, old.judges, strict=True):
            judge.take_over(its)

    def renew(self, severity: str, actions: Sequence[str]) -> None:
        """Notify firing alarms again if severity or actions differ from the last notification."""
        if (severity, tuple(actions)) != (self.rule.severity, self.rule.actions):
            self.renewed |= {key for key in self.alive if self.tracks[key].notified == FIRING}
            self.restless |= self.renewed

    def remember(self, tracks: dict[str, Track], now: float) -> None:
        """Set the tracks restored after a restart."""
        self.tracks = tracks
        self.alive = {key for key, track in tracks.items() if track.state != OK}
        self.restless = set(tracks)
        self._unseen = set(self.alive)
        self._unseen_until = now + max(RECALL_S, self.rule.no_data_for_s)

    @property
    def remembers(self) -> bool:
        """Whether the watcher has state to save."""
        return bool(self.tracks) or any(judge.hits or judge.spent for judge in self.judges)

    def evaluate(self, this: Pass) -> list[Change]:
        """Evaluate the rule in a pass; return the changes."""
        changes = self._depart(this) if this.scope is not self._scope else []
        columns = [this.columns[condition.series] for condition in self.rule.conditions]
        if not self.rule.is_on(this.moment.at):
            for judge in self.judges:
                judge.forget()
            return changes + self.end_all("outside its hours", this.moment)
        complete = [column for column in columns if column is not None]
        if len(complete) < len(columns):  # a series has just begun: keep restored state
            return changes
        picked = [this.scope.picked(column) for column in complete]
        results = self._judge(picked, this)
        rows = together(results, self.rule.every)
        if self._unseen:
            self._forget_known(rows, this)
        if not rows and not self.alive:
            return changes
        decisive = {} if self.rule.every else which(results)
        return changes + self._step(rows, _Values(picked, decisive), this)

    def not_read(self, moment: Moment) -> list[Change]:
        """Move restored alarms to no data if no entity of the kind was read since the restart."""
        if not self._unseen or moment.now < self._unseen_until:
            return []
        changes = []
        for key in sorted(self._unseen & self.alive):
            track = self.tracks[key]
            before = track.state
            if track.step(None, NAN, self.rule, moment):
                changes.append(self._changed(track, before, moment))
        return changes

    def _forget_known(self, rows: Mapping[int, bool | None], this: Pass) -> None:
        """Remove entities that are known again after a restart, or after the waiting time."""
        places, late = this.scope.places, this.moment.now >= self._unseen_until
        self._unseen = {
            key
            for key in self._unseen & self.alive
            if not late and rows.get(places[key], False) is None
        }

    def _judge(self, picked: Sequence[Column], this: Pass) -> list[Results]:
        """Evaluate each condition."""
        places, tracks, now = this.scope.places, self.tracks, this.moment.now
        raised = {
            places[key]
            for key in self.alive
            if (track := tracks[key]).state == FIRING or track.is_raised(self.rule, now)
        }
        results = []
        for judge, values in zip(self.judges, picked, strict=True):
            fresh = this.table.is_fresh(judge.condition.field)
            ids = this.scope.ids
            view = ColumnView(values, ids, places, raised, this.moment.now, this.step_s, fresh)
            results.append(judge.evaluate(view))
        return results

    def _step(self, rows: Mapping[int, bool | None], values: "_Values", this: Pass) -> list[Change]:
        """Update the tracks of entities for which the rule holds or is unknown."""
        changes, moment, scope, tracks = list[Change](), this.moment, this.scope, self.tracks
        ids, at, before = scope.ids, this.moment.at, len(self.alive)
        first, decisive = values.columns[0], values.decisive
        handled = 0  # entities that were not ok
        for place, held in rows.items():
            track = tracks.get(ids[place])
            if track is None:
                track = tracks[ids[place]] = Track(scope.entities[place])
            state = track.state
            handled += state != OK
            value = values.of(place, track) if decisive or track.which else first[place]
            if held is None and (state == NO_DATA or ids[place] in self._unseen):
                continue
            if held and state == FIRING:  # the common case in a storm: a short version of `step`
                track.last_at, track.lapsed = at, None
                track.value = track.value if isnan(value) else value
                track.samples += 1
                continue
            if track.step(held, value, self.rule, moment):
                if state in (OK, NO_DATA) and ids[place] in scope.came:
                    track.reason = MIGRATED
                changes.append(self._changed(track, state, moment))
        return changes + self._quiet(rows, values, this) if handled < before else changes

    def _quiet(
        self, rows: Mapping[int, bool | None], values: "_Values", this: Pass
    ) -> list[Change]:
        """Update the tracks of entities that were not ok and for which the rule no longer holds."""
        changes = []
        for key in sorted(self.alive):  # sorted, because set order changes with a restart
            place, track = this.scope.places[key], self.tracks[key]
            before, value = track.state, values.of(place, track)
            if place not in rows and track.step(False, value, self.rule, this.moment):
                changes.append(self._changed(track, before, this.moment))
        return changes

    def _changed(self, track: Track, before: str, moment: Moment) -> Change:
        """Record a state change; return the change."""
        key = track.entity.id
        self.unsaved = True
        self.restless.add(key)
        if track.state == OK:
            self.alive.discard(key)
        else:
            self.alive.add(key)
        return self.change(track, before, moment)

    def _depart(self, this: Pass) -> list[Change]:
        """End alarms of entities that left the scope; restart alarms of migrated entities."""
        self._scope, places, changes = this.scope, this.scope.places, list[Change]()
        for key, track in self.tracks.items():
            before, place = track.state, places.get(key)
            if place is not None:
                track.entity = this.scope.entities[place]
            if place is None or key in this.scope.came:
                reason = this.why_gone(key) if place is None else MIGRATED
                if track.end(reason, this.moment):
                    changes.append(self._changed(track, before, this.moment))
        for judge in self.judges:
            judge.keep(places.keys() - this.scope.came)
        return changes

    def end_all(self, reason: str, moment: Moment) -> list[Change]:
        """End all alarms of the rule."""
        changes = []
        for key in sorted(self.alive):
            track = self.tracks[key]
            before = track.state
            if track.end(reason, moment):
                changes.append(self._changed(track, before, moment))
        return changes

    def level(self, track: Track) -> float:
        """Return the level of the condition that the alarm is about."""
        return self.rule.conditions[track.which].level

    def change(self, track: Track, before: str, moment: Moment) -> Change:
        """Build a change from the current state of a track."""
        rule, entity, state = self.rule, track.entity, track.state
        is_known = state != NO_DATA and isfinite(track.value)  # receivers reject infinity
        return Change(
            rule=rule.id,
            version=moment.version,
            host=moment.host,
            kind=entity.kind,
            entity=entity.id,
            name=entity.name,
            project=entity.project,
            before=before,
            state=state,
            severity=rule.no_data if state == NO_DATA else rule.severity,
            value=track.value if is_known else None,
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


def _fits(entity: Entity, selector: Selector, contracts: Sequence[str]) -> bool:
    """Tell whether an entity matches the selector and has all contracts."""
    project = (entity.project, entity.project_name)
    return all(entity.contracts.get(name, 0.0) > 0 for name in contracts) and selector.fits(
        name=entity.name, project=project, flavor=entity.flavor
    )
