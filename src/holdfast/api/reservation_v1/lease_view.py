# SPDX-License-Identifier: Apache-2.0
"""A lease as the reservation contract shows it.

At 1.0 a reservation has the contract's keys and no others. From 1.1 on it also says which hosts
the owner got, which other things, and all that was asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.api.reservation_v1.dates import lease_date, stamp
from holdfast.model import floatingip
from holdfast.model.lease import END, EVENT_TYPES, START, Allocation, Event, Lease, Reservation
from holdfast.model.operation import RETRYING, RUNNING
from holdfast.nova.names import SERVER_LEASE

_INSTANCE = (
    "vcpus",
    "memory_mb",
    "disk_gb",
    "amount",
    "affinity",
    "flavor_id",
    "aggregate_id",
    "server_group_id",
    "resource_properties",
)
#: Of each type of the contract, what its reservations show beside what all have.
_KEYS: Mapping[str, Sequence[str]] = {
    "physical:host": ("min", "max", "before_end", "hypervisor_properties", "resource_properties"),
    "virtual:instance": _INSTANCE,
    "flavor:instance": _INSTANCE,
    "virtual:floatingip": ("network_id", "amount", "required_floatingips"),
}
#: What steps remember for each other.
_OURS = frozenset({"stands", "cloud_ids", "snapshot_for", "lost", "missed_before"})
#: What is no business of owners: Nova, too, tells only administrators where a server is. They see
#: the host that is held for it, not what was noted down once.
_HIDDEN: Mapping[str, frozenset[str]] = {SERVER_LEASE: frozenset({"host"})}
#: Floating IPs by id.
Addresses = Mapping[str, str]


def view(
    lease: Lease,
    events: Sequence[Event],
    now: datetime,
    addresses: Addresses | None = None,
    for_admin: bool = False,
) -> dict[str, Any]:
    """With `addresses`: what 1.1 adds; the lease then has its allocations."""
    got = None if addresses is None else partial(_got, addresses=addresses, for_admin=for_admin)
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "start_date": lease_date(lease.start),
        "end_date": lease_date(lease.end),
        "trust_id": None,
        "status": lease.status,
        "degraded": lease.degraded,
        "created_at": stamp(lease.created_at),
        "updated_at": stamp(lease.updated_at),
        "reservations": [_reservation_view(lease, r, got) for r in lease.reservations],
        "events": [_event_view(lease, event, now) for event in events],
    }


def holds_addresses(lease: Lease) -> bool:
    return any(a.thing and floatingip.is_key(a.thing) for a in lease.allocations())


def _reservation_view(
    lease: Lease, reservation: Reservation, got: Callable[[Reservation], dict[str, Any]] | None
) -> dict[str, Any]:
    common = {
        "id": reservation.id,
        "lease_id": lease.id,
        "resource_id": reservation.id,
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "created_at": stamp(reservation.created_at),
        "updated_at": stamp(reservation.updated_at),
    }
    shown = _contract(reservation)
    if got is not None:
        shown = {**_known(reservation), **shown, **got(reservation)}
    return {**common, **{key: value for key, value in shown.items() if key not in common}}


def _contract(reservation: Reservation) -> dict[str, Any]:
    """What the contract says of a reservation of this type; of a type of its own, everything."""
    known = _known(reservation)
    keys = _KEYS.get(reservation.resource_type)
    if keys is None:
        return known
    if keys is _INSTANCE:
        # the flavor that servers of the reservation use, not the one it was asked by
        known["flavor_id"] = reservation.made.get("flavor_id", reservation.id)
        known = {**dict.fromkeys(_INSTANCE), **known}
    return {key: known[key] for key in keys if key in known}


def _known(reservation: Reservation) -> dict[str, Any]:
    known = {**reservation.spec, **reservation.made}
    hidden = _OURS | _HIDDEN.get(reservation.resource_type, frozenset())
    return {key: value for key, value in known.items() if key not in hidden}


def _got(reservation: Reservation, addresses: Addresses, for_admin: bool) -> dict[str, Any]:
    """What the reservation holds: hosts, with the slots of each, floating IPs, other things."""
    shows = for_admin or reservation.resource_type not in _HIDDEN
    held = reservation.allocations
    things = [a.thing for a in held if a.thing is not None]
    ids = [floatingip.id_of(thing) for thing in things if floatingip.is_key(thing)]
    others = [thing for thing in things if not floatingip.is_key(thing)]
    hosts = [_host_view(a) for a in held if a.host_id is not None] if shows else []
    got: dict[str, Any] = {"hosts": hosts}
    if ids:
        got["floatingips"] = [{"id": id_, "address": addresses.get(id_)} for id_ in ids]
    return got | ({"things": others} if others else {})


def _host_view(allocation: Allocation) -> dict[str, Any]:
    host: dict[str, Any] = {"id": str(allocation.host_id), "name": allocation.host}
    return host if allocation.slots is None else {**host, "slots": allocation.slots}


def _event_view(lease: Lease, event: Event, now: datetime) -> dict[str, Any]:
    return {
        "id": event.id,
        "lease_id": lease.id,
        "event_type": EVENT_TYPES[event.kind],
        "time": lease_date(event.due_at),
        "status": _event_status(lease, event, now),
        "created_at": stamp(event.created_at),
        "updated_at": stamp(event.updated_at),
    }


#: Start and end are what the lease says of them: both are written in one transaction with it,
#: their rows of durable work a moment later.
_FOLLOWS: Mapping[str, Mapping[str, str]] = {
    START: {
        "PENDING": "UNDONE",
        "STARTING": "IN_PROGRESS",
        "ACTIVE": "DONE",
        "TERMINATING": "DONE",
        "TERMINATED": "DONE",
    },
    END: {
        "PENDING": "UNDONE",
        "STARTING": "UNDONE",
        "ACTIVE": "UNDONE",
        "TERMINATING": "IN_PROGRESS",
        "TERMINATED": "DONE",
    },
}


def _event_status(lease: Lease, event: Event, now: datetime) -> str:
    """What the owner may know; work prepared ahead of its time has not happened yet."""
    if event.status == "error":
        return "DONE" if event.kind == START and lease.status == "ACTIVE" else "ERROR"
    follows = _FOLLOWS.get(event.kind, {}).get(lease.status)
    if follows is not None:
        return follows
    if event.status in (RUNNING, RETRYING):
        return "IN_PROGRESS" if event.due_at <= now else "UNDONE"
    return "DONE" if event.status == "done" else "UNDONE"
