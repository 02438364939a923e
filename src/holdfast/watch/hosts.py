# SPDX-License-Identifier: Apache-2.0
"""The one road for what anybody knows of hosts: sightings in, standings written, repair armed.

Monitors take it; so do fencing, recovery and operators, with a source of their own:

    watch.see([Sighting(host="cmp-7", source="recovery", verdict=DOWN, decisive=True, …)])
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.errors import StaleWrite
from holdfast.model.host import normalise, same, short
from holdfast.model.standing import SUSPECT, UP, Rules, Sighting, Standing, judge, ripen
from holdfast.ports.standings import Change, Repair, Standings, Watched

LOG = logging.getLogger(__name__)

#: How often somebody else may be faster before we leave it to the next sample.
TRIES = 5

_Next = Callable[[Standing, datetime], Standing]
_Sort = Callable[[Sequence[Watched]], Mapping[int, _Next]]


@dataclass(frozen=True)
class Outcome:
    """What became of some sightings."""

    hosts: int = 0  # of which they spoke
    suspects: int = 0
    moved: tuple[str, ...] = ()  # a sentence for each that changed

    def __str__(self) -> str:
        return "; ".join([f"{self.hosts} hosts seen", *self.moved])


class HostWatch:
    def __init__(
        self,
        standings: Standings,
        rules: Rules,
        *,
        repair: Repair | None = None,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        self._standings = standings
        self._rules = rules
        self._repair = repair
        self._ring = ring

    def see(self, sightings: Sequence[Sighting], *, news: bool = True) -> Outcome:
        """Judge by these. `news` False: a look, one of many, of which those that say nothing new
        are not written down, not even their time."""
        if not sightings:
            return Outcome()

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {
                host_id: functools.partial(self._judge_all, some)
                for host_id, some in by_host(watched, sightings).items()
            }

        return self._settle(sort, news)

    def ripen(self) -> Outcome:
        """Let time do its part where nobody looks."""

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {one.id: lambda old, now: ripen(old, self._rules, now) for one in watched}

        return self._settle(sort, False)

    def _judge_all(self, sightings: Sequence[Sighting], old: Standing, now: datetime) -> Standing:
        for one in sorted(sightings, key=lambda sighting: sighting.at):
            old = judge(old, one, self._rules, now)
        return old

    def _settle(self, sort: _Sort, news: bool) -> Outcome:
        """Look, judge, write; again where somebody else was faster."""
        moved: list[str] = []
        for _ in range(TRIES):
            watched, now = self._standings.watched(), self._standings.now()
            nexts = sort(watched)
            judged = [(one, nexts[one.id](one.standing, now)) for one in watched if one.id in nexts]
            changes = [
                _change(one, new) for one, new in judged if self._is_new(one.standing, new, news)
            ]
            left = self._standings.change(changes, self._repair) if changes else set()
            moved += self._tell(one for one in changes if one.host_id not in left)
            if not left:
                suspects = sum(new.state == SUSPECT for _one, new in judged)
                return Outcome(len(judged), suspects, tuple(moved))
        raise StaleWrite("somebody else always judges these hosts first; try again")

    def _is_new(self, old: Standing, new: Standing, news: bool) -> bool:
        return new != old and (news or new.differs(old, self._rules))

    def _tell(self, changes: Iterable[Change]) -> list[str]:
        said = []
        for one in changes:
            if one.say:
                said.append(one.say)
                LOG.log(logging.INFO if one.new.usable else logging.WARNING, "%s", one.say)
        if said:
            self._ring()  # work may follow from it
        return said


def by_host(watched: Sequence[Watched], sightings: Sequence[Sighting]) -> dict[int, list[Sighting]]:
    """Who is meant: by full name, or by the short one if only one host can be meant."""
    full: dict[str, int] = {}
    shorts: dict[str, list[tuple[str, int]]] = {}
    for one in watched:
        for name in (normalise(one.hypervisor_hostname), one.name):
            full[name] = one.id
            shorts.setdefault(short(name), []).append((name, one.id))
    found: dict[int, list[Sighting]] = {}
    for sighting in sightings:
        name = normalise(sighting.host)
        meant = (
            {full[name]}
            if name in full
            else {host_id for known, host_id in shorts.get(short(name), ()) if same(known, name)}
        )
        if len(meant) == 1:
            found.setdefault(meant.pop(), []).append(sighting)
        elif meant:
            LOG.warning(
                "%s says %s of %s: that name means several hosts, so it is left aside",
                sighting.source,
                sighting.verdict,
                sighting.host,
            )
    return found


def _change(one: Watched, new: Standing) -> Change:
    old = one.standing
    say = ""
    if old.state != new.state and {old.state, new.state} != {UP, SUSPECT}:
        used = (
            ""
            if old.usable == new.usable
            else (" It takes reservations again." if new.usable else " It takes no reservations.")
        )
        say = f"host {one.name}: {old.state} -> {new.state}: {new.why}.{used}"
    return Change(one.id, old, new, say)
