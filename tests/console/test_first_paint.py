# SPDX-License-Identifier: Apache-2.0
"""1,000 hosts and 20,000 leases: the server makes the wall and the calendar within a second, and
what changed of the wall too. The figures are what bench/console.py prints; this is the net."""

from __future__ import annotations

from pathlib import Path

from bench.console import CALENDAR, served, timed

MOST_S = 1.0
PATHS = ("/", "/?state=down", "/console/wall/tiles?since=", CALENDAR)


def test_the_first_paint_takes_a_second_at_most(tmp_path: Path) -> None:
    with served(tmp_path, 1_000, 20_000, together=2) as client:
        best = {path: min(one.seconds for one in timed(client, path, 3)) for path in PATHS}
    assert max(best.values()) < MOST_S, best
