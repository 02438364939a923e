# SPDX-License-Identifier: Apache-2.0
"""What Prometheus may know of watching: a `watch.monitor.Tally` that counts."""

import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.model import standing
from holdfast.model.errors import HoldfastError
from holdfast.model.standing import Sighting
from holdfast.ports.clock import Clock

_STATES = (standing.UP, standing.SUSPECT, standing.DOWN, standing.RETURNING)


class MonitorMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Clock,
        by_state: Callable[[], Mapping[str, int]],
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._sightings = Counter(
            "holdfast_sightings",
            "What sources said of hosts",
            ["source", "verdict"],
            registry=registry,
        )
        self._failures = Counter(
            "holdfast_monitor_failures",
            "Calls of monitors that went wrong",
            ["monitor", "how"],
            registry=registry,
        )
        self._messages = Counter(
            "holdfast_monitor_messages",
            "Messages of Nova and what became of them",
            ["how"],
            registry=registry,
        )
        self._connected = Gauge(
            "holdfast_push_connected",
            "Whether this process listens to Nova's broker",
            registry=registry,
        )
        self._age = Gauge(
            "holdfast_poll_age_seconds",
            "How long ago this process had an answer from the monitor; the least of all managers"
            " counts",
            ["monitor"],
            registry=registry,
        )
        self._polled_at: dict[str, float] = {}
        registry.register(_ByState(by_state))

    def sighted(self, sighting: Sighting) -> None:
        self._sightings.labels(sighting.source, sighting.verdict).inc()

    def failed(self, monitor: str, how: str) -> None:
        self._failures.labels(monitor, how).inc()

    def polled(self, monitor: str) -> None:
        self._polled_at[monitor] = self._clock.monotonic()
        self._age.labels(monitor).set_function(lambda: self._seconds_since(monitor))

    def connected(self, there: bool) -> None:
        self._connected.set(there)

    def message(self, how: str) -> None:
        self._messages.labels(how).inc()

    def _seconds_since(self, monitor: str) -> float:
        return self._clock.monotonic() - self._polled_at.get(monitor, -math.inf)


class _ByState(Collector):
    """Asked for at each scrape; none of them while the database is away."""

    def __init__(self, by_state: Callable[[], Mapping[str, int]]) -> None:
        self._by_state = by_state

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("holdfast_hosts", "Hosts by standing", labels=["state"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        (gauge,) = self.describe()
        try:
            found = self._by_state()
        except HoldfastError:
            return
        for state in _STATES:
            gauge.add_metric([state], found.get(state, 0))
        yield gauge
