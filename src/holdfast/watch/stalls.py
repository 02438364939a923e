# SPDX-License-Identifier: Apache-2.0
"""Whether a guest's processor is stalled: it wants to go on, and does not get to.

    track, is_stalled = judge(Track.of(before, now=0.0), vcpu, 10.0, Settings())

A processor that sleeps is left alone: nobody outside can tell a guest with nothing to do from one
that waits for ever, but its agent (`watch/hangs.py`). If most guests that want to run are stalled
it is the host that is short of processors: that is said once, of the host, and of no guest.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.ports.guests import HANG, Event
from holdfast.ports.vcpus import Vcpu

LOG = logging.getLogger(__name__)

STALLED: Final = "stalled"
RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class Settings:
    stalled_s: float = 30.0
    #: Of one processor: who gets less, gets nothing. The lowest of priorities gets a third of it.
    nothing_share: float = 0.01
    #: Who waited for so much of the time wanted to run, whatever it does at this moment.
    waiting_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of one processor. Times are monotonic."""

    thread: int
    ran_ns: int
    waited_ns: int
    at: float  # of the last look
    since: float  # it has got nothing since then, though it wanted to
    busy: bool = False  # it ran, or wanted to

    @classmethod
    def of(cls, vcpu: Vcpu, now: float, *, busy: bool = False) -> "Track":
        return cls(vcpu.thread, vcpu.ran_ns, vcpu.waited_ns, now, now, busy)


def judge(track: Track | None, vcpu: Vcpu, now: float, settings: Settings) -> tuple[Track, bool]:
    """The track after this look, and whether it is stalled."""
    if track is None or track.thread != vcpu.thread or vcpu.ran_ns < track.ran_ns:
        return Track.of(vcpu, now), False
    passed_ns = max(now - track.at, 1e-3) * 1e9
    got = vcpu.ran_ns - track.ran_ns > settings.nothing_share * passed_ns
    waited = vcpu.waited_ns - track.waited_ns >= settings.waiting_share * passed_ns
    wants = vcpu.wants or waited
    fresh = Track.of(vcpu, now, busy=got or wants)
    if got or not wants:
        return fresh, False
    return replace(fresh, since=track.since), now - track.since >= settings.stalled_s


class StallWatch:
    """All guests of a host."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.tracks: dict[tuple[str, int], Track] = {}
        self.told: dict[str, str] = {}  # names of guests of which it was said
        self.host_is_short = False

    def look(
        self, vcpus: Iterable[Vcpu], known: Mapping[str, str], at: datetime, now: float
    ) -> list[Event]:
        """What is to be heard now of guests that are `known` to run (names by uuid)."""
        stalled: dict[str, list[int]] = defaultdict(list)
        tracks, busy = {}, set()
        for vcpu in vcpus:
            if vcpu.uuid not in known:
                continue
            key = vcpu.uuid, vcpu.number
            tracks[key], is_stalled = judge(self.tracks.get(key), vcpu, now, self.settings)
            if tracks[key].busy:
                busy.add(vcpu.uuid)
            if is_stalled:
                stalled[vcpu.uuid].append(vcpu.number)
        self.tracks = tracks
        self._of_the_host(len(stalled), len(busy))
        here = {uuid for uuid, _ in tracks}
        over = [uuid for uuid in self.told if uuid not in stalled and uuid in here]
        said = [Event(uuid, self.told[uuid], HANG, at, RUNNING) for uuid in over]
        self.told = {uuid: name for uuid, name in self.told.items() if uuid in stalled}
        for uuid, numbers in stalled.items():
            if uuid not in self.told and not self.host_is_short:
                self.told[uuid] = known[uuid]
                which = f"vcpu {', '.join(map(str, sorted(numbers)))}"
                said.append(Event(uuid, known[uuid], HANG, at, STALLED, which))
        return said

    def _of_the_host(self, stalled: int, busy: int) -> None:
        short = stalled >= 2 and stalled * 2 > busy
        if short and not self.host_is_short:
            LOG.error(
                "this host is short of processors: %d of the %d guests that want to run have got"
                " none for %g s; none of them is blamed for it. Look for what takes the processors,"
                " or for a quota on all guests",
                stalled,
                busy,
                self.settings.stalled_s,
            )
        elif self.host_is_short and not short:
            LOG.info("guests get processors again: %d of %d wait for one", stalled, busy)
        self.host_is_short = short
