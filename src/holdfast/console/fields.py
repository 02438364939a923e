# SPDX-License-Identifier: Apache-2.0
"""Numbers of hosts and guests in the words of people: what a field is called, and how much it is.

>>> name("util_ratio"), said("util_ratio", 0.974), said("mean_latency_ns", 2.5e6)
('CPU', '97.4 %', '2.5 ms')
>>> said("rx_bps", 5e9), said("mem_available_bytes", 3 * 2**30), said("load1", 0.25)
('5 Gbit/s', '3 GiB', '0.25')
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

_NAMES: Final[Mapping[str, str]] = {
    "cpu_util_ratio": "CPU",
    "cpu_iowait_ratio": "CPU: I/O wait",
    "cpu_steal_ratio": "CPU: stolen",
    "load1": "Load",
    "mem_available_bytes": "Memory free",
    "swap_used_bytes": "Swap used",
    "psi_cpu_some_avg10": "CPU pressure",
    "psi_mem_some_avg10": "Mem. pressure",
    "psi_io_some_avg10": "I/O pressure",
    "util_ratio": "CPU",
    "steal_ratio": "CPU: stolen",
    "used_ratio": "Memory used",
    "rss_kib": "Resident",
    "iops": "Operations",
    "bytes_per_s": "Data rate",
    "mean_latency_ns": "Latency",
    "fill_ratio": "Filled",
    "allocation_bytes": "Allocated",
    "capacity_bytes": "Size",
    "rx_bps": "Receives",
    "tx_bps": "Sends",
    "over_contract_ratio": "Of its contract",
}
#: What the end of a name says: by how much it is multiplied, then the units and their steps.
_BINARY: Final = (1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
_DECIMAL: Final = (1000.0, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))
_TIME: Final = (1000.0, ("ns", "µs", "ms", "s"))
_COUNT: Final = (1000.0, ("", "k", "M", "G", "T"))
_PER_S: Final = (1024.0, ("B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"))
_UNITS: Final[Sequence[tuple[str, float, tuple[float, Sequence[str]]]]] = (
    ("_bytes", 1.0, _BINARY),
    ("_kib", 1024.0, _BINARY),
    ("bytes_per_s", 1.0, _PER_S),
    ("_bps", 1.0, _DECIMAL),
    ("_ns", 1.0, _TIME),
)


def name(field: str) -> str:
    return _NAMES.get(field, field)


def is_share(field: str) -> bool:
    """Of a whole, which is 1."""
    return field.endswith("_ratio")


def most(field: str) -> float:
    """What a picture of it shows at least, so that a little does not look like much."""
    if field.endswith(("steal_ratio", "iowait_ratio")):
        return 0.1
    return 1.0 if is_share(field) else 10.0 if field.startswith("psi_") else 0.0


def said(field: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not known"
    if is_share(field):
        return f"{_short(100 * value)} %"
    if field.startswith("psi_"):
        return f"{_short(value)} %"
    for end, times, units in _UNITS:
        if field.endswith(end):
            return _scaled(value * times, *units)
    return _scaled(value, *_COUNT).strip()


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    place = 0
    while abs(value) >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    return f"{_short(value)} {units[place]}"


def _short(value: float) -> str:
    """Three digits that matter, without zeros that do not."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
