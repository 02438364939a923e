# SPDX-License-Identifier: Apache-2.0
"""The guests of one host, seen from outside them.

A driver tells what happens (`heard`) and, each time it has found its way to the hypervisor, first
listens and then reads every guest (`reconciled`): what happened while nobody listened shows in a
state. What any of it means is decided by `agent/guest_state.py`, never by a driver.

Another hypervisor is one class and one entry point:

    [project.entry-points."holdfast.guests"]
    acme = "acme_guests:connect"

    def connect(address, clock):
        return AcmeGuests(address, clock)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

LIFECYCLE: Final = "lifecycle"
REBOOT: Final = "reboot"
WATCHDOG: Final = "watchdog"
IO_ERROR: Final = "io_error"
CONTROL_ERROR: Final = "control_error"
AGENT: Final = "agent"
MEMORY_FAILURE: Final = "memory_failure"
BLOCK_JOB: Final = "block_job"
#: Not libvirt's: the driver asked QEMU something, and it does not answer, or does again.
MONITOR: Final = "monitor"
#: Nor this: the guest itself does nothing any more, by its agent and its activity.
HANG: Final = "hang"
#: Nor this: what the cloud says should run here, and what does, differ, or do no more.
EXPECTATION: Final = "expectation"
KINDS: Final = (
    LIFECYCLE,
    REBOOT,
    WATCHDOG,
    IO_ERROR,
    CONTROL_ERROR,
    AGENT,
    MEMORY_FAILURE,
    BLOCK_JOB,
    MONITOR,
    HANG,
    EXPECTATION,
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was heard, in words.

    lifecycle       detail stopped, reason failed; suspended, ioerror; crashed, panicked; …
    watchdog        detail is what it does: none, pause, reset, poweroff, shutdown, …
    io_error        detail pause, report or none; reason enospc or ""; the disk and where it is
    agent           detail connected or disconnected, reason domain_started or channel
    memory_failure  detail ignore, inject, fatal or reset; reason hypervisor or guest
    block_job       detail completed, failed, canceled or ready; reason is the kind of job
    monitor         detail stuck or answering; held or released: QEMU answers, but an order to it
                    does not end
    hang            detail hung or alive, reason idle or spinning; stalled or running, reason is
                    which processors
    expectation     detail missing, reason all if no other is there either; stopped, reason as its
                    state has it; unexpected, reason off, elsewhere or unknown; met, reason is what
                    of these is over

    `metadata` is what was known of the guest then: project, project_name, flavor, ha (yes or no),
    heartbeat (yes or no), on_crash, watchdog; what is not known is left out.
    """

    uuid: str
    name: str
    kind: str
    at: datetime
    detail: str = ""
    reason: str = ""
    disk: str = ""
    path: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guest:
    """One guest as it was read."""

    uuid: str
    name: str
    state: str  # running, paused, shutoff, crashed, …
    reason: str
    persistent: bool = True
    autostart: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Of one that storage has stopped, as far as it is known: enospc or "", the disk, where it is.
    error: str = ""
    disk: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one question to a guest's agent, and one look at the guest, found. `open`: the agent's
    channel, which a guest that hangs does not close. `io` (requests and packets that the guest
    made) and `cpu_s` only grow, until it is started anew; None of one that answered, or if they
    could not be read, as when QEMU itself hangs, which is noticed elsewhere."""

    uuid: str
    name: str
    answered: bool
    open: bool = True
    io: int | None = None
    cpu_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Called from one thread, one call after the other, in the order of things."""

    def heard(self, event: Event) -> None: ...

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        """All guests that there are. `at` is when reading began: what is heard later is newer."""
        ...


class Heartbeats(Protocol):
    def pulses(self) -> Sequence[Pulse]:
        """Of every running guest that wants it (metadata `heartbeat`), asked side by side; takes
        seconds if some do not answer. DriverError if nobody can be asked."""
        ...

    def close(self) -> None: ...


class Guests(Protocol):
    def start(self, listener: Listener) -> None:
        """Returns at once. What is lost is found again, for ever, until `close`."""
        ...

    def close(self) -> None:
        """For good; nothing is told any more when it returns."""
        ...

    def read(self) -> tuple[Sequence[Guest], datetime]:
        """All guests as they are now, and when reading began; also of a driver that was never
        started, and on any thread. It ends within seconds: a guest that does not answer is
        `unknown`. DriverError if nobody can be asked: then nothing is known, absence neither."""
        ...

    def why_deaf(self) -> str:
        """Why nothing is heard just now, "" if it is."""
        ...


# The processors of guests as their host sees them: threads that run, wait or sleep.


@dataclass(frozen=True, slots=True)
class Vcpu:
    """One, at one moment. `ran_ns` and `waited_ns` (for a processor) only grow, as long as it is
    the same `thread`. `wants`: it could go on, and is kept from it just now. What sleeps because
    the guest has nothing to do wants nothing, nor does one of a guest that is paused."""

    uuid: str
    name: str
    number: int
    thread: int
    ran_ns: int
    waited_ns: int
    wants: bool


class Vcpus(Protocol):
    def read(self) -> Sequence[Vcpu]:
        """Of every guest that runs on this machine. Asks no hypervisor, so it cannot hang."""
        ...
