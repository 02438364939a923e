# SPDX-License-Identifier: Apache-2.0
"""Numbers of a libvirt host. The kernel's are read by whoever asks; libvirt has a thread of its
own, which listens to who comes and goes, reads what a guest is once per start (`libvirt_facts`),
and asks for disks and memory every so often. One connection listens and is asked nothing; all
questions go by lines. libvirtd may die, hang or start again: the kernel's numbers go on, and
libvirt's come again when it does.
"""

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.drivers.libvirt import connection, domain_xml
from holdfast.drivers.libvirt.connection import Call, Line, Lines, Opening, end, failed
from holdfast.metrics.linux import Files, Host, Links, Qemus
from holdfast.model.errors import DriverError
from holdfast.ports.metrics import (
    MIGRATED,
    RUNNING,
    Facts,
    Guest,
    HostCounters,
    Roster,
    Said,
    Stats,
)
from holdfast.runtime.clock import Clock

# What libvirt knows of many guests, asked in few calls, none of which is waited for long.
#
# libvirtd walks through the guests of a call one after the other, and a QEMU that hangs holds up
# the
# call it is met by, NOWAIT or not: NOWAIT only passes by one that somebody waits for already. So
# a
# call that is late is left to hang, who holds it up is found out (`controlInfo`, which never
# waits),
# and the others are asked again without it. While its call hangs it is not asked. A few such
# calls
# at most: each takes a worker of libvirtd's. A domain is good for the line it was listed on
# alone, so
# who is asked is known by its uuid and its number, and found among the domains of the line that
# asks.


#: Guests of one call; healthy ones answer within milliseconds each.
AT_ONCE: Final = 32
#: What a call gets.
LATE_S: Final = 2.0
MOST_HANGING: Final = 3
STATE, CPU, BALLOON, VCPU, BLOCK = 1, 2, 4, 8, 32
NOWAIT: Final = 1 << 29
_OCCUPIED: Final = 2
_STUCK_MS: Final = 800
HANGS: Final = "no answer"
CROWDED: Final = "not asked: other guests do not answer"
SLOW: Final = "libvirt is late"

Runs = dict[str, int]  # by uuid: the number, which is new at each start
Asked = Mapping[str, tuple[int, int]]  # by uuid: the number, and what to ask of it


class Bulk:
    """One thread at a time."""

    def __init__(self, lines: Lines, clock: Clock, *, late_s: float = LATE_S) -> None:
        self._lines = lines
        self._clock = clock
        self._late_s = late_s
        self._hanging: dict[str, Call[Any]] = {}  # by who holds it up

    def round(self, asked: Asked) -> tuple[dict[str, Stats], dict[str, str]]:
        """What each said; and why not, of those that did not."""
        self._hanging = {uuid: call for uuid, call in self._hanging.items() if not call.is_done}
        found: dict[str, Stats] = {}
        silent = dict.fromkeys((one for one in self._hanging if one in asked), HANGS)
        for groups, runs in _chunks(asked, silent):
            self._some(groups, runs, found, silent)
        return found, silent

    def _some(
        self, groups: int, runs: Runs, found: dict[str, Stats], silent: dict[str, str]
    ) -> None:
        while runs:
            if len(set(self._hanging.values())) >= MOST_HANGING:
                silent.update(dict.fromkeys(runs, CROWDED))
                return
            call = self._lines.begin("stats", functools.partial(_stats, runs, groups))
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
                found[uuid] = Stats(at, values)
            return

    def _stuck(self, runs: Runs) -> list[str]:
        """Whose QEMU owes an answer; nobody's, if it is the daemon that does not answer."""
        try:
            return self._lines.ask("controlInfo", functools.partial(_occupied, runs), LATE_S)
        except DriverError:
            return []


def _domains(line: Line, runs: Runs) -> list[Any]:
    """Of those that are still there. They are listed if somebody is new to this line."""
    known: Mapping[str, Any] = line.domains
    if any(uuid not in known or known[uuid].ID() != number for uuid, number in runs.items()):
        known = line.list()
    return [known[uuid] for uuid in runs if uuid in known]


def _stats(runs: Runs, groups: int, line: Line) -> dict[str, dict[str, Any]]:
    domains = _domains(line, runs)
    if not domains:  # which libvirt does not take for an answer
        return {}
    answer = line.connection.domainListGetStats(domains, groups, NOWAIT)
    return {domain.UUIDString(): values for domain, values in answer}


