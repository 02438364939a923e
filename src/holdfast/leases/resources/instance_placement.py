# SPDX-License-Identifier: Apache-2.0
"""Placement of slots: choose hosts for slots, or say why there is no room.

Pure functions: no call, no clock. The free capacity of a host is its capacity (with allocation
ratios and reserved amounts) less the peak use of others in the window. Slots go to hosts that
carry slots already, and there to the tightest fit, so that whole hosts stay free. Of thousands
of hosts only a few are checked: full hosts come first, because earlier requests filled them in
the same order, and a bisection finds the first host with room.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

from holdfast.leases.placement import BY_ID, MOST_BUSY, Condition, Order, Refusal, matches
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.host import Host, Inventory
from holdfast.model.lease import Allocation, Window

#: Hosts compared at least, where this many have room: more hosts, tighter packing.
COMPARED = 64


@dataclass(frozen=True)
class Slot:
    """The size of a slot, and conditions on its host."""

    size: Mapping[str, int]  # by resource class, all above 0
    where: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        return _listed(self.size)

    def conditions(self, together: int) -> tuple[Condition, ...]:
        """Return the conditions on a host with `together` slots, whoever holds it."""
        need = {name: together * amount for name, amount in self.size.items()}
        single = f", {self} of them for one server" if together > 1 else ""

        def large(host: Host) -> bool:
            has = inventories(host)
            return all(
                name in has
                and has[name].capacity >= need[name]
                and (has[name].most or amount) >= amount
                for name, amount in self.size.items()
            )

        return (*self.where, Condition(f"has {_listed(need)}{single}", large))


@dataclass(frozen=True)
class SlotsRequest:
    """A request for slots: on one host (affinity true), on different hosts (false), or anywhere
    (None)."""

    slot: Slot
    amount: int
    affinity: bool | None
    held: Window
    kept: tuple[Allocation, ...] = ()  # already held: preferred
    must_keep: bool = False  # an active reservation never loses a slot
    order: Order = BY_ID

    def allocations(self, chosen: Mapping[int, int]) -> tuple[Allocation, ...]:
        """Return the allocations for a choice of slots per host."""
        size = self.slot.size.items()
        return tuple(
            Allocation(host_id, self.held, slots, {name: slots * n for name, n in size})
            for host_id, slots in chosen.items()
        )


def choose(request: SlotsRequest, snapshot: CapacitySnapshot) -> dict[int, int] | Refusal:
    """Choose slots by host id, held slots first; or return a refusal."""
    slots = SlotCapacity(request, snapshot)
    lost = slots.lost() if request.must_keep else ""
    if lost:
        ids = tuple(a.host_id for a in request.kept if a.host_id is not None)
        sentence = f"the lease is active and {lost} cannot stay with it in that window"
        return Refusal(sentence, busy=ids[:MOST_BUSY])
    chosen = _choice(slots)
    return chosen if sum(chosen.values()) >= request.amount else slots.refusal()


class SlotCapacity:
    """The free capacity of hosts in the window of a request; each host is read once at most."""

    def __init__(
        self, request: SlotsRequest, snapshot: CapacitySnapshot, hosts: Sequence[Host] | None = None
    ) -> None:
        self.request = request
        self._snapshot = snapshot
        self._start = request.held.start.timestamp()
        self._end = request.held.end.timestamp()
        self._rooms: dict[int, tuple[int, bool]] = {}
        self._wanted = request.slot.conditions(request.amount if request.affinity else 1)
        self.hosts = self._matching() if hosts is None else hosts

    def _matching(self) -> Sequence[Host]:
        hosts = self._snapshot.matching(self._wanted, self.suits)
        order = self.request.order
        if order is BY_ID or not hosts:
            return hosts
        begin = int(abs(order(hosts[0].id)) * 1_000_003) % len(hosts)  # begin elsewhere than rivals
        return [*hosts[begin:], *hosts[:begin]]

    def among(self, hosts: Sequence[Host]) -> "SlotCapacity":
        """Return a view restricted to these hosts."""
        return SlotCapacity(self.request, self._snapshot, hosts)

    def at(self, start: float) -> "SlotCapacity":
        """Return a view of the window that begins at `start`."""
        by = timedelta(seconds=start - self._start)
        window = Window(self.request.held.start + by, self.request.held.end + by)
        return SlotCapacity(replace(self.request, held=window), self._snapshot, self.hosts)

    def suits(self, host: Host) -> bool:
        return matches(host, self._wanted)

    def room(self, host: Host) -> int:
        """Return how many slots fit on the host for the whole window."""
        return self._at(host)[0]

    def carries(self, host: Host) -> bool:
        """Whether the host has slots of any lease in the window."""
        return self._at(host)[1]

    def give(self, host: Host) -> int:
        """Return how many of the requested slots the host can take."""
        room, request = self.room(host), self.request
        if request.affinity:
            return request.amount if room >= request.amount else 0
        return min(room, 1) if request.affinity is False else room

    def rooms(self) -> dict[int, int] | None:
        """Return the slots per host if too few; None if enough."""
        if sum(_choice(self).values()) >= self.request.amount:
            return None
        return {host.id: self.give(host) for host in self.hosts}

    def kept(self) -> Iterator[tuple[Host, Allocation]]:
        """Yield hosts whose slots of this reservation may stay."""
        for allocation in self.request.kept:
            host = self._snapshot.hosts.get(allocation.host_id or 0)
            if host is not None and (self.request.must_keep or self.suits(host)):
                yield host, allocation

    def lost(self) -> str:
        """Return the names of hosts of an active reservation that cannot keep its slots."""
        names = []
        for allocation in self.request.kept:
            host = self._snapshot.hosts.get(allocation.host_id or 0)
            if allocation.held.contains(self.request.held):
                continue  # already held for that time
            if host is None or self.room(host) < (allocation.slots or 0):
                names.append(host.name if host else allocation.host or "one of its hosts")
        return ", ".join(names)

    def candidates(self, wanted: int, besides: Mapping[int, int]) -> list[Host]:
        """List hosts with room, more than enough if possible; check no more hosts than that."""
        first = self._first_with_room()
        hosts: list[Host] = []
        total = 0
        for checked, host in enumerate(chain(self.hosts[first:], self.hosts[:first])):
            if checked >= COMPARED and total >= wanted:
                break
            more = self.give(host) - besides.get(host.id, 0)
            if more > 0:
                hosts.append(host)
                total += more
        return hosts

    def refusal(self) -> Refusal:
        request, left = self.request, list(self._snapshot.hosts.values())
        removed = []
        for condition in self._wanted:
            stays = [host for host in left if condition.test(host)]
            removed.append((condition.text, len(left) - len(stays)))
            left = stays
        removals = ", ".join(f"{text} removed {count}" for text, count in removed if count)
        where = {True: " on one host", False: " on hosts of their own", None: ""}
        room = sum(self.give(host) for host in left)
        sentence = (
            f"{request.amount} slots of {request.slot}{where[request.affinity]} asked for;"
            f" of {len(self._snapshot.hosts)} hosts {len(left)} match"
            f"{f' ({removals})' if removals else ''}"
            f" and have room for {room} in the window"
        )
        return Refusal(sentence, tuple(removed), len(left), room, self._in_the_way(left))

    def _in_the_way(self, hosts: Iterable[Host]) -> tuple[int, ...]:
        """List the hosts held in the window, in the order in which they become free."""
        until = (
            (self._snapshot.line(host.id).busy_until(self._start, self._end), host.id)
            for host in hosts
        )
        busy = ((end, host_id) for end, host_id in until if end is not None)
        return tuple(host_id for _end, host_id in heapq.nsmallest(MOST_BUSY, busy))

    def ends(self, host: Host, since: float, until: float) -> Iterable[float]:
        """Return the ends of holds on the host that touch this time."""
        return (hold.end for hold in self._snapshot.line(host.id).within(since, until))

    def _at(self, host: Host) -> tuple[int, bool]:
        if host.id not in self._rooms:
            peak = self._snapshot.line(host.id).peak(self._start, self._end)
            if peak is None:  # held as a whole
                self._rooms[host.id] = (0, False)
            else:
                has = capacity(host)
                free = (
                    (has.get(name, 0) - peak.get(name, 0)) // amount
                    for name, amount in self.request.slot.size.items()
                )
                self._rooms[host.id] = (max(0, min(free)), bool(peak))
        return self._rooms[host.id]

    def _first_with_room(self) -> int:
        """Return where to begin; hosts before this index are most likely full."""
        full, at, step, last = -1, 0, 1, len(self.hosts) - 1
        while at <= last and not self.give(self.hosts[at]):
            if at == last:
                return 0
            full, at, step = at, min(at + step, last), step * 2
        while at - full > 1:
            middle = (full + at) // 2
            if self.give(self.hosts[middle]):
                at = middle
            else:
                full = middle
        return at


def inventories(host: Host) -> Mapping[str, Inventory]:
    """Return the inventories of a host; without known inventories, its plain sizes."""
    if host.inventories:
        return host.inventories
    sizes = {"VCPU": host.vcpus, "MEMORY_MB": host.memory_mb, "DISK_GB": host.local_gb}
    return {name: Inventory(total=size) for name, size in sizes.items()}


def capacity(host: Host) -> Mapping[str, int]:
    return {name: inventory.capacity for name, inventory in inventories(host).items()}


def _listed(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))


def _choice(slots: SlotCapacity) -> dict[int, int]:
    """Choose slots by host id: as many as requested, or fewer."""
    if slots.request.affinity:
        return _together(slots)
    return _packed(slots) if slots.request.affinity is None else _spread(slots)


def _together(slots: SlotCapacity) -> dict[int, int]:
    """Put all on one host: the current host, else a host with slots, else the tightest."""
    request = slots.request
    kept = [host for host, _allocation in slots.kept() if slots.give(host)]
    if request.must_keep and request.kept:
        return {host.id: request.amount for host in kept[:1]} or _as_it_is(request)
    hosts = kept or slots.candidates(request.amount, {})
    if not hosts:
        return {}
    best = min(hosts, key=lambda h: (not slots.carries(h), slots.room(h), request.order(h.id)))
    return {best.id: request.amount}


def _spread(slots: SlotCapacity) -> dict[int, int]:
    """Put each slot on a different host."""
    request = slots.request
    chosen = _kept(slots)
    wanted = request.amount - len(chosen)
    if wanted > 0:
        hosts = slots.candidates(wanted, chosen)
        hosts.sort(key=lambda h: (not slots.carries(h), slots.room(h), request.order(h.id)))
        chosen.update({host.id: 1 for host in hosts[:wanted]})
    return chosen


def _packed(slots: SlotCapacity) -> dict[int, int]:
    """Fill hosts with slots of the reservation, then hosts with other slots, then empty hosts."""
    chosen = _kept(slots)
    wanted = slots.request.amount - sum(chosen.values())
    if wanted <= 0:
        return chosen
    hosts = slots.candidates(wanted, chosen)
    listed = {host.id for host in hosts}
    hosts += [h for h, _a in slots.kept() if h.id not in listed and slots.suits(h)]
    for group in (
        [host for host in hosts if host.id in chosen],
        [host for host in hosts if host.id not in chosen and slots.carries(host)],
        [host for host in hosts if host.id not in chosen and not slots.carries(host)],
    ):
        wanted -= _fill(slots, group, wanted, chosen)
    return chosen


def _fill(slots: SlotCapacity, hosts: list[Host], wanted: int, chosen: dict[int, int]) -> int:
    """Fill the largest hosts completely; the rest goes to the tightest fit. Return the number."""
    room = {host.id: max(0, slots.give(host) - chosen.get(host.id, 0)) for host in hosts}
    hosts.sort(key=lambda host: (-room[host.id], slots.request.order(host.id)))
    left = wanted
    for at, largest in enumerate(hosts):
        if not left or not room[largest.id]:
            break
        tightest = largest
        if room[largest.id] > left:
            enough = [host for host in hosts[at:] if room[host.id] >= left]
            tightest = min(enough, key=lambda h: (room[h.id], slots.request.order(h.id)))
        share = min(room[tightest.id], left)
        chosen[tightest.id] = chosen.get(tightest.id, 0) + share
        left -= share
    return wanted - left


def _kept(slots: SlotCapacity) -> dict[int, int]:
    """Return the slots that stay on their hosts."""
    request = slots.request
    if request.must_keep:
        return _as_it_is(request)
    chosen: dict[int, int] = {}
    left = request.amount
    for host, allocation in slots.kept():
        share = min(allocation.slots or 0, slots.give(host), left)
        if share:
            chosen[host.id] = share
            left -= share
    return chosen


def _as_it_is(request: SlotsRequest) -> dict[int, int]:
    return {a.host_id: a.slots or 0 for a in request.kept if a.host_id is not None}


# Openings for slots: a result is an offer, not a promise.
#
# Room appears only when a hold ends. So the room of a host a moment before is the most that it
# can have, unless a hold on it ends just then: most moments need a check of few hosts. Of
# thousands of hosts and moments only some are checked; each offer is valid all the same.


#: Hosts checked, moments checked, and checks in all.
MOST_HOSTS = 1000
MOST_MOMENTS = 2000
MOST_CHECKS = 50_000
#: Limits when the request fits at once: later openings are seldom needed.
FEW_HOSTS = 200
FEW_MOMENTS = 20
#: Moments are collected this many window lengths further on at a time; the first usually
#: suffice.
FURTHER = (1, 4, 16, 64, 256, 1024)
#: Leases begin on whole minutes.
MINUTE_S = 60.0


def openings(
    request: SlotsRequest, snapshot: CapacitySnapshot, until: datetime
) -> Iterator[Window]:
    """Yield fitting windows of the requested length: the first, and each after a time without
    room."""
    slots = SlotCapacity(request, snapshot)
    at_once = slots.rooms() is None
    if at_once:
        yield request.held
    hosts = _some(slots.hosts, FEW_HOSTS if at_once else max(MOST_HOSTS, 4 * request.amount))
    slots = slots.among(hosts)
    rooms = None if at_once else slots.rooms()  # None while it fits
    checks = 0
    for start, ends in _moments(slots, until, FEW_MOMENTS if at_once else MOST_MOMENTS):
        if checks > MOST_CHECKS:
            return
        slots = slots.at(start)
        checks += len(ends)
        if rooms is not None:
            rooms.update({host.id: slots.give(host) for host in ends})
            if sum(rooms.values()) < request.amount:
                continue
        before, rooms = rooms, slots.rooms()
        checks += len(hosts) if rooms else 0
        if rooms is None and (before is not None or not _fits(slots, start - MINUTE_S)):
            yield slots.request.held


def _some(hosts: Sequence[Host], most: int) -> Sequence[Host]:
    """Sample hosts evenly, `most` at most."""
    return hosts[:: -(-len(hosts) // most)] if len(hosts) > most else hosts


def _fits(slots: SlotCapacity, start: float) -> bool:
    return slots.at(start).rooms() is None


def _moments(
    slots: SlotCapacity, until: datetime, most: int
) -> Iterator[tuple[float, Sequence[Host]]]:
    """Yield the minutes at which holds end, in order, with the hosts of these holds."""
    window = slots.request.held
    since, last = window.start.timestamp(), until.timestamp()
    length, searched, count = window.end.timestamp() - since, since, 0
    for further in FURTHER:
        horizon = min(since + further * length, last)
        hostses: dict[float, list[Host]] = {}
        for host in slots.hosts:
            for end in slots.ends(host, searched, horizon):
                if searched < end <= horizon:
                    hostses.setdefault(-(-end // MINUTE_S) * MINUTE_S, []).append(host)
        for minute in heapq.nsmallest(most - count, hostses):
            yield minute, hostses[minute]
        count += len(hostses)
        searched = horizon
        if count >= most or horizon >= last:
            return
