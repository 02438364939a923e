# SPDX-License-Identifier: Apache-2.0
"""Metric plugins shipped with Holdfast; docs/reference/metric-plugins.md says how to write one."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.ports.metric_plugins import Context

LOG = logging.getLogger(__name__)


def read_numbers(config: Mapping[str, Any], defaults: Mapping[str, float]) -> dict[str, float]:
    """Merge a configuration with the defaults. ValueError says what is wrong."""
    for name, value in config.items():
        if name not in defaults:
            raise ValueError(f"{name} is unknown: there are {', '.join(defaults)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{name} is {value!r}: write a number, 0 or more")
    return {**defaults, **{name: float(value) for name, value in config.items()}}


LEVELS: Final = {
    "cpu_ratio": 0.97,
    "used_ratio": 0.97,
    "fill_ratio": 0.95,
    "latency_ms": 100.0,
    "contract_ratio": 1.0,
    "host_cpu_ratio": 0.95,
    "for_s": 30.0,
}


@dataclass(slots=True)
class _Excess:
    """A metric above its level."""

    since: float  # first time above the level
    last: float
    is_logged: bool = False
    worst: float = 0.0


class LogExceptional:
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

    def __init__(self) -> None:
        self._levels = dict(LEVELS)
        self._excesses: dict[tuple[str, str], _Excess] = {}

    def configure(self, config: Mapping[str, Any]) -> None:
        self._levels = read_numbers(config, LEVELS)

    def on_host(self, d: Mapping[str, Any]) -> None:
        self._forget(d["ctx"]["monotonic"])
        self._compare(d, "cpu_util_ratio", self._levels["host_cpu_ratio"])

    def on_cpu(self, d: Mapping[str, Any]) -> None:
        self._compare(d, "util_ratio", self._levels["cpu_ratio"])

    def on_ram(self, d: Mapping[str, Any]) -> None:
        self._compare(d, "used_ratio", self._levels["used_ratio"])

    def on_volume(self, d: Mapping[str, Any]) -> None:
        self._compare(d, "fill_ratio", self._levels["fill_ratio"])
        self._compare(d, "mean_latency_ns", self._levels["latency_ms"] * 1e6)

    def on_bandwidth(self, d: Mapping[str, Any]) -> None:
        self._compare(d, "over_contract_ratio", self._levels["contract_ratio"])

    def _compare(self, d: Mapping[str, Any], field: str, level: float) -> None:
        """Compare a field with its level; log the beginning and the end."""
        value = d.get(field)
        if level <= 0 or d["stale"] or value is None:
            return
        key, now = (f"{d['name']} ({d.get('uuid', 'host')})", field), d["ctx"]["monotonic"]
        excess = self._excesses.get(key)
        if value > level:
            if excess is None:
                excess = self._excesses[key] = _Excess(now, now)
            excess.last, excess.worst = now, max(excess.worst, value)
            if not excess.is_logged and now - excess.since >= self._levels["for_s"]:
                excess.is_logged = True
                LOG.warning("%s: %s is %g, above %g", key[0], field, value, level)
        elif excess is not None and not excess.is_logged:
            del self._excesses[key]
        elif excess is not None and now - excess.last >= self._levels["for_s"]:
            del self._excesses[key]
            lasted_s = excess.last - excess.since
            LOG.info("%s: %s is %g again, after %.0f s", key[0], field, value, lasted_s)

    def _forget(self, now: float) -> None:
        """Forget metrics that were not above their level for an hour."""
        old = [key for key, excess in self._excesses.items() if now - excess.last > 3600.0]
        for key in old:
            del self._excesses[key]


USUAL: Final = {"steal_ratio": 0.1, "share_ratio": 0.3, "for_s": 60.0, "busy_ratio": 0.05}


@dataclass(frozen=True, slots=True)
class _Guest:
    """CPU use and steal of a guest in the last pass."""

    uuid: str
    name: str
    cpus: float  # number of CPUs used
    steal: float


class NoisyNeighbour:
    """Plugin `noisy_neighbour`: finds the guest that takes the CPU time other guests wait for.

        - {name: noisy, use: noisy_neighbour, config: {steal_ratio: 0.1, for_s: 60}}

    A rule on a single guest sees that the guest waits, or that another guest is busy; neither is
    wrong by itself. This plugin compares all guests of the host. If the guests that want to run had
    to wait for `steal_ratio` of the time on average, for `for_s` seconds, the plugin reports the
    host. It also reports the busiest guest if this guest takes at least `share_ratio` of the CPU
    time of all those guests. A guest wants to run if its CPU use plus steal is at least
    `busy_ratio`.

        steal_ratio   0.1     share_ratio   0.3     for_s   60     busy_ratio   0.05
    """

    def __init__(self) -> None:
        self._config = dict(USUAL)
        self._guests: list[_Guest] = []
        self._since: float | None = None

    def configure(self, config: Mapping[str, Any]) -> None:
        self._config = read_numbers(config, USUAL)

    def on_host(self, d: Mapping[str, Any], ctx: Context) -> None:
        """Evaluate the guests of the previous pass; `on_host` is the first callback of a pass."""
        guests, self._guests = self._guests, []
        wanting = [
            guest for guest in guests if guest.cpus + guest.steal >= self._config["busy_ratio"]
        ]
        steal = sum(guest.steal for guest in wanting) / len(wanting) if wanting else 0.0
        if len(wanting) < 2 or steal <= self._config["steal_ratio"]:
            self._since = None
            return
        if self._since is None:
            self._since = ctx.monotonic
        if ctx.monotonic - self._since >= self._config["for_s"]:
            self._report(wanting, steal, ctx)

    def on_cpu(self, d: Mapping[str, Any]) -> None:
        used, steal = d.get("util_ratio"), d.get("steal_ratio")
        if d["stale"] or used is None or steal is None:
            return
        cpus = used * max(1, d["flavor_vcpus"])
        self._guests.append(_Guest(d["uuid"], d["name"], cpus, steal))

    def _report(self, wanting: list[_Guest], steal: float, ctx: Context) -> None:
        """Report the host, and the busiest guest if its share is large enough."""
        limit = self._config["steal_ratio"]
        ctx.report(
            f"{len(wanting)} guests wait for a CPU {steal:.0%} of the time",
            value=steal,
            threshold=limit,
        )
        most = max(wanting, key=lambda guest: guest.cpus)
        used = sum(guest.cpus for guest in wanting)
        share = most.cpus / used if used else 0.0
        if share >= self._config["share_ratio"]:
            ctx.report(
                f"{most.name} takes {share:.0%} of the CPU time for which its neighbours wait",
                about=most.uuid,
                value=share,
                threshold=self._config["share_ratio"],
            )
