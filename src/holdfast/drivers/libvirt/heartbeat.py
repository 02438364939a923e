# SPDX-License-Identifier: Apache-2.0
"""The heartbeat of guests that want it: their agents are asked through libvirt, many at a time.

Only of those that do not answer is more asked: whether the agent's channel is open, and what the
guest has done so far. Each question has a line of its own while it waits; these may write, which
a question to an agent needs.
"""

import functools
import logging
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.drivers.libvirt import connection, domain_xml
from holdfast.drivers.libvirt.connection import Call, Line, Lines, failed
from holdfast.drivers.libvirt.domain_xml import GuestFacts
from holdfast.model.errors import DriverError
from holdfast.ports.guests import Pulse, Vcpu
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)
AT_ONCE: Final = 16
#: Of those who only read.
READING: Final = 3
#: What an agent gets to answer; libvirt itself counts.
ANSWER_S: Final = 2
#: Before that libvirt makes sure that an agent hears it at all, which takes so long if none does.
SYNC_S: Final = 5
#: And what libvirt gets on top.
SPARE_S: Final = 2.0
#: What a guest wants is read again so often; and so soon if it could not be read.
AGAIN_S: Final = 300.0
LATER_S: Final = 60.0
FACTS_S: Final = 0.5
_PING: Final = '{"execute": "guest-ping"}'
_CHANNEL: Final = "devices/channel/target[@name='org.qemu.guest_agent.0']"
_DONE: Final = (".rd.reqs", ".wr.reqs", ".fl.reqs", ".tx.pkts")


