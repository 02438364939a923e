# SPDX-License-Identifier: Apache-2.0
"""Guest state machine of one host: hypervisor events and readings in, guest events to report out.

    watch = GuestWatch(guest_filters.default())
    watch.hear(event, now)             # -> [GuestEvent(state="failed", …)]
    watch.reconcile(guests, at, now)   # after each reconnect to the hypervisor
    watch.check_timers(now)            # expired grace times; watch.due() says when

The watch reports one guest event per failure, however many hypervisor events the failure causes:
they are collected in one `Fault` until the guest runs again. After that it reports only something
worse (a failure after a note, the guest's death after a failure that the guest survived), and that
a failed guest runs again, no matter which actor recovered it. `now` is monotonic, and so is the
time that says which of two records is newer. Dates jump with the wall clock and only appear in
reports. No I/O; one thread at a time.
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

# Classification of one libvirt event or state: the guest's life, the faults that are over, and a
# symptom if there is one that a filter rule can match. No order of events is relied on.
#
#     (6,2) shutdown/host, then (5,0) stopped/shutdown    SIGTERM from outside: stopped terminated
#     (6,2) shutdown/host, then (5,1) stopped/destroyed   an order: stopped destroyed
#     (6,1) shutdown/guest, then (5,5) stopped/failed     the guest shut down, however QEMU ended
#     (3,2) suspended/ioerror without an I/O error event  io_error pause, as with the event
#     (2,1) started/migrated, then (5,5) stopped/failed   incoming migration failed: no guest died


RUNNING: Final = "running"
PAUSED: Final = "paused"
CRASHED: Final = "crashed"
OFF: Final = "off"
UNKNOWN: Final = "unknown"
#: The guest is being migrated to this host and still runs on another one.
ARRIVING: Final = "arriving"

#: Faults that are over once a guest runs again. A stuck QEMU monitor is not: no state shows it.
ENDED_BY_RUNNING: Final = frozenset({"stopped", "panic", "io_error pause", "watchdog", "suspended"})
#: Faults that are over once a guest is paused: a guest that does not run cannot hang.
ENDED_BY_PAUSE: Final = frozenset({"hang hung", "hang stalled"})
#: Details of expectation events.
MISSING, STOPPED, UNEXPECTED, MET = "missing", "stopped", "unexpected", "met"
#: Reasons to be off that the guest itself or an order caused.
ORDERLY: Final = frozenset({"shutdown", "destroyed", "migrated", "saved", "from_snapshot"})
EVERYTHING: Final = frozenset({"*"})
NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Classification:
    """The meaning of an event or a state.

    `ends` names the causes of faults that are over. `closing` is the side that began a shutdown,
    guest or host. `ended` says how the guest came to be off, if by itself or by an order.
    """

    life: str
    symptom: Symptom | None = None
    ends: frozenset[str] = NOTHING
    closing: str = ""
    gone: bool = False  # the watch can forget the guest
    ended: str = ""


def cause(symptom: Symptom) -> str:
    """Return the name of the fault to which a symptom belongs."""
    if symptom.event == port.EXPECTATION and symptom.detail != UNEXPECTED:
        return "stopped"  # a stop without an event
    return f"{symptom.event} {symptom.detail}" if symptom.event in _BY_DETAIL else symptom.event


def of_event(event: Event, life: str, closing: str) -> Classification:
    """Classify an event of a guest, given its life until now."""
    if event.kind == port.LIFECYCLE:
        meant = _LIFECYCLE.get(event.detail)
        return meant(event, life, closing) if meant else Classification(life, closing=closing)
    if event.kind == port.EXPECTATION:
        return _expectation(event, life, closing)
    if (event.kind, event.detail) in _OVER:
        over = _OVER[event.kind, event.detail]
        return Classification(life, ends=frozenset({over}), closing=closing)
    # a hang check that ran before the pause or stop arrived says nothing
    if event.kind == port.HANG and life in (PAUSED, CRASHED, OFF):
        return Classification(life, closing=closing)
    ends = frozenset({port.AGENT}) if event.kind == port.AGENT else NOTHING
    return Classification(life, _sign(event), ends, closing)


#: For these events each detail is a fault of its own.
_BY_DETAIL: Final = (port.IO_ERROR, port.MONITOR, port.HANG)
_OVER: Final = {
    (port.MONITOR, "answering"): "monitor stuck",
    (port.MONITOR, "released"): "monitor held",
    (port.HANG, "alive"): "hang hung",
    (port.HANG, "running"): "hang stalled",
}


def _expectation(event: Event, life: str, closing: str) -> Classification:
    """Classify an expectation event; a missing guest counts as off."""
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
    """Return "dump" for a dump, which libvirt reports as a pause and resumes by itself."""
    return "dump" if detail == "pause" and metadata.get("watchdog") == "dump" else detail


# classification of lifecycle events


def _defined(event: Event, life: str, closing: str) -> Classification:
    """The domain is persistent from now on; a domain not known until now does not run yet."""
    new = life == UNKNOWN and event.reason == "added"
    return Classification(OFF if new else life, closing=closing)


def _started(event: Event, life: str, closing: str) -> Classification:
    return Classification(ARRIVING if event.reason == "migrated" else RUNNING, ends=EVERYTHING)


def _resumed(event: Event, life: str, closing: str) -> Classification:
    return Classification(RUNNING, ends=ENDED_BY_RUNNING)


def _suspended(event: Event, life: str, closing: str) -> Classification:
    symptom = _of_pause(event.reason, event.metadata)
    return Classification(PAUSED, symptom, ENDED_BY_PAUSE, closing)


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
    if life == OFF and not closing:  # the stop is known already, or the guest could not be started
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
    """The domain is removed; a domain that still runs only stops being persistent."""
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


# classification of states read from the hypervisor


def of_state(guest: Guest, life: str, closing: str, unheard: bool = False) -> Classification:
    """Classify a state read from the hypervisor, given the guest's life until now.

    `unheard`: the guest was off. If it was started and died since, no event of that arrived.
    """
    if guest.state == "running":
        return Classification(RUNNING, ends=ENDED_BY_RUNNING, closing=closing)
    if guest.state == "paused":
        symptom = _of_pause(guest.reason, guest.metadata)
        if symptom is not None and symptom.event == port.IO_ERROR:
            symptom = replace(symptom, reason=guest.error, disk=guest.disk, path=guest.path)
        arriving = life == ARRIVING and guest.reason in ("migration", "starting_up")
        return Classification(ARRIVING if arriving else PAUSED, symptom, ENDED_BY_PAUSE, closing)
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
    # crashed: QEMU died, or the guest panicked. daemon: QEMU died while a new libvirtd looked for
    # its domains. failed: the guest could not be started, which is a failure only if it ran before
    gone = guest.reason in ("crashed", "daemon")
    died = (gone and (life != OFF or unheard)) or (guest.reason == "failed" and lived)
    if not died:
        is_explained = life == OFF or gone or guest.reason == "failed"
        ended = guest.reason if guest.reason in ORDERLY else ""
        return Classification(OFF, ends=NOTHING if is_explained else EVERYTHING, ended=ended)
    if closing == "guest":
        return Classification(OFF, ends=EVERYTHING, ended="shutdown")
    how = "terminated" if closing == "host" else "failed"
    symptom = Symptom("panic", "panicked") if life == CRASHED else Symptom("stopped", how)
    return Classification(OFF, symptom, EVERYTHING if life == OFF else NOTHING)


def of_absence(life: str, persistent: bool) -> Classification:
    """Classify a guest that the hypervisor does not list any more.

    A persistent domain only disappears if it is undefined; a transient one also if QEMU dies.
    """
    lived = life in (RUNNING, PAUSED, CRASHED)
    if lived and not persistent:
        return Classification(OFF, Symptom("stopped", "vanished"))
    return Classification(OFF, ends=EVERYTHING, gone=True)


# Faults: a fault holds its symptom, the verdict of the filters, and its traces until it is over.


FAILED: Final = "failed"
NOTED: Final = "noted"
WELL: Final = "well"
REPORTED_AS: Final = {RECOVER: FAILED, REPORT: NOTED, IGNORE: ""}
RANK: Final = {"": 0, NOTED: 1, FAILED: 2}
#: A fault keeps its first 16 traces.
MOST_TRACES: Final = 16
#: Events that no domain state shows.
UNSEEN: Final = (HANG, MONITOR)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a guest: its symptom, the verdict on it, and the report made of it."""

    symptom: Symptom
    since: datetime
    began: float
    last: float
    verdict: Verdict
    lasts: bool
    reported: str = ""
    traces: tuple[str, ...] = ()
    count: int = 1

    @property
    def is_unsure(self) -> bool:
        """Whether the fault may have ended while no agent ran."""
        return self.symptom.event in UNSEEN and not self.lasts

    @property
    def due(self) -> float | None:
        """Return when the watch reports the fault if nothing changes; None if never.

        A fault that was loaded from disk and that no domain state shows is only reported once it
        is detected again.
        """
        if self.is_unsure:
            return None
        if RANK[REPORTED_AS[self.verdict.do]] <= RANK[self.reported]:
            return None
        return self.began + self.verdict.after_s


