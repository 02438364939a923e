# SPDX-License-Identifier: Apache-2.0
"""The plugins of a host: who gets the snapshots, and what becomes of those that misbehave.

    runner = PluginRunner(Limits(), reports, own)
    runner.add("hot", "acme_hot:Hot", {"limit": 0.9})
    runner.offer(snapshot)                # once for each pass; never waits for a plugin
    runner.configure("hot", {"limit": 0.8}); runner.reload("hot"); runner.remove("hot")

Who is there is one mapping that is never changed but replaced, so that passes need no lock and
changes cost them nothing. What changes a plugin waits for that plugin alone.

Nobody can tell cheaply whose an object is, so memory is judged by the whole process: past the limit
that plugin is switched off during whose passes it grew most, the newest of equals; then, if it goes
on growing, the next one.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.model.metric_plugins_file import NAME
from holdfast.ports.metric_plugins import Note
from holdfast.ports.metrics import Snapshot
from holdfast.watch.metrics import plugin_code
from holdfast.watch.metrics.plugin_lane import Config, Ear, Lane
from holdfast.watch.metrics.plugin_limits import OFF, ON, Limits, Own
from holdfast.watch.metrics.shared import Shared

LOG = logging.getLogger(__name__)

MIB: Final = 2**20
#: A plugin that grew by less is not why we are too large.
LEAST_GROWTH: Final = 1 * MIB
#: Memory is not given back at once, nor all of it.
SLACK: Final = 8 * MIB
SETTLE_S: Final = 3.0
#: Threads that one plugin may leave behind.
MOST_LOST: Final = 3


class Reports(Protocol):
    """Who is told; on any thread, and must not wait."""

    def off(self, plugin: str, why: str) -> None:
        """It was switched off."""
        ...

    def on(self, plugin: str) -> None:
        """It is on, or removed."""
        ...

    def note(self, note: Note) -> None: ...


@dataclass(eq=False)
class Slot:
    """A plugin, by its name; the code it runs, and the one before that."""

    name: str
    use: str
    kind: type
    lane: Lane
    before: tuple[type, Lane] | None = None
    trial: Lane | None = None
    reloads: int = 0
    lost: list[Lane] = field(default_factory=list)  # that hung
    lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, shared: Shared) -> None:
        with self.lock:  # nobody waits while holding it
            self.lane.offer(shared)
            if self.trial is not None:
                self.trial.offer(shared)

    @property
    def lanes(self) -> list[Lane]:
        kept = [self.before[1]] if self.before else []
        trial = self.trial
        return [self.lane, *kept, *([trial] if trial is not None else []), *self.lost]


class PluginRunner:
    """Threads may share it; `offer` is for one."""

    def __init__(
        self,
        limits: Limits,
        reports: Reports,
        own: Own,
    ) -> None:
        self._limits = limits
        self._reports = reports
        self._own = own
        self._ear = Ear(self._off, reports.note)
        self._slots: Mapping[str, Slot] = {}
        self._leaving: tuple[Lane, ...] = ()
        self._changing: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._mark = limits.rss_bytes
        self._settled = 0.0

    # passes

    def offer(self, snapshot: Snapshot) -> None:
        self.look_after()  # before they wake: whoever reads a file then has to wait for them
        slots = self._slots
        if slots:
            shared = Shared(snapshot)
            for slot in slots.values():
                slot.offer(shared)

    def look_after(self) -> None:
        """Cut off what hangs, or makes us too large."""
        slots = self._slots
        if not slots and not self._leaving:
            return
        for slot in slots.values():
            for lane in slot.lanes:
                lane.look_after()
        if self._leaving:
            for lane in self._leaving:
                lane.look_after()
            with self._lock:
                self._leaving = tuple(one for one in self._leaving if one.is_alive)
        self._weigh([slot.lane for slot in slots.values() if slot.lane.state == ON])

    def _weigh(self, lanes: list[Lane]) -> None:
        now = time.monotonic()
        if now < self._settled or not lanes:
            return
        rss = self._own.rss()
        if rss <= self._mark:
            if rss <= self._limits.rss_bytes:
                self._mark = self._limits.rss_bytes
            return
        self._settled, self._mark = now + SETTLE_S, rss + SLACK
        worst = max(reversed(lanes), key=lambda one: one.tally.grew_bytes)  # the newest of equals
        grew = worst.tally.grew_bytes
        if grew < LEAST_GROWTH:
            LOG.warning("the agent takes %d MiB, but no plugin grew", rss // MIB)
            return
        limit = self._limits.rss_bytes // MIB
        worst.cut(
            f"the agent takes {rss // MIB} MiB, more than {limit}, and grew by {grew // MIB} MiB "
            "while this plugin was at work",
            now=False,
        )

    def _off(self, lane: Lane, why: str) -> None:
        LOG.error("plugin %s is off: %s", lane.name, why)
        if not lane.shadow and not lane.retired:
            self._reports.off(lane.name, why)

    # changes, each by a thread that may wait

    def add(self, name: str, use: str, config: Config) -> None:
        """On when this returns; HoldfastError if it cannot be, and nothing changed."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name: write a to z, digits, _ . and -")
        with self._change(name):
            if name in self._slots:
                raise Conflict(f"there is a plugin {name}: configure, reload or remove it")
            if len(self._slots) >= self._limits.plugins:
                raise Conflict(f"there are {self._limits.plugins} plugins: remove one first")
            kind, lane = self._load(name, plugin_code.find(use), config)
            self._reports.on(name)  # before it has a pass in which it could be switched off
            self._put(Slot(name, use, kind, lane))
        LOG.info("plugin %s (%s) is on: %s", name, use, ", ".join(lane.has))

    def configure(self, name: str, config: Config) -> None:
        """From its next pass on."""
        with self._change(name):
            self._slot(name).lane.configure(config)
        LOG.info("plugin %s is configured anew", name)

    def remove(self, name: str) -> None:
        with self._change(name):
            slot = self._slot(name)
            self._put(None, name)
            self._dismiss(*slot.lanes)
            if not slot.lane.join(self._limits.change_s):
                LOG.warning("plugin %s is removed, but its thread does not end", name)
            for kind in (slot.kind, *(slot.before[:1] if slot.before else ())):
                plugin_code.forget(kind)
        self._reports.on(name)
        LOG.info("plugin %s is removed", name)

    def enable(self, name: str) -> None:
        """One that is off begins anew, with the code and configuration it had."""
        with self._change(name):
            slot = self._slot(name)
            old = slot.lane
            if old.state == ON:
                raise Conflict(f"plugin {name} is on already")
            slot.lost = [one for one in (*slot.lost, old) if one.is_alive]
            if len(slot.lost) >= MOST_LOST:
                raise Conflict(
                    f"plugin {name} left {len(slot.lost)} threads that do not end: mend it, and "
                    "restart the agent"
                )
            lane = self._begin(name, slot.kind, old.config)
            self._reports.on(name)
            slot.lane = lane
        LOG.info("plugin %s is on again", name)

    def reload(self, name: str) -> None:
        """Its code as it is now: for one pass beside the old, then in its place."""
        with self._change(name):
            slot = self._slot(name)
            source, config = plugin_code.find(slot.use), slot.lane.config
            kind, lane = self._load(name, source, config, anew=True, shadow=True)
            try:
                self._try(slot, lane)
            except HoldfastError:
                self._dismiss(lane)
                plugin_code.forget(kind)
                raise
            finally:
                slot.trial = None
            self._swap(slot, kind, lane)
            slot.reloads += 1
        self._reports.on(name)
        LOG.info("plugin %s runs its new code", name)

    def roll_back(self, name: str) -> None:
        """To the code before the last reload, which has kept what it knew."""
        with self._change(name):
            slot = self._slot(name)
            if slot.before is None or slot.before[1].state != ON:
                raise Conflict(f"plugin {name} has no code before this one: reload it instead")
            kind, lane = slot.before
            if lane.config != slot.lane.config:
                lane.configure(slot.lane.config)
            self._swap(slot, kind, lane)
        self._reports.on(name)
        LOG.info("plugin %s runs its old code", name)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            lanes = [lane for slot in self._slots.values() for lane in slot.lanes]
            lanes += self._leaving
            self._slots, self._leaving = {}, ()
        for lane in lanes:
            lane.stop("the agent stops")
        until = time.monotonic() + 2.0
        for lane in lanes:
            lane.join(until - time.monotonic())

    # what there is

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def rows(self) -> list[dict[str, Any]]:
        return [_row(slot) for slot in self._slots.values()]

    def row(self, name: str) -> dict[str, Any]:
        return _row(self._slot(name))

    # how

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("the agent stops")
            if name in self._changing:
                raise Conflict(f"plugin {name} is being changed just now: try again in a moment")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)

    def _slot(self, name: str) -> Slot:
        found = self._slots.get(name)
        if found is None:
            there = ", ".join(self._slots) or "none"
            raise NotFound(f"there is no plugin {name}: there are {there}")
        return found

    def _put(self, slot: Slot | None, name: str = "") -> None:
        """Replaces the mapping that passes look at."""
        with self._lock:
            if slot is None:
                self._slots = {key: one for key, one in self._slots.items() if key != name}
            elif self._closed:
                slot.lane.stop("the agent stops")
            else:
                self._slots = {**self._slots, slot.name: slot}

    def _load(
        self,
        name: str,
        source: plugin_code.Source,
        config: Config,
        *,
        anew: bool = False,
        shadow: bool = False,
    ) -> tuple[type, Lane]:
        found: list[type] = []

        def make() -> object:
            found.append(source.read(anew))
            return found[0]()

        return self._started(
            Lane(name, make, config, self._limits, self._ear, self._own, shadow=shadow), found
        )

    def _begin(self, name: str, kind: type, config: Config) -> Lane:
        return self._started(Lane(name, kind, config, self._limits, self._ear, self._own), [kind])[
            1
        ]

    def _started(self, lane: Lane, found: list[type]) -> tuple[type, Lane]:
        lane.start()
        try:
            lane.wait_ready()
        except HoldfastError:
            self._dismiss(lane)
            raise
        return found[0], lane

    def _try(self, slot: Slot, lane: Lane) -> None:
        slot.trial = lane
        if not lane.tried.wait(self._limits.change_s):
            raise Unavailable(f"plugin {slot.name}: no pass was there to try it, the old goes on")
        problems = lane.strikes() or ([lane.why] if lane.state == OFF else [])
        if problems:
            raise InvalidInput(f"the old {slot.name} goes on, for the new {problems[0]}")

    def _swap(self, slot: Slot, kind: type, lane: Lane) -> None:
        """Each pass is heard by one of them."""
        with slot.lock:
            slot.trial, lane.shadow = None, False
            old, older = slot.lane, slot.before
            slot.before = (slot.kind, old)
            slot.kind, slot.lane = kind, lane
        if older is not None and older[1] is not lane:
            self._dismiss(older[1])
            plugin_code.forget(older[0])

    def _dismiss(self, *lanes: Lane) -> None:
        for lane in lanes:
            lane.retire()
        with self._lock:
            self._leaving = (*self._leaving, *(one for one in lanes if one.is_alive))


def _row(slot: Slot) -> dict[str, Any]:
    lane, tally = slot.lane, slot.lane.tally
    passes = max(1, tally.passes)
    return {
        "name": slot.name,
        "use": slot.use,
        "state": lane.state,
        "why": lane.why,
        "callbacks": list(lane.has),
        "config": lane.config,
        "config_version": lane.config_version,
        "passes": tally.passes,
        "last_pass": tally.last_pass,
        "dropped": tally.dropped,
        "strikes": lane.strikes(),
        "mean_ms": round(tally.busy_s / passes * 1000, 3),
        "cpu_ms": round(tally.cpu_s / passes * 1000, 3),
        "slowest_ms": round(tally.slowest_s * 1000, 3),
        "grew_kib": tally.grew_bytes // 1024,
        "notes": tally.notes,
        "reloads": slot.reloads,
        "can_roll_back": slot.before is not None and slot.before[1].state == ON,
        "lost_threads": sum(one.is_alive for one in slot.lost),
    }
