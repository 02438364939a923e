# SPDX-License-Identifier: Apache-2.0
"""When slots could be had. Values in, values out; what is found is an offer, and no promise.

Room appears only when somebody gives some back. So what a host had at the moment before is the most
it can have, unless something on it ends just then: most moments need one look. Of thousands of
hosts, and of moments without end, only some are looked at: an offer holds all the same.
"""

import heapq
from collections.abc import Iterator, Sequence
from datetime import datetime

from holdfast.model.host import Host
from holdfast.model.lease import Window
from holdfast.model.stock import Stock
from holdfast.reserve.resources.slots_plan import Look, SlotsRequest

#: On how many hosts it looks, and at how many moments of them; how often all in all.
MOST_HOSTS = 1000
MOST_MOMENTS = 2000
MOST_LOOKS = 50_000
#: When it would fit at once: what comes after is seldom asked for.
FEW_HOSTS = 200
FEW_MOMENTS = 20
#: Moments are gathered so many windows further on at a time, for the first ones will mostly do.
FURTHER = (1, 4, 16, 64, 256, 1024)
#: Leases begin on whole minutes.
MINUTE_S = 60.0


def openings(request: SlotsRequest, stock: Stock, until: datetime) -> Iterator[Window]:
    """Windows as long as the one wanted, from its start on, in which it would fit: the first, and
    those after a time in which it would not."""
    look = Look(request, stock)
    at_once = look.rooms() is None
    if at_once:
        yield request.held
    hosts = _some(look.hosts, FEW_HOSTS if at_once else max(MOST_HOSTS, 4 * request.amount))
    look = look.among(hosts)
    rooms = None if at_once else look.rooms()  # None while it fits
    looks = 0
    for start, ends in _moments(look, until, FEW_MOMENTS if at_once else MOST_MOMENTS):
        if looks > MOST_LOOKS:
            return
        look = look.at(start)
        looks += len(ends)
        if rooms is not None:
            rooms.update({host.id: look.give(host) for host in ends})
            if sum(rooms.values()) < request.amount:
                continue
        before, rooms = rooms, look.rooms()
        looks += len(hosts) if rooms else 0
        if rooms is None and (before is not None or not _fits(look, start - MINUTE_S)):
            yield look.request.held


def _some(hosts: Sequence[Host], most: int) -> Sequence[Host]:
    """So many of them, from all over."""
    return hosts[:: -(-len(hosts) // most)] if len(hosts) > most else hosts


def _fits(look: Look, start: float) -> bool:
    return look.at(start).rooms() is None


def _moments(look: Look, until: datetime, most: int) -> Iterator[tuple[float, Sequence[Host]]]:
    """The minutes from which on something is given back, the first first, and on which hosts."""
    held = look.request.held
    since, last = held.start.timestamp(), until.timestamp()
    length, told, count = held.end.timestamp() - since, since, 0
    for further in FURTHER:
        horizon = min(since + further * length, last)
        found: dict[float, list[Host]] = {}
        for host in look.hosts:
            for end in look.ends(host, told, horizon):
                if told < end <= horizon:
                    found.setdefault(-(-end // MINUTE_S) * MINUTE_S, []).append(host)
        for minute in heapq.nsmallest(most - count, found):
            yield minute, found[minute]
        count += len(found)
        told = horizon
        if count >= most or horizon >= last:
            return