@dataclass(frozen=True, slots=True)
class Now:
    """The event or reading being judged, with its times."""

    at: datetime
    now: float  # time of judgement
    stamp: float  # time of arrival, or when the reading began: a newer record has a higher stamp
    said: str
    reason: str = ""  # the hypervisor's reason for the guest's state
    removed: str = ""  # the reason of an "undefined" event

    @property
    def trace(self) -> str:
        return f"{self.at.isoformat()} {self.said}"


def without(faults: Mapping[str, Fault], ends: frozenset[str]) -> Mapping[str, Fault]:
    """Return the faults without those that are over.

    A fault that was only noted stays for a while, so that a guest that fails and recovers over and
    over is not noted each time.
    """
    if ends == EVERYTHING:
        return {}
    kept = dict(faults)
    for name in ends & kept.keys():
        fault = kept.pop(name)
        if fault.reported == NOTED:
            kept[name] = replace(fault, lasts=False)
    return kept


def explains(fault: Fault, same: bool, died: bool) -> bool:
    """Whether a new symptom is only a further trace of a reported fault.

    A hang loaded from disk explains nothing until it is detected again. A death is explained only
    by a fault that kills (watchdog poweroff), not by a fault that the guest survived until then.
    """
    if fault.reported != FAILED or same:
        return fault.reported == FAILED
    if died:
        return (fault.symptom.event, fault.symptom.detail) == (WATCHDOG, "poweroff")
    return not fault.is_unsure


