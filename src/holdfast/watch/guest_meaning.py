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
from dataclasses import dataclass
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
EVERYTHING: Final = frozenset({"*"})
NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Meaning:
    """`ends`: causes of trouble that are over. `closing`: who began to end it, guest or host."""

    life: str
    sign: Sign | None = None
    ends: frozenset[str] = NOTHING
    closing: str = ""
    gone: bool = False  # nothing has to be remembered of it


def cause(sign: Sign) -> str:
    """Under which several traces of one failure come together."""
    return f"{sign.event} {sign.detail}" if sign.event == "io_error" else sign.event


def of_event(event: Event, life: str, closing: str) -> Meaning:
    """What was heard, of a guest that lived so until now."""
    if event.kind == port.LIFECYCLE:
        meant = _LIFECYCLE.get(event.detail)
        return meant(event, life, closing) if meant else Meaning(life, closing=closing)
    if (event.kind, event.detail) in _OVER:
        return Meaning(life, ends=frozenset({event.kind}), closing=closing)
    ends = frozenset({port.AGENT}) if event.kind == port.AGENT else NOTHING
    return Meaning(life, _sign(event), ends, closing)


_OVER: Final = frozenset({(port.MONITOR, "answering"), (port.HANG, "alive")})


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
    return Meaning(PAUSED, _of_pause(event.reason, event.metadata), closing=closing)


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
    if life == OFF:  # it was found so before, or could not be started
        return Meaning(OFF)
    if event.reason == "crashed":
        return Meaning(OFF, Sign("panic", "panicked"))
    if event.reason == "failed" and life == ARRIVING:
        return Meaning(OFF, ends=EVERYTHING)
    how = event.reason
    if how in ("failed", "shutdown"):
        how = {"guest": "shutdown", "finished": "shutdown", "host": "terminated"}.get(closing, how)
    return Meaning(OFF, Sign("stopped", how), ends=NOTHING if _is_death(how) else EVERYTHING)


def _is_death(how: str) -> bool:
    return how in ("failed", "terminated", "vanished")


def _crashed(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(CRASHED, Sign("panic", event.reason or "panicked"), closing=closing)


def _slept(event: Event, life: str, closing: str) -> Meaning:
    return Meaning(PAUSED, closing=closing)


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


def of_state(guest: Guest, life: str, closing: str) -> Meaning:
    """What was read, of a guest that was known to live so."""
    if guest.state == "running":
        return Meaning(RUNNING, ends=ENDED_BY_RUNNING, closing=closing)
    if guest.state == "paused":
        sign = _of_pause(guest.reason, guest.metadata)
        arriving = life == ARRIVING and guest.reason in ("migration", "starting_up")
        return Meaning(ARRIVING if arriving else PAUSED, sign, closing=closing)
    if guest.state == "crashed":
        return Meaning(CRASHED, Sign("panic", "panicked"), closing=closing)
    if guest.state == "shutoff":
        return _of_off(guest, life, closing)
    return Meaning(life, closing=closing)


def _of_off(guest: Guest, life: str, closing: str) -> Meaning:
    if life == ARRIVING:
        return Meaning(OFF, ends=EVERYTHING)
    lived = life in (RUNNING, PAUSED, CRASHED)
    # crashed: QEMU died, or its guest panicked. failed: it could not be started, which is somebody
    # else's business unless it ran
    died = (guest.reason == "crashed" and life != OFF) or (guest.reason == "failed" and lived)
    if not died:
        known = life == OFF or guest.reason in ("crashed", "failed")
        return Meaning(OFF, ends=NOTHING if known else EVERYTHING)
    if closing == "guest":
        return Meaning(OFF, ends=EVERYTHING)
    how = "terminated" if closing == "host" else "failed"
    return Meaning(OFF, Sign("panic", "panicked") if life == CRASHED else Sign("stopped", how))


def of_absence(life: str, persistent: bool) -> Meaning:
    """It is not there any more. What was kept on disk only goes if somebody removes it."""
    lived = life in (RUNNING, PAUSED, CRASHED)
    if lived and not persistent:
        return Meaning(OFF, Sign("stopped", "vanished"))
    return Meaning(OFF, ends=EVERYTHING, gone=True)
