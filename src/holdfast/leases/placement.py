# SPDX-License-Identifier: Apache-2.0
"""Placement of whole hosts: choose hosts for a request, or say why none fit.

Pure functions; booking is elsewhere. Of the hosts that match and are free in the window, the
choice prefers hosts where the lease leaves the fewest fragments of time: it closes a gap,
touches the hold before or after, or comes close. Among very many hosts only some more than
wanted are compared.

The module also defines `Need`, by which resource types state what a repair must replace.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from holdfast.model import expression
from holdfast.model.capacity import FOREVER, CapacitySnapshot
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Window

# The conditions of a request, one by one, so that a refusal can name them.
#
#     conditions({"vcpus": 8, "capabilities": {"gpu": ">= 4"}})   # "vcpus >= 8", "gpu >= 4"


#: Expression fields of the contract; both use the same matcher.
EXPRESSIONS = ("hypervisor_properties", "resource_properties")
#: Fields of the request, and the fact of the host for each.
LABELS = {"region": "region", "availability_zone": "availability_zone"}
AMOUNTS = {"vcpus": "cpu_cores", "memory_mb": "free_ram_mb", "local_gb": "free_disk_gb"}
#: Field of a resolved spec: the private properties that the request names and its caller may not
#: see. To these conditions no host has such a property.
MASKED = "masked"
#: Longest quote of a condition in a refusal.
MAX_TEXT = 120
#: Number of different facts of hosts for which a condition caches its result.
MOST_REMEMBERED = 100


@dataclass(frozen=True)
class Condition:
    """A condition on a host with a readable text; equal when the same was requested."""

    text: str
    test: Callable[[Host], bool] = field(compare=False)
    keys: frozenset[str] = frozenset()  # properties that a host may lack
    source: str = ""  # the exact request, where two requests may have the same text
    masked: frozenset[str] = frozenset()  # properties read as missing; matches are cached by it


def conditions(spec: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions of a normalised spec, also of a spec stored by an older version."""
    return tuple(_conditions(spec))


def properties(wanted: Iterable[Condition]) -> frozenset[str]:
    """Return the properties that the conditions read; of a path into JSON also its first name."""
    keys = frozenset(key for condition in wanted for key in condition.keys)
    return keys | {key.split(":", 1)[0] for key in keys}


def matches(host: Host, wanted: Sequence[Condition]) -> bool:
    return all(condition.test(host) for condition in wanted)


def _conditions(spec: Mapping[str, Any]) -> Iterator[Condition]:
    for name, fact in LABELS.items():
        if spec.get(name):
            yield _label(name, fact, str(spec[name]))
    for name, fact in AMOUNTS.items():
        if spec.get(name):
            yield _amount(name, fact, int(spec[name]))
    masked = frozenset(spec.get(MASKED) or ())
    for key, text in (spec.get("capabilities") or {}).items():
        yield _capability(key, text, masked)
    for name in EXPRESSIONS:
        for part in expression.parse(spec.get(name) or "", name).parts:
            yield _property(part, masked)


def _label(name: str, fact: str, wanted: str) -> Condition:
    text = f"{name} == {wanted}"
    return Condition(text, lambda host: host.fact(fact) == wanted)


def _amount(name: str, fact: str, wanted: int) -> Condition:
    text = f"{name} >= {wanted}"
    return Condition(text, lambda host: host.amount(fact) >= wanted)


def _capability(key: str, text: str, masked: frozenset[str]) -> Condition:
    name, test = expression.path(key), expression.parse_spec(text, key)
    names = [name] if ":" not in name else [name, name.split(":", 1)[0]]

    def test_facts(facts: expression.Facts) -> bool:
        fact = expression.value(facts.get, name)
        return fact is not None and test(fact)

    passes = _remembering(names, test_facts, masked)
    return Condition(_short(f"{name} {text}"), passes, frozenset([name]), text, masked)


def _property(part: expression.Expression, masked: frozenset[str]) -> Condition:
    passes = _remembering(sorted(part.keys), part.matches, masked)
    return Condition(_short(part.text), passes, part.keys, part.source, masked)


