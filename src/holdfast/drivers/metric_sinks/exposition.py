# SPDX-License-Identifier: Apache-2.0
"""A snapshot in Prometheus' text format. Pure.

Units are those that Prometheus wants: seconds, bytes, hertz, and of a counter `_total` at the end.
Processors of a guest are told apart by a label. A kind and a set of labels come once, whatever a
snapshot holds: one line twice, and Prometheus would take nothing of the page.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.drivers.metric_sinks.names import split
from holdfast.model.metric_fields import Fields, is_counter
from holdfast.ports.metrics import DISK, HOST, NIC, Entity, Snapshot

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: By the end of a name: what it becomes, and by what the number is multiplied.
_UNITS: Final = (
    ("_kib_per_s", "_bytes_per_second", 1024.0),
    ("_per_s", "_per_second", 1.0),
    ("_bps", "_bytes_per_second", 1 / 8),
    ("_kib", "_bytes", 1024.0),
    ("_ns", "_seconds", 1e-9),
    ("_age_s", "_age_seconds", 1.0),
    ("_mhz", "_hertz", 1e6),
    ("_pkts", "_packets", 1.0),
    ("_errs", "_errors", 1.0),
    ("_drop", "_drops", 1.0),
    ("_reqs", "_requests", 1.0),
)
_VCPU: Final = re.compile(r"vcpu(\d+)_(\w+)")
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


class Family(NamedTuple):
    name: str
    kind: str  # counter, gauge
    help: str


@functools.lru_cache(maxsize=4096)
def family(kind: str, field: str) -> tuple[Family, float, str]:
    """What a number is called there, by what it is multiplied, and which vCPU it is of."""
    vcpu, bare = "", field
    if found := _VCPU.fullmatch(field):
        vcpu, bare = found[1], f"vcpu_{found[2]}"
    scale = 1.0
    for end, becomes, by in _UNITS:
        if bare.endswith(end):
            bare, scale = bare.removesuffix(end) + becomes, by
            break
    counts = is_counter(field)
    name = _NOT_IN_NAMES.sub("_", f"holdfast_{kind}_{bare}{'_total' if counts else ''}")
    said = f"{_said(field, vcpu)} of the {kind}, as docs/metrics.md has it."
    return Family(name, "counter" if counts else "gauge", said), scale, vcpu


def _said(field: str, vcpu: str) -> str:
    return field.replace(f"vcpu{vcpu}_", "vcpuN_", 1) if vcpu else field


def page(snapshot: Snapshot, fields: Fields, more: Iterable[str] = ()) -> str:
    """The whole text; `more` are families of others, as lines."""
    families: dict[Family, dict[str, float]] = {}
    for table in snapshot.tables.values():
        for reading in table.readings:
            entity = reading.entity
            if reading.stale:
                continue
            about = _labels(snapshot.host, entity)
            for field, value in reading.values.items():
                if not fields.has(entity.kind, field) or not math.isfinite(value):
                    continue
                known, scale, vcpu = family(entity.kind, field)
                labels = f'{about},vcpu="{vcpu}"' if vcpu else about
                families.setdefault(known, {}).setdefault(labels, value * scale)
    lines = [line for one, numbers in families.items() for line in lines_of(one, numbers)]
    return "\n".join([*lines, *more, ""])


def lines_of(one: Family, numbers: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP {one.name} {_help(one.help)}"
    yield f"# TYPE {one.name} {one.kind}"
    for labels, value in numbers.items():
        braces = f"{{{labels}}}" if labels else ""
        yield f"{one.name}{braces} {value!r}"


def label(text: str) -> str:
    """As the value of a label; what UTF-8 has no letter for becomes a question mark."""
    safe = text.encode("utf-8", "replace").decode()
    return safe.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


@functools.lru_cache(maxsize=16_384)
def _of_guest(host: str, kind: str, identity: str, name: str, project: str, flavor: str) -> str:
    guest, shown, rest = split(identity, name)
    found = {"host": host, "uuid": guest, "name": shown, "project": project, "flavor": flavor}
    if kind in (DISK, NIC):
        found[kind] = rest
    return ",".join(f'{key}="{label(text)}"' for key, text in found.items())


def _labels(host: str, entity: Entity) -> str:
    if entity.kind == HOST:
        return f'host="{label(host)}"'
    return _of_guest(host, entity.kind, entity.id, entity.name, entity.project, entity.flavor)
