# SPDX-License-Identifier: Apache-2.0
"""A host with many servers on a real clock: a net under the figure of bench/recovery.py."""

import time
from pathlib import Path

from tests.heal.fleet import Fleet

SERVERS = 60
#: Of calls that take 0.02 s; with 0.2 s it is to take 10. Five times what it takes.
LIMIT_S = 20.0


def test_sixty_servers_of_a_dead_host_run_elsewhere_within_seconds(tmp_path: Path) -> None:
    with Fleet(f"sqlite:///{tmp_path / 'x.db'}", tmp_path, {}) as fleet:
        fleet.add("dies", servers=SERVERS)
        for number in range(4):
            fleet.add(f"lives-{number}")
        fleet.sim.change(latency_s=0.02)
        fleet.start()
        fleet.die("dies")
        began = time.monotonic()
        while fleet.away() < SERVERS:
            assert time.monotonic() - began < LIMIT_S, f"{fleet.away()} of {SERVERS} run"
            assert fleet.twice() == 0
            time.sleep(0.05)
        print(f"{time.monotonic() - began:.1f} s")
        calls = fleet.sim.calls()
    assert calls["moves.evacuate"] == SERVERS
    assert calls["moves.migrations"] < SERVERS, "each looks for itself"
