# SPDX-License-Identifier: Apache-2.0
"""The metrics of an agent by themselves, as a program for bench/metrics.py: on SIGTERM it says
when its passes were and how many guests, disks and interfaces each of them knew.

    python -m bench._collecting URL LINKS PASS_S BULK_S GROUP,…
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

import holdfast.cmd.agent  # noqa: F401  what the agent is in memory, this is
from holdfast.drivers.libvirt.metrics import LibvirtMeasures
from holdfast.metrics.collector import Collector
from holdfast.metrics.passes import Passes
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import SystemClock


def main() -> None:
    url, links, pass_s, bulk_s, groups = sys.argv[1:]
    clock, stop = SystemClock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    measures = LibvirtMeasures(
        url, clock, interval_s=float(bulk_s), groups=groups.split(","), links=links
    )
    seen: list[tuple[float, dict[str, int]]] = []

    def take(snapshot: Snapshot) -> None:
        live = {
            kind: sum(not one.stale for one in table.readings)
            for kind, table in snapshot.tables.items()
        }
        seen.append((time.monotonic(), live))

    passes = Passes(Collector("bench", measures, clock), float(pass_s), clock)
    passes.receivers.append(take)
    measures.start()
    passes.start()
    stop.wait()
    passes.stop()
    measures.close()
    print(json.dumps({"passes": seen, "skipped": passes.skipped}))


if __name__ == "__main__":
    main()
