# SPDX-License-Identifier: Apache-2.0
"""Guests of a libvirt daemon: what it says (events), and what it knows (states).

Each time the way to the daemon is found: keepalive, events, then every domain is read. The way is
lost when the daemon dies (at once) or answers nothing for KEEPALIVE (4 s); it is looked for again
for ever. The event loop only writes down what it hears; a thread of its own tells it on. Nothing is
ever asked on either, and every question has a deadline, so that one QEMU, or the daemon, that hangs
holds up nobody.
"""

import functools
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from holdfast.drivers.guests import facts, loop, words
from holdfast.drivers.guests.calls import Call, Calls, Opening, failed
from holdfast.drivers.guests.facts import Facts
from holdfast.drivers.guests.probe import Probe
from holdfast.drivers.guests.teller import MOST, Teller
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports import guests as port
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Event, Guest, Listener

LOG = logging.getLogger(__name__)

#: Seconds between signs of life, and how many may be missing.
KEEPALIVE: Final = (1, 3)
OPEN_S: Final = 2.0
ANSWER_S: Final = 2.0
PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: Reading all again because too much was heard: at most so often.
CALM_S: Final = 1.0
MOST_CALLS: Final = 4
PROBE_EVERY_S, STUCK_S = 5.0, 3.0

Fields = dict[str, str]


