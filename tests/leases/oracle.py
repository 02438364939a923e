# SPDX-License-Identifier: Apache-2.0
"""A second opinion on who may hold what: a list of holds and brute force, nothing clever.

The model-based test asks it whether a request can be had before it asks the house. Times are whole
minutes since the beginning; `takes` None is the whole host, as everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Minutes = tuple[float, float]
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


@dataclass(frozen=True)
class Hold:
    lease: str
    host: int | None
    span: Minutes
    takes: Mapping[str, int] | None = None
    thing: str | None = None


def meet(one: Minutes, other: Minutes) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@dataclass
class Oracle:
    """Hosts with their capacity, addresses, and everybody's holds."""

    hosts: dict[int, Mapping[str, int]] = field(default_factory=dict)
    things: set[str] = field(default_factory=set)
    holds: list[Hold] = field(default_factory=list)

    def without(self, lease: str) -> Oracle:
        return replace(self, holds=[hold for hold in self.holds if hold.lease != lease])

    def free(self, span: Minutes) -> set[int]:
        """Hosts that nobody holds any of at any moment of the span."""
        busy = {hold.host for hold in self.holds if meet(hold.span, span)}
        return self.hosts.keys() - busy

    def room(self, host: int, span: Minutes, size: Mapping[str, int]) -> int:
        """How many slots of that size the host has left throughout the span."""
        touching = [h for h in self.holds if h.host == host and meet(h.span, span)]
        if any(hold.takes is None for hold in touching):
            return 0
        left: list[int] = []
        for moment in {span[0], *(h.span[0] for h in touching if span[0] <= h.span[0] < span[1])}:
            at_once = [h.takes or {} for h in touching if h.span[0] <= moment < h.span[1]]
            for name, amount in size.items():
                taken = sum(takes.get(name, 0) for takes in at_once)
                left.append((self.hosts[host].get(name, 0) - taken) // amount)
        return max(0, min(left))

    def slots(self, span: Minutes, size: Mapping[str, int], affinity: bool | None) -> int:
        """How many slots there are in all: on one host, on different hosts, or anywhere."""
        rooms = [self.room(host, span, size) for host in self.hosts]
        if affinity is True:
            return max(rooms, default=0)
        if affinity is False:
            return sum(1 for room in rooms if room)
        return sum(rooms)

    def free_things(self, span: Minutes) -> set[str]:
        return self.things - {h.thing for h in self.holds if h.thing and meet(h.span, span)}

    def wrongs(self) -> Iterator[str]:
        """What no book may say."""
        for index, one in enumerate(self.holds):
            for other in self.holds[index + 1 :]:
                if not meet(one.span, other.span):
                    continue
                if one.thing is not None and one.thing == other.thing:
                    yield f"held twice: {one} and {other}"
                whole = one.takes is None or other.takes is None
                if one.host is not None and one.host == other.host and whole:
                    yield f"two owners: {one} and {other}"
        for host, capacity in self.hosts.items():
            mine = [hold for hold in self.holds if hold.host == host and hold.takes is not None]
            for moment in {hold.span[0] for hold in mine}:
                yield from self._sold_out(host, capacity, mine, moment)

    def _sold_out(
        self, host: int, capacity: Mapping[str, int], mine: Collection[Hold], moment: float
    ) -> Iterator[str]:
        at_once = [hold for hold in mine if hold.span[0] <= moment < hold.span[1]]
        for name in CLASSES:
            taken = sum((hold.takes or {}).get(name, 0) for hold in at_once)
            if taken > capacity.get(name, 0):
                yield f"host {host} has {capacity.get(name, 0)} {name}, sold are {taken}: {at_once}"


def size_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """What one slot takes of a host."""
    return {
        "VCPU": int(spec["vcpus"]),
        "MEMORY_MB": int(spec["memory_mb"]),
        "DISK_GB": int(spec["disk_gb"]),
    }
