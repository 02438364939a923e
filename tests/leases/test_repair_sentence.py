# SPDX-License-Identifier: Apache-2.0
"""What the history of a lease says of a repair: its owner reads it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.leases import repair
from holdfast.model.lease import Allocation, Lease, Reservation, Window

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HELD = Window(NOW, NOW + timedelta(hours=1))


@pytest.mark.parametrize(("type_", "told"), [("physical:host", True), ("virtual:server", False)])
def test_the_sentence_does_not_name_the_host_of_a_leased_server(type_: str, told: bool) -> None:
    was, now = (Allocation(number, HELD, host=f"cmp-{number}") for number in (4, 5))
    held = Reservation("r1", type_, allocations=(was,))
    old = Lease("l1", "one", "u", "p", HELD.start, HELD.end, reservations=(held,))
    new = replace(old, reservations=(replace(held, allocations=(now,)),))
    said = repair.sentence(old, new)
    assert "reservation r1 got something else" in said
    assert ("cmp-4" in said) is told
