# SPDX-License-Identifier: Apache-2.0
"""Repair search: assign hosts to all needs of a plan; meet as many as possible, first classes
first.

Most needs are easy: they have more free hosts than all other needs could take from them. Easy
needs are assigned last, where none of them can fail. The other needs compete. They fall into
groups that share no host at the same time. In each group one need after the other takes the
hosts that the fewest others want; a need that finds none asks the needs on its hosts to move
elsewhere. Where this leaves needs unmet, a small group is searched exhaustively, and in a large
group every small neighbourhood of an unmet need (`better`).
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby

from holdfast.leases.placement import How
from holdfast.leases.repair_board import Board, Job, crowd, demand
from holdfast.leases.resources.instance_placement import capacity

# Exhaustive search over a few needs: try every assignment that could be better.
#
# Better means, class by class: more needs met in full, then more units. All other needs of the
# plan keep their hosts. Of hosts that are equal for all needs of the group, only one is tried.


Score = tuple[int, ...]


def better(group: Sequence[Job], board: Board, checks: int) -> None:
    """Improve the hosts of the group, which is in order, within `checks` host checks."""
    search = _Search(group, board, checks)
    search.best = search.score()
    mark = board.mark()
    for job in group:
        board.clear(job)
    search.run(0, search.none)
    if search.best_plan is None:
        board.back(mark)
        return
    for job, has in zip(group, search.best_plan, strict=True):
        for host_id, units in has.items():
            board.put(job, host_id, units)


class _Search:
    def __init__(self, group: Sequence[Job], board: Board, checks: int) -> None:
        self._until = board.checks + checks
        self.best: Score = ()
        self.best_plan: list[dict[int, int]] | None = None
        self._group, self._board = group, board
        ranks = sorted({job.rank for job in group})
        self._column = [2 * ranks.index(job.rank) for job in group]
        self.none: Score = (0,) * (2 * len(ranks))
        self._rest = [self.none]  # upper bound of the score from each position on
        for at in reversed(range(len(group))):
            self._rest.append(self._plus(self._rest[-1], at, group[at].need.units))
        self._rest.reverse()
        self._places = [board.places(job) for job in group]
        self._alike = self._signatures()

    def score(self) -> Score:
        """Return the score of the current assignment."""
        score = self.none
        for at, job in enumerate(self._group):
            score = self._plus(score, at, job.count)
        return score

    def run(self, at: int, score: Score) -> bool:
        """Search from position `at`; return whether to stop: optimum found, or limit reached."""
        if at == len(self._group):
            if score > self.best:
                self.best = score
                self.best_plan = [dict(job.has) for job in self._group]
            return self.best >= self._rest[0]
        job, board = self._group[at], self._board
        for option in self._options(at):
            if board.checks > self._until:
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
        """Yield the options of a need: full assignments first, then smaller, then none."""
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
        """Return signatures of hosts unused by the plan; hosts with equal signatures are equal
        here."""
        wanted_by: dict[int, list[int]] = {}
        for at, places in enumerate(self._places):
            for host_id in places:
                wanted_by.setdefault(host_id, []).append(at)
        if all(job.need.size is None for job in self._group):
            return {host_id: tuple(wanted) for host_id, wanted in wanted_by.items()}
        start = min(job.need.start for job in self._group)
        end = max(job.need.end for job in self._group)
        snapshot = self._board.snapshot
        return {
            host_id: (tuple(wanted), tuple(sorted(capacity(snapshot.hosts[host_id]).items())))
            for host_id, wanted in wanted_by.items()
            if snapshot.line(host_id).is_free(start, end)
        }


def _shared(
    groups: Sequence[Sequence[tuple[int, int]]], units: int, most: int
) -> Iterator[dict[int, int]]:
    """Yield the ways to share units over hosts, within the room of each.

    Of equal hosts the first are used, and a later one never gets more units than an earlier
    one.
    """

    def go(group: int, at: int, left: int, last: int) -> Iterator[dict[int, int]]:
        if not left:
            yield {}
            return
        if group == len(groups):
            return
        if at < len(groups[group]):
            host_id, room = groups[group][at]
            for share in range(min(room, left, last), 0, -1):
                for more in go(group, at + 1, left - share, share):
                    yield {host_id: share, **more}
        yield from go(group + 1, 0, left, most)

    return go(0, 0, units, most)


#: Longest chain of needs that move for each other.
DEPTH = 8
#: Limits in host checks: to make way for one need, for all needs, and in a search. A million
#: checks take a second or two.
CHECKS, CHECKS_IN_ALL = 10_000, 2_000_000
CHECKS_GROUP, CHECKS_AROUND = 200_000, 5_000
#: A group of up to this many needs is searched as a whole, unless it has more hosts than this.
SMALL, SMALL_HOSTS = 10, 60
#: Other unmet needs are looked up among this many before and after a need in the order.
NEAR = 50
#: With more places in all, all competing needs form a single group.
MOST_PLACES = 2_000_000


def plan(jobs: Sequence[Job], board: Board) -> None:
    """Assign hosts to all jobs on the board."""
    hard, easy = _sorted_out([job for job in jobs if job.free.count])
    board.pressed = demand([job.free for job in hard])
    if sum(job.free.count for job in hard) <= MOST_PLACES:
        for job in hard:
            job.places = sorted(job.free.ids(), key=board.pressed.__getitem__)
    for group in _groups(hard, board):
        _fill(group, board)
        _improve(group, board)
    for job in easy:
        _give(board, job)


def _sorted_out(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Split the needs: competing needs in order, and easy needs in assignment order.

    A need that was easy while more needs competed comes after.
    """
    needs = [job.need for job in jobs]
    hard, easy = list(range(len(jobs))), []
    while hard:
        crowds = crowd(needs, hard)
        sure = {i for i, n in zip(hard, crowds.tolist(), strict=True) if jobs[i].free.sure >= n}
        if not sure:
            break
        easy.append([jobs[index] for index in hard if index in sure])
        hard = [index for index in hard if index not in sure]
    return [jobs[index] for index in hard], [job for some in reversed(easy) for job in some]


