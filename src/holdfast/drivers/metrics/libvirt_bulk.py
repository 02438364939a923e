# SPDX-License-Identifier: Apache-2.0
"""What libvirt knows of many guests, asked in few calls, none of which is waited for long.

libvirtd walks through the guests of a call one after the other, and a QEMU that hangs holds up the
call it is met by, NOWAIT or not: NOWAIT only passes by one that somebody waits for already. So a
call that is late is left to hang, who holds it up is found out (`controlInfo`, which never waits),
and the others are asked again without it. While its call hangs it is not asked. A few such calls
at most: each takes a worker of libvirtd's. A domain is good for the line it was listed on alone, so
who is asked is known by its uuid and its number, and found among the domains of the line that asks.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.drivers.guests.calls import Call, Line, Lines
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.measures import Stats

#: Guests of one call; healthy ones answer within milliseconds each.
AT_ONCE: Final = 32
#: What a call gets.
LATE_S: Final = 2.0
MOST_HANGING: Final = 3
STATE, CPU, BALLOON, VCPU, BLOCK = 1, 2, 4, 8, 32
NOWAIT: Final = 1 << 29
_OCCUPIED: Final = 2
_STUCK_MS: Final = 800
HANGS: Final = "no answer"
CROWDED: Final = "not asked: other guests do not answer"
SLOW: Final = "libvirt is late"

Runs = dict[str, int]  # by uuid: the number, which is new at each start
Asked = Mapping[str, tuple[int, int]]  # by uuid: the number, and what to ask of it


class Bulk:
    """One thread at a time."""

    def __init__(self, lines: Lines, clock: Clock, *, late_s: float = LATE_S) -> None:
        self._lines = lines
        self._clock = clock
        self._late_s = late_s
        self._hanging: dict[str, Call[Any]] = {}  # by who holds it up

    def round(self, asked: Asked) -> tuple[dict[str, Stats], dict[str, str]]:
        """What each said; and why not, of those that did not."""
        self._hanging = {uuid: call for uuid, call in self._hanging.items() if not call.is_done}
        found: dict[str, Stats] = {}
        silent = dict.fromkeys((one for one in self._hanging if one in asked), HANGS)
        for groups, runs in _chunks(asked, silent):
            self._some(groups, runs, found, silent)
        return found, silent

    def _some(
        self, groups: int, runs: Runs, found: dict[str, Stats], silent: dict[str, str]
    ) -> None:
        while runs:
            if len(set(self._hanging.values())) >= MOST_HANGING:
                silent.update(dict.fromkeys(runs, CROWDED))
                return
            call = self._lines.begin("stats", functools.partial(_stats, runs, groups))
            try:
                answer = call.result(self._late_s)
            except DriverError:
                stuck = self._stuck(runs)
                self._hanging.update(dict.fromkeys(stuck or list(runs), call))
                silent.update(dict.fromkeys(stuck, HANGS) or dict.fromkeys(runs, SLOW))
                runs = {uuid: number for uuid, number in runs.items() if uuid not in silent}
                continue
            at = self._clock.monotonic()
            for uuid, values in answer.items():
                found[uuid] = Stats(at, values)
            return

    def _stuck(self, runs: Runs) -> list[str]:
        """Whose QEMU owes an answer; nobody's, if it is the daemon that does not answer."""
        try:
            return self._lines.ask("controlInfo", functools.partial(_occupied, runs), LATE_S)
        except DriverError:
            return []


def _domains(line: Line, runs: Runs) -> list[Any]:
    """Of those that are still there. They are listed if somebody is new to this line."""
    known: Mapping[str, Any] = line.domains
    if any(uuid not in known or known[uuid].ID() != number for uuid, number in runs.items()):
        known = line.list()
    return [known[uuid] for uuid in runs if uuid in known]


def _stats(runs: Runs, groups: int, line: Line) -> dict[str, dict[str, Any]]:
    domains = _domains(line, runs)
    if not domains:  # which libvirt does not take for an answer
        return {}
    answer = line.connection.domainListGetStats(domains, groups, NOWAIT)
    return {domain.UUIDString(): values for domain, values in answer}


def _occupied(runs: Runs, line: Line) -> list[str]:
    import libvirt

    found = []
    for domain in _domains(line, runs):
        try:
            state, _, waits_ms = domain.controlInfo()
        except libvirt.libvirtError:
            continue  # it has just ended
        if state == _OCCUPIED and waits_ms >= _STUCK_MS:
            found.append(domain.UUIDString())
    return found


def _chunks(asked: Asked, but: Mapping[str, str]) -> Iterator[tuple[int, Runs]]:
    by_groups: dict[int, Runs] = {}
    for uuid, (number, groups) in asked.items():
        if uuid not in but:
            by_groups.setdefault(groups, {})[uuid] = number
    for groups, runs in by_groups.items():
        uuids = list(runs)
        for start in range(0, len(uuids), AT_ONCE):
            yield groups, {uuid: runs[uuid] for uuid in uuids[start : start + AT_ONCE]}
