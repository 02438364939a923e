# SPDX-License-Identifier: Apache-2.0
"""The growing repair plan: free hosts of each need, chosen hosts, and the capacity left for others.

A search can undo every change on the board back to a mark.
"""

import functools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.leases.placement import How, Need, matches
from holdfast.leases.resources.instance_placement import capacity
from holdfast.model.capacity import FOREVER, CapacitySnapshot, Hold, Line, peak
from holdfast.model.host import Host

# Free hosts of many needs at once.
#
# For each host all windows are checked at once, and the result is one bit per host and need:
# ten thousand of both take twelve megabytes. The search stops for a need that has more free
# hosts than all other needs together could take from it. Import this module only for a repair:
# it loads numpy.


#: Hosts checked before the search asks which needs have enough; a multiple of 8 (bits per
#: byte).
SOME = 256
#: Share of a hold on a whole host: more than any capacity.
_ALL = 1 << 40

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Free:
    """The free hosts of a need: matching hosts with room for a unit, as bits.

    `sure` counts the hosts that suffice on their own: for one unit, or for all units that go
    together.
    """

    matching: Sequence[int]
    bits: NDArray[np.uint8]
    sure: int

    @functools.cached_property
    def count(self) -> int:
        return int(np.count_nonzero(np.unpackbits(self.bits)))

    def ids(self) -> list[int]:
        """List the ids of the free hosts."""
        return [self.matching[place] for place in np.flatnonzero(np.unpackbits(self.bits)).tolist()]


def free_hosts(needs: Sequence[Need], snapshot: CapacitySnapshot) -> list[Free]:
    """Find the free hosts of each need, without the other needs."""
    frees: dict[int, Free] = {}
    enough = crowd(needs, range(len(needs)))
    for group in _alike(needs):
        where, size = needs[group[0]].where, needs[group[0]].size
        hosts = snapshot.matching(where, functools.partial(matches, wanted=where))
        frees.update(
            zip(group, _Group(needs, group, hosts, enough).search(snapshot, size), strict=True)
        )
    return [frees[index] for index in range(len(needs))]


def demand(frees: Sequence[Free]) -> Counter[int]:
    """Count for each host the needs with a free match there."""
    counts: Counter[int] = Counter()
    by_group: dict[int, tuple[Sequence[int], Numbers]] = {}
    for free in frees:
        ids, total = by_group.setdefault(
            id(free.matching), (free.matching, np.zeros(8 * len(free.bits), np.int64))
        )
        total += np.unpackbits(free.bits)
    for ids, total in by_group.values():
        for host_id, count in zip(ids, total.tolist(), strict=False):
            counts[host_id] += count
    return counts


def crowd(needs: Sequence[Need], among: Sequence[int]) -> Numbers:
    """Count for each need the hosts that overlapping needs could take, itself included."""
    starts = np.array([needs[index].start for index in among])
    ends = np.array([needs[index].end for index in among])
    spots = np.array([needs[index].spots for index in among], np.int64)
    by_start, by_end = np.argsort(starts), np.argsort(ends)
    begun = np.concatenate(([0], np.cumsum(spots[by_start])))
    over = np.concatenate(([0], np.cumsum(spots[by_end])))
    hosts: Numbers = (
        begun[np.searchsorted(starts[by_start], ends, side="left")]
        - over[np.searchsorted(ends[by_end], starts, side="right")]
    )
    return hosts


def _alike(needs: Sequence[Need]) -> Iterator[list[int]]:
    """Group needs with equal conditions and sizes, in the order of their ends."""
    groups: dict[Hashable, list[int]] = {}
    for index, need in enumerate(needs):
        size = None if need.size is None else tuple(sorted(need.size.items()))
        groups.setdefault((need.where, size), []).append(index)
    for group in groups.values():
        yield sorted(group, key=lambda index: needs[index].end)


