# SPDX-License-Identifier: Apache-2.0
"""Guest events and guest states of the libvirt daemon on this host.

`LibvirtGuests` opens a connection with keepalive, registers for domain events and then reads every
domain. It reads all domains again 2, 10 and 30 s later, because a daemon that has just started
takes every guest for alive until it has found the QEMU process, and sends no event for a guest
whose QEMU is missing. After that it reads all domains every 5 minutes.

The connection is lost when the daemon dies (noticed at once) or is silent for KEEPALIVE (4 s). The
driver reconnects for ever. If the daemon is too busy to list its guests, the driver keeps
listening to events and repeats the list call.

libvirt's event loop only queues events; the thread of the `Dispatcher` passes them to the
listener. Neither thread makes a libvirt call, and every call has a deadline, so a hanging QEMU or
daemon blocks nothing else.
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
from holdfast.drivers.libvirt.connection import (
    Call,
    Calls,
    ConnectionPool,
    Opening,
    PooledConnection,
    end,
    failed,
)
from holdfast.drivers.libvirt.domain_xml import GuestFacts
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports import guests as port
from holdfast.ports.guests import Event, Guest, Listener
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import PeriodicTask, Worker

LOG = logging.getLogger(__name__)
MOST = 10_000

Delivery = Callable[[Listener], None]


class Dispatcher:
    """Passes queued reports to a listener in order, on a thread of its own.

    The libvirt event loop therefore never waits for the listener. The queue is bounded: when it is
    full the dispatcher drops the report and asks for a new reading of all guests, because the
    guests' states show how the dropped events ended. Only the latest reading of all guests stays
    in the queue.
    """

    def __init__(
        self, listener: Listener, full: Callable[[], None], clock: Clock, *, most: int = MOST
    ) -> None:
        self._listener = listener
        self._full = full
        self._most = most
        self._waiting: deque[Delivery] = deque()
        self._reading: Delivery | None = None  # the queued reading
        self._lock = threading.Lock()
        self._worker = Worker("guests", clock, self._deliver, retry_s=0.0, expected=(), stop_s=5.0)
        self._worker.make_essential()

    def start(self) -> None:
        self._worker.start()

    def put(self, delivery: Delivery, *, always: bool = False) -> None:
        """Queue a report; when the queue is full, drop it and ask for a reading of all guests.

        `always` queues the report even then: for rare reports that must not be missed.
        """
        with self._lock:
            room = always or len(self._waiting) < self._most
            if room:
                self._waiting.append(delivery)
        if room:
            self._worker.wake()
        else:
            self._full()

    def put_reading(self, delivery: Delivery) -> None:
        """Queue a reading of all guests and drop an older queued reading.

        A reading is always queued, because it must not be missed.
        """
        with self._lock:
            if self._reading is not None:
                self._waiting.remove(self._reading)
            self._reading = delivery
            self._waiting.append(delivery)
        self._worker.wake()

    def close(self) -> None:
        """Stop; reports that still wait are dropped."""
        self._worker.stop()

    def _deliver(self) -> float | None:
        """Deliver the next report; None if none is waiting."""
        with self._lock:
            if not self._waiting:
                return None
            delivery = self._waiting.popleft()
            if delivery is self._reading:
                self._reading = None
        delivery(self._listener)
        return 0.0


# Reading all guests


ANSWER_S: Final = 2.0
#: Reading a healthy guest takes a few milliseconds.
GUEST_S: Final = 1.0
#: Parallel calls. When this many guests do not answer, the daemon itself counts as not
#: answering.
MOST_CALLS: Final = 4
#: Parallel calls that only QEMU can answer, and may never answer. They have connections of their
#: own and are few, so that libvirtd keeps workers for other calls.
MOST_DISKS: Final = 2


class Reader:
    """Reads all guests on request, on libvirt connections of its own.

    Neither a slow listener nor a hanging QEMU delays the reading, and the reading delays nothing
    else. `facts` maps a guest's uuid to the facts from its XML; the reader updates the mapping.
    """

    def __init__(
        self, connect: Callable[[], Any], facts: dict[str, GuestFacts], clock: Clock
    ) -> None:
        self._facts = facts
        self._clock = clock
        self._pool = ConnectionPool(connect, MOST_CALLS)
        self._disks = ConnectionPool(connect, MOST_DISKS)
        self._turn = threading.Lock()

    def read(self, patience: float = 1.0) -> tuple[Sequence[Guest], datetime]:
        """Read all guests; return the guests and the time of the reading.

        A guest that does not answer has the state `unknown`. Raises DriverError if the list cannot
        be read. `patience` multiplies the time limit of the list call.
        """
        import libvirt

        with self._turn:
            try:
                return self._read(patience)
            except libvirt.libvirtError as error:
                raise failed(str(error)) from error

    def learn(self, uuid: str) -> None:
        """Read the facts of a guest from its XML. Raises DriverError or libvirtError."""

        def read(pooled: PooledConnection) -> GuestFacts:
            return domain_xml.read_facts(pooled.domain(uuid).XMLDesc())

        self._facts[uuid] = self._pool.call("facts", read, GUEST_S)

    def close(self) -> None:
        self._pool.close()
        self._disks.close()

    def _read(self, patience: float) -> tuple[Sequence[Guest], datetime]:
        at = self._clock.now()
        names = self._pool.call("list", _names, ANSWER_S * patience)
        read = [self._guest(uuid, name) for uuid, name in names.items()]
        return [guest for guest in read if guest is not None], at

    def _guest(self, uuid: str, name: str) -> Guest | None:
        """Read a guest; return None if the domain has disappeared since the list call."""
        import libvirt

        try:
            (state, reason), facts, lasts, autostart = self._pool.call(
                name, lambda pooled: _read_domain(pooled.domain(uuid)), GUEST_S
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        except DriverError as error:  # only this guest is silent; read the others
            LOG.warning("%s cannot be read: %s", name, error)
            about = self._facts.get(uuid, GuestFacts()).metadata
            return Guest(uuid, name, "unknown", "no_answer", metadata=dict(about))
        self._facts[uuid] = facts
        guest = Guest(uuid, name, state, reason, lasts, autostart, facts.metadata)
        if (state, reason) != ("paused", "ioerror"):
            return guest
        error_name, disk, path = self._error(uuid, name, facts)
        return replace(guest, error=error_name, disk=disk, path=path)

    def _error(self, uuid: str, name: str, facts: GuestFacts) -> tuple[str, str, str]:
        """Return error, disk and path of the I/O error.

        Return three empty strings if QEMU does not answer in time.
        """
        import libvirt

        try:
            errors = self._disks.call(name, lambda pooled: _errors(pooled.domain(uuid)), GUEST_S)
        except (DriverError, libvirt.libvirtError) as error:
            LOG.warning("%s: which disk stopped it cannot be asked: %s", name, error)
            return "", "", ""
        return _worst(errors, facts)


def _names(pooled: PooledConnection) -> Mapping[str, str]:
    return {uuid: domain.name() for uuid, domain in pooled.list().items()}


def _errors(domain: Any) -> Mapping[str, int]:
    errors: Mapping[str, int] = domain.diskErrors()
    return errors


def _worst(errors: Mapping[str, int], facts: GuestFacts) -> tuple[str, str, str]:
    """Return error, disk and path of a failing disk; other errors go before `enospc`."""
    for number, error_name in sorted(domain_xml.DISK_ERROR.items()):
        for disk in sorted(name for name, error in errors.items() if error == number):
            paths = (
                guest_disk.path for guest_disk in facts.disks.values() if guest_disk.name == disk
            )
            return error_name, disk, next(paths, "")
    return "", "", ""


def _read_domain(domain: Any) -> tuple[tuple[str, str], GuestFacts, bool, bool]:
    state = domain_xml.state(*domain.state())
    facts = domain_xml.read_facts(domain.XMLDesc())
    return state, facts, bool(domain.isPersistent()), bool(domain.autostart())


# Probing QEMU


#: libvirtd has 20 workers for ordinary requests; the remaining 8 are left to other clients.
MOST_HANGING = 12
SHORT_S = 2.0
#: A healthy QEMU answers within this time. The probe asks other guests while a slower one works.
QUICK_S = 0.25
#: Seconds that a libvirt job may block other calls before the guest is reported as `held`.
HELD_S = 20.0
#: libvirt lets a query wait for a job this long, then returns an answer without data.
LOCK_S = 25.0
_JOB, _OCCUPIED = 1, 2

#: Arguments: uuid, name, detail (stuck, answering, held, released), and the seconds it has
#: lasted.
Say = Callable[[str, str, str, float], None]


class Probe:
    """Finds hanging QEMU processes and guests blocked by a libvirt job that does not end.

    libvirt reports neither by itself. Every few seconds the probe sends each QEMU a small query.
    When a QEMU does not answer, libvirt knows since when it has waited and returns this at once by
    `controlInfo`. The probe has connections of its own, so a hanging query blocks nothing else.
    Each hanging query occupies a libvirtd worker until its QEMU answers or ends, so at most
    MOST_HANGING of them exist; beyond that the probe logs that it cannot ask the other guests.

    libvirt runs one job at a time on a QEMU. If the probe's query waits although QEMU owes no
    answer, another job has not ended. A migration, a save, a dump or a backup may take hours. Most
    of them let queries pass. The probe does not judge a guest that starts or arrives by migration.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        say: Say,
        clock: Clock,
        *,
        interval_s: float,
        stuck_s: float,
        held_s: float = HELD_S,
    ) -> None:
        self._say = say
        self._clock = clock
        self._every_s = interval_s
        self._stuck_s = stuck_s
        self._held_s = held_s
        self._pool = ConnectionPool(connect, MOST_HANGING + 1)
        self._hanging: dict[str, tuple[Call[Any], float]] = {}  # the call, and when it began
        self._owed: dict[str, float] = {}  # by uuid: since when a query has had no answer
        self._stuck: dict[str, str] = {}  # names by uuid
        self._held: dict[str, str] = {}
        self._full = False
        import libvirt

        self._task = PeriodicTask(
            "looking for QEMUs that hang",
            interval_s,
            self.round,
            clock,
            expected=(DriverError, libvirt.libvirtError),
            stop_s=5.0,
        )

    def start(self) -> None:
        self._task.start()

    def close(self) -> None:
        self._task.stop()
        self._pool.close()

    def round(self) -> None:
        import libvirt

        running = self._call("list", _running)
        # Lifecycle events report guests that have ended.
        self._stuck = {uuid: name for uuid, name in self._stuck.items() if uuid in running}
        self._held = {uuid: name for uuid, name in self._held.items() if uuid in running}
        self._owed = {uuid: since for uuid, since in self._owed.items() if uuid in running}
        for uuid, name in running.items():
            try:
                self._probe_guest(uuid, name)
            except libvirt.libvirtError as error:  # the domain has ended, or the connection is lost
                LOG.debug("%s: %s", uuid, error)
        self._say_full(len(running))

    def _say_full(self, running: int) -> None:
        """Log once that the limit of hanging queries is reached.

        The probe asks the other guests again when a hanging query is answered or its QEMU ends.
        """
        full = len(self._hanging) >= MOST_HANGING
        if full and not self._full:
            LOG.warning(
                "%d QEMUs owe an answer: of the other %d we see only what they owe to others",
                *(len(self._hanging), running - len(self._hanging)),
            )
        self._full = full

    def _probe_guest(self, uuid: str, name: str) -> None:
        state, _, waits_ms = self._call(
            "controlInfo", lambda pooled: pooled.domain(uuid).controlInfo()
        )
        if state == _OCCUPIED and waits_ms >= self._stuck_s * 1000:
            self._owed.pop(uuid, None)
            if uuid not in self._stuck:
                self._stuck[uuid] = name
                self._say(uuid, name, "stuck", waits_ms / 1000)
            return
        # "No answer owed" proves little: after a restart libvirtd has not asked this QEMU yet.
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
        """Return whether the guest runs and neither starts, arrives nor is paused by a long job."""
        import libvirt

        state, reason = self._call("state", lambda pooled: pooled.domain(uuid).state())
        arrives = reason == libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
        return bool(state == libvirt.VIR_DOMAIN_RUNNING and not arrives)

    def _answers(self, uuid: str) -> bool:
        """Query QEMU now; return whether an answer came.

        Return False without a query if this guest already owes an answer or too many guests do.
        """
        import libvirt

        now = self._clock.monotonic()
        for hanging, (call, since) in list(self._hanging.items()):
            if call.is_done:
                del self._hanging[hanging]
                if now - since < LOCK_S:
                    self._owed.pop(hanging, None)
        if uuid in self._hanging or len(self._hanging) >= MOST_HANGING:
            return False
        # This is the cheapest query: libvirt sends QEMU a single command, whatever devices it
        # has.
        groups = libvirt.VIR_DOMAIN_STATS_IOTHREAD

        def query(pooled: PooledConnection) -> Any:
            return pooled.connection.domainListGetStats([pooled.domain(uuid)], groups)

        call = self._pool.begin("a probe", query)
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

    def _call(self, name: str, do: Callable[[PooledConnection], Any]) -> Any:
        return self._pool.call(name, do, SHORT_S)


