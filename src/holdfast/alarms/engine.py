# SPDX-License-Identifier: Apache-2.0
"""Alarm engine of a host: evaluates rules on snapshots; returns changes and due notifications.

    engine = Engine(rules, groups={"gpu"})
    outcome = engine.evaluate(snapshot)    # once per pass; outcome.changes, outcome.groups
    engine.apply(new_rules)                # between two passes

The engine is level-triggered and returns edges: every pass evaluates the current values and
returns the difference to the previous state. The engine has no clock, no thread, no input or
output; only one caller at a time may use it.

`head`, `part` and `restore` save the engine's state and restore it after a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

from holdfast.alarms.conditions import Column, Series, series_of
from holdfast.alarms.notify import AlarmNotifier, Storm, is_capped
from holdfast.alarms.rules import Condition, Rule, RuleSet, Selector
from holdfast.alarms.tracks import (
    FIRING,
    NO_DATA,
    OK,
    PENDING,
    STATES,
    Change,
    Group,
    Moment,
    Pass,
    Scope,
    Track,
    Watcher,
    change_from,
)
from holdfast.ports.metrics import Entity, Snapshot, Table

#: Largest number of cached scopes.
MOST_SCOPES: Final = 1000
NOT_READ: Final = "not read"
RULE_CHANGED: Final = "rule changed"
RULE_REMOVED: Final = "rule removed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a pass; `dropped` if the snapshot came too late or twice."""

    changes: tuple[Change, ...] = ()
    groups: tuple[Group, ...] = ()
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """Effect of new rules on the old rules, by rule id."""

    version: str
    kept: tuple[str, ...] = ()  # unchanged
    tuned: tuple[str, ...] = ()  # other levels or times; state is kept
    begun: tuple[str, ...] = ()  # new, or with other series
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a rule on the last snapshot, ignoring the rule's duration (`for`)."""

    rule: str
    selected: int
    holds: int
    unknown: int


@dataclass(slots=True)
class Prepared:
    """Rules with their watchers, ready to replace the rules that they are based on."""

    rules: RuleSet
    base: dict[str, Watcher]
    watchers: dict[str, Watcher] = field(default_factory=dict)
    series: dict[tuple[Any, ...], Series] = field(default_factory=dict)
    retired: list[tuple[Watcher, str]] = field(default_factory=list)
    applied: Applied = Applied("")


