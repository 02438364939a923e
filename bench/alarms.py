# SPDX-License-Identifier: Apache-2.0
"""What alarms cost: a pass over 1,000 guests with 20 rules, and other rules while it runs.

First the passes: quiet, with a few alarms, with every guest in every alarm, with nothing known;
rules with windows; guests that come and go. The numbers of a guest are dicts of 52, as plugins get
them, new in every pass; a pass includes making columns of them. Beside it the least that NumPy
would cost. Then how late alarms are raised, and told, in simulated time, whatever their rules wait
for. Then
10,000 reloads at 100 a second, a tenth of them broken, while passes go on.

    python bench/alarms.py [GUESTS [RELOADS [PER_SECOND]]]

Ends with 1 if an ordinary pass takes more than 10 ms of CPU, or an alarm is not raised or told in
time.
"""

from __future__ import annotations

import gc
import math
import queue
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from holdfast.alarms.engine import Engine, Prepared
from holdfast.alarms.rules import BadRules
from holdfast.alarms.rules_file import parse
from holdfast.alarms.tracks import FIRING
from holdfast.ports.metrics import GUEST, Entity, Reading, Snapshot, Table

FIELDS = 52
RULES = 20
PASSES = 50
PASSES_PER_S = 10
#: Of a pass in which all is quiet, or nearly.
LIMIT_MS = 10.0
#: By how much passes are not a second apart, and how many passes after its `for` an alarm is told
#: then: a tenth more than one, and what nobody can know of the next pass.
JITTERS = ((0.01, 1.15), (0.3, 1.5))
#: Guests of which each begins at some time to be in all alarms, and the longest `for` of one.
LATE_GUESTS, LONGEST_FOR_S = 200, 300
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
Number = Callable[[int, int], float]  # of a pass and a guest

NUMPY = """
import math, time, random, resource
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
rows = [{f"f{n}": random.random() for n in range(52)} for _ in range(%d)]
before = rss()
import numpy
print(f"{rss() - before:.0f}", end=" ")
took = []
for _ in range(50):
    began = time.perf_counter()
    for n in range(20):
        column = numpy.array([row.get(f"f{n}", math.nan) for row in rows])
        numpy.nonzero(~(column <= 0.99))[0].tolist()
    took.append(time.perf_counter() - began)
print(f"{sorted(took)[25] * 1e3:.1f}")
"""


def rules(level: float = 0.9, more: str = "for: 10s", count: int = RULES) -> str:
    lines = (
        f"  - {{id: r{n}, on: guest, field: f{n}, when: '> {level:g}', {more}}}"
        for n in range(count)
    )
    return "\n".join(("rules:", *lines))


@dataclass
class Site:
    guests: int
    pass_id: int = 0
    entities: list[Entity] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entities = [
            Entity(GUEST, f"u-{n}", f"g{n}", project=f"p{n % 20}", contracts={"f1": 1.0, "f3": 1.0})
            for n in range(self.guests)
        ]

    def snapshot(self, number: Number) -> Snapshot:
        self.pass_id += 1
        names = [f"f{n}" for n in range(FIELDS)]
        readings = []
        for place, entity in enumerate(self.entities):
            value = number(self.pass_id, place)
            values = (
                {}
                if math.isnan(value)
                else {name: value + n * 1e-9 for n, name in enumerate(names)}
            )
            readings.append(Reading(entity, values))
        at = BEGIN + timedelta(seconds=self.pass_id)
        table = Table(GUEST, readings)
        return Snapshot("cmp-7", self.pass_id, at, float(self.pass_id), 1.0, {GUEST: table})


def measure(name: str, site: Site, engine: Engine, number: Number, churn: int = 0) -> float:
    """The milliseconds of a processor that a pass takes."""
    took: list[float] = []
    busy: list[float] = []
    changes = told = 0
    for _ in range(PASSES):
        for _ in range(churn):
            old = site.entities.pop(0)
            site.entities.append(Entity(GUEST, f"{old.id}+", old.name, contracts=old.contracts))
        snapshot = site.snapshot(number)
        gc.collect()
        began, own = time.perf_counter(), time.thread_time()
        outcome = engine.evaluate(snapshot)
        took.append(time.perf_counter() - began)
        busy.append(time.thread_time() - own)
        changes += len(outcome.changes)
        told += sum(len(group.changes) for group in outcome.groups)
    own_ms, all_ms = (statistics.median(each[1:]) * 1e3 for each in (busy, took))
    most_ms = max(took[1:]) * 1e3
    print(
        f"{name:40} {own_ms:6.2f} ms CPU, {all_ms:6.2f} ms (slowest {most_ms:.1f}, first"
        f" {took[0] * 1e3:.1f}); {changes} changes, {told} told"
    )
    return own_ms


