# SPDX-License-Identifier: Apache-2.0
"""Metrics of a libvirt host and its guests: kernel counters and libvirt statistics.

The caller's thread reads the kernel's counters. A thread of this driver talks to libvirt: it
listens to lifecycle events, reads a guest's XML once per start, and requests disk and memory
statistics every `interval_s` seconds. The event connection makes no calls; all calls use
`ConnectionPool`.
If libvirtd dies, hangs or restarts, the kernel counters continue, and libvirt's statistics resume
with libvirtd.
"""

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.drivers.libvirt import connection, domain_xml
from holdfast.drivers.libvirt.connection import (
    Call,
    ConnectionPool,
    Opening,
    PooledConnection,
    end,
    failed,
)
from holdfast.metrics.linux import Files, Host, Links, Qemus
from holdfast.model.errors import DriverError
from holdfast.ports.metrics import (
    MIGRATED,
    RUNNING,
    Facts,
    Guest,
    HostCounters,
    PolledStats,
    Roster,
    Stats,
)
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

# Statistics of many guests


#: Guests per call; a healthy guest answers within milliseconds.
AT_ONCE: Final = 32
#: Time limit of a call.
LATE_S: Final = 2.0
MOST_HANGING: Final = 3
STATE, CPU, BALLOON, VCPU, BLOCK = 1, 2, 4, 8, 32
NOWAIT: Final = 1 << 29
_OCCUPIED: Final = 2
_STUCK_MS: Final = 800
HANGS: Final = "no answer"
CROWDED: Final = "not asked: other guests do not answer"
SLOW: Final = "libvirt is late"

Runs = dict[str, int]  # by uuid: the domain id, which is new at each start
Asked = Mapping[str, tuple[int, int]]  # by uuid: the domain id, and the stats groups


class Bulk:
    """Requests statistics of many guests in few libvirt calls, none of which may take long.

    libvirtd handles the guests of a call in sequence, and a hanging QEMU blocks the whole call,
    NOWAIT or not: NOWAIT only skips a guest that another call already waits for. So `Bulk` leaves
    a late call hanging, finds out which guests block it (`controlInfo`, which never waits) and
    asks the others again without them. A guest whose call hangs is not asked. At most MOST_HANGING
    calls hang, because each occupies a worker of libvirtd. A domain object is valid only on the
    connection that listed it, so guests are identified by uuid and domain id and looked up on the
    connection that asks.

    Not thread-safe.
    """

    def __init__(self, pool: ConnectionPool, clock: Clock, *, late_s: float = LATE_S) -> None:
        self._pool = pool
        self._clock = clock
        self._late_s = late_s
        self._hanging: dict[str, Call[Any]] = {}  # by uuid of the guest that blocks the call

    def round(self, requests: Asked) -> tuple[dict[str, Stats], dict[str, str]]:
        """Request statistics; return the answers, and for each silent guest the reason."""
        self._hanging = {uuid: call for uuid, call in self._hanging.items() if not call.is_done}
        stats: dict[str, Stats] = {}
        silent = dict.fromkeys((request for request in self._hanging if request in requests), HANGS)
        for groups, runs in _chunks(requests, silent):
            self._some(groups, runs, stats, silent)
        return stats, silent

    def _some(
        self, groups: int, runs: Runs, stats: dict[str, Stats], silent: dict[str, str]
    ) -> None:
        while runs:
            if len(set(self._hanging.values())) >= MOST_HANGING:
                silent.update(dict.fromkeys(runs, CROWDED))
                return
            call = self._pool.begin("stats", functools.partial(_stats, runs, groups))
            try:
                answer = call.result(self._late_s)
            except DriverError:
                stuck = self._stuck(runs)
                self._hanging.update(dict.fromkeys(stuck or list(runs), call))
                silent.update(dict.fromkeys(stuck, HANGS) or dict.fromkeys(runs, SLOW))
                runs = {uuid: number for uuid, number in runs.items() if uuid not in silent}
                continue
            at = self._clock.monotonic()
            for uuid, values in answer.items():
                stats[uuid] = Stats(at, values)
            return

    def _stuck(self, runs: Runs) -> list[str]:
        """Return the guests whose QEMU owes an answer.

        The list is empty if the daemon itself does not answer.
        """
        try:
            return self._pool.call("controlInfo", functools.partial(_occupied, runs), LATE_S)
        except DriverError:
            return []


