# SPDX-License-Identifier: Apache-2.0
"""Generated metrics of a simulated host and its servers, marked as simulated.

    hour(world, "cmp-05", begin, end)      # the slots from `begin` up to, without, `end`

Each point is a function of entity and time, so that an hour without measurements exists at once
and is always the same. The host's load is the sum of its servers. One server in five has bursts in
which it uses all its CPU and sends more than it pays for. A dead host or guest has no metrics.
"""

import math
import random
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from holdfast.metrics import history
from holdfast.metrics.history import EVERY_S, Hour, Line
from holdfast.model.host import normalise

#: One server in BUSY has bursts.
BUSY: Final = 5
#: Contracted bandwidth per vCPU.
BPS_PER_VCPU: Final = 250e6
#: Servers created within this many slots of the first belong to the initial world.
WITH_IT: Final = 6
_MIB: Final = 1024 * 1024
_OWN_MEMORY_MB: Final = 4096
_Row = dict[str, float]


def hour(world: Mapping[str, Any], host: str, begin: int, end: int) -> Hour:
    """Return an hour of metrics of a host; empty if the host is off or unknown.

    `world` is the result of `Simulator.world`.
    """
    host_row = next(
        (host_row for host_row in world["hosts"] if normalise(host_row["name"]) == host), None
    )
    if host_row is None or not host_row["powered"]:
        return history.NOTHING
    begin = max(begin, _slot(host_row["restarted_at"]), end - history.POINTS)
    if begin >= end:
        return history.NOTHING
    servers = [server for server in _servers(world) if host_row["name"] in server["running_on"]]
    lines = [_host(host_row, servers, begin, end)]
    for make in (_guest, _disk, _nic):
        lines += [make(server, begin, end) for server in servers]
    return Hour(begin, end - begin, tuple(lines[: history.MOST_LINES]), simulated=True)


