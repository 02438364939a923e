# SPDX-License-Identifier: Apache-2.0
"""Mass-failure rule: when many hosts fail at once, the observer is more likely at fault.

Hosts are counted by failure domain (rack, or zone if racks are unknown). The first matching row
of this table decides:

    most of every domain is down, at least three hosts    stop: the observer may be at fault
    `free_hosts` or fewer of the domain                   go on
    less than `throttle_ratio` of the domain              go on slowly
    less than `hold_ratio` of the domain                  go on very slowly
    more                                                  hold the domain until an operator approves
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

GO, SLOW, SLOWER, HOLD, STOP = "go", "slow", "slower", "hold", "stop"


#: Minimum number of failed hosts before the rule stops everything.
MIN_HOSTS = 3


class MassFailureLimits(Protocol):
    """The `[mass_failure]` options: a host count and two shares of a failure domain."""

    @property
    def free_hosts(self) -> int: ...
    @property
    def throttle_ratio(self) -> float: ...
    @property
    def hold_ratio(self) -> float: ...


@dataclass
class DefaultLimits:
    """The defaults of `[mass_failure]`."""

    free_hosts: int = 2
    throttle_ratio: float = 0.30
    hold_ratio: float = 0.55


@dataclass(frozen=True)
class FleetHost:
    """A host: failure domain and up or down."""

    domain: str
    down: bool


@dataclass(frozen=True)
class Verdict:
    """The permission to recover in a failure domain, and the reason."""

    mode: str
    sentence: str = ""


def judge(hosts: Iterable[FleetHost], limits: MassFailureLimits) -> Mapping[str, Verdict]:
    """A verdict for each failure domain with at least a host down."""
    total: dict[str, int] = {}
    down: dict[str, int] = {}
    for host in hosts:
        total[host.domain] = total.get(host.domain, 0) + 1
        down[host.domain] = down.get(host.domain, 0) + host.down
    hit = {name: count for name, count in down.items() if count}
    lost = sum(hit.values())
    everywhere = all(down[name] / total[name] >= limits.hold_ratio for name in total)
    if hit and everywhere and lost >= MIN_HOSTS:
        sentence = f"{lost} of {sum(total.values())} hosts are down, most of every failure domain"
        return {name: Verdict(STOP, f"{sentence}: is it we who cannot see?") for name in hit}
    return {name: _judge_domain(name, count, total[name], limits) for name, count in hit.items()}


def _judge_domain(name: str, down: int, total: int, limits: MassFailureLimits) -> Verdict:
    share = down / total
    where = f"in {name}" if name else "here"
    sentence = f"{down} of {total} hosts {where} are down"
    if down <= limits.free_hosts:
        return Verdict(GO, sentence)
    if share < limits.throttle_ratio:
        return Verdict(SLOW, sentence)
    if share < limits.hold_ratio:
        return Verdict(SLOWER, sentence)
    return Verdict(HOLD, f"{sentence}: too many at once to be sure")