def _domains(pooled: PooledConnection, runs: Runs) -> list[Any]:
    """Return the domain objects of guests that still exist.

    List the domains if a guest is new here.
    """
    domains: Mapping[str, Any] = pooled.domains
    if any(uuid not in domains or domains[uuid].ID() != number for uuid, number in runs.items()):
        domains = pooled.list()
    return [domains[uuid] for uuid in runs if uuid in domains]


def _stats(runs: Runs, groups: int, pooled: PooledConnection) -> dict[str, dict[str, Any]]:
    domains = _domains(pooled, runs)
    if not domains:  # libvirt refuses an empty list
        return {}
    answer = pooled.connection.domainListGetStats(domains, groups, NOWAIT)
    return {domain.UUIDString(): values for domain, values in answer}


def _occupied(runs: Runs, pooled: PooledConnection) -> list[str]:
    import libvirt

    uuids = []
    for domain in _domains(pooled, runs):
        try:
            state, _, waits_ms = domain.controlInfo()
        except libvirt.libvirtError:
            continue  # the guest has just ended
        if state == _OCCUPIED and waits_ms >= _STUCK_MS:
            uuids.append(domain.UUIDString())
    return uuids


def _chunks(requests: Asked, but: Mapping[str, str]) -> Iterator[tuple[int, Runs]]:
    by_groups: dict[int, Runs] = {}
    for uuid, (number, groups) in requests.items():
        if uuid not in but:
            by_groups.setdefault(groups, {})[uuid] = number
    for groups, runs in by_groups.items():
        uuids = list(runs)
        for start in range(0, len(uuids), AT_ONCE):
            yield groups, {uuid: runs[uuid] for uuid in uuids[start : start + AT_ONCE]}


# Reading the guests' XML


LOG = logging.getLogger(__name__)
ANSWER_S: Final = 2.0
#: Together with the hanging calls of `Bulk` this leaves at least one connection free.
MOST_LATE: Final = 2


class Answer(NamedTuple):
    number: int  # the domain id; -1 if the guest does not run
    xml: str
    state: str
    reason: str


#: The answer is None if the guest does not answer or is gone.
Took = Callable[[str, Answer | None], None]


class Reader:
    """Reads the XML and state of guests from libvirt, in sequence.

        reader = Reader(pool, took)
        reader.again(uuid)          # from any thread
        reader.turn()               # reads the requested guests

    A guest that does not answer does not delay the others. Its call keeps hanging, which occupies
    its connection and a libvirtd worker, and the guest is not asked again meanwhile. A late answer
    still counts. At most MOST_LATE calls hang; with more, other guests wait. Only `again` is
    thread-safe.
    """

    def __init__(self, pool: ConnectionPool, took: Took, *, within_s: float = ANSWER_S) -> None:
        self._pool = pool
        self._took = took
        self._within_s = within_s
        self._wanted: set[str] = set()
        self._late: dict[str, Call[Answer]] = {}
        self._complained: set[str] = set()

    def again(self, uuid: str) -> None:
        self._wanted.add(uuid)

    @property
    def is_behind(self) -> bool:
        """Return whether a requested guest could not be read."""
        return bool(self._complained)

    def turn(self) -> None:
        """Read the requested guests.

        Raises DriverError or libvirtError if libvirt cannot be asked.
        """
        for uuid, call in list(self._late.items()):
            if call.is_done:
                del self._late[uuid]
                self._collect(uuid, call, 0.0)
        for uuid in list(self._wanted):
            if len(self._late) >= MOST_LATE:
                return
            if uuid not in self._late:
                self._wanted.discard(uuid)  # first: an event during the call requests it anew
                self._collect(uuid, self._request(uuid), self._within_s)

    def _request(self, uuid: str) -> Call[Answer]:
        try:
            return self._pool.begin("facts", functools.partial(_read, uuid))
        except DriverError:
            self._wanted.add(uuid)
            raise

    def _collect(self, uuid: str, call: Call[Answer], within_s: float) -> None:
        import libvirt

        answer = None
        try:
            answer = call.result(within_s)
            self._complained.discard(uuid)
        except DriverError as error:
            self._late[uuid] = call
            self._complain(uuid, error)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                self._complained.discard(uuid)  # the domain is gone; the next list shows it
            else:
                self._wanted.add(uuid)
                if error.get_error_domain() == libvirt.VIR_FROM_RPC:  # the connection is broken
                    raise
                self._complain(uuid, error)
        self._took(uuid, answer)

    def _complain(self, uuid: str, error: Exception) -> None:
        """Log the error once, until the guest can be read."""
        if uuid not in self._complained:
            LOG.warning("guest %s: what it is cannot be read: %s; it is tried again", uuid, error)
        self._complained.add(uuid)


