# SPDX-License-Identifier: Apache-2.0
"""Collector: builds a metrics snapshot per pass from kernel and hypervisor counters.

    collector = Collector("cmp-7", measures, clock)
    snapshot = collector.snapshot()

The collector reads the kernel in every pass, so kernel values are always current. It reuses the
last hypervisor answer until that answer is two polling intervals old. After that, disk readings
are stale, and memory values that only the hypervisor knows are missing.

A suspended guest keeps its last values, marked stale, because its counters are not read. Zeros
would wrongly mean that the guest is idle. The snapshot has no guest tables until the hypervisor
has listed all guests once.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeGuard

from holdfast.ports.metrics import (
    DISK,
    GUEST,
    HOST,
    NIC,
    RUNNING,
    Contracts,
    Disk,
    Entity,
    Facts,
    Guest,
    HostCounters,
    Link,
    Measures,
    Nic,
    PolledStats,
    Process,
    Reading,
    Roster,
    Snapshot,
    Stats,
    Table,
)
from holdfast.runtime.clock import Clock

# Entities of a guest.


@dataclass(frozen=True)
class Entities:
    """Metric entities of a guest: the guest, its disks and its interfaces."""

    guest: Entity
    disks: Mapping[str, Entity]  # by target
    nics: Mapping[str, Entity]  # by `Nic.key`


def entities(facts: Facts, came: str = "") -> Entities:
    """Build the entities of a guest from facts that do not change while the guest runs."""
    limits = {"balloon_current_kib": float(facts.memory_kib)} if facts.memory_kib else {}
    about = {"flavor_vcpus": str(facts.vcpus)}
    guest = Entity(
        GUEST,
        facts.uuid,
        facts.name,
        facts.project,
        facts.project_name,
        facts.flavor,
        contracts=limits,
        came=came,
        about=about,
    )
    disks = {disk.target: _disk(facts, disk) for disk in facts.disks}
    nics = {nic.key: _nic(facts, nic) for nic in facts.nics}
    return Entities(guest, disks, nics)


def _disk(facts: Facts, disk: Disk) -> Entity:
    about = {"target": disk.target, "path": disk.path, "cinder_volume_id": disk.volume}
    return _part(DISK, facts, disk.target, disk.contracts, about)


def _nic(facts: Facts, nic: Nic) -> Entity:
    about = {"ifname": nic.ifname, "mac": nic.mac, "port_id": nic.port}
    return _part(NIC, facts, nic.port or nic.ifname or nic.mac, nic.contracts, about)


def _part(
    kind: str, facts: Facts, name: str, contracts: Mapping[str, float], about: Mapping[str, str]
) -> Entity:
    return Entity(
        kind,
        f"{facts.uuid}/{name}",
        f"{facts.name}/{name}",
        facts.project,
        facts.project_name,
        facts.flavor,
        guest=facts.uuid,
        contracts=contracts,
        about={name: text for name, text in about.items() if text},
    )


# Rates: pure functions that compare the current counters with the previous ones.
#
# If a counter stepped back, it was reset: `reset` is set and the rate is left out, because it
# would be wrong. Unknown fields are listed in `missing`.
#
#     made = process_rates(now, before, vcpus=4)
#     made.values["util_ratio"]      # 1.0: all four vCPUs, all the time


RESET: Final = "reset"
#: Linux documents that these counters can step back. A small step back is neither a reset nor
#: CPU time.
_WAVERS: Final = ("cpu_idle_ns", "cpu_iowait_ns")
_SMALL_STEP_NS: Final = 1e9
NOTHING: Final = frozenset[str]()

HOST_RATES: Final = frozenset({"cpu_util_ratio", "cpu_iowait_ratio", "cpu_steal_ratio"})
HOST_FIELDS: Final = HOST_RATES | {
    "cpu_user_ns",
    "cpu_kernel_ns",
    "cpu_idle_ns",
    "cpu_iowait_ns",
    "cpu_mhz",
    "load1",
    "psi_cpu_some_avg10",
    "psi_mem_some_avg10",
    "psi_io_some_avg10",
    "mem_total_bytes",
    "mem_free_bytes",
    "mem_cached_bytes",
    "swap_used_bytes",
    "fds",
    "ksm",
}
PROCESS_RATES: Final = frozenset({"util_ratio", "steal_ratio"})
#: Read from KVM only if somebody uses these fields, because each read queries every QEMU.
HALTPOLL: Final = frozenset({"haltpoll_ok_ns", "haltpoll_fail_ns"})
RAM_RATES: Final = frozenset({"swap_in_kib_per_s", "swap_out_kib_per_s", "major_fault_per_s"})
_RAM: Final = {
    "balloon.current": "balloon_current_kib",
    "balloon.maximum": "balloon_maximum_kib",
    "balloon.available": "available_kib",
    "balloon.unused": "unused_kib",
    "balloon.usable": "usable_kib",
    "balloon.disk_caches": "disk_caches_kib",
    "balloon.swap_in": "swap_in_kib",
    "balloon.swap_out": "swap_out_kib",
    "balloon.major_fault": "major_fault",
    "cpu.haltpoll.success.time": "haltpoll_ok_ns",
    "cpu.haltpoll.fail.time": "haltpoll_fail_ns",
}
RAM: Final = (frozenset(_RAM.values()) | RAM_RATES | {"used_ratio", "last_update_age_s"}) - HALTPOLL
_COUNTED: Final = (
    ("swap_in_kib", "swap_in_kib_per_s"),
    ("swap_out_kib", "swap_out_kib_per_s"),
    ("major_fault", "major_fault_per_s"),
)
DISK_COUNTERS: Final = {
    "rd.reqs": "rd_reqs",
    "rd.bytes": "rd_bytes",
    "rd.times": "rd_times_ns",
    "wr.reqs": "wr_reqs",
    "wr.bytes": "wr_bytes",
    "wr.times": "wr_times_ns",
    "fl.reqs": "fl_reqs",
    "fl.times": "fl_times_ns",
}
_DISK: Final = DISK_COUNTERS | {
    "backingIndex": "backing_index",
    "allocation": "allocation_bytes",
    "capacity": "capacity_bytes",
    "physical": "physical_bytes",
    "threshold": "threshold_bytes",
    "errors": "errors",
}
_DISK_RATED: Final = {
    "rd_reqs": "rd_iops",
    "wr_reqs": "wr_iops",
    "rd_bytes": "rd_bytes_per_s",
    "wr_bytes": "wr_bytes_per_s",
}
_LATENCIES: Final = (
    ("rd_mean_latency_ns", ("rd",)),
    ("wr_mean_latency_ns", ("wr",)),
    ("fl_mean_latency_ns", ("fl",)),
    ("mean_latency_ns", ("rd", "wr")),
)
DISK_RATES: Final = frozenset(
    {*_DISK_RATED.values(), *(name for name, _ in _LATENCIES), "iops", "bytes_per_s"}
)
DISK_FIELDS: Final = frozenset(_DISK.values()) | DISK_RATES | {"fill_ratio"}
LINK: Final = Link._fields
LINK_RATES: Final = frozenset({"rx_bps", "tx_bps", "rx_pkts_per_s", "tx_pkts_per_s"})
OVER: Final = frozenset({"contract_bps", "over_contract_ratio"})
NIC_FIELDS: Final = frozenset(LINK) | LINK_RATES | OVER


class Made(NamedTuple):
    """Values and rates computed for an entity, and the names of fields that are unknown."""

    values: dict[str, float]
    missing: frozenset[str] = NOTHING


def grew(now: float, before: float) -> float | None:
    """Return the growth of a counter, or None if the counter was reset."""
    return now - before if now >= before else None


def host_rates(now: Mapping[str, float], before: Mapping[str, float] | None) -> Made:
    """Compute a host's CPU ratios; `before` is the previous reading."""
    values = dict(now)
    if before is not None:
        values |= _host_rates(now, before)
    return Made(values, HOST_FIELDS - values.keys())


