# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of guests by QEMU guest agent, and vCPU threads of QEMU processes from /proc.

`LibvirtHeartbeats` pings the agents of guests that want a heartbeat through libvirt, 16 at a time.
Only for an agent that does not answer it also reads whether the agent's channel is open and how
much I/O and CPU time the guest has used. Each waiting call has a connection of its own. These
connections are read-write, because an agent command requires it.
"""

import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.drivers.libvirt import connection, domain_xml
from holdfast.drivers.libvirt.connection import Call, ConnectionPool, PooledConnection, failed
from holdfast.drivers.libvirt.domain_xml import GuestFacts
from holdfast.model.errors import DriverError
from holdfast.ports.guests import Pulse, Vcpu
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)
AT_ONCE: Final = 16
#: Read-only connections.
READING: Final = 3
#: Seconds that an agent has to answer; libvirt itself measures them.
ANSWER_S: Final = 2
#: Before the command libvirt synchronises with the agent; without an agent this takes SYNC_S
#: seconds.
SYNC_S: Final = 5
#: Extra seconds for libvirt itself.
SPARE_S: Final = 2.0
#: Seconds until a guest's XML is read again; the second value after a failed reading.
AGAIN_S: Final = 300.0
LATER_S: Final = 60.0
FACTS_S: Final = 0.5
_PING: Final = '{"execute": "guest-ping"}'
_CHANNEL: Final = "devices/channel/target[@name='org.qemu.guest_agent.0']"
_DONE: Final = (".rd.reqs", ".wr.reqs", ".fl.reqs", ".tx.pkts")


class LibvirtHeartbeats:
    """The libvirt driver of `ports.guests.Heartbeats`; not thread-safe.

    The driver reads once per run of a guest, and every AGAIN_S seconds, whether the guest wants a
    heartbeat. As long as no guest wants it, the driver makes a single list call, on a read-only
    connection.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        self._clock = clock
        self._libvirt = connection.running()
        self._facts: dict[
            tuple[str, int], tuple[GuestFacts, float]
        ] = {}  # by uuid and domain id: facts, and when they were read
        self._reading = ConnectionPool(lambda: self._libvirt.openReadOnly(address), READING)
        self._pool = ConnectionPool(lambda: self._libvirt.open(address), AT_ONCE)

    def pulses(self) -> Sequence[Pulse]:
        try:
            wanted = self._wanted()
            if wanted:  # fails if libvirt refuses read-write access
                self._pool.call("a connection", lambda pooled: None, ANSWER_S)
        except self._libvirt.libvirtError as error:
            raise failed(self._why(error)) from error
        pulses: list[Pulse] = []
        for start in range(0, len(wanted), AT_ONCE):
            pulses += self._some(wanted[start : start + AT_ONCE])
        return pulses

    def close(self) -> None:
        self._reading.close()
        self._pool.close()

    def _why(self, error: Any) -> str:
        """Return the error text, with the remedy if libvirt refused the read-write connection."""
        if error.get_error_code() not in self._refusals() and "Permission" not in str(error):
            return str(error)
        return (
            f"agents of guests cannot be asked, libvirt does not let us write: {error}. Let the"
            " account of this agent use libvirt's read-write socket (the group libvirt), or set"
            " [agent] heartbeat_interval_s = 0"
        )

    def _refusals(self) -> tuple[int, ...]:
        names = ("AUTH_FAILED", "AUTH_CANCELLED", "AUTH_UNAVAILABLE", "OPERATION_DENIED")
        return tuple(getattr(self._libvirt, f"VIR_ERR_{name}") for name in names)

    def _wanted(self) -> list[tuple[str, str, GuestFacts]]:
        active = self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE

        def list_running(pooled: PooledConnection) -> dict[tuple[str, int], str]:
            return {
                (uuid, domain.ID()): domain.name() for uuid, domain in pooled.list(active).items()
            }

        running = self._reading.call("list", list_running, ANSWER_S + SPARE_S)
        self._facts = {key: self._facts[key] for key in running if key in self._facts}
        for key, name in running.items():
            self._learn(key, name)
        return [
            (key[0], name, self._facts[key][0])
            for key, name in running.items()
            if key in self._facts and self._facts[key][0].metadata.get("heartbeat") == "yes"
        ]

    def _learn(self, key: tuple[str, int], name: str) -> None:
        """Read a guest's XML if due.

        After a failure the next attempt follows LATER_S seconds later.
        """
        now = self._clock.monotonic()
        if key in self._facts and now - self._facts[key][1] < AGAIN_S:
            return
        read = functools.partial(_facts, uuid=key[0])
        try:
            self._facts[key] = self._reading.call("facts", read, FACTS_S), now
        except (DriverError, self._libvirt.libvirtError) as error:
            LOG.debug("%s: %s", name, error)
            old = self._facts.get(key, (GuestFacts(), now))
            self._facts[key] = old[0], now - AGAIN_S + LATER_S

    def _some(self, guests: Sequence[tuple[str, str, GuestFacts]]) -> Iterator[Pulse]:
        until = self._clock.monotonic() + SYNC_S + ANSWER_S + SPARE_S
        calls: list[Call[dict[str, Any]] | None] = []
        for uuid, _, _ in guests:
            try:
                calls.append(self._pool.begin("ping", functools.partial(self._ping, uuid=uuid)))
            except DriverError:  # too many earlier calls have not returned
                calls.append(None)
        for (uuid, name, facts), call in zip(guests, calls, strict=True):
            answer: dict[str, Any] = {"answered": False}
            try:
                if call is not None:
                    answer = call.result(max(0.0, until - self._clock.monotonic()))
            except DriverError as error:  # QEMU hangs; `guests.Probe` reports it
                LOG.debug("%s: %s", name, error)
            except self._libvirt.libvirtError as error:  # the guest has just ended
                LOG.debug("%s: %s", name, error)
                continue
            yield Pulse(uuid, name, **answer, metadata=facts.metadata)

    def _ping(self, pooled: PooledConnection, uuid: str) -> dict[str, Any]:
        """Ping the agent on the call's thread.

        Without an answer, read channel state, I/O and CPU time.
        """
        import libvirt_qemu

        domain = pooled.domain(uuid)
        try:
            libvirt_qemu.qemuAgentCommand(domain, _PING, ANSWER_S, 0)
            return {"answered": True}
        except self._libvirt.libvirtError as error:
            LOG.debug("%s: %s", uuid, error)
        if not _is_open(domain.XMLDesc()):
            return {"answered": False, "open": False}
        groups = (
            self._libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
            | self._libvirt.VIR_DOMAIN_STATS_VCPU
            | self._libvirt.VIR_DOMAIN_STATS_BLOCK
            | self._libvirt.VIR_DOMAIN_STATS_INTERFACE
        )
        ((_, stats),) = pooled.connection.domainListGetStats([domain], groups)
        io, cpu_s = activity(stats)
        return {"answered": False, "io": io, "cpu_s": cpu_s}


