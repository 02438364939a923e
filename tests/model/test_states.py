# SPDX-License-Identifier: Apache-2.0
"""Every state has its sentence, and the API shows the states that are drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.api.reservation_v1.leases import view
from holdfast.model import state_machines
from holdfast.model.lease import BEFORE_END, Event, Lease
from holdfast.model.operation import OPEN

MACHINES = {
    "lease": (state_machines.LEASE, state_machines.LEASE_SAYS),
    "reservation": (state_machines.RESERVATION, state_machines.RESERVATION_SAYS),
    "operation": (state_machines.OPERATION, state_machines.OPERATION_SAYS),
    "event": (state_machines.EVENT, state_machines.EVENT_SAYS),
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_has_a_sentence_and_leads_to_states_that_exist(name: str) -> None:
    table, says = MACHINES[name]
    assert table.keys() == says.keys()
    assert {target for targets in table.values() for target in targets} <= table.keys()


def test_open_operations_are_those_with_transitions_left() -> None:
    assert {state for state, targets in state_machines.OPERATION.items() if targets} == OPEN


@pytest.mark.parametrize("status", state_machines.OPERATION)
def test_the_api_shows_events_by_the_names_that_are_drawn(status: str) -> None:
    now = datetime(2030, 1, 1, 10, tzinfo=UTC)
    lease = Lease("l1", "lab", "ann", "alpha", now, now + timedelta(hours=1), status="ACTIVE")
    shown = view(lease, [Event("e1", BEFORE_END, now, status)], now)
    assert shown["events"][0]["status"] == state_machines.EVENT_OF[status]
