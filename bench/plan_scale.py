# SPDX-License-Identifier: Apache-2.0
"""How long planning and finding openings take as the house grows, and what the snapshot weighs.

Pure: no database, no cloud, one thread; its own time counts, not what else runs on the machine.
Between two questions some hosts are booked, as they are in life. Then the same requests are booked
by best fit and by first fit, and the share that each had to refuse is printed.

    python bench/plan_scale.py [HOSTS …]
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import psutil

from holdfast.leases.openings import openings
from holdfast.leases.placement import Choice, HostRequest, choose, conditions
from holdfast.model.capacity import CapacitySnapshot, Hold, Line
from holdfast.model.host import Host, Inventory

HOUR = 3600.0
DAY = 24 * HOUR
HOLDS = 100
NOW = 1_900_000_000.0 // DAY * DAY
ASKED = 100
#: Hosts that are booked between two questions.
BOOKED = 5
TRACES = 3
REQUESTS = 1_000


def host(number: int) -> Host:
    name = f"cmp-{number:05d}"
    inventories = {
        "VCPU": Inventory(64),
        "MEMORY_MB": Inventory(262_144, 512),
        "DISK_GB": Inventory(2000),
    }
    return Host(
        number,
        f"00000000-0000-0000-0000-{number:012d}",
        name,
        name,
        name,
        zone=f"az{number % 3}",
        rack=f"r{number % 40}",
        vcpus=64,
        memory_mb=262_144,
        local_gb=2000,
        enrolled=True,
        reservable=True,
        capabilities={"gpu": str(number % 8)},
        inventories=inventories,
    )


def holds(chance: random.Random, load: float) -> list[Hold]:
    """One after the other from now on, on whole minutes; so that `load` of the time is held."""
    at, found = NOW - chance.uniform(0, DAY), []
    for _ in range(HOLDS):
        length = _minutes(chance.lognormvariate(1.6, 1.0) * HOUR)
        found.append(Hold(at := _minutes(at), at + length))
        pause = chance.expovariate(1 / (length * (1 - load) / load)) if chance.random() < 0.7 else 0
        at += length + pause
    return found


def _minutes(seconds: float) -> float:
    return max(60.0, seconds // 60 * 60)


def snapshot(count: int, load: float = 0.8) -> CapacitySnapshot:
    chance = random.Random(count)
    hosts = {number: host(number) for number in range(1, count + 1)}
    lines = {number: Line(holds(chance, load)) for number in hosts}
    return CapacitySnapshot(hosts, lines)


@dataclass(frozen=True)
class Kind:
    """A kind of request: how many hosts, how long, how far ahead it begins."""

    name: str
    amounts: tuple[int, int]
    lengths: tuple[float, float]
    spec: dict[str, object]

    def draw(self, chance: random.Random) -> HostRequest:
        amount = chance.randint(*self.amounts)
        start = NOW + _minutes(chance.uniform(0, 14 * DAY))
        end = start + _minutes(chance.uniform(*self.lengths))
        return HostRequest(
            amount, amount + chance.randint(0, 3), start, end, conditions(self.spec), now=NOW
        )


KINDS = (
    Kind("1 host, hours", (1, 1), (HOUR, 8 * HOUR), {}),
    Kind("1-20 hosts, days", (1, 20), (DAY, 10 * DAY), {}),
    Kind("1-8 with gpu >= 6", (1, 8), (HOUR, 4 * DAY), {"capabilities": {"gpu": ">= 6"}}),
    Kind("a tenth of the house", (0, 0), (HOUR, 4 * HOUR), {}),
    Kind("half the house", (0, 0), (HOUR, 4 * HOUR), {}),
)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of this thread; what else runs on the machine does not count."""
    began = time.thread_time()
    action()
    return (time.thread_time() - began) * 1000


def of_house(kind: Kind, count: int) -> Kind:
    parts = {"a tenth of the house": 10, "half the house": 2}
    part = count // parts[kind.name] if kind.name in parts else 0
    return replace(kind, amounts=(part, part)) if part else kind


