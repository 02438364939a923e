# SPDX-License-Identifier: Apache-2.0
"""A host in simulated time whose every byte is counted on its way out: the alarms of its agent, its
sender, its sign of life and what it asks by HTTP, its sinks by UDP, all to real sockets on
loopback. What the API would refuse is refused here."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import jsonschema

from holdfast.agent.outbox import Outbox, Sender
from holdfast.alarms import rules_file
from holdfast.alarms.engine import Engine
from holdfast.alarms.host_alarms import HostAlarms
from holdfast.alarms.rule_manager import BEAT_EVERY_S, Heartbeat, RuleManager
from holdfast.api.holdfast_v1 import agents, observations
from holdfast.app.agent import Alarming
from holdfast.client.client import Client
from holdfast.client.reports import HoldfastCentre, HoldfastExpected, HoldfastReports
from holdfast.conf.agent import OPTS
from holdfast.metrics.history import NOTHING, Recent, merged, read
from holdfast.metrics.passes import Sink
from holdfast.metrics.sinks.worker import SinkWorker
from holdfast.ports.metrics import Snapshot
from tests.metrics.sinks_world import NODE
from tests.simclock import SimClock

NONE = "none"
#: How often an agent asks what should run on its host, if nobody says otherwise.
(EXPECTATION_EVERY_S,) = (option.default for option in OPTS if option.name == "expected_interval_s")
SCHEMAS = {"PUT agents": agents.PUT, "POST observations": observations.SCHEMA}


class Centre:
    """Takes what comes, and counts it: heads and bodies, as they are on the wire."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.looks = False  # somebody does
        self.hour = NOTHING  # what came since
        centre = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in two pieces waits for 40 ms between them

            def _take(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                route = f"{self.command} {self.path.split('/')[3]}"
                if self.path.endswith("/samples"):
                    route = "PUT samples"
                    centre.hour = merged(centre.hour, read(json.loads(body)))
                elif route in SCHEMAS:
                    jsonschema.validate(json.loads(body), SCHEMAS[route])
                head = len(self.raw_requestline) + len(self.headers.as_bytes())
                centre.bytes[route] += head + len(body)
                centre.requests[route] += 1
                wanted = {"samples": {"after": centre.hour.end - 1}} if centre.looks else {}
                beat = {"agent": {"rules": {"version": NONE}, **wanted}}
                now = datetime.now(UTC).isoformat()
                runs = {"expected": {"host": NODE, "at": now, "servers": []}}
                reply = {"PUT agents": beat, "GET hosts": runs}.get(route, {})
                answer = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST = _take

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def total(self) -> int:
        return sum(self.bytes.values())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def about(outbox: Outbox, clock: SimClock) -> Callable[[], dict[str, Any]]:
    """What a real agent says of itself with each sign of life."""
    view = SimpleNamespace(deaf="", stuck="", tracks={}, was_read=True)
    agent: Any = SimpleNamespace(
        _outbox=outbox,
        _agent=SimpleNamespace(view=lambda: view),
        _started_at=clock.now().isoformat(),
        _groups=["gpu", "rack-12"],
        _boot={"boot_id": "7c1d", "ran": []},
    )
    return lambda: Alarming._about(agent)


def live(
    centre: Centre,
    rules: str,
    shots: Iterable[Snapshot],
    sinks: Sequence[Sink] = (),
    after: Callable[[int], None] = lambda second: None,
) -> None:
    """Pass after pass, a second apart; all that is to be delivered is, before the next."""
    clock, outbox = SimClock(), Outbox(":memory:")
    rule_manager = RuleManager(Engine(rules_file.parse(rules, "rules", 1)), outbox, clock)
    alarms = HostAlarms(NODE, rule_manager, outbox, clock)

    def client() -> Client:
        return Client(centre.url, agent="a" * 64, retries=0)

    sender = Sender(outbox, HoldfastReports(client), clock)
    recent = Recent()
    beat = Heartbeat(NODE, HoldfastCentre(client), rule_manager, about(outbox, clock), recent)
    expected = HoldfastExpected(client)
    logging.disable(logging.WARNING)
    try:
        for second, shot in enumerate(shots):
            outcome = alarms.evaluate(shot)
            recent.offer(shot)
            for sink in sinks:
                sink.offer(shot, outcome.changes)
                if isinstance(sink, SinkWorker):
                    sink.turn()
            if second % BEAT_EVERY_S == 0:
                beat.poll()
            if second % EXPECTATION_EVERY_S == 0:
                expected.expected(NODE)
            assert sender.round() == ""
            after(second)
            clock.advance(1.0)
    finally:
        logging.disable(logging.NOTSET)
        expected.close()
        outbox.close()
