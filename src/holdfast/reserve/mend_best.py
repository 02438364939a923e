# SPDX-License-Identifier: Apache-2.0
"""The best that a few needs can have between them, by trying everything that could be better.

Best is, class by class: the most needs met in full, then the most units. What everybody else of the
plan has stays as it is. Hosts that are the same to all of the few are tried once.
"""

from collections.abc import Hashable, Iterator, Sequence

from holdfast.reserve.mend_board import Board, Job
from holdfast.reserve.mend_need import How
from holdfast.reserve.resources.slots_plan import capacity

Score = tuple[int, ...]


def better(group: Sequence[Job], board: Board, looks: int) -> None:
    """Give the needs of the group, which is in order, something better, if that can be found in so
    many looks at hosts."""
    search = _Search(group, board, looks)
    search.best = search.score()
    mark = board.mark()
    for job in group:
        board.clear(job)
    search.run(0, search.none)
    if search.found is None:
        board.back(mark)
        return
    for job, has in zip(group, search.found, strict=True):
        for host_id, units in has.items():
            board.put(job, host_id, units)


class _Search:
    def __init__(self, group: Sequence[Job], board: Board, looks: int) -> None:
        self._until = board.looked + looks
        self.best: Score = ()
        self.found: list[dict[int, int]] | None = None
        self._group, self._board = group, board
        ranks = sorted({job.rank for job in group})
        self._column = [2 * ranks.index(job.rank) for job in group]
        self.none: Score = (0,) * (2 * len(ranks))
        self._rest = [self.none]  # what those from there on could have at most
        for at in reversed(range(len(group))):
            self._rest.append(self._plus(self._rest[-1], at, group[at].need.units))
        self._rest.reverse()
        self._places = [board.places(job) for job in group]
        self._alike = self._signatures()

    def score(self) -> Score:
        """Of what they have now."""
        found = self.none
        for at, job in enumerate(self._group):
            found = self._plus(found, at, job.count)
        return found

    def run(self, at: int, score: Score) -> bool:
        """Whether it is over: nothing better can be, or it has taken too long."""
        if at == len(self._group):
            if score > self.best:
                self.best = score
                self.found = [dict(job.has) for job in self._group]
            return self.best >= self._rest[0]
        job, board = self._group[at], self._board
        for option in self._options(at):
            if board.looked > self._until:
                return True
            mine = self._plus(score, at, sum(option.values()))
            if tuple(map(int.__add__, mine, self._rest[at + 1])) <= self.best:
                continue
            mark = board.mark()
            for host_id, units in option.items():
                board.put(job, host_id, units)
            over = self.run(at + 1, mine)
            board.back(mark)
            if over:
                return True
        return False

    def _plus(self, score: Score, at: int, units: int) -> Score:
        column, whole = self._column[at], units >= self._group[at].need.units
        return (
            *score[:column],
            score[column] + whole,
            score[column + 1] + units,
            *score[column + 2 :],
        )

    def _options(self, at: int) -> Iterator[dict[int, int]]:
        """What it could have: all it needs in every way, then less, then nothing."""
        job, board = self._group[at], self._board
        classes: dict[Hashable, list[tuple[int, int]]] = {}
        for host_id in self._places[at]:
            room = board.room(job, host_id)
            if room:
                used = board.is_used(host_id)
                alike = host_id if used else self._alike.get(host_id, host_id)
                classes.setdefault(alike, []).append((host_id, room))
        groups = list(classes.values())
        for units in range(job.need.units, 0, -1):
            if job.need.how is How.TOGETHER:
                yield from ({some[0][0]: units} for some in groups if some[0][1] >= units)
            else:
                yield from _shared(groups, units, 1 if job.need.how is How.APART else units)
        yield {}

    def _signatures(self) -> dict[int, Hashable]:
        """Of hosts that nobody of the plan is on, what they are to these needs."""
        who: dict[int, list[int]] = {}
        for at, places in enumerate(self._places):
            for host_id in places:
                who.setdefault(host_id, []).append(at)
        if all(job.need.size is None for job in self._group):
            return {host_id: tuple(wanted) for host_id, wanted in who.items()}
        start = min(job.need.start for job in self._group)
        end = max(job.need.end for job in self._group)
        stock = self._board.stock
        return {
            host_id: (tuple(wanted), tuple(sorted(capacity(stock.hosts[host_id]).items())))
            for host_id, wanted in who.items()
            if stock.line(host_id).is_free(start, end)
        }


def _shared(
    groups: Sequence[Sequence[tuple[int, int]]], units: int, most: int
) -> Iterator[dict[int, int]]:
    """So many units over hosts, on each no more than it has room for; of hosts that are alike the
    first ones, and never more on a later one."""

    def go(group: int, at: int, left: int, last: int) -> Iterator[dict[int, int]]:
        if not left:
            yield {}
            return
        if group == len(groups):
            return
        if at < len(groups[group]):
            host_id, room = groups[group][at]
            for take in range(min(room, left, last), 0, -1):
                for more in go(group, at + 1, left - take, take):
                    yield {host_id: take, **more}
        yield from go(group + 1, 0, left, most)

    return go(0, 0, units, most)
