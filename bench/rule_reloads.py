# SPDX-License-Identifier: Apache-2.0
"""Alarm rules changed 10,000 times at 100 a second, a tenth of them broken, while passes over 1,000
guests with 52 numbers each go on: through the agent's own desk, each written to disk first.

    python bench/rule_reloads.py [RELOADS [PER_SECOND [GUESTS]]]

Whether a sample is lost shows a guest whose number goes up and down with every pass: the rule about
it is in every set and changes state each time. What was broken must never be in force. The pause
is what a pass spends, by the clock, on the change of rules and on waiting for whoever makes it;
beside it the floor: as long a piece of a pass without changes, before and after, in which only the
machine's other work shows. On a machine that has much else to do the kernel takes the processor
away in the middle; those pauses are told apart (by the count of involuntary switches of the
thread), here and in the floor. What is left is the work, and locks, the interpreter's too. What a
pass is held up by in all is said for both, too. Passes are made five times as often as the agent
makes them, and read as many files as for 70 guests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.agent.outbox import Outbox
from holdfast.alarms.engine import Engine
from holdfast.alarms.rule_manager import CENTRAL, FILE, RuleManager
from holdfast.alarms.rules import BadRules, RuleSet
from holdfast.app.agent import SWITCH_S
from holdfast.metrics.passes import Passes, PassScheduler
from holdfast.ports.metrics import GUEST, Entity, Reading, Snapshot, Table
from holdfast.runtime.clock import SystemClock

FIELDS, RULES, PASSES_PER_S = 52, 20, 5
READS = 200
LIMIT_S = 0.001
#: As long as it takes to put new rules in force.
SWAP_S = 0.00003
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
PROBE = "  - {id: probe, on: guest, name: probe, field: beat, when: '> 0.5', clear: 0.5}"
#: What is done to good rules to break them.
BREAKING = (
    lambda text: text.replace("when: '>", "when: 'about", 1),
    lambda text: text.replace("id: r1,", "id: r0,", 1),
    lambda text: text + "  - {id: more, on: guest\n",
    lambda text: text.replace("field: f3", "feild: f3", 1),
    lambda text: text[: len(text) // 2] + "\x00" + text[len(text) // 2 :],
    lambda text: "",
)


def rules(level: float) -> str:
    """One level differs from one set to the next."""
    lines = [
        f"  - {{id: r{n}, on: guest, field: f{n}, when: '> {level if n == 0 else 0.99}', for: 10s}}"
        for n in range(RULES - 1)
    ]
    return "\n".join(["rules:", PROBE, *lines, ""])


@dataclass
class World:
    guests: int
    number: int = 0
    entities: list[Entity] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entities = [Entity(GUEST, f"u-{n}", f"vm-{n}") for n in range(self.guests)]
        self.entities.append(Entity(GUEST, "u-probe", "probe"))
        self.file = os.open("/proc/self/stat", os.O_RDONLY)
        names = [f"f{n}" for n in range(FIELDS)]
        self.values = [{name: random.random() * 0.98 for name in names} for _ in self.entities]

    def snapshot(self) -> Snapshot:
        self.number += 1
        for _ in range(READS):  # as the numbers of guests are read: each gives the others a turn
            os.pread(self.file, 512, 0)
        beat = float(self.number % 2)
        rows = [
            Reading(entity, {**values, "beat": beat})
            for entity, values in zip(self.entities, self.values, strict=True)
        ]
        at, step_s = BEGIN + timedelta(seconds=self.number), 1.0 / PASSES_PER_S
        now = time.monotonic()
        return Snapshot("cmp-7", self.number, at, now, step_s, {GUEST: Table(GUEST, rows)})


class TimedRuleManager(RuleManager):
    """How long the change of rules holds a pass up, by the clock. Where nothing changes, what a
    machine's other work makes of just as long a piece of a pass."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(Engine(RuleSet()), outbox, SystemClock(), known_fields=False)
        self.scheduler = TimedTurns(SystemClock())
        self._passing = TimedLock()  # type: ignore[assignment]
        self.swaps_s: list[float] = []
        self.own_s: list[float] = []  # of those, in which the kernel took no processor away
        self.cpu_s: list[float] = []
        self.floor_s: list[float] = []
        self.floor_cut = 0

    def _swap(self) -> None:
        changed = bool(self._ready)
        taken = _taken_away()
        began, own = time.perf_counter(), time.thread_time()
        if changed:
            super()._swap()
        else:
            while time.thread_time() - own < SWAP_S:
                pass
        took_s, own_s = time.perf_counter() - began, time.thread_time() - own
        waited_s = self._passing.waited_s  # type: ignore[attr-defined]
        (self.swaps_s if changed else self.floor_s).append(waited_s + took_s)
        cut = _taken_away() > taken
        if changed:
            self.cpu_s.append(own_s)
            if not cut:
                self.own_s.append(waited_s + took_s)
        else:
            self.floor_cut += cut


