# SPDX-License-Identifier: Apache-2.0
"""A net against collapse: many leases in one second. `bench/start_lag.py` prints the figure."""

from __future__ import annotations

import pytest
from bench._parts import embedded
from bench.start_lag import lags

PROMISE_S = 3.0


@pytest.mark.timeout(180)
def test_200_leases_of_the_same_second_start_soon_after_it() -> None:
    with embedded(200) as house:
        found = lags(house, 200)
    assert len(found) == 200
    assert max(found) < 5 * PROMISE_S, f"the last lease started {max(found):.1f} s late"
