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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.drivers.libvirt import connection, domain_xml
from holdfast.drivers.libvirt.connection import Call, Calls, Line, Lines, Opening, end, failed
from holdfast.drivers.libvirt.domain_xml import GuestFacts
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports import guests as port
from holdfast.ports.guests import Event, Guest, Listener
from holdfast.runtime.clock import Clock

# Tells a listener one thing after the other, on a thread of its own, so that whoever hears never
# waits for whoever listens. What waits is bounded: more is not kept, and all guests are read
# again
# instead, because where it ended shows in their states. Of readings only the latest waits.


LOG = logging.getLogger(__name__)
MOST = 10_000

Telling = Callable[[Listener], None]


class Dispatcher:
    def __init__(self, listener: Listener, full: Callable[[], None], *, most: int = MOST) -> None:
        self._listener = listener
        self._full = full
        self._most = most
        self._waiting: deque[Telling] = deque()
        self._reading: Telling | None = None  # that waits
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._forever, name="guests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, telling: Telling, *, always: bool = False) -> None:
        """`always` for what is few and must not be missed."""
        with self._wake:
            room = always or len(self._waiting) < self._most
            if room:
                self._waiting.append(telling)
                self._wake.notify()
        if not room:
            self._full()

    def put_reading(self, telling: Telling) -> None:
        """What was read of all guests: it must not be missed, and says more than one before it."""
        with self._wake:
            if self._reading is not None:
                self._waiting.remove(self._reading)
            self._reading = telling
            self._waiting.append(telling)
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._waiting.clear()
            self._reading = None
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _forever(self) -> None:
        while (telling := self._next()) is not None:
            try:
                telling(self._listener)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("something that was heard of a guest was not understood")

    def _next(self) -> Telling | None:
        with self._wake:
            while not self._waiting and not self._closed:
                self._wake.wait()
            if self._closed:
                return None
            telling = self._waiting.popleft()
            if telling is self._reading:
                self._reading = None
            return telling


# A reading of all guests for whoever asks, on lines of its own: neither who listens nor a QEMU
# that hangs holds it up, and it holds up nobody.


ANSWER_S: Final = 2.0
#: A guest that is healthy is read in a few milliseconds.
GUEST_S: Final = 1.0
#: Guests that do not answer, before it is the daemon rather than they.
MOST_CALLS: Final = 4
#: Questions that only QEMU itself can answer, which it may never do: on lines of their own, and so
#: few that the daemon keeps its workers for the others.
MOST_DISKS: Final = 2


