# SPDX-License-Identifier: Apache-2.0
"""What becomes of a lease by a step of its work: values in, values out."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.model.lease import EVENT_TYPES, Lease, Reservation
from holdfast.reserve.resource import Effect

#: In `Reservation.made`: ids of hosts that failed and for which nothing else was found.
LOST = "lost"


def event(kind: str) -> str:
    """How an announcement calls it."""
    return f"lease.event.{EVENT_TYPES[kind]}" if kind in EVENT_TYPES else ""


def after(lease: Lease, effects: Sequence[Effect]) -> Lease:
    """The lease with what the effects made of its reservations, and missed."""

    def changed(reservation: Reservation, effect: Effect) -> Reservation:
        missing = reservation.missing_resources if effect.missing is None else effect.missing
        missing = missing or bool(reservation.made.get(LOST))
        made = {**reservation.made, **effect.made}
        return replace(reservation, made=made, missing_resources=missing)

    reservations = tuple(map(changed, lease.reservations, effects))
    degraded = any(r.missing_resources or r.resources_changed for r in reservations)
    return replace(lease, reservations=reservations, degraded=degraded)


def along(lease: Lease, path: Sequence[str]) -> Lease:
    """Move along the path; a lease already on it goes on from where it is."""
    left = path[path.index(lease.status) + 1 :] if lease.status in path else path
    for status in left:
        lease = lease.move(status)
    return lease
