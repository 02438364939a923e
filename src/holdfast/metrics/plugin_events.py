# SPDX-License-Identifier: Apache-2.0
"""Alarms of plugins: turns plugin notes and plugin failures into alarm changes.

    events = PluginEvents("cmp-7")
    events.off("hot", "5 strikes within 60 s")   # and events.on("hot")
    events.note(note)                            # in every pass, while the condition lasts
    changes = events.consume(snapshot)           # once per pass

A plugin repeats its note in every pass. The first note raises an alarm; 60 seconds without the
note clear the alarm. At most `MOST_RAISED` alarms per plugin are raised at once; further notes are
counted and reported as one additional alarm.

    alarms = PluginAlarms(saved)                 # alarms raised before a restart
    alarms.consume(changes)                      # changes to send notifications for
    alarms.over(snapshot)                        # alarms that no plugin repeated

`PluginEvents` starts empty with every start of the agent; `PluginAlarms` survives a restart.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.alarms.tracks import CLEARED, FIRING, OK, RAISED, Change, change_from
from holdfast.ports.metric_plugins import Note
from holdfast.ports.metrics import GUEST, HOST, Entity, Snapshot

#: An alarm is cleared this many seconds after its last note.
OVER_S: Final = 60.0
#: Largest number of raised alarms per plugin.
MOST_RAISED: Final = 20
#: Largest number of notes per plugin and pass.
MOST_NOTES: Final = 1_000
NO_LONGER: Final = "no longer reported"
#: Longest rule name; the change carries a truncated name.
_MOST_RULE: Final = 128
SWITCHED_OFF: Final = "off"
STORM: Final = "storm"
_Key = tuple[str, str, str]  # plugin, entity, and "" or SWITCHED_OFF or STORM


@dataclass(slots=True)
class _RaisedAlarm:
    """A raised alarm of a plugin."""

    note: Note  # the note that raised the alarm
    entity: Entity
    last: float | None  # monotonic time of the last note; None: stands until `on`


class PluginEvents:
    """Collects plugin notes and on/off events; threads may share an instance without waiting."""

    def __init__(self, host: str) -> None:
        self._host = Entity(HOST, host, host)
        self._lock = threading.Lock()
        self._notes: dict[str, dict[_Key, Note]] = {}  # by plugin
        self._offs: dict[str, str | None] = {}
        self._raised: dict[_Key, _RaisedAlarm] = {}
        self.ignored: Counter[str] = Counter()

    def off(self, plugin: str, why: str) -> None:
        """Record that a plugin was switched off."""
        with self._lock:
            self._offs[plugin] = f"plugin {plugin} is switched off: {why}"

    def on(self, plugin: str) -> None:
        """Record that a plugin was switched on or removed."""
        with self._lock:
            self._offs[plugin] = None

    def note(self, note: Note) -> None:
        """Record a note; at most `MOST_NOTES` notes per plugin and pass."""
        note = replace(note, about=str(note.about))  # a plugin may pass any type
        key = (note.plugin, note.about, "")
        with self._lock:
            notes = self._notes.setdefault(note.plugin, {})
            if len(notes) < MOST_NOTES or key in notes:
                notes[key] = note
            else:
                self.ignored[note.plugin] += 1

    def consume(self, snapshot: Snapshot) -> list[Change]:
        """Return the alarm changes since the previous pass."""
        with self._lock:
            notes, self._notes = self._notes, {}
            offs, self._offs = self._offs, {}
        if not (notes or offs or self._raised):
            return []
        changes = []
        for plugin, why in offs.items():
            key = (plugin, "", SWITCHED_OFF)
            if why is None:
                changes += self._clear(key, snapshot, "enabled or removed")
            else:
                sentence = Note(plugin, snapshot.host, "", why, snapshot.at, "warning", None, 0.0)
                changes += self._raise(key, sentence, self._host, snapshot, None)
        for mine in notes.values():
            for key, note in mine.items():
                changes += self._process_note(key, note, snapshot)
        return changes + self._expire(snapshot)

    def _process_note(self, key: _Key, note: Note, snapshot: Snapshot) -> list[Change]:
        """Raise or extend the alarm of a note; beyond `MOST_RAISED`, raise a storm alarm."""
        now = snapshot.monotonic
        if (alarm := self._raised.get(key)) is not None:
            alarm.last = now
            return []
        mine = sum(plugin == note.plugin and not category for plugin, _, category in self._raised)
        if mine >= MOST_RAISED:
            self.ignored[note.plugin] += 1
            key = (note.plugin, "", STORM)
            if key in self._raised:
                self._raised[key].last = now
                return []
            storm = f"plugin {note.plugin} raises more alarms than are reported: {note.sentence}"
            note = replace(note, about="", sentence=storm)
        return self._raise(key, note, self._entity(note.about, snapshot), snapshot, now)

    def _entity(self, about: str, snapshot: Snapshot) -> Entity:
        """Return the guest named by `about`, or the host if there is no such guest."""
        table = snapshot.tables.get(GUEST)
        entities = table.entities if about and table is not None else ()
        return next((entity for entity in entities if entity.id == about), self._host)

    def _raise(
        self, key: _Key, note: Note, entity: Entity, snapshot: Snapshot, now: float | None
    ) -> list[Change]:
        if key in self._raised:
            return []
        alarm = self._raised[key] = _RaisedAlarm(note, entity, now)
        return [_change(key, alarm, snapshot, RAISED)]

    def _expire(self, snapshot: Snapshot) -> list[Change]:
        over = [
            key
            for key, alarm in self._raised.items()
            if alarm.last is not None and snapshot.monotonic - alarm.last > OVER_S
        ]
        return [change for key in over for change in self._clear(key, snapshot, NO_LONGER)]

    def _clear(self, key: _Key, snapshot: Snapshot, reason: str) -> list[Change]:
        alarm = self._raised.pop(key, None)
        return [] if alarm is None else [_change(key, alarm, snapshot, CLEARED, reason)]


class PluginAlarms:
    """Raised plugin alarms, kept across a restart; only one thread may use an instance.

    After a restart, a plugin that repeats a note continues the same alarm. An alarm that no
    plugin repeats within 60 seconds is cleared.
    """

    def __init__(self, saved: Iterable[Mapping[str, Any]] | None = None) -> None:
        changes = [change_from(row) for row in saved or ()]
        self._raised = {(change.rule, change.entity): change for change in changes}
        self._unrepeated = set(self._raised)  # not repeated since the restart
        self._until: float | None = None

    def plain(self) -> list[dict[str, Any]]:
        """Return the raised alarms as JSON objects, to save them."""
        return [change.plain() for change in self._raised.values()]

    def consume(self, changes: Iterable[Change]) -> list[Change]:
        """Filter changes: a raise of an alarm raised before the restart is dropped."""
        return [new for change in changes if (new := self._filtered(change)) is not None]

    def over(self, snapshot: Snapshot) -> list[Change]:
        """Clear alarms from before a restart that no plugin has repeated."""
        if not self._unrepeated:
            return []
        now = snapshot.monotonic
        self._until = now + OVER_S if self._until is None else self._until
        if now <= self._until:
            return []
        left = [self._raised[key] for key in sorted(self._unrepeated)]
        at, why = snapshot.at, NO_LONGER
        return [
            replace(change, before=FIRING, state=OK, last_at=at, at=at, reason=why, event=CLEARED)
            for change in left
        ]

    def _filtered(self, change: Change) -> Change | None:
        key = (change.rule, change.entity)
        self._unrepeated.discard(key)
        if change.event == RAISED:
            return change if self._raised.setdefault(key, change) is change else None
        raised = self._raised.pop(key, change)
        return replace(change, first_at=raised.first_at)


def _change(key: _Key, of: _RaisedAlarm, now: Snapshot, event: str, reason: str = "") -> Change:
    """Build the change of a plugin's alarm."""
    plugin, about, category = key
    alien = about if of.entity.kind == HOST else ""  # an id that is no guest of this host
    is_raised, note = event == RAISED, of.note
    return Change(
        rule="/".join(filter(None, (f"plugin:{plugin}", category, alien)))[:_MOST_RULE],
        version="",
        host=now.host,
        kind=of.entity.kind,
        entity=of.entity.id,
        name=of.entity.name,
        project=of.entity.project,
        before=OK if is_raised else FIRING,
        state=FIRING if is_raised else OK,
        severity=note.severity,
        value=note.value,
        threshold=note.threshold,
        window_s=0.0,
        first_at=note.at,
        last_at=note.at if is_raised else now.at,
        at=now.at,
        samples=1,
        summary=note.sentence,
        reason=reason,
        event=event,
    )


# Log output for plugin notes, for a process without an agent to raise alarms.


LOG = logging.getLogger(__name__)

#: A note that a plugin repeats in every pass is logged again after this many seconds.
AGAIN_S: Final = 600.0
MOST_REMEMBERED: Final = 1000


class PluginLog:
    """Writes plugin notes to the log (`plugin_runner.Reports`).

    `off` and `on` do nothing, because the plugin runner itself logs these events.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def off(self, plugin: str, why: str) -> None: ...

    def on(self, plugin: str) -> None: ...

    def note(self, note: Note) -> None:
        key, now = (note.plugin, note.about), time.monotonic()
        with self._lock:
            if now - self._logged.get(key, -AGAIN_S) < AGAIN_S:
                return
            if len(self._logged) >= MOST_REMEMBERED:
                self._logged.clear()
            self._logged[key] = now
        LOG.warning("%s: %s: %s", note.plugin, note.about or note.host, note.sentence)
