# SPDX-License-Identifier: Apache-2.0
"""The alarms of a host in the agent: what they say goes into the spool, together with what has to
be remembered, and so reaches Holdfast once whatever happens.

    alarms = HostAlarms("cmp-7", desk, spool, clock, spooled=courier.ring)
    alarms.take(snapshot)                    # in each pass
    alarms.tell(groups)                      # what plugins said besides
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

#: Under which name alarms are remembered: each rule's under a name of its own below that, written
#: when they change, and all of them once in a while. Beside it those of plugins.
NOTE: Final = "alarms"
PLUGINS: Final = "plugin-alarms"
SAVE_EVERY_S: Final = 60.0
#: What could not be written down waits; of more than that the oldest is lost, and counted.
MOST_WAITING: Final = 1_000
#: Rules have no colon: what has one is of a plugin (`metrics/plugin_events`).
PLUGIN: Final = "plugin:"

Item = tuple[str, str, Mapping[str, Any]]


class HostAlarms:
    """`watch.metrics.part.Alarms`, and `part.Tell` for what plugins say."""

    def __init__(
        self,
        host: str,
        rule_manager: RuleManager,
        spool: Outbox,
        clock: Clock,
        *,
        spooled: Callable[[], None] = lambda: None,
    ) -> None:
        self._host = host
        self._rule_manager = rule_manager
        self._spool = spool
        self._clock = clock
        self._spooled = spooled
        self._waiting: list[Item] = []
        self._parts: set[str] = set()  # rules of which something is on disk
        self._plugins = PluginAlarms()
        self._saved: float | None = None  # when all of it was
        self._complained = ""
        self.lost = 0
        self._recall()

    @property
    def turns(self) -> PassScheduler:
        """For whoever makes the passes: new rules are read between them."""
        return self._rule_manager.turns

    def consume(self, snapshot: Snapshot) -> Outcome:
        """A pass. What the disk does not take now is written with the next that it takes."""
        outcome = self._rule_manager.apply(snapshot)
        told = [change for group in outcome.groups for change in group.changes]
        over = self._plugins.consume(self._plugins.over(snapshot))
        late = self._is_late(snapshot.monotonic)
        if told or over or self._waiting or outcome.changes or late:
            self._write([*told, *over], snapshot.monotonic)
        return replace(outcome, changes=(*outcome.changes, *over)) if over else outcome

    def notify(self, groups: Sequence[Group]) -> None:
        """What plugins said; of alarms it is written already."""
        told = [change for group in groups for change in group.changes]
        said = [one for one in told if one.rule.startswith(PLUGIN) and _is_sound(self._host, one)]
        if said := self._plugins.consume(said):
            self._write(said, self._clock.monotonic())

    def standing(self) -> list[Change]:
        """Those that are not ok now; any thread may ask."""
        return self._rule_manager.alarms()

    def close(self) -> None:
        """Remember how they are."""
        self._write((), self._clock.monotonic())

    def _write(self, told: Iterable[Change], now: float) -> None:
        self._waiting += [item(self._host, one) for one in told if _is_sound(self._host, one)]
        over = len(self._waiting) - MOST_WAITING
        if over > 0:
            self.lost += over
            LOG.error("%d alarms could not be written down and are lost, the oldest first", over)
            del self._waiting[:over]
        whole = self._is_late(now)
        with self._rule_manager.engine() as engine:
            notes = {**self._memory(engine, now, whole), PLUGINS: self._plugins.plain()}
        try:
            self._spool.put(self._waiting, notes)
        except DriverError as error:
            if not self._complained:
                LOG.error("alarms are not written down: %s; it is tried again", error.message)
            self._complained, self._saved = error.message, None
            return
        self._complained, self._saved = "", now if whole else self._saved
        if self._waiting:
            self._waiting = []
            self._spooled()

    def _is_late(self, now: float) -> bool:
        return self._saved is None or now - self._saved >= SAVE_EVERY_S

    def _memory(self, engine: Engine, now: float, whole: bool) -> dict[str, Any]:
        """Of thousands of alarms those of the rules that have something new to say."""
        at = self._clock.now()
        there = {name: one for name, one in engine.watchers.items() if one.remembers}
        notes: dict[str, Any] = {_part(name): None for name in self._parts - there.keys()}
        for name, watcher in there.items():
            if whole or watcher.unsaved or name not in self._parts:
                notes[_part(name)] = alarm_engine.part(watcher, at, now)
                watcher.unsaved = False
        self._parts = set(there)
        return {**notes, NOTE: {**alarm_engine.head(engine, at, now), "rules": sorted(there)}}

    def _recall(self) -> None:
        """Into an engine that goes by the rules that were in force."""
        said, told = self._spool.note(NOTE), self._spool.note(PLUGINS)
        try:
            self._plugins = PluginAlarms(told)
            if said is None:
                return
            with self._rule_manager.restoring() as engine:
                whole = {**said, "rules": self._recalled(said["rules"])}
                alarm_engine.restore(engine, whole, self._clock.now(), self._clock.monotonic())
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # of another version of this program
            LOG.warning("what was remembered of alarms cannot be read: %r; they begin anew", error)

    def _recalled(self, rules: Any) -> dict[str, Any]:
        """What is remembered of each rule; it was in one piece once."""
        if isinstance(rules, dict):
            return rules
        self._parts = set(rules)
        found = {name: self._spool.note(_part(name)) for name in rules}
        return {name: one for name, one in found.items() if one is not None}


def _part(rule: str) -> str:
    return f"{NOTE}/{rule}"


def _is_sound(host: str, change: Change) -> bool:
    """Whether it can be written down at all: what cannot must not keep the others from it."""
    try:
        subject, key, body = _item(host, change)
        json.dumps(body, allow_nan=False)
        f"{subject} {key}".encode()
    except (TypeError, ValueError, RecursionError) as error:
        LOG.error("alarm %.100r cannot be written down and is lost: %s", change.rule, error)
        return False
    return True


def item(host: str, change: Change) -> Item:
    """A report of one alarm, as it goes into the spool."""
    name = change.name or change.entity.partition("/")[0]
    LOG.warning("alarm %s of %s %s: %s", change.rule, change.kind, name, change.event)
    return _item(host, change)


def _item(host: str, change: Change) -> Item:
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
