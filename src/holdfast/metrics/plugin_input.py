# SPDX-License-Identifier: Apache-2.0
"""Plugin input: the dicts of a snapshot that all plugins share.

A dict is built when the first plugin needs it, once for all plugins. The dicts are read-only:
building them takes 7 µs per guest, once, while a copy per plugin would take 9 µs each time.
Reading costs nothing extra, and unlike a mapping proxy, they satisfy `isinstance(d, dict)` and
`json`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from holdfast.metrics import collector
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot

# Dicts that plugins receive: one for the host, and one for every guest, disk or interface.
#
#     for d in on_cpu(snapshot):
#         if d["stale"] or "util_ratio" in d["missing"]:
#             continue
#         if d["util_ratio"] > 0.97: ...
#
# All dicts have `ctx` (the pass), `missing` (names of unknown fields, which are absent),
# `stale` (why the values are not current, "" if they are) and `reset` (a counter was reset, so
# its rates are None). docs/concepts/metrics.md lists the other fields.


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
#: Fields that only QEMU itself could report, and that the agent does not ask for.
_VCPU_MISSING: Final = ["halted", "wait_ns"]
_RAM: Final = ("rss_kib", *sorted(collector.RAM))
_RATES: Final = (
    collector.HOST_RATES
    | collector.PROCESS_RATES
    | collector.RAM_RATES
    | collector.DISK_RATES
    | collector.LINK_RATES
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


#: Builders by callback name; the dicts are built only if a plugin has the callback.
CALLBACKS: Final[Mapping[str, Callable[[Snapshot], list[Dict]]]] = {
    "on_host": on_host,
    "on_cpu": on_cpu,
    "on_ram": on_ram,
    "on_volume": on_volume,
    "on_bandwidth": on_bandwidth,
}


def context(snapshot: Snapshot) -> Dict:
    """Return the `ctx` dict: identity and times of the pass."""
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
    """Yield a dict per reading with the fields in `names`, or all fields."""
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
        found: Dict = {name: value for name, value in values.items() if name != collector.RESET}
        lacks = sorted(missing)
    else:
        found = {name: values[name] for name in names if name in values}
        lacks = [name for name in names if name in missing]
    found["reset"] = collector.RESET in values
    if found["reset"]:
        found |= {name: None for name in lacks if name in _RATES}
    return found | {"missing": lacks, "stale": reading.stale}


def _vcpus(reading: Reading) -> list[Dict]:
    """Return a dict per vCPU; vCPU numbers may have gaps."""
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


class Frozen(dict[str, Any]):
    """A read-only dict shared by several readers; copies are plain dicts."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("all plugins share this dict: change a copy, dict(d)")

    __setitem__ = __delitem__ = _refuse
    __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, _: Any) -> dict[str, Any]:
        return {name: _thawed(value) for name, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.__deepcopy__(None),)


class SharedDicts:
    """Dicts of a snapshot as plugins receive them; threads may share an instance."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._made: dict[str, tuple[Frozen, ...]] = {}
        self._lock = threading.Lock()

    def of(self, callback: str) -> tuple[Frozen, ...]:
        """Return the dicts for a callback; build them on first use."""
        found = self._made.get(callback)
        if found is not None:
            return found
        with self._lock:
            found = self._made.get(callback)
            if found is None:
                found = self._made[callback] = self._make(callback)
        return found

    def _make(self, callback: str) -> tuple[Frozen, ...]:
        ctx = Frozen(context(self.snapshot))
        return tuple([_frozen(one, ctx) for one in CALLBACKS[callback](self.snapshot)])


#: Keys with nested lists and dicts. Searching every key would cost more than everything else.
NESTED: Final = ("ctx", "contracts", "missing", "vcpus")
_set: Final = dict.__setitem__


def _frozen(plain: Mapping[str, Any], ctx: Frozen | None = None) -> Frozen:
    made = Frozen(plain)
    _set(made, "missing", tuple(plain["missing"]))
    if ctx is not None:
        _set(made, "ctx", ctx)
    if "contracts" in plain:
        _set(made, "contracts", Frozen(plain["contracts"]))
    if "vcpus" in plain:
        _set(made, "vcpus", tuple([_frozen(one) for one in plain["vcpus"]]))
    return made


def _thawed(value: Any) -> Any:
    if isinstance(value, Frozen):
        return value.__deepcopy__(None)
    return [_thawed(one) for one in value] if type(value) is tuple else value
