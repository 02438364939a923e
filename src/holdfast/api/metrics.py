# SPDX-License-Identifier: Apache-2.0
"""What Prometheus may know: requests, durable work, its lateness. One registry per process."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.model.errors import HoldfastError
from holdfast.work.runner import Ended

_LAG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "holdfast_request_seconds",
            "Time to answer requests",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._ended = Counter(
            "holdfast_operations_ended",
            "Durable work by kind and how it ended",
            ["kind", "status"],
            registry=self.registry,
        )
        self._lag = Histogram(
            "holdfast_operation_lag_seconds",
            "How long after its due time work was done",
            ["kind"],
            buckets=_LAG,
            registry=self.registry,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, status).observe(seconds)

    def ended(self, ended: Ended) -> None:
        self._ended.labels(ended.operation.kind, ended.status).inc()
        if ended.status == "done":
            self._lag.labels(ended.operation.kind).observe(max(0.0, ended.lag_s))

    def watch_open(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Ask for the open work at each scrape."""
        self.registry.register(_Open(count))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Open(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("holdfast_operations_open", "Open durable work", labels=["kind"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("holdfast_operations_open", "Open durable work", labels=["kind"])
        up = GaugeMetricFamily("holdfast_database_up", "Whether the database answers")
        try:
            for kind, number in self._count().items():
                gauge.add_metric([kind], number)
            up.add_metric([], 1)
        except HoldfastError:
            up.add_metric([], 0)
        yield gauge
        yield up