def _remembering(
    names: Sequence[str], test: Callable[[expression.Facts], bool], masked: frozenset[str]
) -> Callable[[Host], bool]:
    """Wrap a test of these facts in a cache.

    A cloud has many hosts of few models: of hosts with equal facts, one is tested.
    """
    verdicts: dict[tuple[Any, ...], bool] = {}

    def passes(host: Host) -> bool:
        values = tuple([None if name in masked else host.fact(name) for name in names])
        verdict = verdicts.get(values)
        if verdict is None:
            facts = zip(names, values, strict=True)
            verdict = test({name: fact for name, fact in facts if fact is not None})
            if len(verdicts) < MOST_REMEMBERED:
                verdicts[values] = verdict
        return verdict

    return passes


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


#: Which of two equally good hosts is taken first: the one with the smaller number. By id,
#: unless rivals that plan at the same moment would then all want the same host.
Order = Callable[[int], float]
BY_ID: Order = float

#: Up to this many matching hosts, all are compared.
FEW = 500
#: Of more hosts, this many are checked one by one before all are queried at once.
SOME = 2000
#: Blocking hosts named in a refusal.
MOST_BUSY = 200


@dataclass(frozen=True)
class HostRequest:
    """A request for whole hosts (at least `low`, at best `high`), with conditions and window."""

    low: int
    high: int
    start: float
    end: float
    conditions: tuple[Condition, ...] = ()
    keep: tuple[int, ...] = ()  # hosts already held: preferred
    must_keep: bool = False  # an active reservation never loses a host
    spread: str = ""  # "rack" or "zone": over as many as possible
    pack: str = ""  # "rack" or "zone": into as few as possible
    now: float = -FOREVER  # time before this is past and cannot be used


@dataclass(frozen=True)
class Choice:
    host_ids: tuple[int, ...]


@dataclass(frozen=True)
class Refusal:
    """A refusal: the sentence, and its parts."""

    sentence: str
    conditions: tuple[tuple[str, int], ...] = ()  # each condition, and how many hosts it removed
    matching: int = 0
    free: int = 0
    # Blocking hosts, the first to become free first.
    busy: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class _Candidate:
    host: Host
    rest: tuple[float, float]  # the unused rest of the gap around the lease; smaller is better


def choose(
    request: HostRequest, snapshot: CapacitySnapshot, order: Order = BY_ID
) -> Choice | Refusal:
    """Choose hosts: kept hosts first, then the best fit in time, then by `order`."""
    kept = [host_id for host_id in request.keep if _can_stay(request, snapshot, host_id)]
    if request.must_keep and len(kept) < len(request.keep):
        return _cannot_stay(request, snapshot, kept)
    wanted = max(request.high, len(kept)) if request.must_keep else request.high
    kept = kept[:wanted]
    more = wanted - len(kept)
    hosts = matching(request, snapshot)
    candidates = list(_candidates(request, hosts, snapshot, set(kept), more, order)) if more else []
    if len(kept) + len(candidates) < request.low:
        return _too_few(request, hosts, snapshot, len(kept) + len(candidates))
    chosen = arranged(
        request, [snapshot.hosts[i] for i in kept], _ranked(candidates, more, order), more
    )
    return Choice((*kept, *(host.id for host in chosen)))


def matching(request: HostRequest, snapshot: CapacitySnapshot) -> Sequence[Host]:
    """List the matching hosts, cached by conditions."""
    return _meeting(request.conditions, snapshot)


def _meeting(wanted: tuple[Condition, ...], snapshot: CapacitySnapshot) -> Sequence[Host]:
    """Match condition by condition: a refusal says how many hosts each condition removed."""
    if not wanted:
        return snapshot.matching((), lambda _host: True)
    return snapshot.matching(wanted, wanted[-1].test, lambda: _meeting(wanted[:-1], snapshot))


# Candidates.


def _can_stay(request: HostRequest, snapshot: CapacitySnapshot, host_id: int) -> bool:
    host = snapshot.hosts.get(host_id)
    return (
        host is not None
        and matches(host, request.conditions)
        and snapshot.line(host_id).is_free(request.start, request.end)
    )


