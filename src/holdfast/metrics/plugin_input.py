# SPDX-License-Identifier: Apache-2.0
"""Plugin input: snapshots on their way to the process of the plugins, and the dicts plugins get.

    encoder, decoder = Encoder(), Decoder()            # in the agent; in the plugins' process
    snapshot = decoder.decode(encoder.encode(snapshot, (HOST, GUEST)))
    for d in SharedDicts(snapshot).of("on_cpu"):
        if d["stale"] or "util_ratio" in d["missing"]:
            continue
        if d["util_ratio"] > 0.97: ...

There is a dict for the host, and one for every guest, disk or interface. All dicts have `ctx`
(the pass), `missing` (names of unknown fields, which are absent), `stale` (why the values are
not current, "" if they are) and `reset` (a counter was reset, so its rates are None).
docs/concepts/metrics.md lists the other fields.

A dict is built when the first plugin needs it, once for all plugins. The dicts are read-only,
because a copy per plugin would take longer than building them. Unlike a mapping proxy, they
satisfy `isinstance(d, dict)` and `json`.
"""

import marshal
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from holdfast.metrics import collector
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table

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
_VCPU_MISSING: Final[tuple[str, ...]] = ("halted", "wait_ns")
_RAM: Final = ("rss_kib", *sorted(collector.RAM))
_RATES: Final = (
    collector.HOST_RATES
    | collector.PROCESS_RATES
    | collector.RAM_RATES
    | collector.DISK_RATES
    | collector.LINK_RATES
    | {"over_contract_ratio"}
)


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


_set: Final = dict.__setitem__
_update: Final = dict.update


def _thawed(value: Any) -> Any:
    if isinstance(value, Frozen):
        return value.__deepcopy__(None)
    return [_thawed(item) for item in value] if type(value) is tuple else value


def on_host(snapshot: Snapshot) -> list[Frozen]:
    return [frozen for frozen, _ in _made(snapshot, HOST)]


def on_cpu(snapshot: Snapshot) -> list[Frozen]:
    frozens = []
    for frozen, reading in _made(snapshot, GUEST, _CPU):
        _set(frozen, "flavor_vcpus", int(reading.entity.about.get("flavor_vcpus", 0)))
        _set(frozen, "vcpus", _vcpus(reading))
        frozens.append(frozen)
    return frozens


def on_ram(snapshot: Snapshot) -> list[Frozen]:
    return [frozen for frozen, _ in _made(snapshot, GUEST, _RAM)]


def on_volume(snapshot: Snapshot) -> list[Frozen]:
    return [frozen for frozen, _ in _made(snapshot, DISK)]


def on_bandwidth(snapshot: Snapshot) -> list[Frozen]:
    return [frozen for frozen, _ in _made(snapshot, NIC)]


#: Builders by callback name; the dicts are built only if a plugin has the callback.
CALLBACKS: Final[Mapping[str, Callable[[Snapshot], list[Frozen]]]] = {
    "on_host": on_host,
    "on_cpu": on_cpu,
    "on_ram": on_ram,
    "on_volume": on_volume,
    "on_bandwidth": on_bandwidth,
}


#: The kind of entity that each callback is about.
KINDS: Final = {
    "on_host": HOST,
    "on_cpu": GUEST,
    "on_ram": GUEST,
    "on_volume": DISK,
    "on_bandwidth": NIC,
}