def _occupied(runs: Runs, line: Line) -> list[str]:
    import libvirt

    found = []
    for domain in _domains(line, runs):
        try:
            state, _, waits_ms = domain.controlInfo()
        except libvirt.libvirtError:
            continue  # it has just ended
        if state == _OCCUPIED and waits_ms >= _STUCK_MS:
            found.append(domain.UUIDString())
    return found


def _chunks(asked: Asked, but: Mapping[str, str]) -> Iterator[tuple[int, Runs]]:
    by_groups: dict[int, Runs] = {}
    for uuid, (number, groups) in asked.items():
        if uuid not in but:
            by_groups.setdefault(groups, {})[uuid] = number
    for groups, runs in by_groups.items():
        uuids = list(runs)
        for start in range(0, len(uuids), AT_ONCE):
            yield groups, {uuid: runs[uuid] for uuid in uuids[start : start + AT_ONCE]}


# What guests are, read one after the other from libvirt.
#
#     reader = Reader(lines, took)
#     reader.again(uuid)          # of any thread
#     reader.turn()               # reads whom it was asked for
#
# A guest that does not answer takes nothing from the others: its call is left to hang, which
# keeps
# its line and a worker of libvirtd's, and while it does that guest is not asked again; what comes
# late is taken all the same. Of such calls there are a few at most: others have to wait then.


LOG = logging.getLogger(__name__)
ANSWER_S: Final = 2.0
#: With those of `libvirt_bulk` one line is left at least.
MOST_LATE: Final = 2


class Answer(NamedTuple):
    number: int  # -1 if it does not run
    xml: str
    state: str
    reason: str


#: None: it does not answer, or is gone.
Took = Callable[[str, Answer | None], None]


class Reader:
    """One thread at a time, but for `again`."""

    def __init__(self, lines: Lines, took: Took, *, within_s: float = ANSWER_S) -> None:
        self._lines = lines
        self._took = took
        self._within_s = within_s
        self._wanted: set[str] = set()
        self._late: dict[str, Call[Answer]] = {}
        self._complained: set[str] = set()

    def again(self, uuid: str) -> None:
        self._wanted.add(uuid)

    @property
    def is_behind(self) -> bool:
        """Whether there is somebody who could not be read."""
        return bool(self._complained)

    def turn(self) -> None:
        """DriverError or libvirtError if nobody can be asked."""
        for uuid, call in list(self._late.items()):
            if call.is_done:
                del self._late[uuid]
                self._take(uuid, call, 0.0)
        for uuid in list(self._wanted):
            if len(self._late) >= MOST_LATE:
                return
            if uuid not in self._late:
                self._wanted.discard(uuid)  # before it is asked: what happens then is asked for
                self._take(uuid, self._asked(uuid), self._within_s)

    def _asked(self, uuid: str) -> Call[Answer]:
        try:
            return self._lines.begin("facts", functools.partial(_read, uuid))
        except DriverError:
            self._wanted.add(uuid)
            raise

    def _take(self, uuid: str, call: Call[Answer], within_s: float) -> None:
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
                self._complained.discard(uuid)  # it has gone; the next list says so
            else:
                self._wanted.add(uuid)
                if error.get_error_domain() == libvirt.VIR_FROM_RPC:  # it is the way that is broken
                    raise
                self._complain(uuid, error)
        self._took(uuid, answer)

    def _complain(self, uuid: str, error: Exception) -> None:
        """Said once, until it is read."""
        if uuid not in self._complained:
            LOG.warning("guest %s: what it is cannot be read: %s; it is tried again", uuid, error)
        self._complained.add(uuid)


def _read(uuid: str, line: Line) -> Answer:
    domain = line.domains[uuid] = line.connection.lookupByUUIDString(uuid)
    return Answer(domain.ID(), domain.XMLDesc(), *domain_xml.state(*domain.state()))


# Who is on a host, of what libvirt's lists and events say. Anybody may ask, two threads write:
# the
# one that reads, and libvirt's loop.
#
# A guest that is on its way here is not here yet; one that has left is remembered for a while,
# with
# why, because whoever looks once a second may otherwise never hear of it. Nobody is shown before
# all
# were read once: half of them would look like the others having gone.


MOST_LEFT: Final = 1000
#: Why somebody is paused who was never seen running here: he arrives.
_ARRIVING: Final = ("migration", "starting_up")


