# SPDX-License-Identifier: Apache-2.0
"""Whether a guest hangs: by the heartbeat of its agent, and by what it does.

An agent that does not answer proves nothing by itself: it may have been stopped, or starved. So
before a verdict the guest's activity is looked at. What reads or writes, on disks or networks,
lives; what computes a little lives too. What stands quite still, or only spins, hangs. One that is
paused does neither by its own will: it is not judged, and begins anew when it goes on.

    track, said = judge(Track(), pulse, now, Settings())      # said: "", "hung" or "alive"

Pure; who asks the agents of many guests at once is a driver. `HangWatch` makes events of it, for
`watch/guests.py` to judge.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.ports.guests import HANG, Event, Pulse

HUNG: Final = "hung"
ALIVE: Final = "alive"
IDLE: Final = "idle"
SPINNING: Final = "spinning"


@dataclass(frozen=True, slots=True)
class Settings:
    misses: int = 3
    quiet_s: float = 30.0
    #: Of one processor: below the first it stands still, above the second at least one spins.
    idle_share: float = 0.02
    spinning_share: float = 0.9


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of one guest. Times are monotonic."""

    missed: int = 0
    still_since: float = 0.0  # no input or output since then
    io: int | None = None
    cpu_s: float | None = None  # when it became still
    answered: bool = False  # ever: who never did may still be booting
    hung: str = ""  # idle or spinning, once that was said


def judge(track: Track, pulse: Pulse, now: float, settings: Settings) -> tuple[Track, str]:
    """The track after this look, and what is to be said of the guest."""
    if pulse.answered:
        fresh = Track(io=pulse.io, cpu_s=pulse.cpu_s, still_since=now, answered=True)
        return fresh, ALIVE if track.hung else ""
    if not pulse.open or pulse.io is None or pulse.cpu_s is None:
        # its agent has gone, or nothing can be seen: no reason to think so, none to take it back
        return (track, "") if track.hung else (Track(answered=track.answered), "")
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


def _anew(track: Track, pulse: Pulse) -> bool:
    return track.cpu_s is None or pulse.cpu_s is None or pulse.cpu_s < track.cpu_s


def _how(track: Track, cpu_s: float, now: float, settings: Settings) -> str:
    """Idle, spinning, or "": it computes something."""
    used = (cpu_s - (track.cpu_s or 0.0)) / (now - track.still_since)
    if used <= settings.idle_share:
        return IDLE
    return SPINNING if used >= settings.spinning_share else ""


class HangWatch:
    """All guests that want it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.tracks: dict[str, Track] = {}

    def recall(self, told: Iterable[str], unsaid: Iterable[str] = ()) -> None:
        """Of these it was told before our time that they hang, and of these it was only thought:
        then it is said again if it is still so."""
        self.tracks |= {uuid: Track(answered=True, hung=IDLE) for uuid in told}
        self.tracks |= {uuid: Track(answered=True) for uuid in unsaid}

    def look(
        self, pulses: Iterable[Pulse], running: Collection[str], at: datetime, now: float
    ) -> list[Event]:
        """What is to be heard now of those that are known to run. Of who is not among the pulses
        nothing is remembered."""
        events, tracks = [], {}
        for pulse in pulses:
            old = self.tracks.get(pulse.uuid, Track())
            if pulse.uuid not in running:
                tracks[pulse.uuid] = Track(answered=old.answered)
                continue
            tracks[pulse.uuid], said = judge(old, pulse, now, self.settings)
            if said:
                how = tracks[pulse.uuid].hung
                events.append(
                    Event(pulse.uuid, pulse.name, HANG, at, said, how, metadata=pulse.metadata)
                )
        self.tracks = tracks
        return events
