# SPDX-License-Identifier: Apache-2.0
"""The outside world behind the ports: clouds, fences, memberships, guests, sinks."""

import importlib.metadata

from holdfast.model.errors import DriverError
from holdfast.ports.guests import Guests, Heartbeats
from holdfast.runtime.clock import Clock

# Guests of a host, found by entry point `holdfast.guests`: libvirt's, the simulated cloud's.


NAMESPACE = "holdfast.guests"
HEARTBEATS = "holdfast.heartbeats"
PORT = "guests"


def connect_heartbeats(driver: str, address: str, clock: Clock) -> Heartbeats | None:
    """Of the guests of that driver; None if it knows of none. Nothing is asked yet."""
    for entry in importlib.metadata.entry_points(group=HEARTBEATS, name=driver):
        made: Heartbeats = entry.load()(address, clock)
        return made
    return None


def connect_guests(driver: str, address: str, clock: Clock) -> Guests:
    """The driver of that name; nothing is asked before it is started."""
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}
    if driver not in entries:
        there = ", ".join(sorted(entries))
        raise DriverError(PORT, f"there is no {driver!r}; there are {there}", retryable=False)
    made: Guests = entries[driver].load()(address, clock)
    return made