class Engine:
    """Evaluates alarm rules."""

    def __init__(self, rules: RuleSet, groups: Iterable[str] = ()) -> None:
        """`groups` are the groups of this host."""
        self.rules = RuleSet()
        self.groups = frozenset(groups)
        self.watchers: dict[str, Watcher] = {}
        self.notifier = AlarmNotifier()
        self.dropped = 0
        self.retired: list[tuple[Watcher, str]] = []  # alarms end with the next pass, and why
        self._series: dict[tuple[Any, ...], Series] = {}
        self._scopes: dict[tuple[Any, ...], Scope] = {}
        self._tables: dict[str, Table] = {}
        self._last: Snapshot | None = None
        self._put_in_force(rules)

    # passes

    def evaluate(self, snapshot: Snapshot) -> Outcome:
        """Evaluate all rules on a snapshot."""
        last = self._last
        if last is not None and (
            snapshot.pass_id <= last.pass_id or snapshot.monotonic < last.monotonic
        ):
            self.dropped += 1
            return Outcome(dropped=True)
        self._last = snapshot
        moment = self._moment(snapshot)
        changes: list[Change] = []
        for watcher, reason in self.retired:
            changes += watcher.end_all(reason, moment)
        columns = self._columns(snapshot)
        for watcher in self.watchers.values():
            changes += self._watch(watcher, snapshot, columns, moment)
        watchers = list(self.watchers.values())
        self.notifier.notify(watchers, [watcher for watcher, _ in self.retired], self.rules, moment)
        self.retired = []
        wait_s, step_s = self.rules.group_wait_s, snapshot.elapsed_s
        groups = self.notifier.due(snapshot.monotonic, wait_s, step_s, snapshot.host)
        return Outcome(tuple(changes), groups)

    def alarms(self) -> list[Change]:
        """Return all alarms that are not ok, in their current state."""
        if self._last is None:
            return []
        moment = self._moment(self._last)
        return [
            watcher.change(track, track.state, moment)
            for watcher in self.watchers.values()
            for track in watcher.tracks.values()
            if track.state != OK
        ]

    @property
    def firing(self) -> int:
        """Number of firing alarms."""
        return sum(
            watcher.tracks[key].state == FIRING
            for watcher in self.watchers.values()
            for key in watcher.alive
        )

    # rules

    def prepare(self, rules: RuleSet) -> Prepared:
        """Do all of `apply` that is possible while passes run; another thread may call this."""
        made = Prepared(rules, self.watchers)
        done: dict[str, list[str]] = {"kept": [], "tuned": [], "begun": [], "ended": []}
        for rule in rules.rules:
            if not rule.selector.is_here(self.groups):
                continue
            old = made.base.get(rule.id)
            if old is not None and old.rule == rule:
                made.watchers[rule.id], how = old, "kept"
            else:
                same = old is not None and old.rule.means_the_same(rule)
                made.watchers[rule.id], how = Watcher(rule), "tuned" if same else "begun"
            done[how].append(rule.id)
        begun = set(done["begun"])
        done["ended"] = [name for name in made.base if name in begun or name not in made.watchers]
        made.retired = [
            (made.base[name], RULE_CHANGED if name in begun else RULE_REMOVED)
            for name in done["ended"]
        ]
        had = self._series
        for rule in (watcher.rule for watcher in made.watchers.values()):
            for condition in rule.conditions:
                key = (rule.kind, *condition.series)
                if key not in made.series:
                    made.series[key] = had.get(key) or series_of(condition)
        made.applied = Applied(rules.version, **{name: tuple(ids) for name, ids in done.items()})
        return made

    def apply(self, rules: RuleSet | Prepared) -> Applied:
        """Replace the rules from the next pass on; unchanged rules keep their state.

        If other rules came into force after `prepare`, the rules are prepared again.
        """
        return self._put_in_force(rules)

    def try_out(self, rules: RuleSet) -> list[Trial]:
        """Evaluate rules on the last snapshot without changing any state."""
        if self._last is None:
            return []
        trial = Engine(rules, self.groups)
        trial.evaluate(self._last)
        return [trial._trial(watcher) for watcher in trial.watchers.values()]

    def _trial(self, watcher: Watcher) -> Trial:
        states = [track.state for track in watcher.tracks.values()]
        table = self._tables.get(watcher.rule.kind)
        selected = len(self._scope(watcher.rule, table).ids) if table else 0
        holds = sum(state in (PENDING, FIRING) for state in states)
        return Trial(watcher.rule.id, selected, holds, states.count(NO_DATA))

    def _put_in_force(self, rules: RuleSet | Prepared) -> Applied:
        if isinstance(rules, RuleSet):
            rules = self.prepare(rules)
        elif rules.base is not self.watchers:
            rules = self.prepare(rules.rules)
        for name in rules.applied.tuned:
            rules.watchers[name].take_over(self.watchers[name])
        self.retired += rules.retired
        if len(self._scopes) > MOST_SCOPES:
            self._scopes = {}
        self.watchers, self._series, self.rules = rules.watchers, rules.series, rules.rules
        return rules.applied

    # input of a pass

    def _moment(self, snapshot: Snapshot) -> Moment:
        return Moment(snapshot.monotonic, snapshot.at, snapshot.host, self.rules.version)

    def _columns(self, snapshot: Snapshot) -> dict[tuple[Any, ...], Column | None]:
        for kind, table in self._read(snapshot).items():
            old = self._tables.get(kind)
            if old is None or old.entities != table.entities:
                self._scopes = {key: scope for key, scope in self._scopes.items() if key[0] != kind}
                rows = _rows(old.entities if old else (), table.entities)
                for key, series in self._series.items():
                    if key[0] == kind:
                        series.move(rows)
            self._tables[kind] = table
        for kind, table in self._tables.items():
            table.prepare({key[1] for key in self._series if key[0] == kind})
        return {
            key: series.column(self._tables[key[0]], snapshot.monotonic)
            for key, series in self._series.items()
            if key[0] in self._tables
        }

    def _read(self, snapshot: Snapshot) -> Mapping[str, Table]:
        """Add a table of unknown readings for each kind that the snapshot could not read."""
        missing = self._tables.keys() - snapshot.tables.keys()
        if not missing:
            return snapshot.tables
        return {
            **snapshot.tables,
            **{kind: self._tables[kind].unread(NOT_READ) for kind in missing},
        }

    def _watch(
        self,
        watcher: Watcher,
        snapshot: Snapshot,
        columns: Mapping[tuple[Any, ...], Column | None],
        moment: Moment,
    ) -> list[Change]:
        rule = watcher.rule
        table = self._tables.get(rule.kind)
        if table is None:
            return watcher.not_read(moment)
        mine = {
            condition.series: columns[(rule.kind, *condition.series)]
            for condition in rule.conditions
        }
        scope = self._scope(rule, table)
        this = Pass(moment, table, mine, scope, snapshot.elapsed_s, snapshot.gone)
        return watcher.evaluate(this)

    def _scope(self, rule: Rule, table: Table) -> Scope:
        """Return the scope of a rule.

        Rules with the same selector share a scope until the entities change.
        """
        selector: Selector = rule.selector
        key = (rule.kind, selector, rule.contracts)
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(table.entities, selector, rule.contracts)
        return scope