def begins(when: Now) -> dict[str, Any]:
    return {"since": when.at, "began": when.now}


def traced(fault: Fault, when: Now, *, again: bool = True) -> Fault:
    traces = (*fault.traces, when.trace)[:MOST_TRACES]
    last = when.now if again else fault.last
    return replace(fault, traces=traces, count=fault.count + 1, last=last)


def richer(old: Symptom, new: Symptom) -> Symptom:
    """Return the new symptom, with missing fields taken from the old one of the same detail."""
    same = old.detail == new.detail
    return replace(
        new,
        reason=new.reason or (old.reason if same else ""),
        disk=new.disk or (old.disk if same else ""),
        path=new.path or (old.path if same else ""),
    )


#: One reset causes two or three events; the watch takes them as one within this time.
REBOOT_S: Final = 2.0
#: A symptom that is over at once and comes again within this time belongs to the same fault.
QUIET_S: Final = 60.0
#: The watch remembers this many removed guests.
MOST_DISMISSED: Final = 1000
#: Faults with which a guest ends.
_ENDS: Final = ("stopped", "panic", "watchdog")
#: Details of lifecycle events that do not change the guest's life.
_NOT_LIFE: Final = ("defined", "undefined", "shutdown")
_DEAD: Final = (OFF, CRASHED)


@dataclass(frozen=True, slots=True)
class GuestEvent:
    """A guest event to report.

    `state` is failed (Holdfast recovers the guest), noted (for operators only), or well (the guest
    failed and runs again).
    """

    uuid: str
    name: str
    state: str
    since: datetime
    key: str
    evidence: Mapping[str, Any]


