# SPDX-License-Identifier: Apache-2.0
"""Ports to the guests of a host, seen from the hypervisor: events, heartbeats and vCPUs.

A driver reports events (`heard`). Each time it connects to the hypervisor, the driver first
subscribes and then reads every guest (`reconciled`): events missed while disconnected show in a
guest's state. `agent/guest_state.py` decides what an event means, never a driver.

A third party adds another hypervisor with a class and an entry point:

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
#: Not a libvirt event: QEMU does not answer the driver's query, or answers again.
MONITOR: Final = "monitor"
#: Not a libvirt event: the guest hangs, judged by its guest agent and its activity.
HANG: Final = "hang"
#: Not a libvirt event: the guests that the cloud expects here and the guests that run here
#: differ, or no longer differ.
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
    """A guest event. `detail` and `reason` by `kind`:

        lifecycle       detail stopped, reason failed; suspended, ioerror; crashed, panicked; …
        watchdog        detail is the action: none, pause, reset, poweroff, shutdown, …
        io_error        detail pause, report or none; reason enospc or ""; `disk` and `path` are set
        agent           detail connected or disconnected, reason domain_started or channel
        memory_failure  detail ignore, inject, fatal or reset; reason hypervisor or guest
        block_job       detail completed, failed, canceled or ready; reason is the kind of job
        monitor         detail stuck or answering; held or released: QEMU answers, but a command to
                        QEMU does not end
        hang            detail hung or alive, reason idle or spinning; stalled or running, reason
                        names the vCPUs
        expectation     detail missing, reason all if no other guest is there either; stopped,
                        reason is the reason of its state; unexpected, reason off, elsewhere or
                        unknown; met, reason names which of these is over

    `metadata` holds the facts known about the guest at that time: project, project_name,
    flavor, ha (yes or no), heartbeat (yes or no), on_crash, watchdog. Unknown facts are left
    out.
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
    """The state of a guest as read from the hypervisor."""

    uuid: str
    name: str
    state: str  # running, paused, shutoff, crashed, …
    reason: str
    persistent: bool = True
    autostart: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: For a guest stopped by a storage error, as far as known: enospc or "", the disk, its
    #: path.
    error: str = ""
    disk: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The result of one guest agent ping and one read of the guest's counters.

    `open` is the state of the agent's channel, which a hanging guest does not close. `io`
    (requests and packets that the guest made) and `cpu_s` only grow until the guest is started
    anew. Both are None if the agent answered, or if the counters could not be read, as when
    QEMU itself hangs, which another check notices.
    """

    uuid: str
    name: str
    answered: bool
    open: bool = True
    io: int | None = None
    cpu_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Receiver of guest events; the driver calls it from one thread, in the order of events."""

    def heard(self, event: Event) -> None: ...

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        """Receive all guests of the host. `at` is when reading began: later events are newer."""
        ...


class Heartbeats(Protocol):
    def pulses(self) -> Sequence[Pulse]:
        """Ping the guest agent of every running guest with metadata `heartbeat`, in parallel.

        The call takes seconds if some guests do not answer. DriverError if the hypervisor
        cannot be asked.
        """
        ...

    def close(self) -> None: ...


class Guests(Protocol):
    def start(self, listener: Listener) -> None:
        """Start listening and return at once; the driver reconnects until `close`."""
        ...

    def close(self) -> None:
        """Stop for good; the listener gets no calls after `close` returns."""
        ...

    def read(self) -> tuple[Sequence[Guest], datetime]:
        """Read all guests now; return the guests and the time when reading began.

        The call works on a driver that was never started, and on any thread. It ends within
        seconds: a guest that does not answer is `unknown`. DriverError if the hypervisor cannot
        be asked; then the caller knows nothing, and must not treat a guest as absent.
        """
        ...

    def why_deaf(self) -> str:
        """Return why the driver receives no events now; "" if the driver receives events."""
        ...


# vCPUs of guests as the host's kernel sees them: threads that run, wait or sleep.


@dataclass(frozen=True, slots=True)
class Vcpu:
    """The state of a vCPU at a moment.

    `ran_ns` and `waited_ns` (waiting for a physical CPU) only grow as long as `thread` is the
    same. `wants` means that the vCPU is runnable but does not run now. A vCPU that sleeps
    because the guest is idle does not want to run, nor does a vCPU of a paused guest.
    """

    uuid: str
    name: str
    number: int
    thread: int
    ran_ns: int
    waited_ns: int
    wants: bool


class Vcpus(Protocol):
    def read(self) -> Sequence[Vcpu]:
        """Read the vCPUs of every running guest of this host from the kernel.

        The call asks no hypervisor and therefore cannot hang.
        """
        ...
