# SPDX-License-Identifier: Apache-2.0
"""One snapshot per pass, of what the kernel and the hypervisor say.

    collector = Collector("cmp-7", measures, clock)
    snapshot = collector.snapshot()

The kernel is asked in every pass, so what comes of it is always of now. What the hypervisor said
last is carried along until it is two of its intervals old; then disks are stale, and what is known
of memory from nowhere else is missing. Of a guest that is suspended the last numbers stay, marked
as stale: it does not do nothing, it is not asked. Of guests nothing is said before the hypervisor
has told of all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.ports.clock import Clock
from holdfast.ports.measures import (
    RUNNING,
    Facts,
    Guest,
    Link,
    Look,
    Measures,
    Process,
    Roster,
    Said,
    Stats,
)
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table
from holdfast.watch.metrics import rates
from holdfast.watch.metrics.entities import Entities, entities
from holdfast.watch.metrics.rates import Made

#: Why a reading is stale.
SUSPENDED: Final = "suspended"
NO_PROCESS: Final = "its process is gone"
NO_LINK: Final = "its interface is gone"
NO_ANSWER: Final = "no answer"
#: What is known of the host once all who are defined on it are known.
PROMISES: Final = frozenset(
    {"vms_running", "vcpus_allocated", "vms_defined", "vcpus_promised"}
    | {"mem_promised_bytes", "disk_promised_bytes"}
)
_NONE: Final = frozenset[str]()


@dataclass(slots=True)
class _Kept:
    """What is remembered of a guest from pass to pass."""

    entities: Entities
    facts: Facts
    process: Process | None = None
    cpu: Made = field(default_factory=lambda: Made({}))
    ram: Made = field(default_factory=lambda: Made({}))
    stats: Stats | None = None
    disks: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)
    made_disks: dict[str, Made] = field(default_factory=dict)
    links: dict[str, tuple[float, Link]] = field(default_factory=dict)
    made_links: dict[str, Made] = field(default_factory=dict)


class Collector:
    """One thread at a time."""

    def __init__(self, host: str, measures: Measures, clock: Clock) -> None:
        self._measures = measures
        self._clock = clock
        self._entity = Entity(HOST, host, host)
        self._kept: dict[str, _Kept] = {}
        self._host: Mapping[str, float] | None = None
        self._pass = 0
        self._at: float | None = None
        self._round = -1

    def snapshot(self) -> Snapshot:
        roster, said = self._measures.roster(), self._measures.said()
        look = self._measures.look(roster)
        now = self._clock.now()
        wall_s = now.timestamp()
        gone = self._forget(roster)
        is_new, self._round = said.round != self._round, said.round
        guests, disks, nics = [], [], []
        for uuid, guest in roster.guests.items():
            kept = self._known(uuid, guest)
            self._take(kept, guest, look, said, wall_s)
            why = _suspended(guest)
            guests.append(_guest(kept, why or _unseen(uuid, look)))
            disks += _disks(kept, guest, why or said.silent.get(uuid, ""), said, look.at)
            nics += _nics(kept, guest, look, why)
            _settle(kept)
        tables = {HOST: Table(HOST, [self._host_reading(look, roster)])}
        if roster.whole:
            tables[GUEST] = Table(GUEST, guests, None if is_new else _of_the_kernel(guests))
            tables[DISK] = Table(DISK, disks, None if is_new else _NONE)
            tables[NIC] = Table(NIC, nics)
        elapsed_s, self._at = look.at - (look.at if self._at is None else self._at), look.at
        # grows over a restart, too
        self._pass = max(self._pass + 1, int(wall_s * 1000))
        return Snapshot(self._entity.id, self._pass, now, look.at, elapsed_s, tables, gone)

    # who is there

    def _known(self, uuid: str, guest: Guest) -> _Kept:
        kept = self._kept.get(uuid)
        if kept is None:
            kept = self._kept[uuid] = _Kept(entities(guest.facts, guest.came), guest.facts)
        elif kept.facts is not guest.facts:
            kept.facts = guest.facts
            _detach(kept)
            made = entities(guest.facts)
            if made != kept.entities:  # the same objects stay, as long as nothing changes
                kept.entities = made
        return kept

    def _forget(self, roster: Roster) -> dict[str, str]:
        """Of those that were here in the pass before and are not now, why."""
        gone: dict[str, str] = {}
        for uuid in [one for one in self._kept if one not in roster.guests]:
            why = roster.left.get(uuid, "gone")
            known = self._kept.pop(uuid).entities
            for one in (known.guest, *known.disks.values(), *known.nics.values()):
                gone[one.id] = why
        return gone

    # what is made of it

    def _take(self, kept: _Kept, guest: Guest, look: Look, said: Said, wall_s: float) -> None:
        uuid = guest.facts.uuid
        process = look.processes.get(uuid)
        if process is not None:
            made = rates.process(process, kept.process, guest.facts.vcpus)
            kept.process = process
            if guest.state == RUNNING or not kept.cpu.values:
                kept.cpu = made
        stats = said.stats.get(uuid)
        if stats is not None and (kept.stats is None or stats.at > kept.stats.at):
            kept.ram = rates.ram(stats, kept.stats, guest.facts, wall_s)
            _take_disks(kept, stats)
            kept.stats = stats
        elif stats is None or look.at - stats.at > 2 * said.every_s:
            kept.ram = rates.ram(None, None, guest.facts, wall_s)
        for nic in guest.facts.nics:
            link = look.links.get(nic.ifname)
            if link is not None:
                at, before = kept.links.get(nic.key, (look.links_at, None))
                made = rates.nic(
                    link,
                    before,
                    look.links_at - at,
                    swapped=nic.swapped,
                    contracts=nic.contracts,
                )
                kept.links[nic.key] = (look.links_at, link)
                if guest.state == RUNNING or nic.key not in kept.made_links:
                    kept.made_links[nic.key] = made

    def _host_reading(self, look: Look, roster: Roster) -> Reading:
        made = rates.host(look.host, self._host)
        self._host = look.host
        if not roster.whole:
            return Reading(self._entity, made.values, made.missing | PROMISES)
        promises = promised(roster, self._kept_disks(roster))
        missing = made.missing | promises.missing
        return Reading(self._entity, made.values | promises.values, missing)

    def _kept_disks(self, roster: Roster) -> dict[str, float]:
        """How large the disks of those are that have no flavor."""
        found = {}
        for uuid, facts in roster.defined.items():
            kept = self._kept.get(uuid)
            if facts.disk_bytes is None and kept is not None and kept.disks:
                found[uuid] = sum(one.get("capacity_bytes", 0) for _, one in kept.disks.values())
        return found


def promised(roster: Roster, disk_bytes: Mapping[str, float]) -> Made:
    """What the servers that are defined here may use, whether they run or not."""
    defined, running = roster.defined, roster.guests.values()
    values: dict[str, float] = {
        "vms_running": sum(one.state == RUNNING for one in running),
        "vcpus_allocated": sum(one.facts.vcpus for one in running),
        "vms_defined": len(defined),
        "vcpus_promised": sum(one.vcpus for one in defined.values()),
        "mem_promised_bytes": sum(one.memory_kib for one in defined.values()) * 1024,
    }
    disks: list[float | None] = []
    for uuid, facts in defined.items():
        nothing = 0.0 if not facts.disks else None
        known = facts.disk_bytes
        disks.append(disk_bytes.get(uuid, nothing) if known is None else known)
    sizes = [one for one in disks if one is not None]
    if len(sizes) < len(disks):
        return Made(values, frozenset({"disk_promised_bytes"}))
    return Made(values | {"disk_promised_bytes": sum(sizes)})


def _take_disks(kept: _Kept, stats: Stats) -> None:
    """Each has a time of its own: a guest may be passed by, and what it said before stays."""
    for target, now in rates.disks(stats).items():
        at, before = kept.disks.get(target, (stats.at, None))
        kept.made_disks[target] = rates.disk(now, before, stats.at - at)
        kept.disks[target] = (stats.at, now)


def _detach(kept: _Kept) -> None:
    """Forget disks and interfaces that it does not have any more."""
    disks = {one.target for one in kept.facts.disks}
    nics = {one.key for one in kept.facts.nics}
    for known in (kept.disks, kept.made_disks):
        for target in known.keys() - disks:
            del known[target]
    for links in (kept.links, kept.made_links):
        for key in links.keys() - nics:
            del links[key]


def _suspended(guest: Guest) -> str:
    if guest.state == RUNNING:
        return ""
    return f"{SUSPENDED}: {guest.reason or guest.state}"


def _unseen(uuid: str, look: Look) -> str:
    return "" if uuid in look.processes else NO_PROCESS


def _guest(kept: _Kept, stale: str) -> Reading:
    values = {**kept.ram.values, **kept.cpu.values}
    return Reading(kept.entities.guest, values, kept.ram.missing | kept.cpu.missing, stale)


def _disks(kept: _Kept, guest: Guest, stale: str, said: Said, now: float) -> list[Reading]:
    found = []
    for disk in guest.facts.disks:
        made = kept.made_disks.get(disk.target)
        entity = kept.entities.disks[disk.target]
        if made is None:
            found.append(Reading(entity, {}, rates.DISK, stale or NO_ANSWER))
            continue
        is_old = now - kept.disks[disk.target][0] > 2 * said.every_s
        found.append(
            Reading(entity, made.values, made.missing, stale or (NO_ANSWER if is_old else ""))
        )
    return found


def _nics(kept: _Kept, guest: Guest, look: Look, stale: str) -> list[Reading]:
    found = []
    for nic in guest.facts.nics:
        made = kept.made_links.get(nic.key, Made({}, rates.NIC))
        why = stale or ("" if nic.ifname in look.links else NO_LINK)
        found.append(Reading(kept.entities.nics[nic.key], made.values, made.missing, why))
    return found


def _settle(kept: _Kept) -> None:
    """From the second pass on, it is simply here."""
    if kept.entities.guest.came:
        kept.entities = replace(kept.entities, guest=replace(kept.entities.guest, came=""))


def _of_the_kernel(guests: list[Reading]) -> frozenset[str]:
    """What was read anew between two rounds."""
    names = {"rss_kib", "balloon_current_kib", "balloon_maximum_kib"}
    names |= {"cpu_time_ns", "cpu_user_ns", "cpu_system_ns", "vcpus", *rates.PROCESS_RATES}
    most = max((int(one.values.get("vcpus", 0)) for one in guests), default=0)
    for number in range(most):
        names.update(rates.vcpu_names(number))
    return frozenset(names)
