# SPDX-License-Identifier: Apache-2.0
"""Health probes (/healthcheck, /livez, /readyz) and Prometheus metrics (/metrics)."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.api.request import Handler, Request, Response, Route
from holdfast.hoststatus import status
from holdfast.hoststatus.status import StatusReport
from holdfast.jobs.loop import Ended
from holdfast.model.errors import HoldfastError
from holdfast.runtime.clock import Clock

_LAG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Prometheus metrics of a process: requests, durable operations and their lag."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "holdfast_request_seconds",
            "Seconds to answer a request",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._ended = Counter(
            "holdfast_operations_ended",
            "Ended operations by kind and final status",
            ["kind", "status"],
            registry=self.registry,
        )
        self._lag = Histogram(
            "holdfast_operation_lag_seconds",
            "Seconds between the due time and the end of an operation",
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
        """Register a gauge of open operations; each scrape calls `count`."""
        self.registry.register(_Open(count))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Open(Collector):
    """Collector for open operations and for whether the database answers."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("holdfast_operations_open", "Open operations", labels=["kind"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("holdfast_operations_open", "Open operations", labels=["kind"])
        up = GaugeMetricFamily("holdfast_database_up", "1 if the database answers")
        try:
            for kind, number in self._count().items():
                gauge.add_metric([kind], number)
            up.add_metric([], 1)
        except HoldfastError:
            up.add_metric([], 0)
        yield gauge
        yield up


_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def healthcheck(_ask: Request) -> Response:
    return Response(b"OK", content_type="text/plain")


def livez(request: Request) -> Response:
    """Liveness probe: 503 if the job loop is stuck or no file descriptor is left."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return Response({"status": f"no file descriptor is left: {error}"}, status=503)
    if request.services.loop_age_s is None:
        return Response({"status": "ok", "loop": "none in this process"})
    age, most = request.services.loop_age_s(), request.services.conf.manager.livez_max_age_s
    ok = age <= most
    body = {"status": "ok" if ok else "stuck", "loop_age_s": round(age, 3), "max_age_s": most}
    return Response(body, status=200 if ok else 503)


def readyz(request: Request) -> Response:
    """Readiness probe: 503 while the database or the manager does not answer; names the cause."""
    checks = {
        "database": _state(request.services.store.database.ping),
        "rpc": _state(request.services.manager.ping),
    }
    ok = all(state == "ok" for state in checks.values())
    return Response({"status": "ok" if ok else "not ready", **checks}, status=200 if ok else 503)


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except HoldfastError as error:
        return error.message
    return "ok"


def routes(metrics: Metrics) -> Sequence[Route]:
    """Return the public routes for probes and Prometheus.

    They show numbers and states, no names of hosts or projects.
    """
    answers: list[tuple[str, Handler, str]] = [
        ("/healthcheck", healthcheck, "Probe: the server answers"),
        ("/livez", livez, "Liveness probe: the job loop runs"),
        ("/readyz", readyz, "Readiness probe: database and managers answer"),
        ("/metrics", lambda _ask: Response(metrics.text(), content_type=_CONTENT), "Metrics"),
    ]
    return [Route("GET", path, handler, None, summary) for path, handler, summary in answers]


_STATES = (status.UP, status.SUSPECT, status.DOWN, status.RETURNING)


class MonitorMetrics:
    """Prometheus metrics of host status monitoring: reports, failures, messages, poll age."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Clock,
        by_state: Callable[[], Mapping[str, int]],
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._status_reports = Counter(
            "holdfast_status_reports",
            "Status reports about hosts by source",
            ["source", "verdict"],
            registry=registry,
        )
        self._failures = Counter(
            "holdfast_monitor_failures",
            "Failed calls of monitors",
            ["monitor", "how"],
            registry=registry,
        )
        self._messages = Counter(
            "holdfast_monitor_messages",
            "Messages of Nova by result",
            ["how"],
            registry=registry,
        )
        self._connected = Gauge(
            "holdfast_push_connected",
            "1 if this process listens to Nova's broker",
            registry=registry,
        )
        self._age = Gauge(
            "holdfast_poll_age_seconds",
            "Seconds since the last answer of the monitor; compare the least of all managers",
            ["monitor"],
            registry=registry,
        )
        self._polled_at: dict[str, float] = {}
        registry.register(_ByState(by_state))

    def reported(self, report: StatusReport) -> None:
        self._status_reports.labels(report.source, report.verdict).inc()

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
    """Collector for hosts by host status; each scrape reads the database.

    The collector returns no samples while the database does not answer.
    """

    def __init__(self, by_state: Callable[[], Mapping[str, int]]) -> None:
        self._by_state = by_state

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("holdfast_hosts", "Hosts by host status", labels=["state"])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        (gauge,) = self.describe()
        try:
            counts = self._by_state()
        except HoldfastError:
            return
        for state in _STATES:
            gauge.add_metric([state], counts.get(state, 0))
        yield gauge
