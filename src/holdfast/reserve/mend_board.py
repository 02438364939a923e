# SPDX-License-Identifier: Apache-2.0
"""The plan as it grows: which need has which hosts, and what that leaves of each for the others.

Everything that is put here can be taken back to a mark, so that a search may try.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.model.host import Host
from holdfast.model.stock import Stock
from holdfast.model.timeline import FOREVER, Hold, peak
from holdfast.reserve.mend_free import Free
from holdfast.reserve.mend_need import How, Need
from holdfast.reserve.resources.slots_plan import capacity

#: So many hosts are looked at before one is taken; of those with room for slots, so many.
LOOK, LOOK_SLOTS = 32, 4
#: Of more stays on a host than that, those of a time are found by bisection.
MANY = 8
#: How many looks it counts for when the slots on a host are added up.
SLOTS_COST = 8
#: Where a need wants its hosts spread or packed, so many, from all over the house.
LOOK_ARRANGED = 400


@dataclass(eq=False)
class Job:
    """A need in the plan: its class (less is first), where it could be, what it has so far."""

    number: int
    need: Need
    rank: tuple[float, ...]
    free: Free
    soon: bool = False  # hosts that are not given back yet would keep it waiting
    has: dict[int, int] = field(default_factory=dict)  # units by host id
    places: Sequence[int] | None = None  # of `free`, those that the fewest want first

    @property
    def count(self) -> int:
        return sum(self.has.values())

    @property
    def is_whole(self) -> bool:
        return self.count >= self.need.units

    @property
    def missing(self) -> int:
        return self.need.units - self.count


#: From when, whose, until when.
_Stay = tuple[float, int, float, Job]


class Board:
    def __init__(self, stock: Stock, late: Collection[int] = ()) -> None:
        self.stock = stock
        self.late = late
        self.pressed: Mapping[int, int] = {}  # of each host, how many needs compete for it
        self.looked = 0  # how often a host was looked at: what a search may cost is counted so
        self._on: dict[int, list[_Stay]] = {}  # by host id, in the order of their starts
        self._longest = 0.0
        self._trail: list[tuple[Job, int, int]] = []
        self._rooms: dict[tuple[Job, int], int] = {}
        self._carries: dict[tuple[Job, int], bool] = {}

    # change, and take back

    def mark(self) -> int:
        return len(self._trail)

    def put(self, job: Job, host_id: int, units: int) -> None:
        """Give it so many units of that host; fewer than none takes them away."""
        self._trail.append((job, host_id, units))
        self._add(job, host_id, units)

    def back(self, mark: int) -> None:
        """As it was at that mark."""
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

    # look

    def places(self, job: Job) -> Sequence[int]:
        """Ids of hosts that have room for it, were it alone; those that the fewest want first, once
        it is known who competes."""
        return job.places if job.places is not None else job.free.ids()

    def is_used(self, host_id: int) -> bool:
        """Whether anybody of this plan is on that host at any time."""
        return bool(self._on.get(host_id))

    def others(self, job: Job, host_id: int) -> list[Job]:
        """Who of this plan is on that host in its time."""
        there = self._on.get(host_id)
        if not there:
            return []
        start, end = job.need.start, job.need.end
        if len(there) > MANY:
            first = bisect_left(there, (start - self._longest,))
            there = there[first : bisect_left(there, (end,))]
        return [one for s, _, e, one in there if s < end and start < e and one is not job]

    def room(self, job: Job, host_id: int) -> int:
        """How many more units of it fit there, of those it may have there."""
        self.looked += 1
        need, has = job.need, job.has.get(host_id, 0)
        if need.how is How.APART and has:
            return 0
        others = self.others(job, host_id)
        if need.size is None:
            return 0 if others else 1
        if not others:
            room = self._alone(job, host_id) - has
        elif any(one.need.size is None for one in others):
            return 0
        else:
            room = self._beside(job, host_id, others) - has
        return max(0, min(room, 1) if need.how is How.APART else room)

    def _alone(self, job: Job, host_id: int) -> int:
        known = self._rooms.get((job, host_id))
        if known is None:
            known = self._rooms[job, host_id] = self._beside(job, host_id, ())
        return known

    def _beside(self, job: Job, host_id: int, others: Iterable[Job]) -> int:
        """How many units fit there beside what these of the plan have."""
        self.looked += SLOTS_COST
        need, host = job.need, self.stock.hosts[host_id]
        holds = list(self.stock.line(host_id).within(need.start, need.end))
        if any(hold.takes is None for hold in holds):
            return 0
        self._carries[job, host_id] = bool(holds)
        holds += (_hold(one, one.has[host_id]) for one in others)
        taken, has = peak(_within(holds, need)), capacity(host)
        size = (need.size or {}).items()
        return min((has.get(name, 0) - taken.get(name, 0)) // amount for name, amount in size)

    # choose

    def find(
        self, job: Job, units: int, *, pressed: bool = False, first: bool = False
    ) -> dict[int, int]:
        """Where so many more units of it would go at best: host ids with units, perhaps fewer.
        `pressed`: where the fewest others want to be; `first`: not compared with many."""
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
        """Room by host id, the best host first; no more looked at than are enough."""
        arranged = job.need.arrange is not None and units < job.need.units + len(job.need.besides)
        enough = LOOK_ARRANGED if arranged else LOOK if job.need.size is None else LOOK_SLOTS
        if first:
            enough = 0
        ids = self.places(job)
        if arranged and not pressed and len(ids) > 2 * LOOK_ARRANGED:
            step = len(ids) // LOOK_ARRANGED
            ids = [host_id for at in range(step) for host_id in ids[at::step]]
        if job.need.size is not None and not pressed and len(ids) > LOOK:
            begin = self._first_with_room(job, ids)
            ids = [*ids[begin:], *ids[:begin]]
        alone, whole = job.need.how is How.TOGETHER, job.need.size is None
        found: dict[int, int] = {}
        total = 0
        for looked, host_id in enumerate(ids):
            if (looked if whole else len(found)) >= enough and total >= units:
                break
            room = self.room(job, host_id)
            if room:
                found[host_id] = room
                total = max(total, room) if alone else total + room
        keys = {host_id: self._key(job, host_id, room, pressed) for host_id, room in found.items()}
        return dict(sorted(found.items(), key=lambda one: keys[one[0]]))

    def _first_with_room(self, job: Job, ids: Sequence[int]) -> int:
        """About where to begin: the hosts before it were filled by who came before."""
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
        """What it leaves unused of the gap that it would lie in, less is better."""
        need = job.need
        before, after = self.stock.line(host_id).gap(need.start, need.end) or (need.start, need.end)
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
        hosts = self.stock.hosts
        kept = [hosts[one] for one in (*job.need.besides, *job.has) if one in hosts]
        chosen: Sequence[Host] = arrange(kept, [hosts[one] for one in ranked], units)
        return [host.id for host in chosen]


def _filled(rooms: dict[int, int], units: int) -> dict[int, int]:
    """On as few hosts as can be: where the rest fits and is tightest, else where most fits."""
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
    """Of each the part that lies in the window: what is before or after it does not count."""
    return [
        Hold(max(hold.start, need.start), min(hold.end, need.end), hold.takes) for hold in holds
    ]
