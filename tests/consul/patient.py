# SPDX-License-Identifier: Apache-2.0
"""Time for answers that must come: a driver gives its agent two seconds, which on a full machine
may pass before our own thread goes on. The agent itself has the processor first."""

from __future__ import annotations

from holdfast.runtime.clock import SystemClock

#: What is a second to the driver takes so many.
SLOWER = 20.0


class PatientClock(SystemClock):
    """Its deadlines come later; how long it waits for news is the agent's to count."""

    def monotonic(self) -> float:
        """The machine's, slowed down."""
        return super().monotonic() / SLOWER
