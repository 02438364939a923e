# SPDX-License-Identifier: Apache-2.0
"""/reservation/v1/leases: lease views, create, list, update, delete, dry run.

At 1.0 a reservation has the contract's keys only. From 1.1 on a reservation also shows the hosts
and other resources that it holds, and everything that was requested; lists have filters, sort
order and paging.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

from holdfast.api import request as bodies
from holdfast.api.concurrency import JsonCache, Missing
from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import NOW, lease_date, parse, stamp
from holdfast.db.leases import SORTS, Listing, Seen, Stamp
from holdfast.model import floatingip, state_machines
from holdfast.model.errors import Forbidden, InvalidInput, NotFound, Unavailable
from holdfast.model.lease import (
    END,
    EVENT_TYPES,
    START,
    Allocation,
    Event,
    Lease,
    LeaseChange,
    NewLease,
    NewReservation,
    Reservation,
    minute,
)
from holdfast.model.operation import RETRYING, RUNNING
from holdfast.nova.names import SERVER_LEASE
from holdfast.ports.manager import Preview

# JSON views of leases.


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
#: Keys that reservations of each resource type show in addition to the common keys.
_KEYS: Mapping[str, Sequence[str]] = {
    "physical:host": ("min", "max", "before_end", "hypervisor_properties", "resource_properties"),
    "virtual:instance": _INSTANCE,
    "flavor:instance": _INSTANCE,
    "virtual:floatingip": ("network_id", "amount", "required_floatingips"),
}
#: Internal keys of the steps of an operation and of placement; never shown.
_OURS = frozenset({"masked", "stands", "cloud_ids", "snapshot_for", "lost", "missed_before"})
#: Keys that the API does not show: Nova, too, shows the host of a server to administrators only.
#: Administrators see the host that is held for the server, not this recorded value.
_HIDDEN: Mapping[str, frozenset[str]] = {SERVER_LEASE: frozenset({"host"})}
#: Floating IP addresses by id.
Addresses = Mapping[str, str]


def view(
    lease: Lease,
    events: Sequence[Event],
    now: datetime,
    addresses: Addresses | None = None,
    for_admin: bool = False,
) -> dict[str, Any]:
    """Return the JSON view of a lease.

    `addresses` adds the fields of version 1.1; the lease must then hold its allocations.
    """
    got = None if addresses is None else partial(_got, addresses=addresses, for_admin=for_admin)
    before_end = lease.before_end and lease_date(lease.before_end)
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "start_date": lease_date(lease.start),
        "end_date": lease_date(lease.end),
        **({} if addresses is None else {"before_end_date": before_end}),
        "trust_id": None,
        "status": lease.status,
        "degraded": lease.degraded,
        "created_at": stamp(lease.created_at),
        "updated_at": stamp(lease.updated_at),
        "reservations": [_reservation_view(lease, r, got) for r in lease.reservations],
        "events": [
            *(_event_view(lease, event, now) for event in events),
            *(_user_event_view(lease, *item) for item in (lease.user_events or {}).items()),
        ],
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
    """Return the contract's keys of a reservation; all keys for a type outside the contract."""
    known = _known(reservation)
    keys = _KEYS.get(reservation.resource_type)
    if keys is None:
        return known
    if keys is _INSTANCE:
        # the flavor for servers of the reservation, not the flavor in the request
        known["flavor_id"] = reservation.made.get("flavor_id", reservation.id)
        known = {**dict.fromkeys(_INSTANCE), **known}
    return {key: known[key] for key in keys if key in known}


def _known(reservation: Reservation) -> dict[str, Any]:
    known = {**reservation.spec, **reservation.made}
    hidden = _OURS | _HIDDEN.get(reservation.resource_type, frozenset())
    return {key: value for key, value in known.items() if key not in hidden}


