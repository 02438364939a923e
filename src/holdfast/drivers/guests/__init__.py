# SPDX-License-Identifier: Apache-2.0
"""Guests of a host, found by entry point `holdfast.guests`: libvirt's, the simulated cloud's."""

import importlib.metadata

from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Guests

NAMESPACE = "holdfast.guests"
PORT = "guests"


def connect(driver: str, address: str, clock: Clock) -> Guests:
    """The driver of that name; nothing is asked before it is started."""
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}
    if driver not in entries:
        there = ", ".join(sorted(entries))
        raise DriverError(PORT, f"there is no {driver!r}; there are {there}", retryable=False)
    made: Guests = entries[driver].load()(address, clock)
    return made