def _groups(jobs: Sequence[Job], board: Board) -> Iterator[list[Job]]:
    """Yield groups of needs that can block each other, directly or through others, each in
    order."""
    if sum(job.free.count for job in jobs) > MOST_PLACES:
        yield list(jobs)
        return
    places = [board.places(job) for job in jobs]
    parent = list(range(len(jobs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    last: dict[int, tuple[float, int]] = {}  # per host: until when a need wants it, and which
    for index in sorted(range(len(jobs)), key=lambda index: jobs[index].need.start):
        need = jobs[index].need
        for place in places[index]:
            until, other = last.get(place, (need.start, index))
            if until > need.start:
                parent[root(index)] = root(other)
            last[place] = (max(until, need.end), index)
    jobses: dict[int, list[Job]] = {}
    for index, job in enumerate(jobs):
        jobses.setdefault(root(index), []).append(job)
    yield from jobses.values()


def _fill(group: Sequence[Job], board: Board) -> None:
    """Assign a group class by class: needs met in full first, then partial assignments."""
    for _rank, some in groupby(group, key=lambda job: job.rank):
        same = list(some)
        short = [job for job in same if not _give(board, job, pressed=True, way=True)]
        for job in short:
            # A need that goes together gets all on one host, or none.
            if job.need.how is not How.TOGETHER:
                _give(board, job, pressed=True, part=True)


def _give(
    board: Board, job: Job, *, pressed: bool = False, way: bool = False, part: bool = False
) -> bool:
    """Assign all missing units of a need, or none; with `part`, as many as there are.

    With `way`, other needs of the plan may have to move.
    """
    mark = board.mark()
    for host_id, units in board.find(job, job.missing, pressed=pressed).items():
        board.put(job, host_id, units)
    if not job.is_whole and way:
        until = min(board.checks + CHECKS, CHECKS_IN_ALL)
        _make_way(board, job, DEPTH, until, set())
    if job.is_whole or part:
        return job.is_whole
    board.back(mark)
    return False


def _make_way(board: Board, job: Job, depth: int, until: int, tried: set[tuple[Job, int]]) -> bool:
    """Complete a need with hosts whose users in this plan can move; each pair is tried once."""
    if not depth:
        return False
    for host_id in board.places(job):
        if job.is_whole:
            return True
        if board.checks > until:
            return False
        if (job, host_id) in tried or host_id in job.has:
            continue
        others = board.others(job, host_id)
        if others:
            tried.add((job, host_id))
            _take_over(board, job, host_id, others, depth, until, tried)
    return job.is_whole


def _take_over(
    board: Board,
    job: Job,
    host_id: int,
    others: Iterable[Job],
    depth: int,
    until: int,
    tried: set[tuple[Job, int]],
) -> bool:
    """Take the host over if every displaced need gets as much elsewhere."""
    mark = board.mark()
    gone: list[tuple[Job, int]] = []
    for other in others:
        if _wants(board, job, host_id):
            break
        gone.append((other, other.count))
        board.put(other, host_id, -other.has[host_id])
    chosen = _wants(board, job, host_id)
    if chosen:
        board.put(job, host_id, chosen)
        if all(_elsewhere(board, *displaced, depth, until, tried) for displaced in gone):
            return True
    board.back(mark)
    return False


def _wants(board: Board, job: Job, host_id: int) -> int:
    """Return how many units the need would take of this host."""
    room = min(board.room(job, host_id), job.missing)
    together = job.need.spots == 1 and job.need.units > 1
    return room if not together or room == job.need.units else 0


def _elsewhere(
    board: Board, job: Job, before: int, depth: int, until: int, tried: set[tuple[Job, int]]
) -> bool:
    for host_id, units in board.find(job, before - job.count, pressed=True, first=True).items():
        board.put(job, host_id, units)
    return job.count >= before or _make_way(board, job, depth - 1, until, tried)


def _improve(group: Sequence[Job], board: Board) -> None:
    """Search where needs are unmet: the whole group, or around each unmet need."""
    short = [job for job in group if not job.is_whole]
    if not short:
        return
    if len(group) <= SMALL and len({h for job in group for h in board.places(job)}) <= SMALL_HOSTS:
        better(group, board, CHECKS_GROUP)
        return
    order = {job: at for at, job in enumerate(group)}
    for job in short:
        if board.checks > CHECKS_IN_ALL:
            return
        if not job.is_whole:
            around = _around(job, short, board)
            better(sorted(around, key=order.__getitem__), board, CHECKS_AROUND)


def _around(job: Job, short: Sequence[Job], board: Board) -> list[Job]:
    """Return the need, the needs on its hosts in its time, and unmet needs that want those
    hosts."""
    jobs = {job: None}
    for host_id in board.places(job)[:SMALL_HOSTS]:
        jobs.update(dict.fromkeys(board.others(job, host_id)))
        if len(jobs) > SMALL // 2:
            break
    near = {host_id for other in jobs for host_id in other.has}
    at = short.index(job)
    for other in short[max(0, at - NEAR) : at + NEAR]:
        if len(jobs) >= SMALL:
            break
        if other.need.meets(job.need) and not near.isdisjoint(board.places(other)):
            jobs[other] = None
    return list(jobs)[:SMALL]