class LibvirtHeartbeats:
    """`ports.guests.Heartbeats`; one thread at a time. Who wants it is read once for each run of a
    guest, and again now and then; as long as nobody does, one list is all that is asked, by a way
    that may only read."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._clock = clock
        self._libvirt = connection.running()
        self._known: dict[
            tuple[str, int], tuple[GuestFacts, float]
        ] = {}  # by uuid and run; read when
        self._reading = Lines(lambda: self._libvirt.openReadOnly(address), READING)
        self._lines = Lines(lambda: self._libvirt.open(address), AT_ONCE)

    def pulses(self) -> Sequence[Pulse]:
        try:
            wanted = self._wanted()
            if wanted:  # whether we are let in
                self._lines.ask("a line", lambda line: None, ANSWER_S)
        except self._libvirt.libvirtError as error:
            raise failed(self._why(error)) from error
        found: list[Pulse] = []
        for start in range(0, len(wanted), AT_ONCE):
            found += self._some(wanted[start : start + AT_ONCE])
        return found

    def close(self) -> None:
        self._reading.close()
        self._lines.close()

    def _why(self, error: Any) -> str:
        """What can be done about it, if somebody is not let in."""
        if error.get_error_code() not in self._refusals() and "Permission" not in str(error):
            return str(error)
        return (
            f"agents of guests cannot be asked, libvirt does not let us write: {error}. Let the"
            " account of this agent use libvirt's read-write socket (the group libvirt), or set"
            " [agent] heartbeats_every_s = 0"
        )

    def _refusals(self) -> tuple[int, ...]:
        names = ("AUTH_FAILED", "AUTH_CANCELLED", "AUTH_UNAVAILABLE", "OPERATION_DENIED")
        return tuple(getattr(self._libvirt, f"VIR_ERR_{name}") for name in names)

    def _wanted(self) -> list[tuple[str, str, GuestFacts]]:
        active = self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE

        def look(line: Line) -> dict[tuple[str, int], str]:
            return {(uuid, one.ID()): one.name() for uuid, one in line.list(active).items()}

        known = self._reading.ask("list", look, ANSWER_S + SPARE_S)
        self._known = {key: self._known[key] for key in known if key in self._known}
        for key, name in known.items():
            self._learn(key, name)
        return [
            (key[0], name, self._known[key][0])
            for key, name in known.items()
            if key in self._known and self._known[key][0].metadata.get("heartbeat") == "yes"
        ]

    def _learn(self, key: tuple[str, int], name: str) -> None:
        """One that does not answer is asked next time; nobody waits for it but once."""
        now = self._clock.monotonic()
        if key in self._known and now - self._known[key][1] < AGAIN_S:
            return
        look = functools.partial(_facts, uuid=key[0])
        try:
            self._known[key] = self._reading.ask("facts", look, FACTS_S), now
        except (DriverError, self._libvirt.libvirtError) as error:
            LOG.debug("%s: %s", name, error)
            old = self._known.get(key, (GuestFacts(), now))
            self._known[key] = old[0], now - AGAIN_S + LATER_S

    def _some(self, guests: Sequence[tuple[str, str, GuestFacts]]) -> Iterator[Pulse]:
        until = self._clock.monotonic() + SYNC_S + ANSWER_S + SPARE_S
        calls: list[Call[dict[str, Any]] | None] = []
        for uuid, _, _ in guests:
            try:
                calls.append(self._lines.begin("ping", functools.partial(self._look, uuid=uuid)))
            except DriverError:  # those before have not come back
                calls.append(None)
        for (uuid, name, known), call in zip(guests, calls, strict=True):
            seen: dict[str, Any] = {"answered": False}
            try:
                if call is not None:
                    seen = call.result(max(0.0, until - self._clock.monotonic()))
            except DriverError as error:  # it hangs with its QEMU, which is noticed elsewhere
                LOG.debug("%s: %s", name, error)
            except self._libvirt.libvirtError as error:  # it has just ended
                LOG.debug("%s: %s", name, error)
                continue
            yield Pulse(uuid, name, **seen, metadata=known.metadata)

    def _look(self, line: Line, uuid: str) -> dict[str, Any]:
        """On a thread of its own."""
        import libvirt_qemu

        domain = line.domain(uuid)
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
        ((_, stats),) = line.connection.domainListGetStats([domain], groups)
        io, cpu_s = activity(stats)
        return {"answered": False, "io": io, "cpu_s": cpu_s}


def _facts(line: Line, uuid: str) -> GuestFacts:
    return domain_xml.read_facts(line.domain(uuid).XMLDesc())


def activity(stats: Mapping[str, Any]) -> tuple[int, float | None]:
    """What it read, wrote and sent, and the seconds of processors that it used or waited for: on a
    host that is full, what spins gets only its share."""
    done = sum(value for name, value in stats.items() if name.endswith(_DONE))
    used = stats.get("cpu.time")
    waited = sum(value for name, value in stats.items() if name.endswith(".delay"))
    return done, None if used is None else (used + waited) / 1e9


def _is_open(text: str) -> bool:
    target = ET.fromstring(text).find(_CHANNEL)
    return target is not None and target.get("state") == "connected"


def connect(address: str, clock: Clock) -> LibvirtHeartbeats:
    return LibvirtHeartbeats(address or "qemu:///system", clock)


# Threads of QEMUs, by /proc. libvirt could say the same, but it asks the QEMU, which costs twenty
# times as much and hangs with it.
#
# That a thread waits for a processor is told by its state: the kernel adds up what it waited for
# only
# when it gets one. A thread that the kernel holds up (D: a page that does not come, storage that
# does
# not answer) wants to go on as well.


#: What QEMU calls them, told to by libvirt: CPU 0/KVM, CPU 1/TCG; one for all in old emulation.
_CPU: Final = re.compile(r"(?:CPU (\d{1,4})|ALL CPUs)/")
_UUID: Final = re.compile(rb"\0-uuid\0([0-9a-f-]{36})\0")
_NAME: Final = re.compile(rb"\0-name\0(?:[^\0]*,)?guest=([^,\0]+)")
_WANTS: Final = ("R", "D")
#: At every so many looks all processes are: one that was seen just before it became QEMU is found.
AFRESH: Final = 6


@dataclass
class _Qemu:
    uuid: str
    name: str
    numbers: dict[int, int | None] = field(default_factory=dict)  # by thread; None: another kind


class QemuVcpus:
    """One thread at a time. What it has seen it does not read again."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._known: dict[int, _Qemu | None] = {}  # by pid; None: something else
        self._looks = 0

    def read(self) -> Sequence[Vcpu]:
        pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        self._looks += 1
        afresh = self._looks % AFRESH == 0
        known = {pid: one for pid, one in self._known.items() if one is not None or not afresh}
        self._known = {pid: known[pid] if pid in known else self._of(pid) for pid in pids}
        found: list[Vcpu] = []
        for pid, qemu in list(self._known.items()):
            if qemu is not None:
                found += self._threads(pid, qemu)
        return found

    def _of(self, pid: int) -> _Qemu | None:
        line = _bytes(self._proc / str(pid) / "cmdline")
        uuid, name = _UUID.search(line), _NAME.search(line)
        if uuid is None:
            return None
        return _Qemu(uuid[1].decode(), name[1].decode(errors="replace") if name else "")

    def _threads(self, pid: int, qemu: _Qemu) -> Iterator[Vcpu]:
        folder = self._proc / str(pid) / "task"
        try:
            present = [int(name) for name in os.listdir(folder)]
        except OSError:  # it has just ended
            present = []
        had = any(number is not None for number in qemu.numbers.values())
        qemu.numbers = {
            one: qemu.numbers[one] if one in qemu.numbers else _number(folder / str(one))
            for one in present
        }
        cpus = [(number, one) for one, number in qemu.numbers.items() if number is not None]
        if had and not cpus:  # another process has its number now, or will
            del self._known[pid]
            return
        for number, thread in sorted(cpus):
            times = _bytes(folder / str(thread) / "schedstat").split()
            status = _bytes(folder / str(thread) / "stat").rpartition(b")")[2].split()
            if len(times) >= 2 and status:
                ran, waited = int(times[0]), int(times[1])
                wants = status[0].decode() in _WANTS
                yield Vcpu(qemu.uuid, qemu.name, number, thread, ran, waited, wants)


def _number(folder: Path) -> int | None:
    """Which processor this thread is; None if it is none."""
    match = _CPU.match(_bytes(folder / "comm").decode(errors="replace"))
    return None if match is None else int(match[1] or 0)


def _bytes(path: Path) -> bytes:
    """Empty if it has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
