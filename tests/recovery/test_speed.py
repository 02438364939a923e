# SPDX-License-Identifier: Apache-2.0
"""A host with many servers on a real clock: what makes the figure of bench/recovery.py, counted and
not timed, so that it is the same on a machine that is busy with something else."""

import time
from pathlib import Path

import pytest

from holdfast.recovery import context
from tests.processes import PATIENCE_S, eventually
from tests.recovery.fleet import Fleet

SERVERS, AT_ONCE = 60, 32


def test_sixty_servers_leave_a_dead_host_in_parallel_and_share_their_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        context, "PATIENCE_S", PATIENCE_S
    )  # a starved thread is no cloud that hangs
    options = {("recovery", "parallel_moves"): AT_ONCE}
    with Fleet(f"sqlite:///{tmp_path / 'x.db'}", tmp_path, options) as fleet:
        fleet.add("dies", servers=SERVERS)
        for number in range(4):
            fleet.add(f"lives-{number}")
        fleet.sim.change(latency_s=0.02, action_s=3600.0)
        fleet.start()
        began = time.monotonic()
        fleet.die("dies")
        # no move ends before as many as may have begun: one after the other, it would be one
        eventually(lambda: fleet.moving() == AT_ONCE, 2 * PATIENCE_S)
        fleet.sim.change(action_s=0.0)
        fleet.arrive()

        def all_away() -> bool:
            assert fleet.twice() == 0
            return fleet.away() == SERVERS

        def all_told() -> bool:
            return len(fleet.rows("SELECT id FROM vmoves WHERE status = 'succeeded'")) == SERVERS

        eventually(all_away, 2 * PATIENCE_S)
        eventually(all_told, 2 * PATIENCE_S)
        calls, took = fleet.sim.calls(), time.monotonic() - began
    once = ("moves.evacuate", "servers.lock", "servers.unlock")
    assert [calls[name] for name in once] == [SERVERS] * 3
    # their host's list serves before the evacuation; each is read once when it has arrived
    assert calls["servers.show"] <= SERVERS + 2
    assert calls["servers.list"] <= took / context.LISTED_S + 5
    # Shared, an answer serves for FRESH_S, and a wave of moves that begin asks once more. Else
    # each of the sixty asks at least once when it has begun and once when it has arrived.
    assert calls["moves.migrations"] <= took / context.FRESH_S + SERVERS / 2, (
        "each looks for itself"
    )