def _taken_away() -> int:
    """How many times the kernel took the processor from this thread; keeps the interpreter."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class TimedLock:
    """How long the last who took it waited for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waited_s = 0.0

    def __enter__(self) -> None:
        began = time.perf_counter()
        self._lock.acquire()
        self.waited_s = time.perf_counter() - began

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class TimedTurns(PassScheduler):
    """How late passes begin."""

    late_s = 0.0

    def __enter__(self) -> None:
        assert self._due is not None
        self.late_s = self._clock.monotonic() - self._due
        super().__enter__()


class Passing(Passes):
    """Passes, as the agent makes them; what each of them is held up by: that it began late, and
    that its thread did not run though it had something to do."""

    def __init__(self, rule_manager: TimedRuleManager, world: World) -> None:
        clock = SystemClock()
        super().__init__(world, 1 / PASSES_PER_S, clock, rule_manager.scheduler)  # type: ignore[arg-type]
        self._rule_manager = rule_manager
        self._world = world
        self.quiet: list[tuple[float, float]] = []  # how long it took, how long it was held up
        self.reloads: list[tuple[float, float]] = []
        self.seen = self.quiet
        self.flips = 0
        self.strange: list[str] = []

    def turn(self) -> None:
        late_s = self._rule_manager.scheduler.late_s  # type: ignore[attr-defined]
        began, own = time.perf_counter(), time.thread_time()
        outcome = self._rule_manager.apply(self._world.snapshot())
        took_s, own_s = time.perf_counter() - began, time.thread_time() - own
        self.seen.append((took_s, late_s + max(0.0, took_s - own_s)))
        self.flips += sum(one.rule == "probe" for one in outcome.changes)
        self.strange += [one.rule for one in outcome.changes if one.rule == "more"]

    @property
    def count(self) -> int:
        return len(self.quiet) + len(self.reloads)


@contextlib.contextmanager
def passing(guests: int) -> Iterator[tuple[Passing, TimedRuleManager]]:
    with tempfile.TemporaryDirectory() as folder:
        outbox = Outbox(str(Path(folder) / "agent.outbox"))
        rule_manager = TimedRuleManager(outbox)
        rule_manager.offer(rules(0.99), FILE)
        going = Passing(rule_manager, World(guests))
        going.start()
        try:
            yield going, rule_manager
        finally:
            going.stop()
            outbox.close()


def reload(rule_manager: RuleManager, count: int, per_s: float) -> tuple[list[float], int, int]:
    """How long each took, how many were refused, and how many came out wrong."""
    took, refused, wrong, begun = list[float](), 0, 0, time.monotonic()
    source, level = (FILE, CENTRAL), 0.99
    for number in range(count):
        time.sleep(max(0.0, begun + number / per_s - time.monotonic()))
        broken = number % 10 == 9
        new = round(0.985 + random.random() * 0.01, 6)
        text = random.choice(BREAKING)(rules(new)) if broken else rules(new)
        began = time.perf_counter()
        try:
            rule_manager.offer(text, source[number % 2] if number > 1 else CENTRAL)
            wrong += broken
            if source[number % 2] == CENTRAL or number <= 1:
                level = new
        except BadRules:
            refused += 1
            wrong += not broken
        took.append(time.perf_counter() - began)
        wrong += rule_manager.rules.by_id["r0"].conditions[0].level != level
    return took, refused, wrong


