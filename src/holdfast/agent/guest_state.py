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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from holdfast.agent.guest_filters import IGNORE, RECOVER, REPORT, Filter, Symptom, Tally, Verdict
from holdfast.ports import guests as port
from holdfast.ports.guests import (
    EXPECTATION,
    HANG,
    LIFECYCLE,
    MONITOR,
    REBOOT,
    WATCHDOG,
    Event,
    Guest,
)

# What one event, or one state that was read, says about a guest: how it lives now, what is over,
# and a sign if something happened that a rule can speak of. No sequence is relied on.
#
#     (6,2) shutdown/host, then (5,0) stopped/shutdown    somebody's SIGTERM: stopped terminated
#     (6,2) shutdown/host, then (5,1) stopped/destroyed   an order: stopped destroyed
#     (6,1) shutdown/guest, then (5,5) stopped/failed     its own will, whatever became of QEMU
#     (3,2) suspended/ioerror without an I/O error event  io_error pause all the same
#     (2,1) started/migrated, then (5,5) stopped/failed   a migration to here failed: nothing died


RUNNING: Final = "running"
PAUSED: Final = "paused"
CRASHED: Final = "crashed"
OFF: Final = "off"
UNKNOWN: Final = "unknown"
#: It is being migrated to here: it lives elsewhere.
ARRIVING: Final = "arriving"

#: What is over once a guest runs again. That QEMU hangs shows in no state.
ENDED_BY_RUNNING: Final = frozenset({"stopped", "panic", "io_error pause", "watchdog", "suspended"})
#: And once it is stopped: what does not run does not hang.
ENDED_BY_PAUSE: Final = frozenset({"hang hung", "hang stalled"})
#: Details of what was expected.
MISSING, STOPPED, UNEXPECTED, MET = "missing", "stopped", "unexpected", "met"
#: Ways to be off that are somebody's will: the guest's, or whoever gave the order.
ORDERLY: Final = frozenset({"shutdown", "destroyed", "migrated", "saved", "from_snapshot"})
EVERYTHING: Final = frozenset({"*"})
NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Classification:
    """`ends`: causes of trouble that are over. `closing`: who began to end it, guest or host.
    `ended`: how it came to be off, if it was by its own will or an order."""

    life: str
    sign: Symptom | None = None
    ends: frozenset[str] = NOTHING
    closing: str = ""
    gone: bool = False  # nothing has to be remembered of it
    ended: str = ""


def cause(sign: Symptom) -> str:
    """Under which several traces of one failure come together."""
    if sign.event == port.EXPECTATION and sign.detail != UNEXPECTED:
        return "stopped"  # of which nobody heard
    return f"{sign.event} {sign.detail}" if sign.event in _BY_DETAIL else sign.event


def of_event(event: Event, life: str, closing: str) -> Classification:
    """What was heard, of a guest that lived so until now."""
    if event.kind == port.LIFECYCLE:
        meant = _LIFECYCLE.get(event.detail)
        return meant(event, life, closing) if meant else Classification(life, closing=closing)
    if event.kind == port.EXPECTATION:
        return _expectation(event, life, closing)
    if (event.kind, event.detail) in _OVER:
        over = _OVER[event.kind, event.detail]
        return Classification(life, ends=frozenset({over}), closing=closing)
    if event.kind == port.HANG and life in (PAUSED, CRASHED, OFF):  # seen before that was heard
        return Classification(life, closing=closing)
    ends = frozenset({port.AGENT}) if event.kind == port.AGENT else NOTHING
    return Classification(life, _sign(event), ends, closing)


#: Of these each detail is a trouble of its own.
_BY_DETAIL: Final = (port.IO_ERROR, port.MONITOR, port.HANG)
_OVER: Final = {
    (port.MONITOR, "answering"): "monitor stuck",
    (port.MONITOR, "released"): "monitor held",
    (port.HANG, "alive"): "hang hung",
    (port.HANG, "running"): "hang stalled",
}


def _expectation(event: Event, life: str, closing: str) -> Classification:
    """One that is missing is off, wherever it went."""
    if event.detail == MET:
        over = cause(Symptom(event.kind, event.reason))
        gone = event.reason == MISSING and life == OFF
        return Classification(life, ends=frozenset({over}), closing=closing, gone=gone)
    life = OFF if event.detail == MISSING else life
    return Classification(life, _sign(event), closing=closing)


