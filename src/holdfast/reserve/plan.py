# SPDX-License-Identifier: Apache-2.0
"""Picks hosts for a request, or says why none fit. Values in, values out; booking is elsewhere."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.model.expression import Expression
from holdfast.model.host import Host

#: Which of two hosts that are as good is taken first: the smaller number. By id, unless rivals who
#: plan at the same moment would then all want the same one.
Order = Callable[[int], float]


@dataclass(frozen=True)
class HostRequest:
    """How many hosts (at least `low`, at best `high`) of which kind."""

    low: int
    high: int
    where: Expression
    keep: tuple[int, ...] = ()  # hosts held already: preferred
    must_keep: bool = False  # an active reservation never loses a host


@dataclass(frozen=True)
class Choice:
    host_ids: tuple[int, ...]


@dataclass(frozen=True)
class Refusal:
    sentence: str


def choose(
    request: HostRequest,
    hosts: Sequence[tuple[Host, bool]],
    taken: Collection[int] = (),
    order: Order = float,
) -> Choice | Refusal:
    """Pick hosts: kept ones first, then by `order`. `taken` are spoken for in this very plan."""
    matching = [(host, free) for host, free in hosts if request.where.matches(host.facts())]
    usable = {h.id for h, free in matching if free and h.id not in taken}
    kept = [i for i in request.keep if i in usable]
    if request.must_keep and len(kept) < len(request.keep):
        lost = [h.name for h, _ in matching if h.id in request.keep and h.id not in kept]
        named = ", ".join(lost) or "one of its hosts"
        return Refusal(f"the lease is active and {named} cannot stay with it in that window")
    wanted = max(request.high, len(kept)) if request.must_keep else request.high
    chosen = (kept + sorted(usable.difference(kept), key=order))[:wanted]
    if len(chosen) >= request.low:
        return Choice(tuple(chosen))
    return Refusal(
        f"{request.low} asked for; of {len(hosts)} hosts {len(matching)} match"
        f" and {len(usable)} of those are free in the window"
    )
