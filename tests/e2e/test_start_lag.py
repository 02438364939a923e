# SPDX-License-Identifier: Apache-2.0
"""A net against collapse: many leases in one second. `bench/start_lag.py` prints the figure."""

from __future__ import annotations

import pytest
from bench import start_lag
from bench._parts import embedded

LEASES = 50
#: Of each call to the cloud: one lease after the other would take so many of them.
LATENCY_S = 1.0


@pytest.mark.slow("leases are booked ahead of the second in which they start")
def test_many_leases_of_the_same_second_start_together_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_lag, "LATENCY_S", LATENCY_S)
    with embedded(LEASES) as house:
        found = start_lag.lags(house, LEASES)
    assert len(found) == LEASES
    assert max(found) < LEASES * LATENCY_S / 2, f"the last lease started {max(found):.1f} s late"
