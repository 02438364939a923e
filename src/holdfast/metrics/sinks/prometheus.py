# SPDX-License-Identifier: Apache-2.0
"""Metric sink `prometheus`: an HTTP endpoint /metrics with the last snapshot.

    Prometheus("127.0.0.1", 9177, Fields(["*"]), clock).start()

A scrape does not delay passes and never queries the hypervisor. The page is built once per
snapshot, however many clients scrape it. A snapshot older than `OLD_S` is not served: a missing
value is better than a wrong value.
"""

import functools
import gzip
import http.server
import logging
import math
import re
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.metrics.fields import Fields, is_counter
from holdfast.metrics.sinks.udp import split
from holdfast.ports.metric_plugins import Transition
from holdfast.ports.metrics import DISK, HOST, NIC, Entity, Snapshot
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

# Prometheus text format. Pure functions.
#
# Units are those of Prometheus: seconds, bytes, hertz; the name of a counter ends in `_total`.
# A label tells the vCPUs of a guest apart. Each family and label set appears once, whatever the
# snapshot contains: Prometheus would reject a page with a duplicate line.


TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Suffix of a field name, suffix for Prometheus, scale factor.
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
    """A Prometheus metric family."""

    name: str
    kind: str  # counter, gauge
    help: str


@functools.lru_cache(maxsize=4096)
def family(kind: str, field: str) -> tuple[Family, float, str]:
    """Return the metric family of a field, its scale factor, and its vCPU number or ""."""
    vcpu, bare = "", field
    if match := _VCPU.fullmatch(field):
        vcpu, bare = match[1], f"vcpu_{match[2]}"
    scale = 1.0
    for end, becomes, by in _UNITS:
        if bare.endswith(end):
            bare, scale = bare.removesuffix(end) + becomes, by
            break
    counts = is_counter(field)
    name = _NOT_IN_NAMES.sub("_", f"holdfast_{kind}_{bare}{'_total' if counts else ''}")
    text = f"{_field_name(field, vcpu)} of the {kind}, as docs/concepts/metrics.md has it."
    return Family(name, "counter" if counts else "gauge", text), scale, vcpu


def _field_name(field: str, vcpu: str) -> str:
    return field.replace(f"vcpu{vcpu}_", "vcpuN_", 1) if vcpu else field


def page(snapshot: Snapshot, fields: Fields, more: Iterable[str] = ()) -> str:
    """Return the whole page; `more` are lines of further families."""
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
                metric, scale, vcpu = family(entity.kind, field)
                labels = f'{about},vcpu="{vcpu}"' if vcpu else about
                families.setdefault(metric, {}).setdefault(labels, value * scale)
    lines = [line for metric, numbers in families.items() for line in lines_of(metric, numbers)]
    return "\n".join([*lines, *more, ""])