class SharedDicts:
    """Dicts of a snapshot as plugins receive them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._made: dict[str, list[Frozen]] = {}

    def of(self, callback: str) -> list[Frozen]:
        """Return the dicts for a callback; build them on first use."""
        frozens = self._made.get(callback)
        if frozens is None:
            frozens = self._made[callback] = CALLBACKS[callback](self.snapshot)
        return frozens


def _context(snapshot: Snapshot) -> Frozen:
    """Return the `ctx` dict: identity and times of the pass."""
    return Frozen(
        host=snapshot.host,
        pass_id=snapshot.pass_id,
        at=snapshot.at,
        monotonic=snapshot.monotonic,
        elapsed_s=snapshot.elapsed_s,
    )


def _made(
    snapshot: Snapshot, kind: str, names: tuple[str, ...] | None = None
) -> Iterator[tuple[Frozen, Reading]]:
    """Yield a dict per reading with the fields in `names`, or all fields."""
    table, ctx = snapshot.tables.get(kind), _context(snapshot)
    for reading in table.readings if table is not None else ():
        frozen = Frozen(_about(reading.entity))
        _set(frozen, "ctx", ctx)
        _add_numbers(frozen, reading, names)
        yield frozen, reading


#: The constant part of an entity's dicts, by the identity of the entity.
_ABOUT: Final[dict[int, tuple[Entity, Dict]]] = {}
_MOST_ABOUT: Final = 20_000


def _about(entity: Entity) -> Dict:
    cached = _ABOUT.get(id(entity))
    if cached is None or cached[0] is not entity:
        if len(_ABOUT) >= _MOST_ABOUT:
            _ABOUT.clear()
        cached = _ABOUT[id(entity)] = (entity, _describe(entity))
    return cached[1]


def _describe(entity: Entity) -> Dict:
    if entity.kind == HOST:
        return {"name": entity.name}
    about: Dict = {
        "name": entity.name,
        "uuid": entity.guest or entity.id,
        "project": entity.project,
        "project_name": entity.project_name,
        "flavor": entity.flavor,
        "contracts": Frozen(entity.contracts),
    }
    return about if entity.kind == GUEST else {**about, **entity.about}


def _add_numbers(frozen: Frozen, reading: Reading, names: tuple[str, ...] | None) -> None:
    values, missing = reading.values, reading.missing
    if names is None:
        _update(frozen, values)
        lacks = sorted(missing) if missing else ()
    else:
        _update(frozen, {name: values[name] for name in names if name in values})
        lacks = [name for name in names if name in missing] if missing else ()
    reset = collector.RESET in values
    if reset:
        _update(frozen, {name: None for name in lacks if name in _RATES})
    _set(frozen, "reset", reset)
    _set(frozen, "missing", tuple(lacks))
    _set(frozen, "stale", reading.stale)


def _vcpus(reading: Reading) -> tuple[Frozen, ...]:
    """Return a dict per vCPU; vCPU numbers may have gaps."""
    values, state = reading.values, reading.stale or "running"
    frozens = []
    for number in sorted([_VCPU_OF[name] for name in values if _VCPU_OF[name] >= 0]):
        numbers = {name: values[key] for name, key in _VCPU_KEYS[number] if key in values}
        lacks = _VCPU_MISSING
        if len(numbers) < len(_VCPU):
            lacks = (*lacks, *(name for name in _VCPU if name not in numbers))
        frozens.append(Frozen(numbers, id=number, state=state, missing=lacks))
    return tuple(frozens)


class _VcpuOf(dict[str, int]):
    """The number of the vCPU of a field `vcpuN_time_ns`, -1 of any other field."""

    def __missing__(self, name: str) -> int:
        is_time = name.startswith("vcpu") and name.endswith("_time_ns")
        number = self[name] = int(name[4:-8]) if is_time else -1
        return number


class _VcpuKeys(dict[int, tuple[tuple[str, str], ...]]):
    """The fields of a vCPU, each with its name in the reading, by number."""

    def __missing__(self, number: int) -> tuple[tuple[str, str], ...]:
        keys = self[number] = tuple((name, f"vcpu{number}_{name}") for name in _VCPU)
        return keys


_VCPU_OF: Final = _VcpuOf()
_VCPU_KEYS: Final = _VcpuKeys()


# Snapshots as bytes. An entity is sent once, and then named by a number, as long as it is the same
# object. The agent never decodes bytes from the plugins' process this way.


class Encoder:
    """Encodes snapshots for one `Decoder`, which has to get all of them in order."""

    def __init__(self) -> None:
        self._known: dict[int, Entity] = {}  # by id(); the reference keeps the id from reuse

    def encode(self, snapshot: Snapshot, kinds: Collection[str]) -> bytes:
        """Return the tables of these kinds of entities, and the identity of the pass."""
        entities, current, tables = self._known, dict[int, Entity](), []
        for kind, table in snapshot.tables.items():
            if kind in kinds:
                rows = [(id(r.entity), r.values, r.missing, r.stale) for r in table.readings]
                current.update((id(entity), entity) for entity in table.entities)
                tables.append((kind, rows))
        new = [(key, _plain(entity)) for key, entity in current.items() if key not in entities]
        gone = [key for key in entities if key not in current]
        self._known = current
        at = snapshot.at.isoformat()
        identity = (snapshot.host, snapshot.pass_id, at)
        about = (*identity, snapshot.monotonic, snapshot.elapsed_s)
        return marshal.dumps((about, new, gone, tables))


def _plain(entity: Entity) -> tuple[Any, ...]:
    texts = (
        entity.kind,
        entity.id,
        entity.name,
        entity.project,
        entity.project_name,
        entity.flavor,
        entity.guest,
    )
    return (*texts, dict(entity.contracts), entity.came, dict(entity.about))


class Decoder:
    """Decodes the snapshots of one `Encoder`."""

    def __init__(self) -> None:
        self._known: dict[int, Entity] = {}

    def decode(self, data: bytes) -> Snapshot:
        about, new, gone, tables = marshal.loads(data)
        for key in gone:
            _ABOUT.pop(id(self._known.pop(key)), None)
        self._known.update((key, Entity(*fields)) for key, fields in new)
        entities = self._known
        made = {
            kind: Table(kind, [Reading(entities[key], v, m, stale) for key, v, m, stale in rows])
            for kind, rows in tables
        }
        host, pass_id, at, monotonic, elapsed_s = about
        return Snapshot(host, pass_id, datetime.fromisoformat(at), monotonic, elapsed_s, made)
