# SPDX-License-Identifier: Apache-2.0
"""Drivers behind the ports: clouds, fences, memberships, guests, publishers."""

import importlib.metadata

from holdfast.model.errors import DriverError
from holdfast.ports.guests import Guests, Heartbeats
from holdfast.runtime.clock import Clock

# Guest drivers, found by the entry point group `holdfast.guests`: libvirt, simulated cloud.


NAMESPACE = "holdfast.guests"
HEARTBEATS = "holdfast.heartbeats"
PORT = "guests"


def connect_heartbeats(driver: str, address: str, clock: Clock) -> Heartbeats | None:
    """Create the heartbeat driver; None if the driver has none. It contacts no guest yet."""
    for entry in importlib.metadata.entry_points(group=HEARTBEATS, name=driver):
        made: Heartbeats = entry.load()(address, clock)
        return made
    return None


def connect_guests(driver: str, address: str, clock: Clock) -> Guests:
    """Create the guest driver of this name; it contacts nothing before `start`."""
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}
    if driver not in entries:
        there = ", ".join(sorted(entries))
        raise DriverError(PORT, f"there is no {driver!r}; there are {there}", retryable=False)
    made: Guests = entries[driver].load()(address, clock)
    return made