def lines_of(metric: Family, numbers: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a metric family; `numbers` maps label text to value."""
    yield f"# HELP {metric.name} {_help(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in numbers.items():
        braces = f"{{{labels}}}" if labels else ""
        yield f"{metric.name}{braces} {value!r}"


def label(text: str) -> str:
    """Escape a label value; a character without UTF-8 encoding becomes a question mark."""
    safe = text.encode("utf-8", "replace").decode()
    return safe.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


@functools.lru_cache(maxsize=16_384)
def _of_guest(host: str, kind: str, identity: str, name: str, project: str, flavor: str) -> str:
    guest, shown, rest = split(identity, name)
    labels = {"host": host, "uuid": guest, "name": shown, "project": project, "flavor": flavor}
    if kind in (DISK, NIC):
        labels[kind] = rest
    return ",".join(f'{key}="{label(text)}"' for key, text in labels.items())


def _labels(host: str, entity: Entity) -> str:
    if entity.kind == HOST:
        return f'host="{label(host)}"'
    return _of_guest(host, entity.kind, entity.id, entity.name, entity.project, entity.flavor)


LOG = logging.getLogger(__name__)
#: Largest number of scrapes served at once.
MOST: Final = 4
#: A client that sends or reads nothing for this many seconds is disconnected.
PATIENCE_S: Final = 5.0
AGAIN_S: Final = 5.0
#: Age in seconds after which a snapshot is not served any more.
OLD_S: Final = 60.0
#: Largest number of (rule, state) pairs with a transition counter.
MOST_RULES: Final = 1_000
_CHANGES: Final = Family(
    "holdfast_alarm_transitions_total", "counter", "Alarm transitions since the agent started."
)
_AGE: Final = Family("holdfast_snapshot_age_seconds", "gauge", "Age of the snapshot.")


class Prometheus:
    """The sink: keeps the last snapshot and serves scrapes."""

    name = "prometheus"

    def __init__(self, host: str, port: int, fields: Fields, clock: Clock) -> None:
        self._where = (host, port)
        self._fields = fields
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._changes: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._made: tuple[int, str] = (-1, "")
        self._server: _Server | None = None
        self._complained = False
        self._worker = Worker("sink-prometheus", clock, self._serve, retry_s=AGAIN_S, stop_s=2.0)

    def offer(self, snapshot: Snapshot, changes: Sequence[Transition]) -> None:
        self._snapshot = snapshot
        if changes:
            counts = Counter(self._changes)  # a copy: a scrape may be reading the old counter
            for transition in changes:
                if (transition.rule, transition.state) in counts or len(counts) < MOST_RULES:
                    counts[(transition.rule, transition.state)] += 1
            self._changes = counts

    def start(self) -> None:
        """Open the port, or log why this failed; then start the thread that serves or retries."""
        self._open()
        self._worker.start()

    def close(self) -> None:
        self._worker.stopping.set()
        server = self._server
        if server is not None and self._worker.alive:
            server.shutdown()
        self._worker.stop()
        if server is not None:
            server.server_close()

    @property
    def port(self) -> int:
        """The port in use, also if the kernel chose the port; 0 if none is open yet."""
        return int(self._server.server_address[1]) if self._server is not None else 0

    def text(self) -> str:
        """Return the page, with the age of the snapshot."""
        snapshot = self._snapshot
        if snapshot is None:
            return ""
        age_s = self._clock.monotonic() - snapshot.monotonic
        age = "\n".join(lines_of(_AGE, {f'host="{label(snapshot.host)}"': max(0.0, age_s)}))
        body = self._page(snapshot) if age_s < OLD_S else ""
        return f"{body}{age}\n"

    def _page(self, snapshot: Snapshot) -> str:
        with self._lock:
            if self._made[0] != snapshot.pass_id:
                numbers = {
                    f'rule="{label(rule)}",state="{label(state)}"': float(count)
                    for (rule, state), count in self._changes.items()
                }
                more = lines_of(_CHANGES, numbers) if numbers else ()
                self._made = (snapshot.pass_id, page(snapshot, self._fields, more))
            return self._made[1]

    # HTTP server

    def _serve(self) -> float:
        """Open the port if necessary and serve until `close`; return the seconds until a retry."""
        if self._server is None and not self._open():
            return AGAIN_S
        assert self._server is not None
        self._server.serve_forever(poll_interval=0.25)
        return 0.0

    def _open(self) -> bool:
        try:
            self._server = _Server(self._where, self)
        except OSError as error:
            if not self._complained:
                why = error.strerror or str(error)
                LOG.error(
                    "sink prometheus: %s:%d: %s; it is tried again, or name another address by "
                    "[metric_sinks] prometheus",
                    *(*self._where, why),
                )
            self._complained = True
            return False
        return True


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, where: tuple[str, int], sink: Prometheus) -> None:
        self.sink = sink
        self._room = threading.BoundedSemaphore(MOST)
        family, *_, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind queries DNS
        self.server_name, self.server_port = "holdfast", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            LOG.debug("sink prometheus: %s went away: %s", client_address, error)
        else:
            LOG.error("sink prometheus: unforeseen", exc_info=error)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_S
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "metrics are at /metrics")
            return
        body = self.server.sink.text().encode()
        zipped = "gzip" in self.headers.get("Accept-Encoding", "")
        if zipped:
            body = gzip.compress(body, 1)
        self.send_response(200)
        self.send_header("Content-Type", TYPE)
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug("sink prometheus: %s", format % args)
