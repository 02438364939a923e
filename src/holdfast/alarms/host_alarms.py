# SPDX-License-Identifier: Apache-2.0
"""Alarms in the agent: evaluates each pass and writes alarm reports and state to the outbox.

    alarms = HostAlarms("cmp-7", rule_manager, outbox, clock, report_stored=sender.wake)
    alarms.evaluate(snapshot)                 # in each pass
    alarms.notify(groups)                    # alarms of plugins

Reports and state are written together, so each report reaches the manager exactly once, also
after a crash.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.agent.outbox import Outbox
from holdfast.alarms import engine as alarm_engine
from holdfast.alarms.engine import Engine, Outcome
from holdfast.alarms.rule_manager import RuleManager
from holdfast.alarms.tracks import Change, Group
from holdfast.metrics.passes import PassScheduler
from holdfast.metrics.plugin_events import PluginAlarms
from holdfast.model.errors import DriverError
from holdfast.model.observation import ALARM
from holdfast.ports.metrics import HOST, Snapshot
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)

#: Names of outbox notes. The state of each rule has a name of its own below `NOTE` and is
#: written when it changes; all state is written every `SAVE_EVERY_S` seconds. `PLUGINS` holds
#: plugin alarms.
NOTE: Final = "alarms"
PLUGINS: Final = "plugin-alarms"
SAVE_EVERY_S: Final = 60.0
#: Reports that could not be written wait; beyond this number the oldest are lost and counted.
MOST_WAITING: Final = 1_000
#: Prefix of plugin alarms (`metrics/plugin_events`); rule ids contain no colon.
PLUGIN: Final = "plugin:"

Item = tuple[str, str, Mapping[str, Any]]


class HostAlarms:
    """Alarm stage of the agent (`holdfast.metrics.passes.Alarms`); `notify` is its `Notify`."""

    def __init__(
        self,
        host: str,
        rule_manager: RuleManager,
        outbox: Outbox,
        clock: Clock,
        *,
        report_stored: Callable[[], None] = lambda: None,
    ) -> None:
        self._host = host
        self._rule_manager = rule_manager
        self._outbox = outbox
        self._clock = clock
        self._report_stored = report_stored
        self._waiting: list[Item] = []
        self._parts: set[str] = set()  # rules with state on disk
        self._plugins = PluginAlarms()
        self._saved: float | None = None  # when all state was saved
        self._complained = ""
        self.lost = 0
        self._recall()

    @property
    def scheduler(self) -> PassScheduler:
        """The pass scheduler for the pass thread: new rules are read between two passes."""
        return self._rule_manager.scheduler

    def evaluate(self, snapshot: Snapshot) -> Outcome:
        """Evaluate a pass; reports that the disk refuses are written with a later pass."""
        outcome = self._rule_manager.apply(snapshot)
        changes = [change for group in outcome.groups for change in group.changes]
        over = self._plugins.consume(self._plugins.over(snapshot))
        late = self._is_late(snapshot.monotonic)
        if changes or over or self._waiting or outcome.changes or late:
            self._write([*changes, *over], snapshot.monotonic)
        return replace(outcome, changes=(*outcome.changes, *over)) if over else outcome

    def notify(self, groups: Sequence[Group]) -> None:
        """Write reports of plugin alarms; those of rules are written already."""
        changes = [change for group in groups for change in group.changes]
        plugin_changes = [
            change
            for change in changes
            if change.rule.startswith(PLUGIN) and _is_sound(self._host, change)
        ]
        if plugin_changes := self._plugins.consume(plugin_changes):
            self._write(plugin_changes, self._clock.monotonic())

    def raised(self) -> list[Change]:
        """Return the alarms that are not ok; any thread may call this."""
        return self._rule_manager.alarms()

    def close(self) -> None:
        """Save the state of all alarms."""
        self._write((), self._clock.monotonic())

    def _write(self, changes: Iterable[Change], now: float) -> None:
        """Write reports and changed state to the outbox in a single transaction."""
        self._waiting += [
            item(self._host, change) for change in changes if _is_sound(self._host, change)
        ]
        over = len(self._waiting) - MOST_WAITING
        if over > 0:
            self.lost += over
            LOG.error("%d alarms could not be written down and are lost, the oldest first", over)
            del self._waiting[:over]
        whole = self._is_late(now)
        with self._rule_manager.engine() as engine:
            notes = {**self._memory(engine, now, whole), PLUGINS: self._plugins.plain()}
        try:
            self._outbox.put(self._waiting, notes)
        except DriverError as error:
            if not self._complained:
                LOG.error("alarms are not written down: %s; it is tried again", error.message)
            self._complained, self._saved = error.message, None
            return
        self._complained, self._saved = "", now if whole else self._saved
        if self._waiting:
            self._waiting = []
            self._report_stored()

    def _is_late(self, now: float) -> bool:
        return self._saved is None or now - self._saved >= SAVE_EVERY_S

    def _memory(self, engine: Engine, now: float, whole: bool) -> dict[str, Any]:
        """Return the state to save: that of rules with changes, or of all rules if `whole`.

        Of thousands of alarms few change in a pass.
        """
        at = self._clock.now()
        there = {name: watcher for name, watcher in engine.watchers.items() if watcher.remembers}
        notes: dict[str, Any] = {_part(name): None for name in self._parts - there.keys()}
        for name, watcher in there.items():
            if whole or watcher.unsaved or name not in self._parts:
                notes[_part(name)] = alarm_engine.part(watcher, at, now)
                watcher.unsaved = False
        self._parts = set(there)
        return {**notes, NOTE: {**alarm_engine.head(engine, at, now), "rules": sorted(there)}}

    def _recall(self) -> None:
        """Restore the saved state into the engine with the rules in force at that time."""
        saved, plugin_alarms = self._outbox.note(NOTE), self._outbox.note(PLUGINS)
        try:
            self._plugins = PluginAlarms(plugin_alarms)
            if saved is None:
                return
            with self._rule_manager.restoring() as engine:
                whole = {**saved, "rules": self._recalled(saved["rules"])}
                alarm_engine.restore(engine, whole, self._clock.now(), self._clock.monotonic())
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # saved by another version of Holdfast
            LOG.warning("the saved state of alarms cannot be read: %r; they begin anew", error)

    def _recalled(self, rules: Any) -> dict[str, Any]:
        """Return the saved state per rule; older versions saved all rules in a single note."""
        if isinstance(rules, dict):
            return rules
        self._parts = set(rules)
        states = {name: self._outbox.note(_part(name)) for name in rules}
        return {name: state for name, state in states.items() if state is not None}


def _part(rule: str) -> str:
    return f"{NOTE}/{rule}"


def _is_sound(host: str, change: Change) -> bool:
    """Tell whether a change can be serialised; a bad change must not block the others."""
    try:
        subject, key, body = _item(host, change)
        json.dumps(body, allow_nan=False)
        f"{subject} {key}".encode()
    except (TypeError, ValueError, RecursionError) as error:
        LOG.error("alarm %.100r cannot be written down and is lost: %s", change.rule, error)
        return False
    return True


def item(host: str, change: Change) -> Item:
    """Log an alarm change and build its outbox item."""
    name = change.name or change.entity.partition("/")[0]
    LOG.warning("alarm %s of %s %s: %s", change.rule, change.kind, name, change.event)
    return _item(host, change)


def _item(host: str, change: Change) -> Item:
    """Build the outbox item: subject, key and report."""
    guest = change.entity.partition("/")[0]
    subject = f"host:{host}" if change.kind == HOST else f"server:{guest}"
    key = f"{change.key}/{change.event}/{change.at.isoformat()}"
    if len(key) > 255:
        key = key[-255:]
    body = {
        "observer": f"agent@{host}",
        "subject": subject,
        "kind": ALARM,
        "state": change.event,
        "since": change.first_at.isoformat(),
        "observed_at": change.at.isoformat(),
        "key": key,
        "evidence": {**change.plain(), "host": host},
    }
    return subject, key, body