class Reader:
    """`known`: what was read of guests before, by uuid, and is read anew here."""

    def __init__(
        self, connect: Callable[[], Any], known: dict[str, GuestFacts], clock: Clock
    ) -> None:
        self._known = known
        self._clock = clock
        self._lines = Lines(connect, MOST_CALLS)
        self._disks = Lines(connect, MOST_DISKS)
        self._turn = threading.Lock()

    def read(self, patience: float = 1.0) -> tuple[Sequence[Guest], datetime]:
        """`unknown` is who does not answer. DriverError if all cannot be read; the daemon gets as
        much more time for its list as there is `patience`."""
        import libvirt

        with self._turn:
            try:
                return self._read(patience)
            except libvirt.libvirtError as error:
                raise failed(str(error)) from error

    def learn(self, uuid: str) -> None:
        """What is known of that guest. DriverError, or libvirt's own."""

        def look(line: Line) -> GuestFacts:
            return domain_xml.read_facts(line.domain(uuid).XMLDesc())

        self._known[uuid] = self._lines.ask("facts", look, GUEST_S)

    def close(self) -> None:
        self._lines.close()
        self._disks.close()

    def _read(self, patience: float) -> tuple[Sequence[Guest], datetime]:
        at = self._clock.now()
        names = self._lines.ask("list", _names, ANSWER_S * patience)
        read = [self._guest(uuid, name) for uuid, name in names.items()]
        return [guest for guest in read if guest is not None], at

    def _guest(self, uuid: str, name: str) -> Guest | None:
        """None if it has gone since it was listed."""
        import libvirt

        try:
            (state, reason), known, lasts, autostart = self._lines.ask(
                name, lambda line: _read_domain(line.domain(uuid)), GUEST_S
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        except DriverError as error:  # it alone does not answer; all others shall be seen
            LOG.warning("%s cannot be read: %s", name, error)
            about = self._known.get(uuid, GuestFacts()).metadata
            return Guest(uuid, name, "unknown", "no_answer", metadata=dict(about))
        self._known[uuid] = known
        found = Guest(uuid, name, state, reason, lasts, autostart, known.metadata)
        if (state, reason) != ("paused", "ioerror"):
            return found
        what, disk, path = self._error(uuid, name, known)
        return replace(found, error=what, disk=disk, path=path)

    def _error(self, uuid: str, name: str, known: GuestFacts) -> tuple[str, str, str]:
        """What stopped it and on which disk; nothing if its QEMU does not say so in time."""
        import libvirt

        try:
            errors = self._disks.ask(name, lambda line: _errors(line.domain(uuid)), GUEST_S)
        except (DriverError, libvirt.libvirtError) as error:
            LOG.warning("%s: which disk stopped it cannot be asked: %s", name, error)
            return "", "", ""
        return _worst(errors, known)


def _names(line: Line) -> Mapping[str, str]:
    return {uuid: domain.name() for uuid, domain in line.list().items()}


def _errors(domain: Any) -> Mapping[str, int]:
    found: Mapping[str, int] = domain.diskErrors()
    return found


def _worst(errors: Mapping[str, int], known: GuestFacts) -> tuple[str, str, str]:
    """Of one disk that fails; if any of them lacks more than space, of that one."""
    for number, word in sorted(domain_xml.DISK_ERROR.items()):
        for disk in sorted(name for name, error in errors.items() if error == number):
            paths = (one.path for one in known.disks.values() if one.name == disk)
            return word, disk, next(paths, "")
    return "", "", ""


def _read_domain(domain: Any) -> tuple[tuple[str, str], GuestFacts, bool, bool]:
    state = domain_xml.state(*domain.state())
    known = domain_xml.read_facts(domain.XMLDesc())
    return state, known, bool(domain.isPersistent()), bool(domain.autostart())


# Finds a QEMU that hangs, and one that an order without end keeps all others from: libvirt says
# nothing of either by itself.
#
# Something is asked of every QEMU every few seconds; of one that does not answer libvirt then
# knows
# since when it waits, and says so at once to whoever asks (`controlInfo`). On lines of its own: a
# question that hangs holds up nothing else, and there are not too many of them: each keeps one of
# libvirtd's workers until its QEMU answers or ends. Beyond that many it is said that we cannot
# ask.
#
# libvirt gives one order at a time to a QEMU. If our question waits though QEMU owes nobody an
# answer, somebody's order has not ended. A migration, a save, a dump or a backup may take hours:
# most
# of these let questions pass, and while a guest starts or arrives it is not judged.


#: libvirtd has twenty workers for ordinary requests: the others' share is what is left of them.
MOST_HANGING = 12
SHORT_S = 2.0
#: What a healthy QEMU answers in; one that needs longer is waited for while others are asked.
QUICK_S = 0.25
#: So long an order may keep others waiting.
HELD_S = 20.0
#: libvirt itself lets a question wait for so long, then answers it as if there were nothing to say.
LOCK_S = 25.0
_JOB, _OCCUPIED = 1, 2

#: uuid, name, (stuck, answering, held or released), and for how many seconds it has been so.
Say = Callable[[str, str, str, float], None]


class Probe:
    def __init__(
        self,
        connect: Callable[[], Any],
        say: Say,
        clock: Clock,
        *,
        every_s: float,
        stuck_s: float,
        held_s: float = HELD_S,
    ) -> None:
        self._say = say
        self._clock = clock
        self._every_s = every_s
        self._stuck_s = stuck_s
        self._held_s = held_s
        self._lines = Lines(connect, MOST_HANGING + 1)
        self._hanging: dict[str, tuple[Call[Any], float]] = {}  # and since when
        self._owed: dict[str, float] = {}  # since when it has not answered us, by uuid
        self._stuck: dict[str, str] = {}  # names by uuid
        self._held: dict[str, str] = {}
        self._complained = ""
        self._full = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="guests-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._lines.close()

    def _forever(self) -> None:
        import libvirt

        while not self._clock.wait(self._stop, self._every_s):
            try:
                self.round()
                self._complained = ""
            except (DriverError, libvirt.libvirtError) as error:
                if not self._complained:
                    LOG.warning("whether QEMUs hang cannot be seen just now: %s", error)
                self._complained = str(error)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("looking for QEMUs that hang: unforeseen")

    def round(self) -> None:
        import libvirt

        running = self._ask("list", _running)
        # who ended is heard of elsewhere
        self._stuck = {one: name for one, name in self._stuck.items() if one in running}
        self._held = {one: name for one, name in self._held.items() if one in running}
        self._owed = {one: since for one, since in self._owed.items() if one in running}
        for uuid, name in running.items():
            try:
                self._one(uuid, name)
            except libvirt.libvirtError as error:  # it has just ended, or we have lost the way
                LOG.debug("%s: %s", uuid, error)
        self._say_full(len(running))

    def _say_full(self, running: int) -> None:
        """Once: the others are asked when one of those that hang answers or ends."""
        full = len(self._hanging) >= MOST_HANGING
        if full and not self._full:
            LOG.warning(
                "%d QEMUs owe an answer: of the other %d we see only what they owe to others",
                *(len(self._hanging), running - len(self._hanging)),
            )
        self._full = full

    def _one(self, uuid: str, name: str) -> None:
        state, _, waits_ms = self._ask("controlInfo", lambda line: line.domain(uuid).controlInfo())
        if state == _OCCUPIED and waits_ms >= self._stuck_s * 1000:
            self._owed.pop(uuid, None)
            if uuid not in self._stuck:
                self._stuck[uuid] = name
                self._say(uuid, name, "stuck", waits_ms / 1000)
            return
        # that it owes nothing says little: a libvirtd that was restarted has not asked it yet
        if self._answers(uuid) and uuid in self._stuck:
            self._say(uuid, self._stuck.pop(uuid), "answering", 0.0)
        self._judge_held(uuid, name, explained=state in (_JOB, _OCCUPIED))

    def _judge_held(self, uuid: str, name: str, *, explained: bool) -> None:
        if uuid in self._owed and (explained or not self._lives_here(uuid)):
            del self._owed[uuid]
        if uuid not in self._owed:
            if uuid in self._held:
                self._say(uuid, self._held.pop(uuid), "released", 0.0)
            return
        waits_s = self._clock.monotonic() - self._owed[uuid]
        if waits_s >= self._held_s and uuid not in self._held:
            self._held[uuid] = name
            self._say(uuid, name, "held", waits_s)

    def _lives_here(self, uuid: str) -> bool:
        """And neither starts, arrives, nor is stopped for an order of the long kind."""
        import libvirt

        state, reason = self._ask("state", lambda line: line.domain(uuid).state())
        arrives = reason == libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
        return bool(state == libvirt.VIR_DOMAIN_RUNNING and not arrives)

    def _answers(self, uuid: str) -> bool:
        """Asked now; not, if it still owes us an answer, or too many do."""
        import libvirt

        now = self._clock.monotonic()
        for one, (call, since) in list(self._hanging.items()):
            if call.is_done:
                del self._hanging[one]
                if now - since < LOCK_S:
                    self._owed.pop(one, None)
        if uuid in self._hanging or len(self._hanging) >= MOST_HANGING:
            return False
        # of all that can be asked this is the least: QEMU is asked one thing, whatever it has
        what = libvirt.VIR_DOMAIN_STATS_IOTHREAD

        def ask(line: Line) -> Any:
            return line.connection.domainListGetStats([line.domain(uuid)], what)

        call = self._lines.begin("a probe", ask)
        try:
            call.result(QUICK_S)
            self._owed.pop(uuid, None)
            return True
        except DriverError:
            self._hanging[uuid] = call, now
            self._owed.setdefault(uuid, now)
        except libvirt.libvirtError as error:
            LOG.debug("%s: %s", uuid, error)
        return False

    def _ask(self, what: str, do: Callable[[Line], Any]) -> Any:
        return self._lines.ask(what, do, SHORT_S)


def _running(line: Line) -> Mapping[str, str]:
    import libvirt

    found = line.list(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    return {uuid: domain.name() for uuid, domain in found.items()}


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
        self._libvirt = connection.running()
        self._facts: dict[str, GuestFacts] = {}
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
        self._teller: Dispatcher | None = None

    def start(self, listener: Listener) -> None:
        self._teller = Dispatcher(listener, self._overflowed, most=self._most_waiting)
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
        self._lost = f"the connection was closed: {domain_xml.word(ways, reason)}"
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
        known = self._facts.get(uuid, GuestFacts())
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
    what, reason = domain_xml.lifecycle(event, detail)
    return {"kind": port.LIFECYCLE, "detail": what, "reason": reason}


def _watchdog(action: int) -> Fields:
    return {"kind": port.WATCHDOG, "detail": domain_xml.word(domain_xml.WATCHDOG, action)}


def _io_error(path: str | None, alias: str | None, action: int, reason: str | None) -> Fields:
    detail = domain_xml.word(domain_xml.IO_ERROR, action)
    return {
        "kind": port.IO_ERROR,
        "detail": detail,
        "reason": reason or "",
        "disk": alias or "",
        "path": path or "",
    }


def _agent(state: int, reason: int) -> Fields:
    detail = domain_xml.word(domain_xml.AGENT, state)
    return {
        "kind": port.AGENT,
        "detail": detail,
        "reason": domain_xml.word(domain_xml.AGENT_REASON, reason),
    }


def _memory_failure(recipient: int, action: int, _flags: int) -> Fields:
    who = domain_xml.word(domain_xml.MEMORY_RECIPIENT, recipient)
    return {
        "kind": port.MEMORY_FAILURE,
        "detail": domain_xml.word(domain_xml.MEMORY_ACTION, action),
        "reason": who,
    }


def _block_job(disk: str, kind: int, status: int) -> Fields:
    return {
        "kind": port.BLOCK_JOB,
        "detail": domain_xml.word(domain_xml.BLOCK_JOB, status),
        "reason": domain_xml.word(domain_xml.BLOCK_JOB_KIND, kind),
        "disk": disk,
    }


def connect(address: str, clock: Clock) -> LibvirtGuests:
    return LibvirtGuests(address or "qemu:///system", clock)