def _sign(event: Event) -> Symptom:
    detail = event.detail
    if event.kind == port.WATCHDOG:
        detail = _watchdog(detail, event.metadata)
    return Symptom(event.kind, detail, event.reason, event.disk, event.path)


def _watchdog(detail: str, metadata: Mapping[str, str]) -> str:
    """libvirt calls it a pause when a guest is dumped, and resumes it by itself."""
    return "dump" if detail == "pause" and metadata.get("watchdog") == "dump" else detail


# lifecycle


def _defined(event: Event, life: str, closing: str) -> Classification:
    """Kept from now on. One that was not known until then does not run yet."""
    new = life == UNKNOWN and event.reason == "added"
    return Classification(OFF if new else life, closing=closing)


def _started(event: Event, life: str, closing: str) -> Classification:
    return Classification(ARRIVING if event.reason == "migrated" else RUNNING, ends=EVERYTHING)


def _resumed(event: Event, life: str, closing: str) -> Classification:
    return Classification(RUNNING, ends=ENDED_BY_RUNNING)


def _suspended(event: Event, life: str, closing: str) -> Classification:
    sign = _of_pause(event.reason, event.metadata)
    return Classification(PAUSED, sign, ENDED_BY_PAUSE, closing)


def _of_pause(reason: str, metadata: Mapping[str, str]) -> Symptom | None:
    if reason == "ioerror":
        return Symptom(port.IO_ERROR, "pause")
    if reason == "watchdog":
        return Symptom(port.WATCHDOG, _watchdog("pause", metadata))
    if reason in ("postcopy_failed", "api_error"):
        return Symptom("suspended", reason)
    return Symptom("panic", "panicked") if reason == "crashed" else None


def _shutdown(event: Event, life: str, closing: str) -> Classification:
    return Classification(life, closing=event.reason)


def _stopped(event: Event, life: str, closing: str) -> Classification:
    if life == OFF and not closing:  # it was found so before, or could not be started
        return Classification(OFF)
    if event.reason == "crashed":
        return Classification(OFF, Symptom("panic", "panicked"))
    if event.reason == "failed" and life == ARRIVING:
        return Classification(OFF, ends=EVERYTHING, ended="migrated")
    how = event.reason
    if how in ("failed", "shutdown"):
        how = {"guest": "shutdown", "finished": "shutdown", "host": "terminated"}.get(closing, how)
    if _is_death(how):
        return Classification(OFF, Symptom("stopped", how))
    return Classification(OFF, Symptom("stopped", how), EVERYTHING, ended=how)


def _is_death(how: str) -> bool:
    return how in ("failed", "terminated", "vanished")


def _crashed(event: Event, life: str, closing: str) -> Classification:
    return Classification(CRASHED, Symptom("panic", event.reason or "panicked"), closing=closing)


def _slept(event: Event, life: str, closing: str) -> Classification:
    return Classification(PAUSED, ends=ENDED_BY_PAUSE, closing=closing)


def _undefined(event: Event, life: str, closing: str) -> Classification:
    """One that still runs is only not kept any more."""
    return Classification(life, closing=closing, gone=life in (OFF, UNKNOWN))


_LIFECYCLE: Final[Mapping[str, Callable[[Event, str, str], Classification]]] = {
    "defined": _defined,
    "started": _started,
    "resumed": _resumed,
    "suspended": _suspended,
    "shutdown": _shutdown,
    "stopped": _stopped,
    "crashed": _crashed,
    "pmsuspended": _slept,
    "undefined": _undefined,
}


# states