def report(event: GuestEvent, host: str, observed_at: datetime) -> dict[str, Any]:
    """Return the body for POST /holdfast/v1/observations; sending it twice has no effect."""
    return {
        "observer": f"agent@{host}",
        "subject": f"server:{event.uuid}",
        "kind": "guest",
        "state": event.state,
        "since": event.since.isoformat(),
        "observed_at": observed_at.isoformat(),
        "key": event.key,
        "evidence": {**event.evidence, "host": host},
    }


@dataclass(frozen=True, slots=True)
class Track:
    """The known state of a guest."""

    uuid: str
    name: str
    life: str = UNKNOWN
    reason: str = ""  # the hypervisor's reason for this state
    since: datetime | None = None
    closing: str = ""
    persistent: bool = False  # False until a reading or a "defined" event says otherwise
    ended: str = ""  # how the guest came to be off, if in an orderly way
    heard: float | None = None  # when the last lifecycle event arrived
    rebooted: float = float("-inf")
    metadata: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)
    tally: Tally = field(default_factory=dict)

    @property
    def differences(self) -> set[str]:
        """Return the details of current expectation faults."""
        symptoms = (fault.symptom for fault in self.faults.values() if fault.lasts)
        return {symptom.detail for symptom in symptoms if symptom.event == EXPECTATION}

    @property
    def explained(self) -> str:
        """Return why a guest that is off needs no further report, or "".

        It ended in an orderly way, or the filters have judged its end.
        """
        judged = any(
            name in self.faults and self.faults[name].symptom.event != EXPECTATION for name in _ENDS
        )
        return self.ended or ("judged" if judged else "")

    @property
    def may_die_unheard(self) -> bool:
        """Whether a reading that shows the guest as dead is a new death.

        If the guest was off in an orderly way, or for a reason that the hypervisor had forgotten,
        it must have run since then.
        """
        ran = self.reason in (*ORDERLY, UNKNOWN)
        return self.life == OFF and (ran or not self.explained)

    @property
    def reported(self) -> str:
        """Return the worst state reported for the guest's current faults."""
        reported = (fault.reported for fault in self.faults.values())
        return max(reported, key=RANK.__getitem__, default="")


