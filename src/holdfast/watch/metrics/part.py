# SPDX-License-Identifier: Apache-2.0
"""The metrics of a host, pass by pass on one thread: a snapshot is taken, looked at by the alarms,
given to the sinks with what those and the plugins had to say, and offered to the plugins. They
come last, for their threads want the interpreter as soon as they have something to do; what they
say is heard in the next pass.

    part = MetricsPart(collector, 1.0, clock, Stages(runner, news, alarms))
    part.start()

None of them waits for anybody but the disk, to which alarms are written before anything else
happens: where that is slow, passes are. One that fails is said once, until it is well again, and
takes nothing from the others: without alarms there are still sinks.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.model.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.metrics import Snapshot
from holdfast.watch.alarms.change import Change, Group
from holdfast.watch.alarms.engine import Outcome
from holdfast.watch.metrics.collect import Collector
from holdfast.watch.metrics.passes import Passes
from holdfast.watch.metrics.plugin_news import PluginNews
from holdfast.watch.metrics.plugins import PluginRunner
from holdfast.watch.metrics.turns import Turns

LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Tell = Callable[[Sequence[Group]], None]


class Alarms(Protocol):
    """`watch.alarms.engine.Engine`, or who changes its rules between passes."""

    def take(self, snapshot: Snapshot) -> Outcome: ...


class Sink(Protocol):
    name: str

    def offer(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Never waits: what takes time has a queue of its own."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stages:
    """Who gets a snapshot."""

    plugins: PluginRunner
    news: PluginNews
    alarms: Alarms | None = None
    #: Passes on what is to be told of alarms, those of plugins too.
    tell: Tell | None = None
    sinks: Sequence[Sink] = ()


class MetricsPart(Passes):
    def __init__(
        self,
        collector: Collector,
        every_s: float,
        clock: Clock,
        stages: Stages,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(collector, every_s, clock, turns)
        self._stages = stages
        self._guards: dict[str, Guard] = {}
        self.passes = 0

    def turn(self) -> None:
        stages = self._stages
        snapshot = self._guard("collection", self._collector.snapshot)
        if snapshot is None:
            self._guard("plugins", stages.plugins.look_after)
            return
        self.last = snapshot
        self.passes += 1
        alarms, tell = stages.alarms, stages.tell
        outcome = self._guard("alarms", lambda: alarms.take(snapshot)) if alarms else None
        said = self._guard("what plugins say", lambda: stages.news.take(snapshot)) or ()
        changes = (*(outcome.changes if outcome else ()), *said)
        groups = (*(outcome.groups if outcome else ()), *together(said))
        if groups and tell is not None:
            self._guard("telling of alarms", lambda: tell(groups))
        for sink in stages.sinks:
            self._give(sink, snapshot, changes)
        self._guard("plugins", lambda: stages.plugins.offer(snapshot))

    def stop(self) -> None:
        super().stop()
        for sink in self._stages.sinks:
            self._guard(f"sink {sink.name}", sink.close)
        self._stages.plugins.close()

    def troubles(self) -> dict[str, str]:
        """What does not work just now, and why."""
        return {name: one.why for name, one in list(self._guards.items()) if one.why}

    def _give(self, sink: Sink, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        self._guard(f"sink {sink.name}", lambda: sink.offer(snapshot, changes))

    def _guard(self, name: str, call: Callable[[], _T]) -> _T | None:
        guard = self._guards.get(name)
        if guard is None:
            guard = self._guards[name] = Guard(name)
        return guard.call(call)


def together(changes: Sequence[Change]) -> list[Group]:
    """By project, as those of rules are."""
    found: dict[tuple[str, str], list[Change]] = {}
    for one in changes:
        found.setdefault((one.host, one.project), []).append(one)
    return [Group(host, project, tuple(of)) for (host, project), of in found.items()]


class Guard:
    """What fails is said once, until it is well again; what it is of is not held up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.why = ""

    def call(self, call: Callable[[], _T]) -> _T | None:
        try:
            found = call()
        except HoldfastError as error:
            if error.message != self.why:
                LOG.error("%s: %s; it is tried again in every pass", self._name, error.message)
            self.why = error.message
            return None
        except Exception as error:  # the top of a stage: the others must have their turn
            why = f"{type(error).__name__}: {error}"
            if not self.why:
                LOG.exception("%s: unforeseen; it is tried again in every pass", self._name)
            self.why = why
            return None
        if self.why:
            LOG.info("%s: all is well again", self._name)
            self.why = ""
        return found
