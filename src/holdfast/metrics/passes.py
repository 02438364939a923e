# SPDX-License-Identifier: Apache-2.0
"""Metrics passes: a thread takes a snapshot every second and calls its receivers.

    passes = Passes(collector, 1.0, clock)
    passes.receivers.append(receive)
    passes.start()

Passes start a second apart by the clock, however long a pass takes; a missed pass is not made
up for. A receiver must not wait: slow work (plugins, sinks) has a queue of its own.

`PassScheduler` keeps other threads from computing during a pass. `MetricsPart` is the agent's
pass thread with its stages: alarms, plugin events, sinks, plugins.
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

# Scheduling of passes.


#: Longest lateness and longest duration, in seconds, of a pass that other threads wait for.
MOST_S: Final = 0.5
#: A waiting thread lets at most this many passes go first.
MOST_PASSES: Final = 3


class PassScheduler:
    """Gives passes priority over other threads.

    All threads share a single interpreter, so each read of a pass would wait for any thread
    that computes. Threads with something to compute therefore do so between two passes.

        scheduler.expect(due)      # the pass thread: time at which the next pass begins
        with scheduler: ...        # the pass thread: the pass itself
        scheduler.room(0.01)       # any other thread, before work of about 0.01 s
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()  # set when the running pass, or else the next pass, ends
        self._under_way = False
        self._due: float | None = None  # None: no thread makes passes

    def expect(self, due: float) -> None:
        """Announce the monotonic time of the next pass."""
        self._due = due

    def __enter__(self) -> None:
        self._under_way = True

    def __exit__(self, *_: object) -> None:
        over, self._over = self._over, threading.Event()
        self._under_way = False
        over.set()

    def room(self, seconds: float) -> None:
        """Wait until no pass is running and none begins within `seconds`.

        The wait ends after `MOST_PASSES` passes, because work that does not fit between two
        passes has to be done too. A waiting thread sleeps until a pass is over: a thread woken
        at the start of a pass would compete for the interpreter in the middle of the pass.
        """
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
    """Thread that takes a snapshot every `interval_s` seconds and calls all receivers."""

    def __init__(
        self,
        collector: Collector,
        interval_s: float,
        clock: Clock,
        scheduler: PassScheduler | None = None,
    ) -> None:
        super().__init__("metrics", clock)
        self.make_essential()
        self._scheduler = scheduler or PassScheduler(clock)
        self._collector = collector
        self._every_s = interval_s
        self.receivers: list[Receiver] = []
        self.last: Snapshot | None = None
        self.skipped = 0  # passes left out because an earlier pass took too long

    def _forever(self) -> None:
        due, first = self._clock.monotonic(), True
        self._scheduler.expect(due)
        while not self._stop.is_set():
            pause_s = max(0.0, due - self._clock.monotonic())
            self.beat(pause_s)
            self._clock.wait(self._wake_event, pause_s)
            self.beat()
            self._wake_event.clear()
            if self._stop.is_set():
                return
            with self._scheduler:
                self.turn()
                if first:
                    first = False
                    # objects that exist now stay: searching them for garbage each time would
                    # cost several times as much as a pass
                    gc.collect()
                    gc.freeze()
                late = int((self._clock.monotonic() - due) / self._every_s)
                self.skipped += late
                due += self._every_s * (late + 1)
                self._scheduler.expect(
                    due
                )  # before `room` lets other threads go on: it reads this time

    def turn(self) -> None:
        """Take a snapshot and call the receivers."""
        try:
            snapshot = self._collector.snapshot()
        except Exception:  # top of the thread: the next pass must run
            LOG.exception("a pass of the metrics failed; the next is made all the same")
            return
        self.last = snapshot
        for receive in self.receivers:
            try:
                receive(snapshot)
            except Exception:  # must not affect the other receivers
                LOG.exception("%r did not take the snapshot", receive)


# The agent's pass thread.


_T = TypeVar("_T")
Notify = Callable[[Sequence[Group]], None]


class Alarms(Protocol):
    """Alarm stage of a pass, implemented by `holdfast.alarms.host_alarms.HostAlarms`."""

    def evaluate(self, snapshot: Snapshot) -> Outcome: ...


