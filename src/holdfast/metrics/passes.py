# SPDX-License-Identifier: Apache-2.0
"""A pass every second: a snapshot is taken and handed to whoever wants it, on one thread.

    passes = Passes(collector, 1.0, clock)
    passes.receivers.append(engine.take)
    passes.start()

Passes are a second apart by the clock, however long one takes; one that is late is not made up
for. Who receives must not wait: what takes time (plugins, sinks) has a queue of its own.
"""

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from holdfast.alarms.engine import Outcome
from holdfast.alarms.tracks import Change, Group
from holdfast.metrics.collector import Collector
from holdfast.metrics.plugin_events import PluginEvents
from holdfast.metrics.plugin_runner import PluginRunner
from holdfast.model.errors import HoldfastError
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

# Passes go first. Threads share one interpreter, and each read of a pass would wait for whoever
# computes meanwhile; so who has something to compute does it between two passes.
#
#     turns.expect(due)          # who makes passes: when the next one begins
#     with turns: ...            # and the pass
#     turns.room(0.01)           # anybody else, before work of so many seconds


#: A pass that is late by that much does not come; one that takes that long is not waited for.
MOST_S: Final = 0.5
#: How many passes are let by before one begins all the same.
MOST_PASSES: Final = 3


class PassScheduler:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()  # of the pass that is under way, or else of the next
        self._under_way = False
        self._due: float | None = None  # nobody makes passes

    def expect(self, due: float) -> None:
        self._due = due

    def __enter__(self) -> None:
        self._under_way = True

    def __exit__(self, *_: object) -> None:
        over, self._over = self._over, threading.Event()
        self._under_way = False
        over.set()

    def room(self, seconds: float) -> None:
        """Wait until no pass is under way and none begins within that time. Not for ever: more
        than fits between two passes has to be done too. Who waits sleeps until a pass is over: one
        that is woken when it begins would want the interpreter in the midst of it."""
        if self._due is None:
            return
        for _ in range(MOST_PASSES):
            over = self._over
            gap_s = self._due - self._clock.monotonic()
            if not self._under_way and (gap_s > seconds or gap_s < -MOST_S):
                return
            self._clock.wait(over, max(0.0, gap_s) + MOST_S)


LOG = logging.getLogger(__name__)
EVERY_S: Final = 1.0

Receiver = Callable[[Snapshot], None]


class Passes(Worker):
    def __init__(
        self, collector: Collector, every_s: float, clock: Clock, turns: PassScheduler | None = None
    ) -> None:
        super().__init__("metrics", clock)
        self._turns = turns or PassScheduler(clock)
        self._collector = collector
        self._every_s = every_s
        self.receivers: list[Receiver] = []
        self.last: Snapshot | None = None
        self.skipped = 0  # passes for which there was no time

    def _forever(self) -> None:
        due, first = self._clock.monotonic(), True
        self._turns.expect(due)
        while not self._stop.is_set():
            self._clock.wait(self._bell, max(0.0, due - self._clock.monotonic()))
            self._bell.clear()
            if self._stop.is_set():
                return
            with self._turns:
                self.turn()
                if first:
                    first = False
                    # what lives now lives on: to look through it for garbage each time would cost
                    # several times what a pass does
                    gc.collect()
                    gc.freeze()
                late = int((self._clock.monotonic() - due) / self._every_s)
                self.skipped += late
                due += self._every_s * (late + 1)
                self._turns.expect(due)  # before others have their turn: they go by it

    def turn(self) -> None:
        """One pass."""
        try:
            snapshot = self._collector.snapshot()
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("a pass of the metrics failed; the next is made all the same")
            return
        self.last = snapshot
        for receive in self.receivers:
            try:
                receive(snapshot)
            except Exception:  # nobody else shall notice
                LOG.exception("%r did not take the snapshot", receive)


# The metrics of a host, pass by pass on one thread: a snapshot is taken, looked at by the alarms,
# given to the sinks with what those and the plugins had to say, and offered to the plugins. They
# come last, for their threads want the interpreter as soon as they have something to do; what
# they
# say is heard in the next pass.
#
#     part = MetricsPart(collector, 1.0, clock, Stages(runner, news, alarms))
#     part.start()
#
# None of them waits for anybody but the disk, to which alarms are written before anything else
# happens: where that is slow, passes are. One that fails is said once, until it is well again,
# and
# takes nothing from the others: without alarms there are still sinks.


_T = TypeVar("_T")
Tell = Callable[[Sequence[Group]], None]


class Alarms(Protocol):
    """`watch.alarms.engine.Engine`, or who changes its rules between passes."""

    def consume(self, snapshot: Snapshot) -> Outcome: ...


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
    news: PluginEvents
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
        turns: PassScheduler | None = None,
    ) -> None:
        super().__init__(collector, every_s, clock, turns)
        self._stages = stages
        self._guards: dict[str, Guard] = {}
        self.passes = 0

    def turn(self) -> None:
        stages = self._stages
        snapshot = self._guard("collection", self._collector.snapshot)
        if snapshot is None:
            self._guard("plugins", stages.plugins.maintain)
            return
        self.last = snapshot
        self.passes += 1
        alarms, tell = stages.alarms, stages.tell
        outcome = self._guard("alarms", lambda: alarms.consume(snapshot)) if alarms else None
        said = self._guard("what plugins say", lambda: stages.news.consume(snapshot)) or ()
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
