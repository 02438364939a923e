# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.metrics.plugins.log_exceptional import read_numbers
from holdfast.ports.metric_plugins import Context

USUAL: Final = {"steal_ratio": 0.1, "share_ratio": 0.3, "for_s": 60.0, "busy_ratio": 0.05}


@dataclass(frozen=True, slots=True)
class _Guest:
    """CPU use and steal of a guest in the last pass."""

    uuid: str
    name: str
    cpus: float  # number of CPUs used
    steal: float


class NoisyNeighbour:
    """The plugin."""

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
            self._tell(wanting, steal, ctx)

    def on_cpu(self, d: Mapping[str, Any]) -> None:
        used, steal = d.get("util_ratio"), d.get("steal_ratio")
        if d["stale"] or used is None or steal is None:
            return
        cpus = used * max(1, d["flavor_vcpus"])
        self._guests.append(_Guest(d["uuid"], d["name"], cpus, steal))

    def _tell(self, wanting: list[_Guest], steal: float, ctx: Context) -> None:
        """Report the host, and the busiest guest if its share is large enough."""
        limit = self._config["steal_ratio"]
        ctx.tell(
            f"{len(wanting)} guests wait for a CPU {steal:.0%} of the time",
            value=steal,
            threshold=limit,
        )
        most = max(wanting, key=lambda one: one.cpus)
        used = sum(one.cpus for one in wanting)
        share = most.cpus / used if used else 0.0
        if share >= self._config["share_ratio"]:
            ctx.tell(
                f"{most.name} takes {share:.0%} of the CPU time for which its neighbours wait",
                about=most.uuid,
                value=share,
                threshold=self._config["share_ratio"],
            )