def _running(pooled: PooledConnection) -> Mapping[str, str]:
    import libvirt

    domains = pooled.list(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    return {uuid: domain.name() for uuid, domain in domains.items()}


#: Keepalive interval in seconds, and how many keepalive answers may be missing.
KEEPALIVE: Final = (1, 3)
OPEN_S: Final = 2.0
PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: Upper limit of the factor by which a slow daemon gets more time to list its guests.
MOST_PATIENCE: Final = 4.0
#: Seconds after connecting at which all guests are read again.
AGAIN_S: Final = (2.0, 10.0, 30.0)
#: Interval of later readings. For a guest that libvirt does not keep (transient domain), only
#: its absence from a reading tells the listener to forget it.
READ_EVERY_S: Final = 300.0
IDLE_S: Final = 60.0
#: Minimum interval between readings caused by a full queue.
CALM_S: Final = 1.0
#: Connections whose close has not returned: with this many, the driver opens no more to a daemon
#: that lives but answers nothing.
MOST_LEFT: Final = 3
PROBE_EVERY_S, STUCK_S = 5.0, 3.0

Fields = dict[str, str]


@dataclass(eq=False)
class EventConnection:
    """The libvirt connection that receives events, and the ids of the registered callbacks."""

    connection: Any = None
    callbacks: list[int] = field(default_factory=list)

    def register(self, event_id: int, callback: Callable[..., None]) -> None:
        number = self.connection.domainEventRegisterAny(None, event_id, callback, None)
        self.callbacks.append(number)


class LibvirtGuests:
    """The libvirt driver of the guests port (`ports.guests.Guests`); see the module docstring."""

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
        self._wanted: set[str] = set()  # uuids of guests whose XML must be read again
        self._left = Calls(MOST_LEFT)
        self._opening = Opening(self._listen)
        self._why = "libvirt has not been asked yet"
        self._complained = False
        self._lost = ""  # why the current connection is lost
        self._events = EventConnection()
        self._full = False
        self._due: list[float] = []  # times of the next readings of all guests
        self._later: tuple[float, ...] = ()  # seconds after the first reading
        self._calm = 0.0  # earliest time of the next reading
        self._patience = 1.0
        self._worker = Worker(
            "the way to libvirt",
            clock,
            self._turn,
            retry_s=PAUSE_S,
            longest_retry_s=LONGEST_PAUSE_S,
            expected=(HoldfastError, self._libvirt.libvirtError),
            failed=self._failed,
            stop_s=5.0,
        )
        spans = {"interval_s": probe_every_s, "stuck_s": stuck_s, "held_s": held_s}
        self._probe = Probe(self._open, self._hangs, clock, **spans)
        self._reader = Reader(self._open, self._facts, clock)
        self._dispatcher: Dispatcher | None = None

    def start(self, listener: Listener) -> None:
        self._dispatcher = Dispatcher(
            listener, self._overflowed, self._clock, most=self._most_waiting
        )
        self._dispatcher.start()
        self._worker.start()
        self._probe.start()

    def close(self) -> None:
        self._worker.stopping.set()
        self._probe.close()
        self._reader.close()
        self._worker.stop()
        if not self._worker.alive:
            self._leave()
        if self._dispatcher is not None:
            self._dispatcher.close()

    def read(self) -> tuple[Sequence[Guest], datetime]:
        return self._reader.read()

    def why_deaf(self) -> str:
        return self._why

    # Connection to the daemon

    def _turn(self) -> float:
        """Connect if necessary, and read what is due; return the seconds until the next turn."""
        if self._events.connection is None:
            self._connect()
        if self._lost or not self._events.connection.isAlive():
            raise failed(self._lost or "the connection is dead")
        self._read_due()
        self._read_wanted()
        return max(0.0, min(self._due[0] - self._clock.monotonic(), IDLE_S))

    def _connect(self) -> None:
        """Open the connection; a reading of all guests covers events that have arrived by then."""
        if self._left.is_full:
            raise failed("it lets none of our connections go")
        events = self._opening.result(OPEN_S)
        self._lost, self._full, self._events = "", False, events
        self._due, self._later, self._calm = [self._clock.monotonic()], AGAIN_S, 0.0

    def _failed(self, error: Exception) -> None:
        expected = isinstance(error, HoldfastError | self._libvirt.libvirtError)
        self._deaf(str(error) if expected else "something unforeseen, see the log")
        self._leave()

    def _open(self) -> Any:
        """Open a read-only connection, on any thread.

        The call blocks while the daemon is frozen.
        """
        return self._libvirt.openReadOnly(self._address)

    def _listen(self) -> EventConnection:
        """Open the event connection and register the callbacks.

        No other call is ever made on this connection (`connection.ConnectionPool` says why).
        """
        events = EventConnection(self._open())
        events.connection.registerCloseCallback(self._closing, events)
        for number, decode in self._decoders().items():
            callback = functools.partial(self._on_event, events, decode)
            events.register(number, callback)
        for number in self._of_facts():
            events.register(number, functools.partial(self._changed, events))
        events.connection.setKeepAlive(*KEEPALIVE)
        return events

    def _read_due(self) -> None:
        """Read all guests if a reading is due.

        If the reading fails the driver tries again later; events go on to the listener meanwhile.
        """
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
        """Schedule a reading of all guests, unless an earlier reading is due.

        The reading starts as early as CALM_S allows.
        """
        when = max(self._clock.monotonic(), self._calm)
        if not self._due or self._due[0] > when:
            LOG.warning("more was heard of guests than could be kept: all are read again")
            self._due.insert(0, when)

    def _closing(self, _connection: Any, reason: int, events: EventConnection) -> None:
        if events is not self._events:
            return  # a connection that the driver has left
        ways = ("an error", "the daemon ended", "the daemon is silent", "we closed it")
        self._lost = f"the connection was closed: {domain_xml.word(ways, reason)}"
        self._worker.wake()

    def _leave(self) -> None:
        """Close the connection; wait at most 1 s.

        Closing waits for the daemon's answers. The driver ignores events that arrive on this
        connection from now on.
        """
        events, self._events = self._events, EventConnection()
        if events.connection is None:
            return
        try:
            self._left.call(
                "close", functools.partial(end, events.connection, events.callbacks), 1.0
            )
        except (DriverError, self._libvirt.libvirtError) as error:
            LOG.debug("closing: %s", error)

    def _deaf(self, why: str) -> None:
        """Record why guests cannot be seen; log it once, not at every attempt."""
        if not self._complained and not self._worker.stopping.is_set():
            LOG.error("guests cannot be seen, it is tried again: %s", why)
        self._why, self._complained = why, True

    def _hearing(self) -> None:
        if self._why:
            LOG.info("guests are seen")
        self._why, self._complained = "", False

    def _overflowed(self) -> None:
        self._full = True
        self._worker.wake()

    # Readings

    def _reconcile(self) -> None:
        guests, at = self._reader.read(self._patience)
        for gone in self._facts.keys() - {guest.uuid for guest in guests}:
            self._facts.pop(gone, None)
        if self._dispatcher is not None:
            self._dispatcher.put_reading(lambda listener: listener.reconciled(guests, at))

    def _read_wanted(self) -> None:
        while self._wanted:
            uuid = self._wanted.pop()
            try:
                self._reader.learn(uuid)
            except (DriverError, self._libvirt.libvirtError) as error:
                LOG.debug("%s: %s", uuid, error)

    # Event callbacks, on libvirt's event loop thread

    def _on_event(
        self,
        events: EventConnection,
        decode: Callable[..., Fields],
        _: Any,
        domain: Any,
        *details: Any,
    ) -> None:
        if events is not self._events:
            return
        uuid, fields = domain.UUIDString(), decode(*details[:-1])
        self._report(uuid, domain.name(), fields)
        if fields["kind"] == port.LIFECYCLE and fields["detail"] in ("defined", "started"):
            self._want(uuid)

    def _changed(self, events: EventConnection, _: Any, domain: Any, *_said: Any) -> None:
        """Read the guest's XML again: metadata (wishes of the owner) or disks have changed."""
        if events is self._events:
            self._want(domain.UUIDString())

    def _want(self, uuid: str) -> None:
        self._wanted.add(uuid)
        self._worker.wake()

    def _hangs(self, uuid: str, name: str, detail: str, for_s: float) -> None:
        """Report a result of the probe.

        `held` is dated from the job's begin, to show how long it lasts.
        """
        ago_s = for_s if detail == "held" else 0.0
        fields = {"kind": port.MONITOR, "detail": detail}
        self._report(uuid, name, fields, always=True, ago_s=ago_s)

    def _report(
        self, uuid: str, name: str, fields: Fields, *, always: bool = False, ago_s: float = 0.0
    ) -> None:
        at = self._clock.now() - timedelta(seconds=ago_s)

        def deliver(listener: Listener) -> None:
            listener.heard(self._event(uuid, name, at, fields))

        self._deliver(deliver, always=always)

    def _event(self, uuid: str, name: str, at: datetime, fields: Fields) -> Event:
        facts = self._facts.get(uuid, GuestFacts())
        alias = fields.get("disk", "")
        if alias in facts.disks:
            disk = facts.disks[alias]
            fields = {**fields, "disk": disk.name, "path": fields.get("path") or disk.path}
        return Event(uuid, name, at=at, metadata=facts.metadata, **fields)

    def _deliver(self, delivery: Callable[[Listener], None], *, always: bool = False) -> None:
        if self._dispatcher is not None:
            self._dispatcher.put(delivery, always=always)

    def _decoders(self) -> dict[int, Callable[..., Fields]]:
        """Map each event id to the function that decodes the event.

        Where libvirt has two versions of an event, the driver uses the richer event.
        """
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
        """Return the ids of events that only cause a new reading of the guest's XML."""
        ids = self._libvirt
        return ids.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, ids.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED


def _lifecycle(event: int, detail: int) -> Fields:
    event_name, reason = domain_xml.lifecycle(event, detail)
    return {"kind": port.LIFECYCLE, "detail": event_name, "reason": reason}


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
    recipient_name = domain_xml.word(domain_xml.MEMORY_RECIPIENT, recipient)
    return {
        "kind": port.MEMORY_FAILURE,
        "detail": domain_xml.word(domain_xml.MEMORY_ACTION, action),
        "reason": recipient_name,
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
