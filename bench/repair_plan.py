# SPDX-License-Identifier: Apache-2.0
"""How long it takes to plan the repair of very many reservations, and how good the plan is.

Of 10,000 hosts 200 fail at once, with 10,000 future reservations on them. Pure: no database, no
cloud, one thread; writing the plan is another matter. Then houses whose free room is exactly what
is asked for, so that the best possible is known: everybody is made whole.

    python bench/repair_plan.py [HOSTS [FAILED [RESERVATIONS]]]
"""

from __future__ import annotations

import gc
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from bench.plan_scale import DAY, HOUR, NOW, holds, host
from holdfast.leases.repair_planner import AffectedReservation, RepairPlan, plan_repair
from holdfast.leases.resources.base import Resource
from holdfast.leases.resources.host import HostResource
from holdfast.leases.resources.instance import InstanceResource
from holdfast.leases.resources.instance_placement import capacity
from holdfast.model.capacity import CapacitySnapshot, Hold, Line, hold_of, too_much
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.ledger import Ledger

RESOURCES: dict[str, Resource] = {one.type: one for one in (HostResource(), InstanceResource())}
BEGAN = datetime.fromtimestamp(NOW, UTC)


class NothingLate:
    """All that a plan asks of the book: no host is late."""

    def late_hosts(self) -> set[int]:
        return set()


LEDGER = cast(Ledger, NothingLate())


@dataclass(frozen=True)
class Scene:
    """A house: how full, of what, and what is lost in it."""

    name: str
    load: float
    slots: float  # the share of hosts, and of reservations, that have slots


SCENES = (
    Scene("whole hosts, 80 % held", 0.8, 0),
    Scene("slots, 80 % held", 0.8, 1),
    Scene("half and half, 80 % held", 0.8, 0.5),
    Scene("whole hosts, 99 % held", 0.99, 0),
    Scene("half and half, 99 % held", 0.99, 0.5),
)


def lines(scene: Scene, count: int) -> Iterator[tuple[int, Line]]:
    chance = random.Random(count)
    for number in range(1, count + 1):
        held = holds(chance, scene.load)
        if chance.random() < scene.slots:
            held = [one for hold in held for one in _parts(chance, hold, scene.load)]
        yield number, Line(held)


def _parts(chance: random.Random, hold: Hold, load: float) -> Iterator[Hold]:
    """Slots of one size after the other until so much of the host is taken."""
    if chance.random() < 0.5:  # as many holds as whole hosts have
        vcpus = min(64, int(64 * load * chance.uniform(0.9, 1.1)))
        yield Hold(hold.start, hold.end, {"VCPU": vcpus, "MEMORY_MB": vcpus * 4000})


def spec_of_hosts(chance: random.Random) -> dict[str, Any]:
    said = chance.choice(
        [
            "",
            "",
            "",
            '[">=", "$gpu", "4"]',
            '["==", "$gpu", "7"]',
            '["==", "$availability_zone", "az1"]',
        ]
    )
    spread = {"spread": "rack"} if chance.random() < 0.1 else {}
    return {"min": 1, "max": 9, "resource_properties": said, **spread}


def spec_of_slots(chance: random.Random) -> dict[str, Any]:
    vcpus = chance.choice((2, 4, 8, 16))
    affinity = chance.choice((True, False, None, None))
    return {
        "vcpus": vcpus, "memory_mb": vcpus * 4000, "disk_gb": 0, "amount": 9,
        "affinity": affinity, "resource_properties": "",
    }  # fmt: skip


def hurts(scene: Scene, failed: Sequence[int], count: int) -> list[AffectedReservation]:
    """On each failed host one reservation after the other, of a few hours to a day; some lost two
    hosts at once."""
    chance = random.Random(1)
    found: list[AffectedReservation] = []
    while len(found) < count:
        for one, other in zip(failed, [*failed[1:], failed[0]], strict=True):
            start = NOW + len(found) // len(failed) * 12 * HOUR + chance.randrange(0, 8) * HOUR
            held = window(start, start + chance.choice((1, 2, 4, 4, 8, 24)) * HOUR)
            if chance.random() < scene.slots:
                spec, units = spec_of_slots(chance), chance.choice((1, 1, 2, 4))
                takes = {"VCPU": units * spec["vcpus"], "MEMORY_MB": units * spec["memory_mb"]}
                lost = [Allocation(one, held, units, takes)]
                found.append(hurt(len(found), "virtual:instance", spec, lost))
            else:
                both = [one, other] if chance.random() < 0.1 else [one]
                lost = [Allocation(host_id, held) for host_id in both]
                found.append(hurt(len(found), "physical:host", spec_of_hosts(chance), lost))
    return found[:count]