class _Group:
    """Needs with equal conditions and sizes: which hosts each of them could have."""

    def __init__(
        self, needs: Sequence[Need], group: Sequence[int], hosts: Sequence[Host], enough: Numbers
    ) -> None:
        self._needs = [needs[index] for index in group]
        self._hosts = hosts
        self._starts = np.array([need.start for need in self._needs])
        self._ends = np.array([need.end for need in self._needs])
        #: Units that a host must have room for, to suffice on its own.
        self._together = np.array(
            [need.units if need.how is How.TOGETHER else 1 for need in self._needs]
        )
        more = [len(hosts) if need.arrange else len(need.besides) for need in self._needs]
        self._enough = enough[list(group)] + np.array(more)
        self._bits = np.zeros((len(group), -(-len(hosts) // 8)), np.uint8)
        self._sure = np.zeros(len(group), np.int64)

    def search(self, snapshot: CapacitySnapshot, size: Mapping[str, int] | None) -> Iterator[Free]:
        wanted = np.arange(len(self._needs))
        for at in range(0, len(self._hosts), SOME):
            rooms = self._rooms(self._hosts[at : at + SOME], wanted, snapshot, size)
            bits = np.packbits(rooms > 0, axis=0).T
            self._bits[wanted, at // 8 : at // 8 + bits.shape[1]] = bits
            self._sure[wanted] += np.count_nonzero(rooms >= self._together[wanted], axis=0)
            wanted = wanted[self._sure[wanted] < self._enough[wanted]]
            if not len(wanted):
                break
        ids = [host.id for host in self._hosts]
        place = {host_id: at for at, host_id in enumerate(ids)}
        for row, need in enumerate(self._needs):
            yield self._free(row, need, ids, place)

    def _free(self, row: int, need: Need, ids: Sequence[int], place: Mapping[int, int]) -> Free:
        bits, sure = self._bits[row], int(self._sure[row])
        for host_id in need.besides & place.keys():
            at = place[host_id]
            if bits[at // 8] & (128 >> at % 8):
                bits[at // 8] &= ~np.uint8(128 >> at % 8)
                sure -= 1
        return Free(ids, bits, max(0, sure))

    def _rooms(
        self,
        hosts: Sequence[Host],
        wanted: NDArray[np.intp],
        snapshot: CapacitySnapshot,
        size: Mapping[str, int] | None,
    ) -> Numbers:
        """Return by host and need how many units fit for the whole window."""
        starts, ends = self._starts[wanted], self._ends[wanted]
        rooms = np.zeros((len(hosts), len(wanted)), np.int64 if size else np.int8)
        for row, host in enumerate(hosts):
            line = snapshot.line(host.id)
            if size is None:
                rooms[row] = _is_free(line, starts, ends)
            else:
                rooms[row] = _room(line, host, size, starts, ends)
        return rooms


def _is_free(line: Line, starts: Times, ends: Times) -> NDArray[np.bool_]:
    if not len(line):
        return np.ones(len(starts), np.bool_)
    begins, latest = (np.frombuffer(edge) for edge in line.edges())
    following = np.searchsorted(begins, ends)
    free: NDArray[np.bool_] = (following == 0) | (latest[following - 1] <= starts)
    return free


def _room(line: Line, host: Host, size: Mapping[str, int], starts: Times, ends: Times) -> Numbers:
    has = capacity(host)
    most = max(0, min(has.get(name, 0) // amount for name, amount in size.items()))
    holds = list(line.within(float(starts.min()), float(ends.max())))
    if not holds or not most:
        return np.full(len(starts), most, np.int64)
    if all(hold.takes is None for hold in holds):
        return _is_free(line, starts, ends) * np.int64(most)
    changes = np.array([hold[1] for hold in holds] + [hold[0] for hold in holds])
    order = np.argsort(changes, kind="stable")  # at equal times, ends come first
    times = changes[order]
    left = np.full(len(times) + 1, most, np.int64)  # before the first change, and after each
    for name, amount in size.items():
        taken = np.array([_ALL if h.takes is None else h.takes.get(name, 0) for h in holds])
        after = np.cumsum(np.concatenate((-taken, taken))[order])
        left[1:] = np.minimum(left[1:], (has.get(name, 0) - after) // amount)
    first = np.searchsorted(times, starts, side="right")
    last = np.searchsorted(times, ends, side="left")
    return np.maximum(0, _least(left, first, last))


def _least(values: Numbers, first: NDArray[np.intp], last: NDArray[np.intp]) -> Numbers:
    """Return the minimum of values[first..last] for each pair."""
    levels, span = [values], 1
    while 2 * span <= len(values):
        level_below = levels[-1]
        longer = level_below.copy()
        longer[: len(values) - span] = np.minimum(level_below[:-span], level_below[span:])
        levels.append(longer)
        span *= 2
    table = np.stack(levels)
    level = np.log2(last - first + 1).astype(np.intp)
    minima: Numbers = np.minimum(table[level, first], table[level, last - (1 << level) + 1])
    return minima


#: Hosts checked before the search picks one; and of hosts with room for slots.
COMPARED, COMPARED_SLOTS = 32, 4
#: With more stays on a host than this, bisection finds those of a window.
MANY = 8
#: The cost of adding up the slots on a host, in host checks.
SLOTS_COST = 8
#: Hosts checked where a need wants its hosts spread or packed, sampled from all.
COMPARED_ARRANGED = 400


@dataclass(eq=False)
class Job:
    """A need in the plan: its class (lower is first), its free hosts, its chosen hosts."""

    number: int
    need: Need
    rank: tuple[float, ...]
    free: Free
    soon: bool = False  # a host that is not given back yet would delay it
    has: dict[int, int] = field(default_factory=dict)  # units by host id
    places: Sequence[int] | None = None  # the free hosts, least wanted first

    @property
    def count(self) -> int:
        return sum(self.has.values())

    @property
    def is_whole(self) -> bool:
        return self.count >= self.need.units

    @property
    def missing(self) -> int:
        return self.need.units - self.count


#: Start, number, end, job.
_Stay = tuple[float, int, float, Job]


class Board:
    def __init__(self, snapshot: CapacitySnapshot, late: Collection[int] = ()) -> None:
        self.snapshot = snapshot
        self.late = late
        self.pressed: Mapping[int, int] = {}  # needs that compete for each host
        self.checks = 0  # host checks so far: the cost limit of a search counts them
        self._on: dict[int, list[_Stay]] = {}  # by host id, in the order of their starts
        self._longest = 0.0
        self._trail: list[tuple[Job, int, int]] = []
        self._rooms: dict[tuple[Job, int], int] = {}
        self._carries: dict[tuple[Job, int], bool] = {}

    # Changes, and undo.

    def mark(self) -> int:
        return len(self._trail)

    def put(self, job: Job, host_id: int, units: int) -> None:
        """Give the need units of this host; a negative number takes them away."""
        self._trail.append((job, host_id, units))
        self._add(job, host_id, units)

    def back(self, mark: int) -> None:
        """Undo all changes since the mark."""
        while len(self._trail) > mark:
            job, host_id, units = self._trail.pop()
            self._add(job, host_id, -units)

    def clear(self, job: Job) -> None:
        for host_id, units in list(job.has.items()):
            self.put(job, host_id, -units)

    def _add(self, job: Job, host_id: int, units: int) -> None:
        before = job.has.get(host_id, 0)
        if before + units:
            job.has[host_id] = before + units
        else:
            del job.has[host_id]
        there = self._on.setdefault(host_id, [])
        stay = (job.need.start, job.number, job.need.end, job)
        if not before:
            insort(there, stay)
            self._longest = max(self._longest, job.need.end - job.need.start)
        elif not before + units:
            del there[bisect_left(there, stay)]

    # Queries.

    def places(self, job: Job) -> Sequence[int]:
        """List the free hosts of the need, least wanted first once the competition is known."""
        return job.places if job.places is not None else job.free.ids()

    def is_used(self, host_id: int) -> bool:
        """Whether the plan uses the host at any time."""
        return bool(self._on.get(host_id))

    def others(self, job: Job, host_id: int) -> list[Job]:
        """List the needs of the plan on this host in the same time."""
        there = self._on.get(host_id)
        if not there:
            return []
        start, end = job.need.start, job.need.end
        if len(there) > MANY:
            first = bisect_left(there, (start - self._longest,))
            there = there[first : bisect_left(there, (end,))]
        return [other for s, _, e, other in there if s < end and start < e and other is not job]

    def room(self, job: Job, host_id: int) -> int:
        """Return how many more units of the need fit on the host."""
        self.checks += 1
        need, has = job.need, job.has.get(host_id, 0)
        if need.how is How.APART and has:
            return 0
        others = self.others(job, host_id)
        if need.size is None:
            return 0 if others else 1
        if not others:
            room = self._alone(job, host_id) - has
        elif any(other.need.size is None for other in others):
            return 0
        else:
            room = self._beside(job, host_id, others) - has
        return max(0, min(room, 1) if need.how is How.APART else room)

    def _alone(self, job: Job, host_id: int) -> int:
        room = self._rooms.get((job, host_id))
        if room is None:
            room = self._rooms[job, host_id] = self._beside(job, host_id, ())
        return room

    def _beside(self, job: Job, host_id: int, others: Iterable[Job]) -> int:
        """Return how many units fit beside these needs of the plan."""
        self.checks += SLOTS_COST
        need, host = job.need, self.snapshot.hosts[host_id]
        holds = list(self.snapshot.line(host_id).within(need.start, need.end))
        if any(hold.takes is None for hold in holds):
            return 0
        self._carries[job, host_id] = bool(holds)
        holds += (_hold(other, other.has[host_id]) for other in others)
        taken, has = peak(_within(holds, need)), capacity(host)
        size = (need.size or {}).items()
        return min((has.get(name, 0) - taken.get(name, 0)) // amount for name, amount in size)

    # Choice.

    def find(
        self, job: Job, units: int, *, pressed: bool = False, first: bool = False
    ) -> dict[int, int]:
        """Choose hosts for more units: host ids with units, perhaps fewer than asked.

        `pressed`: prefer hosts that the fewest other needs want. `first`: do not compare many
        hosts.
        """
        rooms = self._candidates(job, units, pressed, first)
        need = job.need
        if need.how is How.APART:
            return dict.fromkeys(self._arranged(job, list(rooms), units)[:units], 1)
        if need.how is How.TOGETHER:
            if job.has:
                rooms = {host_id: room for host_id, room in rooms.items() if host_id in job.has}
            best = max(rooms, key=lambda host_id: min(rooms[host_id], units), default=None)
            return {} if best is None else {best: min(rooms[best], units)}
        return _filled(rooms, units)

    def _candidates(self, job: Job, units: int, pressed: bool, first: bool) -> dict[int, int]:
        """Return room by host id, best host first; check no more hosts than needed."""
        arranged = job.need.arrange is not None and units < job.need.units + len(job.need.besides)
        enough = (
            COMPARED_ARRANGED if arranged else COMPARED if job.need.size is None else COMPARED_SLOTS
        )
        if first:
            enough = 0
        ids = self.places(job)
        if arranged and not pressed and len(ids) > 2 * COMPARED_ARRANGED:
            step = len(ids) // COMPARED_ARRANGED
            ids = [host_id for at in range(step) for host_id in ids[at::step]]
        if job.need.size is not None and not pressed and len(ids) > COMPARED:
            begin = self._first_with_room(job, ids)
            ids = [*ids[begin:], *ids[:begin]]
        alone, whole = job.need.how is How.TOGETHER, job.need.size is None
        rooms: dict[int, int] = {}
        total = 0
        for checked, host_id in enumerate(ids):
            if (checked if whole else len(rooms)) >= enough and total >= units:
                break
            room = self.room(job, host_id)
            if room:
                rooms[host_id] = room
                total = max(total, room) if alone else total + room
        keys = {host_id: self._key(job, host_id, room, pressed) for host_id, room in rooms.items()}
        return dict(sorted(rooms.items(), key=lambda item: keys[item[0]]))

    def _first_with_room(self, job: Job, ids: Sequence[int]) -> int:
        """Estimate where to begin: needs before this one have filled the hosts before it."""
        at, step = 0, 1
        while at < len(ids) and not self.room(job, ids[at]):
            at, step = at + step, step * 2
        return max(0, at - step // 4) if at < len(ids) else 0

    def _key(self, job: Job, host_id: int, room: int, pressed: bool) -> tuple[float, ...]:
        late = job.soon and host_id in self.late
        press = self.pressed.get(host_id, 0) if pressed else 0
        if job.need.size is None:
            rest = self._rest(job, host_id)
            return (late, rest[1] > 0, rest[0] > 0, press, *rest, host_id)
        carries = self._carries.get((job, host_id)) or bool(self.others(job, host_id))
        return (late, press, not carries, room, host_id)

    def _rest(self, job: Job, host_id: int) -> tuple[float, float]:
        """Return the unused rest of the gap around the need; less is better."""
        need = job.need
        before, after = self.snapshot.line(host_id).gap(need.start, need.end) or (
            need.start,
            need.end,
        )
        for start, _number, end, _job in self._on.get(host_id, ()):
            if end <= need.start:
                before = max(before, end)
            elif start >= need.end:
                after = min(after, start)
        left, right = need.start - before, after - need.end
        if left == right == FOREVER:
            return FOREVER, FOREVER
        return min(left, right), left + right

    def _arranged(self, job: Job, ranked: list[int], units: int) -> list[int]:
        arrange = job.need.arrange
        if arrange is None or len(ranked) <= units:
            return ranked
        hosts = self.snapshot.hosts
        kept = [hosts[host_id] for host_id in (*job.need.besides, *job.has) if host_id in hosts]
        chosen: Sequence[Host] = arrange(kept, [hosts[host_id] for host_id in ranked], units)
        return [host.id for host in chosen]


def _filled(rooms: dict[int, int], units: int) -> dict[int, int]:
    """Fill as few hosts as possible: the tightest host that fits the rest, else the roomiest."""
    chosen: dict[int, int] = {}
    while units and rooms:
        fits = [host_id for host_id, room in rooms.items() if room >= units]
        best = fits[0] if fits else max(rooms, key=rooms.__getitem__)
        chosen[best] = min(units, rooms.pop(best))
        units -= chosen[best]
    return chosen


def _hold(job: Job, units: int) -> Hold:
    size = (job.need.size or {}).items()
    return Hold(job.need.start, job.need.end, {name: units * amount for name, amount in size})


def _within(holds: Iterable[Hold], need: Need) -> list[Hold]:
    """Clip the holds to the window of the need; time outside does not count."""
    return [
        Hold(max(hold.start, need.start), min(hold.end, need.end), hold.takes) for hold in holds
    ]