def passes(guests: int) -> bool:
    """Whether ordinary ones are within the limit."""
    print(f"a pass over {guests} guests x {FIELDS} fields with {RULES} rules")
    chance = random.Random(7)

    def quiet(_: int, place: int) -> float:
        return 0.5

    def some(number: int, place: int) -> float:
        return 0.95 if place % 100 == 0 else 0.5

    def all_of_them(number: int, place: int) -> float:
        return 0.95

    def unknown(number: int, place: int) -> float:
        return math.nan

    def wild(number: int, place: int) -> float:
        return chance.random()

    def growing(number: int, place: int) -> float:
        return number * 0.05

    plain = parse(rules(), "bench")
    ordinary_ms = max(
        measure("quiet", Site(guests), Engine(plain), quiet),
        measure("1 % in every alarm", Site(guests), Engine(plain), some),
    )
    good = ordinary_ms <= LIMIT_MS
    print(f"  of these two at most {ordinary_ms:.2f} ms CPU, limit {LIMIT_MS:g}: {word(good)}")
    measure("everybody in every alarm", Site(guests), Engine(plain), all_of_them)
    measure("nothing known of anybody", Site(guests), Engine(plain), unknown)
    measure("everybody at random, `for` 10 s", Site(guests), Engine(plain), wild)
    measure("quiet, 10 guests come and go each pass", Site(guests), Engine(plain), quiet, churn=10)
    print("all rules of one sort, quiet")
    for more in (
        "hits: 3 of 5",
        "burst: 30s",
        "contract: f1",
        "name: 'g*7'",
        "measure: rate, over: 1m",
    ):
        engine = Engine(parse(rules(more=more), "bench"))
        measure(f"  {more}", Site(guests), engine, quiet)
    full = "measure: time_to_full, over: 1h, full: 1000"
    engine = Engine(parse(rules(more=full).replace("> 0.9", "< 1m"), "bench"))
    measure("  time_to_full", Site(guests), engine, growing)
    rss, numpy = subprocess.run(
        [sys.executable, "-c", NUMPY % guests], capture_output=True, text=True, check=True
    ).stdout.split()
    print(f"  NumPy: only to make columns and compare them {numpy} ms, and {rss} MiB more memory")
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")
    return good


def word(good: bool) -> str:
    return "PASS" if good else "FAIL"


def punctual(jitter_s: float, most: float) -> bool:
    """Whether every alarm is raised within its `for` and one pass of the pass that saw it first,
    and none before; and whether it is told so soon too, its group and all. Passes are not a second
    apart: whole seconds would hide what rounding costs."""
    chance = random.Random(7)
    waits = {f"r{n}": chance.randint(1, LONGEST_FOR_S) for n in range(RULES)}
    lines = (
        f"  - {{id: {one}, on: guest, field: f, when: '> 0.9', for: {wait}s}}"
        for one, wait in waits.items()
    )
    engine = Engine(parse("\n".join(("storm: 10000", "rules:", *lines)), "bench"))
    guests = [Entity(GUEST, f"u-{n}", f"g{n}") for n in range(LATE_GUESTS)]
    begins = {one.id: chance.uniform(5.0, 100.0) for one in guests}
    seen: dict[str, float] = {}
    late: list[float] = []  # in passes
    told: list[float] = []
    now, number = 0.0, 0
    while now < 110 + LONGEST_FOR_S:
        step_s = chance.uniform(1 - jitter_s, 1 + jitter_s)
        now, number = now + step_s, number + 1
        for one in guests:
            if now >= begins[one.id]:
                seen.setdefault(one.id, now)
        readings = [Reading(one, {"f": 0.95 if one.id in seen else 0.5}) for one in guests]
        at, table = BEGIN + timedelta(seconds=now), Table(GUEST, readings)
        outcome = engine.evaluate(Snapshot("cmp-7", number, at, now, step_s, {GUEST: table}))
        groups = [one for group in outcome.groups for one in group.changes]
        for found, changes in ((late, outcome.changes), (told, groups)):
            found += [
                (now - seen[one.entity] - waits[one.rule]) / step_s
                for one in changes
                if one.state == FIRING
            ]
    wanted = RULES * LATE_GUESTS
    good = len(late) == len(told) == wanted and min(late) >= 0 and max(late) <= 1
    good = good and max(told) <= most
    print(
        f"{len(told)} of {wanted} alarms, `for` 1 to {LONGEST_FOR_S} s, passes 1 s +- {jitter_s:g}:"
        f" raised {min(late):.2f} to {max(late):.2f} passes after it, limit 0 to 1; told within"
        f" {max(told):.2f}, limit {most:g}: {word(good)}"
    )
    return good