def show(name: str, values_s: Sequence[float]) -> float:
    """The worst of them."""
    ranked = sorted(values_s)
    middle, p99 = statistics.median(ranked) * 1e3, ranked[int(len(ranked) * 0.99)] * 1e3
    worst = ranked[-1] * 1e3
    print(f"{name:44} median {middle:8.3f}  99 % {p99:8.3f}  worst {worst:8.3f} ms")
    return worst / 1e3


def _word(good: bool) -> str:
    return "yes" if good else "NO"


def main() -> int:
    logging.disable()  # each refusal would be a line
    sys.setswitchinterval(SWITCH_S)  # as the agent does
    given = [int(word) for word in sys.argv[1:]]
    count, per_s, guests = (*given, *(10_000, 100, 1_000)[len(given) :])
    print(f"{count} reloads at {per_s} a second, a tenth broken; {guests} guests, {RULES} rules")
    with passing(guests) as (passes, rule_manager):
        time.sleep(1)
        passes.quiet.clear()
        rule_manager.floor_s.clear()
        had = passes.flips
        floor_s = max(5.0, count / per_s / 6)
        time.sleep(floor_s)
        passes.seen = passes.reloads
        began = time.monotonic()
        took, refused, wrong = reload(rule_manager, count, per_s)
        lasted_s = time.monotonic() - began
        passes.seen = passes.quiet
        time.sleep(floor_s)
    return judged(passes, rule_manager, had, Reloaded(count, took, refused, wrong, lasted_s))


@dataclass(frozen=True)
class Reloaded:
    count: int
    took_s: list[float]
    refused: int
    wrong: int
    lasted_s: float


def judged(passes: Passing, rule_manager: TimedRuleManager, had: int, done: Reloaded) -> int:
    show("a pass without reloads", [took for took, _ in passes.quiet])
    show("a pass with reloads", [took for took, _ in passes.reloads])
    show("held up in all, without reloads", [late for _, late in passes.quiet])
    show("held up in all, with reloads", [late for _, late in passes.reloads])
    floor = show("floor: as long a piece without reloads", rule_manager.floor_s)
    print(f"of {len(rule_manager.floor_s)} such pieces the kernel cut {rule_manager.floor_cut},"
          f" of {len(rule_manager.swaps_s)} changes"
          f" {len(rule_manager.swaps_s) - len(rule_manager.own_s)}")  # fmt: skip
    pause = show("the pause: putting new rules in force", rule_manager.swaps_s)
    own = show(f"the {len(rule_manager.own_s)} that the kernel did not cut", rule_manager.own_s)
    show("of that the processor's", rule_manager.cpu_s)
    show("an offer, on disk and in force", done.took_s)
    count, lost = done.count, passes.count - (passes.flips - had)
    rate = count / done.lasted_s
    print(f"{rate:.1f} reloads a second; {done.refused} refused, of {count // 10} broken")
    dropped = rule_manager._engine.dropped
    print(f"passes {passes.count}, samples lost {lost}, out of turn {dropped},"
          f" left out {passes.skipped};"
          f" rules put in force {len(rule_manager.swaps_s)} times")  # fmt: skip
    print(f"broken rules in force {done.wrong + len(passes.strange)}")
    good = not (lost or done.wrong or passes.strange or dropped or passes.skipped)
    good = good and done.refused == count // 10
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"nothing lost, nothing broken: {_word(good)}; pause below 1 ms by the clock: "
          f"{_word(pause < LIMIT_S)} (worst {pause * 1e3:.3f}, floor {floor * 1e3:.3f} ms;"
          f" load {load:.1f} on {cores} cores), where the kernel took no processor away:"
          f" {_word(own < LIMIT_S)} (worst {own * 1e3:.3f}, {len(rule_manager.own_s)} of"
          f" {len(rule_manager.swaps_s)})")  # fmt: skip
    return 0 if good and (pause < LIMIT_S or (load > cores and own < LIMIT_S)) else 1


if __name__ == "__main__":
    sys.exit(main())