def _read(uuid: str, pooled: PooledConnection) -> Answer:
    domain = pooled.domains[uuid] = pooled.connection.lookupByUUIDString(uuid)
    return Answer(domain.ID(), domain.XMLDesc(), *domain_xml.state(*domain.state()))


MOST_LEFT: Final = 1000
#: Pause reasons of a guest that has never run here: it arrives by migration or starts.
_ARRIVING: Final = ("migration", "starting_up")


class GuestRoster:
    """The guests on this host, from libvirt's lists and events.

    Any thread may read it. Two threads write: the reading thread and libvirt's event loop. A guest
    that is still migrating to this host is not on the roster yet. A guest that has left is
    remembered for a while with the reason, because a caller that reads once a second might
    otherwise miss it. The roster is empty until all guests have been read once: a half-read roster
    would look as if the other guests had gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guests: dict[str, Guest] = {}
        self._defined: dict[str, Facts] = {}
        self._left: dict[str, str] = {}
        self._came: dict[str, str] = {}
        self._ids: dict[str, int] = {}
        self._whole = False
        self._roster: Roster | None = None

    def roster(self) -> Roster:
        """Return the roster.

        Thread-safe. The roster is not `whole` before the first call of `only`.
        """
        if not self._whole:
            return Roster(whole=False)
        roster = self._roster
        if roster is None:
            with self._lock:
                roster = Roster(dict(self._guests), dict(self._defined), dict(self._left))
                self._roster = roster
        return roster

    def knows(self, uuid: str, number: int) -> bool:
        """Return whether the guest was read since its start; the domain id is new at each start."""
        return self._ids.get(uuid) == number

    def read(self, uuid: str, number: int, facts: Facts, state: str, reason: str) -> None:
        """Record a guest's facts and state as read.

        The domain id `number` is -1 if the guest is off.
        """
        with self._lock:
            self._roster = None
            if number < 0:
                self._leave(uuid, self._left.get(uuid) or reason or state)
                self._ids[uuid], self._defined[uuid] = number, facts
                return
            if uuid not in self._guests and state != RUNNING and reason in _ARRIVING:
                return  # a lifecycle event follows as soon as it runs
            self._ids[uuid], self._defined[uuid] = number, facts
            self._left.pop(uuid, None)
            self._guests[uuid] = Guest(facts, state, reason, self._came.pop(uuid, ""))

    def stands(self, uuid: str, state: str, reason: str) -> None:
        """Record a guest's state from statistics or an event."""
        with self._lock:
            guest = self._guests.get(uuid)
            if guest is not None and (guest.state, guest.reason) != (state, reason):
                self._guests[uuid] = dataclasses.replace(guest, state=state, reason=reason)
                self._roster = None

    def started(self, uuid: str, reason: str) -> None:
        """Record a start event; the XML is read next."""
        with self._lock:
            if reason == MIGRATED and uuid not in self._guests:
                self._came[uuid] = MIGRATED

    def stopped(self, uuid: str, reason: str) -> None:
        """Record a stop event: the QEMU process has ended."""
        with self._lock:
            self._leave(uuid, reason)

    def balloon(self, uuid: str, kib: int) -> None:
        with self._lock:
            guest = self._guests.get(uuid)
            if guest is not None:
                facts = dataclasses.replace(guest.facts, balloon_kib=kib)
                self._guests[uuid] = dataclasses.replace(guest, facts=facts)
                self._roster = None

    def only(self, uuids: set[str]) -> None:
        """Remove all guests but `uuids`, and mark the roster as whole: all guests were read."""
        with self._lock:
            self._whole = True
            for uuid in [guest_id for guest_id in self._defined if guest_id not in uuids]:
                self._leave(uuid, self._left.get(uuid) or "gone")
                del self._defined[uuid]
                self._roster = None

    def _leave(self, uuid: str, why: str) -> None:
        self._ids.pop(uuid, None)
        self._came.pop(uuid, None)
        if self._guests.pop(uuid, None) is None:
            return
        self._roster = None
        self._left[uuid] = why
        while len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]