def _candidates(
    request: HostRequest,
    hosts: Sequence[Host],
    snapshot: CapacitySnapshot,
    besides: set[int],
    more: int,
    order: Order,
) -> Iterator[_Candidate]:
    """Yield free hosts: all of a few; of many, until there are enough to choose from."""
    everything = len(hosts) <= FEW or request.spread or request.pack
    enough = len(hosts) if everything else 4 * more + 64
    looked_at: Iterable[Host] = _some_then_free(request, _from(hosts, order), snapshot)
    if enough > SOME:
        looked_at = free = snapshot.free(_from(hosts, order), request.start, request.end)
        # Too few: no need to compare them.
        if len(besides.union(host.id for host in free)) < request.low:
            yield from (_Candidate(host, (0.0, 0.0)) for host in free if host.id not in besides)
            return
    perfect = 0
    for host in looked_at:
        gap = snapshot.line(host.id).gap(request.start, request.end)
        if gap is None or host.id in besides:
            continue
        rest = _rest(request, gap)
        yield _Candidate(host, rest)
        enough -= 1
        perfect += not any(rest)
        if enough <= 0 or (perfect >= more and not everything):
            return


def _from(hosts: Sequence[Host], order: Order) -> Sequence[Host]:
    """Rotate the hosts to begin elsewhere than rivals."""
    begin = 0
    if order is not BY_ID and hosts:
        begin = int(abs(order(hosts[0].id)) * 1_000_003) % len(hosts)
    return [*hosts[begin:], *hosts[:begin]] if begin else hosts


def _some_then_free(
    request: HostRequest, hosts: Sequence[Host], snapshot: CapacitySnapshot
) -> Iterator[Host]:
    """Yield some hosts to check one by one, then the free hosts among the rest."""
    yield from hosts[:SOME]
    others = hosts[SOME:]
    if others:
        yield from snapshot.free(others, request.start, request.end)


def _rest(request: HostRequest, gap: tuple[float, float]) -> tuple[float, float]:
    """Return the unused rest of the gap around a lease; less is better.

    First the smaller side, then both sides together. On recorded request traces this order
    refuses the fewest requests (bench/plan_scale).
    """
    before, after = gap
    left = request.start - max(before, min(request.now, request.start))
    right = after - request.end
    return min(left, right), left + right


# Choice.


def _ranked(candidates: Sequence[_Candidate], more: int, order: Order) -> list[Host]:
    """Rank the candidates, best first; with rivals, good ones in random order."""
    by_rest = sorted(candidates, key=lambda candidate: (candidate.rest, candidate.host.id))
    if order is not BY_ID:
        good = by_rest[: 4 * more + 64]
        by_rest[: len(good)] = sorted(good, key=lambda candidate: order(candidate.host.id))
    return [candidate.host for candidate in by_rest]


def arranged(
    request: HostRequest, kept: Sequence[Host], ranked: Sequence[Host], more: int
) -> Sequence[Host]:
    """Select hosts from the ranking: the first, or spread or packed as requested."""
    if request.spread:
        return _spread(kept, ranked, more, request.spread)
    if request.pack:
        return _packed(kept, ranked, more, request.pack)
    return ranked[:more]


def _plan_label(host: Host, by: str) -> str:
    return host.rack if by == "rack" else host.zone


def _spread(kept: Sequence[Host], ranked: Sequence[Host], more: int, by: str) -> list[Host]:
    """Select each host from the group with the fewest so far; hosts without a label form a
    group."""
    used = Counter(_plan_label(host, by) for host in kept)
    groups: dict[str, list[Host]] = {}
    for host in ranked:
        groups.setdefault(_plan_label(host, by), []).append(host)
    queue = [(used[label], rank, label, 0) for rank, label in enumerate(groups)]
    heapq.heapify(queue)
    chosen: list[Host] = []
    while queue and len(chosen) < more:
        taken, rank, label, position = heapq.heappop(queue)
        chosen.append(groups[label][position])
        if position + 1 < len(groups[label]):
            heapq.heappush(queue, (taken + 1, rank, label, position + 1))
    return chosen


def _packed(kept: Sequence[Host], ranked: Sequence[Host], more: int, by: str) -> list[Host]:
    """Select from groups in use first, then whole groups; the last group is the smallest that
    fits."""
    used = {_plan_label(host, by) for host in kept} - {""}
    groups: dict[str, list[Host]] = {}
    for host in ranked:  # a host without a label is near to no other
        groups.setdefault(_plan_label(host, by) or f"\n{host.id}", []).append(host)
    chosen: list[Host] = []
    while groups and len(chosen) < more:
        label = _next_group(groups, used, more - len(chosen))
        chosen += groups.pop(label)[: more - len(chosen)]
    return chosen


def _next_group(groups: dict[str, list[Host]], used: set[str], more: int) -> str:
    open_ones = [label for label in groups if label in used] or list(groups)
    large = [label for label in open_ones if len(groups[label]) >= more]
    if large:
        return min(large, key=lambda label: len(groups[label]))
    return max(open_ones, key=lambda label: len(groups[label]))