def _servers(world: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers with the slot of their creation; 0 for servers of the initial world."""
    made = [_slot(server["created_at"]) for server in world["servers"]]
    first = min(made, default=0) + WITH_IT
    return [
        {**server, "since": since if since > first else 0}
        for server, since in zip(world["servers"], made, strict=True)
    ]


def _host(host: Mapping[str, Any], servers: Sequence[Any], begin: int, end: int) -> Line:
    def row(slot: int) -> _Row:
        there = [server for server in servers if slot >= server["since"]]
        cores = sum(_util(server["id"], slot) * server["vcpus"] for server in there)
        used_mb = sum(_used(server["id"], slot) * server["memory_mb"] for server in there)
        util = min(1.0, 0.02 + 0.02 * _wave(host["name"], "cpu", slot) + cores / host["vcpus"])
        crowd = max(0.0, util - 0.6)
        return {
            "cpu_util_ratio": util,
            "cpu_iowait_ratio": 0.01 * _wave(host["name"], "io", slot),
            "cpu_steal_ratio": 0.0,
            "load1": util * host["vcpus"] * (0.9 + 0.2 * _wave(host["name"], "load", slot)),
            "mem_available_bytes": max(0, host["memory_mb"] - used_mb - _OWN_MEMORY_MB) * _MIB,
            "swap_used_bytes": 0.0,
            "psi_cpu_some_avg10": 100 * crowd * _wave(host["name"], "psi", slot),
            "psi_mem_some_avg10": 0.0,
            "psi_io_some_avg10": 2 * _wave(host["name"], "psi io", slot),
        }

    return Line("host", host["name"], host["name"], values=_laid(row, begin, end))


def _guest(server: Mapping[str, Any], begin: int, end: int) -> Line:
    entity, memory_kib = server["id"], server["memory_mb"] * 1024

    def row(slot: int) -> _Row:
        used = _used(entity, slot)
        return {
            "util_ratio": _util(entity, slot),
            "steal_ratio": 0.01 * _wave(entity, "steal", slot),
            "used_ratio": used,
            "rss_kib": memory_kib * (0.2 + 0.8 * used),
        }

    return _line("guest", server, "", row, (begin, end), {"balloon_current_kib": memory_kib})


def _disk(server: Mapping[str, Any], begin: int, end: int) -> Line:
    entity, size = server["id"], server["disk_gb"] * _MIB * 1024

    def row(slot: int) -> _Row:
        iops = 400 * _util(entity, slot) * _wave(entity, "iops", slot)
        fill = 0.2 + 0.7 * _odds(entity, "fill") + 0.02 * (slot % 8640) / 8640  # grows over a day
        return {
            "iops": iops,
            "bytes_per_s": iops * 16_384,
            "mean_latency_ns": 4e5 + 3e6 * _wave(entity, "latency", slot) ** 4,
            "fill_ratio": fill,
            "allocation_bytes": fill * size,
            "capacity_bytes": size,
        }

    return _line("disk", server, "vda", row, (begin, end), {})


def _nic(server: Mapping[str, Any], begin: int, end: int) -> Line:
    entity, contract = server["id"], server["vcpus"] * BPS_PER_VCPU

    def row(slot: int) -> _Row:
        share = 0.6 * _wave(entity, "tx", slot) * _util(entity, slot)
        tx = contract * (share + (3.0 if _is_bursting(entity, slot) else 0.0))
        return {
            "tx_bps": tx,
            "rx_bps": contract * 0.3 * _wave(entity, "rx", slot),
            "over_contract_ratio": tx / contract,
        }

    return _line("nic", server, f"tap{entity[:11]}", row, (begin, end), {"tx_bps": contract})


def _line(
    kind: str,
    server: Mapping[str, Any],
    part: str,
    row: Callable[[int], _Row],
    span: tuple[int, int],
    contracts: Mapping[str, float],
) -> Line:
    """Create the series of an entity; slots before the server's creation have no values."""
    since = server["since"]
    end = f"/{part}" if part else ""
    return Line(
        *(kind, server["id"] + end, server["name"] + end, server["project_id"]),
        flavor=str(server["flavor"]),
        guest=server["id"] if part else "",
        contracts=contracts,
        values=_laid(lambda slot: row(slot) if slot >= since else None, *span),
    )


def _laid(row: Callable[[int], _Row | None], begin: int, end: int) -> dict[str, "array[float]"]:
    made: dict[str, array[float]] = {}
    for place in range(end - begin):
        for name, value in (row(begin + place) or {}).items():
            if name not in made:
                made[name] = history.unknown(end - begin)
            made[name][place] = value
    return made


# Load of a server over time


def _util(entity: str, slot: int) -> float:
    if _is_bursting(entity, slot):
        return 0.97 + 0.03 * _grain(entity, slot)
    quiet = 0.05 + 0.35 * _odds(entity, "util")
    return quiet + 0.3 * _wave(entity, "util", slot) * _odds(entity, "swing")


def _used(entity: str, slot: int) -> float:
    return 0.35 + 0.5 * _odds(entity, "ram") + 0.05 * _wave(entity, "ram", slot)


def _is_bursting(entity: str, slot: int) -> bool:
    """Return whether a busy server bursts now: four to eight minutes of every forty."""
    if _number(entity, "busy") % BUSY:
        return False
    minutes = (slot * EVERY_S / 60 + _number(entity, "begin") % 40) % 40
    return minutes < 4 + 4 * _odds(entity, "length")


def _wave(entity: str, series: str, slot: int) -> float:
    """Return a value from 0 to 1: two slow waves with a little noise."""
    slow, quick, begin, other = _shape(entity, series)
    at = slot * EVERY_S
    wave = 0.5 + 0.3 * math.sin(at / slow + begin) + 0.12 * math.sin(at / quick + other)
    return wave + 0.08 * (2 * _grain(entity + series, slot) - 1)


@lru_cache(10_000)
def _shape(entity: str, series: str) -> tuple[float, float, float, float]:
    dice = random.Random(f"{entity}/{series}")
    turn = 2 * math.pi
    return (
        dice.uniform(600, 1500) / turn,
        dice.uniform(90, 240) / turn,
        dice.uniform(0, turn),
        dice.uniform(0, turn),
    )


def _odds(entity: str, series: str) -> float:
    """Return a fixed pseudo-random value from 0 to 1."""
    return (_number(entity, series) % 10_007) / 10_006


@lru_cache(10_000)
def _number(entity: str, series: str) -> int:
    return zlib.crc32(f"{entity}/{series}".encode())


def _grain(entity: str, slot: int) -> float:
    return (zlib.crc32(slot.to_bytes(8, "little"), _number(entity, "grain")) % 1009) / 1008


def _slot(time: str | None) -> int:
    return history.slot_of(datetime.fromisoformat(time).timestamp()) if time else 0