def _got(reservation: Reservation, addresses: Addresses, for_admin: bool) -> dict[str, Any]:
    """Return the resources a reservation holds: hosts with slots, floating IPs, other resources."""
    shows = for_admin or reservation.resource_type not in _HIDDEN
    allocations = reservation.allocations
    things = [a.thing for a in allocations if a.thing is not None]
    ids = [floatingip.id_of(thing) for thing in things if floatingip.is_key(thing)]
    others = [thing for thing in things if not floatingip.is_key(thing)]
    hosts = [_host_view(a) for a in allocations if a.host_id is not None] if shows else []
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


def _user_event_view(lease: Lease, event_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view of an event named by the owner; Holdfast does nothing at its time."""
    common = {"id": event_id, "lease_id": lease.id, **event, "status": "UNDONE"}
    return {**common, "created_at": stamp(lease.created_at), "updated_at": None}


#: Status of the start and end events by lease status. The manager writes the lease status in one
#: transaction; the operation rows of the events follow a moment later.
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
    """Return the event status for the owner; work prepared before the due time is UNDONE."""
    if event.status == "error":
        return "DONE" if event.kind == START and lease.status == "ACTIVE" else "ERROR"
    follows = _FOLLOWS.get(event.kind, {}).get(lease.status)
    if follows is not None:
        return follows
    if event.status in (RUNNING, RETRYING):
        return "IN_PROGRESS" if event.due_at <= now else "UNDONE"
    return "DONE" if event.status == "done" else "UNDONE"


_NAME = {**bodies.NAME, "maxLength": 80}
_DATE = {"type": "string", "maxLength": 64}
_EVENTS = {"type": ["array", "null"], "maxItems": 100, "items": {"type": "object"}}
_DRY_RUN = {"type": "boolean"}
#: First version that shows held resources and has filters, sort order and paging in lists.
_LATER = (1, 1)
MOST_LISTED = 1000

# Unknown keys of a lease are ignored, as in Blazar; resource types refuse unknown keys of theirs.
CREATE = {
    "type": "object",
    "required": ["name", "start_date", "end_date"],
    "properties": {
        "name": _NAME,
        "start_date": _DATE,
        "end_date": _DATE,
        "before_end_date": {"type": ["string", "null"], "maxLength": 64},
        "events": _EVENTS,
        "dry_run": _DRY_RUN,
        "reservations": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["resource_type"],
                "properties": {"resource_type": {"type": "string", "maxLength": 66}},
            },
        },
    },
}

UPDATE = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "start_date": _DATE,
        "end_date": _DATE,
        "before_end_date": {"type": ["string", "null"], "maxLength": 64},
        "dry_run": _DRY_RUN,
        "reservations": {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {
                    "id": {"type": "string", "maxLength": 36, "title": "reservation ID"}
                },
            },
        },
    },
}


_DATES = ("start_after", "start_before", "end_after", "end_before")
QUERY: dict[str, Any] = {
    "status": {"type": "string", "enum": sorted(state_machines.LEASE)},
    "name": _NAME,
    "resource_type": {"type": "string", "minLength": 1, "maxLength": 66},
    "project_id": {"type": "string", "minLength": 1, "maxLength": 64},
    **dict.fromkeys(_DATES, _DATE),
    "sort": {"type": "string", "enum": [f"{k}{d}" for k in SORTS for d in ("", ":asc", ":desc")]},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
    "marker": {"type": "string", "minLength": 1, "maxLength": 36},
}
_QUERY = bodies.Schema(bodies.query_schema(QUERY))


def index(request: Request) -> Response:
    """List leases.

    At 1.0 the contract has no filters and ignores any parameter. From 1.1 on all parameters are
    validated.
    """
    if request.microversion < _LATER:
        return Response(b'{"leases": [%s]}' % b", ".join(_texts(request)))
    query = _QUERY.query(request.query)
    texts, following = _page(request, _asked_project(request, query), _listing(request, query))
    leases = b'"leases": [%s]' % b", ".join(texts)
    if following is None:
        return Response(b"{%s}" % leases)
    more = urlencode({**request.query, "marker": following})
    link = {"rel": "next", "href": f"{request.base_url}/reservation/v1/leases?{more}"}
    return Response(b'{%s, "leases_links": %s}' % (leases, json.dumps([link]).encode()))


def show(request: Request) -> Response:
    return _shown(request, request.path["lease_id"])


def create(request: Request) -> Response:
    body = request.body
    new_lease = NewLease(
        id=request.services.new_id(),
        name=body["name"],
        start=parse(body["start_date"], "start_date"),
        end=parse(body["end_date"], "end_date"),
        before_end=_optional(body, "before_end_date"),
        reservations=tuple(new_reservation(r) for r in body.get("reservations", [])),
        dry_run=body.get("dry_run", False),
        user_events={request.services.new_id(): event for event in _user_events(request)},
    )
    if new_lease.dry_run:
        return _previewed(request, request.services.manager.create_lease(request.caller, new_lease))
    try:
        request.services.manager.create_lease(request.caller, new_lease)
    except Unavailable:  # the response may be lost, not the lease: look for the id
        if not request.services.store.ledger.with_events(lease_id=new_lease.id):
            raise
    return _shown(request, new_lease.id, status=201)


def update(request: Request) -> Response:
    body, lease_id = request.body, request.path["lease_id"]
    _visible(request, lease_id)
    changes = body.get("reservations", [])
    if len({r["id"] for r in changes}) < len(changes):
        raise InvalidInput("reservations: one is named twice; put its changes into one entry")
    change = LeaseChange(
        name=body.get("name"),
        start=_optional(body, "start_date"),
        start_now=body.get("start_date") == NOW,
        end=_optional(body, "end_date"),
        end_now=body.get("end_date") == NOW,
        before_end=_optional(body, "before_end_date"),
        reservations={r["id"]: {k: v for k, v in r.items() if k != "id"} for r in changes},
        dry_run=body.get("dry_run", False),
    )
    preview = request.services.manager.update_lease(request.caller, lease_id, change)
    if change.dry_run:
        return _previewed(request, preview)
    return _shown(request, lease_id)


def delete(request: Request) -> Response:
    lease_id = request.path["lease_id"]
    _visible(request, lease_id)
    request.services.manager.delete_lease(request.caller, lease_id)
    return Response(status=204)


def new_reservation(body: Mapping[str, Any]) -> NewReservation:
    return NewReservation(
        resource_type=body["resource_type"],
        spec={key: value for key, value in body.items() if key != "resource_type"},
    )


def _user_events(request: Request) -> Iterator[dict[str, Any]]:
    """Yield the events that the owner names; "now" is the present minute."""
    for event in request.body.get("events") or ():
        text = event.get("time") or event.get("event_date")
        at = None
        if text is not None:
            at = parse(str(text), "events") or minute(request.services.clock.now())
        kind = str(event.get("event_type") or "")[:66]
        if kind not in EVENT_TYPES.values():  # Holdfast itself makes these events
            yield {"event_type": kind, "time": at and lease_date(at)}


def _optional(body: Mapping[str, Any], field: str) -> datetime | None:
    text = body.get(field)
    if text is None or (text == NOW and field != "before_end_date"):
        return None
    if text == "" and field == "before_end_date":  # as clients send an unset date
        return None
    when = parse(text, field)
    if when is None:
        raise InvalidInput(f"{field}: cannot be now")
    return when


def _visible(request: Request, lease_id: str) -> None:
    """Raise NotFound unless the lease exists and belongs to the caller's project."""
    stamps, _ = request.services.store.ledger.stamped(
        lambda _: (), lease_id=lease_id, project_id=_project(request)
    )
    if not stamps:
        raise _not_found(lease_id)


def _project(request: Request) -> str | None:
    """Return the project visible to the caller; None for admins: all projects."""
    return None if request.caller.is_admin else request.caller.project_id


def _shown(request: Request, lease_id: str, status: int = 200) -> Response:
    for text in _texts(request, lease_id):
        return Response(b'{"lease": %s}' % text, status=status)
    raise _not_found(lease_id)


def _not_found(lease_id: str) -> NotFound:
    return NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")


def _texts(request: Request, lease_id: str | None = None) -> list[bytes]:
    """Return the JSON texts of all leases visible to the caller, or of `lease_id` alone."""
    services, whole = request.services, request.microversion >= _LATER
    read_stamps = partial(
        services.store.ledger.stamped,
        lease_id=lease_id,
        project_id=_project(request),
        holding=whole,
    )
    texts = _whole_texts(request) if whole else services.lease_texts
    return texts.texts(read_stamps, _Writer(request).write, _lasting)


def _whole_texts(request: Request) -> JsonCache:
    """Return the JSON cache for 1.1; admins have a separate cache, because admins see more."""
    services = request.services
    return services.admin_lease_texts if request.caller.is_admin else services.whole_lease_texts


class _Writer:
    """Renders leases as JSON for the requested version and the caller."""

    def __init__(self, request: Request) -> None:
        self._services = request.services
        self._whole = request.microversion >= _LATER
        self._for_admin = request.caller.is_admin

    def write(self, seen: Seen) -> bytes:
        return json.dumps(self.view(seen, self._whole)).encode()

    def view(self, seen: Seen, whole: bool) -> dict[str, Any]:
        lease, events = seen
        addresses = self._addresses(lease) if whole else None
        return view(lease, events, self._services.clock.now(), addresses, self._for_admin)

    def _addresses(self, lease: Lease) -> Addresses:
        """Return floating IP addresses by id; read once, and only if a lease holds floating IPs."""
        return self._enrolled if holds_addresses(lease) else {}

    @cached_property
    def _enrolled(self) -> Addresses:
        return {
            floating_ip.id: floating_ip.address
            for floating_ip in self._services.store.ledger.floatingips()
        }


def _page(
    request: Request, project_id: str | None, listing: Listing
) -> tuple[list[bytes], str | None]:
    """Return the JSON texts of a page of leases, and the marker of the next page or None."""
    limit = listing.limit or MOST_LISTED
    one_more = replace(listing, limit=limit + 1)
    following: list[str] = []

    def read_stamps(missing: Missing) -> tuple[Sequence[Stamp], Mapping[str, Seen]]:
        stamps, read = request.services.store.ledger.stamped(
            lambda found: missing(found[:limit]),
            project_id=project_id,
            listing=one_more,
            holding=True,
        )
        following[:] = [stamps[limit - 1][0]] if len(stamps) > limit else []
        return stamps[:limit], read

    texts = _whole_texts(request).texts(read_stamps, _Writer(request).write, _lasting)
    return texts, following[0] if following else None


def _listing(request: Request, query: Mapping[str, Any]) -> Listing:
    where = {name: query[name] for name in ("status", "name", "resource_type") if name in query}
    where |= {
        name: parse(query[name], name) or request.services.clock.now()
        for name in _DATES
        if name in query
    }
    sort, _, direction = query.get("sort", "created_at").partition(":")
    return Listing(where, sort, direction == "desc", query.get("marker"), query.get("limit"))


def _asked_project(request: Request, query: Mapping[str, Any]) -> str | None:
    own, asked = _project(request), query.get("project_id")
    if asked is not None and own not in (None, asked):
        raise Forbidden("project_id: only an administrator lists the leases of other projects")
    return own or asked


def _lasting(seen: Seen) -> bool:
    """Return whether only writes change the lease's JSON; with running work time does, too."""
    _, events = seen
    return not any(event.status in (RUNNING, RETRYING) for event in events)


def _previewed(request: Request, preview: Preview | None) -> Response:
    """Return the lease that a dry run would make, with its hosts at any version.

    A client that requests a dry run knows these fields.
    """
    if preview is None:
        raise Unavailable(
            "dry_run: an older manager answered, which knows no dry run: check the lease"
        )
    shown = _Writer(request).view((preview.lease, ()), whole=True)
    return Response({"lease": shown, "dry_run": True})