def _rows(old: tuple[Entity, ...], new: tuple[Entity, ...]) -> list[int]:
    """Return the old row of each new entity, or -1."""
    places = {entity.id: row for row, entity in enumerate(old)}
    return [places.get(entity.id, -1) for entity in new]


# Saved state of the engine.
#
# Monotonic times mean nothing to another process, so the state stores ages. A pending alarm
# goes on: the unobserved time counts, up to `UNSEEN_S`, which covers a restart. Rate windows
# are not saved; until they are filled again, alarms keep their state. An alarm with a
# notification whose rule is gone ends with the first pass, because its receivers wait for the
# end.
#
# Of thousands of alarms few change in a pass. Therefore `part` is the state of a single rule,
# written when it changes, and `head` is everything else.


FORMAT: Final = 3
#: Largest unobserved time, in seconds, between the last save and the first pass, that counts as
#: observed.
UNSEEN_S: Final = 120.0
_AGES: Final = frozenset({"began", "lapsed", "gap", "cleared", "notified_now"})
_DATES: Final = frozenset({"first_at", "last_at", "notified_first_at"})
_ENTITY: Final = ("kind", "id", "name", "project", "guest")
#: Attributes that are saved only if they differ from these values.
_AT_REST: Final = {
    **dict.fromkeys(("lapsed", "gap", "cleared")),
    **{"reason": "", "flaps": 0, "which": 0},
}
_NOTIFIED: Final = ("notified", "notified_first_at", "notified_severity", "notified_now")
_ALWAYS: Final = ("state", "began", "first_at", "last_at", "samples", "value")
#: Attributes of the rule that an alarm's notifications need.
_RULE: Final = ("severity", "topic", "summary", "no_data", "for_s")


def plain(engine: Engine, at: datetime, now: float) -> dict[str, Any]:
    """Return the whole state of the engine as JSON."""
    parts = {
        name: part(watcher, at, now)
        for name, watcher in engine.watchers.items()
        if watcher.remembers
    }
    return {**head(engine, at, now), "rules": parts}


def head(engine: Engine, at: datetime, now: float) -> dict[str, Any]:
    """Return the engine's state without the state of its rules."""
    notifier = engine.notifier
    storm = notifier.storm
    return {
        "format": FORMAT,
        "saved_at": at.isoformat(),
        "version": engine.rules.version,
        "ended": [[reason, part(watcher, at, now)] for watcher, reason in engine.retired],
        "open": {
            project: {"age_s": now - opened, "changes": [change.plain() for change in changes]}
            for project, (opened, changes) in notifier.open.items()
        },
        "storm": {
            "notified": storm.notified,
            "worst": storm.worst,
            "first": storm.first.plain() if storm.first else None,
            "calm_s": now - storm.calm_since,
        },
    }


def part(watcher: Watcher, at: datetime, now: float) -> dict[str, Any]:
    """Return the saved state of a rule."""
    rule = watcher.rule
    return {
        "id": rule.id,
        "saved_at": at.isoformat(),
        "memory": rule.memory,
        "rule": {
            **{name: getattr(rule, name) for name in _RULE},
            "actions": list(rule.actions),
        },
        "levels": [condition.level for condition in rule.conditions],
        "tracks": [_track(track, now) for track in watcher.tracks.values()],
        "hits": [judge.hits for judge in watcher.judges],
        "spent": [judge.spent for judge in watcher.judges],
    }


