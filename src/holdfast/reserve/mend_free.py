# SPDX-License-Identifier: Apache-2.0
"""Which hosts are free for which needs, of very many of both, at one look.

Host by host all windows are asked at once, and what is kept of it is one bit for each host and
need: ten thousand of both are twelve megabytes. A need that has seen more free hosts than all
others together could take from it is not looked for any further. Imported when something is to be
mended, for numpy comes with it.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.model.host import Host
from holdfast.model.stock import Stock
from holdfast.model.timeline import Line
from holdfast.reserve.conditions import matches
from holdfast.reserve.mend_need import How, Need
from holdfast.reserve.resources.slots_plan import capacity

#: So many hosts are looked at before it is asked who has seen enough; eight to a byte.
SOME = 256
#: What somebody takes of a host that he has as a whole.
_ALL = 1 << 40

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Free:
    """Of one need: among the hosts that match, those that have room for a unit, as bits; how many
    of them would be enough for it: for each unit one, or for all that go together."""

    matching: Sequence[int]
    bits: NDArray[np.uint8]
    sure: int

    @functools.cached_property
    def count(self) -> int:
        return int(np.count_nonzero(np.unpackbits(self.bits)))

    def ids(self) -> list[int]:
        """Of the hosts that are free."""
        return [self.matching[place] for place in np.flatnonzero(np.unpackbits(self.bits)).tolist()]


def look(needs: Sequence[Need], stock: Stock) -> list[Free]:
    """Of each need where it could be, if it were alone."""
    found: dict[int, Free] = {}
    enough = crowd(needs, range(len(needs)))
    for group in _alike(needs):
        where, size = needs[group[0]].where, needs[group[0]].size
        hosts = stock.matching(where, functools.partial(matches, wanted=where))
        found.update(zip(group, _Group(needs, group, hosts, enough).look(stock, size), strict=True))
    return [found[index] for index in range(len(needs))]


def demand(frees: Sequence[Free]) -> Counter[int]:
    """By how many of them each host could be used."""
    found: Counter[int] = Counter()
    by_group: dict[int, tuple[Sequence[int], Numbers]] = {}
    for free in frees:
        ids, total = by_group.setdefault(
            id(free.matching), (free.matching, np.zeros(8 * len(free.bits), np.int64))
        )
        total += np.unpackbits(free.bits)
    for ids, total in by_group.values():
        for host_id, count in zip(ids, total.tolist(), strict=False):
            found[host_id] += count
    return found


def crowd(needs: Sequence[Need], among: Sequence[int]) -> Numbers:
    """Of each of these needs, on how many hosts they all could be in its way, itself included."""
    starts = np.array([needs[index].start for index in among])
    ends = np.array([needs[index].end for index in among])
    spots = np.array([needs[index].spots for index in among], np.int64)
    by_start, by_end = np.argsort(starts), np.argsort(ends)
    begun = np.concatenate(([0], np.cumsum(spots[by_start])))
    over = np.concatenate(([0], np.cumsum(spots[by_end])))
    found: Numbers = (
        begun[np.searchsorted(starts[by_start], ends, side="left")]
        - over[np.searchsorted(ends[by_end], starts, side="right")]
    )
    return found


def _alike(needs: Sequence[Need]) -> Iterator[list[int]]:
    """Those that ask for the same hosts and the same of each, in the order of their ends."""
    groups: dict[Hashable, list[int]] = {}
    for index, need in enumerate(needs):
        size = None if need.size is None else tuple(sorted(need.size.items()))
        groups.setdefault((need.where, size), []).append(index)
    for group in groups.values():
        yield sorted(group, key=lambda index: needs[index].end)


class _Group:
    """Needs that ask for the same: which of the same hosts each of them could have."""

    def __init__(
        self, needs: Sequence[Need], group: Sequence[int], hosts: Sequence[Host], enough: Numbers
    ) -> None:
        self._needs = [needs[index] for index in group]
        self._hosts = hosts
        self._starts = np.array([need.start for need in self._needs])
        self._ends = np.array([need.end for need in self._needs])
        #: How many units a host must have room for, so that it would be enough.
        self._together = np.array(
            [need.units if need.how is How.TOGETHER else 1 for need in self._needs]
        )
        more = [len(hosts) if need.arrange else len(need.besides) for need in self._needs]
        self._enough = enough[list(group)] + np.array(more)
        self._bits = np.zeros((len(group), -(-len(hosts) // 8)), np.uint8)
        self._sure = np.zeros(len(group), np.int64)

    def look(self, stock: Stock, size: Mapping[str, int] | None) -> Iterator[Free]:
        wanted = np.arange(len(self._needs))
        for at in range(0, len(self._hosts), SOME):
            rooms = self._rooms(self._hosts[at : at + SOME], wanted, stock, size)
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
        stock: Stock,
        size: Mapping[str, int] | None,
    ) -> Numbers:
        """By host and need, how many units the host has left for the whole window."""
        starts, ends = self._starts[wanted], self._ends[wanted]
        found = np.zeros((len(hosts), len(wanted)), np.int64 if size else np.int8)
        for row, host in enumerate(hosts):
            line = stock.line(host.id)
            if size is None:
                found[row] = _is_free(line, starts, ends)
            else:
                found[row] = _room(line, host, size, starts, ends)
        return found


def _is_free(line: Line, starts: Times, ends: Times) -> NDArray[np.bool_]:
    if not len(line):
        return np.ones(len(starts), np.bool_)
    begins, latest = (np.frombuffer(edge) for edge in line.edges())
    following = np.searchsorted(begins, ends)
    found: NDArray[np.bool_] = (following == 0) | (latest[following - 1] <= starts)
    return found


def _room(line: Line, host: Host, size: Mapping[str, int], starts: Times, ends: Times) -> Numbers:
    has = capacity(host)
    most = max(0, min(has.get(name, 0) // amount for name, amount in size.items()))
    holds = list(line.within(float(starts.min()), float(ends.max())))
    if not holds or not most:
        return np.full(len(starts), most, np.int64)
    if all(hold.takes is None for hold in holds):
        return _is_free(line, starts, ends) * np.int64(most)
    changes = np.array([hold[1] for hold in holds] + [hold[0] for hold in holds])
    order = np.argsort(changes, kind="stable")  # what ends at a moment makes room at it
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
    """The least of values[first..last], of each pair."""
    levels, span = [values], 1
    while 2 * span <= len(values):
        known = levels[-1]
        longer = known.copy()
        longer[: len(values) - span] = np.minimum(known[:-span], known[span:])
        levels.append(longer)
        span *= 2
    table = np.stack(levels)
    level = np.log2(last - first + 1).astype(np.intp)
    found: Numbers = np.minimum(table[level, first], table[level, last - (1 << level) + 1])
    return found
