# SPDX-License-Identifier: Apache-2.0
"""A page for Prometheus at /metrics, made of the last snapshot when somebody asks for it.

    Prometheus("127.0.0.1", 9177, Fields(["*"]), clock).start()

Who asks costs the passes nothing, and gets nothing but what is there: no question reaches the
hypervisor. A page is made once for each snapshot, however many ask. A snapshot too old to be true
is not shown: then there is no number, rather than a wrong one.
"""

import gzip
import http.server
import logging
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from holdfast.drivers.metric_sinks.exposition import TYPE, Family, label, lines_of, page
from holdfast.model.metric_fields import Fields
from holdfast.ports.clock import Clock
from holdfast.ports.metric_sinks import Transition
from holdfast.ports.metrics import Snapshot

LOG = logging.getLogger(__name__)
#: So many are answered at once.
MOST: Final = 4
#: One that says or reads nothing for so long is cut off.
PATIENCE_S: Final = 5.0
AGAIN_S: Final = 5.0
#: A snapshot is shown for so long.
OLD_S: Final = 60.0
#: Rules of which transitions are counted.
MOST_RULES: Final = 1_000
_CHANGES: Final = Family(
    "holdfast_alarm_transitions_total", "counter", "Changes of alarms since the agent began."
)
_AGE: Final = Family("holdfast_snapshot_age_seconds", "gauge", "How old these numbers are.")


class Prometheus:
    """What a `Sink` is, for who comes and asks."""

    name = "prometheus"

    def __init__(self, host: str, port: int, fields: Fields, clock: Clock) -> None:
        self._where = (host, port)
        self._fields = fields
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._changes: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._made: tuple[int, str] = (-1, "")
        self._stop = threading.Event()
        self._server: _Server | None = None
        self._complained = False
        self._thread = threading.Thread(target=self._forever, name="sink-prometheus", daemon=True)

    def offer(self, snapshot: Snapshot, changes: Sequence[Transition]) -> None:
        self._snapshot = snapshot
        if changes:
            counts = Counter(self._changes)  # who makes a page may be reading the other
            for one in changes:
                if (one.rule, one.state) in counts or len(counts) < MOST_RULES:
                    counts[(one.rule, one.state)] += 1
            self._changes = counts

    def start(self) -> None:
        """It is there when this returns, or the log says why not."""
        self._open()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        server = self._server
        if server is not None and self._thread.is_alive():
            server.shutdown()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        if server is not None:
            server.server_close()

    @property
    def port(self) -> int:
        """Where it is, if it was left to the kernel to choose; 0: nowhere yet."""
        return int(self._server.server_address[1]) if self._server is not None else 0

    def text(self) -> str:
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

    # the door

    def _forever(self) -> None:
        while not self._stop.is_set():
            if self._server is None and not self._open():
                self._clock.wait(self._stop, AGAIN_S)
                continue
            assert self._server is not None
            try:
                self._server.serve_forever(poll_interval=0.25)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("sink prometheus: unforeseen")
                self._clock.wait(self._stop, AGAIN_S)

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
        socketserver.TCPServer.server_bind(self)  # the other one asks for names in the network
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
            self.send_error(404, "what there is, is at /metrics")
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
