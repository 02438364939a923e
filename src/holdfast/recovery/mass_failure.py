# SPDX-License-Identifier: Apache-2.0
"""Mass-failure rule: when many hosts fail at once, the observer is more likely at fault.

Hosts are counted by failure domain (rack, or zone if racks are unknown). The first matching row
of this table decides:

    most of every domain is down, at least three hosts    stop: the observer may be at fault
    one or two hosts of the domain                        go on
    less than `some` of the domain                        go on slowly
    less than `many` of the domain                        go on very slowly
    more                                                  hold the domain until an operator approves
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GO, SLOW, SLOWER, HOLD, STOP = "go", "slow", "slower", "hold", "stop"


@dataclass(frozen=True)
class Rule:
    """Limits of the mass-failure rule: `few` is a host count, `some` and `many` are shares."""

    few: int = 2
    some: float = 0.30
    many: float = 0.55
    least: int = 3  # minimum number of hosts down before everything stops


@dataclass(frozen=True)
class Seen:
    """A host: failure domain and up or down."""

    domain: str
    down: bool


@dataclass(frozen=True)
class Verdict:
    """The permission to recover in a failure domain, and the reason."""

    what: str
    sentence: str = ""


def judge(hosts: Iterable[Seen], rule: Rule | None = None) -> Mapping[str, Verdict]:
    """A verdict for each failure domain with at least a host down."""
    rule = rule or Rule()
    total: dict[str, int] = {}
    down: dict[str, int] = {}
    for host in hosts:
        total[host.domain] = total.get(host.domain, 0) + 1
        down[host.domain] = down.get(host.domain, 0) + host.down
    hit = {name: count for name, count in down.items() if count}
    lost = sum(hit.values())
    everywhere = all(down[name] / total[name] >= rule.many for name in total)
    if hit and everywhere and lost >= rule.least:
        said = f"{lost} of {sum(total.values())} hosts are down, most of every failure domain"
        return {name: Verdict(STOP, f"{said}: is it we who cannot see?") for name in hit}
    return {name: _one(name, count, total[name], rule) for name, count in hit.items()}


def _one(name: str, down: int, total: int, rule: Rule) -> Verdict:
    share = down / total
    where = f"in {name}" if name else "here"
    said = f"{down} of {total} hosts {where} are down"
    if down <= rule.few:
        return Verdict(GO, said)
    if share < rule.some:
        return Verdict(SLOW, said)
    if share < rule.many:
        return Verdict(SLOWER, said)
    return Verdict(HOLD, f"{said}: too many at once to be sure")
