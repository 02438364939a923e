# SPDX-License-Identifier: Apache-2.0
"""From what was heard and read of the guests of one host to what is told of them, by the filters.

    watch = GuestWatch(guest_filter_file.default())
    watch.hear(event, now)           # -> [Happening(state="failed", …)]
    watch.reconcile(guests, now)     # after each time the hypervisor was found again
    watch.look(now)                  # grace times that are over; watch.due() says when

One happening per failure, however many traces it leaves: they come together in a `Trouble` until
the guest runs again. Only what is worse than what was told is told on top: a failure after a note,
the guest's death after a failure that it lived with; and, of a guest of which a failure was told,
that it runs again, whoever saw to that. `now` is monotonic, and so is what says which
of two things is the newer one; dates, which jump with the clock, are only told. No input, no
output; one thread at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from holdfast.model.guest_filter import IGNORE, RECOVER, Filter, Sign, Tally
from holdfast.ports.guests import EXPECTATION, LIFECYCLE, REBOOT, Event, Guest
from holdfast.watch import guest_meaning as meaning
from holdfast.watch.guest_meaning import UNKNOWN, Meaning
from holdfast.watch.guest_trouble import (
    FAILED,
    MOST_TRACES,
    RANK,
    TOLD,
    UNSEEN,
    WELL,
    Now,
    Trouble,
    begins,
    explains,
    richer,
    traced,
    without,
)

#: One reset makes two or three events.
REBOOT_S: Final = 2.0
#: What is over at once and comes again within that time is the same trouble.
QUIET_S: Final = 60.0
#: How many removed guests are remembered.
MOST_DISMISSED: Final = 1000
#: Troubles with which a guest ends.
_ENDS: Final = ("stopped", "panic", "watchdog")
#: Of a lifecycle, what says nothing about how the guest lives.
_NOT_LIFE: Final = ("defined", "undefined", "shutdown")
_DEAD: Final = (meaning.OFF, meaning.CRASHED)


@dataclass(frozen=True, slots=True)
class Happening:
    """To be told: failed (it shall be recovered), noted (people may want to know), or well (it
    failed, and runs again)."""

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
class Track:
    """What is remembered of one guest."""

    uuid: str
    name: str
    life: str = UNKNOWN
    reason: str = ""  # why it lives so, in the hypervisor's words
    since: datetime | None = None
    closing: str = ""
    persistent: bool = False  # until it is read, or heard that it is kept
    ended: str = ""  # how it came to be off, if in an orderly way
    heard: float | None = None  # when the last was heard of its life
    rebooted: float = float("-inf")
    metadata: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    tally: Tally = field(default_factory=dict)

    @property
    def differences(self) -> set[str]:
        """What of it was not as the cloud says, and is not over."""
        signs = (trouble.sign for trouble in self.troubles.values() if trouble.lasts)
        return {sign.detail for sign in signs if sign.event == EXPECTATION}

    @property
    def explained(self) -> str:
        """Why nobody need be told that it is off: how it ended in an orderly way, or that filters
        have judged its end."""
        judged = any(
            name in self.troubles and self.troubles[name].sign.event != EXPECTATION
            for name in _ENDS
        )
        return self.ended or ("judged" if judged else "")

    @property
    def may_die_unheard(self) -> bool:
        """Of one that is off: whether a state by which it died is news. If it went off in an
        orderly way, or the hypervisor had forgotten how, it has run since."""
        ran = self.reason in (*meaning.ORDERLY, UNKNOWN)
        return self.life == meaning.OFF and (ran or not self.explained)

    @property
    def told(self) -> str:
        """The worst that was told of what is not over."""
        told = (trouble.told for trouble in self.troubles.values())
        return max(told, key=RANK.__getitem__, default="")


class GuestWatch:
    def __init__(self, filters: Filter) -> None:
        self.filters = filters
        self.tracks: dict[str, Track] = {}
        #: Guests that are gone, and why nobody need be told: whoever misses one finds it here.
        self.dismissed: dict[str, str] = {}
        #: When they were removed, of those since this agent was started, by its own time.
        self.removed_at: dict[str, float] = {}
        #: When they went: a reading that was begun before may still have them.
        self._left: dict[str, float] = {}
        #: What was counted of them: who is started anew may be removed and made again for that.
        self.counted: dict[str, Tally] = {}
        #: Of whom a failure was told, and not that they run again; also those that are gone, for
        #: whoever starts one anew may remove and make it again for that.
        self.ill: dict[str, bool] = {}

    def use(self, filters: Filter, now: float) -> None:
        """From now on these count, also for what was not told yet."""
        self.filters = filters
        for track in [one for one in self.tracks.values() if one.troubles]:
            troubles = {
                name: one if one.told else _judged_anew(one, track, filters, now)
                for name, one in track.troubles.items()
            }
            self.tracks[track.uuid] = replace(track, troubles=troubles)

    def hear(self, event: Event, now: float, heard: float | None = None) -> list[Happening]:
        """`heard`: when it was, if not just now."""
        heard = now if heard is None else heard
        track = self._track(event.uuid, event.name)
        if event.metadata:
            track = replace(track, metadata=event.metadata)
        if event.kind == REBOOT:
            if heard - track.rebooted < REBOOT_S:
                return []
            track = replace(track, rebooted=heard)
        if event.kind == LIFECYCLE:
            track = replace(track, heard=heard, name=event.name)
            self._left.pop(event.uuid, None)
            if event.detail in ("defined", "undefined"):
                track = replace(track, persistent=event.detail == "defined")
        meant = meaning.of_event(event, track.life, track.closing)
        words = (event.kind, event.detail, event.reason, event.disk, event.path)
        said = " ".join(filter(None, words))
        about_life = event.kind == LIFECYCLE and event.detail not in _NOT_LIFE
        if event.detail == "stopped" and track.life == meaning.OFF and not track.closing:
            about_life = False  # it could not be started: why it is off is for a reading to say
        why = event.reason if about_life else ""
        removed = event.reason or "removed" if event.detail == "undefined" else ""
        return self._follow(track, meant, Now(event.at, now, heard, said, why, removed))

    def reconcile(
        self, guests: Sequence[Guest], at: datetime, now: float, began: float | None = None
    ) -> list[Happening]:
        """All that there are, as they were read from `at` on, by our time `began`, if not just now;
        who is missing is gone."""
        began = now if began is None else began
        happened: list[Happening] = []
        for guest in guests:
            if self._left.get(guest.uuid, began) <= began:
                happened += self._read(guest, at, now, began)
        self._left = {uuid: when for uuid, when in self._left.items() if when > began}
        present = {guest.uuid for guest in guests}
        for track in [one for one in self.tracks.values() if one.uuid not in present]:
            if track.heard is not None and track.heard > began:
                continue  # it came while the others were read
            if meaning.MISSING in track.differences:
                continue  # which is known
            meant = meaning.of_absence(track.life, track.persistent)
            gone = "it was there, and is not any more"
            happened += self._follow(track, meant, Now(at, now, began, gone))
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
            self._remember(told)
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

    def _track(self, uuid: str, name: str) -> Track:
        """What is known of it; of one that was gone, how often it failed."""
        return self.tracks.get(uuid) or Track(uuid, name, tally=self.counted.pop(uuid, {}))

    def _read(self, guest: Guest, at: datetime, now: float, began: float) -> list[Happening]:
        track = self._track(guest.uuid, guest.name)
        track = replace(track, name=guest.name, metadata=guest.metadata or track.metadata)
        if guest.state == UNKNOWN:  # it did not answer: no more than that it is there
            self.tracks[track.uuid] = track
            return []
        track = replace(track, persistent=guest.persistent)
        if track.heard is not None and track.heard > began:
            self.tracks[track.uuid] = track  # what was heard since is newer
            return []
        meant = meaning.of_state(guest, track.life, track.closing, track.may_die_unheard)
        said = f"found {guest.state} {guest.reason}"
        return self._follow(track, meant, Now(at, now, began, said, guest.reason))

    def _follow(self, track: Track, meant: Meaning, when: Now) -> list[Happening]:
        before, troubles, explained = track, without(track.troubles, meant.ends), track.explained
        died = meant.life in _DEAD and track.life not in _DEAD
        anew = meant.sign is not None and meant.ends == meaning.EVERYTHING
        if meant.life != track.life or anew:
            track = replace(track, life=meant.life, reason="", since=when.at, ended="")
        reason = when.reason or track.reason
        ended = (meant.ended or track.ended) if meant.life == meaning.OFF else ""
        track = replace(track, reason=reason, closing=meant.closing, troubles=troubles, ended=ended)
        if meant.sign is not None:
            track = _take(track, meant.sign, self.filters, when, died)
        track, told = _tell(track, when.now)
        risen = self._risen(before, track, when)
        self._remember(told)
        if meant.gone:
            self.tracks.pop(track.uuid, None)
            self._left[track.uuid] = when.stamp
            self._dismiss(track, explained or when.removed, when.stamp)
        else:
            self.tracks[track.uuid] = track
            self.dismissed.pop(track.uuid, None)
        return risen + told

    def _risen(self, before: Track, after: Track, when: Now) -> list[Happening]:
        """That it runs again, if its failure was told. It has to begin to run, or the failure to
        end: one that ran all the time, such as with a disk that fails, is not well for that."""
        ended = before.told == FAILED or before.life != meaning.RUNNING
        runs = after.life == meaning.RUNNING and after.told != FAILED
        if not (runs and ended and self.ill.pop(after.uuid, False)):
            return []
        return [_well(after, when)]

    def _remember(self, told: Sequence[Happening]) -> None:
        self.ill.update({one.uuid: True for one in told if one.state == FAILED})
        _trim(self.ill)

    def _dismiss(self, track: Track, how: str, at: float) -> None:
        if how:
            self.dismissed[track.uuid] = how
            self.removed_at[track.uuid] = at
        if track.tally:
            self.counted[track.uuid] = track.tally
        _trim(self.dismissed)
        _trim(self.removed_at)
        _trim(self._left)
        _trim(self.counted)


def _trim(kept: dict[str, Any]) -> None:
    """The oldest are forgotten."""
    while len(kept) > MOST_DISMISSED:
        del kept[next(iter(kept))]


def _judged_anew(trouble: Trouble, track: Track, filters: Filter, now: float) -> Trouble:
    about = {**track.metadata, "name": track.name}
    verdict, _ = filters.judge(trouble.sign, about, track.tally, now, again=True)
    return replace(trouble, verdict=verdict)


def _take(track: Track, sign: Sign, filters: Filter, when: Now, died: bool) -> Track:
    """The track with one sign more; `died`: the guest lived until then."""
    name = meaning.cause(sign)
    lost = next((one for one, t in track.troubles.items() if explains(t, one == name, died)), None)
    if lost is not None:  # that is known: this is one trace more
        old = track.troubles[lost]
        same = lost == name and sign.lasts
        old = replace(old, lasts=old.lasts or same or track.life == meaning.OFF)
        trouble = traced(old, when, again=lost == name)
        return replace(track, troubles={**_sure(track, name, sign), lost: trouble})
    known = track.troubles.get(name)
    goes_on = known is not None and known.lasts
    if known is not None and goes_on:
        sign = richer(known.sign, sign)
    about = {**track.metadata, "name": track.name}
    verdict, tally = filters.judge(sign, about, track.tally, when.stamp, again=goes_on)
    if tally:  # of rules that are still in force
        track = replace(track, tally={rule: tally[rule] for rule in filters.rules if rule in tally})
    # what it was in before has come to its end
    over = track.life == meaning.OFF or (died and verdict.do == RECOVER)
    if known is not None:
        begun = known if goes_on or not sign.lasts else replace(known, **begins(when))
        begun = replace(begun, sign=sign, verdict=verdict, lasts=sign.lasts)
        trouble = traced(begun, when)
    elif verdict.do == IGNORE and not sign.lasts:
        return track
    else:
        traces: tuple[str, ...] = (when.trace,)
        if over:
            traces = tuple(t for one in track.troubles.values() for t in one.traces) + traces
        trouble = Trouble(
            sign, when.at, when.now, when.now, verdict, sign.lasts, traces=traces[-MOST_TRACES:]
        )
    others = {} if over else track.troubles
    return replace(track, troubles={**others, name: trouble})


def _sure(track: Track, name: str, sign: Sign) -> Mapping[str, Trouble]:
    """The troubles, of which one that was only remembered is heard again."""
    if sign.event not in UNSEEN or name not in track.troubles:
        return track.troubles
    return {**track.troubles, name: replace(track.troubles[name], lasts=sign.lasts)}


def _tell(track: Track, now: float) -> tuple[Track, list[Happening]]:
    """What is due, the worst of it; the rest of the guest's troubles is then explained by it."""
    due = [
        (RANK[TOLD[trouble.verdict.do]], name)
        for name, trouble in track.troubles.items()
        if trouble.due is not None and trouble.due <= now
    ]
    happened: list[Happening] = []
    for _rank, name in sorted(due, reverse=True):
        trouble = track.troubles[name]
        state = TOLD[trouble.verdict.do]
        if track.told != FAILED:
            happened.append(happening(track, name, trouble, state))
        told = replace(trouble, told=state)
        track = replace(track, troubles={**track.troubles, name: told})
    return track, happened


def happening(track: Track, name: str, trouble: Trouble, state: str) -> Happening:
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


def _well(track: Track, when: Now) -> Happening:
    evidence = {
        "event": "running",
        "detail": "again",
        "reason": track.reason,
        "disk": "",
        "domain_name": track.name,
        "domain_state": track.life,
        "rule": "",
        "traces": [when.trace],
    }
    key = f"{track.uuid}/{when.at.isoformat()}/{WELL}"
    return Happening(track.uuid, track.name, WELL, when.at, key, evidence)
