# SPDX-License-Identifier: Apache-2.0
"""What can be reserved and who holds it when, in memory: what planning looks at.

The store keeps one of these fresh (`store/stock.py`). Planning asks it, proposes, and the
transaction that books decides; so a stock that is a moment old costs a second try and never an
owner too many.

    free = stock.without(lease).plus(planned)
    hosts = stock.matching(("gpu", ">= 4"), lambda host: …)
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.model.failover import Spare
from holdfast.model.host import Host
from holdfast.model.lease import Allocation
from holdfast.model.timeline import EMPTY, Hold, Line

if TYPE_CHECKING:
    from holdfast.model.gaps import Flat, Gaps, Some

#: How many different requests' matching hosts are remembered.
MOST_MATCHES = 256
#: Up to so many lines are looked at one by one.
FEW = 500
#: When more than so many have changed all lines are laid out again.
MANY = 1000


@dataclass
class Stock:
    """Reservable hosts by id, and their lines. `revision` grows when a host's facts change."""

    hosts: Mapping[int, Host] = field(default_factory=dict)
    lines: Mapping[int, Line] = field(default_factory=dict)
    revision: int = 0
    changes: int = 0  # grows with every change of a line
    spares: tuple[Spare, ...] = ()  # segments of which hosts are kept free
    _changed: Mapping[int, Line] = field(default_factory=dict)  # over `lines`, for one plan
    _matches: dict[Hashable, Sequence[Host]] = field(default_factory=dict)
    _flat: list["Flat"] = field(default_factory=list)  # one at most, of the lines
    #: Whom the last question was about, as of which change: one plan asks several about the same.
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
        """The hosts that pass, by id; remembered under `key` until a host's facts change. Who knows
        that only some can pass says among which to look."""
        remembered = (self.revision, key)
        found = self._matches.get(remembered)
        if found is None:
            every = list(self.hosts.values()) if among is None else among()
            passed = [host for host in every if test(host)]
            found = passed if len(passed) < len(every) else every
            if len(self._matches) >= MOST_MATCHES:
                self._matches.clear()
            self._matches[remembered] = found
        return found

    def gaps(self, hosts: Sequence[Host]) -> Iterable["Gaps"]:
        """When nobody holds any of these hosts, as arrays, portion by portion."""
        from holdfast.model.gaps import lay_out  # numpy comes with it

        if len(hosts) > FEW:
            return self._some(hosts).gaps()
        return [lay_out(self._lines_of(hosts))]

    def free(self, hosts: Sequence[Host], start: float, end: float) -> Sequence[Host]:
        """Those of which nobody holds anything in the window."""
        if len(hosts) > FEW:
            return [hosts[at] for at in self._some(hosts).free(start, end)]
        lines = self._lines_of(hosts)
        return [host for host, line in zip(hosts, lines, strict=True) if line.is_free(start, end)]

    def first_back(
        self, hosts: Sequence[Host], start: float, end: float, most: int
    ) -> Sequence[Host]:
        """Those that are held in the window and given back first, the first one first."""
        if len(hosts) > FEW:
            return [hosts[at] for at in self._some(hosts).first_back(start, end, most)]
        until = [line.busy_until(start, end) for line in self._lines_of(hosts)]
        busy = [(back, at) for at, back in enumerate(until) if back is not None]
        return [hosts[at] for _back, at in sorted(busy)[:most]]

    def lay_out(self) -> None:
        """What the first who asks about very many hosts would have to wait for."""
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

    def renewed(self, hosts: Mapping[int, Host]) -> "Stock":
        """The same lines, and what is known of their hosts by now."""
        return Stock(
            hosts, self.lines, self.revision + 1, self.changes, self.spares, _flat=self._flat
        )

    def keeping(self, spares: tuple[Spare, ...]) -> "Stock":
        """The same, and what is to be kept free of it by now."""
        return replace(self, spares=spares)

    def without(self, allocations: Iterable[Allocation]) -> "Stock":
        """The same, less what somebody who plans anew holds himself."""
        changed = dict(self._changed)
        for host_id, gone in _by_host(allocations).items():
            left = list(self._line(changed, host_id))
            for hold in gone:
                if hold in left:
                    left.remove(hold)
            changed[host_id] = Line(left)
        return self._with(changed)

    def less(self, host_ids: Iterable[int]) -> "Stock":
        """The same, as if these hosts could not be reserved."""
        gone = set(host_ids)
        left = {i: host for i, host in self.hosts.items() if i not in gone}
        return replace(self, hosts=left, changes=0, _matches={})

    def plus(self, allocations: Iterable[Allocation]) -> "Stock":
        """The same, with what is planned and not booked yet."""
        changed = dict(self._changed)
        for host_id, more in _by_host(allocations).items():
            changed[host_id] = Line([*self._line(changed, host_id), *more])
        return self._with(changed)

    def _line(self, changed: Mapping[int, Line], host_id: int) -> Line:
        line = changed.get(host_id)  # an empty one is one too
        return line if line is not None else self.lines.get(host_id, EMPTY)

    def _with(self, changed: Mapping[int, Line]) -> "Stock":
        return Stock(
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
    held = allocation.held
    return Hold(held.start.timestamp(), held.end.timestamp(), takes)


def _by_host(allocations: Iterable[Allocation]) -> dict[int, list[Hold]]:
    found: dict[int, list[Hold]] = {}
    for allocation in allocations:
        if allocation.host_id is not None:
            found.setdefault(allocation.host_id, []).append(hold_of(allocation))
    return found
