# SPDX-License-Identifier: Apache-2.0
"""Plugin `log_exceptional`: logs when a metric exceeds a level for a while, and the end.

The plugin writes to the agent's log only; nothing leaves the host.

    - {name: log, use: log_exceptional, config: {cpu_ratio: 0.97, for_s: 30}}

Each option is a level; 0 switches the check off:

    cpu_ratio        CPU use of a guest, share of its vCPUs          0.97
    used_ratio       memory use of a guest                           0.97
    fill_ratio       allocated share of a disk                       0.95
    latency_ms       mean latency of a disk                          100
    contract_ratio   used share of an interface's contract           1.0
    host_cpu_ratio   CPU use of the host                             0.95
    for_s            seconds above (or below) the level              30
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LOG = logging.getLogger(__name__)

LEVELS: Final = {
    "cpu_ratio": 0.97,
    "used_ratio": 0.97,
    "fill_ratio": 0.95,
    "latency_ms": 100.0,
    "contract_ratio": 1.0,
    "host_cpu_ratio": 0.95,
    "for_s": 30.0,
}
_Key = tuple[str, str]


@dataclass(slots=True)
class _Seen:
    """A metric above its level."""

    since: float  # first time above the level
    last: float
    is_told: bool = False
    worst: float = 0.0


class LogExceptional:
    """The plugin."""

    def __init__(self) -> None:
        self._levels = dict(LEVELS)
        self._seen: dict[_Key, _Seen] = {}

    def configure(self, config: Mapping[str, Any]) -> None:
        self._levels = read_numbers(config, LEVELS)

    def on_host(self, d: Mapping[str, Any]) -> None:
        self._forget(d["ctx"]["monotonic"])
        self._look(d, "cpu_util_ratio", self._levels["host_cpu_ratio"])

    def on_cpu(self, d: Mapping[str, Any]) -> None:
        self._look(d, "util_ratio", self._levels["cpu_ratio"])

    def on_ram(self, d: Mapping[str, Any]) -> None:
        self._look(d, "used_ratio", self._levels["used_ratio"])

    def on_volume(self, d: Mapping[str, Any]) -> None:
        self._look(d, "fill_ratio", self._levels["fill_ratio"])
        self._look(d, "mean_latency_ns", self._levels["latency_ms"] * 1e6)

    def on_bandwidth(self, d: Mapping[str, Any]) -> None:
        self._look(d, "over_contract_ratio", self._levels["contract_ratio"])

    def _look(self, d: Mapping[str, Any], field: str, level: float) -> None:
        """Compare a field with its level; log the beginning and the end."""
        value = d.get(field)
        if level <= 0 or d["stale"] or value is None:
            return
        key, now = (f"{d['name']} ({d.get('uuid', 'host')})", field), d["ctx"]["monotonic"]
        seen = self._seen.get(key)
        if value > level:
            if seen is None:
                seen = self._seen[key] = _Seen(now, now)
            seen.last, seen.worst = now, max(seen.worst, value)
            if not seen.is_told and now - seen.since >= self._levels["for_s"]:
                seen.is_told = True
                LOG.warning("%s: %s is %g, above %g", key[0], field, value, level)
        elif seen is not None and not seen.is_told:
            del self._seen[key]
        elif seen is not None and now - seen.last >= self._levels["for_s"]:
            del self._seen[key]
            lasted_s = seen.last - seen.since
            LOG.info("%s: %s is %g again, after %.0f s", key[0], field, value, lasted_s)

    def _forget(self, now: float) -> None:
        """Forget metrics that were not above their level for an hour."""
        old = [key for key, one in self._seen.items() if now - one.last > 3600.0]
        for key in old:
            del self._seen[key]


def read_numbers(config: Mapping[str, Any], known: Mapping[str, float]) -> dict[str, float]:
    """Merge a configuration with the defaults `known`. ValueError says what is wrong."""
    for name, value in config.items():
        if name not in known:
            raise ValueError(f"{name} is unknown: there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{name} is {value!r}: write a number, 0 or more")
    return {**known, **{name: float(value) for name, value in config.items()}}
