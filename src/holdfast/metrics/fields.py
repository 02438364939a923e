# SPDX-License-Identifier: Apache-2.0
"""Metric fields: known names per kind, and the properties (counter, unit) of a name.

is_known("guest", "util_ratio"), like("guest", "util_ration")      # True, "util_ratio"
is_counter("rd_bytes"), unit("rd_bytes")        # True, "B"
Fields(["guest.*_ratio", "nic.tx_bps"]).has("guest", "util_ratio")      # True
"""

import difflib
import fnmatch
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.model.errors import InvalidInput

_COUNTER: Final = re.compile(
    r"cpu_\w+_ns|haltpoll_(ok|fail)_ns|vcpu\d+_(time|delay)_ns|swap_(in|out)_kib|major_fault|errors"
    r"|(rd|wr|fl)_(reqs|bytes|times_ns)|(rx|tx)_(bytes|pkts|errs|drop)"
)
#: Field names per kind, whichever source measures them; docs/concepts/metrics.md explains each.
NAMES: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "host": """
            cpu_user_ns cpu_kernel_ns cpu_idle_ns cpu_iowait_ns cpu_steal_ns
            cpu_util_ratio cpu_iowait_ratio cpu_steal_ratio cpus cpu_mhz load1 fds ksm
            psi_cpu_some_avg10 psi_mem_some_avg10 psi_io_some_avg10
            mem_total_bytes mem_free_bytes mem_available_bytes mem_cached_bytes swap_used_bytes
            vms_running vms_defined vcpus_allocated vcpus_promised
            mem_promised_bytes disk_promised_bytes""",
        "guest": """
            cpu_time_ns cpu_user_ns cpu_system_ns util_ratio steal_ratio vcpus rss_kib
            haltpoll_ok_ns haltpoll_fail_ns balloon_current_kib balloon_maximum_kib
            available_kib unused_kib usable_kib disk_caches_kib used_ratio last_update_age_s
            swap_in_kib swap_out_kib major_fault
            swap_in_kib_per_s swap_out_kib_per_s major_fault_per_s""",
        "disk": """
            rd_reqs rd_bytes rd_times_ns wr_reqs wr_bytes wr_times_ns fl_reqs fl_times_ns
            rd_iops wr_iops iops rd_bytes_per_s wr_bytes_per_s bytes_per_s
            rd_mean_latency_ns wr_mean_latency_ns fl_mean_latency_ns mean_latency_ns
            backing_index allocation_bytes capacity_bytes physical_bytes threshold_bytes
            fill_ratio errors""",
        "nic": """
            rx_bytes rx_pkts rx_errs rx_drop tx_bytes tx_pkts tx_errs tx_drop
            rx_bps tx_bps rx_pkts_per_s tx_pkts_per_s contract_bps over_contract_ratio""",
    }.items()
}
#: Fields of each vCPU of a guest.
_VCPU: Final = re.compile(r"vcpu[0-9]{1,4}_(time_ns|delay_ns|steal_ratio)")
#: Units by the suffix of a field name; the first match counts.
_UNITS: Final = (
    ("bytes_per_s", "B/s"),
    ("kib_per_s", "KiB/s"),
    ("pkts_per_s", "packet/s"),
    ("per_s", "1/s"),
    ("_bps", "bit/s"),
    ("iops", "request/s"),
    ("_bytes", "B"),
    ("_kib", "KiB"),
    ("_ns", "ns"),
    ("_reqs", "request"),
    ("_pkts", "packet"),
    ("_errs", "packet"),
    ("_drop", "packet"),
    ("_ratio", "ratio"),
    ("_mhz", "MHz"),
    ("_age_s", "s"),
)
#: A smaller change of a value of this unit is noise, whatever the value was.
_NOISE: Final = {
    "ratio": 0.01,
    "bit/s": 8_000.0,
    "B/s": 1_024.0,
    "KiB/s": 1.0,
    "KiB": 1_024.0,
    "B": 1_048_576.0,
    "packet/s": 10.0,
    "request/s": 1.0,
    "ns": 100_000.0,
    "MHz": 100.0,
}
#: A mark that a counter was reset; not a measured field.
_INTERNAL: Final = "reset"


def is_known(kind: str, field: str) -> bool:
    """Tell whether entities of `kind` have a field of this name."""
    if kind == "guest" and _VCPU.fullmatch(field):
        return True
    return field in NAMES[kind]


def like(kind: str, field: str) -> str:
    """Return the known field name closest to a misspelt name, or "" if none is close."""
    matches = difflib.get_close_matches(field[:100], sorted(NAMES[kind]), n=1)
    return matches[0] if matches else ""


@functools.lru_cache(maxsize=4096)
def is_counter(field: str) -> bool:
    """Tell whether the field is a counter, which only grows."""
    return _COUNTER.fullmatch(field) is not None


@functools.lru_cache(maxsize=4096)
def unit(field: str) -> str:
    """Return the unit of a field as Ceilometer writes units; "" for a plain number."""
    return next((symbol for end, symbol in _UNITS if field.endswith(end)), "")


def has_changed(field: str, now: float, before: float, band: float) -> bool:
    """Tell whether a value changed by more than `band` of the old value and more than noise.

    A counter counts as changed after any change.
    """
    if is_counter(field):
        return now != before
    return abs(now - before) > max(band * abs(before), _NOISE.get(unit(field), 0.0))


class Fields:
    """A selection of metric fields by patterns `kind.name`, where * matches any text."""

    def __init__(self, wanted: Sequence[str]) -> None:
        for pattern in wanted:
            if pattern != "*" and "." not in pattern:
                raise InvalidInput(f"{pattern!r} names no field: write KIND.NAME, as guest.*_ratio")
        self._wanted = tuple(wanted)
        self._cache: dict[tuple[str, str], bool] = {}

    def has(self, kind: str, field: str) -> bool:
        selected = self._cache.get((kind, field))
        if selected is None:
            name = f"{kind}.{field}"
            selected = field != _INTERNAL and any(
                fnmatch.fnmatchcase(name, pattern) for pattern in self._wanted
            )
            self._cache[(kind, field)] = selected
        return selected
