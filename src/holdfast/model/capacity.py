# SPDX-License-Identifier: Apache-2.0
"""Capacity over time, in memory: hosts, the holds on each host, and the peak use of a window.

`CapacitySnapshot` proposes; the transaction that books decides. Times are seconds since 1970,
so that a million holds take a few dozen megabytes.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.host import Host
from holdfast.model.lease import Allocation
from holdfast.model.segment import Spare

if TYPE_CHECKING:
    from holdfast.model.gaps import Flat, Gaps, Some


# The timeline of a host: a `Line` keeps its holds sorted and answers queries by bisection. A
# line is never changed, only replaced as a whole, so readers need no lock.
#
# >>> line = Line([Hold(10.0, 20.0), Hold(30.0, 40.0)])
# >>> line.is_free(20.0, 30.0), line.around(21.0, 29.0)
# (True, (20.0, 30.0))


FOREVER = float("inf")


class Hold(NamedTuple):
    """A hold on a host for [start, end); `takes` is None when the whole host is held."""

    start: float
    end: float
    takes: Mapping[str, int] | None = None


_Hold = tuple[float, float, Mapping[str, int] | None]  # a plain tuple is cheaper


class Line:
    """The holds of a host, in the order of their starts."""

    __slots__ = ("_ends", "_latest", "_starts", "_takes")

    def __init__(self, holds: Iterable[_Hold] = ()) -> None:
        in_order = sorted(holds, key=itemgetter(0, 1))
        self._starts = array("d", [hold[0] for hold in in_order])
        self._ends = array("d", [hold[1] for hold in in_order])
        #: The latest end so far. Holds of whole hosts follow each other: then it is the end
        #: itself.
        latest = array("d", accumulate(self._ends, max))
        self._latest = self._ends if latest == self._ends else latest
        takes = [hold[2] for hold in in_order]
        self._takes = takes if any(taken is not None for taken in takes) else None

    def __iter__(self) -> Iterator[Hold]:
        for index in range(len(self._starts)):
            yield self._hold(index)

    def __len__(self) -> int:
        return len(self._starts)

    def _hold(self, index: int) -> Hold:
        takes = self._takes[index] if self._takes is not None else None
        return Hold(self._starts[index], self._ends[index], takes)

    def edges(self) -> tuple["array[float]", "array[float]"]:
        """Return the start of each hold, and the latest end up to each."""
        return self._starts, self._latest

    @property
    def is_tangled(self) -> bool:
        """Whether some holds end in another order than they begin."""
        return self._latest is not self._ends

    def gap(self, start: float, end: float) -> tuple[float, float] | None:
        """Return the free gap around the window as (start, end); None when a hold touches the
        window."""
        following = bisect_left(self._starts, end)
        before = self._latest[following - 1] if following else -FOREVER
        if before > start:
            return None
        return before, self._starts[following] if following < len(self._starts) else FOREVER

    def is_free(self, start: float, end: float) -> bool:
        """Whether no hold touches the window."""
        following = bisect_left(self._starts, end)
        return not following or self._latest[following - 1] <= start

    def around(self, start: float, end: float) -> tuple[float, float]:
        """Return the free gap around a free window; ValueError when the window is not free."""
        gap = self.gap(start, end)
        if gap is None:
            raise ValueError("the window is not free")
        return gap

    def within(self, start: float, end: float) -> Iterator[Hold]:
        """Yield the holds in the window."""
        first = bisect_right(self._latest, start)
        for index in range(first, bisect_left(self._starts, end)):
            if self._ends[index] > start:
                yield self._hold(index)

    def busy_until(self, start: float, end: float) -> float | None:
        """Return the earliest end of the holds in the window; None when there are none."""
        first, following = bisect_right(self._latest, start), bisect_left(self._starts, end)
        if self._latest is self._ends:
            return self._ends[first] if first < following else None
        return min((e for e in self._ends[first:following] if e > start), default=None)

    def peak(self, start: float, end: float) -> Mapping[str, int] | None:
        """Return the peak use of each resource class in the window; None when the host is held
        whole."""
        holds = list(self.within(start, end))
        if any(hold.takes is None for hold in holds):
            return None
        return peak(holds)


EMPTY = Line()


def peak(holds: Iterable[Hold]) -> dict[str, int]:
    """Return the peak use of each resource class over all moments."""
    changes: list[tuple[float, int, Mapping[str, int]]] = []
    for hold in holds:
        taken = hold.takes or {}
        changes += [(hold.start, 1, taken), (hold.end, -1, taken)]
    changes.sort(key=lambda change: change[:2])  # at equal times, ends come first
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _at, sign, taken in changes:
        for name, amount in taken.items():
            now[name] = now.get(name, 0) + sign * amount
            most[name] = max(most.get(name, 0), now[name])
    return most


def too_much(capacity: Mapping[str, int], holds: Iterable[Hold]) -> bool:
    """Whether these holds of a host exceed its capacity: the rule for every booking."""
    together = list(holds)
    whole = sorted((hold for hold in together if hold.takes is None), key=lambda hold: hold.start)
    for earlier, later in pairwise(whole):
        if later.start < earlier.end:
            return True
    parts = [hold for hold in together if hold.takes is not None]
    for held in whole:
        if any(part.start < held.end and held.start < part.end for part in parts):
            return True
    return any(amount > capacity.get(name, 0) for name, amount in peak(parts).items())


# The capacity snapshot: reservable hosts and their holds, for planning.
#
# The store keeps one snapshot fresh (`db/capacity.py`). Planning reads it and proposes; the
# transaction that books decides. A snapshot that is a moment old costs a second try, and never
# a double booking.
#
#     free = snapshot.without_holds(lease.allocations()).with_holds(planned)
#     hosts = snapshot.matching(("gpu", ">= 4"), lambda host: …)


#: Number of requests whose matching hosts are cached.
MOST_MATCHES = 256
#: Up to this many lines are read one by one; more lines use arrays (`model/gaps`).
FEW = 500
#: When more lines than this have changed, all lines are copied into arrays again.
MANY = 1000


@dataclass
class CapacitySnapshot:
    """Reservable hosts by id, and their lines.

    `revision` grows when a host's facts change.
    """

    hosts: Mapping[int, Host] = field(default_factory=dict)
    lines: Mapping[int, Line] = field(default_factory=dict)
    revision: int = 0
    changes: int = 0  # grows with every change of a line
    spares: tuple[Spare, ...] = ()  # segments that keep hosts free
    _changed: Mapping[int, Line] = field(default_factory=dict)  # replaces `lines`, for one plan
    _matches: dict[Hashable, Sequence[Host]] = field(default_factory=dict)
    _flat: list["Flat"] = field(default_factory=list)  # at most one `Flat`, of `lines`
    #: The hosts of the last query, and the change count: one plan queries the same hosts
    #: several times.
    _last: list[tuple[Sequence[Host], int, "Some"]] = field(default_factory=list)

    def line(self, host_id: int) -> Line:
        line = self._changed.get(host_id)
        return line if line is not None else self.lines.get(host_id, EMPTY)

    def matching(
        self,
        key: Hashable,
        test: Callable[[Host], bool],
        among: Callable[[], Sequence[Host]] | None = None,
    ) -> Sequence[Host]:
        """List the hosts that pass `test`, by id; cached under `key` until a host's facts change.

        `among` restricts the search where only some hosts can pass.
        """
        remembered = (self.revision, key)
        hosts = self._matches.get(remembered)
        if hosts is None:
            every = list(self.hosts.values()) if among is None else among()
            passed = [host for host in every if test(host)]
            hosts = passed if len(passed) < len(every) else every
            if len(self._matches) >= MOST_MATCHES:
                self._matches.clear()
            self._matches[remembered] = hosts
        return hosts

    def gaps(self, hosts: Sequence[Host]) -> Iterable["Gaps"]:
        """Return the free gaps of these hosts as arrays, portion by portion."""
        from holdfast.model.gaps import lay_out

        if len(hosts) > FEW:
            return self._some(hosts).gaps()
        return [lay_out(self._lines_of(hosts))]

    def free(self, hosts: Sequence[Host], start: float, end: float) -> Sequence[Host]:
        """List the hosts without any hold in the window."""
        if len(hosts) > FEW:
            return [hosts[at] for at in self._some(hosts).free(start, end)]
        lines = self._lines_of(hosts)
        return [host for host, line in zip(hosts, lines, strict=True) if line.is_free(start, end)]

    def first_back(
        self, hosts: Sequence[Host], start: float, end: float, most: int
    ) -> Sequence[Host]:
        """List the hosts held in the window, in the order in which they become free."""
        if len(hosts) > FEW:
            return [hosts[at] for at in self._some(hosts).first_back(start, end, most)]
        until = [line.busy_until(start, end) for line in self._lines_of(hosts)]
        busy = [(back, at) for at, back in enumerate(until) if back is not None]
        return [hosts[at] for _back, at in sorted(busy)[:most]]

    def lay_out(self) -> None:
        """Build the arrays in advance, for which the first query over very many hosts would
        wait."""
        self._laid_out(list(self.lines.values()))

    def _lines_of(self, hosts: Iterable[Host]) -> Sequence[Line]:
        if self._changed:
            return [self.line(host.id) for host in hosts]
        return [self.lines.get(host.id, EMPTY) for host in hosts]

    def _some(self, hosts: Sequence[Host]) -> "Some":
        changes, last = self.changes, next(iter(self._last), None)
        if last and last[0] is hosts and last[1] == changes and not self._changed:
            return last[2]
        some = self._laid_out(self._lines_of(hosts))
        if not self._changed:
            self._last[:] = [(hosts, changes, some)]
        return some

    def _laid_out(self, lines: Sequence[Line]) -> "Some":
        from holdfast.model.gaps import Flat, Some

        flat = next(iter(self._flat), None)
        some = None if flat is None else Some(flat, lines)
        if some is not None and some.unknown <= MANY:
            return some
        flat = some = None
        self._flat.clear()  # never two of them in memory
        self._last.clear()
        flat = Flat(list(self.lines.values()))
        self._flat[:] = [flat]
        return Some(flat, lines)

    def renewed(self, hosts: Mapping[int, Host]) -> "CapacitySnapshot":
        """Return a snapshot with the same lines and newer facts of the hosts."""
        return CapacitySnapshot(
            hosts, self.lines, self.revision + 1, self.changes, self.spares, _flat=self._flat
        )

    def ignoring_spares(self, spares: tuple[Spare, ...]) -> "CapacitySnapshot":
        """Return a snapshot with other spares: the hosts that segments keep free."""
        return replace(self, spares=spares)

    def without_holds(self, allocations: Iterable[Allocation]) -> "CapacitySnapshot":
        """Return a snapshot without these holds, for a lease that is planned anew."""
        changed = dict(self._changed)
        for host_id, gone in _by_host(allocations).items():
            left = list(self._line(changed, host_id))
            for hold in gone:
                if hold in left:
                    left.remove(hold)
            changed[host_id] = Line(left)
        return self._with(changed)

    def excluding_hosts(self, host_ids: Iterable[int]) -> "CapacitySnapshot":
        """Return a snapshot in which these hosts cannot be reserved."""
        gone = set(host_ids)
        left = {i: host for i, host in self.hosts.items() if i not in gone}
        return replace(self, hosts=left, changes=0, _matches={})

    def with_holds(self, allocations: Iterable[Allocation]) -> "CapacitySnapshot":
        """Return a snapshot with holds that are planned and not booked yet."""
        changed = dict(self._changed)
        for host_id, more in _by_host(allocations).items():
            changed[host_id] = Line([*self._line(changed, host_id), *more])
        return self._with(changed)

    def _line(self, changed: Mapping[int, Line], host_id: int) -> Line:
        line = changed.get(host_id)  # an empty line counts too
        return line if line is not None else self.lines.get(host_id, EMPTY)

    def _with(self, changed: Mapping[int, Line]) -> "CapacitySnapshot":
        return CapacitySnapshot(
            self.hosts,
            self.lines,
            self.revision,
            spares=self.spares,
            _changed=changed,
            _matches=self._matches,
            _flat=self._flat,
        )


def hold_of(allocation: Allocation) -> Hold:
    takes = None if allocation.slots is None else allocation.takes
    window = allocation.held
    return Hold(window.start.timestamp(), window.end.timestamp(), takes)


def _by_host(allocations: Iterable[Allocation]) -> dict[int, list[Hold]]:
    holdses: dict[int, list[Hold]] = {}
    for allocation in allocations:
        if allocation.host_id is not None:
            holdses.setdefault(allocation.host_id, []).append(hold_of(allocation))
    return holdses
