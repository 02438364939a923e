# SPDX-License-Identifier: Apache-2.0
"""A snapshot as the dicts that plugins get: one of the host, and one of every guest, disk or
interface.

    for d in on_cpu(snapshot):
        if d["stale"] or "util_ratio" in d["missing"]:
            continue
        if d["util_ratio"] > 0.97: ...

All have `ctx` (which pass this is), `missing` (what is not known, and so not there), `stale` (why
the numbers are not of now, "" if they are) and `reset`: then a counter was begun anew, and its
rates are None. Of what is in them docs/metrics.md has the list.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot
from holdfast.watch.metrics import rates

Dict = dict[str, Any]

_CPU: Final = (
    "cpu_time_ns",
    "cpu_user_ns",
    "cpu_system_ns",
    "util_ratio",
    "steal_ratio",
    "haltpoll_ok_ns",
    "haltpoll_fail_ns",
)
_VCPU: Final = ("time_ns", "delay_ns", "steal_ratio")
#: What only QEMU itself could tell, and is not asked for.
_VCPU_MISSING: Final = ["halted", "wait_ns"]
_RAM: Final = ("rss_kib", *sorted(rates.RAM))
_RATES: Final = (
    rates.HOST_RATES
    | rates.PROCESS_RATES
    | rates.RAM_RATES
    | rates.DISK_RATES
    | rates.LINK_RATES
    | {"over_contract_ratio"}
)


def on_host(snapshot: Snapshot) -> list[Dict]:
    return [one for one, _ in _made(snapshot, HOST)]


def on_cpu(snapshot: Snapshot) -> list[Dict]:
    made = []
    for one, reading in _made(snapshot, GUEST, _CPU):
        one["flavor_vcpus"] = int(reading.entity.about.get("flavor_vcpus", 0))
        one["vcpus"] = _vcpus(reading)
        made.append(one)
    return made


def on_ram(snapshot: Snapshot) -> list[Dict]:
    return [one for one, _ in _made(snapshot, GUEST, _RAM)]


def on_volume(snapshot: Snapshot) -> list[Dict]:
    return [one for one, _ in _made(snapshot, DISK)]


def on_bandwidth(snapshot: Snapshot) -> list[Dict]:
    return [one for one, _ in _made(snapshot, NIC)]


#: By the name of what a plugin may have; made only if one has it.
CALLBACKS: Final[Mapping[str, Callable[[Snapshot], list[Dict]]]] = {
    "on_host": on_host,
    "on_cpu": on_cpu,
    "on_ram": on_ram,
    "on_volume": on_volume,
    "on_bandwidth": on_bandwidth,
}


def context(snapshot: Snapshot) -> Dict:
    return {
        "host": snapshot.host,
        "pass_id": snapshot.pass_id,
        "at": snapshot.at,
        "monotonic": snapshot.monotonic,
        "elapsed_s": snapshot.elapsed_s,
    }


def _made(
    snapshot: Snapshot, kind: str, names: tuple[str, ...] | None = None
) -> Iterator[tuple[Dict, Reading]]:
    """A dict of each, with the numbers of these names, or all."""
    table, ctx = snapshot.tables.get(kind), context(snapshot)
    for reading in table.readings if table is not None else ():
        yield {"ctx": ctx, **_about(reading.entity), **_numbers(reading, names)}, reading


def _about(who: Entity) -> Dict:
    if who.kind == HOST:
        return {"name": who.name}
    about: Dict = {
        "name": who.name,
        "uuid": who.guest or who.id,
        "project": who.project,
        "project_name": who.project_name,
        "flavor": who.flavor,
        "contracts": dict(who.contracts),
    }
    return about if who.kind == GUEST else {**about, **who.about}


def _numbers(reading: Reading, names: tuple[str, ...] | None) -> Dict:
    values, missing = reading.values, reading.missing
    if names is None:
        found: Dict = {name: value for name, value in values.items() if name != rates.RESET}
        lacks = sorted(missing)
    else:
        found = {name: values[name] for name in names if name in values}
        lacks = [name for name in names if name in missing]
    found["reset"] = rates.RESET in values
    if found["reset"]:
        found |= {name: None for name in lacks if name in _RATES}
    return found | {"missing": lacks, "stale": reading.stale}


def _vcpus(reading: Reading) -> list[Dict]:
    """There may be holes in their numbers."""
    values, found = reading.values, []
    for number in sorted(_numbers_of(values)):
        named = {name: f"vcpu{number}_{name}" for name in _VCPU}
        one: Dict = {"id": number, "state": "running" if not reading.stale else reading.stale}
        one |= {name: values[key] for name, key in named.items() if key in values}
        one["missing"] = _VCPU_MISSING + [name for name in _VCPU if named[name] not in values]
        found.append(one)
    return found


def _numbers_of(values: Mapping[str, float]) -> list[int]:
    return [
        int(name[4:-8]) for name in values if name.startswith("vcpu") and name.endswith("_time_ns")
    ]
