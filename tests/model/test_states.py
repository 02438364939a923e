# SPDX-License-Identifier: Apache-2.0
"""The drawn state machines are those of the code, and every state has its sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.api.reservation_v1.leases import view
from holdfast.model import state_machines
from holdfast.model.lease import BEFORE_END, Event, Lease
from holdfast.model.operation import OPEN

ROOT = Path(__file__).parent.parent.parent
MACHINES = {
    "lease": (state_machines.LEASE, state_machines.LEASE_SAYS),
    "reservation": (state_machines.RESERVATION, state_machines.RESERVATION_SAYS),
    "operation": (state_machines.OPERATION, state_machines.OPERATION_SAYS),
    "event": (state_machines.EVENT, state_machines.EVENT_SAYS),
}


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = folder / "tools" / "draw_states.py"
    return subprocess.run(
        [sys.executable, str(tool), "--check"], check=False, capture_output=True, text=True
    )


def test_the_page_is_what_the_code_says() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


def test_a_page_that_is_out_of_date_is_noticed(tmp_path: Path) -> None:
    for name in ("tools", "docs/reference"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "draw_states.py", tmp_path / "tools")
    assert "is stale" in check(tmp_path).stderr
    drawn = (ROOT / "docs/reference/states.md").read_text()
    (tmp_path / "docs/reference/states.md").write_text(drawn)
    assert check(tmp_path).returncode == 0
    (tmp_path / "docs/reference/states.md").write_text(
        drawn.replace("    ACTIVE --> UPDATING\n", "")
    )
    assert check(tmp_path).returncode == 1


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_has_a_sentence_and_leads_to_states_that_exist(name: str) -> None:
    table, says = MACHINES[name]
    assert table.keys() == says.keys()
    assert {target for targets in table.values() for target in targets} <= table.keys()


def test_open_work_is_what_can_still_move() -> None:
    assert {state for state, targets in state_machines.OPERATION.items() if targets} == OPEN


@pytest.mark.parametrize("status", state_machines.OPERATION)
def test_the_api_shows_events_by_the_names_that_are_drawn(status: str) -> None:
    now = datetime(2030, 1, 1, 10, tzinfo=UTC)
    lease = Lease("l1", "lab", "ann", "alpha", now, now + timedelta(hours=1), status="ACTIVE")
    shown = view(lease, [Event("e1", BEFORE_END, now, status)], now)
    assert shown["events"][0]["status"] == state_machines.EVENT_OF[status]