def of_state(guest: Guest, life: str, closing: str, unheard: bool = False) -> Classification:
    """What was read, of a guest that was known to live so. `unheard`: it was off, and if it died
    since, after somebody started it, nobody heard of either."""
    if guest.state == "running":
        return Classification(RUNNING, ends=ENDED_BY_RUNNING, closing=closing)
    if guest.state == "paused":
        sign = _of_pause(guest.reason, guest.metadata)
        if sign is not None and sign.event == port.IO_ERROR:
            sign = replace(sign, reason=guest.error, disk=guest.disk, path=guest.path)
        arriving = life == ARRIVING and guest.reason in ("migration", "starting_up")
        return Classification(ARRIVING if arriving else PAUSED, sign, ENDED_BY_PAUSE, closing)
    if guest.state == "pmsuspended":
        return Classification(PAUSED, ends=ENDED_BY_PAUSE, closing=closing)
    if guest.state == "crashed":
        return Classification(CRASHED, Symptom("panic", "panicked"), closing=closing)
    if guest.state == "shutoff":
        return _of_off(guest, life, closing, unheard)
    return Classification(life, closing=closing)


def _of_off(guest: Guest, life: str, closing: str, unheard: bool) -> Classification:
    if life == ARRIVING:
        return Classification(OFF, ends=EVERYTHING, ended="migrated")
    lived = life in (RUNNING, PAUSED, CRASHED)
    # crashed: QEMU died, or its guest panicked. daemon: it died while a new libvirtd looked for its
    # guests. failed: it could not be started, which is somebody else's business unless it ran
    gone = guest.reason in ("crashed", "daemon")
    died = (gone and (life != OFF or unheard)) or (guest.reason == "failed" and lived)
    if not died:
        known = life == OFF or gone or guest.reason == "failed"
        ended = guest.reason if guest.reason in ORDERLY else ""
        return Classification(OFF, ends=NOTHING if known else EVERYTHING, ended=ended)
    if closing == "guest":
        return Classification(OFF, ends=EVERYTHING, ended="shutdown")
    how = "terminated" if closing == "host" else "failed"
    sign = Symptom("panic", "panicked") if life == CRASHED else Symptom("stopped", how)
    return Classification(OFF, sign, EVERYTHING if life == OFF else NOTHING)


def of_absence(life: str, persistent: bool) -> Classification:
    """It is not there any more. What was kept on disk only goes if somebody removes it."""
    lived = life in (RUNNING, PAUSED, CRASHED)
    if lived and not persistent:
        return Classification(OFF, Symptom("stopped", "vanished"))
    return Classification(OFF, ends=EVERYTHING, gone=True)


# One trouble of a guest: the sign it began with, what the filters say of it, and all the traces
# that it leaves until it is over.


FAILED: Final = "failed"
NOTED: Final = "noted"
WELL: Final = "well"
TOLD: Final = {RECOVER: FAILED, REPORT: NOTED, IGNORE: ""}
RANK: Final = {"": 0, NOTED: 1, FAILED: 2}
#: Of how many traces of a trouble each is kept, the first ones.
MOST_TRACES: Final = 16
#: What no state of a guest shows.
UNSEEN: Final = (HANG, MONITOR)


@dataclass(frozen=True, slots=True)
class Fault:
    sign: Symptom
    since: datetime
    began: float
    last: float
    verdict: Verdict
    lasts: bool
    told: str = ""
    traces: tuple[str, ...] = ()
    count: int = 1

    @property
    def is_unsure(self) -> bool:
        """It may have ended while nobody listened."""
        return self.sign.event in UNSEEN and not self.lasts

    @property
    def due(self) -> float | None:
        """When it is told, if nothing changes. What is only remembered of it, and shows in no
        state, is told when it is heard again."""
        if self.is_unsure:
            return None
        if RANK[TOLD[self.verdict.do]] <= RANK[self.told]:
            return None
        return self.began + self.verdict.after_s


@dataclass(frozen=True, slots=True)
class Now:
    """When something was heard or read, what it was, and when it is judged."""

    at: datetime
    now: float  # as it is judged
    stamp: float  # as it was heard, or reading began: what is newer has a higher one
    said: str
    reason: str = ""  # why the guest lives as it does
    removed: str = ""  # how somebody was heard to remove it

    @property
    def trace(self) -> str:
        return f"{self.at.isoformat()} {self.said}"


def without(troubles: Mapping[str, Fault], ends: frozenset[str]) -> Mapping[str, Fault]:
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


