# SPDX-License-Identifier: Apache-2.0
"""1,000 hosts and 20,000 leases: the server makes the wall and the calendar within a second, and
what changed of the wall too. The figures are what bench/console.py prints; this is the net."""

from __future__ import annotations

from pathlib import Path

from bench.console import CALENDAR, CALENDARS, served, timed

MOST_S = 1.0
PATHS = ("/", "/?state=down", "/console/wall/tiles?since=", CALENDAR)
#: The other views take half a second here: five times that, of this thread's own time, because a
#: year of all racks takes long where the machine has much else to do.
MOST_CPU_S = 2.5


def test_the_first_paint_takes_a_second_at_most(tmp_path: Path) -> None:
    with served(tmp_path, 1_000, 20_000, together=2) as client:
        best = {path: min(one.seconds for one in timed(client, path, 3)) for path in PATHS}
        views = {path: timed(client, path, 1)[0].cpu for path in CALENDARS}
    assert max(best.values()) < MOST_S, best
    assert max(views.values()) < MOST_CPU_S, views