KEEPALIVE: Final = (1, 3)
EVERY_S: Final = 30.0
#: Pause before the next attempt when libvirt cannot be reached.
PAUSE_S: Final = 1.0
#: Connections: one for each call that may hang, and as many for other calls.
MOST_CONNECTIONS: Final = 2 * MOST_HANGING
#: Events report arriving and leaving guests; a list at this interval finds missed events.
LIST_S: Final = 30.0
#: The roster is empty until all guests were read. After this time it leaves out guests that
#: cannot be read.
PATIENCE_S: Final = 30.0
GROUPS: Final = {
    "block": BLOCK,
    "balloon": BALLOON,
    "cpu": CPU,
    "vcpu": VCPU,
}


class LibvirtMeasures:
    """The libvirt driver of the metrics port; see the module docstring."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        *,
        interval_s: float = EVERY_S,
        groups: Sequence[str] = ("block", "balloon"),
        links: str = "/proc/net/dev",
    ) -> None:
        self._address = address
        self._clock = clock
        self._every_s = interval_s
        self._groups = sum(GROUPS[name] for name in groups)
        self._libvirt = connection.running()
        files = Files()
        self._files = files
        self._host, self._links, self._qemus = Host(files), Links(files, links), Qemus(files, clock)
        self._guest_roster = GuestRoster()
        self._polled = PolledStats(interval_s=interval_s)
        self._pool = ConnectionPool(
            functools.partial(self._libvirt.openReadOnly, address), MOST_CONNECTIONS
        )
        # With an interval of 1 s, a hanging guest is noticed within 1 s.
        late_s = min(LATE_S, max(1.0, interval_s))
        self._bulk = Bulk(self._pool, clock, late_s=late_s)
        self._opening = Opening(self._open)
        self._connection: Any = None
        self._callbacks: list[int] = []
        self._running: dict[str, int] = {}  # domain ids by uuid
        self._listed = -LIST_S
        self._reader = Reader(self._pool, self._read)
        self._patient_until = 0.0
        self._due = 0.0
        self._complained = False
        self._worker = Worker(
            "numbers of guests",
            clock,
            self._turn,
            retry_s=PAUSE_S,
            expected=(DriverError, self._libvirt.libvirtError),
            failed=self._failed,
            stop_s=5.0,
        )

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.stop()
        self._leave()
        self._pool.close()
        self._files.close()

    def roster(self) -> Roster:
        return self._guest_roster.roster()

    def polled(self) -> PolledStats:
        return self._polled

    def read(self, roster: Roster) -> HostCounters:
        at = self._clock.monotonic()
        processes = self._qemus.read(roster.guests)
        wanted = {nic.ifname for guest in roster.guests.values() for nic in guest.facts.nics}
        links_at = self._clock.monotonic()
        links = self._links.read(wanted)
        return HostCounters(at, self._host.read(), processes, links, links_at)

    # The driver's thread

    def _turn(self) -> float:
        """Read changed guests, and request statistics if due.

        Return the seconds until the next round.
        """
        self._connected()
        self._reader.turn()
        now = self._clock.monotonic()
        if now >= self._due:
            self._round()
            self._due = now + self._every_s if now > self._due + 1 else self._due + self._every_s
        self._well()
        pause_s = max(0.0, self._due - self._clock.monotonic())
        return min(pause_s, PAUSE_S) if self._reader.is_behind else pause_s

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, DriverError | self._libvirt.libvirtError):
            self._leave()
            return
        # A second connection to a daemon that lives but is late would only be one more.
        if self._connection is not None and not self._connection.isAlive():
            self._leave()
        self._complain(str(error))

    def _round(self) -> None:
        now = self._clock.monotonic()
        if now - self._listed >= LIST_S:
            self._reconcile()
            self._listed = now
        roster = self._guest_roster.roster()
        requests = {}
        for uuid, number in self._running.items():
            guest = roster.guests.get(uuid)
            if guest is not None:
                requests[uuid] = (number, self._what(guest.facts))
        answers, silent = self._bulk.round(requests)
        for uuid, stats in answers.items():
            state, reason = stats.values.get("state.state"), stats.values.get("state.reason")
            if state is not None and reason is not None:
                self._guest_roster.stands(uuid, *domain_xml.state(int(state), int(reason)))
        previous: dict[str, Stats] = {u: s for u, s in self._polled.stats.items() if u in requests}
        self._polled = PolledStats(
            self._polled.round + 1, previous | answers, silent, self._every_s
        )

    def _what(self, facts: Facts) -> int:
        """Return the stats groups to request.

        Memory is included only if the guest's balloon reports statistics.
        """
        groups = self._groups if facts.tells_memory else self._groups & ~BALLOON
        if not facts.disks:
            groups &= ~BLOCK
        return groups | STATE

    # Guests on the host

    def _reconcile(self) -> None:
        """List all guests, which finds guests that events have missed."""
        there = self._pool.call("list", _numbers, ANSWER_S)
        self._running = {uuid: number for uuid, number in there.items() if number >= 0}
        for uuid, number in there.items():
            if not self._guest_roster.knows(uuid, number):
                self._reader.again(uuid)
        self._reader.turn()
        is_patient = self._clock.monotonic() < self._patient_until
        if self._reader.is_behind and is_patient and not self._guest_roster.roster().whole:
            raise failed("not all guests could be read")
        self._guest_roster.only(set(there))

    def _read(self, uuid: str, answer: Answer | None) -> None:
        """Record the answer of a guest; None means that the guest did not answer."""
        self._running.pop(uuid, None)
        if answer is None:
            return
        facts = domain_xml.read_metric_facts(answer.xml)
        if facts is None:
            LOG.warning("guest %s: its XML cannot be read, so it is not measured", uuid)
            return
        if answer.number >= 0:
            self._running[uuid] = answer.number
        self._guest_roster.read(uuid, answer.number, facts, answer.state, answer.reason)

    # Event callbacks, on libvirt's event loop thread

    def _lifecycle(self, _way: Any, domain: Any, event: int, detail: int, _: Any) -> None:
        uuid, (event_name, reason) = domain.UUIDString(), domain_xml.lifecycle(event, detail)
        if event_name in ("started", "resumed"):
            self._guest_roster.started(uuid, reason)
        if event_name == "stopped":
            self._guest_roster.stopped(uuid, reason)
        self._again(uuid)

    def _balloon(self, _way: Any, domain: Any, kib: int, _: Any) -> None:
        self._guest_roster.balloon(domain.UUIDString(), kib)

    def _device(self, _way: Any, domain: Any, _alias: str, _: Any) -> None:
        self._again(domain.UUIDString())

    def _again(self, uuid: str) -> None:
        self._reader.again(uuid)
        self._worker.wake()

    # Connection to the daemon

    def _connected(self) -> None:
        if self._connection is not None and not self._connection.isAlive():
            raise failed("the connection is dead")
        if self._connection is None:
            self._connection = self._opening.result(ANSWER_S)
            # The next round shows everything that happened while disconnected.
            self._due, self._listed, self._running = 0.0, -LIST_S, {}
            self._patient_until = self._clock.monotonic() + PATIENCE_S

    def _open(self) -> Any:
        """Open the event connection, on any thread; the call blocks while the daemon is frozen."""
        lib = self._libvirt
        connection = lib.openReadOnly(self._address)
        connection.registerCloseCallback(lambda *_: self._worker.wake(), None)
        self._callbacks = [
            connection.domainEventRegisterAny(None, number, callback, None)
            for number, callback in (
                (lib.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
                (lib.VIR_DOMAIN_EVENT_ID_BALLOON_CHANGE, self._balloon),
                (lib.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, self._device),
                (lib.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._device),
            )
        ]
        connection.setKeepAlive(*KEEPALIVE)  # last: no calls from here on (see ConnectionPool)
        return connection

    def _leave(self) -> None:
        """Close the connection; wait at most 1 s, because a close waits for the daemon."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(DriverError, self._libvirt.libvirtError):
                Call("close", functools.partial(end, connection, self._callbacks)).result(1.0)

    def _complain(self, why: str) -> None:
        """Log the failure once, not at every attempt."""
        if not self._complained and not self._worker.stopping.is_set():
            LOG.error("libvirt reports no disk and memory statistics of guests now: %s", why)
        self._complained = True

    def _well(self) -> None:
        if self._complained:
            LOG.info("libvirt reports disk and memory statistics of guests again")
        self._complained = False


def _numbers(pooled: PooledConnection) -> dict[str, int]:
    return {uuid: domain.ID() for uuid, domain in pooled.list().items()}


def connect(address: str, clock: Clock, interval_s: float = EVERY_S) -> LibvirtMeasures:
    return LibvirtMeasures(address or "qemu:///system", clock, interval_s=interval_s)
