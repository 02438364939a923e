# SPDX-License-Identifier: Apache-2.0
"""When too much fails at once, it is more likely that we see wrong than that so much broke.

Hosts are counted by failure domain (rack, or zone where racks are not known), and the first row of
the table that matches wins:

    most of every domain is down, three hosts at least    nothing is done: is it us?
    one or two hosts of the domain                        go on
    less than `some` of it                                go on, slowly
    less than `many`                                      go on, very slowly
    more                                                  the domain is held until somebody approves
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GO, SLOW, SLOWER, HOLD, STOP = "go", "slow", "slower", "hold", "stop"


@dataclass(frozen=True)
class Rule:
    few: int = 2
    some: float = 0.30
    many: float = 0.55
    least: int = 3  # so many must be down before everything stops


@dataclass(frozen=True)
class Seen:
    """One host: where it is, and whether it is down."""

    domain: str
    down: bool


@dataclass(frozen=True)
class Verdict:
    what: str
    sentence: str = ""


def judge(hosts: Iterable[Seen], rule: Rule | None = None) -> Mapping[str, Verdict]:
    """A verdict for each domain in which something is down."""
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