# Refusals.


def _cannot_stay(request: HostRequest, snapshot: CapacitySnapshot, kept: Sequence[int]) -> Refusal:
    lost = [host_id for host_id in request.keep if host_id not in kept]
    named = (
        ", ".join(snapshot.hosts[i].name for i in lost if i in snapshot.hosts) or "one of its hosts"
    )
    sentence = f"the lease is active and {named} cannot stay with it in that window"
    return Refusal(sentence, busy=tuple(lost[:MOST_BUSY]))


def _too_few(
    request: HostRequest, hosts: Sequence[Host], snapshot: CapacitySnapshot, free: int
) -> Refusal:
    removed = _removed(request, snapshot)
    removals = ", ".join(f"{text} removed {count}" for text, count in removed if count)
    lacking = _lacking(request, snapshot)
    return Refusal(
        f"{request.low} asked for; of {len(snapshot.hosts)} hosts {len(hosts)} match"
        f"{f' ({removals})' if removals else ''}"
        f" and {free} of those {'is' if free == 1 else 'are'} free in the window"
        f"{f'; no host has {lacking}' if lacking else ''}",
        conditions=removed,
        matching=len(hosts),
        free=free,
        busy=_in_the_way(request, hosts, snapshot),
    )


def _removed(request: HostRequest, snapshot: CapacitySnapshot) -> tuple[tuple[str, int], ...]:
    """Count the hosts that each condition removed from those left by the conditions before."""
    removals: list[tuple[str, int]] = []
    left = len(snapshot.hosts)
    for position, condition in enumerate(request.conditions, start=1):
        before, left = left, len(_meeting(request.conditions[:position], snapshot))
        removals.append((condition.text, before - left))
    return tuple(removals)


def _lacking(request: HostRequest, snapshot: CapacitySnapshot) -> str:
    """Return the first requested property missing on every host; most likely a typo."""
    keys = sorted({key.split(":", 1)[0] for c in request.conditions for key in c.keys})
    masked = frozenset(name for c in request.conditions for name in c.masked)
    for key in keys:
        if key in masked or all(host.fact(key) is None for host in snapshot.hosts.values()):
            return key
    return ""


def _in_the_way(
    request: HostRequest, hosts: Sequence[Host], snapshot: CapacitySnapshot
) -> tuple[int, ...]:
    first = snapshot.first_back(hosts, request.start, request.end, MOST_BUSY)
    return tuple(host.id for host in first)


# A resource type states once what a reservation needs in place of a failed host
# (`Resource.need`); one repair plan then weighs the needs of all types together.


#: Selects hosts: from the kept hosts, the free hosts (best first), and the number to take.
Arrange = Callable[[Sequence[Host], Sequence[Host], int], Sequence[Host]]


class How(Enum):
    """Placement of a reservation's units: on different hosts, on the same host, or anywhere."""

    APART = "apart"
    TOGETHER = "together"
    ANYWHERE = "anywhere"


@dataclass(frozen=True)
class Need:
    """Units needed for a time: whole hosts (`size` None), or slots of `size` each."""

    held: Window
    units: int
    size: Mapping[str, int] | None = None
    where: tuple[Condition, ...] = ()
    how: How = How.APART
    besides: frozenset[int] = frozenset()  # hosts with allocations of the reservation that stay
    arrange: Arrange | None = field(default=None, compare=False)  # spread or packed

    @cached_property
    def start(self) -> float:
        return self.held.start.timestamp()

    @cached_property
    def end(self) -> float:
        return self.held.end.timestamp()

    @property
    def spots(self) -> int:
        """The most hosts on which the need can block others."""
        return 1 if self.how is How.TOGETHER else self.units

    @property
    def what(self) -> str:
        return "hosts" if self.size is None else "slots"

    def meets(self, other: "Need") -> bool:
        return self.start < other.end and other.start < self.end

    def allocations(self, chosen: Mapping[int, int]) -> tuple[Allocation, ...]:
        """Return the allocations for a choice of units per host."""
        if self.size is None:
            return tuple(Allocation(host_id, self.held) for host_id in sorted(chosen))
        size = self.size.items()
        return tuple(
            Allocation(host_id, self.held, units, {name: units * n for name, n in size})
            for host_id, units in sorted(chosen.items())
        )