class LibvirtGuests:
    def __init__(
        self,
        address: str,
        clock: Clock,
        *,
        probe_every_s: float = PROBE_EVERY_S,
        stuck_s: float = STUCK_S,
        most_waiting: int = MOST,
    ) -> None:
        self._address = address
        self._clock = clock
        self._most_waiting = most_waiting
        self._libvirt = loop.running()
        self._facts: dict[str, Facts] = {}
        self._wanted: set[str] = set()  # of whom facts have to be read
        self._calls = Calls(MOST_CALLS)
        self._opening = Opening(self._open)
        self._why = "libvirt has not been asked yet"
        self._complained = False
        self._bell = threading.Event()
        self._lost = ""  # why the present connection is of no use any more
        self._way = object()  # the present connection's mark
        self._full = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="guests-way", daemon=True)
        self._probe = Probe(self._open, self._hangs, clock, every_s=probe_every_s, stuck_s=stuck_s)
        self._teller: Teller | None = None

    def start(self, listener: Listener) -> None:
        self._teller = Teller(listener, self._overflowed, most=self._most_waiting)
        self._teller.start()
        self._thread.start()
        self._probe.start()

    def close(self) -> None:
        self._closed.set()
        self._bell.set()
        self._probe.close()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        if self._teller is not None:
            self._teller.close()

    def why_deaf(self) -> str:
        return self._why

    # the way to the daemon

    def _forever(self) -> None:
        pause_s = PAUSE_S
        while not self._closed.is_set():
            connection = None
            try:
                connection = self._opening.result(OPEN_S)
                pause_s = PAUSE_S
                self._attend(connection)
            except (HoldfastError, self._libvirt.libvirtError) as error:
                self._deaf(str(error))
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("the way to libvirt: unforeseen")
                self._deaf("something unforeseen, see the log")
            self._leave(connection)
            self._clock.wait(self._closed, pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _open(self) -> Any:
        """On whatever thread; blocks while the daemon is frozen."""
        connection = self._libvirt.openReadOnly(self._address)
        connection.setKeepAlive(*KEEPALIVE)
        return connection

    def _attend(self, connection: Any) -> None:
        """Listen, read, and stay until the way is lost or we close."""
        self._lost, self._full, self._way = "", False, object()
        self._ask("register", lambda: self._listen(connection))
        self._reconcile(connection)
        self._hearing()
        while not self._closed.is_set():
            self._clock.wait(self._bell, 60.0)
            self._bell.clear()
            if self._lost or not connection.isAlive():
                raise failed(self._lost or "the connection is dead")
            if self._full:
                self._full = False
                LOG.warning("more was heard of guests than could be kept: all are read again")
                self._reconcile(connection)
                self._clock.wait(self._closed, CALM_S)
            self._read_wanted(connection)

    def _listen(self, connection: Any) -> None:
        connection.registerCloseCallback(self._closing, self._way)
        for number, take in self._takers().items():
            heard = functools.partial(self._heard, take)
            connection.domainEventRegisterAny(None, number, heard, None)

    def _closing(self, _connection: Any, reason: int, way: object) -> None:
        if way is not self._way:
            return  # one that was left before
        ways = ("an error", "the daemon ended", "the daemon is silent", "we closed it")
        self._lost = f"the connection was closed: {words.word(ways, reason)}"
        self._bell.set()

    def _leave(self, connection: Any) -> None:
        """A close waits for an answer, so it is not waited for."""
        if connection is None:
            return
        try:
            Call("close", connection.close).result(1.0)
        except (DriverError, self._libvirt.libvirtError) as error:
            LOG.debug("closing: %s", error)

    def _deaf(self, why: str) -> None:
        """Said once, not at every try."""
        if not self._complained and not self._closed.is_set():
            LOG.error("guests cannot be seen, libvirt is being looked for: %s", why)
        self._why, self._complained = why, True

    def _hearing(self) -> None:
        if self._why:
            LOG.info("guests are seen")
        self._why, self._complained = "", False

    def _overflowed(self) -> None:
        self._full = True
        self._bell.set()

    def _ask(self, what: str, do: Callable[[], Any]) -> Any:
        return self._calls.ask(what, do, ANSWER_S)

    # what it knows

    def _reconcile(self, connection: Any) -> None:
        at = self._clock.now()
        domains = self._ask("list", connection.listAllDomains)
        found = [guest for domain in domains if (guest := self._guest(domain)) is not None]
        self._facts = {one.uuid: self._facts.get(one.uuid, Facts()) for one in found}
        self._tell(lambda listener: listener.reconciled(found, at), always=True)

    def _guest(self, domain: Any) -> Guest | None:
        """None if it has gone since it was listed."""
        uuid, name = domain.UUIDString(), domain.name()
        try:
            (state, reason), known, lasts, autostart = self._ask(name, lambda: _read(domain))
        except self._libvirt.libvirtError as error:
            if error.get_error_code() == self._libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        except DriverError as error:  # it alone does not answer; all others shall be seen
            LOG.warning("%s cannot be read: %s", name, error)
            return Guest(uuid, name, "unknown", "no_answer", metadata=self._about(uuid))
        self._facts[uuid] = known
        return Guest(uuid, name, state, reason, lasts, autostart, known.metadata)

    def _read_wanted(self, connection: Any) -> None:
        while self._wanted:
            uuid = self._wanted.pop()
            read = functools.partial(_facts_of, connection, uuid)
            try:
                self._facts[uuid] = self._ask("facts", read)
            except (DriverError, self._libvirt.libvirtError) as error:
                LOG.debug("%s: %s", uuid, error)

    def _about(self, uuid: str) -> dict[str, str]:
        known = self._facts.get(uuid)
        return dict(known.metadata) if known else {}

    # what it says, on libvirt's thread

    def _heard(self, take: Callable[..., Fields], _way: Any, domain: Any, *said: Any) -> None:
        uuid, fields = domain.UUIDString(), take(*said[:-1])
        self._happened(uuid, domain.name(), fields)
        if fields["kind"] == port.LIFECYCLE and fields["detail"] in ("defined", "started"):
            self._wanted.add(uuid)
            self._bell.set()

    def _hangs(self, uuid: str, name: str, detail: str) -> None:
        self._happened(uuid, name, {"kind": port.MONITOR, "detail": detail}, always=True)

    def _happened(self, uuid: str, name: str, fields: Fields, *, always: bool = False) -> None:
        at = self._clock.now()

        def tell(listener: Listener) -> None:
            listener.heard(self._event(uuid, name, at, fields))

        self._tell(tell, always=always)

    def _event(self, uuid: str, name: str, at: datetime, fields: Fields) -> Event:
        known = self._facts.get(uuid, Facts())
        alias = fields.get("disk", "")
        if alias in known.disks:
            disk = known.disks[alias]
            fields = {**fields, "disk": disk.name, "path": fields.get("path") or disk.path}
        return Event(uuid, name, at=at, metadata=known.metadata, **fields)

    def _tell(self, telling: Callable[[Listener], None], *, always: bool = False) -> None:
        if self._teller is not None:
            self._teller.put(telling, always=always)

    def _takers(self) -> dict[int, Callable[..., Fields]]:
        """What is listened to: of events that come in two editions the one that says more."""
        ids = self._libvirt
        return {
            ids.VIR_DOMAIN_EVENT_ID_LIFECYCLE: _lifecycle,
            ids.VIR_DOMAIN_EVENT_ID_REBOOT: lambda: {"kind": port.REBOOT},
            ids.VIR_DOMAIN_EVENT_ID_WATCHDOG: _watchdog,
            ids.VIR_DOMAIN_EVENT_ID_IO_ERROR_REASON: _io_error,
            ids.VIR_DOMAIN_EVENT_ID_CONTROL_ERROR: lambda: {"kind": port.CONTROL_ERROR},
            ids.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE: _agent,
            ids.VIR_DOMAIN_EVENT_ID_MEMORY_FAILURE: _memory_failure,
            ids.VIR_DOMAIN_EVENT_ID_BLOCK_JOB_2: _block_job,
        }


def _facts_of(connection: Any, uuid: str) -> Facts:
    return facts.read(connection.lookupByUUIDString(uuid).XMLDesc())


def _read(domain: Any) -> tuple[tuple[str, str], Facts, bool, bool]:
    state = words.state(*domain.state())
    known = facts.read(domain.XMLDesc())
    return state, known, bool(domain.isPersistent()), bool(domain.autostart())


def _lifecycle(event: int, detail: int) -> Fields:
    what, reason = words.lifecycle(event, detail)
    return {"kind": port.LIFECYCLE, "detail": what, "reason": reason}


def _watchdog(action: int) -> Fields:
    return {"kind": port.WATCHDOG, "detail": words.word(words.WATCHDOG, action)}


def _io_error(path: str | None, alias: str | None, action: int, reason: str | None) -> Fields:
    detail = words.word(words.IO_ERROR, action)
    return {
        "kind": port.IO_ERROR,
        "detail": detail,
        "reason": reason or "",
        "disk": alias or "",
        "path": path or "",
    }


def _agent(state: int, reason: int) -> Fields:
    detail = words.word(words.AGENT, state)
    return {"kind": port.AGENT, "detail": detail, "reason": words.word(words.AGENT_REASON, reason)}


def _memory_failure(recipient: int, action: int, _flags: int) -> Fields:
    who = words.word(words.MEMORY_RECIPIENT, recipient)
    return {
        "kind": port.MEMORY_FAILURE,
        "detail": words.word(words.MEMORY_ACTION, action),
        "reason": who,
    }


def _block_job(disk: str, kind: int, status: int) -> Fields:
    return {
        "kind": port.BLOCK_JOB,
        "detail": words.word(words.BLOCK_JOB, status),
        "reason": words.word(words.BLOCK_JOB_KIND, kind),
        "disk": disk,
    }


def connect(address: str, clock: Clock) -> LibvirtGuests:
    return LibvirtGuests(address or "qemu:///system", clock)
