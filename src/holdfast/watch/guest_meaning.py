# SPDX-License-Identifier: Apache-2.0
"""What one event, or one state that was read, says about a guest: how it lives now, what is over,
and a sign if something happened that a rule can speak of. No sequence is relied on.

    (6,2) shutdown/host, then (5,0) stopped/shutdown    somebody's SIGTERM: stopped terminated
    (6,2) shutdown/host, then (5,1) stopped/destroyed   an order: stopped destroyed
    (6,1) shutdown/guest, then (5,5) stopped/failed     its own will, whatever became of QEMU
    (3,2) suspended/ioerror without an I/O error event  io_error pause all the same
    (2,1) started/migrated, then (5,5) stopped/failed   a migration to here failed: nothing died
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.model.guest_filter import Sign
from holdfast.ports import guests as port
from holdfast.ports.guests import Event, Guest

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
class Meaning:
    """`ends`: causes of trouble that are over. `closing`: who began to end it, guest or host.
    `ended`: how it came to be off, if it was by its own will or an order."""

    life: str
    sign: Sign | None = None
    ends: frozenset[str] = NOTHING
    closing: str = ""
    gone: bool = False  # nothing has to be remembered of it
    ended: str = ""


def cause(sign: Sign) -> str:
    """Under which several traces of one failure come together."""
    if sign.event == port.EXPECTATION and sign.detail != UNEXPECTED:
        return "stopped"  # of which nobody heard
    return f"{sign.event} {sign.detail}" if sign.event in _BY_DETAIL else sign.event


def of_event(event: Event, life: str, closing: str) -> Meaning:
    """What was heard, of a guest that lived so until now."""
    if event.kind == port.LIFECYCLE:
        meant = _LIFECYCLE.get(event.detail)
        return meant(event, life, closing) if meant else Meaning(life, closing=closing)
    if event.kind == port.EXPECTATION:
        return _expectation(event, life, closing)
    if (event.kind, event.detail) in _OVER:
        over = _OVER[event.kind, event.detail]
        return Meaning(life, ends=frozenset({over}), closing=closing)
    if event.kind == port.HANG and life in (PAUSED, CRASHED, OFF):  # seen before that was heard
        return Meaning(life, closing=closing)
    ends = frozenset({port.AGENT}) if event.kind == port.AGENT else NOTHING
    return Meaning(life, _sign(event), ends, closing)


#: Of these each detail is a trouble of its own.
_BY_DETAIL: Final = (port.IO_ERROR, port.MONITOR, port.HANG)
_OVER: Final = {
    (port.MONITOR, "answering"): "monitor stuck",
    (port.MONITOR, "released"): "monitor held",
    (port.HANG, "alive"): "hang hung",
    (port.HANG, "running"): "hang stalled",
}


def _expectation(event: Event, life: str, closing: str) -> Meaning:
    """One that is missing is off, wherever it went."""
    if event.detail == MET:
        over = cause(Sign(event.kind, event.reason))
        gone = event.reason == MISSING and life == OFF
        return Meaning(life, ends=frozenset({over}), closing=closing, gone=gone)
    life = OFF if event.detail == MISSING else life
    return Meaning(life, _sign(event), closing=closing)


def _sign(event: Event) -> Sign:
    detail = event.detail
    if event.kind == port.WATCHDOG:
        detail = _watchdog(detail, event.metadata)
    return Sign(event.kind, detail, event.reason, event.disk, event.path)


def _watchdog(detail: str, metadata: Mapping[str, str]) -> str:
    """libvirt calls it a pause when a guest is dumped, and resumes it by itself."""
    return "dump" if detail == "pause" and metadata.get("watchdog") == "dump" else detail


# lifecycle


def _defined(event: Event, life: str, closing: str) -> Meaning:
    """Kept from now on. One that was not known until then does not run yet."""
    new = life == UNKNOWN and event.reason == "added"
    return Meaning(OFF if new else life, closing=closing)


def _started(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(ARRIVING if event.reason == "migrated" else RUNNING, ends=EVERYTHING)


def _resumed(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(RUNNING, ends=ENDED_BY_RUNNING)


def _suspended(event: Event, life: str, closing: str) -> Meaning:
    sign = _of_pause(event.reason, event.metadata)
    return Meaning(PAUSED, sign, ENDED_BY_PAUSE, closing)


def _of_pause(reason: str, metadata: Mapping[str, str]) -> Sign | None:
    if reason == "ioerror":
        return Sign(port.IO_ERROR, "pause")
    if reason == "watchdog":
        return Sign(port.WATCHDOG, _watchdog("pause", metadata))
    if reason in ("postcopy_failed", "api_error"):
        return Sign("suspended", reason)
    return Sign("panic", "panicked") if reason == "crashed" else None


def _shutdown(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(life, closing=event.reason)


def _stopped(event: Event, life: str, closing: str) -> Meaning:
    if life == OFF and not closing:  # it was found so before, or could not be started
        return Meaning(OFF)
    if event.reason == "crashed":
        return Meaning(OFF, Sign("panic", "panicked"))
    if event.reason == "failed" and life == ARRIVING:
        return Meaning(OFF, ends=EVERYTHING, ended="migrated")
    how = event.reason
    if how in ("failed", "shutdown"):
        how = {"guest": "shutdown", "finished": "shutdown", "host": "terminated"}.get(closing, how)
    if _is_death(how):
        return Meaning(OFF, Sign("stopped", how))
    return Meaning(OFF, Sign("stopped", how), EVERYTHING, ended=how)


def _is_death(how: str) -> bool:
    return how in ("failed", "terminated", "vanished")


def _crashed(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(CRASHED, Sign("panic", event.reason or "panicked"), closing=closing)


def _slept(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(PAUSED, ends=ENDED_BY_PAUSE, closing=closing)


def _undefined(event: Event, life: str, closing: str) -> Meaning:
    """One that still runs is only not kept any more."""
    return Meaning(life, closing=closing, gone=life in (OFF, UNKNOWN))


_LIFECYCLE: Final[Mapping[str, Callable[[Event, str, str], Meaning]]] = {
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


def of_state(guest: Guest, life: str, closing: str, unheard: bool = False) -> Meaning:
    """What was read, of a guest that was known to live so. `unheard`: it was off, and if it died
    since, after somebody started it, nobody heard of either."""
    if guest.state == "running":
        return Meaning(RUNNING, ends=ENDED_BY_RUNNING, closing=closing)
    if guest.state == "paused":
        sign = _of_pause(guest.reason, guest.metadata)
        if sign is not None and sign.event == port.IO_ERROR:
            sign = replace(sign, reason=guest.error, disk=guest.disk, path=guest.path)
        arriving = life == ARRIVING and guest.reason in ("migration", "starting_up")
        return Meaning(ARRIVING if arriving else PAUSED, sign, ENDED_BY_PAUSE, closing)
    if guest.state == "pmsuspended":
        return Meaning(PAUSED, ends=ENDED_BY_PAUSE, closing=closing)
    if guest.state == "crashed":
        return Meaning(CRASHED, Sign("panic", "panicked"), closing=closing)
    if guest.state == "shutoff":
        return _of_off(guest, life, closing, unheard)
    return Meaning(life, closing=closing)


def _of_off(guest: Guest, life: str, closing: str, unheard: bool) -> Meaning:
    if life == ARRIVING:
        return Meaning(OFF, ends=EVERYTHING, ended="migrated")
    lived = life in (RUNNING, PAUSED, CRASHED)
    # crashed: QEMU died, or its guest panicked. daemon: it died while a new libvirtd looked for its
    # guests. failed: it could not be started, which is somebody else's business unless it ran
    gone = guest.reason in ("crashed", "daemon")
    died = (gone and (life != OFF or unheard)) or (guest.reason == "failed" and lived)
    if not died:
        known = life == OFF or gone or guest.reason == "failed"
        ended = guest.reason if guest.reason in ORDERLY else ""
        return Meaning(OFF, ends=NOTHING if known else EVERYTHING, ended=ended)
    if closing == "guest":
        return Meaning(OFF, ends=EVERYTHING, ended="shutdown")
    how = "terminated" if closing == "host" else "failed"
    sign = Sign("panic", "panicked") if life == CRASHED else Sign("stopped", how)
    return Meaning(OFF, sign, EVERYTHING if life == OFF else NOTHING)


def of_absence(life: str, persistent: bool) -> Meaning:
    """It is not there any more. What was kept on disk only goes if somebody removes it."""
    lived = life in (RUNNING, PAUSED, CRASHED)
    if lived and not persistent:
        return Meaning(OFF, Sign("stopped", "vanished"))
    return Meaning(OFF, ends=EVERYTHING, gone=True)