class GuestRoster:
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
        """Of anybody, from the first `only` on."""
        if not self._whole:
            return Roster(whole=False)
        roster = self._roster
        if roster is None:
            with self._lock:
                roster = Roster(dict(self._guests), dict(self._defined), dict(self._left))
                self._roster = roster
        return roster

    def knows(self, uuid: str, number: int) -> bool:
        """Whether it was read since it was started (its number is new each time)."""
        return self._ids.get(uuid) == number

    def read(self, uuid: str, number: int, facts: Facts, state: str, reason: str) -> None:
        """As it was read; its number is -1 if it does not run."""
        with self._lock:
            self._roster = None
            if number < 0:
                self._leave(uuid, self._left.get(uuid) or reason or state)
                self._ids[uuid], self._defined[uuid] = number, facts
                return
            if uuid not in self._guests and state != RUNNING and reason in _ARRIVING:
                return  # it is told of again as soon as it runs
            self._ids[uuid], self._defined[uuid] = number, facts
            self._left.pop(uuid, None)
            self._guests[uuid] = Guest(facts, state, reason, self._came.pop(uuid, ""))

    def stands(self, uuid: str, state: str, reason: str) -> None:
        """A state that was asked for or heard of."""
        with self._lock:
            known = self._guests.get(uuid)
            if known is not None and (known.state, known.reason) != (state, reason):
                self._guests[uuid] = dataclasses.replace(known, state=state, reason=reason)
                self._roster = None

    def started(self, uuid: str, reason: str) -> None:
        """Heard of; it is read next."""
        with self._lock:
            if reason == MIGRATED and uuid not in self._guests:
                self._came[uuid] = MIGRATED

    def stopped(self, uuid: str, reason: str) -> None:
        """Heard of: its process has ended."""
        with self._lock:
            self._leave(uuid, reason)

    def balloon(self, uuid: str, kib: int) -> None:
        with self._lock:
            known = self._guests.get(uuid)
            if known is not None:
                facts = dataclasses.replace(known.facts, balloon_kib=kib)
                self._guests[uuid] = dataclasses.replace(known, facts=facts)
                self._roster = None

    def only(self, uuids: set[str]) -> None:
        """All that there are, and all of them have been read."""
        with self._lock:
            self._whole = True
            for uuid in [one for one in self._defined if one not in uuids]:
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
#: When libvirt cannot be reached it is tried again after so long.
PAUSE_S: Final = 1.0
#: For each call that hangs, and as many for whatever else is asked meanwhile.
MOST_LINES: Final = 2 * MOST_HANGING
#: Who is there is heard; that nothing was missed is made sure of so often.
LIST_S: Final = 30.0
#: Nobody is shown before all were read; who does not let itself be read is left out after so long.
PATIENCE_S: Final = 30.0
GROUPS: Final = {
    "block": BLOCK,
    "balloon": BALLOON,
    "cpu": CPU,
    "vcpu": VCPU,
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
        self._libvirt = connection.running()
        files = Files()
        self._files = files
        self._host, self._links, self._qemus = Host(files), Links(files, links), Qemus(files, clock)
        self._book = GuestRoster()
        self._said = Said(every_s=every_s)
        self._lines = Lines(functools.partial(self._libvirt.openReadOnly, address), MOST_LINES)
        # who is asked every second hears of one that hangs within that
        late_s = min(LATE_S, max(1.0, every_s))
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

    def read(self, roster: Roster) -> HostCounters:
        at = self._clock.monotonic()
        processes = self._qemus.read(roster.guests)
        wanted = {nic.ifname for one in roster.guests.values() for nic in one.facts.nics}
        links_at = self._clock.monotonic()
        links = self._links.read(wanted)
        return HostCounters(at, self._host.read(), processes, links, links_at)

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
                self._book.stands(uuid, *domain_xml.state(int(state), int(reason)))
        kept: dict[str, Stats] = {u: s for u, s in self._said.stats.items() if u in asked}
        self._said = Said(self._said.round + 1, kept | found, silent, self._every_s)

    def _what(self, known: Facts) -> int:
        """Who does not tell of its memory is not asked about it."""
        groups = self._groups if known.tells_memory else self._groups & ~BALLOON
        if not known.disks:
            groups &= ~BLOCK
        return groups | STATE

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
        known = domain_xml.read_metric_facts(answer.xml)
        if known is None:
            LOG.warning("guest %s: its XML cannot be read, so it is not measured", uuid)
            return
        if answer.number >= 0:
            self._running[uuid] = answer.number
        self._book.read(uuid, answer.number, known, answer.state, answer.reason)

    # what is heard, on libvirt's thread

    def _lifecycle(self, _way: Any, domain: Any, event: int, detail: int, _: Any) -> None:
        uuid, (what, reason) = domain.UUIDString(), domain_xml.lifecycle(event, detail)
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
