# SPDX-License-Identifier: Apache-2.0
"""Guests of a libvirt daemon: what it says (events), and what it knows (states).

Each time the way to the daemon is found: keepalive, events, then every domain is read, and a few
times more soon after: a daemon that was just started takes every guest for alive until it has found
its QEMU, and says nothing of those it does not find. From then on every few minutes. The way is
lost when the daemon dies (at once) or answers nothing for KEEPALIVE (4 s); it is looked for again
for ever. A daemon that is too busy to list its guests is listened to all the same, and asked again.
The event loop only writes down what it hears; a thread of its own tells it on. Nothing is ever
asked on either, and every question has a deadline, so that one QEMU, or the daemon, that hangs
holds up nobody.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.drivers.guests import loop, words
from holdfast.drivers.guests.calls import Calls, Opening, end, failed
from holdfast.drivers.guests.facts import Facts
from holdfast.drivers.guests.probe import HELD_S, Probe
from holdfast.drivers.guests.reader import Reader
from holdfast.drivers.guests.teller import MOST, Teller
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports import guests as port
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Event, Guest, Listener

LOG = logging.getLogger(__name__)

#: Seconds between signs of life, and how many may be missing.
KEEPALIVE: Final = (1, 3)
OPEN_S: Final = 2.0
PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: A daemon that is slow gets so many times the time to list its guests.
MOST_PATIENCE: Final = 4.0
#: So long after the way was found all is read again.
AGAIN_S: Final = (2.0, 10.0, 30.0)
#: And so often after that: of guests that libvirt does not keep only their absence says that nobody
#: has to remember them any more.
READ_EVERY_S: Final = 300.0
IDLE_S: Final = 60.0
#: Reading all again because too much was heard: at most so often.
CALM_S: Final = 1.0
#: Connections that could not be closed: a daemon that lives but answers nothing gets no more.
MOST_LEFT: Final = 3
PROBE_EVERY_S, STUCK_S = 5.0, 3.0

Fields = dict[str, str]


@dataclass(eq=False)
class Way:
    """A connection on which we listen, and the ears that we have there."""

    connection: Any = None
    ears: list[int] = field(default_factory=list)


class LibvirtGuests:
    def __init__(
        self,
        address: str,
        clock: Clock,
        *,
        probe_every_s: float = PROBE_EVERY_S,
        stuck_s: float = STUCK_S,
        held_s: float = HELD_S,
        most_waiting: int = MOST,
    ) -> None:
        self._address = address
        self._clock = clock
        self._most_waiting = most_waiting
        self._libvirt = loop.running()
        self._facts: dict[str, Facts] = {}
        self._wanted: set[str] = set()  # of whom facts have to be read
        self._left = Calls(MOST_LEFT)
        self._opening = Opening(self._listen)
        self._why = "libvirt has not been asked yet"
        self._complained = False
        self._bell = threading.Event()
        self._lost = ""  # why the present connection is of no use any more
        self._way = Way()
        self._full = False
        self._due: list[float] = []  # when all guests are read
        self._later: tuple[float, ...] = ()  # and so long after the first time
        self._calm = 0.0  # not before that
        self._patience = 1.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="guests-way", daemon=True)
        spans = {"every_s": probe_every_s, "stuck_s": stuck_s, "held_s": held_s}
        self._probe = Probe(self._open, self._hangs, clock, **spans)
        self._reader = Reader(self._open, self._facts, clock)
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
        self._reader.close()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        if self._teller is not None:
            self._teller.close()

    def read(self) -> tuple[Sequence[Guest], datetime]:
        return self._reader.read()

    def why_deaf(self) -> str:
        return self._why

    # the way to the daemon

    def _forever(self) -> None:
        pause_s = PAUSE_S
        while not self._closed.is_set():
            way = None
            try:
                if self._left.is_full:
                    raise failed("it lets none of our connections go")
                way = self._opening.result(OPEN_S)
                pause_s = PAUSE_S
                self._attend(way)
            except (HoldfastError, self._libvirt.libvirtError) as error:
                self._deaf(str(error))
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("the way to libvirt: unforeseen")
                self._deaf("something unforeseen, see the log")
            self._leave(way)
            self._clock.wait(self._closed, pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _open(self) -> Any:
        """On whatever thread; blocks while the daemon is frozen."""
        return self._libvirt.openReadOnly(self._address)

    def _listen(self) -> "Way":
        """On a connection by which nothing else is ever asked (see `Lines`)."""
        way = Way(self._open())
        way.connection.registerCloseCallback(self._closing, way)
        for number, take in self._takers().items():
            heard = functools.partial(self._heard, way, take)
            way.ears.append(way.connection.domainEventRegisterAny(None, number, heard, None))
        for number in self._of_facts():
            changed = functools.partial(self._changed, way)
            way.ears.append(way.connection.domainEventRegisterAny(None, number, changed, None))
        way.connection.setKeepAlive(*KEEPALIVE)
        return way

    def _attend(self, way: "Way") -> None:
        """Read all, and stay until the way is lost or we close. What was heard before we are here
        shows in what is read."""
        self._lost, self._full, self._way = "", False, way
        self._due, self._later, self._calm = [self._clock.monotonic()], AGAIN_S, 0.0
        while not self._closed.is_set():
            pause_s = self._due[0] - self._clock.monotonic()
            self._clock.wait(self._bell, max(0.0, min(pause_s, IDLE_S)))
            self._bell.clear()
            if self._lost or not way.connection.isAlive():
                raise failed(self._lost or "the connection is dead")
            self._read_due()
            self._read_wanted()

    def _read_due(self) -> None:
        """All guests, if it is time. If they cannot be read, that is tried again: what is heard
        meanwhile is told."""
        if self._full:
            self._full = False
            self._read_again()
        if not self._due or self._clock.monotonic() < self._due[0]:
            return
        try:
            self._reconcile()
        except (DriverError, self._libvirt.libvirtError) as error:
            self._deaf(f"guests cannot be read: {error}")
            self._patience = min(self._patience * 2, MOST_PATIENCE)
            self._due[0] = self._calm = self._clock.monotonic() + LONGEST_PAUSE_S
            return
        now, self._patience = self._clock.monotonic(), 1.0
        due = [*self._due[1:], *(now + after_s for after_s in self._later)]
        self._due = due or [now + READ_EVERY_S]
        self._later, self._calm = (), now + CALM_S
        self._hearing()

    def _read_again(self) -> None:
        """As soon as we may, unless it is done by then anyway."""
        when = max(self._clock.monotonic(), self._calm)
        if not self._due or self._due[0] > when:
            LOG.warning("more was heard of guests than could be kept: all are read again")
            self._due.insert(0, when)

    def _closing(self, _connection: Any, reason: int, way: "Way") -> None:
        if way is not self._way:
            return  # one that was left before
        ways = ("an error", "the daemon ended", "the daemon is silent", "we closed it")
        self._lost = f"the connection was closed: {words.word(ways, reason)}"
        self._bell.set()

    def _leave(self, way: "Way | None") -> None:
        """Taking leave waits for answers, so it is not waited for; what is heard until then does
        not count."""
        self._way = Way()
        if way is None:
            return
        try:
            self._left.ask("close", functools.partial(end, way.connection, way.ears), 1.0)
        except (DriverError, self._libvirt.libvirtError) as error:
            LOG.debug("closing: %s", error)

    def _deaf(self, why: str) -> None:
        """Said once, not at every try."""
        if not self._complained and not self._closed.is_set():
            LOG.error("guests cannot be seen, it is tried again: %s", why)
        self._why, self._complained = why, True

    def _hearing(self) -> None:
        if self._why:
            LOG.info("guests are seen")
        self._why, self._complained = "", False

    def _overflowed(self) -> None:
        self._full = True
        self._bell.set()

    # what it knows

    def _reconcile(self) -> None:
        found, at = self._reader.read(self._patience)
        for gone in self._facts.keys() - {one.uuid for one in found}:
            self._facts.pop(gone, None)
        if self._teller is not None:
            self._teller.put_reading(lambda listener: listener.reconciled(found, at))

    def _read_wanted(self) -> None:
        while self._wanted:
            uuid = self._wanted.pop()
            try:
                self._reader.learn(uuid)
            except (DriverError, self._libvirt.libvirtError) as error:
                LOG.debug("%s: %s", uuid, error)

    # what it says, on libvirt's thread

    def _heard(
        self, way: "Way", take: Callable[..., Fields], _: Any, domain: Any, *said: Any
    ) -> None:
        if way is not self._way:
            return
        uuid, fields = domain.UUIDString(), take(*said[:-1])
        self._happened(uuid, domain.name(), fields)
        if fields["kind"] == port.LIFECYCLE and fields["detail"] in ("defined", "started"):
            self._want(uuid)

    def _changed(self, way: "Way", _: Any, domain: Any, *_said: Any) -> None:
        """Its XML says something else by now: what its owner wants, which disks it has."""
        if way is self._way:
            self._want(domain.UUIDString())

    def _want(self, uuid: str) -> None:
        self._wanted.add(uuid)
        self._bell.set()

    def _hangs(self, uuid: str, name: str, detail: str, for_s: float) -> None:
        """An order that does not end is dated from its begin, or nobody would know how long."""
        ago_s = for_s if detail == "held" else 0.0
        fields = {"kind": port.MONITOR, "detail": detail}
        self._happened(uuid, name, fields, always=True, ago_s=ago_s)

    def _happened(
        self, uuid: str, name: str, fields: Fields, *, always: bool = False, ago_s: float = 0.0
    ) -> None:
        at = self._clock.now() - timedelta(seconds=ago_s)

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

    def _of_facts(self) -> tuple[int, ...]:
        """What is listened to only to know guests better."""
        ids = self._libvirt
        return ids.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, ids.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED


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
