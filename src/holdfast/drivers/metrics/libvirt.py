# SPDX-License-Identifier: Apache-2.0
"""Numbers of a libvirt host. The kernel's are read by whoever asks; libvirt has a thread of its
own, which listens to who comes and goes, reads what a guest is once per start (`libvirt_facts`),
and asks for disks and memory every so often. One connection listens and is asked nothing; all
questions go by lines. libvirtd may die, hang or start again: the kernel's numbers go on, and
libvirt's come again when it does.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from holdfast.drivers.guests import loop, words
from holdfast.drivers.guests.calls import Call, Line, Lines, Opening, end, failed
from holdfast.drivers.metrics import facts, libvirt_bulk
from holdfast.drivers.metrics.book import Book
from holdfast.drivers.metrics.files import Files
from holdfast.drivers.metrics.kernel import Host, Links
from holdfast.drivers.metrics.libvirt_bulk import Bulk
from holdfast.drivers.metrics.libvirt_facts import Answer, Reader
from holdfast.drivers.metrics.qemu import Qemus
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.measures import Facts, Look, Roster, Said, Stats

LOG = logging.getLogger(__name__)
KEEPALIVE: Final = (1, 3)
ANSWER_S: Final = 2.0
EVERY_S: Final = 30.0
#: When libvirt cannot be reached it is tried again after so long.
PAUSE_S: Final = 1.0
#: For each call that hangs, and as many for whatever else is asked meanwhile.
MOST_LINES: Final = 2 * libvirt_bulk.MOST_HANGING
#: Who is there is heard; that nothing was missed is made sure of so often.
LIST_S: Final = 30.0
#: Nobody is shown before all were read; who does not let itself be read is left out after so long.
PATIENCE_S: Final = 30.0
GROUPS: Final = {
    "block": libvirt_bulk.BLOCK,
    "balloon": libvirt_bulk.BALLOON,
    "cpu": libvirt_bulk.CPU,
    "vcpu": libvirt_bulk.VCPU,
}


class LibvirtMeasures:
    def __init__(
        self,
        address: str,
        clock: Clock,
        *,
        every_s: float = EVERY_S,
        groups: Sequence[str] = ("block", "balloon"),
        links: str = "/proc/net/dev",
    ) -> None:
        self._address = address
        self._clock = clock
        self._every_s = every_s
        self._groups = sum(GROUPS[name] for name in groups)
        self._libvirt = loop.running()
        files = Files()
        self._files = files
        self._host, self._links, self._qemus = Host(files), Links(files, links), Qemus(files, clock)
        self._book = Book()
        self._said = Said(every_s=every_s)
        self._lines = Lines(functools.partial(self._libvirt.openReadOnly, address), MOST_LINES)
        # who is asked every second hears of one that hangs within that
        late_s = min(libvirt_bulk.LATE_S, max(1.0, every_s))
        self._bulk = Bulk(self._lines, clock, late_s=late_s)
        self._opening = Opening(self._open)
        self._connection: Any = None
        self._ears: list[int] = []
        self._running: dict[str, int] = {}  # their numbers, by uuid
        self._listed = -LIST_S
        self._reader = Reader(self._lines, self._read)
        self._patient_until = 0.0
        self._bell = threading.Event()
        self._closed = threading.Event()
        self._due = 0.0
        self._complained = False
        self._thread = threading.Thread(target=self._forever, name="metrics-libvirt", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._leave()
        self._lines.close()
        self._files.close()

    def roster(self) -> Roster:
        return self._book.roster()

    def said(self) -> Said:
        return self._said

    def look(self, roster: Roster) -> Look:
        at = self._clock.monotonic()
        processes = self._qemus.look(roster.guests)
        wanted = {nic.ifname for one in roster.guests.values() for nic in one.facts.nics}
        links_at = self._clock.monotonic()
        links = self._links.look(wanted)
        return Look(at, self._host.look(), processes, links, links_at)

    # the thread

    def _forever(self) -> None:
        while not self._closed.is_set():
            try:
                pause_s = self._turn()
                self._well()
            except (DriverError, self._libvirt.libvirtError) as error:
                # of one that lives and is late, a second connection would only be one more
                if self._connection is not None and not self._connection.isAlive():
                    self._leave()
                self._complain(str(error))
                pause_s = PAUSE_S
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("numbers of guests: unforeseen")
                self._leave()
                pause_s = PAUSE_S
            self._clock.wait(self._bell, pause_s)
            self._bell.clear()

    def _turn(self) -> float:
        """Read who changed; ask for numbers if it is time. The seconds until that is so again."""
        self._connected()
        self._reader.turn()
        now = self._clock.monotonic()
        if now >= self._due:
            self._round()
            self._due = now + self._every_s if now > self._due + 1 else self._due + self._every_s
        pause_s = max(0.0, self._due - self._clock.monotonic())
        return min(pause_s, PAUSE_S) if self._reader.is_behind else pause_s

    def _round(self) -> None:
        now = self._clock.monotonic()
        if now - self._listed >= LIST_S:
            self._reconcile()
            self._listed = now
        roster = self._book.roster()
        asked = {}
        for uuid, number in self._running.items():
            known = roster.guests.get(uuid)
            if known is not None:
                asked[uuid] = (number, self._what(known.facts))
        found, silent = self._bulk.round(asked)
        for uuid, said in found.items():
            state, reason = said.values.get("state.state"), said.values.get("state.reason")
            if state is not None and reason is not None:
                self._book.stands(uuid, *words.state(int(state), int(reason)))
        kept: dict[str, Stats] = {u: s for u, s in self._said.stats.items() if u in asked}
        self._said = Said(self._said.round + 1, kept | found, silent, self._every_s)

    def _what(self, known: Facts) -> int:
        """Who does not tell of its memory is not asked about it."""
        groups = self._groups if known.tells_memory else self._groups & ~libvirt_bulk.BALLOON
        if not known.disks:
            groups &= ~libvirt_bulk.BLOCK
        return groups | libvirt_bulk.STATE

    # who is there

    def _reconcile(self) -> None:
        """All that there are: what was missed is found so."""
        there = self._lines.ask("list", _numbers, ANSWER_S)
        self._running = {uuid: number for uuid, number in there.items() if number >= 0}
        for uuid, number in there.items():
            if not self._book.knows(uuid, number):
                self._reader.again(uuid)
        self._reader.turn()
        is_patient = self._clock.monotonic() < self._patient_until
        if self._reader.is_behind and is_patient and not self._book.roster().whole:
            raise failed("not all guests could be read")
        self._book.only(set(there))

    def _read(self, uuid: str, answer: Answer | None) -> None:
        """What it is, or that it does not say so."""
        self._running.pop(uuid, None)
        if answer is None:
            return
        known = facts.read(answer.xml)
        if known is None:
            LOG.warning("guest %s: its XML cannot be read, so it is not measured", uuid)
            return
        if answer.number >= 0:
            self._running[uuid] = answer.number
        self._book.read(uuid, answer.number, known, answer.state, answer.reason)

    # what is heard, on libvirt's thread

    def _lifecycle(self, _way: Any, domain: Any, event: int, detail: int, _: Any) -> None:
        uuid, (what, reason) = domain.UUIDString(), words.lifecycle(event, detail)
        if what in ("started", "resumed"):
            self._book.started(uuid, reason)
        if what == "stopped":
            self._book.stopped(uuid, reason)
        self._again(uuid)

    def _balloon(self, _way: Any, domain: Any, kib: int, _: Any) -> None:
        self._book.balloon(domain.UUIDString(), kib)

    def _device(self, _way: Any, domain: Any, _alias: str, _: Any) -> None:
        self._again(domain.UUIDString())

    def _again(self, uuid: str) -> None:
        self._reader.again(uuid)
        self._bell.set()

    # the way to the daemon

    def _connected(self) -> None:
        if self._connection is not None and not self._connection.isAlive():
            raise failed("the connection is dead")
        if self._connection is None:
            self._connection = self._opening.result(ANSWER_S)
            # whatever happened meanwhile shows in a round
            self._due, self._listed, self._running = 0.0, -LIST_S, {}
            self._patient_until = self._clock.monotonic() + PATIENCE_S

    def _open(self) -> Any:
        """On whatever thread; blocks while the daemon is frozen."""
        lib = self._libvirt
        connection = lib.openReadOnly(self._address)
        connection.registerCloseCallback(lambda *_: self._bell.set(), None)
        self._ears = [
            connection.domainEventRegisterAny(None, number, heard, None)
            for number, heard in (
                (lib.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
                (lib.VIR_DOMAIN_EVENT_ID_BALLOON_CHANGE, self._balloon),
                (lib.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, self._device),
                (lib.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._device),
            )
        ]
        connection.setKeepAlive(*KEEPALIVE)  # last: from here on it is asked nothing (see Lines)
        return connection

    def _leave(self) -> None:
        """A close waits for an answer, so it is not waited for."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(DriverError, self._libvirt.libvirtError):
                Call("close", functools.partial(end, connection, self._ears)).result(1.0)

    def _complain(self, why: str) -> None:
        """Said once, not at every try."""
        if not self._complained and not self._closed.is_set():
            LOG.error("libvirt tells nothing of disks and memory of guests just now: %s", why)
        self._complained = True

    def _well(self) -> None:
        if self._complained:
            LOG.info("libvirt tells of disks and memory of guests again")
        self._complained = False


def _numbers(line: Line) -> dict[str, int]:
    return {uuid: domain.ID() for uuid, domain in line.list().items()}


def connect(address: str, clock: Clock, every_s: float = EVERY_S) -> LibvirtMeasures:
    return LibvirtMeasures(address or "qemu:///system", clock, every_s=every_s)
