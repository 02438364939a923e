# SPDX-License-Identifier: Apache-2.0
"""1,000 hosts and 20,000 leases: the server makes the wall and the calendar within a second, and
what changed of the wall too. The figures are what bench/console.py prints; this is the net."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.console import CALENDAR, CALENDARS, served, timed

#: CPU seconds of this thread for a page, because the machine may be busy.
MOST_CPU_S = 1.0
PATHS = ("/", "/?state=down", "/console/wall/tiles?since=", CALENDAR)
#: Five times the half second that the other views take.
MOST_VIEW_CPU_S = 2.5


@pytest.mark.slow("20,000 leases are written first")
def test_the_first_paint_takes_a_second_at_most(tmp_path: Path) -> None:
    with served(tmp_path, 1_000, 20_000, together=2) as client:
        best = {path: min(one.cpu for one in timed(client, path, 2)) for path in PATHS}
        views = {path: timed(client, path, 1)[0].cpu for path in CALENDARS}
    assert max(best.values()) < MOST_CPU_S, best
    assert max(views.values()) < MOST_VIEW_CPU_S, views