def _host_rates(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    names = [name for name in now if name.startswith("cpu_") and name.endswith("_ns")]
    grown = {name: _ran(name, now[name], before.get(name, 0)) for name in names}
    ran = [growth for growth in grown.values() if growth is not None]
    if len(ran) < len(names):
        return {RESET: 1.0}
    total = sum(ran)
    if not total:
        return {}
    idle, waited = grown.get("cpu_idle_ns") or 0, grown.get("cpu_iowait_ns") or 0
    return {
        "cpu_util_ratio": 1 - (idle + waited) / total,
        "cpu_iowait_ratio": waited / total,
        "cpu_steal_ratio": (grown.get("cpu_steal_ns") or 0) / total,
    }


def _ran(name: str, now: float, before: float) -> float | None:
    """Return the growth of a CPU time counter; a small step back of idle or iowait is 0."""
    if name in _WAVERS and 0 < before - now < _SMALL_STEP_NS:
        return 0.0
    return grew(now, before)


def process_rates(now: Process, before: Process | None, vcpus: int) -> Made:
    """Compute CPU values and rates of a guest; `vcpus` is the vCPU count of its definition."""
    count = len(now.vcpus) or vcpus
    values: dict[str, float] = {
        "cpu_time_ns": now.cpu_ns,
        "cpu_user_ns": now.user_ns,
        "cpu_system_ns": now.system_ns,
        "rss_kib": now.rss_kib,
        "vcpus": count,
    }
    for number, time_ns, delay_ns in now.vcpus:
        time_name, delay_name, _ = vcpu_names(number)
        values[time_name] = time_ns
        values[delay_name] = delay_ns
    elapsed_ns = (now.at - before.at) * 1e9 if before is not None else 0.0
    if before is None or elapsed_ns <= 0:
        return Made(values, PROCESS_RATES)
    ran = grew(now.cpu_ns, before.cpu_ns)
    if ran is None or now.started != before.started:
        values[RESET] = 1.0
        return Made(values, PROCESS_RATES)
    values["util_ratio"] = ran / elapsed_ns / count
    return Made(values, _waited(now, before, elapsed_ns, values))


def _waited(
    now: Process, before: Process, elapsed_ns: float, values: dict[str, float]
) -> frozenset[str]:
    """Add steal ratios per vCPU and for the guest to `values`; return the missing fields."""
    if not now.vcpus:
        return frozenset({"steal_ratio"})
    earlier = before.vcpus
    if len(earlier) != len(now.vcpus):
        return frozenset({"steal_ratio"})
    total = 0.0
    for vcpu, other in zip(now.vcpus, earlier, strict=True):
        waited = vcpu.delay_ns - other.delay_ns
        if vcpu.number != other.number or waited < 0 or vcpu.time_ns < other.time_ns:
            values[RESET] = 1.0
            return frozenset({"steal_ratio"})
        values[vcpu_names(vcpu.number)[2]] = waited / elapsed_ns
        total += waited
    values["steal_ratio"] = total / elapsed_ns / len(earlier)
    return NOTHING


def ram_rates(now: Stats | None, before: Stats | None, facts: Facts, wall_s: float) -> Made:
    """Compute memory values and rates of a guest.

    `wall_s` is the current time in seconds since 1970, the scale on which the balloon driver
    reports its last update.
    """
    values: dict[str, float] = {}
    if now is not None:
        values = {name: v for key, name in _RAM.items() if _is_number(v := now.values.get(key))}
        updated = now.values.get("balloon.last-update")
        if _is_number(updated) and updated:
            values["last_update_age_s"] = max(0.0, wall_s - updated)
    values.setdefault("balloon_current_kib", facts.balloon_kib)
    values.setdefault("balloon_maximum_kib", facts.memory_kib)
    free = values.get("usable_kib", values.get("unused_kib"))
    if free is not None and values.get("available_kib"):
        values["used_ratio"] = 1 - free / values["available_kib"]
    if now is not None and before is not None and now.at > before.at:
        for key, name in _COUNTED:
            step = _step(now, before, f"balloon.{key.removesuffix('_kib')}")
            if step is not None:
                values[name] = step / (now.at - before.at)
    return Made(values, (RAM | HALTPOLL) - values.keys())


def _step(now: Stats, before: Stats, key: str) -> float | None:
    later, earlier = now.values.get(key), before.values.get(key)
    return grew(later, earlier) if _is_number(later) and _is_number(earlier) else None


def disks_rates(stats: Stats) -> dict[str, dict[str, float]]:
    """Return counters and sizes per disk target, for disks that the hypervisor answered for."""
    return dict(_disks(stats.values))


def _disks(stats: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for number in range(int(stats.get("block.count", 0))):
        named, plan = _plan(number)
        if plan[0][0] not in stats:
            continue  # numbering may have gaps, and a skipped disk has a name but no counters
        yield (
            str(stats.get(named, number)),
            {name: stats[key] for key, name in plan if key in stats},
        )


@functools.cache
def _plan(number: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the libvirt key of a disk's name, and (key, field) pairs for its values.

    The first pair is the read request counter; a disk without this key has no statistics.
    """
    head = f"block.{number}."
    return f"{head}name", tuple((f"{head}{key}", name) for key, name in _DISK.items())


@functools.cache
def vcpu_names(number: int) -> tuple[str, str, str]:
    """Return the field names of a vCPU: run time, delay, steal ratio."""
    return f"vcpu{number}_time_ns", f"vcpu{number}_delay_ns", f"vcpu{number}_steal_ratio"


def disk_rates(
    now: Mapping[str, float], before: Mapping[str, float] | None, elapsed_s: float
) -> Made:
    """Compute rates, latencies and fill ratio of a disk."""
    values = dict(now)
    if now.get("capacity_bytes") and "allocation_bytes" in now:
        values["fill_ratio"] = now["allocation_bytes"] / now["capacity_bytes"]
    if before is not None and elapsed_s > 0:
        grown = _grown(now, before, DISK_COUNTERS.values())
        if grown is None:
            values[RESET] = 1.0
        else:
            values |= _disk_rates(grown, elapsed_s)
    return Made(values, DISK_FIELDS - values.keys())


def _disk_rates(grown: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """Compute disk rates from counter growth; an idle disk has latency 0."""
    made = {name: grown[key] / elapsed_s for key, name in _DISK_RATED.items() if key in grown}
    for name, read, write in (
        ("iops", "rd_iops", "wr_iops"),
        ("bytes_per_s", "rd_bytes_per_s", "wr_bytes_per_s"),
    ):
        if read in made and write in made:
            made[name] = made[read] + made[write]
    for name, ways in _LATENCIES:
        if all(f"{way}_reqs" in grown and f"{way}_times_ns" in grown for way in ways):
            done = sum(grown[f"{way}_reqs"] for way in ways)
            took = sum(grown[f"{way}_times_ns"] for way in ways)
            made[name] = took / done if done else 0.0
    return made


def _grown(
    now: Mapping[str, float], before: Mapping[str, float], names: Iterable[str]
) -> dict[str, float] | None:
    """Return the growth per counter known in both readings; None if any counter stepped back."""
    growth = {}
    for name in names:
        if name in now and name in before:
            step = grew(now[name], before[name])
            if step is None:
                return None
            growth[name] = step
    return growth


def nic_rates(
    now: Link, before: Link | None, elapsed_s: float, *, swapped: bool, contracts: Contracts
) -> Made:
    """Compute rates of an interface as the guest sees them.

    If `swapped` is set, received and sent are exchanged: the host's end of a tap sends what the
    guest receives.
    """
    later = now[4:] + now[:4] if swapped else now
    values: dict[str, float] = dict(zip(LINK, later, strict=True))
    limits = [limit for limit in contracts.values() if limit > 0]
    if limits:
        values["contract_bps"] = min(limits)
    if before is not None and elapsed_s > 0:
        earlier = before[4:] + before[:4] if swapped else before
        if any(map(operator.lt, later, earlier)):
            values[RESET] = 1.0
        else:
            values["rx_bps"] = (later[0] - earlier[0]) * 8 / elapsed_s
            values["rx_pkts_per_s"] = (later[1] - earlier[1]) / elapsed_s
            values["tx_bps"] = (later[4] - earlier[4]) * 8 / elapsed_s
            values["tx_pkts_per_s"] = (later[5] - earlier[5]) / elapsed_s
            if limits:
                values["over_contract_ratio"] = max(
                    values[name] / limit for name, limit in contracts.items() if limit > 0
                )
    return Made(values, NIC_FIELDS - values.keys())


def _is_number(value: float | str | None) -> TypeGuard[float]:
    return isinstance(value, int | float)


#: Why a reading is stale.
SUSPENDED: Final = "suspended"
NO_PROCESS: Final = "its process is gone"
NO_LINK: Final = "its interface is gone"
NO_ANSWER: Final = "no answer"
#: Host fields that are known once all servers defined on the host are known.
PROMISES: Final = frozenset(
    {"vms_running", "vcpus_allocated", "vms_defined", "vcpus_promised"}
    | {"mem_promised_bytes", "disk_promised_bytes"}
)
_NONE: Final = frozenset[str]()


@dataclass(slots=True)
class _GuestState:
    """State of a guest that the collector carries from pass to pass."""

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
    """Builds snapshots. Only one thread at a time may use a collector."""

    def __init__(self, host: str, measures: Measures, clock: Clock) -> None:
        self._measures = measures
        self._clock = clock
        self._entity = Entity(HOST, host, host)
        self._guests: dict[str, _GuestState] = {}
        self._host: Mapping[str, float] | None = None
        self._pass = 0
        self._at: float | None = None
        self._round = -1

    def snapshot(self) -> Snapshot:
        """Read the kernel, add the last hypervisor answers, and return a new snapshot."""
        roster, polled = self._measures.roster(), self._measures.polled()
        counters = self._measures.read(roster)
        now = self._clock.now()
        wall_s = now.timestamp()
        gone = self._forget(roster)
        is_new, self._round = polled.round != self._round, polled.round
        guests, disks, nics = [], [], []
        for uuid, guest in roster.guests.items():
            state = self._state_of(uuid, guest)
            self._update(state, guest, counters, polled, wall_s)
            why = _suspended(guest)
            guests.append(_guest(state, why or _without_process(uuid, counters)))
            disks += _collect_disks(
                state, guest, why or polled.silent.get(uuid, ""), polled, counters.at
            )
            nics += _nics(state, guest, counters, why)
            _settle(state)
        tables = {HOST: Table(HOST, [self._host_reading(counters, roster)])}
        if roster.whole:
            tables[GUEST] = Table(GUEST, guests, None if is_new else _kernel_fields(guests))
            tables[DISK] = Table(DISK, disks, None if is_new else _NONE)
            tables[NIC] = Table(NIC, nics)
        elapsed_s, self._at = (
            counters.at - (counters.at if self._at is None else self._at),
            counters.at,
        )
        # also grows across a restart of the agent
        self._pass = max(self._pass + 1, int(wall_s * 1000))
        return Snapshot(self._entity.id, self._pass, now, counters.at, elapsed_s, tables, gone)

    # guests on the host

    def _state_of(self, uuid: str, guest: Guest) -> _GuestState:
        """Return the state of a guest; refresh its entities if its facts changed."""
        state = self._guests.get(uuid)
        if state is None:
            state = self._guests[uuid] = _GuestState(entities(guest.facts, guest.came), guest.facts)
        elif state.facts is not guest.facts:
            state.facts = guest.facts
            _detach(state)
            made = entities(guest.facts)
            if made != state.entities:  # keep the same objects until something changes
                state.entities = made
        return state

    def _forget(self, roster: Roster) -> dict[str, str]:
        """Drop guests that left since the previous pass; return the reason by entity id."""
        gone: dict[str, str] = {}
        for uuid in [key for key in self._guests if key not in roster.guests]:
            why = roster.left.get(uuid, "gone")
            parts = self._guests.pop(uuid).entities
            for entity in (parts.guest, *parts.disks.values(), *parts.nics.values()):
                gone[entity.id] = why
        return gone

    # values and rates

    def _update(
        self,
        state: _GuestState,
        guest: Guest,
        counters: HostCounters,
        polled: PolledStats,
        wall_s: float,
    ) -> None:
        """Compute CPU, memory, disk and interface values of a guest from the new counters."""
        uuid = guest.facts.uuid
        process = counters.processes.get(uuid)
        if process is not None:
            made = process_rates(process, state.process, guest.facts.vcpus)
            state.process = process
            if guest.state == RUNNING or not state.cpu.values:
                state.cpu = made
        stats = polled.stats.get(uuid)
        if stats is not None and (state.stats is None or stats.at > state.stats.at):
            state.ram = ram_rates(stats, state.stats, guest.facts, wall_s)
            _update_disks(state, stats)
            state.stats = stats
        elif stats is None or counters.at - stats.at > 2 * polled.interval_s:
            state.ram = ram_rates(None, None, guest.facts, wall_s)
        for nic in guest.facts.nics:
            link = counters.links.get(nic.ifname)
            if link is not None:
                at, before = state.links.get(nic.key, (counters.links_at, None))
                made = nic_rates(
                    link,
                    before,
                    counters.links_at - at,
                    swapped=nic.swapped,
                    contracts=nic.contracts,
                )
                state.links[nic.key] = (counters.links_at, link)
                if guest.state == RUNNING or nic.key not in state.made_links:
                    state.made_links[nic.key] = made

    def _host_reading(self, counters: HostCounters, roster: Roster) -> Reading:
        made = host_rates(counters.host, self._host)
        self._host = counters.host
        if not roster.whole:
            return Reading(self._entity, made.values, made.missing | PROMISES)
        promises = promised(roster, self._disk_sizes(roster))
        missing = made.missing | promises.missing
        return Reading(self._entity, made.values | promises.values, missing)

    def _disk_sizes(self, roster: Roster) -> dict[str, float]:
        """Return the total disk capacity of each guest without a flavor."""
        sizes = {}
        for uuid, facts in roster.defined.items():
            state = self._guests.get(uuid)
            if facts.disk_bytes is None and state is not None and state.disks:
                sizes[uuid] = sum(disk.get("capacity_bytes", 0) for _, disk in state.disks.values())
        return sizes


def promised(roster: Roster, disk_bytes: Mapping[str, float]) -> Made:
    """Sum vCPUs, memory and disk space of all servers defined on the host, running or not."""
    defined, running = roster.defined, roster.guests.values()
    values: dict[str, float] = {
        "vms_running": sum(guest.state == RUNNING for guest in running),
        "vcpus_allocated": sum(guest.facts.vcpus for guest in running),
        "vms_defined": len(defined),
        "vcpus_promised": sum(facts.vcpus for facts in defined.values()),
        "mem_promised_bytes": sum(facts.memory_kib for facts in defined.values()) * 1024,
    }
    disks: list[float | None] = []
    for uuid, facts in defined.items():
        nothing = 0.0 if not facts.disks else None
        flavor_bytes = facts.disk_bytes
        disks.append(disk_bytes.get(uuid, nothing) if flavor_bytes is None else flavor_bytes)
    sizes = [disk for disk in disks if disk is not None]
    if len(sizes) < len(disks):
        return Made(values, frozenset({"disk_promised_bytes"}))
    return Made(values | {"disk_promised_bytes": sum(sizes)})


def _update_disks(state: _GuestState, stats: Stats) -> None:
    """Compute disk rates.

    Each disk has its own timestamp, because the hypervisor may skip a guest; then the earlier
    values stay.
    """
    for target, now in disks_rates(stats).items():
        at, before = state.disks.get(target, (stats.at, None))
        state.made_disks[target] = disk_rates(now, before, stats.at - at)
        state.disks[target] = (stats.at, now)


def _detach(state: _GuestState) -> None:
    """Forget disks and interfaces that the guest no longer has."""
    disks = {disk.target for disk in state.facts.disks}
    nics = {nic.key for nic in state.facts.nics}
    for targets in (state.disks, state.made_disks):
        for target in targets.keys() - disks:
            del targets[target]
    for links in (state.links, state.made_links):
        for key in links.keys() - nics:
            del links[key]


def _suspended(guest: Guest) -> str:
    if guest.state == RUNNING:
        return ""
    return f"{SUSPENDED}: {guest.reason or guest.state}"


def _without_process(uuid: str, counters: HostCounters) -> str:
    return "" if uuid in counters.processes else NO_PROCESS


def _guest(state: _GuestState, stale: str) -> Reading:
    values = {**state.ram.values, **state.cpu.values}
    return Reading(state.entities.guest, values, state.ram.missing | state.cpu.missing, stale)


def _collect_disks(
    state: _GuestState, guest: Guest, stale: str, polled: PolledStats, now: float
) -> list[Reading]:
    readings = []
    for disk in guest.facts.disks:
        made = state.made_disks.get(disk.target)
        entity = state.entities.disks[disk.target]
        if made is None:
            readings.append(Reading(entity, {}, DISK_FIELDS, stale or NO_ANSWER))
            continue
        is_old = now - state.disks[disk.target][0] > 2 * polled.interval_s
        readings.append(
            Reading(entity, made.values, made.missing, stale or (NO_ANSWER if is_old else ""))
        )
    return readings


def _nics(state: _GuestState, guest: Guest, counters: HostCounters, stale: str) -> list[Reading]:
    readings = []
    for nic in guest.facts.nics:
        made = state.made_links.get(nic.key, Made({}, NIC_FIELDS))
        why = stale or ("" if nic.ifname in counters.links else NO_LINK)
        readings.append(Reading(state.entities.nics[nic.key], made.values, made.missing, why))
    return readings


def _settle(state: _GuestState) -> None:
    """Clear `came` after the first pass, so that only the first snapshot reports a migration."""
    if state.entities.guest.came:
        state.entities = replace(state.entities, guest=replace(state.entities.guest, came=""))


def _kernel_fields(guests: list[Reading]) -> frozenset[str]:
    """Return the guest fields that the kernel provides in every pass.

    Only these fields are fresh in passes between two polls of the hypervisor.
    """
    names = {"rss_kib", "balloon_current_kib", "balloon_maximum_kib"}
    names |= {"cpu_time_ns", "cpu_user_ns", "cpu_system_ns", "vcpus", *PROCESS_RATES}
    most = max((int(reading.values.get("vcpus", 0)) for reading in guests), default=0)
    for number in range(most):
        names.update(vcpu_names(number))
    return frozenset(names)