def window(start: float, end: float) -> Window:
    return Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))


def hurt(
    number: int, kind: str, spec: dict[str, Any], lost: Sequence[Allocation]
) -> AffectedReservation:
    held = lost[0].held
    status = "active" if held.start <= BEGAN else "pending"
    reservation = Reservation(f"r{number:05d}", kind, status, spec=spec, allocations=tuple(lost))
    lease = Lease(f"l{number:05d}", "", "", "p", held.start, held.end, reservations=(reservation,))
    return AffectedReservation(lease, reservation, tuple(lost))


# measure


def measure(name: str, house: CapacitySnapshot, asked: Sequence[AffectedReservation]) -> RepairPlan:
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own, began = time.thread_time(), time.monotonic()
    plan = plan_repair(asked, house, RESOURCES, LEDGER, BEGAN)
    own, took = time.thread_time() - own, time.monotonic() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    wrong = wrongs(house, plan)
    print(
        f"  {name:28} {own:5.1f} s of its own, {took:5.1f} s on the wall, {more:4.0f} MiB more;"
        f" {plan}; {wrong} double bookings"
    )
    return plan


def wrongs(house: CapacitySnapshot, plan: RepairPlan) -> int:
    """Hosts on which the plan and everybody's holds cannot all be."""
    more: dict[int, list[Hold]] = {}
    for one in plan.results:
        for allocation in one.replacements:
            more.setdefault(cast(int, allocation.host_id), []).append(hold_of(allocation))
    return sum(
        too_much(capacity(house.hosts[host_id]), [*house.line(host_id), *planned])
        for host_id, planned in more.items()
    )


# houses with just enough room


def just_enough(
    count: int, kinds: int, seed: int
) -> tuple[CapacitySnapshot, list[AffectedReservation]]:
    """Every free hour of every host is asked for by somebody who could have it, and by hosts'
    kinds: each reservation can use one, two or all kinds."""
    chance = random.Random(seed)
    hosts = {number: host(number) for number in range(1, count + 1)}
    of_kind = [str(kind) for kind in range(kinds)]
    held: dict[int, Line] = {}
    wanted: list[AffectedReservation] = []
    for number in hosts:
        at, mine = NOW, []
        while at < NOW + 4 * DAY:
            end = at + chance.choice((2, 4, 6, 8, 12)) * HOUR
            if chance.random() < 0.5:
                mine.append(Hold(at, end))
            else:
                kind = str(number % 8 % kinds)
                some = sorted({kind, *chance.sample(of_kind, chance.choice((0, 1, kinds - 1)))})
                said = json.dumps(["in", "$kind", *some])
                spec = {"min": 1, "max": 1, "resource_properties": said}
                lost = [Allocation(0, window(at, end))]
                wanted.append(hurt(len(wanted), "physical:host", spec, lost))
            at = end
        held[number] = Line([*mine, Hold(at, FAR)])
    chance.shuffle(wanted)
    return CapacitySnapshot({n: _of_kind(n, kinds) for n in hosts}, held), wanted


FAR = NOW + 1000 * DAY


def _of_kind(number: int, kinds: int) -> Any:
    from dataclasses import replace

    return replace(host(number), capabilities={"kind": str(number % 8 % kinds)})


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    count, broken, lost = (*given, *(10_000, 200, 10_000)[len(given) :])
    print(f"{count} hosts, {broken} fail with {lost} reservations on them:")
    for scene in SCENES:
        failed = range(1, broken + 1)
        house = CapacitySnapshot(
            {n: host(n) for n in range(1, count + 1)}, dict(lines(scene, count))
        )
        measure(scene.name, house.excluding_hosts(failed), hurts(scene, failed, lost))
    print("houses with just enough room, where the best possible is that everybody is whole:")
    for size in (10, 100, 500):
        house, wanted = just_enough(size, 4, seed=size)
        plan = measure(f"{size} hosts", house, wanted)
        print(f"    {plan.whole / len(wanted):.1%} of the best possible")


if __name__ == "__main__":
    main()
