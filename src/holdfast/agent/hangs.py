# SPDX-License-Identifier: Apache-2.0
"""Whether a guest hangs: by the heartbeat of its agent, and by what it does.

An agent that does not answer proves nothing by itself: it may have been stopped, or starved. So
before a verdict the guest's activity is looked at. What reads or writes, on disks or networks,
lives; what computes a little lives too. What stands quite still, or only spins, hangs. One that is
paused does neither by its own will: it is not judged, and begins anew when it goes on.

    track, said = judge(Track(), pulse, now, Settings())      # said: "", "hung" or "alive"

Pure; who asks the agents of many guests at once is a driver. `HangWatch` makes events of it, for
`agent/guest_state.py` to judge.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.ports.guests import HANG, Event, Pulse, Vcpu

HUNG: Final = "hung"
ALIVE: Final = "alive"
IDLE: Final = "idle"
SPINNING: Final = "spinning"


@dataclass(frozen=True, slots=True)
class HangSettings:
    misses: int = 3
    quiet_s: float = 30.0
    #: Of one processor: below the first it stands still, above the second at least one spins.
    idle_share: float = 0.02
    spinning_share: float = 0.9


@dataclass(frozen=True, slots=True)
class HangTrack:
    """What is remembered of one guest. Times are monotonic."""

    missed: int = 0
    still_since: float = 0.0  # no input or output since then
    io: int | None = None
    cpu_s: float | None = None  # when it became still
    answered: bool = False  # ever: who never did may still be booting
    hung: str = ""  # idle or spinning, once that was said


def judge_hang(
    track: HangTrack, pulse: Pulse, now: float, settings: HangSettings
) -> tuple[HangTrack, str]:
    """The track after this look, and what is to be said of the guest."""
    if pulse.answered:
        fresh = HangTrack(io=pulse.io, cpu_s=pulse.cpu_s, still_since=now, answered=True)
        return fresh, ALIVE if track.hung else ""
    if not pulse.open or pulse.io is None or pulse.cpu_s is None:
        # its agent has gone, or nothing can be seen: no reason to think so, none to take it back
        return (track, "") if track.hung else (HangTrack(answered=track.answered), "")
    track = replace(track, missed=track.missed + 1)
    if track.io is None:  # nothing to compare it with yet
        return replace(track, io=pulse.io, cpu_s=pulse.cpu_s, still_since=now), ""
    if pulse.io != track.io or _anew(track, pulse):
        moved = replace(track, io=pulse.io, cpu_s=pulse.cpu_s, still_since=now, hung="")
        return moved, ALIVE if track.hung else ""
    if track.hung or not track.answered or track.missed < settings.misses:
        return track, ""
    if now - track.still_since < settings.quiet_s:
        return track, ""
    how = _how(track, pulse.cpu_s, now, settings)
    return replace(track, hung=how), HUNG if how else ""


def _anew(track: HangTrack, pulse: Pulse) -> bool:
    return track.cpu_s is None or pulse.cpu_s is None or pulse.cpu_s < track.cpu_s


def _how(track: HangTrack, cpu_s: float, now: float, settings: HangSettings) -> str:
    """Idle, spinning, or "": it computes something."""
    used = (cpu_s - (track.cpu_s or 0.0)) / (now - track.still_since)
    if used <= settings.idle_share:
        return IDLE
    return SPINNING if used >= settings.spinning_share else ""


class HangWatch:
    """All guests that want it."""

    def __init__(self, settings: HangSettings | None = None) -> None:
        self.settings = settings or HangSettings()
        self.tracks: dict[str, HangTrack] = {}

    def recall(self, told: Iterable[str], unsaid: Iterable[str] = ()) -> None:
        """Of these it was told before our time that they hang, and of these it was only thought:
        then it is said again if it is still so."""
        self.tracks |= {uuid: HangTrack(answered=True, hung=IDLE) for uuid in told}
        self.tracks |= {uuid: HangTrack(answered=True) for uuid in unsaid}

    def check(
        self, pulses: Iterable[Pulse], running: Collection[str], at: datetime, now: float
    ) -> list[Event]:
        """What is to be heard now of those that are known to run. Of who is not among the pulses
        nothing is remembered."""
        events, tracks = [], {}
        for pulse in pulses:
            old = self.tracks.get(pulse.uuid, HangTrack())
            if pulse.uuid not in running:
                tracks[pulse.uuid] = HangTrack(answered=old.answered)
                continue
            tracks[pulse.uuid], said = judge_hang(old, pulse, now, self.settings)
            if said:
                how = tracks[pulse.uuid].hung
                events.append(
                    Event(pulse.uuid, pulse.name, HANG, at, said, how, metadata=pulse.metadata)
                )
        self.tracks = tracks
        return events


# Whether a guest's processor is stalled: it wants to go on, and does not get to.
#
#     track, is_stalled = judge(Track.of(before, now=0.0), vcpu, 10.0, Settings())
#
# A processor that sleeps is left alone: nobody outside can tell a guest with nothing to do from
# one
# that waits for ever, but its agent (`agent/hangs.py`). If most guests that want to run are
# stalled
# it is the host that is short of processors: that is said once, of the host, and of no guest.


LOG = logging.getLogger(__name__)

STALLED: Final = "stalled"
RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class StallSettings:
    stalled_s: float = 30.0
    #: Of one processor: who gets less, gets nothing. The lowest of priorities gets a third of it.
    nothing_share: float = 0.01
    #: Who waited for so much of the time wanted to run, whatever it does at this moment.
    waiting_share: float = 0.5


@dataclass(frozen=True, slots=True)
class StallTrack:
    """What is remembered of one processor. Times are monotonic."""

    thread: int
    ran_ns: int
    waited_ns: int
    at: float  # of the last look
    since: float  # it has got nothing since then, though it wanted to
    busy: bool = False  # it ran, or wanted to

    @classmethod
    def of(cls, vcpu: Vcpu, now: float, *, busy: bool = False) -> "StallTrack":
        return cls(vcpu.thread, vcpu.ran_ns, vcpu.waited_ns, now, now, busy)


def judge_stall(
    track: StallTrack | None, vcpu: Vcpu, now: float, settings: StallSettings
) -> tuple[StallTrack, bool]:
    """The track after this look, and whether it is stalled."""
    if track is None or track.thread != vcpu.thread or vcpu.ran_ns < track.ran_ns:
        return StallTrack.of(vcpu, now), False
    passed_ns = max(now - track.at, 1e-3) * 1e9
    got = vcpu.ran_ns - track.ran_ns > settings.nothing_share * passed_ns
    waited = vcpu.waited_ns - track.waited_ns >= settings.waiting_share * passed_ns
    wants = vcpu.wants or waited
    fresh = StallTrack.of(vcpu, now, busy=got or wants)
    if got or not wants:
        return fresh, False
    return replace(fresh, since=track.since), now - track.since >= settings.stalled_s


class StallWatch:
    """All guests of a host."""

    def __init__(self, settings: StallSettings | None = None) -> None:
        self.settings = settings or StallSettings()
        self.tracks: dict[tuple[str, int], StallTrack] = {}
        self.told: dict[str, str] = {}  # names of guests of which it was said
        self.host_is_short = False

    def check(
        self, vcpus: Iterable[Vcpu], known: Mapping[str, str], at: datetime, now: float
    ) -> list[Event]:
        """What is to be heard now of guests that are `known` to run (names by uuid)."""
        stalled: dict[str, list[int]] = defaultdict(list)
        tracks, busy = {}, set()
        for vcpu in vcpus:
            if vcpu.uuid not in known:
                continue
            key = vcpu.uuid, vcpu.number
            tracks[key], is_stalled = judge_stall(self.tracks.get(key), vcpu, now, self.settings)
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