def explains(trouble: Fault, same: bool, died: bool) -> bool:
    """Whether what comes now is one trace more of it. That a guest hung before an agent was there
    explains nothing until it is heard again. A death is explained by what kills, not by whatever
    the guest lived with until then."""
    if trouble.told != FAILED or same:
        return trouble.told == FAILED
    if died:
        return (trouble.sign.event, trouble.sign.detail) == (WATCHDOG, "poweroff")
    return not trouble.is_unsure


def begins(when: Now) -> dict[str, Any]:
    return {"since": when.at, "began": when.now}


def traced(trouble: Fault, when: Now, *, again: bool = True) -> Fault:
    traces = (*trouble.traces, when.trace)[:MOST_TRACES]
    last = when.now if again else trouble.last
    return replace(trouble, traces=traces, count=trouble.count + 1, last=last)


def richer(old: Symptom, new: Symptom) -> Symptom:
    """Two traces of one thing: what one of them lacks, the other has."""
    same = old.detail == new.detail
    return replace(
        new,
        reason=new.reason or (old.reason if same else ""),
        disk=new.disk or (old.disk if same else ""),
        path=new.path or (old.path if same else ""),
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
_DEAD: Final = (OFF, CRASHED)


@dataclass(frozen=True, slots=True)
class GuestEvent:
    """To be told: failed (it shall be recovered), noted (people may want to know), or well (it
    failed, and runs again)."""

    uuid: str
    name: str
    state: str
    since: datetime
    key: str
    evidence: Mapping[str, Any]


def report(one: GuestEvent, host: str, observed_at: datetime) -> dict[str, Any]:
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
    troubles: Mapping[str, Fault] = field(default_factory=dict)
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
        ran = self.reason in (*ORDERLY, UNKNOWN)
        return self.life == OFF and (ran or not self.explained)

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

    def hear(self, event: Event, now: float, heard: float | None = None) -> list[GuestEvent]:
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
        meant = of_event(event, track.life, track.closing)
        words = (event.kind, event.detail, event.reason, event.disk, event.path)
        said = " ".join(filter(None, words))
        about_life = event.kind == LIFECYCLE and event.detail not in _NOT_LIFE
        if event.detail == "stopped" and track.life == OFF and not track.closing:
            about_life = False  # it could not be started: why it is off is for a reading to say
        why = event.reason if about_life else ""
        removed = event.reason or "removed" if event.detail == "undefined" else ""
        return self._follow(track, meant, Now(event.at, now, heard, said, why, removed))

    def reconcile(
        self, guests: Sequence[Guest], at: datetime, now: float, began: float | None = None
    ) -> list[GuestEvent]:
        """All that there are, as they were read from `at` on, by our time `began`, if not just now;
        who is missing is gone."""
        began = now if began is None else began
        happened: list[GuestEvent] = []
        for guest in guests:
            if self._left.get(guest.uuid, began) <= began:
                happened += self._read(guest, at, now, began)
        self._left = {uuid: when for uuid, when in self._left.items() if when > began}
        present = {guest.uuid for guest in guests}
        for track in [one for one in self.tracks.values() if one.uuid not in present]:
            if track.heard is not None and track.heard > began:
                continue  # it came while the others were read
            if MISSING in track.differences:
                continue  # which is known
            meant = of_absence(track.life, track.persistent)
            gone = "it was there, and is not any more"
            happened += self._follow(track, meant, Now(at, now, began, gone))
        return happened + self.check_timers(now)

    def check_timers(self, now: float) -> list[GuestEvent]:
        """What time alone has made true."""
        happened: list[GuestEvent] = []
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

    def _read(self, guest: Guest, at: datetime, now: float, began: float) -> list[GuestEvent]:
        track = self._track(guest.uuid, guest.name)
        track = replace(track, name=guest.name, metadata=guest.metadata or track.metadata)
        if guest.state == UNKNOWN:  # it did not answer: no more than that it is there
            self.tracks[track.uuid] = track
            return []
        track = replace(track, persistent=guest.persistent)
        if track.heard is not None and track.heard > began:
            self.tracks[track.uuid] = track  # what was heard since is newer
            return []
        meant = of_state(guest, track.life, track.closing, track.may_die_unheard)
        said = f"found {guest.state} {guest.reason}"
        return self._follow(track, meant, Now(at, now, began, said, guest.reason))

    def _follow(self, track: Track, meant: Classification, when: Now) -> list[GuestEvent]:
        before, troubles, explained = track, without(track.troubles, meant.ends), track.explained
        died = meant.life in _DEAD and track.life not in _DEAD
        anew = meant.sign is not None and meant.ends == EVERYTHING
        if meant.life != track.life or anew:
            track = replace(track, life=meant.life, reason="", since=when.at, ended="")
        reason = when.reason or track.reason
        ended = (meant.ended or track.ended) if meant.life == OFF else ""
        track = replace(track, reason=reason, closing=meant.closing, troubles=troubles, ended=ended)
        if meant.sign is not None:
            track = _take(track, meant.sign, self.filters, when, died)
        track, told = _tell(track, when.now)
        recovered = self._recovered(before, track, when)
        self._remember(told)
        if meant.gone:
            self.tracks.pop(track.uuid, None)
            self._left[track.uuid] = when.stamp
            self._dismiss(track, explained or when.removed, when.stamp)
        else:
            self.tracks[track.uuid] = track
            self.dismissed.pop(track.uuid, None)
        return recovered + told

    def _recovered(self, before: Track, after: Track, when: Now) -> list[GuestEvent]:
        """That it runs again, if its failure was told. It has to begin to run, or the failure to
        end: one that ran all the time, such as with a disk that fails, is not well for that."""
        ended = before.told == FAILED or before.life != RUNNING
        runs = after.life == RUNNING and after.told != FAILED
        if not (runs and ended and self.ill.pop(after.uuid, False)):
            return []
        return [_well(after, when)]

    def _remember(self, told: Sequence[GuestEvent]) -> None:
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


def _judged_anew(trouble: Fault, track: Track, filters: Filter, now: float) -> Fault:
    about = {**track.metadata, "name": track.name}
    verdict, _ = filters.judge(trouble.sign, about, track.tally, now, again=True)
    return replace(trouble, verdict=verdict)


def _take(track: Track, sign: Symptom, filters: Filter, when: Now, died: bool) -> Track:
    """The track with one sign more; `died`: the guest lived until then."""
    name = cause(sign)
    lost = next((one for one, t in track.troubles.items() if explains(t, one == name, died)), None)
    if lost is not None:  # that is known: this is one trace more
        old = track.troubles[lost]
        same = lost == name and sign.lasts
        old = replace(old, lasts=old.lasts or same or track.life == OFF)
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
    over = track.life == OFF or (died and verdict.do == RECOVER)
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
        trouble = Fault(
            sign, when.at, when.now, when.now, verdict, sign.lasts, traces=traces[-MOST_TRACES:]
        )
    others = {} if over else track.troubles
    return replace(track, troubles={**others, name: trouble})


def _sure(track: Track, name: str, sign: Symptom) -> Mapping[str, Fault]:
    """The troubles, of which one that was only remembered is heard again."""
    if sign.event not in UNSEEN or name not in track.troubles:
        return track.troubles
    return {**track.troubles, name: replace(track.troubles[name], lasts=sign.lasts)}


def _tell(track: Track, now: float) -> tuple[Track, list[GuestEvent]]:
    """What is due, the worst of it; the rest of the guest's troubles is then explained by it."""
    due = [
        (RANK[TOLD[trouble.verdict.do]], name)
        for name, trouble in track.troubles.items()
        if trouble.due is not None and trouble.due <= now
    ]
    happened: list[GuestEvent] = []
    for _rank, name in sorted(due, reverse=True):
        trouble = track.troubles[name]
        state = TOLD[trouble.verdict.do]
        if track.told != FAILED:
            happened.append(guest_event(track, name, trouble, state))
        told = replace(trouble, told=state)
        track = replace(track, troubles={**track.troubles, name: told})
    return track, happened


def guest_event(track: Track, name: str, trouble: Fault, state: str) -> GuestEvent:
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
    return GuestEvent(track.uuid, track.name, state, trouble.since, key, evidence)


def _well(track: Track, when: Now) -> GuestEvent:
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
    return GuestEvent(track.uuid, track.name, WELL, when.at, key, evidence)