class Sink(Protocol):
    """A metric sink."""

    name: str

    def offer(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        """Accept a snapshot without waiting; slow work has a queue of its own."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stages:
    """Receivers of a snapshot."""

    plugins: PluginRunner
    plugin_events: PluginEvents
    alarms: Alarms | None = None
    #: Sends alarm notifications, also those of plugins.
    notify: Notify | None = None
    sinks: Sequence[Sink] = ()


class MetricsPart(Passes):
    """Metrics of a host: in each pass a thread runs all stages.

        part = MetricsPart(collector, 1.0, clock, Stages(runner, events, alarms))
        part.start()

    The thread takes a snapshot, evaluates the alarms, gives the snapshot with the alarm changes
    of rules and plugins to the sinks, and offers the snapshot to the plugins. Plugins come last
    because the thread that encodes the snapshot for them competes for the interpreter; their notes
    are processed in the next pass.

    No stage waits for anything but the disk, to which alarms are written first: on a slow disk
    passes are slow. A stage that fails is logged once until it works again, and does not affect
    the others: sinks work without alarms.
    """

    def __init__(
        self,
        collector: Collector,
        interval_s: float,
        clock: Clock,
        stages: Stages,
        scheduler: PassScheduler | None = None,
    ) -> None:
        super().__init__(collector, interval_s, clock, scheduler)
        self._stages = stages
        self._guards: dict[str, Guard] = {}
        self.passes = 0

    def turn(self) -> None:
        """Run all stages of a pass."""
        stages = self._stages
        snapshot = self._guard("collection", self._collector.snapshot)
        if snapshot is None:
            return
        self.last = snapshot
        self.passes += 1
        alarms, notify = stages.alarms, stages.notify
        outcome = self._guard("alarms", lambda: alarms.evaluate(snapshot)) if alarms else None
        plugin_changes = (
            self._guard("plugin events", lambda: stages.plugin_events.consume(snapshot)) or ()
        )
        changes = (*(outcome.changes if outcome else ()), *plugin_changes)
        groups = (*(outcome.groups if outcome else ()), *together(plugin_changes))
        if groups and notify is not None:
            self._guard("alarm notifications", lambda: notify(groups))
        for sink in stages.sinks:
            self._offer(sink, snapshot, changes)
        self._guard("plugins", lambda: stages.plugins.offer(snapshot))

    def stop(self) -> None:
        super().stop()
        for sink in self._stages.sinks:
            self._guard(f"sink {sink.name}", sink.close)
        self._stages.plugins.close()

    def failures(self) -> dict[str, str]:
        """Return the stages that currently fail, with the reason."""
        return {name: guard.why for name, guard in list(self._guards.items()) if guard.why}

    def _offer(self, sink: Sink, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        self._guard(f"sink {sink.name}", lambda: sink.offer(snapshot, changes))

    def _guard(self, name: str, call: Callable[[], _T]) -> _T | None:
        guard = self._guards.get(name)
        if guard is None:
            guard = self._guards[name] = Guard(name)
        return guard.call(call)


def together(changes: Sequence[Change]) -> list[Group]:
    """Group changes by host and project, as the alarm engine groups changes of rules."""
    by_project: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        by_project.setdefault((change.host, change.project), []).append(change)
    return [Group(host, project, tuple(of)) for (host, project), of in by_project.items()]


class Guard:
    """Runs a stage, catches its errors, and logs a failure once until the stage works again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.why = ""

    def call(self, call: Callable[[], _T]) -> _T | None:
        """Return the result of `call`, or None if the call fails."""
        try:
            result = call()
        except HoldfastError as error:
            if error.message != self.why:
                LOG.error("%s: %s; it is tried again in every pass", self._name, error.message)
            self.why = error.message
            return None
        except Exception as error:  # top of a stage: the other stages must run
            why = f"{type(error).__name__}: {error}"
            if not self.why:
                LOG.exception("%s: unforeseen; it is tried again in every pass", self._name)
            self.why = why
            return None
        if self.why:
            LOG.info("%s: all is well again", self._name)
            self.why = ""
        return result
