# SPDX-License-Identifier: Apache-2.0
"""The best possible repair of a few reservations, by trying every way; nothing of the planner's.

Best is, class by class: the most reservations made whole, then the most units replaced. Times are
whole minutes, as with the other oracle, which counts the room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.leases.oracle import Hold, Minutes, Oracle

Score = tuple[int, ...]


@dataclass(frozen=True)
class Demand:
    """So many units: whole hosts, or slots of that size together, apart or anywhere."""

    name: str
    rank: tuple[float, ...]
    units: int
    span: Minutes
    hosts: frozenset[int]  # those it may be on
    size: Mapping[str, int] | None = None
    affinity: bool | None = False

    def holds(self, share: Mapping[int, int]) -> list[Hold]:
        return [Hold(self.name, host, self.span, self._takes(n)) for host, n in share.items()]

    def _takes(self, units: int) -> dict[str, int] | None:
        if self.size is None:
            return None
        return {name: units * amount for name, amount in self.size.items()}


def score(asks: Sequence[Demand], got: Mapping[str, int]) -> Score:
    """Of each class, who is whole and how many units there are."""
    found: list[int] = []
    for rank in sorted({ask.rank for ask in asks}):
        same = [ask for ask in asks if ask.rank == rank]
        found += [sum(got.get(ask.name, 0) >= ask.units for ask in same)]
        found += [sum(got.get(ask.name, 0) for ask in same)]
    return tuple(found)


def best(asks: Sequence[Demand], book: Oracle) -> Score:
    """The highest score that any way of giving hosts to them has."""
    in_order = sorted(asks, key=lambda ask: ask.rank)
    top = score(in_order, {})
    seen: set[tuple[object, ...]] = set()

    def go(at: int, book: Oracle, got: dict[str, int]) -> None:
        nonlocal top
        rest = {ask.name: ask.units for ask in in_order[at:]}
        if score(in_order, {**got, **rest}) <= top:
            return
        if at == len(in_order):
            top = score(in_order, got)
            return
        state = (at, score(in_order, got), _shape(book, in_order[at:]))
        if state in seen:
            return
        seen.add(state)
        ask = in_order[at]
        for share in ways(ask, book):
            more = replace(book, holds=[*book.holds, *ask.holds(share)])
            go(at + 1, more, {**got, ask.name: sum(share.values())})

    go(0, book, {})
    return top


def ways(ask: Demand, book: Oracle) -> Iterator[dict[int, int]]:
    """Everything it could be given, nothing included."""
    rooms = {host: _room(ask, host, book) for host in sorted(ask.hosts)}
    if ask.affinity is True and ask.size is not None:
        for units in range(ask.units, 0, -1):
            yield from ({host: units} for host, room in rooms.items() if room >= units)
        yield {}
        return
    yield from _shares(list(rooms.items()), ask.units)


def _shares(rooms: Sequence[tuple[int, int]], units: int) -> Iterator[dict[int, int]]:
    if not rooms:
        yield {}
        return
    (host, room), others = rooms[0], rooms[1:]
    for take in range(min(room, units), -1, -1):
        for more in _shares(others, units - take):
            yield {host: take, **more} if take else more


def _room(ask: Demand, host: int, book: Oracle) -> int:
    if ask.size is None:
        return int(host in book.free(ask.span))
    room = book.room(host, ask.span, ask.size)
    return min(room, 1) if ask.affinity is False else room


def _shape(book: Oracle, asks: Sequence[Demand]) -> tuple[object, ...]:
    """What those who come must know of the book; hosts that are the same to them are swapped."""
    found: list[tuple[object, ...]] = []
    for host, has in book.hosts.items():
        holds = [
            (h.span, sorted((h.takes or {"": 0}).items())) for h in book.holds if h.host == host
        ]
        wanted = tuple(host in ask.hosts for ask in asks)
        found.append((wanted, repr(sorted(holds)), repr(sorted(has.items()))))
    return tuple(sorted(found, key=repr))