def restore(engine: Engine, saved: Mapping[str, Any], at: datetime, now: float) -> bool:
    """Restore saved state into a new engine; return False if the format is unknown.

    A rule with other series than before starts anew, and its alarms end.
    """
    if saved.get("format") != FORMAT:
        return False
    gap_s = _since(saved["saved_at"], at)
    ended = list(saved["ended"])
    for name, state in saved["rules"].items():
        watcher = engine.watchers.get(name)
        if watcher is None or watcher.rule.memory != state["memory"]:
            reason = RULE_REMOVED if watcher is None else RULE_CHANGED
            ended.append([reason, {"id": name, **state}])
            continue
        _remember(engine, watcher, {"saved_at": saved["saved_at"], **state}, at, now)
        for judge, hits, spent in zip(watcher.judges, state["hits"], state["spent"], strict=True):
            judge.hits, judge.spent = dict(hits), dict(spent)
        watcher.renew(state["rule"]["severity"], state["rule"]["actions"])
    for reason, state in ended:
        watcher = _without_rule(state)
        _remember(engine, watcher, {"saved_at": saved["saved_at"], **state}, at, now)
        engine.retired.append((watcher, reason))
    for project, group in saved["open"].items():
        changes = [change_from(change) for change in group["changes"]]
        engine.notifier.open[project] = (now - group["age_s"] - gap_s, changes)
    storm = saved["storm"]
    first = change_from(storm["first"]) if storm["first"] else None
    calm_since = now - storm["calm_s"] - gap_s
    engine.notifier.storm = Storm(storm["notified"], storm["worst"], first, calm_since)
    return True


def _remember(
    engine: Engine, watcher: Watcher, state: Mapping[str, Any], at: datetime, now: float
) -> None:
    """Restore the tracks of a rule."""
    gap_s = _since(state["saved_at"], at)
    tracks = {track["entity"]["id"]: _restored(track, gap_s, now) for track in state["tracks"]}
    for track in tracks.values():
        if track.notified != OK:
            track.notified_severity = track.notified_severity or watcher.rule.severity
            engine.notifier.raised_by_severity[track.notified_severity] += is_capped(track)
    watcher.remember(tracks, now)


def _without_rule(state: Mapping[str, Any]) -> Watcher:
    """Build a watcher for a removed rule, only to report the end of its alarms."""
    rule = dict(state["rule"])
    actions = tuple(rule.pop("actions"))
    conditions = tuple(Condition("", ">", level, level) for level in state["levels"])
    return Watcher(Rule(state["id"], Selector(""), conditions, actions=actions, **rule))


def _since(saved_at: str, at: datetime) -> float:
    """Return the seconds since the state was saved."""
    return max(0.0, (at - datetime.fromisoformat(saved_at)).total_seconds())


def _track(track: Track, now: float) -> dict[str, Any]:
    """Return the saved state of a track; monotonic times become ages."""
    saved: dict[str, Any] = {name: getattr(track, name) for name in _ALWAYS}
    if track.notified != OK:
        saved |= {name: getattr(track, name) for name in _NOTIFIED}
    for name, rest in _AT_REST.items():
        if (value := getattr(track, name)) != rest:
            saved[name] = value
    for name in _AGES & saved.keys():
        saved[name] = now - saved[name]
    for name in _DATES & saved.keys():
        saved[name] = saved[name].isoformat()
    saved["entity"] = {name: getattr(track.entity, name) for name in _ENTITY}
    return saved


def _restored(saved: Mapping[str, Any], gap_s: float, now: float) -> Track:
    """Build a track from its saved state."""
    attributes = {field.name: saved[field.name] for field in fields(Track) if field.name in saved}
    for name in _AGES & attributes.keys():
        attributes[name] = None if attributes[name] is None else now - attributes[name] - gap_s
    for name in _DATES & attributes.keys():
        attributes[name] = datetime.fromisoformat(attributes[name])
    if attributes["state"] not in STATES:
        raise ValueError(f"{attributes['state']!r} is no state of an alarm")
    if attributes["state"] == PENDING:
        attributes["began"] += max(0.0, gap_s - UNSEEN_S)
    return Track(**{**attributes, "entity": Entity(**saved["entity"])})