class Owner(threading.Thread):
    """As the agent has it: one thread makes passes and puts rules in force between two of them."""

    def __init__(self, site: Site, engine: Engine) -> None:
        super().__init__(name="owner")
        self.inlet: queue.SimpleQueue[Prepared | None] = queue.SimpleQueue()
        self.pauses: list[float] = []
        self.busy: list[float] = []  # of the pauses, what was spent by the processor
        self.passes = self.lost = 0
        self.lag_s = 0.0
        self.engine = engine
        self._snapshots = [
            site.snapshot(lambda number, place: 0.95 if (place + number) % 100 == 0 else 0.4)
            for _ in range(20)
        ]

    def run(self) -> None:
        due = time.monotonic()
        while True:
            try:
                rule_set = self.inlet.get(timeout=max(0.0, due - time.monotonic()))
                if rule_set is None:
                    return
                began, own = time.perf_counter(), time.thread_time()
                self.engine.apply(rule_set)
                self.pauses.append(time.perf_counter() - began)
                self.busy.append(time.thread_time() - own)
            except queue.Empty:
                pass
            if time.monotonic() >= due:
                self.lag_s = max(self.lag_s, time.monotonic() - due)
                due += 1 / PASSES_PER_S
                self._take()

    def _take(self) -> None:
        self.passes += 1
        old = self._snapshots[self.passes % len(self._snapshots)]
        at = BEGIN + timedelta(seconds=1000 + self.passes / PASSES_PER_S)
        now = 1000 + self.passes / PASSES_PER_S
        snapshot = Snapshot(old.host, 1000 + self.passes, at, now, 1 / PASSES_PER_S, old.tables)
        self.lost += self.engine.evaluate(snapshot).dropped


def reloads(guests: int, count: int, per_s: float) -> None:
    print(f"{count} reloads at {per_s:g} a second, a tenth broken, {PASSES_PER_S} passes a second")
    chance = random.Random(7)
    owner = Owner(Site(guests), Engine(parse(rules(), "bench")))
    owner.start()
    read: list[float] = []
    refused = with_line = broken = 0
    due = began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / per_s
        text = rules(level=chance.choice((0.5, 0.6, 0.7, 0.8, 0.9)))
        if number % 10 == 3:
            broken += 1
            text = _broken(text, chance)
        started = time.thread_time()
        try:
            rule_set = parse(text, "bench", number)
        except BadRules as error:
            refused += 1
            with_line += error.problems[0].line > 0
            continue
        finally:
            read.append(time.thread_time() - started)
        owner.inlet.put(owner.engine.prepare(rule_set))
    took = time.monotonic() - began
    owner.inlet.put(None)
    owner.join()
    pauses = sorted(owner.pauses)
    print(
        f"  {took:.0f} s; {len(pauses)} in force, {refused} of {broken} broken refused, {with_line}"
        f" with a line; {owner.passes} passes, {owner.lost} lost, late by"
        f" {owner.lag_s * 1e3:.0f} ms at most"
    )
    print(
        f"  pause (promised: 1 ms): p50 {pauses[len(pauses) // 2] * 1e3:.3f}, p99.9"
        f" {pauses[int(len(pauses) * 0.999)] * 1e3:.3f}, longest {pauses[-1] * 1e3:.3f} ms, of CPU"
        f" {max(owner.busy) * 1e3:.3f} ms; reading {statistics.median(read) * 1e3:.1f} ms CPU"
    )


def _broken(text: str, chance: random.Random) -> str:
    wrong: Sequence[tuple[str, str]] = (
        ("when: '> ", "when: '~ "),
        ("for: 10s", "for: soon"),
        ("on: guest", "on: moon"),
        ("id: r7", "id: r6"),
        ("field: f9, ", ""),
        ("{id: r5", "{id: [r5"),
    )
    return text.replace(*chance.choice(wrong), 1)


def main() -> int:
    given = [float(one) for one in sys.argv[1:]]
    guests, count, per_s = (*given, *(1000, 10_000, 100)[len(given) :])
    good = [passes(int(guests)), *(punctual(*each) for each in JITTERS)]
    reloads(int(guests), int(count), per_s)
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
