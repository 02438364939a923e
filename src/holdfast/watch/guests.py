# SPDX-License-Identifier: Apache-2.0
"""From what was heard and read of the guests of one host to what is told of them, by the filters.

    watch = GuestWatch(guest_filter_file.default())
    watch.hear(event, now)           # -> [Happening(state="failed", …)]
    watch.reconcile(guests, now)     # after each time the hypervisor was found again
    watch.look(now)                  # grace times that are over; watch.due() says when

One happening per failure, however many traces it leaves: they come together in a `Trouble` until
the guest runs again. Only what is worse than what was told is told on top. `now` is monotonic; the
dates in what is told are those of the events. No input, no output; one thread at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from holdfast.model.guest_filter import (
    IGNORE,
    RECOVER,
    REPORT,
    Filter,
    Sign,
    Tally,
    Verdict,
)
from holdfast.ports.guests import LIFECYCLE, REBOOT, Event, Guest
from holdfast.watch import guest_meaning as meaning
from holdfast.watch.guest_meaning import EVERYTHING, UNKNOWN, Meaning

FAILED: Final = "failed"
NOTED: Final = "noted"
_TOLD: Final = {RECOVER: FAILED, REPORT: NOTED, IGNORE: ""}
_RANK: Final = {"": 0, NOTED: 1, FAILED: 2}
#: One reset makes two or three events.
REBOOT_S: Final = 2.0
#: What is over at once and comes again within that time is the same trouble.
QUIET_S: Final = 60.0
#: Of how many traces of a trouble each is kept, the first ones.
MOST_TRACES: Final = 16


@dataclass(frozen=True, slots=True)
class Happening:
    """To be told: failed (it shall be recovered) or noted (people may want to know)."""

    uuid: str
    name: str
    state: str
    since: datetime
    key: str
    evidence: Mapping[str, Any]


def report(one: Happening, host: str, observed_at: datetime) -> dict[str, Any]:
    """What is sent of it to /holdfast/v1/observations; sent twice it is the same."""
    return {
        "observer": f"agent@{host}",
        "subject": f"server:{one.uuid}",
        "kind": "guest",
        "state": one.state,
        "since": one.since.isoformat(),
        "observed_at": observed_at.isoformat(),
        "key": one.key,
        "evidence": {**one.evidence, "host": host},
    }


@dataclass(frozen=True, slots=True)
class Trouble:
    sign: Sign
    since: datetime
    began: float
    last: float
    verdict: Verdict
    lasts: bool
    told: str = ""
    traces: tuple[str, ...] = ()
    count: int = 1

    @property
    def due(self) -> float | None:
        """When it is told, if nothing changes."""
        if _RANK[_TOLD[self.verdict.do]] <= _RANK[self.told]:
            return None
        return self.began + self.verdict.after_s


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of one guest."""

    uuid: str
    name: str
    life: str = UNKNOWN
    closing: str = ""
    persistent: bool = False  # until it is read, or heard that it is kept
    heard_at: datetime | None = None  # the last that was heard of its life
    rebooted: float = float("-inf")
    metadata: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    tally: Tally = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The worst that was told of what is not over."""
        told = (trouble.told for trouble in self.troubles.values())
        return max(told, key=_RANK.__getitem__, default="")


class GuestWatch:
    def __init__(self, filters: Filter) -> None:
        self.filters = filters  # may be replaced at any time
        self.tracks: dict[str, Track] = {}

    def hear(self, event: Event, now: float) -> list[Happening]:
        track = self.tracks.get(event.uuid) or Track(event.uuid, event.name)
        if event.metadata:
            track = replace(track, metadata=event.metadata)
        if event.kind == REBOOT:
            if now - track.rebooted < REBOOT_S:
                return []
            track = replace(track, rebooted=now)
        if event.kind == LIFECYCLE:
            track = replace(track, heard_at=event.at, name=event.name)
            if event.detail in ("defined", "undefined"):
                track = replace(track, persistent=event.detail == "defined")
        meant = meaning.of_event(event, track.life, track.closing)
        words = (event.kind, event.detail, event.reason, event.disk, event.path)
        return self._follow(track, meant, _Now(event.at, now, " ".join(filter(None, words))))

    def reconcile(self, guests: Sequence[Guest], at: datetime, now: float) -> list[Happening]:
        """All that there are, as they were read from `at` on; who is missing is gone."""
        happened: list[Happening] = []
        for guest in guests:
            happened += self._read(guest, at, now)
        present = {guest.uuid for guest in guests}
        for track in [one for one in self.tracks.values() if one.uuid not in present]:
            if track.heard_at is not None and track.heard_at > at:
                continue  # it came while the others were read
            meant = meaning.of_absence(track.life, track.persistent)
            gone = "it was there, and is not any more"
            happened += self._follow(track, meant, _Now(at, now, gone))
        return happened + self.look(now)

    def look(self, now: float) -> list[Happening]:
        """What time alone has made true."""
        happened: list[Happening] = []
        for track in [one for one in self.tracks.values() if one.troubles]:
            kept = {
                name: trouble
                for name, trouble in track.troubles.items()
                if trouble.lasts or now - trouble.last < QUIET_S
            }
            self.tracks[track.uuid], told = _tell(replace(track, troubles=kept), now)
            happened += told
        return happened

    def due(self) -> float | None:
        """When `look` has something to say, if nothing is heard until then."""
        dues = (
            trouble.due
            for track in self.tracks.values()
            for trouble in track.troubles.values()
            if trouble.due is not None
        )
        return min(dues, default=None)

    def _read(self, guest: Guest, at: datetime, now: float) -> list[Happening]:
        track = self.tracks.get(guest.uuid) or Track(guest.uuid, guest.name)
        track = replace(
            track,
            name=guest.name,
            persistent=guest.persistent,
            metadata=guest.metadata or track.metadata,
        )
        if track.heard_at is not None and track.heard_at > at:
            self.tracks[track.uuid] = track  # what was heard since is newer
            return []
        meant = meaning.of_state(guest, track.life, track.closing)
        return self._follow(track, meant, _Now(at, now, f"found {guest.state} {guest.reason}"))

    def _follow(self, track: Track, meant: Meaning, when: "_Now") -> list[Happening]:
        troubles = _without(track.troubles, meant.ends)
        track = replace(track, life=meant.life, closing=meant.closing, troubles=troubles)
        if meant.sign is not None:
            track = _take(track, meant.sign, self.filters, when)
        track, told = _tell(track, when.now)
        if meant.gone:
            self.tracks.pop(track.uuid, None)
        else:
            self.tracks[track.uuid] = track
        return told


@dataclass(frozen=True, slots=True)
class _Now:
    """When something was heard or read, by both clocks, and what it was."""

    at: datetime
    now: float
    said: str

    @property
    def trace(self) -> str:
        return f"{self.at.isoformat()} {self.said}"


def _without(troubles: Mapping[str, Trouble], ends: frozenset[str]) -> Mapping[str, Trouble]:
    """What was only noted is remembered for a while, so that a guest that falls and rises all the
    time is not noted all the time."""
    if ends == EVERYTHING:
        return {}
    kept = dict(troubles)
    for name in ends & kept.keys():
        trouble = kept.pop(name)
        if trouble.told == NOTED:
            kept[name] = replace(trouble, lasts=False)
    return kept


def _take(track: Track, sign: Sign, filters: Filter, when: _Now) -> Track:
    """The track with one sign more."""
    name = meaning.cause(sign)
    lost = next((one for one, t in track.troubles.items() if t.told == FAILED), None)
    if lost is not None:  # that is known: this is one trace more
        old = track.troubles[lost]
        old = replace(old, lasts=old.lasts or track.life == meaning.OFF)
        trouble = _traced(old, when, again=lost == name)
        return replace(track, troubles={**track.troubles, lost: trouble})
    known = track.troubles.get(name)
    goes_on = known is not None and known.lasts
    if known is not None and goes_on:
        sign = _richer(known.sign, sign)
    about = {**track.metadata, "name": track.name}
    verdict, tally = filters.judge(sign, about, track.tally, when.now, again=goes_on)
    if tally:  # of rules that are still in force
        track = replace(track, tally={rule: tally[rule] for rule in filters.rules if rule in tally})
    if known is not None:
        begun = known if goes_on or not sign.lasts else replace(known, **_begins(when))
        begun = replace(begun, sign=sign, verdict=verdict, lasts=sign.lasts)
        trouble = _traced(begun, when)
    elif verdict.do == IGNORE and not sign.lasts:
        return track
    else:
        traces: tuple[str, ...] = (when.trace,)
        if track.life == meaning.OFF:  # what it was in before has come to its end
            traces = tuple(t for one in track.troubles.values() for t in one.traces) + traces
        trouble = Trouble(
            sign, when.at, when.now, when.now, verdict, sign.lasts, traces=traces[-MOST_TRACES:]
        )
    others = {} if track.life == meaning.OFF else track.troubles
    return replace(track, troubles={**others, name: trouble})


def _begins(when: _Now) -> dict[str, Any]:
    return {"since": when.at, "began": when.now}


def _traced(trouble: Trouble, when: _Now, *, again: bool = True) -> Trouble:
    traces = (*trouble.traces, when.trace)[:MOST_TRACES]
    last = when.now if again else trouble.last
    return replace(trouble, traces=traces, count=trouble.count + 1, last=last)


def _richer(old: Sign, new: Sign) -> Sign:
    """Two traces of one thing: what one of them lacks, the other has."""
    same = old.detail == new.detail
    return replace(
        new,
        reason=new.reason or (old.reason if same else ""),
        disk=new.disk or (old.disk if same else ""),
        path=new.path or (old.path if same else ""),
    )


def _tell(track: Track, now: float) -> tuple[Track, list[Happening]]:
    """What is due, the worst of it; the rest of the guest's troubles is then explained by it."""
    due = [
        (_RANK[_TOLD[trouble.verdict.do]], name)
        for name, trouble in track.troubles.items()
        if trouble.due is not None and trouble.due <= now
    ]
    happened: list[Happening] = []
    for _rank, name in sorted(due, reverse=True):
        trouble = track.troubles[name]
        state = _TOLD[trouble.verdict.do]
        if track.told != FAILED:
            happened.append(_happening(track, name, trouble, state))
        told = replace(trouble, told=state)
        track = replace(track, troubles={**track.troubles, name: told})
    return track, happened


def _happening(track: Track, name: str, trouble: Trouble, state: str) -> Happening:
    sign = trouble.sign
    key = f"{track.uuid}/{name.replace(' ', '-')}/{trouble.since.isoformat()}/{state}"
    evidence: dict[str, Any] = {
        "event": sign.event,
        "detail": sign.detail,
        "reason": sign.reason,
        "disk": sign.disk,
        "path": sign.path,
        "domain_name": track.name,
        "domain_state": track.life,
        "rule": trouble.verdict.rule,
        "traces": list(trouble.traces),
        "count": trouble.count,
    }
    return Happening(track.uuid, track.name, state, trouble.since, key, evidence)