def _facts(pooled: PooledConnection, uuid: str) -> GuestFacts:
    return domain_xml.read_facts(pooled.domain(uuid).XMLDesc())


def activity(stats: Mapping[str, Any]) -> tuple[int, float | None]:
    """Return the guest's I/O operations, and the seconds of CPU time used or waited for.

    I/O operations are disk requests and sent packets. Waiting counts too, because on a full host a
    spinning guest gets only its share of CPU time.
    """
    done = sum(value for name, value in stats.items() if name.endswith(_DONE))
    used = stats.get("cpu.time")
    waited = sum(value for name, value in stats.items() if name.endswith(".delay"))
    return done, None if used is None else (used + waited) / 1e9


def _is_open(text: str) -> bool:
    root = domain_xml.tree(text)
    target = None if root is None else root.find(_CHANNEL)
    return target is not None and target.get("state") == "connected"


def connect(address: str, clock: Clock) -> LibvirtHeartbeats:
    return LibvirtHeartbeats(address or "qemu:///system", clock)


# vCPU threads


#: Thread names that libvirt makes QEMU use: CPU 0/KVM, CPU 1/TCG; ALL CPUs for old emulation.
_CPU: Final = re.compile(r"(?:CPU (\d{1,4})|ALL CPUs)/")
_UUID: Final = re.compile(rb"\0-uuid\0([0-9a-f-]{36})\0")
_NAME: Final = re.compile(rb"\0-name\0(?:[^\0]*,)?guest=([^,\0]+)")
_WANTS: Final = ("R", "D")
#: Every AFRESH-th reading checks all processes again: an earlier one may have seen a process
#: just before it became QEMU.
AFRESH: Final = 6