def measure(count: int) -> dict[str, tuple[float, float]]:
    """Medians of planning and of finding openings, by kind; prints as it goes."""
    before = weight()
    house = snapshot(count)
    print(f"{count} hosts x {HOLDS} holds: the snapshot weighs {weight() - before:.0f} MiB")
    everywhere = HostRequest(1, 1, NOW, NOW + HOUR, now=NOW)
    print(f"  the first openings {timed(lambda: openings(everywhere, NOW, house, 1)):.1f} ms")
    found: dict[str, tuple[float, float]] = {}
    for kind in KINDS:
        chance = random.Random(1)
        asked = [of_house(kind, count).draw(chance) for _ in range(ASKED)]
        met, plans, looks = 0, [], []
        for one in asked:
            book(house, chance)
            plans.append(timed(lambda one=one: choose(one, house)))
            book(house, chance)
            looks.append(timed(lambda one=one: openings(one, one.start + 60 * DAY, house, 5)))
            met += isinstance(choose(one, house), Choice)
        print(
            f"  {kind.name:21} plan {said(plans)}; openings {said(looks)};"
            f" {met / len(asked):.0%} fit as asked"
        )
        found[kind.name] = statistics.median(plans), statistics.median(looks)
    print(f"  with what was kept to answer it weighs {weight() - before:.0f} MiB")
    return found


def weight() -> float:
    """MiB of this process."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def book(house: CapacitySnapshot, chance: random.Random) -> None:
    """Some hosts get another line, with as many holds."""
    assert isinstance(house.lines, dict)
    for host_id in chance.sample(list(house.hosts), BOOKED):
        house.lines[host_id] = Line(list(house.lines[host_id]))


def said(values: Sequence[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):5.2f} p99 {p99:6.2f} ms"


# how many requests are refused


@dataclass
class House:
    """Hosts that are booked one request after the other."""

    snapshot: CapacitySnapshot
    lines: dict[int, Line]

    @classmethod
    def empty(cls, count: int) -> House:
        lines: dict[int, Line] = {}
        return cls(CapacitySnapshot({n: host(n) for n in range(1, count + 1)}, lines), lines)

    def book(self, ids: Sequence[int], request: HostRequest) -> None:
        for host_id in ids:
            line = self.lines.get(host_id, Line())
            left = (hold for hold in line if hold.end > request.now)
            self.lines[host_id] = Line([*left, Hold(request.start, request.end)])


def best_fit(request: HostRequest, snapshot: CapacitySnapshot) -> Sequence[int]:
    answer = choose(request, snapshot)
    return answer.host_ids if isinstance(answer, Choice) else ()


def first_fit(request: HostRequest, snapshot: CapacitySnapshot) -> Sequence[int]:
    free = [i for i in snapshot.hosts if snapshot.line(i).is_free(request.start, request.end)]
    return free[: request.high] if len(free) >= request.low else ()


def trace(seed: int, count: int) -> Iterator[HostRequest]:
    """Requests as they come in, booked up to two weeks ahead, more than there is room for."""
    chance = random.Random(seed)
    now = NOW
    for _ in range(count):
        now += chance.expovariate(1 / (0.9 * HOUR))
        start = _minutes(now + chance.uniform(0, 14 * DAY))
        length = max(HOUR, chance.lognormvariate(2.6, 1.0) * HOUR // 1800 * 1800)
        amount = chance.choice((1, 1, 1, 2, 2, 4, 8))
        yield HostRequest(amount, amount, start, start + length, now=now)


def refused(
    fit: Callable[[HostRequest, CapacitySnapshot], Sequence[int]], seed: int
) -> tuple[float, float]:
    """Of the requests, and of the host-hours asked for, the share that could not be had."""
    house, no, hours_no, hours = House.empty(60), 0, 0.0, 0.0
    for request in trace(seed, REQUESTS):
        ids = fit(request, house.snapshot)
        size = request.low * (request.end - request.start)
        hours += size
        if ids:
            house.book(ids, request)
        else:
            no, hours_no = no + 1, hours_no + size
    return no / REQUESTS, hours_no / hours


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [100, 1_000, 10_000]
    medians = [measure(count) for count in counts]
    for (small, one), (large, other) in pairwise(zip(counts, medians, strict=True)):
        plan, look = (
            statistics.median(other[k.name][i] / one[k.name][i] for k in KINDS) for i in (0, 1)
        )
        print(f"{large / small:.0f} x the hosts: plan {plan:.1f} x, openings {look:.1f} x")
    print(f"{TRACES} x {REQUESTS} requests for 60 hosts; refused of requests and of host-hours:")
    for name, fit in (("first fit", first_fit), ("best fit", best_fit)):
        shares = [refused(fit, seed) for seed in range(TRACES)]
        of_requests, of_hours = (statistics.mean(column) for column in zip(*shares, strict=True))
        print(f"  {name:9} {of_requests:.2%}, {of_hours:.2%}")


if __name__ == "__main__":
    main()