class GuestWatch:
    """The state of all guests of a host; turns events and readings into guest events."""

    def __init__(self, filters: Filter) -> None:
        self.filters = filters
        self.tracks: dict[str, Track] = {}
        #: Guests that are gone, with the reason why their absence needs no report.
        self.dismissed: dict[str, str] = {}
        #: Monotonic time of their removal, for removals since the start of this agent.
        self.removed_at: dict[str, float] = {}
        #: When they went: a reading that began earlier may still contain them.
        self._left: dict[str, float] = {}
        #: Their rate counts: a restart of a guest may undefine and define it again.
        self.counted: dict[str, Tally] = {}
        #: Guests whose failure was reported and whose recovery was not. Includes guests that are
        #: gone, because a restart of a guest may undefine and define it again.
        self.reported_failed: dict[str, bool] = {}

    def use(self, filters: Filter, now: float) -> None:
        """Replace the filters, and judge unreported faults again."""
        self.filters = filters
        for track in [track for track in self.tracks.values() if track.faults]:
            faults = {
                name: fault if fault.reported else _judged_anew(fault, track, filters, now)
                for name, fault in track.faults.items()
            }
            self.tracks[track.uuid] = replace(track, faults=faults)

    def hear(self, event: Event, now: float, heard: float | None = None) -> list[GuestEvent]:
        """Judge an event; `heard` is its time of arrival (default: `now`)."""
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
        sentence = " ".join(filter(None, words))
        about_life = event.kind == LIFECYCLE and event.detail not in _NOT_LIFE
        if event.detail == "stopped" and track.life == OFF and not track.closing:
            about_life = False  # the guest could not be started: only a reading knows why it is off
        why = event.reason if about_life else ""
        removed = event.reason or "removed" if event.detail == "undefined" else ""
        return self._follow(track, meant, Now(event.at, now, heard, sentence, why, removed))

    def reconcile(
        self, guests: Sequence[Guest], at: datetime, now: float, began: float | None = None
    ) -> list[GuestEvent]:
        """Judge a reading of all guests; a known guest that is not in the reading is gone.

        The reading began at date `at` and monotonic time `began` (default: `now`).
        """
        began = now if began is None else began
        happened: list[GuestEvent] = []
        for guest in guests:
            if self._left.get(guest.uuid, began) <= began:
                happened += self._read(guest, at, now, began)
        self._left = {uuid: when for uuid, when in self._left.items() if when > began}
        present = {guest.uuid for guest in guests}
        for track in [track for track in self.tracks.values() if track.uuid not in present]:
            if track.heard is not None and track.heard > began:
                continue  # the guest appeared while the hypervisor was read
            if MISSING in track.differences:
                continue  # already known as missing
            meant = of_absence(track.life, track.persistent)
            gone = "it was there, and is not any more"
            happened += self._follow(track, meant, Now(at, now, began, gone))
        return happened + self.check_timers(now)

    def check_timers(self, now: float) -> list[GuestEvent]:
        """Report faults whose grace time is over, and forget faults that ended long ago."""
        happened: list[GuestEvent] = []
        for track in [track for track in self.tracks.values() if track.faults]:
            kept = {
                name: fault
                for name, fault in track.faults.items()
                if fault.lasts or now - fault.last < QUIET_S
            }
            self.tracks[track.uuid], guest_events = _report(replace(track, faults=kept), now)
            self._remember(guest_events)
            happened += guest_events
        return happened

    def due(self) -> float | None:
        """Return when `check_timers` has something to report if no event arrives until then."""
        dues = (
            fault.due
            for track in self.tracks.values()
            for fault in track.faults.values()
            if fault.due is not None
        )
        return min(dues, default=None)

    def _track(self, uuid: str, name: str) -> Track:
        """Return the track of a guest; a guest that comes back keeps its rate counts."""
        return self.tracks.get(uuid) or Track(uuid, name, tally=self.counted.pop(uuid, {}))

    def _read(self, guest: Guest, at: datetime, now: float, began: float) -> list[GuestEvent]:
        track = self._track(guest.uuid, guest.name)
        track = replace(track, name=guest.name, metadata=guest.metadata or track.metadata)
        if guest.state == UNKNOWN:  # the domain did not answer: only its presence is known
            self.tracks[track.uuid] = track
            return []
        track = replace(track, persistent=guest.persistent)
        if track.heard is not None and track.heard > began:
            self.tracks[track.uuid] = track  # an event since then is newer
            return []
        meant = of_state(guest, track.life, track.closing, track.may_die_unheard)
        sentence = f"found {guest.state} {guest.reason}"
        return self._follow(track, meant, Now(at, now, began, sentence, guest.reason))

    def _follow(self, track: Track, meant: Classification, when: Now) -> list[GuestEvent]:
        before, faults, explained = track, without(track.faults, meant.ends), track.explained
        died = meant.life in _DEAD and track.life not in _DEAD
        anew = meant.symptom is not None and meant.ends == EVERYTHING
        if meant.life != track.life or anew:
            track = replace(track, life=meant.life, reason="", since=when.at, ended="")
        reason = when.reason or track.reason
        ended = (meant.ended or track.ended) if meant.life == OFF else ""
        track = replace(track, reason=reason, closing=meant.closing, faults=faults, ended=ended)
        if meant.symptom is not None:
            track = _take(track, meant.symptom, self.filters, when, died)
        track, guest_events = _report(track, when.now)
        recovered = self._recovered(before, track, when)
        self._remember(guest_events)
        if meant.gone:
            self.tracks.pop(track.uuid, None)
            self._left[track.uuid] = when.stamp
            self._dismiss(track, explained or when.removed, when.stamp)
        else:
            self.tracks[track.uuid] = track
            self.dismissed.pop(track.uuid, None)
        return recovered + guest_events

    def _recovered(self, before: Track, after: Track, when: Now) -> list[GuestEvent]:
        """Return a "well" event if a guest with a reported failure runs again.

        The guest must start to run, or its failure must end: a guest that keeps running with a
        failing disk is not reported healthy.
        """
        ended = before.reported == FAILED or before.life != RUNNING
        runs = after.life == RUNNING and after.reported != FAILED
        if not (runs and ended and self.reported_failed.pop(after.uuid, False)):
            return []
        return [_well(after, when)]

    def _remember(self, guest_events: Sequence[GuestEvent]) -> None:
        self.reported_failed.update(
            {event.uuid: True for event in guest_events if event.state == FAILED}
        )
        _trim(self.reported_failed)

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
    """Remove the oldest entries above MOST_DISMISSED."""
    while len(kept) > MOST_DISMISSED:
        del kept[next(iter(kept))]


