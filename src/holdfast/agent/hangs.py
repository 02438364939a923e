# SPDX-License-Identifier: Apache-2.0
"""Detects hung guests by QEMU guest agent heartbeat and activity, and vCPUs that get no CPU time.

A QEMU guest agent that does not answer proves nothing by itself: it may be stopped or starved. The
detector therefore also checks the guest's activity. A guest that does disk or network I/O, or uses
some CPU, is alive. A guest without I/O that is idle or only spins is hung. A paused guest is not
judged; its track starts anew when it resumes.

    track, said = judge_hang(HangTrack(), pulse, now, HangSettings())  # said: "", "hung" or "alive"
    track, is_stalled = judge_stall(StallTrack.of(before, 0.0), vcpu, 10.0, StallSettings())

No I/O here: a driver asks the guest agents. `HangWatch` and `StallWatch` return events, which
`agent/guest_state.py` judges.
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
    #: CPU use in shares of one CPU: up to the first a guest is idle, from the second it spins.
    idle_share: float = 0.02
    spinning_share: float = 0.9


@dataclass(frozen=True, slots=True)
class HangTrack:
    """The heartbeat history of a guest. Times are monotonic."""

    missed: int = 0
    still_since: float = 0.0  # no I/O since then
    io: int | None = None
    cpu_s: float | None = None  # CPU time used when I/O stopped
    answered: bool = False  # ever: a guest whose agent never answered may still be booting
    hung: str = ""  # idle or spinning, once reported


def judge_hang(
    track: HangTrack, pulse: Pulse, now: float, settings: HangSettings
) -> tuple[HangTrack, str]:
    """Return the track after this pulse, and "hung", "alive" or "" as the change to report."""
    if pulse.answered:
        fresh = HangTrack(io=pulse.io, cpu_s=pulse.cpu_s, still_since=now, answered=True)
        return fresh, ALIVE if track.hung else ""
    if not pulse.open or pulse.io is None or pulse.cpu_s is None:
        # the guest agent is not connected, or there are no counters: no ground for a new verdict,
        # and none to withdraw an old one
        return (track, "") if track.hung else (HangTrack(answered=track.answered), "")
    track = replace(track, missed=track.missed + 1)
    if track.io is None:  # the first counters: nothing to compare with yet
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
    """Return "idle" or "spinning" by CPU use, or "" if the guest does real work."""
    used = (cpu_s - (track.cpu_s or 0.0)) / (now - track.still_since)
    if used <= settings.idle_share:
        return IDLE
    return SPINNING if used >= settings.spinning_share else ""


class HangWatch:
    """Heartbeat tracks of all guests with heartbeat monitoring."""

    def __init__(self, settings: HangSettings | None = None) -> None:
        self.settings = settings or HangSettings()
        self.tracks: dict[str, HangTrack] = {}

    def recall(self, reported: Iterable[str], unreported: Iterable[str] = ()) -> None:
        """Restore the verdicts of the previous agent process.

        `reported` were reported as hung. `unreported` had a hang that was not reported yet; the
        watch reports it again if it persists.
        """
        self.tracks |= {uuid: HangTrack(answered=True, hung=IDLE) for uuid in reported}
        self.tracks |= {uuid: HangTrack(answered=True) for uuid in unreported}

    def check(
        self, pulses: Iterable[Pulse], running: Collection[str], at: datetime, now: float
    ) -> list[Event]:
        """Return the hang events of running guests; forget guests without a pulse."""
        events, tracks = [], {}
        for pulse in pulses:
            old = self.tracks.get(pulse.uuid, HangTrack())
            if pulse.uuid not in running:
                tracks[pulse.uuid] = HangTrack(answered=old.answered)
                continue
            tracks[pulse.uuid], sign = judge_hang(old, pulse, now, self.settings)
            if sign:
                how = tracks[pulse.uuid].hung
                events.append(
                    Event(pulse.uuid, pulse.name, HANG, at, sign, how, metadata=pulse.metadata)
                )
        self.tracks = tracks
        return events


# vCPU stalls: a vCPU thread is runnable and gets no CPU time of the host.
#
# A sleeping vCPU is not judged: from outside, a guest with nothing to do looks like a guest that
# waits for ever; only its guest agent can tell (above). If most guests with runnable vCPUs are
# stalled, the host is short of CPUs. The agent then logs that once and reports no guest.


LOG = logging.getLogger(__name__)

STALLED: Final = "stalled"
RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class StallSettings:
    stalled_s: float = 30.0
    #: Share of one CPU: a vCPU thread that gets no more counts as getting nothing. A thread of the
    #: lowest scheduling priority gets a third of this.
    nothing_share: float = 0.01
    #: A vCPU thread that waited for at least this share of the time wanted to run, even if it
    #: sleeps at this moment.
    waiting_share: float = 0.5


@dataclass(frozen=True, slots=True)
class StallTrack:
    """The scheduling history of a vCPU. Times are monotonic."""

    thread: int
    ran_ns: int
    waited_ns: int
    at: float  # of the last check
    since: float  # the vCPU has wanted CPU time and got none since then
    busy: bool = False  # the vCPU ran or wanted to run

    @classmethod
    def of(cls, vcpu: Vcpu, now: float, *, busy: bool = False) -> "StallTrack":
        return cls(vcpu.thread, vcpu.ran_ns, vcpu.waited_ns, now, now, busy)


def judge_stall(
    track: StallTrack | None, vcpu: Vcpu, now: float, settings: StallSettings
) -> tuple[StallTrack, bool]:
    """Return the track after this check, and whether the vCPU is stalled."""
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
    """Stall tracks of the vCPUs of all guests of a host."""

    def __init__(self, settings: StallSettings | None = None) -> None:
        self.settings = settings or StallSettings()
        self.tracks: dict[tuple[str, int], StallTrack] = {}
        self.reported: dict[str, str] = {}  # names of guests reported as stalled, by uuid
        self.host_is_short = False

    def check(
        self, vcpus: Iterable[Vcpu], known: Mapping[str, str], at: datetime, now: float
    ) -> list[Event]:
        """Return the stall events of running guests (`known`: names by uuid)."""
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
        over = [uuid for uuid in self.reported if uuid not in stalled and uuid in here]
        events = [Event(uuid, self.reported[uuid], HANG, at, RUNNING) for uuid in over]
        self.reported = {uuid: name for uuid, name in self.reported.items() if uuid in stalled}
        for uuid, numbers in stalled.items():
            if uuid not in self.reported and not self.host_is_short:
                self.reported[uuid] = known[uuid]
                which = f"vcpu {', '.join(map(str, sorted(numbers)))}"
                events.append(Event(uuid, known[uuid], HANG, at, STALLED, which))
        return events

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
