# SPDX-License-Identifier: Apache-2.0
"""Rates of counters: what was read now, beside what was read before. Pure.

A counter that stepped back was begun anew: then `reset` is set, and there is no rate, rather than
a wrong one. What is not known is named in `missing`.

    made = process(now, before, vcpus=4)
    made.values["util_ratio"]      # 1.0: all four of them, all the time
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from holdfast.ports.measures import Contracts, Facts, Link, Process, Stats

RESET: Final = "reset"
#: Linux says itself that these can step back: a little is no new beginning, and no time either.
_WAVERS: Final = ("cpu_idle_ns", "cpu_iowait_ns")
_A_LITTLE_NS: Final = 1e9
NOTHING: Final = frozenset[str]()

HOST_RATES: Final = frozenset({"cpu_util_ratio", "cpu_iowait_ratio", "cpu_steal_ratio"})
HOST: Final = HOST_RATES | {
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
#: Asked of KVM only where somebody wants it: it costs a question to each QEMU.
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
DISK: Final = frozenset(_DISK.values()) | DISK_RATES | {"fill_ratio"}
LINK: Final = Link._fields
LINK_RATES: Final = frozenset({"rx_bps", "tx_bps", "rx_pkts_per_s", "tx_pkts_per_s"})
OVER: Final = frozenset({"contract_bps", "over_contract_ratio"})
NIC: Final = frozenset(LINK) | LINK_RATES | OVER


class Made(NamedTuple):
    values: dict[str, float]
    missing: frozenset[str] = NOTHING


def grew(now: float, before: float) -> float | None:
    """By how much; None if it was begun anew."""
    return now - before if now >= before else None


def host(now: Mapping[str, float], before: Mapping[str, float] | None) -> Made:
    values = dict(now)
    if before is not None:
        values |= _host_rates(now, before)
    return Made(values, HOST - values.keys())


def _host_rates(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    names = [name for name in now if name.startswith("cpu_") and name.endswith("_ns")]
    grown = {name: _ran(name, now[name], before.get(name, 0)) for name in names}
    ran = [one for one in grown.values() if one is not None]
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
    if name in _WAVERS and 0 < before - now < _A_LITTLE_NS:
        return 0.0
    return grew(now, before)


def process(now: Process, before: Process | None, vcpus: int) -> Made:
    """A guest's processors; `vcpus` is how many it was promised."""
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
    """Of each of its processors, and all together; what is missing of that."""
    if not now.vcpus:
        return frozenset({"steal_ratio"})
    earlier = before.vcpus
    if len(earlier) != len(now.vcpus):
        return frozenset({"steal_ratio"})
    total = 0.0
    for one, other in zip(now.vcpus, earlier, strict=True):
        waited = one.delay_ns - other.delay_ns
        if one.number != other.number or waited < 0 or one.time_ns < other.time_ns:
            values[RESET] = 1.0
            return frozenset({"steal_ratio"})
        values[vcpu_names(one.number)[2]] = waited / elapsed_ns
        total += waited
    values["steal_ratio"] = total / elapsed_ns / len(earlier)
    return NOTHING


def ram(now: Stats | None, before: Stats | None, facts: Facts, wall_s: float) -> Made:
    """A guest's memory. `wall_s`: seconds since 1970, as its driver counts when it told."""
    values: dict[str, float] = {}
    if now is not None:
        values = {name: v for key, name in _RAM.items() if _is(v := now.values.get(key))}
        told = now.values.get("balloon.last-update")
        if _is(told) and told:
            values["last_update_age_s"] = max(0.0, wall_s - told)
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
    return grew(later, earlier) if _is(later) and _is(earlier) else None


def disks(stats: Stats) -> dict[str, dict[str, float]]:
    """Counters and sizes of each, by target; only of those that were answered for."""
    return dict(_disks(stats.values))


def _disks(said: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for number in range(int(said.get("block.count", 0))):
        named, plan = _plan(number)
        if plan[0][0] not in said:
            continue  # there may be holes, and who was passed by has names only
        yield str(said.get(named, number)), {name: said[key] for key, name in plan if key in said}


@functools.cache
def _plan(number: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Under which keys the name of a disk is, and its numbers; that of requests first."""
    head = f"block.{number}."
    return f"{head}name", tuple((f"{head}{key}", name) for key, name in _DISK.items())


@functools.cache
def vcpu_names(number: int) -> tuple[str, str, str]:
    return f"vcpu{number}_time_ns", f"vcpu{number}_delay_ns", f"vcpu{number}_steal_ratio"


def disk(now: Mapping[str, float], before: Mapping[str, float] | None, elapsed_s: float) -> Made:
    values = dict(now)
    if now.get("capacity_bytes") and "allocation_bytes" in now:
        values["fill_ratio"] = now["allocation_bytes"] / now["capacity_bytes"]
    if before is not None and elapsed_s > 0:
        grown = _grown(now, before, DISK_COUNTERS.values())
        if grown is None:
            values[RESET] = 1.0
        else:
            values |= _disk_rates(grown, elapsed_s)
    return Made(values, DISK - values.keys())


def _disk_rates(grown: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """A disk that did nothing was not slow: its latency is 0."""
    made = {name: grown[key] / elapsed_s for key, name in _DISK_RATED.items() if key in grown}
    for name, one, other in (
        ("iops", "rd_iops", "wr_iops"),
        ("bytes_per_s", "rd_bytes_per_s", "wr_bytes_per_s"),
    ):
        if one in made and other in made:
            made[name] = made[one] + made[other]
    for name, ways in _LATENCIES:
        if all(f"{way}_reqs" in grown and f"{way}_times_ns" in grown for way in ways):
            done = sum(grown[f"{way}_reqs"] for way in ways)
            took = sum(grown[f"{way}_times_ns"] for way in ways)
            made[name] = took / done if done else 0.0
    return made


def _grown(
    now: Mapping[str, float], before: Mapping[str, float], names: Iterable[str]
) -> dict[str, float] | None:
    """By how much each, of those that are known; None if any stepped back."""
    found = {}
    for name in names:
        if name in now and name in before:
            step = grew(now[name], before[name])
            if step is None:
                return None
            found[name] = step
    return found


def nic(
    now: Link, before: Link | None, elapsed_s: float, *, swapped: bool, contracts: Contracts
) -> Made:
    """As the guest sees it: what the host's end of a tap sent, it received."""
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
    return Made(values, NIC - values.keys())


def _is(value: float | str | None) -> TypeGuard[float]:
    return isinstance(value, int | float)