def _judged_anew(fault: Fault, track: Track, filters: Filter, now: float) -> Fault:
    about = {**track.metadata, "name": track.name}
    verdict, _ = filters.judge(fault.symptom, about, track.tally, now, again=True)
    return replace(fault, verdict=verdict)


def _take(track: Track, symptom: Symptom, filters: Filter, when: Now, died: bool) -> Track:
    """Return the track with a new symptom; `died`: the guest lived until then."""
    name = cause(symptom)
    lost = next((key for key, t in track.faults.items() if explains(t, key == name, died)), None)
    if lost is not None:  # a known fault explains the symptom: add a trace
        old = track.faults[lost]
        same = lost == name and symptom.lasts
        old = replace(old, lasts=old.lasts or same or track.life == OFF)
        traced_fault = traced(old, when, again=lost == name)
        return replace(track, faults={**_sure(track, name, symptom), lost: traced_fault})
    existing = track.faults.get(name)
    goes_on = existing is not None and existing.lasts
    if existing is not None and goes_on:
        symptom = richer(existing.symptom, symptom)
    about = {**track.metadata, "name": track.name}
    verdict, tally = filters.judge(symptom, about, track.tally, when.stamp, again=goes_on)
    if tally:  # keep only rules that are still in force
        track = replace(track, tally={rule: tally[rule] for rule in filters.rules if rule in tally})
    # the guest is off, or died of this: its earlier faults end here
    over = track.life == OFF or (died and verdict.do == RECOVER)
    if existing is not None:
        begun = existing if goes_on or not symptom.lasts else replace(existing, **begins(when))
        begun = replace(begun, symptom=symptom, verdict=verdict, lasts=symptom.lasts)
        new_fault = traced(begun, when)
    elif verdict.do == IGNORE and not symptom.lasts:
        return track
    else:
        traces: tuple[str, ...] = (when.trace,)
        if over:
            traces = tuple(t for fault in track.faults.values() for t in fault.traces) + traces
        new_fault = Fault(
            symptom,
            when.at,
            when.now,
            when.now,
            verdict,
            symptom.lasts,
            traces=traces[-MOST_TRACES:],
        )
    others = {} if over else track.faults
    return replace(track, faults={**others, name: new_fault})


def _sure(track: Track, name: str, symptom: Symptom) -> Mapping[str, Fault]:
    """Return the faults; a fault loaded from disk and now detected again counts as lasting."""
    if symptom.event not in UNSEEN or name not in track.faults:
        return track.faults
    return {**track.faults, name: replace(track.faults[name], lasts=symptom.lasts)}


def _report(track: Track, now: float) -> tuple[Track, list[GuestEvent]]:
    """Report the worst fault that is due; a reported failure explains the guest's other faults."""
    due = [
        (RANK[REPORTED_AS[fault.verdict.do]], name)
        for name, fault in track.faults.items()
        if fault.due is not None and fault.due <= now
    ]
    happened: list[GuestEvent] = []
    for _rank, name in sorted(due, reverse=True):
        fault = track.faults[name]
        state = REPORTED_AS[fault.verdict.do]
        if track.reported != FAILED:
            happened.append(guest_event(track, name, fault, state))
        fault = replace(fault, reported=state)
        track = replace(track, faults={**track.faults, name: fault})
    return track, happened


def guest_event(track: Track, name: str, fault: Fault, state: str) -> GuestEvent:
    symptom = fault.symptom
    key = f"{track.uuid}/{name.replace(' ', '-')}/{fault.since.isoformat()}/{state}"
    evidence: dict[str, Any] = {
        "event": symptom.event,
        "detail": symptom.detail,
        "reason": symptom.reason,
        "disk": symptom.disk,
        "path": symptom.path,
        "domain_name": track.name,
        "domain_state": track.life,
        "rule": fault.verdict.rule,
        "traces": list(fault.traces),
        "count": fault.count,
    }
    return GuestEvent(track.uuid, track.name, state, fault.since, key, evidence)


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