@dataclass
class _Qemu:
    uuid: str
    name: str
    numbers: dict[int, int | None] = field(default_factory=dict)  # by thread id; None: not a vCPU


class QemuVcpus:
    """Reads the vCPU threads of QEMU processes from /proc; not thread-safe.

    libvirt could report the same, but it asks QEMU, which costs 20 times as much and hangs with
    QEMU. The thread state shows whether a thread waits for a CPU: the kernel adds up waiting time
    only when the thread gets a CPU. A thread blocked in the kernel (D: a missing page, storage
    that does not answer) also wants to run. Processes and threads that are already known are not
    identified again.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._qemus: dict[int, _Qemu | None] = {}  # by pid; None: not a QEMU process
        self._readings = 0

    def read(self) -> Sequence[Vcpu]:
        pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        self._readings += 1
        afresh = self._readings % AFRESH == 0
        qemus = {pid: qemu for pid, qemu in self._qemus.items() if qemu is not None or not afresh}
        self._qemus = {pid: qemus[pid] if pid in qemus else self._of(pid) for pid in pids}
        vcpus: list[Vcpu] = []
        for pid, qemu in list(self._qemus.items()):
            if qemu is not None:
                vcpus += self._threads(pid, qemu)
        return vcpus

    def _of(self, pid: int) -> _Qemu | None:
        command = _bytes(self._proc / str(pid) / "cmdline")
        uuid, name = _UUID.search(command), _NAME.search(command)
        if uuid is None:
            return None
        return _Qemu(uuid[1].decode(), name[1].decode(errors="replace") if name else "")

    def _threads(self, pid: int, qemu: _Qemu) -> Iterator[Vcpu]:
        folder = self._proc / str(pid) / "task"
        try:
            present = [int(name) for name in os.listdir(folder)]
        except OSError:  # the process has just ended
            present = []
        had = any(number is not None for number in qemu.numbers.values())
        qemu.numbers = {
            thread_id: qemu.numbers[thread_id]
            if thread_id in qemu.numbers
            else _number(folder / str(thread_id))
            for thread_id in present
        }
        cpus = [
            (number, thread_id) for thread_id, number in qemu.numbers.items() if number is not None
        ]
        if had and not cpus:  # another process has this pid now, or will
            del self._qemus[pid]
            return
        for number, thread in sorted(cpus):
            times = _bytes(folder / str(thread) / "schedstat").split()
            status = _bytes(folder / str(thread) / "stat").rpartition(b")")[2].split()
            if len(times) >= 2 and status:
                ran, waited = int(times[0]), int(times[1])
                wants = status[0].decode() in _WANTS
                yield Vcpu(qemu.uuid, qemu.name, number, thread, ran, waited, wants)


def _number(folder: Path) -> int | None:
    """Return the thread's vCPU number; None if the thread is not a vCPU."""
    match = _CPU.match(_bytes(folder / "comm").decode(errors="replace"))
    return None if match is None else int(match[1] or 0)


def _bytes(path: Path) -> bytes:
    """Read a file in /proc; empty if the process has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
